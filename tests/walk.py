"""The way of a run through the code, traced: ``python -m tests.walk`` writes docs/walk.md anew.

Two runs are executed on a SQLite file: one whose activity fails once and is tried again, one that is undone. Every
call into aft is noted, by thread, but for those that only make an object: a file of which a run only makes objects is
not on its way. The document names the files in the order in which they are entered first.
"""

from __future__ import annotations

import ast
import inspect
import secrets
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from unittest.mock import patch

import aft
from aft.runs.ownership import held_writes

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "walk.md"
PACKAGE = str(ROOT / "aft")

#: Makes an object; or is called by the garbage collector, whenever that comes.
BESIDE = {"__init__", "__new__", "__post_init__", "_note_collection"}

tried: defaultdict[str, int] = defaultdict(int)
#: How many frames lie between the flow's code and its activity.
depths: dict[str, int] = {}


class SoldOut(Exception):
    """A failure that does not pass."""


@aft.activity(name="walk_charge", levels=["50ms*2"])
def charge(order: str) -> str:
    frames = [frame.function for frame in inspect.stack()]
    depths[order] = frames.index("_pay_and_ship") - 1
    tried[order] += 1
    if tried[order] == 1:
        raise ConnectionError("the bank is away")
    return order


def refund(order: str, result: str) -> None:
    """Undo the payment."""


@aft.compensate_with(refund)
@aft.activity(name="walk_pay")
def pay(order: str) -> str:
    return order


@aft.activity(name="walk_ship", unrecoverable=(SoldOut,))
def ship(order: str) -> str:
    raise SoldOut(order)


@aft.flow(name="walk_retried")
def retried(order: str) -> str:
    return _pay_and_ship(order)


def _pay_and_ship(order: str) -> str:
    return charge(order)


@aft.flow(name="walk_undone")
def undone(order: str) -> str:
    pay(order)
    return ship(order)


@dataclass
class Trace:
    """What was called in aft, by the kind of thread: the first function of each file, in order."""

    calls: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))

    def note(self, frame: FrameType, event: str, arg: object) -> None:
        """Note one call, as ``sys.setprofile`` tells it."""
        code = frame.f_code
        ours = code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<")
        if event == "call" and ours and code.co_name not in BESIDE:
            name = Path(code.co_filename).relative_to(ROOT).as_posix()
            self.calls[_kind(threading.current_thread().name)].setdefault(name, code.co_qualname)


def _kind(thread: str) -> str:
    return next((kind for kind in ("aft-run", "intake") if kind in thread), thread)


@contextmanager
def _traced(trace: Trace) -> Iterator[None]:
    threading.setprofile(trace.note)
    try:
        yield
    finally:
        threading.setprofile(None)
        sys.setprofile(None)


def trace_run(flow: aft.Flow[[str], str]) -> Trace:
    """Execute a flow in a process of its own database, and return what was called."""
    trace, order = Trace(), secrets.token_hex(4)
    with tempfile.TemporaryDirectory() as folder:
        app = aft.Aft(f"sqlite:///{folder}/walk.db", namespace="walk")
        app.check()
        # However slow the machine is, the run's own thread writes what is held back.
        with patch.object(held_writes, "TICK", 600), _traced(trace), app.dispatcher(concurrency=1):
            try:
                app.submit(flow, order).result(60)
            except aft.FlowCompensated:
                pass
        app.close()
    return trace


#: What each kind of thread does, in the order in which a run meets them.
THREADS = {
    "aft-receiver": "The worker's receiver takes the message and claims the run.",
    "aft-run": "A thread of the worker executes the run.",
    "intake": "The dispatcher's intake decides about the fault.",
}
#: Floors below which every step of every run goes alike.
BENEATH = ("aft/store", "aft/codec", "aft/telemetry", "aft/security", "aft/brokers")
#: What is read now and then, and known meanwhile.
CACHED = {
    "aft/recovery/levels.py",
    "aft/rules/trees/rows.py",
    "aft/runs/ownership/owner_statements.py",
    "aft/runs/states.py",
}
WALKS = {
    "An activity that fails, and is tried again": retried,
    "A run that is undone": undone,
}


def files_of(trace: Trace, thread: str) -> dict[str, str]:
    """Return the files that a thread enters, in order, with the first function of each."""
    found = trace.calls.get(thread, {})
    shown = {name: call for name, call in found.items() if name.count("/") > 1 and not name.startswith(BENEATH)}
    return {name: call for name, call in shown.items() if name not in CACHED}


#: What the document says before its walks.
HEAD = """# Two walks through the code

Made by `python -m tests.walk` from a trace of real runs; a test holds it true. Each file is named once for
each thread, where it is entered first. Left out is what lies beneath: store, codec, brokers, telemetry,
security; files of which a run only makes objects; and what is made or read once, and known from then on: levels,
rows of rules, texts of statements, edges between states.
"""


def write_walk(title: str) -> str:
    """Trace one run and return what the document says of it."""
    trace = trace_run(WALKS[title])
    lines = [f"## {title}", ""]
    for thread, what in THREADS.items():
        lines += [f"**{what}**", "", "| file | entered by | what it is |", "| --- | --- | --- |"]
        lines += [f"| `{name}` | `{call}` | {_says(name)} |" for name, call in files_of(trace, thread).items()]
        lines.append("")
    return "\n".join(lines)


def write_frames() -> str:
    """Return what the document says of the way from a flow's code to its activity; that walk was traced before."""
    return f"Between the call of an activity in a flow and its function lie {max(depths.values())} frames.\n"


def write() -> str:
    """Trace both runs and return the document."""
    return "\n".join([HEAD, *(write_walk(title) for title in WALKS), write_frames()])


def _says(name: str) -> str:
    """The first line of a module's docstring."""
    told = ast.get_docstring(ast.parse((ROOT / name).read_text(encoding="utf-8"))) or ""
    return told.splitlines()[0].replace("|", "\\|")


if __name__ == "__main__":
    DOCUMENT.write_text(write(), encoding="utf-8")
