"""Compares the arguments that a flow's code gives to a step with those that were recorded for it.

A flow that calls its steps in another order, or with other arguments, when it is replayed would get outcomes of other
calls: an order would be paid twice, another one never. So a difference parks the run (``ReplayDiverged``).

Equal texts are equal arguments; almost every step needs no more than that. If texts differ, arguments are compared by
name, as decoded values: the order of a dict's keys and of a set does not count. These are no differences either:
parameters and fields that were added to the code since, arguments that were left to their defaults (which may change),
and arguments that a rule has changed.
"""

from __future__ import annotations

import reprlib
from collections.abc import Container
from typing import Any

from aft.codec import ArgumentsCodec, read_by_name
from aft.errors import ReplayDiverged
from aft.flows.session.journal_replay import WHAT_VARIES
from aft.security.redaction import HIDDEN, hides_name, redact_all

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 100


def check_arguments(
    step: str,
    called: str,
    codec: ArgumentsCodec,
    recorded: str,
    asked: str,
    ignored: Container[str] = (),
    *,
    given: str | None = None,
) -> None:
    """Raise ReplayDiverged if ``step`` was recorded with other arguments than the code gives now, calling ``called``.

    ``recorded`` are the arguments that were given then. If they include defaults, ``given`` are those that the code
    gives now: only these names are compared.
    """
    if recorded == asked:
        return
    was, now = read_by_name(recorded), read_by_name(asked)
    names = was if given is None else read_by_name(given)
    different = [
        name
        for name, value in was.items()
        if name in names and name not in ignored and not (name in now and codec.is_same(name, value, now[name]))
    ]
    if different:
        raise ReplayDiverged(
            f"{step} was called with {_show(was, different)}, but the code now calls {called} there with "
            f"{_show(now, different)}; a flow must call the same steps with the same arguments whenever it is "
            f"replayed: {WHAT_VARIES}"
        )


def _show(known: dict[str, Any], names: list[str]) -> str:
    return ", ".join(f"{name}={_format(name, known[name])}" if name in known else f"no {name}" for name in names)


def _format(name: str, value: Any) -> str:
    return HIDDEN if hides_name(name) else _short.repr(redact_all(value))
