"""Makes the primitives of exlets in Python, one function for each. Public as ``aft.do``.

::

    aft.Exlet("change_to_mid_venue", [do.suspend("activity"), do.set(args={"venue": "mid"}), do.resume("activity")])

Each raises RuleRefused for invalid arguments, at the line where it is written. Values may be of every type that aft
stores without an annotation: JSON's, and dates, decimals, tuples, …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from aft.codec import value_codec
from aft.errors import CodecError, RuleRefused
from aft.rules.exlets.primitives import (
    NOTHING,
    Complete,
    Continue,
    Fail,
    Notify,
    Park,
    Remove,
    Restart,
    Retry,
    Set,
    Suspend,
    Target,
    Unwind,
)

__all__ = [
    "NOTHING",
    "complete",
    "fail",
    "notify",
    "park",
    "remove",
    "restart",
    "resume",
    "retry",
    "set",
    "suspend",
    "unwind",
]


def suspend(target: Target | str) -> Suspend:
    """Suspend an ``"activity"``, the ``"run"``, all runs of the ``"flow"`` or the ``"ancestors"`` for now."""
    return Suspend(target)  # type: ignore[arg-type]


def resume(target: Target | str) -> Continue:
    """Resume what this exlet has suspended; ``continue`` in files."""
    return Continue(target)  # type: ignore[arg-type]


def remove(target: Target | str, undo: bool = False) -> Remove:
    """End the target; with ``undo``, after undoing everything that it has done."""
    return Remove(target, undo)  # type: ignore[arg-type]


def restart() -> Restart:
    """Execute the activity again, from its beginning, as if for the first time."""
    return Restart()


def complete(result: Any = NOTHING, *, computed: str | None = None) -> Complete:
    """Record the activity as done, with this result, or one that is computed in CEL; None if neither is given."""
    return Complete(_stored(result, "complete: result"), computed)


def fail(message: str, proceed: bool = False) -> Fail:
    """Fail the activity: raise where it was called; with ``proceed``, return ``aft.FAILED`` there instead."""
    return Fail(message, proceed)


def retry(
    level: int | None = None,
    ladder: str | Sequence[Any] | None = None,
    after: timedelta | float | str | None = None,
) -> Retry:
    """Try again by the activity's ladder, at a level of it, or by another ladder; wait ``after`` at least.

    ``ladder`` is written as everywhere: ``"5s*3, 1m"``, or a list of levels, ``["5s*3", aft.Level("1m")]``.
    """
    return Retry(level, ladder, after)  # type: ignore[arg-type]


def unwind(to: str | None = None) -> Unwind:
    """Make the failure final: undo all that was done, or down to a savepoint."""
    return Unwind(to)


def park(reason: str) -> Park:
    """Stop, and wait for a person."""
    return Park(reason)


def notify(url: str, note: str = "") -> Notify:
    """Send a notice to a webhook."""
    return Notify(url, note)


def set(
    args: Mapping[str, Any] | None = None,
    tags: Mapping[str, Any] | None = None,
    result: Any = NOTHING,
    computed: Mapping[str, str] | None = None,
) -> Set:
    """Change arguments or result of the activity, or tags of the run.

    ``computed`` is CEL by what it is for: ``{"args.seats": "run.args.seats / 2", "result": "0"}``.
    """
    return Set(
        _stored_table(args, "set: args"),
        _stored_table(tags, "set: tags"),
        _stored(result, "set: result"),
        dict(computed) if isinstance(computed, Mapping) else {} if computed is None else computed,
    )


def _stored(value: Any, where: str) -> Any:
    if value is NOTHING:
        return NOTHING
    try:
        return value_codec(Any).tag(value, where)
    except CodecError as error:
        raise RuleRefused(str(error)) from None


def _stored_table(values: Mapping[str, Any] | None, where: str) -> Any:
    if not isinstance(values, Mapping):
        return {} if values is None else values
    return {name: _stored(value, f"{where}.{name}") for name, value in values.items()}
