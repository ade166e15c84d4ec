"""Claims about settling steps: outcomes are handed out in the order of their commits, and what was begun is settled."""

from __future__ import annotations

import contextvars
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aft.errors import StoreError
from aft.flows.course.flow_loop import FlowLoop, StepFuture
from aft.flows.scheduler.scheduler import StepScheduler
from aft.flows.session.blocks import Blocked, StepFailed, WaitPending, WriteFailed, explain_blocked
from aft.flows.session.savepoint_orders import NOWHERE
from aft.flows.session.step_states import StepStates
from aft.flows.steps.request import OnRecorded, Returns, StepRequest
from aft.ids import StepPath
from aft.runs.records.journal import Entry, EntryKind, Outcome
from aft.runs.waits import Wait, WaitKind
from tests.setups import eventually

ACTIVITY, SIGNAL = EntryKind.ACTIVITY, EntryKind.SIGNAL
MOMENT = datetime(2024, 5, 17, tzinfo=UTC)


class World:
    """A journal that steps are recorded in, and a StepScheduler for one pass over it."""

    def __init__(self, *recorded: Entry, begun: Sequence[str] = (), unseen: bool = False) -> None:
        self.journal = list(recorded)
        self.performed: list[str] = []
        self.forgotten: list[str] = []
        self.lock = threading.Lock()
        self.step_states = StepStates(cast(Any, None), cast(Any, None), None)
        if unseen:
            self.step_states.unknown.note_all_unknown()
        self.begun = begun
        session: Any = SimpleNamespace(
            step_states=self.step_states,
            owner=SimpleNamespace(
                run=SimpleNamespace(deadline_at=None, waits=()),
                store_waits=lambda: None,
                write_held=lambda: None,
                pending_orders=[],
                remove_wait=self.forgotten.append,
                lock=threading.RLock(),
            ),
            deps=SimpleNamespace(clock=SimpleNamespace(now=lambda: MOMENT)),
            run_inbox=SimpleNamespace(arrivals=0, now=MOMENT),
        )
        self.scheduler = StepScheduler(session, list(recorded), self._never)

    def _never(self, error: BaseException) -> Any:
        raise AssertionError(f"parked: {error}")

    def ask(
        self,
        path: str,
        *,
        after: Callable[[], object] = lambda: None,
        outcome: Outcome = Outcome.OK,
        kind: EntryKind = ACTIVITY,
        leaves: Blocked | None = None,
        quick: bool = False,
        made_as: type[StepRequest] = StepRequest,
    ) -> StepRequest:
        """A step that comes to this outcome, when ``after`` has returned."""

        def perform(on_recorded: OnRecorded | None) -> Entry:
            after()
            with self.lock:
                self.performed.append(path)
                if leaves is not None:
                    raise leaves
                entry = an_entry(path, outcome, kind, seq=len(self.journal) + 1)
                self.journal.append(entry)
                if on_recorded is not None:
                    on_recorded(entry)
            return entry

        waits = kind is SIGNAL
        return made_as(
            StepPath(path),
            kind,
            "step",
            perform,
            lambda _: Returns(None),
            quick=waits or quick,
            needed=not waits,
            was_begun=lambda: path in self.begun,
        )

    def pending(self, *asks: StepRequest) -> None:
        """Let an async flow await these."""
        for ask in asks:
            ask.future = StepFuture(loop=a_loop(), holds=False)
            self.scheduler.pending[ask.path] = ask

    def in_doubt(self) -> list[str]:
        """The steps that an earlier owner may have begun; here none comes to be seen."""
        return [path for named in self.step_states.unknown.make_handover().named for path in named.steps]

    def handed_out(self) -> list[str]:
        """Take outcomes until there are none."""
        found = []
        while (ask := self.scheduler.next()) is not None:
            found.append(str(ask.path))
        return found


def a_loop() -> FlowLoop:
    return FlowLoop(lambda _: ("1", contextvars.copy_context()))  # type: ignore[abstract]


def an_entry(path: str, outcome: Outcome = Outcome.OK, kind: EntryKind = ACTIVITY, seq: int = 0) -> Entry:
    return Entry(StepPath(path), "", kind, "step", outcome, MOMENT, seq=seq)


def a_wait(path: str) -> Blocked:
    return Blocked(WaitPending(Wait(StepPath(path), WaitKind.SIGNAL, "number", MOMENT)))


# One outcome after the other ------------------------------------------------------------------------------------


def test_recorded_outcomes_are_handed_out_in_the_order_of_the_journal() -> None:
    world = World(an_entry("3"), an_entry("1"), an_entry("2"))
    world.pending(world.ask("1"), world.ask("2"), world.ask("3"))
    assert world.handed_out() == ["3", "1", "2"]
    assert world.performed == []


def test_new_outcomes_are_handed_out_in_the_order_of_their_commits() -> None:
    world = World()
    gates = [threading.Event() for _ in range(4)]
    asks = [world.ask(str(nth), after=gates[nth].wait) for nth in range(4)]
    world.pending(*asks)
    ended: list[str] = []

    def open_gates() -> None:
        for nth in (2, 0, 3, 1):
            gates[nth].set()
            while str(nth) not in world.performed:
                pass
            ended.append(str(nth))

    thread = threading.Thread(target=open_gates)
    thread.start()
    assert world.handed_out() == ["2", "0", "3", "1"]
    thread.join()
    assert [entry.path for entry in world.journal] == ended


def test_nothing_is_begun_while_a_recorded_outcome_is_to_be_handed_out() -> None:
    world = World(an_entry("2"))
    world.pending(world.ask("1"), world.ask("2"))
    assert world.scheduler.next() is not None
    assert world.performed == []
    assert world.handed_out() == ["1"]


def test_the_run_leaves_when_all_that_is_left_is_blocked() -> None:
    world = World()
    world.pending(world.ask("1", kind=SIGNAL, leaves=a_wait("1")), world.ask("2"))
    ask = world.scheduler.next()
    assert ask is not None
    assert ask.path == "2"
    with pytest.raises(Blocked) as caught:
        world.scheduler.next()
    assert [type(block) for block in caught.value.blocks] == [WaitPending]


def test_nothing_more_is_begun_once_the_run_is_lost() -> None:
    world = World()
    world.pending(world.ask("1", leaves=Blocked(WriteFailed(RuntimeError()))))
    world.scheduler._start_pending()
    world.scheduler.finish_all()
    world.pending(world.ask("2"))
    with pytest.raises(Blocked):
        world.scheduler.next()
    assert world.performed == ["1"]


def test_a_wait_whose_task_was_cancelled_is_neither_begun_nor_waited_for() -> None:
    world = World()
    cancelled = world.ask("1", kind=SIGNAL)
    world.pending(cancelled, world.ask("2"))
    assert isinstance(cancelled.future, StepFuture)
    cancelled.future.cancel()
    assert world.handed_out() == ["2"]
    assert world.performed == ["2"]
    assert world.forgotten == ["1"]


def test_an_outcome_of_a_wait_that_was_dropped_is_passed_over_in_this_pass_and_the_next() -> None:
    world = World()
    dropped = world.ask("1", kind=SIGNAL)
    world.pending(dropped, world.ask("2", kind=SIGNAL))
    world.scheduler._start_pending()
    world.scheduler.drop([dropped])
    assert world.handed_out() == ["2"]

    again = World(*world.journal)
    dropped = again.ask("1", kind=SIGNAL)
    again.pending(dropped, again.ask("2", kind=SIGNAL))
    again.scheduler.drop([dropped])
    assert again.handed_out() == ["2"]
    again.scheduler.replay.check_spent("the flow returned")


def test_a_database_that_is_gone_when_the_deadline_is_checked_loses_the_run_and_fails_no_step() -> None:
    world = World()
    owner: Any = world.scheduler._session.owner
    owner.run.deadline_at = MOMENT

    class Gone:
        @property
        def now(self) -> datetime:
            raise StoreError("away")

    mailbox: Any = Gone()
    world.scheduler._session.run_inbox = mailbox
    with pytest.raises(StoreError) as caught:
        world.scheduler.complete([world.ask("1")])
    world.pending(world.ask("1"), world.ask("2"))
    with pytest.raises(StoreError):
        world.scheduler.next()
    assert world.performed == []
    # What the flow's code gets instead, by the exit of its pass.
    meant = explain_blocked(caught.value, world.scheduler._threads._parking)
    assert [type(block) for block in meant.blocks] == [WriteFailed]


# Until all have their outcome -----------------------------------------------------------------------------------


def test_what_was_begun_under_a_savepoint_comes_to_its_end_and_is_handed_to_nobody() -> None:
    world = World()
    world.pending(world.ask("1.1.1"), world.ask("1.2", kind=SIGNAL), world.ask("2"))
    world.scheduler.complete_under(StepPath("1"))
    assert world.performed == ["1.1.1"]
    assert list(world.scheduler.pending) == ["2"]
    assert world.handed_out() == ["2"]


def test_what_lands_beside_a_savepoint_s_steps_keeps_its_place_in_the_order() -> None:
    world = World()
    first = threading.Event()
    inner = world.ask("1.1", after=lambda: first.wait(60))
    world.pending(world.ask("2", after=lambda: None), inner)
    world.scheduler._start_pending()
    eventually(lambda: "2" in world.performed)
    first.set()
    world.scheduler.complete_under(StepPath("1"))
    assert inner.entry is not None
    assert world.handed_out() == ["2"]


def test_several_that_land_beside_a_step_that_is_waited_for_keep_their_order() -> None:
    world = World()
    both = threading.Event()
    world.pending(world.ask("1"), world.ask("2", after=lambda: eventually(lambda: "1" in world.performed)))
    world.scheduler._start_pending()
    blocking = world.ask("3", after=lambda: both.wait(60))

    def open_when_both_landed() -> None:
        eventually(lambda: "2" in world.performed)
        both.set()

    thread = threading.Thread(target=open_when_both_landed)
    thread.start()
    world.scheduler.complete([blocking])
    thread.join()
    assert world.handed_out() == ["1", "2"]


def test_once_one_has_failed_for_good_no_more_are_begun() -> None:
    world = World(an_entry("1.1", Outcome.FAILED))
    world.scheduler.complete([world.ask("1.1"), world.ask("1.2"), world.ask("1.3")], 1)
    assert world.performed == []


def test_what_an_earlier_owner_has_begun_is_settled_though_another_has_failed_for_good() -> None:
    world = World(an_entry("1.1", Outcome.FAILED), begun=["1.3"])
    world.scheduler.complete([world.ask("1.1"), world.ask("1.2"), world.ask("1.3")], 1)
    assert world.performed == ["1.3"]


def test_what_an_earlier_owner_may_have_begun_is_settled_too_and_no_more_than_that() -> None:
    """A step that was interrupted fails at once, though others are at work."""
    world = World(replace(an_entry("1.1", Outcome.FAILED), interrupt=NOWHERE), unseen=True)
    world.scheduler.complete([world.ask(f"1.{nth}") for nth in (1, 2, 3, 4)], 1)
    assert world.performed == world.in_doubt() == ["1.2"]


def test_what_is_known_to_be_begun_takes_nobodys_place_among_those_that_may_have_been() -> None:
    """One in its ladder leaves its place to the next."""
    world = World(an_entry("1.2"), begun=["1.1", "1.3"], unseen=True)
    world.scheduler.complete([world.ask(f"1.{nth}") for nth in range(1, 8)], 2)
    assert world.in_doubt() == ["1.1", "1.3", "1.4", "1.5"]


def test_nothing_is_in_doubt_where_an_activity_has_failed_for_good() -> None:
    """That is recorded when no other is at work."""
    world = World(an_entry("1.1", Outcome.FAILED), unseen=True)
    world.scheduler.complete([world.ask(f"1.{nth}") for nth in (1, 2, 3)], 2)
    assert world.performed == world.in_doubt() == []


def test_what_an_earlier_owner_may_have_begun_is_settled_though_a_failure_is_undecided() -> None:
    world = World(unseen=True)
    fault: Any = SimpleNamespace(raised_at=MOMENT)
    undecided = world.ask("1.1", leaves=Blocked(StepFailed(fault, None)))
    with pytest.raises(Blocked):
        world.scheduler.complete([undecided, world.ask("1.2"), world.ask("1.3")], 2)
    assert sorted(world.performed) == ["1.1", "1.2"]
    assert world.in_doubt() == ["1.1", "1.2"]


def test_where_the_flow_has_got_on_without_them_they_are_not_begun() -> None:
    world = World(an_entry("1.1", Outcome.FAILED), an_entry("2"), unseen=True)
    world.scheduler.complete([world.ask("1.1"), world.ask("1.2")], 1)
    assert world.performed == []
    world.scheduler.complete([world.ask("2")])


def test_a_failure_that_nobody_has_decided_about_keeps_new_ones_from_being_begun_but_not_begun_ones() -> None:
    world = World(begun=["1.3"])
    fault: Any = SimpleNamespace(raised_at=MOMENT)
    undecided = world.ask("1.1", leaves=Blocked(StepFailed(fault, None)))
    with pytest.raises(Blocked):
        world.scheduler.complete([undecided, world.ask("1.2"), world.ask("1.3")], 1)
    assert world.performed == ["1.3", "1.1"]


# Tasks ------------------------------------------------------------------------------------------------------------


def test_a_set_of_tasks_is_gone_through_in_the_same_order_each_time() -> None:
    async def nothing() -> None:
        return None

    orders = []
    for _ in range(3):
        loop = a_loop()
        tasks = [loop.create_task(nothing()) for _ in range(30)]
        orders.append([tasks.index(task) for task in set(tasks)])
        loop.run_ready()
    assert orders[0] == orders[1] == orders[2]


# Costs ------------------------------------------------------------------------------------------------------------

#: How often anything of any step was looked at.
looks: Counter[str] = Counter()


class CountedRequest(StepRequest):
    """A step that counts how often somebody looks at it."""

    def __getattribute__(self, name: str) -> Any:
        looks["all"] += 1
        return super().__getattribute__(name)


class CountedPending(dict[StepPath, StepRequest]):
    """Steps of an async flow, that count how often somebody goes through them."""

    def keys(self) -> Any:
        looks["all"] += len(self)
        return super().keys()

    def values(self) -> Any:
        looks["all"] += len(self)
        return super().values()


def counted(items: int) -> list[StepRequest]:
    """So many steps that count."""
    return [World().ask(f"1.{number}", quick=True, made_as=CountedRequest) for number in range(items)]


def recorded_world(recorded: int) -> World:
    """One whose journal has so many outcomes."""
    return World(*(an_entry(f"1.{number}", seq=number) for number in range(recorded)))


def complete_all(items: int, recorded: int) -> int:
    """Complete so many steps, of which so many have their outcome already; returns how often one was looked at."""
    world, asks = recorded_world(recorded), counted(items)
    looks.clear()
    world.scheduler.complete(asks, 10)
    seen = looks["all"]
    assert all(ask.entry is not None for ask in asks)
    return seen


def hand_out_all(items: int) -> int:
    """Hand out so many recorded outcomes to an async flow; returns how often a step was looked at."""
    world = recorded_world(items)
    world.scheduler.pending = CountedPending((ask.path, ask) for ask in counted(items))
    looks.clear()
    for _ in range(items):
        assert world.scheduler.next() is not None
    return looks["all"]


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0], ids=["none", "half", "all"])
def test_ten_times_the_items_are_ten_times_the_work(part: float) -> None:
    few, many = (complete_all(items, int(items * part)) for items in (200, 2000))
    assert many <= 11 * few


def test_ten_times_the_outcomes_of_an_async_flow_are_ten_times_the_work() -> None:
    few, many = (hand_out_all(items) for items in (200, 2000))
    assert many <= 11 * few
