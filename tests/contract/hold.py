"""A consumer process that receives and never acknowledges, to be killed by a test.

Usage: ``python -m tests.contract.hold KIND URL QUEUE COUNT``; says ``holding COUNT`` when it does.
"""

from __future__ import annotations

import sys
import time

from tests.contract.harness import collect
from tests.contract.kinds import make_broker


def main(kind: str, url: str, queue: str, count: str) -> None:
    """Hold the messages until somebody ends this process."""
    consumer = make_broker(kind, url).consumer([queue], int(count))
    collect(consumer, int(count))
    print(f"holding {count}", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
