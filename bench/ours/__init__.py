"""aft in each workload: programs that get a job, run it, and answer with one line."""
