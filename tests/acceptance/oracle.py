"""What must come of a plan (``plans``), said without aft's code: its effects, the order of their undo, its end.

The oracle walks the plan as plain Python would and builds the trace that the ledger must match. Three things are not
decided by a plan, and are taken from what was seen: the order in which steps side by side were recorded (from the
stack's sequence numbers), which of them were begun at all after one had failed, and where a deadline was raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tests.acceptance.plans import Part, Plan, everything

#: What ``except Exception`` catches of what the flow's own code raises.
CATCHABLE = ("nope", "value", "bug", "stop")
#: What counts as a mistake of the flow's own code: it parks, and undoes nothing.
MISTAKES = ("bug", "exit")


class Raised(Exception):
    """Something that the flow's code could catch."""

    def __init__(self, what: str, *, bug: bool = False, catchable: bool = True) -> None:
        super().__init__(what)
        self.bug = bug
        self.catchable = catchable


class Parked(Exception):
    """A run stops for a person; nothing more happens."""


@dataclass(frozen=True)
class Event:
    """An effect, or its undo."""

    what: Literal["do", "undo"]
    number: int

    def __repr__(self) -> str:
        return f"{self.what} {self.number}"


@dataclass(frozen=True)
class Beside:
    """Branches whose events may come in any order among each other."""

    branches: tuple[tuple[Event | Beside | Fence, ...], ...]

    def __repr__(self) -> str:
        return "(" + " | ".join(", ".join(map(repr, branch)) for branch in self.branches) + ")"


@dataclass(frozen=True)
class Fence:
    """Every event of these numbers has happened before what follows."""

    numbers: frozenset[int]

    def __repr__(self) -> str:
        return f"(all of {sorted(self.numbers)} is over)"


Item = Event | Beside | Fence


@dataclass(frozen=True)
class Seen:
    """What was seen: the rank of each part's frame within its run's stack, begun activities, raised deadlines."""

    ranks: dict[int, int]
    done: frozenset[int]
    begun: frozenset[int]
    deadlines: frozenset[int]


@dataclass
class Frame:
    """One owed undo: of an activity, of a child, or (cut) of a child that was stopped and undoes itself."""

    number: int
    child: Flow | None = None
    cut: frozenset[int] = frozenset()
    kept: bool = False


@dataclass
class Flow:
    """One run: everything that it has pushed, and whether it has passed a pivot."""

    pushed: list[Frame] = field(default_factory=list)
    pivoted: bool = False


@dataclass
class Verdict:
    """What must come of a plan."""

    status: str
    trace: list[Item]
    #: Parts of children that were stopped: they are undone, as far as they had come.
    cut: frozenset[int]
    why: str = ""


def foretell(plan: Plan, seen: Seen) -> Verdict:
    """Say what must come of a plan."""
    return Oracle(plan, seen).verdict()


class Oracle:
    """Walks one plan."""

    def __init__(self, plan: Plan, seen: Seen) -> None:
        self.plan = plan
        self.seen = seen
        self.cut: set[int] = set()

    def verdict(self) -> Verdict:
        trace: list[Item] = []
        flow = Flow()
        status, why = "completed", ""
        try:
            self._run(flow, self.plan.generations, trace)
            if self.plan.undone and not flow.pivoted:
                status = "compensated"
                self._unwind(flow.pushed, trace)
        except Raised as raised:
            status, why = "compensated", str(raised)
        except Parked as parked:
            status, why = "parked", str(parked)
        return Verdict(status, trace, frozenset(self.cut), why)

    def _run(self, flow: Flow, generations: Sequence[Sequence[Part]], trace: list[Item]) -> None:
        """A whole run: every generation; what nobody catches undoes all of them, or parks after a pivot."""
        frames: list[Frame] = []
        try:
            for parts in generations:
                self._walk(flow, parts, frames, trace)
        except Raised as raised:
            if raised.bug:
                raise Parked(f"a mistake of the flow: {raised}") from None
            if flow.pivoted:
                raise Parked(f"failed after its pivot: {raised}") from None
            self._unwind(frames, trace)
            raise Raised(f"child: {raised}") from None

    def _walk(self, flow: Flow, parts: Sequence[Part], frames: list[Frame], trace: list[Item]) -> None:
        for part in parts:
            mine: list[Frame] = []
            try:
                self._part(flow, part, mine, trace)
            finally:
                self._check_order(frames, mine)
                frames.extend(mine)

    def _part(self, flow: Flow, part: Part, frames: list[Frame], trace: list[Item]) -> None:
        if part.kind in ("savepoint", "try"):
            self._scope(flow, part, frames, trace)
            return
        if part.kind == "set":
            self._set(flow, part, frames, trace)
            return
        if part.number in self.seen.deadlines and part.kind != "gather":
            self._interrupted(flow, part, frames, trace)
            raise Raised(f"deadline at {part.number}")
        if part.kind == "act":
            self._act(flow, part, frames, trace)
        elif part.kind == "child":
            self._child(flow, part, frames, trace)
        elif part.kind in ("parallel", "map", "gather"):
            self._beside(flow, part, frames, trace)
        elif part.kind == "pivot":
            flow.pivoted = True
            for frame in flow.pushed:
                frame.kept = True
        elif part.kind == "raise":
            what = f"{part.fails} raised by the flow at {part.number}"
            raise Raised(what, bug=part.fails in MISTAKES, catchable=part.fails in CATCHABLE)

    def _scope(self, flow: Flow, part: Part, frames: list[Frame], trace: list[Item]) -> None:
        mine: list[Frame] = []
        try:
            self._walk(flow, part.branches[0], mine, trace)
        except Raised as raised:
            if part.kind == "savepoint":
                if raised.bug:
                    raise Parked(f"a mistake of the flow: {raised}") from None
                self._unwind(mine, trace)
                mine = []
            if not part.caught or not raised.catchable:
                raise
        finally:
            frames.extend(mine)

    def _set(self, flow: Flow, part: Part, frames: list[Frame], trace: list[Item]) -> None:
        """Its parts come in an order that does not depend on the process."""
        inside = {inner.number for inner in part.branches[0]}
        if part.number in self.seen.deadlines and not inside & self.seen.deadlines:
            raise Raised(f"deadline at {part.number}, when its set was asked for")
        self._walk(flow, part.branches[0], frames, trace)

    def _act(self, flow: Flow, part: Part, frames: list[Frame], trace: list[Item]) -> None:
        if part.fails:
            if part.undo == "started":
                trace += [Event("do", part.number), Event("undo", part.number)]
            raise Raised(f"activity {part.number}: {part.fails}")
        trace.append(Event("do", part.number))
        if part.undo != "none":
            self._push(flow, Frame(part.number), frames)

    def _push(self, flow: Flow, frame: Frame, frames: list[Frame]) -> None:
        flow.pushed.append(frame)
        frames.append(frame)

    def _child(self, flow: Flow, part: Part, frames: list[Frame], trace: list[Item]) -> None:
        child = Flow()
        self._run(child, part.branches, trace)
        if child.pivoted or any(not frame.kept for frame in child.pushed):
            self._push(flow, Frame(part.number, child), frames)

    def _beside(self, flow: Flow, part: Part, frames: list[Frame], trace: list[Item]) -> None:
        """Every branch comes to its end; after a failure some may not have been begun."""
        branches: list[tuple[Item, ...]] = []
        raised: list[Raised] = []
        parked: Parked | None = None
        failing = part.kind != "gather" and any(_fails(branch) for branch in part.branches)
        for branch in part.branches:
            if failing and not any(other.number in self.seen.begun for other in everything([branch])):
                continue
            inner: list[Item] = []
            mine: list[Frame] = []
            try:
                self._walk(flow, branch, mine, inner)
            except Raised as error:
                raised.append(error)
            except Parked as error:
                parked = error
            frames.extend(mine)
            branches.append(tuple(inner))
        trace.append(Beside(tuple(branches)))
        if parked is not None:
            raise parked
        if raised:
            raise raised[0]

    def _interrupted(self, flow: Flow, part: Part, frames: list[Frame], trace: list[Item]) -> None:
        """A deadline is raised at a part: what had come to its end stands, children that had not are stopped."""
        inside = [part] if part.kind in ("act", "child") else [branch[0] for branch in part.branches]
        branches: list[tuple[Item, ...]] = []
        for one in inside:
            inner: list[Item] = []
            ended = one.number in self.seen.ranks
            if one.kind == "child" and not ended:
                numbers = frozenset(other.number for other in everything([[one]]))
                self.cut |= numbers
                frames.append(Frame(one.number, cut=numbers))
            elif one.kind == "child":
                self._child(flow, one, frames, inner)
            elif one.undo == "started" and one.number in self.seen.done:
                if ended and not one.fails:
                    self._act(flow, one, frames, inner)
                else:
                    inner += [Event("do", one.number), Event("undo", one.number)]
            elif one.number in self.seen.done:
                assert one is not part, f"activity {one.number} had its effect, and failed with the deadline"
                self._act(flow, one, frames, inner)
            branches.append(tuple(inner))
        trace.append(Beside(tuple(branches)))

    # Backward -----------------------------------------------------------------------------------------------------

    def _check_order(self, before: Iterable[Frame], after: Iterable[Frame]) -> None:
        """What comes later in the code of one branch lies higher on the stack."""
        ranks = [self.seen.ranks[frame.number] for frame in before if frame.number in self.seen.ranks]
        for frame in after:
            if ranks and frame.number in self.seen.ranks:
                assert self.seen.ranks[frame.number] > max(ranks), f"frame {frame.number} lies below an earlier one"

    def _unwind(self, frames: Sequence[Frame], trace: list[Item]) -> None:
        """Undo frames, those recorded last first; children that were stopped have undone themselves before."""
        stopped = frozenset[int]().union(*(frame.cut for frame in frames))
        if stopped:
            trace.append(Fence(stopped))
        owed = [frame for frame in frames if not frame.kept and not frame.cut]
        for frame in owed:
            assert frame.number in self.seen.ranks, f"no frame was pushed for {frame.number}"
        for frame in sorted(owed, key=lambda frame: self.seen.ranks[frame.number], reverse=True):
            if frame.child is None:
                trace.append(Event("undo", frame.number))
            elif frame.child.pivoted:
                raise Parked(f"child {frame.number} is past its pivot")
            else:
                self._unwind(frame.child.pushed, trace)
            frame.kept = True  # not again


def _fails(parts: Sequence[Part]) -> bool:
    """Whether a sequence raises."""
    for part in parts:
        if part.kind in ("act", "raise") and part.fails:
            return True
        if any(_fails(branch) for branch in part.branches) and not (part.kind in ("savepoint", "try") and part.caught):
            return True
    return False


# --- comparing with the ledger ----------------------------------------------------------------------------------------


def match(trace: Sequence[Item], events: Sequence[Event], cut: frozenset[int] = frozenset()) -> str | None:
    """Compare a trace with what happened; say what differs. What happened to ``cut`` numbers only heeds fences."""
    placed = [(place, event) for place, event in enumerate(events) if event.number not in cut]
    last = {event.number: place for place, event in enumerate(events) if event.number in cut}
    return _match(trace, placed, last)


def _match(trace: Sequence[Item], events: Sequence[tuple[int, Event]], last: dict[int, int]) -> str | None:
    at = 0
    for item in trace:
        rest = [event for _, event in events[at:]]
        if isinstance(item, Fence):
            late = [number for number in item.numbers if rest and last.get(number, -1) > events[at][0]]
            if late:
                return f"{sorted(late)} should have been over before {rest}"
        elif isinstance(item, Event):
            if not rest or rest[0] != item:
                return f"expected {item}, found {rest[0] if rest else 'nothing'}"
            at += 1
        else:
            size = sum(_size(branch) for branch in item.branches)
            for branch in item.branches:
                numbers = set(_numbers(branch))
                wrong = _match(branch, [found for found in events[at : at + size] if found[1].number in numbers], last)
                if wrong:
                    return f"side by side, {item}: {wrong}; found {rest[:size]}"
            at += size
    return f"not expected: {[event for _, event in events[at:]]}" if events[at:] else None


def _size(items: Sequence[Item]) -> int:
    return sum(
        1 if isinstance(item, Event) else sum(map(_size, item.branches)) if isinstance(item, Beside) else 0
        for item in items
    )


def _numbers(items: Sequence[Item]) -> Iterable[int]:
    for item in items:
        if isinstance(item, Event):
            yield item.number
        elif isinstance(item, Beside):
            for branch in item.branches:
                yield from _numbers(branch)
