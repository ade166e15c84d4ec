"""The primitives of exlets: atomic actions as values, each with its ``do`` word.

A primitive is valid by itself: an invalid field (a target, a wait, a URL) is refused with RuleRefused when it is made,
in Python as from a file. Only expressions are compiled later, when the sources are known. Values (``result``, ``args``,
``tags``) are kept as they are stored: JSON, tagged where JSON has no such type.

People make them with :mod:`aft.rules.exlets.do`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum, StrEnum
from typing import Any, ClassVar, Final, TypeAlias, get_args

from aft.codec import tagged_to_json
from aft.errors import RuleRefused
from aft.rules.exlets import validate
from aft.texts import check_storable, find_choice, find_unstorable, format_value


class Target(StrEnum):
    """What a primitive suspends, continues or removes."""

    ACTIVITY = "activity"  #: the one that the exception is about
    RUN = "run"  #: its run
    FLOW = "flow"  #: all runs of its flow that have not ended
    ANCESTORS = "ancestors"  #: the runs that its run is a child of, up to the first


class Nothing(Enum):
    """The type of :data:`NOTHING`."""

    NOTHING = "nothing"

    def __repr__(self) -> str:
        return "NOTHING"


#: No result was given: None is one.
NOTHING: Final = Nothing.NOTHING


class _Primitive:
    """Base of all primitives: how they are stored."""

    do: ClassVar[str]

    def encode(self) -> dict[str, Any]:
        """Return it for JSON: its word, and the fields that are set."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]
        content = {name: value for name, value in found.items() if value not in (None, "", False, {}, NOTHING)}
        return {"do": self.do, **content}

    def _put(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


class _Aimed(_Primitive):
    """Base of the primitives that have a target."""

    target: Target

    def __post_init__(self) -> None:
        target = find_choice(self.target, Target)
        if target is None:
            raise RuleRefused(
                f"{self.do}: {format_value(self.target)} is not a target; {validate.hint(self.target, Target)}"
            )
        self._put("target", target)

    def encode(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**super().encode(), "target": self.target.value}

    def __str__(self) -> str:
        return f"{self.do} {self.target}"


@dataclass(frozen=True)
class Suspend(_Aimed):
    """Suspend the target until it is continued, or decided about."""

    do: ClassVar[str] = "suspend"
    target: Target


@dataclass(frozen=True)
class Continue(_Aimed):
    """Resume what this exlet has suspended."""

    do: ClassVar[str] = "continue"
    target: Target


@dataclass(frozen=True)
class Remove(_Aimed):
    """End the target; with ``undo`` after undoing everything that it has done. An activity is ended with its branch."""

    do: ClassVar[str] = "remove"
    target: Target
    undo: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.flag(self.undo, "remove: undo")

    def __str__(self) -> str:
        return f"remove {self.target}{' and undo it' if self.undo else ''}"


@dataclass(frozen=True)
class Restart(_Primitive):
    """Execute the activity again, from its beginning, as if for the first time."""

    do: ClassVar[str] = "restart"

    def __str__(self) -> str:
        return "restart"


@dataclass(frozen=True)
class Complete(_Primitive):
    """Record the activity as done, with a given result or a computed one; None if neither is given."""

    do: ClassVar[str] = "complete"
    result: Any = field(default=NOTHING, repr=False)  #: as it is stored; NOTHING where it is computed
    computed: str | None = None  #: CEL

    def __post_init__(self) -> None:
        if self.computed is None:
            self._put(
                "result", None if self.result is NOTHING else validate.check_json(self.result, "complete: result")
            )
            return
        validate.text(self.computed, "complete: computed")
        if self.result is not NOTHING:
            raise RuleRefused("complete: it has both a result and one that is computed; give one of the two")

    def encode(self) -> dict[str, Any]:
        """Return it for JSON."""
        content = {"computed": self.computed} if self.computed is not None else {"result": self.result}
        return {"do": self.do, **{name: value for name, value in content.items() if value is not None}}

    def __str__(self) -> str:
        result = self.computed if self.computed is not None else format_value(tagged_to_json(self.result))
        return f"complete with {result}"


@dataclass(frozen=True)
class Fail(_Primitive):
    """Fail the activity: raise where it was called; with ``proceed``, return ``aft.FAILED`` there instead."""

    do: ClassVar[str] = "fail"
    message: str = field(repr=False)
    proceed: bool = False

    def __post_init__(self) -> None:
        validate.text(self.message, "fail: message")
        validate.flag(self.proceed, "fail: proceed")

    def __str__(self) -> str:
        return f"fail{' and proceed' if self.proceed else ''} with {format_value(self.message)}"


@dataclass(frozen=True)
class Retry(_Primitive):
    """Try the activity again by its ladder, at a level of it, or by another ladder; wait ``after`` at least.

    Once no level is left the failure is final.
    """

    do: ClassVar[str] = "retry"
    level: int | None = None  #: from 1
    ladder: str | None = None  #: as in settings: "5s*3, 1m"
    after: str | None = None  #: a duration as in settings: "30s"

    def __post_init__(self) -> None:
        if self.after is not None:
            self._put("after", validate.wait(self.after, "retry: after"))
        if self.ladder is not None:
            self._put("ladder", validate.format_ladder(self.ladder, "retry: ladder"))
        most = validate.MOST_LEVELS if self.ladder is None else validate.count_levels(self.ladder, "retry: ladder")
        if self.level is not None and (type(self.level) is not int or not 1 <= self.level <= most):
            of = "" if self.ladder is None else f" of ladder {format_value(self.ladder)}"
            raise RuleRefused(f"retry: level {format_value(self.level)}{of} must be a whole number from 1 to {most}")

    def __str__(self) -> str:
        at = "" if self.level is None else f" at level {self.level}"
        by = "" if self.ladder is None else f" by ladder {format_value(self.ladder)}"
        return f"retry{at}{by}{'' if self.after is None else f' after {self.after}'}"


@dataclass(frozen=True)
class Unwind(_Primitive):
    """Make the failure final: undo what was done, all of it or down to a savepoint."""

    do: ClassVar[str] = "unwind"
    to: str | None = None

    def __post_init__(self) -> None:
        if self.to is not None:
            validate.text(self.to, "unwind: to", most=validate.MOST_NAME)

    def __str__(self) -> str:
        return f"unwind{'' if self.to is None else f' to {self.to!r}'}"


@dataclass(frozen=True)
class Park(_Primitive):
    """Stop, and wait for a person."""

    do: ClassVar[str] = "park"
    reason: str

    def __post_init__(self) -> None:
        validate.text(self.reason, "park: reason")

    def __str__(self) -> str:
        return f"park: {self.reason}"


@dataclass(frozen=True)
class Notify(_Primitive):
    """Send a notice to a webhook."""

    do: ClassVar[str] = "notify"
    url: str = field(repr=False)
    note: str = ""

    def __post_init__(self) -> None:
        validate.text(self.note, "notify: note", empty=True)
        validate.host(self.url, "notify: url")

    def __str__(self) -> str:
        return f"notify {validate.host(self.url, 'url')}"


@dataclass(frozen=True)
class Set(_Primitive):
    """Change data: arguments or result of the activity, tags of the run; given values or computed ones."""

    do: ClassVar[str] = "set"
    args: Mapping[str, Any] = field(repr=False, default_factory=dict)
    tags: Mapping[str, Any] = field(repr=False, default_factory=dict)
    result: Any = field(default=NOTHING, repr=False)
    computed: Mapping[str, str] = field(default_factory=dict)  #: CEL by what it is for: "args.x", "tags.y", "result"

    def __post_init__(self) -> None:
        self._put("args", validate.check_json(validate.table(self.args, "set: args"), "set: args"))
        self._put("tags", validate.check_json(validate.table(self.tags, "set: tags"), "set: tags"))
        self._put("computed", dict(validate.table(self.computed, "set: computed")))
        if self.result is not NOTHING:
            self._put("result", validate.check_json(self.result, "set: result"))
        for key, source in self.computed.items():
            validate.text(source, f"set: computed.{key}")
            if key in self._given:
                raise RuleRefused(f"set: {key} is both given and computed; keep one of the two")
        for key in self.changes:
            _check_change(key)
        for name, value in self.tags.items():
            if isinstance(value, str):
                check_storable(f"set: tags.{name}", value, RuleRefused, lines=True)
        if not self.changes:
            raise RuleRefused("set: it sets nothing; give args, tags, result or computed")

    @property
    def changes(self) -> tuple[str, ...]:
        """The keys that it changes: ``args.NAME``, ``tags.NAME``, ``result``."""
        return (*self._given, *self.computed)

    @property
    def of_activity(self) -> bool:
        """Whether it changes an activity's data, not only its run's."""
        return any(not key.startswith("tags.") for key in self.changes)

    @property
    def _given(self) -> list[str]:
        known = [f"args.{name}" for name in self.args] + [f"tags.{name}" for name in self.tags]
        return known if self.result is NOTHING else [*known, "result"]

    def encode(self) -> dict[str, Any]:
        """Return it for JSON."""
        result = {} if self.result is NOTHING else {"result": self.result}
        content = {"args": dict(self.args), "tags": dict(self.tags), "computed": dict(self.computed)}
        return {"do": self.do, **{name: value for name, value in content.items() if value}, **result}

    def __str__(self) -> str:
        return f"set {', '.join(self.changes)}"


Primitive: TypeAlias = Suspend | Continue | Remove | Restart | Complete | Fail | Retry | Unwind | Park | Notify | Set

#: Every primitive by its word.
WORDS: Mapping[str, type[Primitive]] = {kind.do: kind for kind in get_args(Primitive)}


def decode(value: Any) -> Primitive:
    """Decode what ``encode`` wrote, or what a person wrote like it; raises RuleRefused."""
    found = validate.table(value, "a primitive")
    word = found.get("do")
    if not isinstance(word, str) or word not in WORDS:
        if word is None:
            raise RuleRefused(f"{format_value(value)} has no 'do'; write do = \"retry\", for example")
        raise RuleRefused(f"{format_value(word)} is nothing that an exlet can do; {validate.hint(word, WORDS)}")
    known = {one.name: one for one in fields(WORDS[word])}
    content = {name: item for name, item in found.items() if name != "do"}
    for name in content:
        if name not in known:
            takes = validate.hint(name, known) if known else "it takes nothing"
            raise RuleRefused(f"{word}: {name!r} is not a field of it; {takes}")
    for name, one in known.items():
        if one.default is MISSING and one.default_factory is MISSING and name not in content:
            raise RuleRefused(f"{word}: {name!r} is missing")
    return WORDS[word](**content)


def is_deciding(one: Primitive) -> bool:
    """Return whether it decides about the activity, or the run, that the exception is about."""
    match one:
        case Remove(target=target):
            return target in (Target.ACTIVITY, Target.RUN)
        case Continue(target=target):
            return target is Target.ACTIVITY
    return isinstance(one, Restart | Complete | Fail | Retry | Unwind | Park)


def is_final(one: Primitive) -> bool:
    """Return whether only ``notify`` and ``continue`` may follow it."""
    if isinstance(one, Remove):
        return one.target in (Target.RUN, Target.FLOW)
    return isinstance(one, Restart | Complete | Fail | Retry | Unwind | Park)


def needs_activity(one: Primitive) -> bool:
    """Return whether it makes no sense for an exception that is about a run as a whole."""
    match one:
        case Suspend(target=target) | Continue(target=target) | Remove(target=target):
            return target is Target.ACTIVITY
        case Fail(proceed=proceed):
            return proceed
        case Set():
            return one.of_activity
    return isinstance(one, Restart | Complete | Retry)


def expressions(one: Primitive) -> Mapping[str, str]:
    """Return its CEL expressions by the field that holds them: ``computed``, or ``computed.args.x``."""
    if isinstance(one, Complete) and one.computed is not None:
        return {"computed": one.computed}
    if isinstance(one, Set):
        return {f"computed.{key}": source for key, source in one.computed.items()}
    return {}


def _check_change(key: str) -> None:
    kind, dot, name = key.partition(".")
    if (found := find_unstorable(name, lines=True)) is not None:
        raise RuleRefused(f"set: {key!r} holds {found}; leave that out")
    if key == "result" or (kind == "tags" and name.strip()) or (kind == "args" and name.isidentifier()):
        return
    if kind == "args" and dot:
        raise RuleRefused(f"set: {name!r} cannot name an argument; an argument is set as a whole, by its own name")
    raise RuleRefused(f"set: {key!r} is nothing that can be set; write 'args.NAME', 'tags.NAME' or 'result'")
