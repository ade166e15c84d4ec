"""How fast is aft, beside its peers and beside what the machine allows? ``python -m bench``; PERFORMANCE.md tells."""
