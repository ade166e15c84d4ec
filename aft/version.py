"""The one place that knows aft's version."""

__version__ = "0.1.0"
