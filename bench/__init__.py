"""Benchmarks aft beside its peers and the limits of the machine: ``python -m bench``; see PERFORMANCE.md."""
