"""Settings: read once from ``AFT_*`` variables or given in code, validated together, then frozen."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from aft import durations, names
from aft.errors import ConfigError
from aft.texts import format_value

#: Variables beginning with AFT_ that are not settings of a process.
_NOT_OURS = ("AFT_TEST_",)
#: Settings whose value is never shown.
_SECRETS = ("webhook_secret", "old_webhook_secret", "message_key", "old_message_key")

_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?|\[?[0-9A-Fa-f:.]+\]?")
#: Characters of a key.
LEAST_KEY = 16
#: Characters of a value in a message.
MOST_SHOWN = 200

Duration = Annotated[timedelta, BeforeValidator(durations.parse)]


class Settings(BaseSettings):
    """The settings of one process. Every field can be set by ``AFT_<FIELD>`` in upper case."""

    model_config = SettingsConfigDict(env_prefix="AFT_", frozen=True, extra="forbid", hide_input_in_errors=True)

    #: The database: ``sqlite:///file`` or ``postgresql+psycopg://user:password@host/database``.
    database_url: str = Field(default="sqlite:///aft.db", repr=False)
    #: ``embedded`` keeps the queues in the database; ``amqp://user:password@host/vhost`` is RabbitMQ.
    broker_url: str = Field(default="embedded", repr=False)
    #: One code base, one namespace: runs, queues and workers of different ones never meet.
    namespace: str = "aft"
    #: The ladder of an activity that declares none: ``wait*tries``, from the first level to the last.
    levels: str = "10s*3, 1m*3, 10m*3"
    #: Immediate retries, in the process, of an activity that declares none.
    immediate: int = Field(default=0, ge=0, le=100)
    #: How long a worker owns its runs without a heartbeat.
    lease: Duration = timedelta(seconds=30)
    #: How long the sweeper gives a message to arrive before it takes the run itself.
    grace: Duration = timedelta(seconds=5)
    #: How many runs one dispatcher process executes at a time.
    concurrency: int = Field(default=8, ge=1, le=1000)
    #: How many attempts that were given up and have not returned one process may have; at the limit it claims no run.
    most_abandoned: int = Field(default=100, ge=1, le=10_000)
    #: How many generations of children a run may have below it.
    most_depth: int = Field(default=50, ge=1, le=1000)
    #: How many children a run may start in one generation (``continue_as_new`` begins the next).
    most_children: int = Field(default=10_000, ge=1, le=1_000_000)
    #: How many runs of one family, a run with all that are below it, may be under way.
    most_family: int = Field(default=20_000, ge=1, le=1_000_000)
    #: RabbitMQ's kind of queue: ``quorum``, or ``classic`` where the broker is a single old node.
    queue_type: Literal["quorum", "classic"] = "quorum"
    #: Allow connections to a database or a broker on another machine without TLS that verifies the server.
    allow_insecure_transport: bool = False
    #: For broker users that may not declare queues: check that they exist, declare nothing.
    declare_passively: bool = False
    #: The secret that notices are signed with, so that receivers can verify the sender; without it they are not signed.
    webhook_secret: SecretStr | None = Field(default=None, repr=False)
    #: During a change of the secret: the old one, which notices are signed with as well.
    old_webhook_secret: SecretStr | None = Field(default=None, repr=False)
    #: Hosts that notices may be sent to, separated by commas; without it, every host that has a public address.
    webhook_hosts: str | None = None
    #: Names of fields whose texts are never shown, separated by commas, besides those that aft knows.
    hidden_names: str | None = None
    #: The key that messages are sealed with, of 16 characters or more: then those without a seal are refused.
    message_key: SecretStr | None = Field(default=None, repr=False)
    #: During a change of the key: the old one, whose seals are accepted, too.
    old_message_key: SecretStr | None = Field(default=None, repr=False)
    #: The URL to which a dispatcher sends a notice of each parked run; without it no notices are sent.
    notify_parked_url: str | None = Field(default=None, repr=False)

    @field_validator("notify_parked_url")
    @classmethod
    def _notify_parked(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("write 'https://host/path'")
        return value

    @field_validator("namespace")
    @classmethod
    def _namespace(cls, value: str) -> str:
        return names.check_namespace(value)

    @field_validator("broker_url")
    @classmethod
    def _broker(cls, value: str) -> str:
        if value != "embedded" and not value.startswith(("amqp://", "amqps://")):
            raise ValueError("write 'embedded', or 'amqp://user:password@host:5672/vhost'")
        return value

    @field_validator(*_SECRETS)
    @classmethod
    def _secret(cls, value: SecretStr | None) -> SecretStr | None:
        text = None if value is None else value.get_secret_value()
        if text is not None and (not text or text != text.strip()):
            raise ValueError("must not be empty, nor begin or end with white space")
        return value

    @field_validator("message_key", "old_message_key")
    @classmethod
    def _key(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value()) < LEAST_KEY:
            raise ValueError(f"must have {LEAST_KEY} characters or more; `openssl rand -hex 32` makes one")
        return value

    @model_validator(mode="after")
    def _old_ones(self) -> Settings:
        for name in ("webhook_secret", "message_key"):
            if getattr(self, f"old_{name}") is not None and getattr(self, name) is None:
                raise ValueError(f"{_variable('old_' + name)} is set, and {_variable(name)} is not: set both, or none")
        return self

    @field_validator("webhook_hosts")
    @classmethod
    def _hosts(cls, value: str | None) -> str | None:
        if not all(map(_HOST.fullmatch, _split(value))):
            raise ValueError("write hosts, separated by commas: 'hooks.example.com, *.example.org, 10.1.2.3'")
        return value

    @property
    def listed_hosts(self) -> tuple[str, ...]:
        """The listed hosts that notices may be sent to; empty: all that are public."""
        return _split(self.webhook_hosts)

    @field_validator("hidden_names")
    @classmethod
    def _names(cls, value: str | None) -> str | None:
        if not all(map(str.isidentifier, _split(value))):
            raise ValueError("write names of fields, separated by commas: 'birthday, account_number'")
        return value

    @property
    def listed_names(self) -> tuple[str, ...]:
        """The listed names of fields that are hidden."""
        return _split(self.hidden_names)

    @property
    def webhook_secrets(self) -> tuple[str, ...]:
        """The secrets that notices are signed with: each of these."""
        return _reveal(self.webhook_secret, self.old_webhook_secret)

    @property
    def message_keys(self) -> tuple[str, ...]:
        """The keys of messages: they are sealed with the first; seals of the others are accepted, too."""
        return _reveal(self.message_key, self.old_message_key)

    @model_validator(mode="after")
    def _times(self) -> Settings:
        if self.lease < timedelta(milliseconds=500):
            raise ValueError("lease must be half a second or more: heartbeats need time to arrive")
        return self

    @classmethod
    def load(cls, **given: Any) -> Settings:
        """Read the environment, overridden by ``given``; raise ConfigError for anything wrong, empty or unknown."""
        _refuse_unknown(os.environ)
        settings = {field: value for field, value in given.items() if value is not None}
        _refuse_empty(os.environ, settings)
        try:
            return cls(**settings)
        except ValidationError as error:
            raise ConfigError(_explain(error)) from None


def _reveal(*secrets: SecretStr | None) -> tuple[str, ...]:
    return tuple(secret.get_secret_value() for secret in secrets if secret is not None)


def _split(value: str | None) -> tuple[str, ...]:
    return () if value is None else tuple(part.strip() for part in value.split(","))


def _variable(field: str) -> str:
    return f"AFT_{field.upper()}"


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    known = [_variable(field) for field in Settings.model_fields]
    for name in environ:
        if name.startswith("AFT_") and not name.startswith(_NOT_OURS) and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the settings are {', '.join(known)}"
            raise ConfigError(f"{name!r} is not a setting of aft; {hint}")


def _refuse_empty(environ: Mapping[str, str], given: Collection[str]) -> None:
    """Refuse variables that are set but empty: a template that lost its value must not choose another database."""
    for field, setting in Settings.model_fields.items():
        name = _variable(field)
        if field not in given and name in environ and not environ[name].strip():
            default = "" if setting.default is None else f", which means {_format(setting.default)!r}"
            raise ConfigError(f"{name} is set, but empty; give it a value, or unset it{default}")


def _format(value: object) -> str:
    if isinstance(value, timedelta):
        return durations.format(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _format_advice(problem: ErrorDetails) -> str:
    bounds = problem.get("ctx", {})
    match problem["type"]:
        case "int_parsing" | "int_type" | "int_from_float":
            return "write a whole number"
        case "greater_than_equal":
            return f"write {bounds['ge']} or more"
        case "less_than_equal":
            return f"write {bounds['le']} or less"
        case "bool_parsing" | "bool_type":
            return "write true or false"
        case "literal_error":
            return f"write {bounds['expected']}"
        case "string_type":
            return "write a text"
        case "extra_forbidden":
            return "that is not a setting of aft"
        case _:
            return problem["msg"].removeprefix("Value error, ")


def _explain(error: ValidationError) -> str:
    parts = []
    for problem in error.errors():
        text = _format_advice(problem)
        field = ".".join(str(part) for part in problem["loc"])
        shown = f" is {format_value(problem['input'], MOST_SHOWN)}"
        # A URL may hold a password, whatever name it is given under; a secret may come under one that is misspelt.
        if field.endswith("_url") or difflib.get_close_matches(field, _SECRETS, n=1):
            shown = ""
        elif "://" in shown:
            shown, text = "", "that is a URL, which does not belong here"
        parts.append(f"{_variable(field)}{shown}: {text}" if field else text)
    return "; ".join(parts)
