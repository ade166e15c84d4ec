"""Ends a process that user code has forked, before it continues its parent's run.

``os.fork()`` returns twice. A child that returns from the user's code, instead of ending, would go on as the owner of
its parent's run: it has the same lease and epoch, but no heartbeats, and shares the parent's connections. So it ends
where the user's code returns to aft, at once and without closing anything; the parent is not affected. A child that
sets aft up again, as in pre-forking servers, has nothing of this on its stack.
"""

from __future__ import annotations

import os

from aft.telemetry import logger


class ForkGuard:
    """Remembers the process that it was made in; as a context manager it surrounds user code."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    def check(self) -> None:
        """End this process if it is not the one that the guard was made in."""
        if os.getpid() != self._pid:
            logger.error("a process that the code of an activity or flow has forked did not end by itself: it ends now")
            os._exit(1)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.check()
