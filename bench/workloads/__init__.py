"""Which contests are there? One module for each workload; ``contests(setting)`` gives them."""
