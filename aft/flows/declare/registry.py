"""The flows and activities that this process has code for: flows by name and version, activities by name.

Decorators add to ``declared`` when a module is imported. The same function may be declared again (a module that is
reloaded); another function under a name that is taken is a DefinitionError.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from aft.compensation.registry import Compensator
from aft.errors import DefinitionError, UnknownFlow

if TYPE_CHECKING:
    from aft.flows.declare.activity import Activity
    from aft.flows.declare.flow import Flow


class Registry:
    """Flows and activities by name."""

    def __init__(self) -> None:
        self._flows: dict[tuple[str, int], Flow[Any, Any]] = {}
        self._activities: dict[str, Activity[Any, Any]] = {}

    def add_flow(self, flow: Flow[Any, Any]) -> None:
        """Declare a flow."""
        taken = self._flows.get((flow.name, flow.version))
        if taken is not None:
            _refuse_other(f"flow {flow.name!r} version {flow.version}", taken.fn, flow.fn)
        self._flows[flow.name, flow.version] = flow

    def add_activity(self, activity: Activity[Any, Any]) -> None:
        """Declare an activity; one function is one activity, so an earlier declaration of it is replaced."""
        taken = self._activities.get(activity.name)
        if taken is not None:
            _refuse_other(f"activity {activity.name!r}", taken.fn, activity.fn)
        self._activities = {name: other for name, other in self._activities.items() if other.fn is not activity.fn}
        self._activities[activity.name] = activity

    @property
    def known(self) -> list[tuple[str, int]]:
        """The flows that this process has code for."""
        return list(self._flows)

    @property
    def waits(self) -> set[timedelta]:
        """Every wait that an activity declares."""
        return {
            wait
            for activity in self._activities.values()
            if activity.policy.ladder is not None
            for wait in activity.policy.ladder.waits
        }

    @property
    def compensators(self) -> list[tuple[str, str]]:
        """The activities that this process can undo, each with the name of its compensator."""
        return [
            (name, activity.compensator.name)
            for name, activity in self._activities.items()
            if activity.compensator is not None
        ]

    def flow(self, name: str, version: int | None = None) -> Flow[Any, Any]:
        """Return a flow, the newest version if none is named, or raise UnknownFlow."""
        versions = [key for key in self._flows if key[0] == name and version in (None, key[1])]
        if not versions and name in self._activities:
            raise UnknownFlow(f"{name!r} is an activity, not a flow; a run is of a flow, which calls activities")
        if not versions:
            raise UnknownFlow(_unknown(name, version, self._flows.keys()))
        return self._flows[max(versions)]

    def activity(self, name: str) -> Activity[Any, Any] | None:
        """Return an activity, or None."""
        return self._activities.get(name)

    def compensator(self, activity: str, name: str) -> Compensator | None:
        """Return the compensator that a stored frame names, or None if this code does not have it."""
        found = self._activities.get(activity)
        if found is None or found.compensator is None or found.compensator.name != name:
            return None
        return found.compensator

    def check(self) -> None:
        """Raise DefinitionError if any declaration cannot be stored; called when a process starts."""
        for flow in self._flows.values():
            flow.check()
        for activity in self._activities.values():
            activity.check()


#: What this process's modules have declared.
declared = Registry()


def _refuse_other(what: str, taken: Callable[..., Any], new: Callable[..., Any]) -> None:
    if (taken.__module__, taken.__qualname__) != (new.__module__, new.__qualname__):
        raise DefinitionError(
            f"{what} is declared twice: by {taken.__module__}.{taken.__qualname__} and by "
            f"{new.__module__}.{new.__qualname__}; give one of them another name= in its lowest decorator"
        )


def _unknown(name: str, version: int | None, known: Collection[tuple[str, int]]) -> str:
    shown = f"{name!r}" if version is None else f"{name!r} version {version}"
    names = sorted({known_name for known_name, _ in known})
    near = difflib.get_close_matches(name, names, n=1)
    if name in names:
        versions = sorted(number for known_name, number in known if known_name == name)
        hint = f"this process knows version {', '.join(map(str, versions))} of it"
    elif near:
        hint = f"did you mean {near[0]!r}?"
    elif names:
        hint = f"this process knows {', '.join(map(repr, names))}"
    else:
        hint = "this process has imported no flow; name its module"
    return f"no flow {shown} is registered here; {hint}"


def flow_names(known: Registry) -> list[str]:
    """Return the flows of a registry as ``name@version``."""
    return [f"{name}@{version}" for name, version in known.known]
