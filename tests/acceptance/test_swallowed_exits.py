"""Flow code that swallows what aft leaves with: it executes no further step, and does not end the run wrongly."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import aft
from tests.setups import Setup, run_to
from tests.world import ledger


@aft.activity(name="swallowed_note", levels=["20ms"])
def note(place: str, what: str) -> str:
    ledger[place].append(what)
    if what == "fails once" and ledger[place].count(what) == 1:
        raise aft.Recoverable("this passes")
    return what


@aft.flow(name="swallowing")
def swallowing(place: str) -> str:
    """Swallow everything, go on, tidy up, and claim to be done."""
    found = "nothing"
    try:
        with aft.savepoint("inside"), suppress(BaseException):
            found = note(place, "fails once")
    except BaseException:
        found = "swallowed"
    finally:
        with suppress(BaseException):
            note(place, f"tidied after {found}")
    return found


@aft.flow(name="swallowing_wait")
def swallowing_wait(place: str) -> str:
    try:
        aft.wait_for("go")
    except BaseException:
        raise ValueError("something else") from None
    finally:
        note(place, "after the wait")
    return "went"


@aft.flow(name="swallowing_async")
async def swallowing_async(place: str) -> str:
    async def branch() -> str:
        try:
            return await aft.sleep("50ms") or "slept"
        except BaseException:
            note(place, "in a branch that was left")
            return "swallowed"

    found = await asyncio.gather(branch(), branch(), return_exceptions=True)
    note(place, "after the branches")
    return ", ".join(map(str, found))


@aft.flow(name="swallowing_anew")
def swallowing_anew(place: str, count: int) -> str:
    note(place, f"pass {count}")
    if count < 2:
        with suppress(BaseException):
            aft.continue_as_new(place, count + 1)
        with suppress(BaseException):
            note(place, "must not be")
        return "ended wrongly"
    return "ended"


def test_code_that_swallows_everything_goes_on_where_it_left(setup: Setup, place: str) -> None:
    app = setup.app()
    run = app.start(swallowing, place)
    assert run.status == "recovering"
    assert ledger[place] == ["fails once"]
    with app.dispatcher():
        assert run.result(60) == "fails once"
    assert ledger[place] == ["fails once", "fails once", "tidied after fails once"]


def test_code_that_raises_something_else_while_it_leaves_undoes_nothing(setup: Setup, place: str) -> None:
    app = setup.app()
    run = app.start(swallowing_wait, place)
    assert run.status == "waiting"
    assert ledger[place] == []
    with app.dispatcher():
        run.signal("go")
        assert run.result(60) == "went"
    assert ledger[place] == ["after the wait"]


def test_a_branch_that_swallows_it_executes_nothing(setup: Setup, place: str) -> None:
    app = setup.app()
    with app.dispatcher():
        assert app.submit(swallowing_async, place).result(60) == "slept, slept"
    assert ledger[place] == ["after the branches"]


def test_code_that_swallows_its_new_beginning_begins_anew_all_the_same(setup: Setup, place: str) -> None:
    with run_to(setup.app(), swallowing_anew, place, 0, status="completed") as run:
        assert run.result(60) == "ended"
    assert ledger[place] == ["pass 0", "pass 1", "pass 2"]
