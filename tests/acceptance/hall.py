"""A concert hall whose flows the tests of rules on the command line run."""

from __future__ import annotations

import aft


class Locked(Exception):
    """For now."""


class Gone(Exception):
    """For good."""


@aft.activity(name="hall_seat", levels=["10ms"], recoverable=(Locked,), unrecoverable=(Gone,))
def seat(order: str) -> str:
    if order.startswith("locked"):
        raise Locked("somebody has the key")
    if order.startswith("gone"):
        raise Gone(f"no {order} is left")
    return f"seat-{order}"


@aft.flow(name="hall_visit")
def visit(order: str) -> str:
    found: object = seat(order)
    return "stands" if found is aft.FAILED else str(found)


@aft.flow(name="hall_group")
def group(order: str) -> int:
    return len(aft.parallel(seat.call(order), seat.call("free")))


@aft.flow(name="hall_broken")
def broken() -> str:
    return str(1 / 0)
