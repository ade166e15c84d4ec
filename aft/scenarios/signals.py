"""The signals that a scenario sends to its run, and when: its ``[[signal]]`` tables, in order.

=========  =========================================================================================================
``name``   the signal; the flow must declare it, if it declares any
``value``  what is sent, as the flow declares it
``when``   ``"awaited"``, the default: the run waits for it; ``"at once"``: right after the signal before, or right
           after the run was submitted, whatever the run is doing
``after``  an activity that must be done by then, if the run waits for the same signal more than once
``key``    a second signal with the same key is dropped
``kill``   true: the worker gets SIGKILL first
=========  =========================================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from aft.flows.declare.flow import Flow, declared_signal
from aft.scenarios.example import hint

_KEYS = ("name", "value", "when", "after", "key", "kill")


class When(StrEnum):
    """When a signal is sent; one after the other, in any case."""

    AWAITED = "awaited"
    AT_ONCE = "at once"


@dataclass(frozen=True, slots=True)
class ScenarioSignal:
    """One signal of a scenario."""

    name: str
    value: Any
    when: When
    after: str | None
    key: str | None
    kill: bool


def read_signal(table: Mapping[str, Any]) -> ScenarioSignal:
    """Read one ``[[signal]]`` table. Raises KeyError, ValueError."""
    for key in table:
        if key not in _KEYS:
            raise ValueError(f"a signal has no {key!r}; {hint(key, _KEYS)}")
    when = table.get("when", When.AWAITED)
    if when not in [*When]:
        raise ValueError(f"no signal is sent {when!r}; {hint(when, [*map(str, When)])}")
    return ScenarioSignal(
        name=table["name"],
        value=table.get("value"),
        when=When(when),
        after=table.get("after"),
        key=table.get("key"),
        kill=table.get("kill", False),
    )


def value_of(signal: ScenarioSignal, flow: Flow[..., Any]) -> Any:
    """Return what a signal sends, as the flow declares it. Raises CodecError, DefinitionError."""
    if not flow.signals:
        return signal.value
    # TOML has dates and times, which JSON lacks: there they are texts.
    return declared_signal(flow.name, flow.signals, signal.name).decode(json.dumps(signal.value, default=str))
