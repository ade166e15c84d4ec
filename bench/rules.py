"""Measures the cost of rules: faults per second with and without rules, and the time of one choice.

``python -m bench.rules [--runs N] [--rounds N] [--database URL] [--broker URL]``: both ways in turn, in one run; the
figures are ratios and medians. Every activity fails once and is tried again after the shortest wait.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import aft
from aft.rules.rule_types import RuleType
from aft.rules.trees.tree import CompiledTree, Node, Tree
from aft.telemetry import Event, RunEnded

#: Rules of the tree that is asked, and how many of them are on the way of each fault.
RULES, WAY = 1_000, 20


@aft.activity(levels=["1ms"])
def fail_once(number: int) -> int:
    """Fail at the first attempt."""
    if aft.current().attempt == 1:
        raise ConnectionError("not now")
    return number


@aft.flow
def failing(number: int) -> int:
    """One activity that fails once."""
    return fail_once(number)


def tree(flow: str, activity: str) -> Tree:
    """Make a tree of many rules; a fault meets a few, and the last one chooses aft's own decision."""
    nodes = {1: Node(1, "true", "ladder", refined=2)}
    for number in range(2, RULES + 1):
        condition = f"activity.args.number < 0 || activity.attempts > {number + 1_000}"
        nodes[number] = Node(number, condition, "park")
    for number in range(2, WAY):
        nodes[number] = replace(nodes[number], otherwise=number + 1)
    # The others lie where no case of this benchmark comes.
    above = 2
    for number in range(WAY + 1, RULES + 1):
        nodes[above] = replace(nodes[above], refined=number)
        above = number
    return Tree(flow, RuleType.FAULT, activity, 0, nodes, 1)


def choice() -> None:
    """Measure how long a choice takes, and print it."""
    facts = {"activity.args": {"number": 1}, "activity.attempts": 1}
    broad = CompiledTree(tree("failing", "fail_once"), {})
    chain = {
        number: Node(
            number, f"activity.attempts > {number + 1_000}", "park", None, number + 1 if number < RULES else None
        )
        for number in range(1, RULES + 1)
    }
    long = CompiledTree(Tree("failing", RuleType.FAULT, "fail_once", 1, chain, 1), {})
    for name, asked, repeat in ((f"{RULES} rules, {WAY} on the way", broad, 200), (f"a chain of {RULES}", long, 20)):
        asked.check()
        times = [_timed(lambda asked=asked: asked.walk(facts)) for _ in range(repeat)]  # type: ignore[misc]
        print(f"{name}: median {statistics.median(times) * 1e6:,.0f} µs, best {min(times) * 1e6:,.0f} µs")


def faults_a_second(app: aft.Aft, runs: int) -> float:
    """Drain this many runs that fail once each; return the faults per second."""
    ended, all_ended = [0], threading.Event()

    def count(event: Event) -> None:
        if isinstance(event, RunEnded):
            ended[0] += 1
            if ended[0] >= runs:
                all_ended.set()

    for number in range(runs):
        app.submit(failing, number)
    forget = app.telemetry.subscribe(count)
    began = time.perf_counter()
    with app.dispatcher():
        if not all_ended.wait(600):
            raise TimeoutError("runs have not ended in ten minutes")
        seconds = time.perf_counter() - began
    forget()
    return runs / seconds


def _timed(what: Callable[[], object]) -> float:
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--database", default=None, help="a database of its own; a new SQLite file")
    parser.add_argument("--broker", default=None)
    given = parser.parse_args()
    choice()
    with tempfile.TemporaryDirectory() as place:
        database = given.database or f"sqlite:///{Path(place) / 'bench.db'}"
        with aft.Aft(database=database, broker=given.broker, namespace="bench") as app:
            ratios = []
            for round_ in range(given.rounds):
                without = faults_a_second(app, given.runs)
                app.rules.save_all([replace(tree("failing", "fail_once"), revision=2 * round_)], [])
                time.sleep(1.0)
                with_rules = faults_a_second(app, given.runs)
                app.rules.save_all([replace(Tree("failing", RuleType.FAULT, "fail_once"), revision=2 * round_ + 1)], [])
                time.sleep(1.0)
                ratios.append(with_rules / without)
                print(f"round {round_ + 1}: {without:,.0f} faults/s without, {with_rules:,.0f} with: {ratios[-1]:.2f}")
            spread = f"{min(ratios):.2f}–{max(ratios):.2f}"
            print(f"with rules against without: median {statistics.median(ratios):.2f}, {spread}")


if __name__ == "__main__":
    main()
