"""Gives one run of an operation its order, by the operation's verb."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, assert_never

from sqlalchemy import Connection

from aft.runs.operations.operation_rows import Verb
from aft.runs.orders import failed_steps, steer
from aft.runs.orders.actor import Actor, Order
from aft.runs.run_rows import RunRow
from aft.runs.states import GOING, Status

#: The runs that a verb is meant for, where the person names no state.
MEANT_FOR: dict[Verb, tuple[Status, ...]] = {
    Verb.RETRY: (Status.PARKED,),
    Verb.COMPLETE: (Status.PARKED,),
    Verb.FAIL: (Status.PARKED,),
    Verb.SUSPEND: GOING,
    Verb.RESUME: (Status.SUSPENDED,),
    Verb.CANCEL: (*GOING, Status.SUSPENDED, Status.PARKED),
    Verb.COMPENSATE: (*GOING, Status.SUSPENDED, Status.PARKED, Status.COMPLETED),
}


def give(connection: Connection, run: RunRow, by: Actor, verb: Verb, payload: Mapping[str, Any]) -> None:
    """Give a run that is locked its order; raises OrderRefused."""
    _choose(connection, run, verb, payload)(connection, run, by)


def _choose(connection: Connection, run: RunRow, verb: Verb, payload: Mapping[str, Any]) -> Order:
    if verb is Verb.COMPLETE or verb is Verb.FAIL or (verb is Verb.RETRY and payload):
        return _about_step(connection, run, verb, payload)
    match verb:
        case Verb.RETRY:
            return failed_steps.retry
        case Verb.SUSPEND:
            return steer.suspend
        case Verb.RESUME:
            return steer.resume
        case Verb.CANCEL:
            return steer.cancel if payload.get("compensate", True) else steer.cancel_as_is
        case Verb.COMPENSATE:
            return steer.compensate
        case _:
            assert_never(verb)


def _about_step(connection: Connection, run: RunRow, verb: Verb, payload: Mapping[str, Any]) -> Order:
    path = failed_steps.find(connection, run, payload.get("step")).path
    assert path is not None
    if verb is Verb.RETRY:
        return partial(failed_steps.retry_with, step=path, args=payload.get("args", {}))
    if verb is Verb.FAIL:
        return partial(failed_steps.fail, step=path)
    return partial(failed_steps.complete, step=path, result=payload["result"])
