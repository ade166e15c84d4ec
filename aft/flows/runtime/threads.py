"""Daemon threads for the runs of a worker: a process can end although one of them is in a call that never returns.

The thread's work ends with the process, as in a crash: its run's lease expires, and another worker takes it over.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Job = Callable[[], None]


class DaemonPool:
    """Executes jobs on up to ``size`` threads, which are started on demand and then kept. Thread-safe.

    The caller ensures that there are never more jobs than threads; a job must not raise.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()

    def submit(self, job: Job) -> None:
        """Execute a job soon; raises RuntimeError, and does not execute it, if no thread can be started for it."""
        with self._lock:
            if self._idle == 0 and len(self._threads) < self._size:
                number = len(self._threads)
                thread = threading.Thread(target=self._serve, args=[job], name=f"{self._name}_{number}", daemon=True)
                thread.start()
                self._threads.append(thread)
                return
            self._idle -= 1
            self._jobs.put(job)

    def close(self, *, wait: bool) -> None:
        """End the threads after their current jobs; with ``wait`` return when they have ended."""
        with self._lock:
            threads, self._threads = self._threads, []
        for _ in threads:
            self._jobs.put(None)
        if wait:
            for thread in threads:
                thread.join()

    def _serve(self, job: Job | None) -> None:
        while job is not None:
            job()
            with self._lock:
                self._idle += 1
            job = self._jobs.get()
