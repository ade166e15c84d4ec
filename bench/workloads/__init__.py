"""The contests, one module for each workload; ``contests(setting)`` returns them."""
