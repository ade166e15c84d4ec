"""Does the model of a cluster hold? Against itself, against theory, and against what was seen on one machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from bench.scale import costs, model, plots, report, scenarios, validation
from bench.scale.costs import Costs
from bench.scale.erlang import mean_wait, must_wait, wait_within
from bench.scale.events import Simulation, births
from bench.scale.fluid import Fluid
from bench.scale.model import Cluster, Load
from bench.scale.shape import LADDER, shape_of
from bench.scale.validation import SMALL


@pytest.fixture
def measured() -> Costs:
    return costs.load()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_both_simulations_agree_within_five_percent_through_an_outage(seed: int) -> None:
    found = validation.agreement(seed)

    assert {one.what: one.apart for one in found if one.apart > report.TOLERANCE} == {}


def test_the_exact_simulation_agrees_with_erlang() -> None:
    exact, formula = validation.erlang(1)

    assert exact == pytest.approx(formula, rel=0.1)


def test_the_model_predicts_the_measured_machine_within_a_factor_of_two(measured: Costs) -> None:
    for seen in measured.seen:
        guess = model.predicted(measured, seen.processes, seen.activities, seen.cores)
        assert 1 / report.FACTOR < guess / seen.runs_a_second < report.FACTOR


def test_no_run_is_lost_or_made_up_in_the_fluid() -> None:
    fluid = Fluid(SMALL, 3)
    fluid.hit(np.array([100.0, 1_000.0, 0.0]))
    made = 1_100.0
    for second in range(300):
        arrivals = np.array([50.0, 150.0, 250.0]) if second < 200 else np.zeros(3)
        made += float(arrivals.sum())
        fluid.advance(arrivals, 1.0 if second < 100 else 0.0, 0.05)
        ended = float(np.array(fluid.trace.ended).sum())
        assert ended + fluid.trace.given_up + fluid.inside == pytest.approx(made)


def test_no_run_is_lost_in_the_exact_simulation() -> None:
    born = births(100.0, 20.0, 1)
    outcome = Simulation(SMALL, lambda at, failures: failures < 2 or at < 30).run(born)

    assert len(outcome.ended) + outcome.given_up == len(born)


def test_a_run_fails_once_more_than_its_ladder_has_tries_before_it_is_given_up() -> None:
    outcome = Simulation(replace(SMALL, ladder=LADDER), lambda at, failures: True).run([0.0])

    assert (outcome.given_up, outcome.attempts) == (1, 1 + len(LADDER))


def test_what_was_ready_first_goes_first() -> None:
    fluid = Fluid(SMALL, 1)
    fluid.hit(np.array([10_000.0]))
    for _ in range(20):
        fluid.advance(np.array([10.0]), 0.0, 0.0)

    assert float(np.array(fluid.trace.ended)[:, 1].sum()) == 0.0  # all behind those that stood there


def test_a_delay_queue_that_is_too_slow_costs_stale_messages_not_time() -> None:
    quick, slow = (
        Fluid(replace(SMALL, dispatchers=1_000, cores=1e3, delays_a_second=limit), 1) for limit in (1e9, 10.0)
    )
    for fluid in (quick, slow):
        fluid.hit(np.array([1_000.0]))
        for second in range(30):
            fluid.advance(np.zeros(1), 1.0 if second == 0 else 0.0, 0.0)

    assert quick.trace.stale == 0
    assert slow.trace.stale > 900
    assert slow.hit_left == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize(("servers", "offered", "share"), [(1, 0.5, 0.5), (2, 1.0, 1 / 3), (3, 5.0, 1.0)])
def test_erlang_knows_the_textbook_cases(servers: int, offered: float, share: float) -> None:
    assert must_wait(servers, offered) == pytest.approx(share)


def test_the_wait_of_a_single_server_is_known() -> None:
    assert mean_wait(1, 1.0, 0.5) == pytest.approx(1.0)
    assert wait_within(0.5, 1, 1.0, 0.5) == 0.0
    assert wait_within(0.99, 1, 1.0, 0.5) == pytest.approx(2 * np.log(50))


def test_more_of_the_fullest_resource_carries_more(measured: Costs) -> None:
    few, which = model.most(measured, Load(1), Cluster(4))
    more, _ = model.most(measured, Load(1), Cluster(8))

    assert which.startswith("dispatchers: ")  # their slots or their CPU, as quick as a core is
    assert more == pytest.approx(2 * few, rel=0.01)


def test_polling_of_every_role_grows_with_the_square_of_the_dispatchers(measured: Costs) -> None:
    one, ten = (model.database_cpu(measured, Load(0.0), Cluster(size))["looking who is dead"] for size in (10, 100))

    assert ten == pytest.approx(100 * one)


def test_a_planned_cluster_is_nowhere_too_full(measured: Costs) -> None:
    for _, load, cluster in scenarios.plans(measured):
        for use in model.uses(measured, load, cluster):
            assert use.share <= cluster.machines.full * 1.02, (use, cluster)


def test_a_shard_of_the_simulated_cluster_carries_what_the_model_says(measured: Costs) -> None:
    cluster = scenarios.big(measured)
    rate, _ = model.most(measured, Load(1), cluster)
    shape = shape_of(measured, Load(rate), cluster)

    assert shape.capacity() * cluster.shards == pytest.approx(rate / cluster.machines.full, rel=0.25)


def test_costs_survive_being_written(measured: Costs, tmp_path: Path) -> None:
    costs.save(measured, tmp_path / "costs.json")

    assert costs.load(tmp_path / "costs.json") == measured
    assert measured.origin["made_by"] == "python -m bench.scale.measure"


def test_the_same_seed_gives_the_same_figures(measured: Costs) -> None:
    cluster = scenarios.big(measured)
    first, second = (scenarios.outage(measured, cluster, 1.0, 0.35, seed=7, hit=1_000_000) for _ in range(2))

    assert first == second
    assert scenarios.latencies(measured, 7)[0] == scenarios.latencies(measured, 7)[0]


def test_plots_are_well_formed() -> None:
    axis = plots.Axis("x & y", 1, 1_000, log=True)
    drawn = plots.draw("a < b", axis, plots.Axis("z", 0, 10), [plots.Line("one", [(1, 1), (1_000, 9)])])

    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert axis.ticks() == [1, 10, 100, 1_000]
