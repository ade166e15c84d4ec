"""Runs past their pivot only go forward: in later generations, as children, and when something has failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

import aft
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from tests.acceptance.agency import book, book_async, do
from tests.acceptance.observe import children_of
from tests.setups import Setup, eventually, run_to
from tests.world import Busy, Refused, keys, ledger, shut, trouble


def child_of(app: aft.Aft, run: aft.Run) -> RunRow:
    return children_of(app, run)[0]


@aft.flow(name="pivots_monthly")
def monthly(journey: str, month: int = 1) -> str:
    """Go past the pivot in the first month."""
    book(journey, f"month {month}")
    if month == 1:
        aft.pivot()
    if month < 3:
        aft.continue_as_new(journey, month + 1)
    return "all months"


def test_the_pivot_outlives_its_generation(setup: Setup, journey: str) -> None:
    trouble[journey, "month 3"] = [Refused("no")]
    with run_to(setup.app(), monthly, journey, status=Status.PARKED) as run:
        assert "failed after its pivot, so nothing is undone: Refused: no" in (run.row.reason or "")
        with pytest.raises(aft.OrderRefused, match="has gone past its pivot and only goes forward"):
            run.cancel()
        run.retry()
        assert run.result(60) == "all months"
    assert ledger[journey] == ["month 1", "month 2", "month 3!", "month 3"]


def test_a_run_that_is_undone_from_its_pivot_on_does_not_say_that_it_was_undone(setup: Setup, journey: str) -> None:
    with run_to(setup.app(), monthly, journey) as run:
        run.result(60)
        run.compensate()
        eventually(lambda: run.status is Status.FAILED)
    assert ledger[journey] == ["month 1", "month 2", "month 3", "unmonth 3", "unmonth 2"]


@aft.flow(name="pivots_monthly_parcels")
def monthly_parcels(journey: str, month: int = 0) -> str:
    """Go past the pivot in the first month; something is done in a savepoint in each."""
    if month == 0:
        aft.pivot()
    book(journey, f"month {month}")
    with aft.savepoint("parcel"):
        book(journey, f"postage {month}")
        book(journey, f"parcel {month}")
    if month < 2:
        aft.continue_as_new(journey, month + 1)
    return "all months"


def test_a_retry_past_the_pivot_undoes_nothing_of_an_earlier_generation(setup: Setup, journey: str) -> None:
    trouble[journey, "parcel 1"] = [Refused("no")]
    with run_to(setup.app(), monthly_parcels, journey, status=Status.PARKED) as run:
        run.retry()
        assert run.result(60) == "all months"
    undone = [what for what in ledger[journey] if what.startswith("un")]
    assert undone == ["unpostage 1"]
    done = [what for what in ledger[journey] if not what.startswith("un") and not what.endswith("!")]
    assert sorted(done) == sorted(
        [*(f"{what} {month}" for month in range(3) for what in ("month", "postage", "parcel")), "postage 1"]
    )


@aft.flow(name="pivots_kid")
def kid(journey: str) -> str:
    """Go past a pivot, and wait for a word if there is need to."""
    book(journey, "before")
    aft.pivot()
    if (journey, "wait") in trouble:
        aft.wait_for("word")
    return book(journey, "after")


@aft.flow(name="pivots_parent")
def parent(journey: str) -> str:
    book(journey, "first")
    kid(journey)
    return book(journey, "last")


def test_a_parents_undoing_parks_at_a_child_that_completed_past_its_pivot(setup: Setup, journey: str) -> None:
    app = setup.app()
    trouble[journey, "last"] = [Refused("no")]
    with run_to(app, parent, journey, status=Status.PARKED) as run:
        child = child_of(app, run)
        assert f"child {child.id} of flow 'pivots_kid' (step 2) has gone past its pivot" in (run.row.reason or "")
        told = [(undo.activity, undo.obstacle is None) for undo in run.compensate(dry_run=True)]
        stands = [("agency_book", False)] * 2
        assert told == [("pivots_kid", False), ("agency_book", True), *stands]
        run.retry()
        eventually(lambda: (row := run.row).status is Status.PARKED and row.wake_id is None)
        run.skip_frame(note="the customer keeps it")
        with pytest.raises(aft.FlowFailed):
            run.result(60)
        assert child_of(app, run).status is Status.COMPLETED
    assert ledger[journey] == ["first", "before", "after", "last!", "unfirst"]


def test_a_cancelled_parent_parks_at_a_child_past_its_pivot_and_the_child_goes_on(setup: Setup, journey: str) -> None:
    app = setup.app()
    trouble[journey, "wait"] = []
    with app.dispatcher():
        run = app.submit(parent, journey)
        eventually(lambda: "before" in ledger[journey] and child_of(app, run).status is Status.WAITING)
        run.cancel()
        eventually(lambda: run.status is Status.PARKED)
        child = child_of(app, run)
        assert "has gone past its pivot and goes on" in (run.row.reason or "")
        assert child.status is Status.WAITING
        run.skip_frame(note="the customer keeps it")
        with pytest.raises(aft.FlowFailed):
            run.result(60)
        app.run(child.id).signal("word")
        assert app.run(child.id).result(60)
    assert ledger[journey] == ["first", "before", "unfirst", "after"]


def test_a_cancel_that_came_before_the_pivot_is_carried_out(setup: Setup, journey: str) -> None:
    """The child is at its last step before the pivot when its parent is cancelled: it does not go past it."""
    app = setup.app()
    gate = shut(journey, "before")
    with app.dispatcher():
        run = app.submit(parent, journey)
        assert gate.reached.wait(60)
        run.cancel()
        eventually(lambda: run.status is Status.COMPENSATING)
        eventually(lambda: child_of(app, run).inbox_seq > 0)
        gate.set()
        with pytest.raises(aft.FlowCompensated):
            run.result(60)
    assert ledger[journey] == ["first", "before", "unbefore", "unfirst"]


# Retry ----------------------------------------------------------------------------------------------------------


@aft.activity(name="pivots_note", levels=[], unrecoverable=(Refused,))
def note(journey: str, what: str) -> str:
    """Do something that nothing undoes, under a key of its own."""
    keys[journey, what].append(aft.current().key)
    return book.fn(journey, what)


@aft.flow(name="pivots_tidy")
def tidies(journey: str) -> str:
    """Tidy up after a failure, and let it travel on."""
    aft.pivot()
    try:
        book(journey, "ship")
    except Refused:
        book(journey, "apology")
        note(journey, "mail")
        raise
    note(journey, "invoice")
    return note(journey, "parcel")


@aft.flow(name="pivots_beside")
def beside(journey: str) -> list[str]:
    """One call fails while the other is in its ladder."""
    aft.pivot()
    return list(aft.parallel(book.call(journey, "ship"), book.call(journey, "insure")))


@aft.flow(name="pivots_savepoint")
def in_savepoint(journey: str) -> str:
    aft.pivot()
    with aft.savepoint("shipping"):
        book(journey, "pack")
        note(journey, "label")
        return book(journey, "ship")


@aft.flow(name="pivots_failing_kid")
def failing_kid(journey: str) -> str:
    book(journey, "pack")
    return book(journey, "ship")


@aft.flow(name="pivots_child_fails")
def child_fails(journey: str) -> str:
    aft.pivot()
    return failing_kid(journey)


@aft.flow(name="pivots_inside")
def pivots_inside(journey: str) -> str:
    """Go past the pivot within a savepoint: what was done before stands."""
    with aft.savepoint("shipping"):
        book(journey, "charge")
        note(journey, "label")
        aft.pivot()
        book(journey, "pack")
        return book(journey, "ship")


@aft.flow(name="pivots_wraps")
def wraps(journey: str) -> str:
    """Raise another exception for a failure."""
    aft.pivot()
    with aft.savepoint("shipping"):
        book(journey, "pack")
        try:
            return book(journey, "ship")
        except Refused as error:
            raise LookupError("nobody ships it") from error


@aft.flow(name="pivots_own")
def fails_itself(journey: str) -> str:
    """Raise an exception of its own in a savepoint."""
    aft.pivot()
    with aft.savepoint("shipping"):
        book(journey, "pack")
        if trouble.get((journey, "ship")):
            ledger[journey].append("ship!")
            raise trouble[journey, "ship"].pop()
        return book(journey, "ship")


@aft.flow(name="pivots_own_tidied")
def fails_itself_and_tidies(journey: str) -> str:
    """Raise an exception of its own, and tidy up for it."""
    aft.pivot()
    book(journey, "pack")
    try:
        if trouble.get((journey, "ship")):
            ledger[journey].append("ship!")
            raise trouble[journey, "ship"].pop()
    except Refused:
        book(journey, "apology")
        raise
    return book(journey, "ship")


@aft.flow(name="pivots_signal")
def takes_signal(journey: str) -> str:
    """Take a signal in a savepoint that is undone."""
    aft.pivot()
    with aft.savepoint("shipping"):
        aft.wait_for("address")
        book(journey, "pack")
        return book(journey, "ship")


@aft.flow(name="pivots_apology")
def apology(journey: str) -> str:
    return book(journey, "apology")


@aft.flow(name="pivots_child_tidies")
def child_tidies(journey: str) -> str:
    """Tidy up after a failure by a child alone, and let it travel on."""
    aft.pivot()
    try:
        book(journey, "ship")
    except Refused:
        apology(journey)
        raise
    return note(journey, "parcel")


RETRIED = [
    (child_tidies, ["ship!", "apology"], ["unapology", "ship", "parcel"]),
    (
        tidies,
        ["ship!", "apology", "mail"],
        ["unapology", "ship", "invoice", "parcel"],
    ),
    (in_savepoint, ["pack", "label", "ship!", "unpack"], ["pack", "label", "ship"]),
    (child_fails, ["pack", "ship!", "unpack"], ["pack", "ship"]),
    (pivots_inside, ["charge", "label", "pack", "ship!", "unpack"], ["pack", "ship"]),
    (wraps, ["pack", "ship!", "unpack"], ["pack", "ship"]),
    (fails_itself, ["pack", "ship!", "unpack"], ["pack", "ship"]),
    (fails_itself_and_tidies, ["pack", "ship!", "apology"], ["unapology", "ship"]),
    (takes_signal, ["pack", "ship!", "unpack"], ["pack", "ship"]),
]


@pytest.mark.parametrize(("flow", "failed", "retried"), RETRIED)
def test_a_retry_after_a_pivot_goes_back_to_the_step_that_failed(
    setup: Setup, journey: str, flow: aft.Flow[[str], str], failed: list[str], retried: list[str]
) -> None:
    trouble[journey, "ship"] = [Refused("no")]
    with run_to(setup.app(), flow, journey) as run:
        run.signal("address")
        eventually(lambda: run.status is Status.PARKED)
        assert ledger[journey] == failed
        run.retry()
        assert run.result(60)
    assert ledger[journey] == [*failed, *retried]
    used = [made[-1] for (whose, _), made in keys.items() if whose == journey]
    assert len(used) == len(set(used))


def test_a_retry_after_a_pivot_executes_a_failed_call_again_and_keeps_its_siblings(setup: Setup, journey: str) -> None:
    trouble[journey, "ship"] = [Refused("no")]
    trouble[journey, "insure"] = [Busy("later")]
    with run_to(setup.app(), beside, journey, status=Status.PARKED) as run:
        assert sorted(ledger[journey]) == ["insure", "insure!", "ship!"]
        run.retry()
        assert run.result(60) == [f"ship of {journey}", f"insure of {journey}"]
    assert ledger[journey][3:] == ["ship"]


def test_a_retry_after_a_pivot_executes_all_calls_again_that_failed(setup: Setup, journey: str) -> None:
    trouble[journey, "ship"] = [Refused("no")]
    trouble[journey, "insure"] = [Refused("no")]
    with run_to(setup.app(), beside, journey, status=Status.PARKED) as run:
        run.retry()
        assert run.result(60)
    assert sorted(ledger[journey]) == ["insure", "insure!", "ship", "ship!"]


@aft.flow(name="pivots_tasks")
async def tasks(journey: str) -> str:
    """One task fails while the other, which tidies up then, is in a savepoint."""

    async def ship() -> None:
        await aft.wait_for("address")
        await book_async(journey, "ship")

    async def pack() -> None:
        with aft.savepoint("packing"):
            await book_async(journey, "pack")
            try:
                await aft.wait_for("packed")
            except asyncio.CancelledError:
                await book_async(journey, "tidy")
                raise

    aft.pivot()
    async with asyncio.TaskGroup() as group:
        group.create_task(ship())
        group.create_task(pack())
    return "shipped"


@aft.flow(name="pivots_gathers")
async def gathers(journey: str) -> str:
    """The same, with nobody who cancels the other task but the end of the flow."""

    async def pack() -> None:
        with aft.savepoint("packing"):
            await book_async(journey, "pack")
            await aft.wait_for("packed")

    async def ship() -> None:
        await aft.wait_for("address")
        await book_async(journey, "ship")

    aft.pivot()
    await asyncio.gather(pack(), ship())
    return "shipped"


@aft.flow(name="pivots_own_beside")
async def fails_beside(journey: str) -> str:
    """A task fails by itself, without any step that did."""

    async def pack() -> None:
        with aft.savepoint("packing"):
            await book_async(journey, "pack")
            await aft.wait_for("packed")

    async def ship() -> None:
        await aft.wait_for("address")
        if trouble.get((journey, "ship")):
            ledger[journey].append("ship!")
            raise trouble[journey, "ship"].pop()
        await book_async(journey, "ship")

    aft.pivot()
    await asyncio.gather(pack(), ship())
    return "shipped"


@pytest.mark.parametrize(("flow", "tidied"), [(tasks, ["tidy", "untidy"]), (gathers, []), (fails_beside, [])])
def test_a_retry_after_a_pivot_goes_back_before_what_other_tasks_undid(
    setup: Setup, journey: str, flow: aft.Flow[[str], str], tidied: list[str]
) -> None:
    trouble[journey, "ship"] = [Refused("no")]
    with run_to(setup.app(), flow, journey) as run:
        eventually(lambda: ledger[journey] == ["pack"] and run.status is Status.WAITING)
        run.signal("address")
        eventually(lambda: run.status is Status.PARKED)
        assert ledger[journey] == ["pack", "ship!", *tidied, "unpack"]
        run.signal("packed")
        run.retry()
        assert run.result(60)
    assert sorted(ledger[journey][3 + len(tidied) :]) == ["pack", "ship"]


@aft.flow(name="pivots_plain_tasks")
async def plain_tasks(journey: str) -> str:
    """A step that is called plainly in a task, while another task goes on."""

    async def pack() -> None:
        book(journey, "pack")

    async def insure() -> None:
        aft.parallel(book.call(journey, "fire"), book.call(journey, "theft"))

    async def ship() -> None:
        await book_async(journey, "ship")
        await book_async(journey, "label")

    aft.pivot()
    try:
        await asyncio.gather(insure(), pack(), ship())
    except Refused:
        await aft.wait_for("tidy")
        raise
    return "shipped"


@pytest.mark.parametrize("what", ["pack", "fire"])
def test_a_retry_after_a_pivot_executes_a_step_that_a_task_has_called_plainly(
    setup: Setup, journey: str, what: str
) -> None:
    trouble[journey, what] = [Refused("no")]
    done = ["fire", "label", "pack", "ship", "theft"]
    with run_to(setup.app(), plain_tasks, journey) as run:
        eventually(lambda: {"label", "ship"} <= set(ledger[journey]) and run.status is Status.WAITING)
        run.signal("tidy")
        eventually(lambda: run.status is Status.PARKED)
        run.retry()
        assert run.result(60) == "shipped"
    assert sorted(each for each in ledger[journey] if not each.endswith("!")) == done


@aft.flow(name="pivots_impatient")
def impatient(journey: str) -> str:
    """Wait for a word that may not come in time."""
    aft.pivot()
    book(journey, "pack")
    return str(aft.wait_for("word", str, timeout="100ms" if trouble.get((journey, "word")) else None))


@aft.flow(name="pivots_waiting_kid")
def waiting_kid(journey: str) -> str:
    return str(aft.wait_for("word", str))


@aft.flow(name="pivots_waiting_parent")
def waiting_parent(journey: str) -> str:
    aft.pivot()
    book(journey, "pack")
    return waiting_kid(journey)


def test_a_retry_after_a_pivot_waits_again_for_what_did_not_come_in_time(setup: Setup, journey: str) -> None:
    trouble[journey, "word"] = [Busy("not in time")]
    with run_to(setup.app(), impatient, journey, status=Status.PARKED) as run:
        trouble.pop((journey, "word"))
        run.retry()
        eventually(lambda: run.status is Status.WAITING)
        run.signal("word", "go")
        assert run.result(60) == "go"
    assert ledger[journey] == ["pack"]


def _have(app: aft.Aft, run: aft.Run, states: list[Status]) -> bool:
    return [child.status for child in children_of(app, run)] == states


def test_each_retry_after_a_pivot_begins_another_child(setup: Setup, journey: str) -> None:
    """Two are cancelled by a person, the third one completes."""
    app = setup.app()
    with app.dispatcher():
        run = app.submit(waiting_parent, journey)
        for number in (1, 2):
            waits = [Status.CANCELLED] * (number - 1) + [Status.WAITING]
            eventually(partial(_have, app, run, waits))
            app.run(children_of(app, run)[-1].id).cancel(compensate=False)
            eventually(lambda: (row := run.row).status is Status.PARKED and row.wake_id is None)
            run.retry()
        eventually(lambda: len(children_of(app, run)) == 3)
        app.run(children_of(app, run)[-1].id).signal("word", "go")
        assert run.result(60) == "go"
    assert ledger[journey] == ["pack"]


@aft.flow(name="pivots_held")
def held_over(journey: str) -> str:
    """Raise a failure only after the pivot."""
    failure: Exception | None = None
    try:
        book(journey, "insure")
    except Refused as error:
        failure = error
    book(journey, "charge")
    aft.pivot()
    with aft.savepoint("shipping"):
        book(journey, "ship")
        if failure is not None and trouble.get((journey, "held")):
            raise failure
    return book(journey, "mail")


def test_a_failure_from_before_the_pivot_stays_and_what_the_pivot_let_stand_does_too(
    setup: Setup, journey: str
) -> None:
    """What is corrected is the code that raised it: the retry executes only what was undone for it."""
    trouble[journey, "insure"] = [Refused("no")]
    trouble[journey, "held"] = [Refused("raised")]
    with run_to(setup.app(), held_over, journey, status=Status.PARKED) as run:
        trouble.pop((journey, "held"))
        run.retry()
        assert run.result(60)
    assert ledger[journey] == ["insure!", "charge", "ship", "unship", "ship", "mail"]


def unseal(journey: str, what: str) -> None:
    do(journey, f"un{what}")


@aft.compensate_with(unseal)
@aft.activity(name="pivots_seal", levels=[], unrecoverable=(Refused,))
def seal(journey: str, what: str) -> str:
    """Do something under a key of its own; undoing it may fail."""
    return note.fn(journey, what)


@aft.flow(name="pivots_sealed")
def sealed(journey: str) -> str:
    """Another step has the path of the one with which the code tidied up, after a retry."""
    aft.pivot()
    try:
        book(journey, "ship")
    except Refused:
        seal(journey, "apology")
        raise
    return seal(journey, "parcel")


@pytest.mark.parametrize("by_hand", [aft.Run.skip_frame, aft.Run.frame_done])
def test_a_step_has_a_key_of_its_own_after_a_frame_of_its_path_was_settled_by_hand(
    setup: Setup, journey: str, by_hand: Callable[..., None]
) -> None:
    for what in ("ship", "unapology"):
        trouble[journey, what] = [Refused("no")]
    with run_to(setup.app(), sealed, journey, status=Status.PARKED) as run:
        run.retry()
        eventually(
            lambda: "unapology!" in ledger[journey] and (row := run.row).status is Status.PARKED and not row.wake_id
        )
        by_hand(run, note="settled")
        assert run.result(60)
    assert ledger[journey] == ["ship!", "apology", "unapology!", "ship", "parcel"]
    assert keys[journey, "apology"][-1] != keys[journey, "parcel"][-1]


@aft.flow(name="pivots_other_way")
def takes_another_way(journey: str) -> str:
    """Take another way through a savepoint, if there is no insurance: then another step has the path of the last."""
    aft.pivot()
    with aft.savepoint("shipping"):
        try:
            book(journey, "insure")
        except Refused:
            note(journey, "waiver")
        return note(journey, "ship")


def test_a_savepoint_that_is_gone_through_again_uses_no_key_again(setup: Setup, journey: str) -> None:
    trouble[journey, "ship"] = [Refused("no")]
    with run_to(setup.app(), takes_another_way, journey, status=Status.PARKED) as run:
        failed = keys[journey, "ship"][-1]
        trouble[journey, "insure"] = [Refused("no")]
        run.retry()
        assert run.result(60)
    assert ledger[journey] == ["insure", "ship!", "uninsure", "insure!", "waiver", "ship"]
    assert len({failed, keys[journey, "waiver"][-1], keys[journey, "ship"][-1]}) == 3
