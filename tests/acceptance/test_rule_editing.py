"""People edit rules, and try them on what has been."""

from __future__ import annotations

import pytest

import aft
from aft import do
from aft.rules.rule_types import RuleType
from aft.rules.trees import rows
from tests.acceptance import theatre
from tests.acceptance.revue import refuse, revue
from tests.acceptance.theatre import teach, undone
from tests.setups import Setup
from tests.storing import Stage
from tests.world import Busy, Refused, trouble

#: On one set-up: these are about what is decided, not about where it is kept.
pytestmark = pytest.mark.parametrize("setup", ["sqlite"], indirect=True)


# Saving -------------------------------------------------------------------------------------------------------------


def test_who_starts_with_a_tree_that_cannot_be_read_goes_by_the_last_that_can(setup: Setup, show: str) -> None:
    teach(setup.app(), theatre.evening, "fault", "true", do.complete(4))
    fresh = setup.app()
    with fresh.store.write() as connection:
        rows.begin_edit(connection, fresh.namespace)
        rows.add_tree(
            connection, fresh.namespace, (theatre.evening.name, RuleType.FAULT, "*"), "no JSON", "a hand", None, 1
        )
    refuse(show)
    with fresh.dispatcher():
        assert fresh.start(theatre.evening, show).result(60) == [10, 4, 10]


def test_an_exlet_is_refused_that_does_not_fit_the_rules_that_choose_it(setup: Setup) -> None:
    app = setup.app()
    teach(app, revue, "run_pre", "true", do.park("look"))
    with pytest.raises(aft.RuleRefused, match="rule 1 of revue × run_pre chooses it"):
        app.rules.add_exlet(aft.Exlet("run_pre_taught", [do.restart()]))
    with pytest.raises(aft.RuleRefused, match="rule 1 of revue × run_pre chooses it"):
        app.rules.save_all([], [aft.Exlet("run_pre_taught", [do.restart()])])
    assert app.rules.exlet("run_pre_taught").steps == (do.park("look"),)


def test_the_second_of_two_editors_of_an_exlet_is_told(setup: Setup) -> None:
    app = setup.app()
    assert app.rules.add_exlet(aft.Exlet("look", [do.park("look")]), by="Ann", base=0) == 1
    assert app.rules.add_exlet(aft.Exlet("look", [do.park("look twice")]), by="Bob", base=1) == 2
    with pytest.raises(aft.RuleRefused, match="changed since you looked at revision 1: revision 2 by Bob"):
        app.rules.add_exlet(aft.Exlet("look", [do.park("look away")]), by="Ann", base=1)
    with pytest.raises(aft.RuleRefused, match="changed since you looked at revision 1: revision 2 by Bob"):
        app.rules.save_all([], [aft.Exlet("look", [do.park("look away")])], by="Ann", bases={"look": 1})
    assert app.rules.exlet("look").steps == (do.park("look twice"),)


# What rules saw ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("taught", [False, True])
def test_a_rule_is_tried_on_a_fault_as_its_run_was_then_not_as_it_is_now(setup: Setup, show: str, taught: bool) -> None:
    app = setup.app()
    if taught:
        teach(app, theatre.evening, "fault", "fault.name == 'Busy'", do.set(tags={"stage": "late"}), do.unwind())
    trouble[show, "hall"] = [Busy("wait") if taught else Refused("no")]
    with app.dispatcher():
        run = app.submit(theatre.evening.options(tags={"stage": "early"}), show)
        undone(run)
    if not taught:
        Stage(app.store, app.namespace).change(run.id, tags='{"stage": "late"}')
    assert run.row.tags == {"stage": "late"}
    (fault,) = app.faults()
    trial = app.rules.test(fault.id, "run.status == 'recovering' && run.tags.stage == 'early'")
    assert trial.holds, trial.facts
    proposal = app.rules.propose(fault.id, "run.tags.stage == 'early'", "park")
    assert app.rules.preview(proposal.tree).changes


def test_and_one_about_a_constraint_as_it_was_when_that_was_violated(setup: Setup, show: str) -> None:
    app = setup.app()
    teach(app, theatre.evening, "activity_pre", "activity.args.what == 'hall'", do.fail("closed"))
    with app.dispatcher():
        run = app.submit(theatre.evening.options(tags={"stage": "early"}), show)
        undone(run)
    Stage(app.store, app.namespace).change(run.id, tags="{}")
    (fault,) = app.faults()
    assert app.rules.test(fault.id, "run.status == 'running' && run.tags.stage == 'early'").holds
