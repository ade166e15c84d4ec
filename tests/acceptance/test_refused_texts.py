"""Texts that no database stores, or that break listings, are refused where they are given: nothing fails later."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import aft
from aft import do
from aft.runs.states import Status
from tests.acceptance import theatre
from tests.acceptance.theatre import stops
from tests.setups import Setup
from tests.world import Refused, trouble

#: NUL, half a character, and one that a terminal obeys.
BAD = ["a\x00b", "a\ud800b", "a\x1b[31mb"]
REFUSED = (aft.DefinitionError, aft.OrderRefused, aft.RuleRefused)


@pytest.mark.parametrize("bad", BAD, ids=["nul", "surrogate", "escape"])
@pytest.mark.parametrize(
    "give",
    [
        lambda bad: do.park(bad),
        lambda bad: do.fail(bad),
        lambda bad: do.notify("https://example.org/", bad),
        lambda bad: do.unwind(to=bad),
        lambda bad: do.set(tags={bad: 1}),
        lambda bad: do.set(tags={"a": bad}),
        lambda bad: theatre.evening.options(key=bad),
        lambda bad: theatre.evening.options(owner=bad),
        lambda bad: theatre.evening.options(tags={"a": [bad]}),
        lambda bad: theatre.evening.options(tags={"a": {bad: 1}}),
        lambda bad: theatre.evening.options(tags={bad: 1}),
        lambda bad: theatre.evening.options(resources=[bad]),
    ],
)
def test_a_text_that_cannot_be_stored_is_refused_where_it_is_declared(give: Callable[[str], Any], bad: str) -> None:
    with pytest.raises(REFUSED) as refused:
        give(bad)
    assert str(refused.value).encode()  # the message can be shown


@pytest.mark.parametrize("bad", BAD, ids=["nul", "surrogate", "escape"])
def test_and_where_a_person_or_a_program_gives_it(setup: Setup, bad: str) -> None:
    app, show = setup.app(), secrets.token_hex(4)
    trouble[show, "hall"] = [Refused("no")]
    with app.dispatcher():
        run = app.start(theatre.premiere, f"{show}-waits")
        stops(run, Status.WAITING)
    schedule = app.schedule(f"{show}-daily", theatre.premiere.call(show), cron="0 3 * * *")
    exlet = aft.Exlet("look_at_it", [do.park("look")])
    gives: list[Callable[[], Any]] = [
        lambda: run.suspend(bad),
        lambda: run.suspend("why", by=bad),
        lambda: run.cancel(note=bad),
        lambda: run.compensate(note=bad),
        lambda: run.release(note=bad),
        lambda: run.retry(note=bad),
        lambda: run.skip_frame(note=bad),
        lambda: run.frame_done(note=bad),
        lambda: run.resume(note=bad),
        lambda: run.signal(bad),
        lambda: run.signal("word", key=bad),
        lambda: run.signal("word", by=bad),
        lambda: app.schedule(bad, theatre.premiere.call(show), cron="0 3 * * *"),
        lambda: schedule.pause(by=bad),
        lambda: schedule.run_now(by=bad),
        lambda: app.rules.add_exlet(exlet, note=bad),
        lambda: app.rules.add_exlet(exlet, by=bad),
        lambda: app.rules.add_exlet(aft.Exlet("look_at_it", [do.park("look")], about=bad)),
        lambda: app.rules.add_exlet(aft.Exlet(bad, [do.park("look")])),
        lambda: app.rules.save_all([theatre.rule(theatre.evening, "fault", f"fault.name == '{bad}'", "park")], []),
        lambda: app.rules.save_all([theatre.rule(theatre.evening, "fault", "true", "park")], [], note=bad),
    ]
    for number, give in enumerate(gives):
        with pytest.raises(REFUSED):
            give()
        assert run.status is Status.WAITING, number
    with app.dispatcher():
        run.signal("word")
        assert run.result(60) == [10, 10]


def test_a_text_of_several_lines_is_stored_where_people_write_notes(setup: Setup) -> None:
    app, show = setup.app(), secrets.token_hex(4)
    note = "first\n\tsecond ✓"
    app.rules.add_exlet(aft.Exlet("ask", [do.park(note)], about=note), note=note)
    run = app.submit(theatre.premiere.options(tags={"note": note}), show)
    run.suspend(note)
    assert note in (run.row.reason or "")


@pytest.mark.parametrize("bad", ["a\x00b", "a\ud800b"])
def test_looking_for_a_text_that_nothing_can_have_raises_nothing_of_a_driver(setup: Setup, bad: str) -> None:
    app = setup.app()
    for look in (lambda: app.run(bad), lambda: app.runs(owner=bad), lambda: app.schedule(bad).row):
        with suppress(aft.AftError):
            assert not look()


def test_a_note_that_is_too_long_is_refused(setup: Setup) -> None:
    app, show, long = setup.app(), secrets.token_hex(4), "x" * 10_001
    run = app.submit(theatre.premiere, show)
    for order in (run.cancel, run.retry, run.release):
        with pytest.raises(aft.OrderRefused, match="10001 characters; 10000 are the most"):
            order(note=long)
    with pytest.raises(aft.RuleRefused, match="10000 are the most"):
        app.rules.add_exlet(aft.Exlet("look_at_it", [do.park("look")]), note=long)
