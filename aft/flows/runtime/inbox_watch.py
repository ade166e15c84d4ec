"""Notifies runs that are executed here of new items in their inbox.

The owner of a run learns of its inbox from its own writes. A run that waits in one branch while another is at work may
write nothing for an hour; so its inbox is polled from here, as long as it waits. One statement reads those of all such
runs of the process; without such runs nothing is read.

The threads of any number of runs, and the polling one, run at the same time. A notification is only a hint, as a
message is: the run reads its inbox itself. A crash loses nothing but the hint.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aft.errors import StoreError
from aft.ids import RunId
from aft.store import Store
from aft.store.batch.statements import PreparedQuery
from aft.store.tables import runs
from aft.telemetry import logger

#: Seconds between two polls.
INTERVAL = 0.1
#: Seconds after which the thread ends if no run is watched.
IDLE = 1.0

_LENGTHS = PreparedQuery.about(f"SELECT id, inbox_seq FROM {runs.name} WHERE id {{among}}")


@dataclass(frozen=True, slots=True, eq=False)
class _Watched:
    run_id: RunId
    seen: int
    notify: Callable[[int], None]


class InboxWatch:
    """The runs of this process whose inboxes are watched. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._watched: set[_Watched] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._pause = threading.Event()

    @contextmanager
    def over(self, run_id: RunId, seen: int, notify: Callable[[int], None]) -> Iterator[None]:
        """Call ``notify`` once, on another thread, with the length of a run's inbox when that is more than ``seen``."""
        watched = _Watched(run_id, seen, notify)
        with self._changed:
            self._watched.add(watched)
            self._begin()
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._watched.discard(watched)

    def _begin(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        thread = threading.Thread(target=self._serve, name="aft-inbox-watch", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # There are too many threads just now: the run learns of its inbox with its next write, as others do.
            logger.warning("the inboxes of runs cannot be watched now: no thread can be started", exc_info=True)
            return
        self._thread = thread

    def _serve(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._watched, IDLE):
                    self._thread = None
                    return
            self._pause.wait(INTERVAL)
            self._check()

    def _check(self) -> None:
        with self._changed:
            watched = list(self._watched)
        if not watched:
            return
        try:
            (rows,) = self._store.query([(_LENGTHS, json.dumps(sorted({one.run_id for one in watched})))])
        except StoreError as error:
            logger.info("the inboxes of runs were not read, the next look comes soon: %s", error)
            return
        lengths = {str(run_id): int(length) for run_id, length in rows}
        for one in watched:
            length = lengths.get(one.run_id, 0)
            with self._changed:
                has_new = length > one.seen and one in self._watched
                if has_new:
                    self._watched.discard(one)
            if has_new:
                one.notify(length)
