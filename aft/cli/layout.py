"""Which line of a story stands under which? Steps under the parallel step, branch or savepoint that they belong to,
a child's story under the step that called it.

Whatever has a place in the flow's code and goes forward is put there, each step's lines together, in the order in which
the steps began. What goes backward is told when it happened: also that of a child, which then has two parts. But what
undid a savepoint belongs to that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby

from aft.app.story import Story
from aft.app.timeline import Happening, What
from aft.flows.children import PARENT
from aft.runs.rows import RunRow
from aft.runs.states import Status

#: Calls side by side that went well and are shown one by one; of more, only those that did not.
MOST_QUIET = 12

#: The end of a path that is about undoing the step.
UNDO = "/undo"
#: How a step ends.
_ENDS = (What.ACTIVITY, What.RETURNED, What.FINAL, What.PROCEEDED, What.REMOVED)
_BACKWARD = (What.POPPED, What.SETTLED, What.FORGOTTEN, What.UNDONE)
#: What a parent says of a child that tells its own story.
_OF_CHILD = (What.CHILD, What.RETURNED, What.FAULT)
_QUIET = (What.ACTIVITY, What.PUSHED, What.CHILD, What.RETURNED)


@dataclass(frozen=True, slots=True)
class Group:
    """The head of several lines that belong together."""

    at: datetime
    title: str
    progress: str = ""


@dataclass(frozen=True, slots=True)
class Folded:
    """Stands for calls that are not shown one by one."""

    at: datetime
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class Still:
    """How a run stands that has not come to its end."""


@dataclass(frozen=True, slots=True)
class Turned:
    """Stands for the rest of a child's story, which is told where its parent had it undone."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line: how many rails run beside it, whose it is, what it says, and which of several calls it is about."""

    rails: int
    row: RunRow
    what: Happening | Group | Folded | Still | Turned
    number: str = ""


@dataclass(frozen=True, slots=True)
class _Block:
    """Lines that stay together: of a ``scope``, of a ``child``, of a ``step``, or just one."""

    kind: str
    path: str
    happenings: list[Happening]


def lay_out(story: Story, *, fold: bool = True) -> Iterator[Line]:
    """Give a run's lines in the order in which they are drawn, with those of its children."""
    yield from _Layout(story, fold).run(0)


class _Layout:
    """Lays out one run."""

    def __init__(self, story: Story, fold: bool) -> None:
        self._story = story
        self._fold = fold
        self._happenings = sorted([*story.happenings, *_turns(story)], key=lambda one: one.at)
        paths = [one.path.removesuffix(UNDO) for one in story.happenings if one.path]
        self._scopes = {above for path in paths for above in _above(path)}
        self._undone = {one.path: one.name for one in story.happenings if one.what is What.UNDONE and one.path}

    def run(self, rails: int) -> Iterator[Line]:
        """The whole story, and how the run stands."""
        yield from self._under("", self._happenings, rails, numbered=False)
        yield from self._still(rails)

    def forward(self, rails: int) -> Iterator[Line]:
        """The story of a child until its parent had it undone; all of it, if that has not happened."""
        if (turn := turned(self._story)) is None:
            yield from self.run(rails)
            return
        yield from self._under("", [one for one in self._happenings if one.at < turn.at], rails, numbered=False)
        yield Line(rails, self._story.row, Turned())

    def backward(self, rails: int) -> Iterator[Line]:
        """The story of a child from then on."""
        turn = turned(self._story)
        assert turn is not None
        yield Line(rails, self._story.row, replace(turn, what=What.STARTED, name=f"{self._story.row.flow}, undone"))
        later = [one for one in self._happenings if one.at >= turn.at and one is not turn]
        yield from self._under("", later, rails, numbered=False)
        yield from self._still(rails)

    def _still(self, rails: int) -> Iterator[Line]:
        if self._story.happenings[-1].what not in (What.PARKED, What.ENDED):
            yield Line(rails, self._story.row, Still())

    def _under(self, scope: str, happenings: list[Happening], rails: int, *, numbered: bool) -> Iterator[Line]:
        blocks = self._blocks(scope, happenings)
        folded = self._quiet(blocks) if numbered else []
        for block in blocks:
            if block not in folded:
                yield from self._block(block, rails, numbered)
        for name, some in groupby(sorted(folded, key=_name), key=_name):
            quiet = list(some)
            yield Line(rails, self._story.row, Folded(quiet[-1].happenings[-1].at, name, len(quiet)))

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
            if one.what is What.CHILD and one.path and one.path.endswith(UNDO):
                yield from self._child(one.path.removesuffix(UNDO)).backward(rails + 1)
            elif block.kind != "child" or one.what not in _OF_CHILD:
                yield Line(rails, row, one, block.path.rpartition(".")[2] if numbered else "")

    def _child(self, path: str) -> _Layout:
        return _Layout(self._story.children[path], self._fold)

    # Which belongs to which ---------------------------------------------------------------------------------------

    def _blocks(self, scope: str, happenings: Iterable[Happening]) -> list[_Block]:
        """Put together what stays together; each block where its first line is."""
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

    def _place(self, scope: str, one: Happening) -> tuple[str, str]:
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
        failed = {one.path for one in block.happenings if one.what is What.FINAL and _is_directly(block.path, one)}
        total = _total(block)
        progress = f"{len(done)} of {total}" if total else f"{len(done)} done"
        return Group(at, "side by side", f"{progress}{f', {len(failed)} failed' if failed else ''}")

    def _is_beside(self, block: _Block) -> bool:
        """Whether the steps directly under it went on side by side: it says so, or several have not ended."""
        direct = [one for one in block.happenings if _is_directly(block.path, one)]
        ended = {one.path for one in direct if one.what in _ENDS}
        return _total(block) is not None or len({one.path for one in direct} - ended) > 1

    def _quiet(self, blocks: list[_Block]) -> list[_Block]:
        """The calls side by side that need not be shown one by one."""
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


def turned(story: Story) -> Happening | None:
    """What made a child go backward, if its parent did."""
    return next((one for one in story.happenings if one.what is What.DEED and one.by == PARENT), None)


def _turns(story: Story) -> Iterator[Happening]:
    """Mark in a parent's story where it had each of its children undone."""
    for path, child in story.children.items():
        if (turn := turned(child)) is not None:
            yield Happening(turn.at, What.CHILD, f"{path}{UNDO}", child.row.flow, run=child.row.id)


def _above(path: str) -> Iterator[str]:
    """Every scope that a path stands under: of 3.1.2 these are 3.1 and 3."""
    while "." in path:
        path = path.rpartition(".")[0]
        yield path


def _next(scope: str, path: str) -> str:
    """The step directly under a scope that a path leads through."""
    start = len(scope) + 1 if scope else 0
    return path[: start + len(path[start:].partition(".")[0])]


def _is_directly(scope: str, one: Happening) -> bool:
    return one.path is not None and one.path.rpartition(".")[0] == scope and "/" not in one.path


def _total(block: _Block) -> int | None:
    return next((one.beside for one in block.happenings if one.beside and _is_directly(block.path, one)), None)


def _name(block: _Block) -> str:
    return next((one.name for one in block.happenings if one.what in _ENDS), "")
