"""No ``repr`` of aft's objects shows what users store: logs, tracebacks and debuggers print them."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re

import pytest

import aft

#: Names of fields that hold what users store.
STORED = {
    "args", "body", "case", "cornerstone", "facts", "kwargs", "message", "payload", "result", "results", "tags", "text",
    "traceback", "url", "value", "values",
}  # fmt: skip
#: Types that show what they hold.
SHOWN = re.compile(r"\b(?:str|bytes|Any|Facts|Mapping|dict|object)\b")
#: What has such a name and holds something else.
HARMLESS = {
    "aft.brokers.embedded.rows.TakenMessage.body": "a message holds ids only, and nothing can be hidden of a tuple",
    "aft.cli.commands.checks.Setting.value": "it is printed, with secrets hidden",
    "aft.rules.cel.bounds.Token.text": "a word of a condition",
    "aft.runs.new_runs.NewRunWrite.message": "a message holds ids only",
    "aft.scenarios.signals.ScenarioSignal.value": "it stands in the file of a scenario",
}


def fields_shown() -> dict[str, str]:
    """Return the type of each field that a generated repr of aft shows."""
    found: dict[str, str] = {}
    for module in pkgutil.walk_packages(aft.__path__, "aft."):
        if module.name.endswith("__main__"):
            continue
        for name, made in vars(importlib.import_module(module.name)).items():
            if inspect.isclass(made) and made.__module__ == module.name:
                shown = shown_of(made)
                found |= {f"{module.name}.{name}.{field}": kind for field, kind in shown.items()}
    return found


def shown_of(made: type) -> dict[str, str]:
    if dataclasses.is_dataclass(made):
        generated = made.__dict__["__dataclass_params__"].repr if "__dataclass_params__" in made.__dict__ else False
        return {each.name: str(each.type) for each in dataclasses.fields(made) if each.repr and generated}
    if issubclass(made, tuple) and hasattr(made, "_fields"):
        return {name: str(kind) for name, kind in made.__annotations__.items()}
    return {}


@pytest.fixture(scope="module")
def shown() -> dict[str, str]:
    return fields_shown()


def test_no_repr_shows_a_field_of_stored_values(shown: dict[str, str]) -> None:
    stored = {name for name, kind in shown.items() if name.rpartition(".")[2] in STORED and SHOWN.search(kind)}
    assert sorted(stored - HARMLESS.keys()) == [], "use field(repr=False)"


def test_what_is_called_harmless_is_there(shown: dict[str, str]) -> None:
    assert HARMLESS.keys() - shown.keys() == set()
