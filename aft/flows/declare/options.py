"""Checks the options of activities and runs where they are written; an error names the option and its value."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from aft import durations
from aft.codec.text import check_depth
from aft.errors import CodecError, DefinitionError
from aft.flows.declare.policy import Declared
from aft.recovery.levels import Ladder, Level
from aft.run_options import OF_SCHEDULE
from aft.texts import check_storable, format_value, require_text

#: How a length of time may be written.
Duration = str | float | timedelta

#: Characters of a run's key.
MOST_KEY = 400
#: No database counts further.
MOST_COUNT = 2**63 - 1
#: Characters of the name of an owner or a resource.
MOST_TEXT = 200
#: Resources that one run may name.
MOST_RESOURCES = 100
#: Tags of one run, and characters of all of them, as JSON.
MOST_TAGS, MOST_TAGS_TEXT = 100, 10_000


def check_levels(of: str, levels: Sequence[Level | Duration] | str | None) -> Ladder | None:
    """Return the ladder that an activity declares; None: the settings apply."""
    if levels is None:
        return None
    if isinstance(levels, Level):
        raise DefinitionError(
            f"{of}: levels={format_value(levels)} must be a list; write levels=[{format_value(levels)}]"
        )
    try:
        return Ladder.of(levels)
    except ValueError as error:
        raise DefinitionError(f"{of}: levels: {error}") from None


def check_bool(option: str, given: bool) -> bool:
    """Return True or False; anything else, even ``"no"``, is refused, as it would count as one of them."""
    if not isinstance(given, bool):
        raise DefinitionError(f"{option}={format_value(given)} must be True or False")
    return given


def check_count(option: str, given: int, least: int, most: int | None = None) -> int:
    """Return a whole number within its bounds."""
    if not _is_whole(given) or given < least or given > (most or MOST_COUNT):
        raise DefinitionError(
            f"{option}={format_value(given)} must be a whole number from {least}{'' if most is None else f' to {most}'}"
        )
    return given


def check_patience(option: str, given: Duration | None) -> float | None:
    """Return a time-out in seconds, which may be 0; None: no time-out."""
    if given is None:
        return None
    if isinstance(given, int | float) and not isinstance(given, bool):
        return min(given, durations.LONGEST.total_seconds())
    try:
        return durations.parse(given).total_seconds()
    except ValueError as error:
        raise DefinitionError(f"{option}: {error}") from None


def check_wanted(option: str, given: str | None) -> str | None:
    """Return a search text."""
    if given is not None:
        require_text(option, given, DefinitionError)
    return given


def check_immediate(of: str, immediate: int | None) -> int | None:
    """Return a number of immediate retries."""
    if immediate is not None and (not _is_whole(immediate) or not 0 <= immediate <= 100):
        raise DefinitionError(f"{of}: immediate={format_value(immediate)} must be a number from 0 to 100")
    return immediate


def check_duration(of: str, option: str, given: Duration | None) -> timedelta | None:
    """Parse a duration greater than zero."""
    if given is None:
        return None
    try:
        found = durations.parse(given)
    except ValueError as error:
        raise DefinitionError(f"{of}: {option}: {error}") from None
    if not found:
        raise DefinitionError(
            f"{of}: {option}={format_value(given)} leaves no time at all; write '250ms', '10s' or '5m'"
        )
    return found


def check_declared(of: str, option: str, given: Declared) -> Declared:
    """Return exception classes, or a function of the exception."""
    if isinstance(given, list | set | frozenset):
        given = tuple(given)
    classes = given if isinstance(given, tuple) else (given,) if isinstance(given, type) else ()
    wrong = [cls for cls in classes if not (isinstance(cls, type) and issubclass(cls, BaseException))]
    if wrong or not (isinstance(given, tuple | type) or callable(given)):
        shown = format_value(wrong[0] if wrong else given, 100)
        raise DefinitionError(f"{of}: {option} holds {shown}; give exception classes, or one function of the exception")
    return given


def refuse_both(of: str, recoverable: Declared, unrecoverable: Declared) -> None:
    """Refuse an exception class that is declared both recoverable and unrecoverable."""
    if not isinstance(recoverable, tuple) or not isinstance(unrecoverable, tuple):
        return
    both = set(recoverable) & set(unrecoverable)
    if both:
        shown = ", ".join(sorted(cls.__name__ for cls in both))
        raise DefinitionError(f"{of} declares {shown} both recoverable and unrecoverable")


def check_key(of: str, key: str | None) -> str | None:
    """Return a run's key; those of a schedule's runs are refused: another run must not take an occurrence's place."""
    if key is not None and (not isinstance(key, str) or not 0 < len(key) <= MOST_KEY):
        raise DefinitionError(f"{of}: key={format_value(key)} must be a text of 1 to {MOST_KEY} characters")
    check_storable(f"{of}: key", key, DefinitionError)
    if key is not None and key.startswith(OF_SCHEDULE):
        raise DefinitionError(f"{of}: key={format_value(key)} begins as the keys of schedules' runs do: {OF_SCHEDULE}…")
    return key


def check_priority(of: str, priority: int) -> int:
    """Return a run's priority."""
    if not _is_whole(priority) or abs(priority) > 1_000_000:
        raise DefinitionError(f"{of}: priority={format_value(priority)} must be a whole number")
    return priority


def check_text(of: str, option: str, given: str | None) -> str | None:
    """Return the name of an owner or a resource; it is used in a column, in listings and in filters."""
    if given is not None and not _is_text(given):
        raise DefinitionError(
            f"{of}: {option}={format_value(given)} must be a text of 1 to {MOST_TEXT} characters, all of them printable"
        )
    return given


def check_resources(of: str, given: Iterable[str]) -> tuple[str, ...]:
    """Return the names of what a run needs, each once, in the order given."""
    if isinstance(given, str):
        raise DefinitionError(
            f"{of}: resources={format_value(given)} must be a list; write resources=[{format_value(given)}]"
        )
    if not isinstance(given, list | tuple | set | frozenset):
        raise DefinitionError(
            f"{of}: resources={format_value(given)} must be a list of names, like resources=['payments']"
        )
    for name in given:
        if not _is_text(name):
            raise DefinitionError(
                f"{of}: resources holds {format_value(name)}; each is a text of 1 to {MOST_TEXT} characters, all "
                "of them printable"
            )
    if len(given) > MOST_RESOURCES:
        raise DefinitionError(f"{of}: resources holds {len(given)} names; {MOST_RESOURCES} are the most")
    return tuple(dict.fromkeys(sorted(given) if isinstance(given, set | frozenset) else given))


def check_tags(of: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a run's tags: names, each with a JSON value."""
    if given is not None and not isinstance(given, Mapping):
        raise DefinitionError(
            f"{of}: tags={format_value(given)} must be names with values, like tags={{'tier': 'gold'}}"
        )
    tags = dict(given or {})
    for name in tags:
        if not _is_text(name):
            raise DefinitionError(
                f"{of}: tags holds the name {format_value(name)}; each is a text of 1 to {MOST_TEXT} characters"
            )
    try:
        spelt = json.dumps(tags, allow_nan=False)
        check_depth(spelt)
    except (TypeError, ValueError, RecursionError, CodecError) as error:
        raise DefinitionError(f"{of}: tags cannot be stored: {error}; use what JSON has words for") from None
    for text in _texts_in(tags):
        check_storable(f"{of}: a text in tags", text, DefinitionError, lines=True)
    if len(tags) > MOST_TAGS or len(spelt) > MOST_TAGS_TEXT:
        raise DefinitionError(
            f"{of}: {len(tags)} tags of {len(spelt)} characters; {MOST_TAGS} and {MOST_TAGS_TEXT} are the most"
        )
    return tags


def check_at(of: str, at: datetime | None) -> datetime | None:
    """Return when a run begins, in UTC."""
    if at is None:
        return None
    if not isinstance(at, datetime) or at.utcoffset() is None:
        raise DefinitionError(
            f"{of}: at={format_value(at)} must be a datetime that knows its zone, like "
            "datetime(2027, 1, 31, 8, tzinfo=ZoneInfo('Europe/Vienna'))"
        )
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise DefinitionError(
            f"{of}: at={format_value(at, 100)} is in no year that UTC has; years are 1 to 9999"
        ) from None


def refuse_two_start_times(of: str, after: timedelta | None, at: datetime | None) -> None:
    """Refuse a run with both ``after`` and ``at``."""
    if after is not None and at is not None:
        raise DefinitionError(f"{of}: after={durations.format(after)!r} and at={at.isoformat()!r}; give one of the two")


def _texts_in(value: Any) -> Iterator[str]:
    """Yield every text in a JSON value, names included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield str(name)
            yield from _texts_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts_in(item)


def _is_whole(given: Any) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)


def _is_text(given: Any) -> bool:
    return isinstance(given, str) and 0 < len(given) <= MOST_TEXT and given.isprintable()
