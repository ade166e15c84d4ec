"""The zygote: forks worker processes within milliseconds, from one that has imported everything already.

The zygote opens no connection and starts no thread. It reads requests from its standard input, one JSON object a line,
forks a child for each, and says on its standard output what becomes of it: ``{"born": pid, "ticket": n}``,
``{"ready": pid}``, ``{"ended": pid, "status": n}``. It ends with its input; its children are killed with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import logging
import os
import random
import select
import signal
import sys
import traceback
from typing import Any, NoReturn

import aft
from chaos import crashpoints, load

#: Imported before the first fork, so that no child pays for it.
_HEAVY = (
    *("aft.app", "aft.brokers.embedded", "aft.brokers.rabbitmq", "aft.store.schema", "pika", "psycopg"),
    *("sqlalchemy.dialects.postgresql.psycopg", "sqlalchemy.dialects.sqlite.pysqlite"),
)
#: prctl: the signal that a process gets when its parent has ended.
_PR_SET_PDEATHSIG = 1
#: Seconds in which runs come to a step's end when a child is asked to stop.
_DRAIN = 20.0
#: Variable with plans that a child submits before it works.
SUBMIT = "AFT_TEST_SUBMIT"
#: Numbers that children have had.
_used: set[int] = set()


def main() -> None:
    """Serve requests to fork until the input ends."""
    for name in _HEAVY:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    wake, notify = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(notify)
    pending = b""
    while True:
        readable, _, _ = select.select([0, wake], [], [])
        if wake in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
            _reap()
        if 0 in readable:
            data = os.read(0, 65536)
            if not data:
                return
            *requests, pending = (pending + data).split(b"\n")
            for request in requests:
                _fork(json.loads(request))


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            _tell(ended=pid, status=os.waitstatus_to_exitcode(status))


def _fork(request: dict[str, Any]) -> None:
    parent = os.getpid()
    while (pid := os.fork() or os.getpid()) in _used:
        # The system gives a number again after some ten thousand processes; lines and deaths are told apart by it.
        if os.getpid() != parent:
            os._exit(0)
        os.waitpid(pid, 0)
    if os.getpid() == parent:
        _used.add(pid)
        _tell(born=pid, ticket=request["ticket"])
        return
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:  # or it has ended before that was asked for
            code = _live(request)
    except BaseException:
        traceback.print_exc()
    finally:
        _leave(code)


def _leave(code: int) -> NoReturn:
    sys.stderr.flush()
    os._exit(code)


def _live(request: dict[str, Any]) -> int:
    """Run a dispatcher process until SIGTERM."""
    told = os.dup(1)
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    random.seed()
    os.environ.update(request["environ"])
    logging.basicConfig(level=logging.WARNING, format=f"%(asctime)s {os.getpid()} %(name)s %(message)s", force=True)
    faulthandler.register(signal.SIGUSR1)  # its stacks go to the log
    # Kept until it is waited for. A handler that sets an Event would find the Event's lock taken, for ever, when the
    # signal comes just as the main thread begins to wait; and one that comes a little later wakes nobody.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    with aft.Aft.from_env() as app:
        crashpoints.arm(app)
        load.submit(app, map(load.Plan.decode, json.loads(os.environ.get(SUBMIT, "[]"))))
        dispatcher = app.dispatcher(only=request["roles"], concurrency=request["concurrency"])
        dispatcher.start()
        os.write(told, json.dumps({"ready": os.getpid()}).encode() + b"\n")
        signal.sigwait({signal.SIGTERM})
        drained = dispatcher.stop(_DRAIN)
    return 0 if drained else 3


def _tell(**what: int) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    main()
