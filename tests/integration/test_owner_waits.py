"""Claims about what a run's owner remembers that its branches wait for."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

from aft.ids import StepPath
from aft.runs.waits import Wait, WaitKind
from tests.storing import Stage


class TellingLock:
    """A lock that tells when somebody else comes to it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._mine = threading.get_ident()
        self.reached = threading.Event()

    def __enter__(self) -> None:
        if threading.get_ident() != self._mine:
            self.reached.set()
        self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()


def test_one_branch_begins_to_wait_while_another_has_just_ended(sqlite_stage: Stage) -> None:
    owner = sqlite_stage.owned(sqlite_stage.lease())
    over, begun = (Wait(StepPath(path), WaitKind.SIGNAL, "number", datetime.now(UTC)) for path in ("1.1", "1.2"))
    lock: Any = TellingLock()
    owner.lock = lock
    owner.begin_wait(over)
    ends = threading.Thread(target=owner.remove_wait, args=(over.path,))
    with lock:
        ends.start()
        assert lock.reached.wait(60)
        owner.begin_wait(begun)
    ends.join(60)
    assert owner.run.waits == (begun,)
