"""Which flows and activities a test sees: those of its own module, and of the modules that it imports or names.

A process of tests imports hundreds of modules. An app that knew the flows of all of them would bind hundreds of routing
keys on RabbitMQ for each test, and look for as many flows in each claim: most of the broker's time, for nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

from aft.flows.declare.registry import declared

#: Where modules of tests declare something.
_OURS = re.compile(r"\b(?:tests|examples|bench|chaos)(?:\.\w+)+")
_IMPORTS = re.compile(r"^\s*from ((?:tests|examples|bench|chaos)[\w.]*) import (\([^)]*\)|[^\n(]*)$", re.MULTILINE)


@contextmanager
def only_of(module: ModuleType) -> Iterator[None]:
    """Leave in the registry what a test module declares, imports or names, and what is declared meanwhile."""
    seen, flows, activities = reachable(module.__name__), declared._flows, declared._activities
    declared._flows = {key: flow for key, flow in flows.items() if flow.fn.__module__ in seen}
    declared._activities = {name: one for name, one in activities.items() if one.fn.__module__ in seen}
    try:
        yield
    finally:
        declared._flows = flows | declared._flows
        declared._activities = activities | declared._activities


@cache
def reachable(name: str) -> frozenset[str]:
    """Return the names of the modules that a module reaches by imports and by names in its text, itself included."""
    found, todo = {name}, [name]
    while todo:
        new = _named_in(todo.pop()) - found
        found |= new
        todo += new
    return frozenset(found)


def _named_in(name: str) -> set[str]:
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None) or Path(*name.split(".")).with_suffix(".py")
    if not Path(file).exists():
        return set()
    text = Path(file).read_text()
    imported = {f"{package}.{one}" for package, names in _IMPORTS.findall(text) for one in re.findall(r"\w+", names)}
    return set(_OURS.findall(text)) | imported
