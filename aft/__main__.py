"""``python -P -m aft``: the command line, where the script ``aft`` is not on the path.

Without ``-P`` Python itself looks for modules in the current folder first, before any line of aft is executed.
"""

from __future__ import annotations

from aft.cli import main

if __name__ == "__main__":
    main()
