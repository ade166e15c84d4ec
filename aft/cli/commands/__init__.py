"""The commands of ``aft``, one module for each noun."""
