"""aft in each workload: programs that get a job, do it, and answer with one line."""
