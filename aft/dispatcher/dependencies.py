"""The services and settings that a process provides to everything that decides about faults."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from aft.clock import Clock
from aft.rules.trees.rule_cache import RuleCache
from aft.security.seal import Seal
from aft.store import Store
from aft.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class DispatcherDependencies:
    """The services and settings that the dispatcher's services share. Nothing in it knows the broker."""

    namespace: str
    store: Store
    clock: Clock
    telemetry: Telemetry
    #: The time that a message may take before timer and sweeper do without it.
    grace: timedelta
    #: The rules in force.
    rules: RuleCache
    #: Seals messages.
    seal: Seal
