"""Compiles and evaluates the conditions of rules, in CEL.

The only module that imports CEL's library. A condition is compiled against the declared facts, so a wrong name or type
is found when a rule is saved, not when a fault comes. It cannot loop for long (aft.rules.cel.bounds) and reaches only
the facts. Evaluating one takes microseconds and never raises: a condition that cannot be evaluated does not hold, and a
warning says why.

Thread-safe, shared or not: the library holds Python's lock while it compiles and evaluates.
It is a 13 MB extension, so it is loaded when the first condition is compiled and not before.
"""

from __future__ import annotations

import base64
import datetime
import math
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, Self, TypeAlias

from aft.errors import RuleRefused
from aft.rules.cases.facts import MOST_IN_ALL, Facts, FactType, blank, complete, fact_types
from aft.rules.cel import bounds
from aft.rules.cel.failures import explain
from aft.rules.cel.refusals import refusal, translate
from aft.texts import with_article

#: Sources that conditions may ask besides the facts: type by name, ``{"weather": "string"}`` for ``source.weather``.
Sources: TypeAlias = Mapping[str, str]
NO_SOURCES: Sources = MappingProxyType({})

#: Compiled conditions that are cached (LRU); a tree of a thousand rules changes one at a time.
_KEPT = 4096
#: Characters of a condition in a warning.
_SHOWN = 120
#: What the library raises: C++ errors, values it has no type for, texts it cannot encode, lack of memory.
_ERRORS = (RuntimeError, TypeError, ValueError, MemoryError)

_STATUS = re.compile(r"^[A-Z_]+: ")


class Evaluation(NamedTuple):
    """Whether a condition holds; if it could not be evaluated, a warning that says why."""

    holds: bool
    warning: str | None = None


_YES, _NO = Evaluation(True), Evaluation(False)


_Key: TypeAlias = tuple[tuple[str, str], ...]


class _Language:
    """CEL with the facts and the sources that conditions may mention."""

    def __init__(self, sources: Sources) -> None:
        # Here and nowhere else: it is large, and most processes that import aft never ask a rule.
        from cel_expr_python import cel

        of = cel.Type
        types = {
            FactType.TEXT: of.STRING,
            FactType.WHOLE: of.INT,
            FactType.TRUTH: of.BOOL,
            FactType.ANY: of.DYN,
            FactType.TEXTS: of.List(of.STRING),
            FactType.TAGS: of.Map(of.STRING, of.DYN),
            FactType.OUTCOMES: of.Map(of.INT, of.STRING),
        }
        self.kinds = fact_types(sources)
        self.blanks = blank(sources)
        self.error, self.truth, self.any = of.ERROR, of.BOOL, of.DYN
        self.env: Any = cel.NewEnv(variables={name: types[kind] for name, kind in self.kinds.items()})

    def read(self, source: str) -> Any:
        """Compile a condition; raises RuleRefused that says where it is wrong."""
        env = self.env
        bounds.check(source, self.kinds)
        try:
            program = env.compile(source)
            for pattern in bounds.patterns(source):
                self._check_pattern(source, pattern)
        except _ERRORS as error:
            raise translate(source, str(error), self.kinds) from None
        return program

    def _check_pattern(self, source: str, pattern: bounds.Token) -> None:
        """Check a regular expression by using it once, alone: CEL itself checks it only when it is used."""
        env = self.env
        program = env.compile(f"''.matches({pattern.text})")
        tried = program.eval(data={})
        if tried.type() == self.error:
            text = _STATUS.sub("", tried.value()).removeprefix("invalid regular expression: ")
            raise refusal(
                source, pattern.at, f"the regular expression is invalid: {text}", 'they are RE2\'s; see "re2 syntax"'
            )


@lru_cache(maxsize=64)
def _language(sources: _Key) -> _Language:
    return _Language(dict(sources))


@lru_cache(maxsize=_KEPT)
def _program(source: str, sources: _Key) -> Any:
    return _language(sources).read(source)


def _key(sources: Sources) -> _Key:
    return tuple(sorted(sources.items()))


class PreparedFacts:
    """Facts prepared for evaluation: do it once if several conditions are evaluated on the same ones.

    With ``only``, conditions that mention other facts than these cannot be evaluated: it is quicker.
    """

    __slots__ = ("_activation",)

    def __init__(self, facts: Facts, sources: Sources = NO_SOURCES, only: Collection[str] | None = None) -> None:
        language = _language(_key(sources))
        self._activation = language.env.Activation(complete(facts, language.blanks, only))


class Expression:
    """A CEL expression over the facts of a case, of any type: a text, a number, a list."""

    __slots__ = ("_language", "_program", "_sources", "names", "source")

    #: What it was compiled from.
    source: str
    #: The facts it mentions; may hold one too many, never one too few.
    names: frozenset[str]

    def __init__(self, source: str, sources: Sources) -> None:
        """Use :meth:`compile`, which documents what it raises."""
        if not isinstance(source, str):
            found = with_article(type(source).__name__)
            raise RuleRefused(f"a condition is a text, not {found}; write 'fault.status == 503'")
        key = _key(sources)
        self._language = _language(key)
        self._program = _program(source, key)
        self._sources = sources
        self.source = source
        self.names = names(source, self._language.kinds)

    @classmethod
    def compile(cls, source: str, sources: Sources = NO_SOURCES) -> Self:
        """Compile an expression, which may mention the facts and these sources.

        Raises RuleRefused with the line, the column, a caret and a hint, and ValueError if the sources are invalid.
        """
        return cls(source, dict(sources))

    def value(self, facts: Facts | PreparedFacts) -> tuple[Any, str | None]:
        """Return (value as JSON, None), or (None, warning) that says why there is no value. Never raises."""
        program = self._program
        try:
            found = program.eval(self._case(facts)._activation)
            if found.type() == self._language.error:
                return None, self._warn(explain(found.value(), self.source))
            # The library makes one key of 1, 1u and true, which leaves no trace. A map can hold them together only if
            # the type of its keys is not known, and that shows in the type of the whole.
            texts_only = self._language.any.name() in program.return_type().name()
            return _Reader(texts_only).to_python(found), None
        except _NoJson as error:
            return None, self._warn(str(error))
        except _ERRORS as error:
            return None, self._warn(explain(str(error), self.source))

    def _case(self, facts: Facts | PreparedFacts) -> PreparedFacts:
        return facts if isinstance(facts, PreparedFacts) else PreparedFacts(facts, self._sources, self.names)

    def _warn(self, what: str) -> str:
        shown = self.source if len(self.source) <= _SHOWN else self.source[:_SHOWN] + "…"
        return f"{shown!r} could not be evaluated: {what}"


class Condition(Expression):
    """A CEL expression that is true or false."""

    __slots__ = ()

    def __init__(self, source: str, sources: Sources) -> None:
        """Use :meth:`compile`, which documents what it raises."""
        super().__init__(source, sources)
        kind = self._program.return_type()
        if kind not in (self._language.truth, self._language.any):
            name = kind.name().lower()
            raise refusal(source, 0, f"it gives a value of type {name}, not true or false", _hint_kind(name))

    def holds(self, facts: Facts | PreparedFacts) -> Evaluation:
        """Return whether it holds. Never raises: if it cannot be evaluated, it does not hold, with a warning."""
        program = self._program
        try:
            found = program.eval(self._case(facts)._activation)
            value = found.value()
            if value is True:
                return _YES
            if value is False:
                return _NO
            if found.type() == self._language.error:
                return Evaluation(False, self._warn(explain(value, self.source)))
            return Evaluation(
                False, self._warn(f"its value is of type {found.type().name().lower()}, not true or false")
            )
        except _ERRORS as error:
            return Evaluation(False, self._warn(explain(str(error), self.source)))


def names(source: str, known: Mapping[str, FactType]) -> frozenset[str]:
    """Return the facts that a condition mentions, whether it can be compiled or not; does not need CEL."""
    return frozenset(token.text for token in bounds.mentioned(bounds.tokens(source), known))


def _hint_kind(name: str) -> str:
    if name == "string":
        return "compare it with a text: … == 'text', or ask … != ''"
    return "compare it with a number: … > 0" if name in ("int", "uint", "double") else "compare it with something: … =="


class _NoJson(ValueError):
    """Raised for a value that JSON has not, or that is too large; its text tells nothing of the value."""


class _Reader:
    """Reads one value of CEL as plain JSON; with ``texts_only`` keys of maps that are no texts are refused."""

    __slots__ = ("_left", "_texts_only")

    def __init__(self, texts_only: bool) -> None:
        self._left = MOST_IN_ALL
        self._texts_only = texts_only

    def to_python(self, found: Any) -> Any:
        """Return the value; raises _NoJson if JSON has none for it, or if it is too large."""
        value = found.value()
        if isinstance(value, list):
            self._spend(len(value))
            return [self.to_python(entry) for entry in value]
        if isinstance(value, dict):
            self._spend(len(value))
            return {self._format(key): self.to_python(entry) for key, entry in value.items()}
        if value is None or isinstance(value, bool | int | str):
            return value
        return _scalar(value)

    def _spend(self, entries: int) -> None:
        self._left -= entries
        if self._left < 0:
            raise _NoJson(f"its value has more than {MOST_IN_ALL:,} entries")

    def _format(self, key: Any) -> str:
        if isinstance(key, str):
            return key
        if self._texts_only:
            kind = with_article(type(key).__name__)
            raise _NoJson(f"a key in its value is {kind}, and in JSON keys are texts; write {{'1': …}}")
        return str(key).lower()


def _scalar(value: Any) -> Any:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _NoJson(f"its value is {value}, which is not a number in JSON")
        return value
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode("ascii")
    raise _NoJson(f"its value is {with_article(type(value).__name__)}, which JSON does not know")
