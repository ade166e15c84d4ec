"""Compares the arguments that a flow's code gives to a step with those that were recorded for it.

A flow that calls its steps in another order, or with other arguments, when it is replayed would take outcomes for what
they are not: an order would be paid twice, another one never. So a difference parks the run (``ReplayDiverged``).

Equal texts are equal arguments, which is all that is looked at for almost every step. Where texts differ, arguments are
compared by name, as the values that the code makes of them: the order of a dict's keys and of a set does not count.
What was not recorded is no difference: parameters and fields that the code got since, and arguments that were left to
their defaults, which may change. What a rule has changed is none either.
"""

from __future__ import annotations

import reprlib
from collections.abc import Container
from typing import Any

from aft.codec import ArgumentsCodec, read_by_name
from aft.errors import ReplayDiverged
from aft.flows.replay import WHAT_VARIES

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
    """Raise ReplayDiverged if a step, ``called`` so, was recorded with other arguments than the code asks with now.

    ``recorded`` are the arguments that were given then. Where it has the defaults as well, ``given`` are those that the
    code gives now: only they are compared.
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
    return ", ".join(f"{name}={_short.repr(known[name])}" if name in known else f"no {name}" for name in names)
