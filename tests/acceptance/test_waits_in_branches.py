"""Waits beside a branch that executes an activity: they end on time, are stored, and cost nothing elsewhere."""

from __future__ import annotations

import asyncio

import pytest

import aft
from aft.runs.ownership.owner import Owner
from aft.runs.records.journal import EntryKind
from aft.runs.states import Status
from aft.runs.waits import WaitKind, decode
from tests.acceptance.agency import approval, book, book_async
from tests.acceptance.observe import children_of, recorded
from tests.setups import Setup, eventually, run_to
from tests.world import ledger, shut


@aft.flow(name="beside_work")
async def beside_work(journey: str, duration: str) -> list[str]:
    """Work in one branch; sleep, then book, in the other."""

    async def sleeps() -> str:
        await aft.sleep(duration)
        return str(await book_async(journey, "after"))

    return list(await asyncio.gather(book_async(journey, "work"), sleeps()))


@aft.flow(name="beside_word")
async def beside_word(journey: str) -> list[str]:
    """Work in one branch; wait for a word, then book, in the other."""

    async def hears() -> str:
        word = await aft.wait_for("word", timeout="1h")
        return str(await book_async(journey, str(word)))

    return list(await asyncio.gather(book_async(journey, "work"), hears()))


@aft.flow(name="beside_child")
async def beside_child(journey: str) -> list[str]:
    """Work in one branch; a child that waits for a person, then book, in the other."""

    async def follows() -> str:
        await approval.call(journey)
        return str(await book_async(journey, "after"))

    return list(await asyncio.gather(book_async(journey, "work"), follows()))


@aft.flow(name="beside_plain")
def beside_plain(journey: str) -> tuple[str, str]:
    """A child that waits for a person and an activity, side by side."""
    return aft.parallel(book.call(journey, "work"), approval.call(journey))


@aft.flow(name="beside_nothing")
async def beside_nothing(journey: str) -> list[str]:
    """Two activities side by side."""
    return list(await asyncio.gather(book_async(journey, "one"), book_async(journey, "two")))


def test_a_sleep_ends_on_time_while_another_branch_works(setup: Setup, journey: str) -> None:
    gate = shut(journey, "work")
    with run_to(setup.app(), beside_work, journey, "100ms") as run:
        assert gate.reached.wait(60)
        eventually(lambda: ledger[journey] == ["after"])
        gate.set()
        assert run.result(60) == [f"work of {journey}", f"after of {journey}"]


def test_a_signal_is_taken_while_another_branch_works(setup: Setup, journey: str) -> None:
    gate = shut(journey, "work")
    with run_to(setup.app(), beside_word, journey) as run:
        assert gate.reached.wait(60)
        run.signal("word", "lunch")
        eventually(lambda: ledger[journey] == ["lunch"])
        gate.set()
        assert run.result(60) == [f"work of {journey}", f"lunch of {journey}"]


def test_a_signal_that_comes_while_a_wait_is_stored_is_taken_while_another_branch_works(
    setup: Setup, journey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app()
    gate = shut(journey, "work")
    sent: list[str] = []
    store_waits = Owner.store_waits

    def send_and_store(owner: Owner) -> None:
        if owner.run.waits and not sent:
            sent.append(owner.run_id)
            app.run(owner.run_id).signal("word", "lunch")
        store_waits(owner)

    monkeypatch.setattr(Owner, "store_waits", send_and_store)
    with app.dispatcher():
        run = app.submit(beside_word, journey)
        eventually(lambda: ledger[journey] == ["lunch"])
        gate.set()
        assert run.result(60) == [f"work of {journey}", f"lunch of {journey}"]


@pytest.mark.parametrize("flow", [beside_child, beside_plain], ids=["async", "plain"])
def test_the_end_of_a_child_is_noticed_while_another_branch_works(
    setup: Setup, journey: str, flow: aft.Flow[[str], object]
) -> None:
    app = setup.app()
    gate = shut(journey, "work")
    with app.dispatcher():
        run = app.submit(flow, journey)
        assert gate.reached.wait(60)
        (child,) = eventually(lambda: children_of(app, run))
        app.run(child.id).signal("verdict", "yes")
        eventually(lambda: EntryKind.CHILD in [entry.kind for entry in recorded(app, run)])
        assert "work" not in ledger[journey]
        gate.set()
        run.result(60)


def test_a_wait_beside_a_working_branch_is_stored_and_the_next_owner_goes_on_with_it(
    setup: Setup, journey: str
) -> None:
    app = setup.app()
    gate = shut(journey, "work")
    with app.dispatcher():
        run = app.submit(beside_word, journey)
        (stored,) = eventually(lambda: run.row.waits)
        assert (stored.kind, stored.name) == (WaitKind.SIGNAL, "word")
        epoch = run.row.epoch
        run.release()
        eventually(lambda: (row := run.row).worker_id is not None and row.epoch > epoch)
        assert run.row.waits == (stored,)
        run.signal("word", "lunch")
        gate.set()
        assert run.result(60) == [f"work of {journey}", f"lunch of {journey}"]
    (taken,) = [entry for entry in recorded(app, run) if entry.kind is EntryKind.SIGNAL]
    assert decode(taken.args) == (stored,)


def test_a_person_s_order_beside_a_wait_acts_when_the_working_branch_has_come_to_its_end(
    setup: Setup, journey: str
) -> None:
    gate = shut(journey, "work")
    with run_to(setup.app(), beside_word, journey) as run:
        eventually(lambda: run.row.waits)
        run.suspend("for lunch")
        gate.set()
        eventually(lambda: run.status is Status.SUSPENDED)
        assert ledger[journey] == ["work"]
        run.resume()
        run.signal("word", "lunch")
        assert run.result(60) == [f"work of {journey}", f"lunch of {journey}"]
    assert ledger[journey] == ["work", "lunch"]


def test_branches_that_wait_for_nothing_write_nothing_more(setup: Setup, journey: str) -> None:
    run = setup.app().start(beside_nothing, journey)
    assert run.result(0) == [f"one of {journey}", f"two of {journey}"]
    assert run.row.seq == 3, "an outcome each, and the end"
