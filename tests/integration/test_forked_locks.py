"""A child after a fork waits for no lock that a thread of its parent held: that thread is not there."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.setups import Setup

#: A thread of the parent is kept at a statement; then the process forks, and the child does the same as that thread.
KEPT = """
    import os, signal, sys, threading, time
    from sqlalchemy import event
    import aft

    statement = sys.argv[1]

    @aft.flow
    def forked_locks_flow() -> int:
        return 1

    app = aft.Aft.from_env()
    reached, forked = threading.Event(), threading.Event()

    def keep(said):
        if statement in said and threading.current_thread().name == "kept":
            reached.set()
            forked.wait(60)

    event.listen(app.store.engine, "before_cursor_execute", lambda connection, cursor, said, *_: keep(said))
    initialize = app.store.engine.dialect.initialize
    app.store.engine.dialect.initialize = lambda *given: (keep("the first connection"), initialize(*given))
    kept = threading.Thread(target=lambda: app.start(forked_locks_flow).result(60), name="kept")
    kept.start()
    assert reached.wait(60)
    if (child := os.fork()) == 0:
        print(app.start(forked_locks_flow).result(30), flush=True)
        os._exit(0)
    deadline = time.monotonic() + 40
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            print("it hung", flush=True)
            break
        time.sleep(0.01)
    forked.set()
    kept.join()
    app.close()
"""

#: An app is used in each way there is; then the process forks, and the child looks which locks it knows of its parent.
SHARED = """
    import functools, os, queue, sys, threading, types, weakref
    from collections import deque
    import aft
    from aft.after_fork import inherited
    from aft.store.sqlite.forks import _forks

    LOCKS = (
        type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event, threading.Semaphore,
        queue.Queue,
    )
    MANY = (list, tuple, set, frozenset, deque, weakref.WeakSet)

    def parts(one):
        if isinstance(one, dict):
            yield from ((f"[{key!r}]", value) for key, value in list(one.items()))
        elif isinstance(one, MANY):
            yield from ((f"[{index}]", value) for index, value in enumerate(list(one)))
        elif isinstance(one, types.MethodType):
            yield ".__self__", one.__self__
        elif isinstance(one, functools.partial):
            yield ".func", one.func
            yield ".args", one.args
        elif isinstance(one, types.FunctionType):
            for cell in one.__closure__ or ():
                try:
                    yield ".<closure>", cell.cell_contents
                except ValueError:
                    pass
        elif type(one).__module__.partition(".")[0] == "aft" and not isinstance(one, type):
            names = {*getattr(one, "__dict__", ())}
            names |= {name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())}
            yield from ((f".{name}", getattr(one, name)) for name in names if hasattr(one, name))

    def locks(app):
        # Nobody uses what is inherited; the gate is held by whoever forks, and by nobody else.
        seen, found = {id(inherited): inherited, id(_forks.gate): _forks.gate}, {}
        modules = [(name, module) for name, module in sys.modules.items() if name.partition(".")[0] == "aft"]
        left = [("app", app), *((name, vars(module)) for name, module in modules)]
        while left:
            path, one = left.pop()
            if id(one) in seen:
                continue
            seen[id(one)] = one
            if isinstance(one, LOCKS):
                found[id(one)] = path, one
            else:
                left += [(path + name, part) for name, part in parts(one)]
        return found

    @aft.source(default=0)
    def forked_locks_source() -> int:
        return 1

    @aft.activity
    async def forked_locks_activity() -> int:
        return 1

    @aft.flow
    def forked_locks_used() -> int:
        return forked_locks_activity()

    app = aft.Aft.from_env()
    assert app.start(forked_locks_used).result(60) == 1
    with app.dispatcher():
        assert app.submit(forked_locks_used).result(60) == 1
        before = locks(app)
        assert len(before) > 20, before
        if (child := os.fork()) == 0:
            for path, one in locks(app).values():
                if id(one) in before:
                    print(path, flush=True)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    app.close()
"""

#: A child leaves the block of its parent's dispatcher, and begins one of its own; the parent's goes on.
LEAVES = """
    import os, sys
    import aft

    @aft.flow
    def forked_locks_left() -> int:
        return 1

    app = aft.Aft.from_env()
    lost = []
    app.telemetry.subscribe(lambda event: lost.append(event) if "Lost" in type(event).__name__ else None)
    late = app.dispatcher()
    with app.dispatcher() as dispatcher:
        assert app.submit(forked_locks_left).result(60) == 1
        if (child := os.fork()) != 0:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert dispatcher._lease.check()  # its membership stands
            print(app.submit(forked_locks_left).result(60), flush=True)
    if child == 0:
        for one in (app.dispatcher(), late):
            with one:
                print(app.submit(forked_locks_left).result(60), flush=True)
        app.close()
        os._exit(0)
    app.close()
    print(lost, flush=True)
"""


def play(setup: Setup, tmp_path: Path, script: str, *given: str) -> list[str]:
    setup.app().check()
    file = tmp_path / "forks.py"
    file.write_text(textwrap.dedent(script))
    command = [sys.executable, "-W", "ignore", str(file), *given]
    environ = {**os.environ, **setup.environ()}
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "statement", ["the first connection", "INTO aft_workers", "aft_schema_version", "aft_rule_books"]
)
def test_a_child_does_not_wait_for_what_a_thread_of_its_parent_was_doing(
    production: Setup, tmp_path: Path, statement: str
) -> None:
    assert play(production, tmp_path, KEPT, statement) == ["1"]


def test_no_lock_that_a_child_can_meet_is_its_parents(setup: Setup, tmp_path: Path) -> None:
    assert play(setup, tmp_path, SHARED) == []


def test_a_child_that_leaves_its_parents_dispatcher_ends_nothing_of_it(setup: Setup, tmp_path: Path) -> None:
    assert play(setup, tmp_path, LEAVES) == ["1", "1", "1", "[]"]
