"""Does aft keep its promises when processes, servers and lines fail? ``python -m chaos``; docs/chaos.md tells."""
