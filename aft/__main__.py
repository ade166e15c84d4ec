"""``python -m aft``: the command line, where the script ``aft`` is not on the path."""

from __future__ import annotations

from aft.cli import main

if __name__ == "__main__":
    main()
