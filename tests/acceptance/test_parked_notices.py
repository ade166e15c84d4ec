"""Somebody outside is told of each run that is parked, whoever parked it and whatever rules there are."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import Any

import pytest

import aft
from aft import do
from aft.runs.states import Status
from aft.telemetry import NoticeAcknowledged, NoticeFailed, NoticeGivenUp, RunOverdue
from tests.acceptance import theatre
from tests.acceptance.theatre import listen, stops, teach
from tests.setups import Setup, eventually
from tests.world import Refused, broken, trouble


@aft.flow(name="parked_bug")
def bug(show: str) -> str:
    """Has a mistake in its own code, while it is broken."""
    theatre.sell(show, "hall", 1)
    if show in broken:
        raise NameError("venue")
    return "fine"


@aft.flow(name="parked_pivot")
def pivot(show: str) -> int:
    """Fails after its pivot."""
    aft.pivot()
    return theatre.sell(show, "hall", 1)


def cannot(show: str) -> None:
    raise Refused("no way back")


@aft.compensate_with(cannot)
@aft.activity(name="parked_go")
def go(show: str) -> None:
    """Cannot be undone."""


@aft.flow(name="parked_undo")
def undo(show: str) -> None:
    """Fails, and cannot be undone."""
    go(show)
    raise Refused("hiss")


#: What is told of a notice that was tried.
ENDS = (NoticeAcknowledged, NoticeFailed, NoticeGivenUp)


def test_each_parked_run_is_told_once_for_each_time_it_is_parked(
    setup: Setup, receiver: tuple[str, list[dict[str, Any]]]
) -> None:
    url, heard = receiver
    app, other = setup.app(notify_parked_url=url), setup.app(notify_parked_url=url)
    show = secrets.token_hex(4)
    broken.add(show)
    teach(app, theatre.evening, "fault", "true", do.park("a rule says so"))
    trouble[show, "tickets"], trouble[f"{show}-pivot", "hall"] = [Refused("no")], [Refused("no")]

    def told() -> Counter[str]:
        return Counter(body["run"] for body in heard)

    with app.dispatcher(), other.dispatcher():
        by_bug = app.submit(bug.options(key=f"order-{show}", owner="shop"), show)
        others = [
            app.submit(pivot, f"{show}-pivot"),
            app.submit(undo, show),
            app.submit(theatre.evening, show),
        ]
        runs = [by_bug, *others]
        for run in runs:
            stops(run, Status.PARKED)
        eventually(lambda: told() == {run.id: 1 for run in runs})
        by_bug.retry()
        eventually(lambda: told()[by_bug.id] == 2)
        broken.discard(show)
        by_bug.retry()
        assert by_bug.result(60) == "fine"
    assert told() == {by_bug.id: 2, **{run.id: 1 for run in others}}
    first = next(body for body in heard if body["run"] == by_bug.id)
    assert first["event"] == "parked"
    assert (first["flow"], first["key"], first["owner"]) == ("parked_bug", f"order-{show}", "shop")
    assert "venue" in first["reason"]


def test_without_the_setting_nobody_is_told(setup: Setup) -> None:
    app, show = setup.app(), secrets.token_hex(4)
    heard = listen(app)
    broken.add(show)
    with app.dispatcher():
        run = app.submit(bug, show)
        stops(run, Status.PARKED)
        # Told by the round that would write the notice, too: it comes to its end before the dispatcher does.
        app.submit(theatre.premiere.options(expected="1ms"), show)
        eventually(lambda: any(isinstance(event, RunOverdue) for event in heard))
    with app.store.read() as connection:
        assert not connection.exec_driver_sql(f"SELECT 1 FROM aft_notices WHERE run_id = '{run.id}'").all()


def test_the_url_of_parked_runs_vouches_for_no_other_url_of_its_host(
    setup: Setup, receiver: tuple[str, list[dict[str, Any]]]
) -> None:
    url, heard = receiver
    app, show = setup.app(notify_parked_url=url, webhook_hosts=None), secrets.token_hex(4)
    others = [url.replace("/hook", "/admin"), f"{url}?x=y", "http://127.0.0.1:9/hook"]
    teach(app, theatre.evening, "fault", "true", *(do.notify(each, "by a rule") for each in others), do.park("no"))
    trouble[show, "tickets"] = [Refused("no")]
    events = listen(app)
    with app.dispatcher():
        stops(app.submit(theatre.evening, show), Status.PARKED)
        eventually(lambda: len([event for event in events if isinstance(event, ENDS)]) > len(others))
    why = [event.why for event in events if isinstance(event, NoticeGivenUp)]
    assert [body.get("event") for body in heard] == ["parked"]
    assert len(why) == len(others)
    assert all("list it in AFT_WEBHOOK_HOSTS" in each for each in why)


@pytest.mark.parametrize("url", ["example.org/hook", "https://user:secret@example.org/", "https://exa mple.org/"])
def test_a_url_that_nothing_can_be_sent_to_is_refused_without_being_shown(setup: Setup, url: str) -> None:
    with (
        pytest.raises(aft.ConfigError, match="NOTIFY_PARKED_URL") as refused,
        setup.app(notify_parked_url=url).dispatcher(),
    ):
        pass
    assert "example" not in str(refused.value)
