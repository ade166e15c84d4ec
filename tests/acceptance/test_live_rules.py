"""Rules change while runs are running: in force everywhere within a second, and what cannot work harms nobody."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest
from sqlalchemy import Connection, insert

import aft
from aft import do
from aft.clock import SystemClock
from aft.fault import Fault
from aft.rules.rule_types import RuleType
from aft.rules.trees import rows, rule_cache
from aft.rules.trees.rule_cache import RuleCache, RuleSet
from aft.runs.states import Status
from aft.store.db_time import now
from aft.store.tables import exlets, rule_trees
from aft.telemetry import RulesRefused, Telemetry
from tests.acceptance import theatre
from tests.acceptance.theatre import listen, stops, teach, undone
from tests.setups import Setup, eventually
from tests.storing import HandClock
from tests.world import Refused, ledger, trouble

KEY = (theatre.premiere.name, RuleType.FAULT, "*")


def in_force(*apps: aft.Aft) -> None:
    """Wait until what was taught last is in force; ``rule_cache.FRESH`` says how soon that is."""
    with apps[0].store.read() as connection:
        wanted = rows.version(connection, apps[0].namespace)
    eventually(lambda: {app.rule_cache.current().version for app in apps} == {wanted})


def failed(app: aft.Aft, show: str, flow: Any = theatre.premiere) -> Fault:
    """A fault of the first sale of a show, decided and over."""
    trouble[show, "hall"] = [Refused("no")]
    with app.dispatcher():
        undone(app.start(flow, show))
    return app.faults()[0]


def write_tree(app: aft.Aft, tree: str, revision: int) -> None:
    """Put a row among the rules, past everything that checks them."""
    flow, on, activity = KEY
    with app.store.write() as connection:
        rows.begin_edit(connection, app.namespace)
        values = {"flow": flow, "exception": on.value, "activity": activity, "made_by": "a hand", "made_at": now()}
        connection.execute(insert(rule_trees).values(namespace=app.namespace, revision=revision, tree=tree, **values))


def test_a_rule_that_is_taught_while_a_run_waits_decides_about_it(setup: Setup, show: str) -> None:
    editor, worker = setup.app(), setup.app()
    with worker.dispatcher():
        fault = failed(editor, f"{show}-0")
        run = worker.submit(theatre.premiere, show)
        stops(run, Status.WAITING)
        editor.rules.add_exlet(aft.Exlet("give_away", [do.complete(0)]))
        editor.rules.add(editor.rules.propose(fault.id, "fault.name == 'Refused'", "give_away"))
        in_force(editor, worker)
        trouble[show, "tickets"] = [Refused("no")]
        run.signal("word")
        assert run.result(60) == [10, 0]


def test_a_rule_is_in_force_at_once_in_the_process_that_taught_it(setup: Setup, show: str) -> None:
    app = setup.app()
    with app.dispatcher():
        fault = failed(app, f"{show}-0")
        app.rule_cache.current()  # looked at a moment ago
        app.rules.add_exlet(aft.Exlet("give_away", [do.complete(0)]))
        app.rules.add(app.rules.propose(fault.id, "fault.name == 'Refused'", "give_away"))
        with app.store.read() as connection:
            assert app.rule_cache.current().version == rows.version(connection, app.namespace)
        assert aft.Exlet("give_away", [do.complete(0)]) in app.rule_cache.current().exlets.values()


@pytest.mark.parametrize("bad", ["no JSON", "{}", '{"root": 1, "nodes": {"1": {"id": 1}}}', "[" * 100_000])
def test_a_tree_that_cannot_be_read_leaves_the_last_good_one_in_force(setup: Setup, show: str, bad: str) -> None:
    app = setup.app()
    heard = listen(app)
    teach(app, theatre.premiere, "fault", "true", do.complete(4))
    in_force(app)
    write_tree(app, bad, 2)
    in_force(app)
    assert [event.what for event in heard if isinstance(event, RulesRefused)] == ["theatre_premiere × fault × *"]
    trouble[show, "hall"] = [Refused("no")]
    with app.dispatcher():
        run = app.submit(theatre.premiere, show)
        stops(run, Status.WAITING)
        run.signal("word")
        assert run.result(60) == [4, 10]
    # Whoever looks after it goes back to the good one.
    assert app.rules.undo(KEY) == 3
    assert app.rules.tree(*KEY).nodes[1].exlet == "fault_taught"


def test_an_exlet_that_cannot_be_read_leaves_the_last_good_one_in_force(setup: Setup) -> None:
    app = setup.app()
    heard = listen(app)
    app.rules.add_exlet(aft.Exlet("give_away", [do.complete(0)]))
    in_force(app)
    with app.store.write() as connection:
        rows.begin_edit(connection, app.namespace)
        values = {"name": "give_away", "revision": 2, "exlet": "{}", "made_by": "a hand", "made_at": now()}
        connection.execute(insert(exlets).values(namespace=app.namespace, **values))
    in_force(app)
    assert app.rule_cache.current().exlets["give_away"].steps == (do.complete(0),)
    assert [event.what for event in heard if isinstance(event, RulesRefused)] == ["exlet 'give_away'"]


def test_the_second_of_two_editors_is_told(setup: Setup, show: str) -> None:
    one, other = setup.app(), setup.app()
    fault = failed(one, show)
    one.rules.add_exlet(aft.Exlet("give_away", [do.complete(0)]))
    proposals = [
        app.rules.propose(fault.id, condition, "give_away", by=by)
        for app, condition, by in ((one, "true", "Ann"), (other, "fault.name == 'Refused'", "Bob"))
    ]
    assert one.rules.add(proposals[0]) == 1
    with pytest.raises(aft.RuleRefused, match="has changed since you looked at revision 0: revision 1 by Ann"):
        other.rules.add(proposals[1])
    assert [revision.made_by for revision in other.rules.history()] == ["Ann"]


def test_an_edit_is_undone_and_everything_is_kept(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.premiere, "fault", "true", do.complete(4))
    assert app.rules.undo(KEY, by="Ann") == 2
    in_force(app)
    trouble[show, "hall"] = [Refused("no")]
    with app.dispatcher():
        undone(app.start(theatre.premiere, show))
    assert ledger[show] == ["hall 1!"]
    assert [(one.number, one.made_by == "Ann") for one in app.rules.history(KEY)] == [(2, True), (1, False)]
    assert app.rules.undo(KEY) == 3
    assert app.rules.tree(*KEY).nodes[1].condition == "true"


def test_a_rule_must_not_take_the_case_of_another_unless_that_is_accepted(setup: Setup, show: str) -> None:
    app = setup.app()
    first, second = failed(app, f"{show}-1"), failed(app, f"{show}-2")
    for name in ("give_away", "look"):
        app.rules.add_exlet(aft.Exlet(name, [do.park(name)]))
    app.rules.add(app.rules.propose(first.id, "fault.name == 'Refused'", "give_away"))
    with pytest.raises(aft.RuleRefused):
        app.rules.propose(second.id, "fault.name == 'Busy'", "look")  # not even its own case
    taking = app.rules.propose(second.id, "fault.text == 'no'", "look")
    with pytest.raises(aft.RuleRefused, match="cornerstone of rule 1"):
        app.rules.add(taking)
    narrower = app.rules.propose(second.id, f"activity.args.show == '{show}-2'", "look")
    assert narrower.conflicts == ()
    assert app.rules.add(taking, accept=True) == 2


def test_a_preview_counts_what_would_be_decided_otherwise(setup: Setup, show: str) -> None:
    app = setup.app()
    faults = [failed(app, f"{show}-{number}") for number in range(3)]
    failed(app, f"{show}-other", theatre.evening)
    with app.dispatcher():
        undone(app.start(theatre.hiss, show))  # nobody decides about what a flow itself raises
    app.rules.add_exlet(aft.Exlet("look", [do.park("look")]))
    proposal = app.rules.propose(faults[1].id, f"activity.args.show != '{show}-0'", "look", scope="flow")
    preview = app.rules.preview(proposal.tree)
    assert preview.examined == 3
    assert {change.fault.id: (change.before, change.after) for change in preview.changes} == {
        fault.id: ("unwind", "look") for fault in faults[1:]
    }
    everywhere = app.rules.propose(faults[1].id, "true", "look", scope="all")
    assert (everywhere.tree.flow, app.rules.preview(everywhere.tree).examined) == ("*", 4)


def test_a_change_is_in_force_within_a_second_of_the_last_look(setup: Setup) -> None:
    app, clock = setup.app(), HandClock()
    kept = RuleCache(app.store, app.namespace, clock, Telemetry())
    assert kept.current().version == 0
    teach(app, theatre.premiere, "fault", "true", do.complete(4))
    clock.passed = 1.0
    assert kept.current().version == 1


def test_a_change_that_comes_while_somebody_looks_is_not_taken_for_seen(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, clock, look = setup.app(), HandClock(), rows.version
    kept = RuleCache(app.store, app.namespace, clock, Telemetry())

    def taught_just_after(connection: Connection, namespace: str) -> int:
        monkeypatch.setattr(rows, "version", look)
        seen = look(connection, namespace)
        teach(app, theatre.premiere, "fault", "true", do.complete(4))
        clock.passed = 2.0  # as long as the look took
        return seen

    monkeypatch.setattr(rows, "version", taught_just_after)
    assert kept.current().version == 0
    assert kept.current().version == 1


def test_nobody_goes_on_with_rules_that_are_too_old_while_another_looks(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, clock, look = setup.app(), HandClock(), rows.version
    kept = RuleCache(app.store, app.namespace, clock, Telemetry())
    assert kept.current().version == 0
    teach(app, theatre.premiere, "fault", "true", do.complete(4))
    clock.passed = rule_cache.TOO_OLD
    begun, go_on = threading.Event(), threading.Event()

    def slowly(connection: Connection, namespace: str) -> int:
        begun.set()
        assert go_on.wait(60)
        return look(connection, namespace)

    monkeypatch.setattr(rows, "version", slowly)
    with ThreadPoolExecutor(2) as pool:
        looks = pool.submit(kept.current)
        assert begun.wait(60)
        asks = pool.submit(kept.current)
        wait([asks], timeout=0.3)  # one that does not wait for the other has its answer by now
        go_on.set()
        assert (looks.result(60).version, asks.result(60).version) == (1, 1)


def test_whoever_asks_first_waits_for_the_rules(setup: Setup) -> None:
    """A process that has just begun must not go on as if nobody had taught anything."""
    app = setup.app()
    teach(app, theatre.premiere, "fault", "true", do.complete(4))
    fresh = RuleCache(app.store, app.namespace, SystemClock(), Telemetry())
    with ThreadPoolExecutor(4) as pool:
        found: list[RuleSet] = [asked.result(60) for asked in [pool.submit(fresh.current) for _ in range(4)]]
    assert {rules.version for rules in found} == {1}
    assert rule_cache.FRESH <= 0.5
