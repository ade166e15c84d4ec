"""A dispatcher that decides, and dies in the middle of an exlet: right before or right after one commit of its plan.

The environment says at which one, and on which side; nothing in aft is changed but what this process sees of it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import aft
from aft.config import Settings
from aft.dispatcher.exlets.plans import PlanExecutor
from aft.rules.exlets import plans

#: ``before 3``, ``after 1``: the third commit does not happen, the first is the last that does.
WHERE = "AFT_TEST_DIES"


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def _die_at(real: Callable[..., Any], count: list[int], number: int, *, before: bool) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        if before and count[0] == number:
            _die()  # what the primitive did is in a transaction that nobody commits
        done = real(*args, **kwargs)
        if not before and count[0] == number:
            _die()
        return done

    return wrapped


def arm(where: str) -> None:
    """Let this process die there."""
    side, number = where.split()
    count = [0]
    if side == "before":
        for name in ("advance", "end"):
            setattr(plans, name, _die_at(getattr(plans, name), count, int(number), before=True))
    else:
        PlanExecutor._do_next = _die_at(PlanExecutor._do_next, count, int(number), before=False)  # type: ignore[method-assign]
    plans.HOLD = 0.2  # what it leaves is somebody else's soon


if __name__ == "__main__":
    arm(os.environ[WHERE])
    with aft.Aft(settings=Settings.load(grace=1.0)) as app, app.dispatcher(only=["intake", "relay", "sweep"]):
        threading.Event().wait(60)
