"""The options before the command: where to connect to, overriding the environment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """The options of ``aft`` itself; None where the environment decides."""

    database: str | None = None
    broker: str | None = None
    namespace: str | None = None

    @property
    def named(self) -> dict[str, str]:
        """The options that were given, by the setting that each overrides."""
        pairs = {"database_url": "--database", "broker_url": "--broker", "namespace": "--namespace"}
        values = (self.database, self.broker, self.namespace)
        return {
            field: option for (field, option), value in zip(pairs.items(), values, strict=True) if value is not None
        }
