"""Chaos tests of aft's promises under failing processes, servers and lines: ``python -m chaos``; docs/chaos.md."""
