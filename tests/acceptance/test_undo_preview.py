"""A preview of undoing tells what is really undone afterwards, in order, and what keeps the rest from being undone."""

from __future__ import annotations

import contextlib
import secrets

import pytest

import aft
from aft.app import Run
from aft.errors import OrderRefused
from aft.flows.declare.registry import Registry
from aft.runs.states import Status
from tests.acceptance.observe import children_of
from tests.acceptance.terminal import Terminal
from tests.setups import Setup, eventually, run_to
from tests.world import broken, ledger

#: Undoing these fails, for good.


def unrent(trip: str, what: str) -> None:
    if (trip, what) in broken:
        raise aft.Unrecoverable(f"{what} is locked")
    ledger[trip].append(f"un{what}")


@aft.compensate_with(unrent)
@aft.activity(name="preview_rent")
def rent(trip: str, what: str) -> str:
    ledger[trip].append(what)
    return what


@aft.activity(name="preview_tell")
def tell(trip: str, what: str) -> None:
    """Has no undo."""
    ledger[trip].append(what)


@aft.flow(name="preview_fails")
def fails(trip: str) -> None:
    for what in ("car", "boat", "hut"):
        rent(trip, what)
    tell(trip, "told")
    raise aft.Unrecoverable("no money")


@aft.flow(name="preview_mistaken")
def mistaken(trip: str) -> None:
    rent(trip, "car")
    rent(trip, "boat")
    raise TypeError("a mistake in the flow's own code")


@aft.flow(name="preview_waits")
def waits(trip: str, what: str = "car") -> str:
    rent(trip, what)
    tell(trip, f"told of {what}")
    return str(aft.wait_for("answer", str))


@aft.flow(name="preview_rents")
def rents(trip: str, what: str) -> None:
    rent(trip, what)
    tell(trip, f"told of {what}")


@aft.flow(name="preview_family")
def family(trip: str) -> None:
    rent(trip, "car")
    rents(trip, "boat")
    rent(trip, "hut")
    waits(trip, "tent")


@aft.flow(name="preview_pivoted")
def pivoted(trip: str) -> str:
    rent(trip, "car")
    aft.pivot()
    rent(trip, "boat")
    return str(aft.wait_for("answer", str))


@aft.flow(name="preview_careful")
def careful(trip: str) -> None:
    rent(trip, "car")
    with aft.savepoint("away"):
        rent(trip, "boat")
        rent(trip, "hut")
        raise aft.Unrecoverable("no money")


@aft.flow(name="preview_tells")
def tells(trip: str) -> None:
    tell(trip, "postcard")


@aft.flow(name="preview_above")
def above(trip: str) -> None:
    """Three children: one that owes nothing, one that is left as it is, one that goes past its pivot."""
    tells(trip)
    with contextlib.suppress(aft.FlowCancelled):
        waits(trip, "tent")
    pivoted(trip)


@pytest.fixture
def trip() -> str:
    return secrets.token_hex(4)


def parked(run: Run) -> bool:
    return run.status is Status.PARKED


def preview(run: Run) -> list[tuple[str, str | None]]:
    return [(f"un{undo.arguments['what']}", undo.obstacle) for undo in run.compensate(dry_run=True)]


def undone(trip: str) -> list[str]:
    return [what for what in ledger[trip] if what.startswith("un")]


def promised(told: list[tuple[str, str | None]]) -> list[str]:
    return [what for what, obstacle in told if obstacle is None]


def test_a_run_parked_for_a_compensator_names_it_and_goes_on_as_promised(setup: Setup, trip: str) -> None:
    terminal = Terminal(setup)
    broken.add((trip, "boat"))
    with terminal.app.dispatcher():
        run = terminal.app.submit(fails, trip)
        eventually(lambda: parked(run))
        before = undone(trip)
        assert before == ["unhut"]
        told = preview(run)
        assert [what for what, _ in told] == ["unboat", "uncar", "untold"]
        assert "compensator 'unrent' failed, and the run is parked for it: Unrecoverable: boat is locked" in str(
            told[0]
        )
        assert told[2][1] == "has no undo: its effect remains"
        said = terminal.good("runs", "compensate", run.id, "--dry-run").stderr
        assert f"is being undone already; it is parked, `aft runs retry {run.id[-12:]}` goes on. 1 more would" in said
        with pytest.raises(OrderRefused, match="is being undone already"):
            run.compensate()
        story = terminal.good("runs", "show", run.id).stdout
        assert "parked  compensator 'unrent' of step 2 failed: " in " ".join(story.split()).replace(
            "parked ", "parked  "
        )
        run.skip_frame(note="the boat has sunk")
        eventually(lambda: run.status is Status.FAILED)
    assert undone(trip) == [*before, *promised(told)]
    left = dict(preview(run))
    assert left == {
        "unboat": "was skipped (the boat has sunk): its effect remains",
        "untold": "has no undo: its effect remains",
    }
    assert "Nothing would be undone: " in terminal.good("runs", "compensate", run.id, "--dry-run").stderr


def test_a_run_parked_for_a_mistake_is_undone_as_promised(setup: Setup, trip: str) -> None:
    with run_to(setup.app(), mistaken, trip) as run:
        eventually(lambda: parked(run))
        told = preview(run)
        assert told == [("unboat", None), ("uncar", None)]
        run.compensate()
        eventually(lambda: run.status is Status.COMPENSATED)
    assert undone(trip) == promised(told)


def test_a_run_parked_within_a_savepoint_is_undone_as_a_whole_as_promised(setup: Setup, trip: str) -> None:
    broken.add((trip, "hut"))
    with run_to(setup.app(), careful, trip) as run:
        eventually(lambda: parked(run))
        told = preview(run)
        assert [what for what, _ in told] == ["unhut", "unboat", "uncar"]
        assert "hut is locked" in str(told[0][1])
        assert promised(told) == ["unboat", "uncar"]
        broken.discard((trip, "hut"))
        run.compensate()
        eventually(lambda: run.status is Status.COMPENSATED)
    assert undone(trip) == [what for what, _ in told]


def test_children_that_go_on_are_undone_before_the_stack_of_their_parent(setup: Setup, trip: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(family, trip)
        eventually(lambda: run.status is Status.WAITING and "told of tent" in ledger[trip])
        eventually(lambda: any(child.status is Status.WAITING for child in children_of(app, run)))
        told = preview(run)
        assert promised(told) == ["untent", "unhut", "unboat", "uncar"]
        stands = {what for what, obstacle in told if obstacle == "has no undo: its effect remains"}
        assert stands == {"untold of tent", "untold of boat"}
        run.compensate()
        eventually(lambda: run.status is Status.COMPENSATED)
    assert undone(trip) == promised(told)


def test_what_could_not_be_compensated_at_all_says_why(setup: Setup, trip: str) -> None:
    terminal = Terminal(setup)
    app = terminal.app
    with app.dispatcher():
        past, ended = app.submit(pivoted, trip), app.submit(waits, trip)
        eventually(lambda: (past.status, ended.status) == (Status.WAITING, Status.WAITING))
        ended.cancel(compensate=False)
        eventually(lambda: ended.status is Status.CANCELLED)
    for run, why in ((past, "has gone past its pivot"), (ended, "has ended cancelled")):
        told = preview(run)
        assert told
        assert promised(told) == []
        assert why in str(told)
        assert (
            f"Nothing would be undone: run {run.id} {why}"
            in terminal.good("runs", "compensate", run.id, "--dry-run").stderr
        )
        with pytest.raises(OrderRefused, match=why):
            run.compensate()
    assert undone(trip) == []


def test_code_that_is_missing_or_no_longer_fits_is_an_obstacle(
    setup: Setup, trip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(waits, trip)
        eventually(lambda: run.status is Status.WAITING)
    with monkeypatch.context() as patch:
        patch.setattr(Registry, "compensator", lambda *_: None)
        assert "this code has no compensator 'unrent'" in str(preview(run)[0][1])
    activity = app.registry.activity("preview_rent")
    assert activity is not None
    monkeypatch.setattr(activity.arguments, "_codecs", {"trip": activity.arguments._codecs["trip"]})
    assert "what is stored no longer fits the code: " in str(preview(run)[0][1])


def test_what_stands_in_children_is_told_too(setup: Setup, trip: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(above, trip)
        eventually(lambda: "told of tent" in ledger[trip] and children_of(app, run)[-1].status is Status.WAITING)
        app.run(children_of(app, run)[1].id).cancel(compensate=False)
        eventually(lambda: "boat" in ledger[trip] and children_of(app, run)[-1].status is Status.WAITING)
        told = run.compensate(dry_run=True)
        assert [undo.obstacle for undo in told if undo.obstacle is None] == []
        done = [undo for undo in told if undo.activity in ("preview_rent", "preview_tell")]
        stands = {undo.arguments["what"]: undo.obstacle for undo in done}
        assert stands == {
            "boat": f"run {children_of(app, run)[2].id} is not undone: its effect remains",
            "car": "done before the pivot: its effect remains",
            "tent": f"run {children_of(app, run)[1].id} is not undone: its effect remains",
            "told of tent": "has no undo: its effect remains",
            "postcard": "has no undo: its effect remains",
        }
