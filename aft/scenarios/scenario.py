"""A scenario: its setup, and how it must end; read from a data file and checked before anything is played."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from aft import durations
from aft.errors import CodecError, DefinitionError
from aft.flows.declare.flow import Flow
from aft.rules.toml.read import RuleDocument
from aft.runs.states import Status
from aft.scenarios.example import ExampleError, hint
from aft.scenarios.rules import RuleToTeach, read_rule_to_teach, read_rules
from aft.scenarios.signals import ScenarioSignal, When, read_signal, value_of

#: The value of ``tables`` if not one row may differ from before the run.
AS_BEFORE = "as before"

_EXPECTED = ("run", "tables", "done", "undone", "faults", "dropped", "notices")


@dataclass(frozen=True, slots=True)
class Expected:
    """How a scenario must end: the run, the example's tables, and what happened on the way, in order."""

    run: Status
    tables: str
    done: tuple[str, ...]  #: activities that completed
    undone: tuple[str, ...]  #: compensators that ran
    faults: tuple[str, ...]  #: as ``check.format_fault`` formats them
    dropped: tuple[str, ...]  #: signals whose key had been used
    notices: tuple[str, ...]  #: notices that are sent outside


@dataclass(frozen=True, slots=True)
class Scenario:
    """One data file. ``scene`` is all of it: what the example itself reads. ``kill``: a hanging worker gets SIGKILL.

    ``signals`` are the signals that are sent to the run, in order; ``deadline`` is how long it may take. ``rules`` are
    in force when it begins; ``to_teach`` are taught while it waits.
    """

    name: str
    title: str
    shows: str
    kill: bool
    deadline: timedelta | None
    signals: tuple[ScenarioSignal, ...]
    rules: RuleDocument
    to_teach: tuple[RuleToTeach, ...]
    scene: Mapping[str, Any]
    expected: Expected

    @property
    def kills(self) -> bool:
        """Whether a worker is killed in it."""
        return self.kill or any(signal.kill for signal in self.signals)


def read_scenarios(directory: Path) -> list[Scenario]:
    """Read an example's scenarios, in the order of their files' names. Raises ExampleError."""
    found = [_read(path) for path in sorted((directory / "scenarios").glob("*.toml"))]
    if not found:
        raise ExampleError(f"{directory / 'scenarios'} holds no scenario")
    earlier: list[str] = []
    for scenario in found:
        for rule in scenario.to_teach:
            if rule.scenario not in earlier:
                raise ExampleError(
                    f"scenario {scenario.name!r} learns from {rule.scenario!r}, which is not played before it; "
                    f"{hint(rule.scenario, earlier)}"
                )
        earlier.append(scenario.name)
    return found


def choose(scenarios: Sequence[Scenario], names: Sequence[str]) -> list[Scenario]:
    """Return the scenarios with these names, in their own order, and those they learn from; all if none is named.

    Raises ExampleError.
    """
    known = [scenario.name for scenario in scenarios]
    for name in names:
        if name not in known:
            raise ExampleError(f"no scenario {name!r}; {hint(name, known)}")
    wanted = set(names or known)
    for scenario in reversed(scenarios):
        if scenario.name in wanted:
            wanted |= {rule.scenario for rule in scenario.to_teach}
    return [scenario for scenario in scenarios if scenario.name in wanted]


def check_cues(flow: Flow[..., Any], scenarios: Sequence[Scenario]) -> None:
    """Raise ExampleError if the flow would refuse a signal that a scenario sends."""
    for scenario in scenarios:
        for signal in scenario.signals:
            try:
                value_of(signal, flow)
            except (CodecError, DefinitionError) as error:
                raise ExampleError(f"scenario {scenario.name!r}: signal {signal.name!r}: {error}") from error


def _read(path: Path) -> Scenario:
    try:
        scene = tomllib.loads(path.read_text(encoding="utf-8"))
        signals = tuple(read_signal(table) for table in scene.get("signal", []))
        return Scenario(
            # The number before the name is for the order only.
            name=re.sub(r"^\d+-", "", path.stem),
            title=scene["title"],
            shows=scene["shows"],
            kill=scene.get("kill", False),
            deadline=durations.parse(scene["deadline"]) if "deadline" in scene else None,
            signals=signals,
            rules=read_rules(path.parent.parent, scene.get("rules")),
            to_teach=_read_rules_to_teach(scene, signals),
            scene=scene,
            expected=_expected(scene["expect"]),
        )
    except KeyError as missing:
        raise ExampleError(f"{path}: it says nothing about {missing}") from None
    except ValueError as error:
        raise ExampleError(f"{path}: {error}") from None


def _read_rules_to_teach(scene: Mapping[str, Any], signals: Sequence[ScenarioSignal]) -> tuple[RuleToTeach, ...]:
    found = tuple(read_rule_to_teach(table) for table in scene.get("teach", []))
    awaited = [signal.name for signal in signals if signal.when is When.AWAITED]
    for rule in found:
        if rule.before not in awaited:
            raise ValueError(f"nothing is taught before {rule.before!r}: no signal of that name is awaited")
    return found


def _expected(table: Mapping[str, Any]) -> Expected:
    for key in table:
        if key not in _EXPECTED:
            raise ValueError(f"nothing can be expected of {key!r}; {hint(key, _EXPECTED)}")
    return Expected(
        run=Status(table["run"]),
        tables=table["tables"],
        done=tuple(table.get("done", ())),
        undone=tuple(table.get("undone", ())),
        faults=tuple(table.get("faults", ())),
        dropped=tuple(table.get("dropped", ())),
        notices=tuple(table.get("notices", ())),
    )
