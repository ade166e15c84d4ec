"""Lays out the lines of a story: steps under their parallel step, branch or savepoint, children under their step.

Events that go forward are placed by the flow's code, each step's lines together, in the order in which the steps began.
Events that go backward are placed by time: those of a child, too, whose story then has two parts. But what undid a
savepoint is placed under the savepoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby

from aft.app.views.story import Story
from aft.app.views.timeline import StoryEvent, StoryEventKind
from aft.flows.steps.children import PARENT
from aft.runs.run_rows import RunRow
from aft.runs.states import Status

#: Most successful parallel calls that are shown one by one; of more, only those that failed are shown.
MOST_QUIET = 12

#: Suffix of a path for the undo of its step.
UNDO = "/undo"
#: Events that end a step.
_ENDS = (
    StoryEventKind.ACTIVITY,
    StoryEventKind.RETURNED,
    StoryEventKind.FINAL,
    StoryEventKind.PROCEEDED,
    StoryEventKind.REMOVED,
)
_BACKWARD = (StoryEventKind.POPPED, StoryEventKind.CLOSED_WITHOUT_UNDO, StoryEventKind.FORGOTTEN, StoryEventKind.UNDONE)
#: Events of a parent that are left out if the child's own story is shown.
_OF_CHILD = (StoryEventKind.CHILD, StoryEventKind.RETURNED, StoryEventKind.FAULT)
_QUIET = (StoryEventKind.ACTIVITY, StoryEventKind.PUSHED, StoryEventKind.CHILD, StoryEventKind.RETURNED)


@dataclass(frozen=True, slots=True)
class Group:
    """The head of several lines that belong together."""

    at: datetime
    title: str
    progress: str = ""


@dataclass(frozen=True, slots=True)
class FoldedCalls:
    """Stands for calls that are not shown one by one."""

    at: datetime
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class PresentStatus:
    """The status of a run that has not ended."""


@dataclass(frozen=True, slots=True)
class UndoneBelow:
    """Stands for the rest of a child's story, which is shown where its parent had it undone."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line: the number of rails beside it, its run, its content, and which of several calls it is about."""

    rails: int
    row: RunRow
    what: StoryEvent | Group | FoldedCalls | PresentStatus | UndoneBelow
    number: str = ""


@dataclass(frozen=True, slots=True)
class _Block:
    """Lines that stay together: of a ``scope``, of a ``child``, of a ``step``, or just one."""

    kind: str
    path: str
    happenings: list[StoryEvent]


def lay_out(story: Story, *, fold: bool = True) -> Iterator[Line]:
    """Yield a run's lines in the order in which they are drawn, with those of its children."""
    yield from _Layout(story, fold).run(0)


class _Layout:
    """Lays out one run."""

    def __init__(self, story: Story, fold: bool) -> None:
        self._story = story
        self._fold = fold
        self._happenings = sorted([*story.happenings, *_yield_undo_starts(story)], key=lambda one: one.at)
        paths = [one.path.removesuffix(UNDO) for one in story.happenings if one.path]
        self._scopes = {above for path in paths for above in _above(path)}
        self._undone = {
            one.path: one.name for one in story.happenings if one.what is StoryEventKind.UNDONE and one.path
        }

    def run(self, rails: int) -> Iterator[Line]:
        """Yield the whole story, and the run's status."""
        yield from self._under("", self._happenings, rails, numbered=False)
        yield from self._still(rails)

    def forward(self, rails: int) -> Iterator[Line]:
        """Yield the story of a child until its parent had it undone; all of it, if that has not happened."""
        if (turn := find_undo_start(self._story)) is None:
            yield from self.run(rails)
            return
        yield from self._under("", [one for one in self._happenings if one.at < turn.at], rails, numbered=False)
        yield Line(rails, self._story.row, UndoneBelow())

    def backward(self, rails: int) -> Iterator[Line]:
        """Yield the story of a child from then on."""
        turn = find_undo_start(self._story)
        assert turn is not None
        yield Line(
            rails, self._story.row, replace(turn, what=StoryEventKind.STARTED, name=f"{self._story.row.flow}, undone")
        )
        later = [one for one in self._happenings if one.at >= turn.at and one is not turn]
        yield from self._under("", later, rails, numbered=False)
        yield from self._still(rails)

    def _still(self, rails: int) -> Iterator[Line]:
        if self._story.happenings[-1].what not in (StoryEventKind.PARKED, StoryEventKind.ENDED):
            yield Line(rails, self._story.row, PresentStatus())

    def _under(self, scope: str, happenings: list[StoryEvent], rails: int, *, numbered: bool) -> Iterator[Line]:
        blocks = self._blocks(scope, happenings)
        folded = self._quiet(blocks) if numbered else []
        for block in blocks:
            if block not in folded:
                yield from self._block(block, rails, numbered)
        for name, some in groupby(sorted(folded, key=_name), key=_name):
            quiet = list(some)
            yield Line(rails, self._story.row, FoldedCalls(quiet[-1].happenings[-1].at, name, len(quiet)))

    def _block(self, block: _Block, rails: int, numbered: bool) -> Iterator[Line]:
        row = self._story.row
        if block.kind == "scope":
            yield Line(rails, row, self._head(block))
            beside = self._is_beside(block)
            yield from self._under(block.path, block.happenings, rails + 1, numbered=beside)
            return
        if block.kind == "child":
            yield from self._child(block.path).forward(rails + 1)
        for one in block.happenings:
            if one.what is StoryEventKind.CHILD and one.path and one.path.endswith(UNDO):
                yield from self._child(one.path.removesuffix(UNDO)).backward(rails + 1)
            elif block.kind != "child" or one.what not in _OF_CHILD:
                yield Line(rails, row, one, block.path.rpartition(".")[2] if numbered else "")

    def _child(self, path: str) -> _Layout:
        return _Layout(self._story.children[path], self._fold)

    # Which belongs to which ---------------------------------------------------------------------------------------

    def _blocks(self, scope: str, happenings: Iterable[StoryEvent]) -> list[_Block]:
        """Group events that stay together; each block is placed at its first event."""
        blocks: list[_Block] = []
        known: dict[str, _Block] = {}
        for one in happenings:
            kind, path = self._place(scope, one)
            if kind and path in known:
                known[path].happenings.append(one)
                continue
            block = _Block(kind, path, [one])
            blocks.append(block)
            if kind:
                known[path] = block
        return blocks

    def _place(self, scope: str, one: StoryEvent) -> tuple[str, str]:
        path = (one.path or "").removesuffix(UNDO)
        backward = one.what in _BACKWARD or path != one.path
        if not path or path == scope:
            return "", ""
        inner = _next(scope, path)
        if inner in self._scopes and (not backward or inner in self._undone):
            return "scope", inner
        if backward or (not scope and inner not in self._story.children):
            return "", ""
        return ("child" if inner in self._story.children else "step"), inner

    # Groups -------------------------------------------------------------------------------------------------------

    def _head(self, block: _Block) -> Group:
        at = block.happenings[0].at
        if not self._is_beside(block):
            name = self._undone.get(block.path)
            return Group(at, f"part {block.path}" if name is None else f"savepoint {name!r}")
        done = {one.path for one in block.happenings if one.what in _ENDS and _is_directly(block.path, one)}
        failed = {
            one.path for one in block.happenings if one.what is StoryEventKind.FINAL and _is_directly(block.path, one)
        }
        total = _total(block)
        progress = f"{len(done)} of {total}" if total else f"{len(done)} done"
        return Group(at, "side by side", f"{progress}{f', {len(failed)} failed' if failed else ''}")

    def _is_beside(self, block: _Block) -> bool:
        """Return whether the steps directly under it ran in parallel: its event says so, or several have not ended."""
        direct = [one for one in block.happenings if _is_directly(block.path, one)]
        ended = {one.path for one in direct if one.what in _ENDS}
        return _total(block) is not None or len({one.path for one in direct} - ended) > 1

    def _quiet(self, blocks: list[_Block]) -> list[_Block]:
        """Return the parallel calls that need not be shown one by one."""
        quiet = [block for block in blocks if block.kind in ("step", "child") and self._is_quiet(block)]
        return quiet if self._fold and len(quiet) > MOST_QUIET else []

    def _is_quiet(self, block: _Block) -> bool:
        child = self._story.children.get(block.path)
        ended = any(one.what in _ENDS for one in block.happenings)
        return (
            ended
            and all(one.what in _QUIET for one in block.happenings)
            and (child is None or child.row.status is Status.COMPLETED)
        )


def find_undo_start(story: Story) -> StoryEvent | None:
    """Return the event by which a parent had this child undone; None if there is none."""
    return next((one for one in story.happenings if one.what is StoryEventKind.ACTION and one.by == PARENT), None)


def _yield_undo_starts(story: Story) -> Iterator[StoryEvent]:
    """Yield an event for the parent's story where it had each of its children undone."""
    for path, child in story.children.items():
        if (turn := find_undo_start(child)) is not None:
            yield StoryEvent(turn.at, StoryEventKind.CHILD, f"{path}{UNDO}", child.row.flow, run=child.row.id)


def _above(path: str) -> Iterator[str]:
    """Yield every scope that a path is under: of 3.1.2 these are 3.1 and 3."""
    while "." in path:
        path = path.rpartition(".")[0]
        yield path


def _next(scope: str, path: str) -> str:
    """Return the step directly under a scope that a path leads through."""
    start = len(scope) + 1 if scope else 0
    return path[: start + len(path[start:].partition(".")[0])]


def _is_directly(scope: str, one: StoryEvent) -> bool:
    return one.path is not None and one.path.rpartition(".")[0] == scope and "/" not in one.path


def _total(block: _Block) -> int | None:
    return next((one.beside for one in block.happenings if one.beside and _is_directly(block.path, one)), None)


def _name(block: _Block) -> str:
    return next((one.name for one in block.happenings if one.what in _ENDS), "")
