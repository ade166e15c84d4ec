"""A small shop whose flows the acceptance tests run. What its functions did stands in ``ledger``, by order id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import text

import aft
from tests.setups import eventually
from tests.world import Busy, gates, keys, ledger, reached, trouble


class OutOfStock(Exception):
    """For good."""

    def __init__(self, item: str, left: int) -> None:
        super().__init__(item, left)
        self.item = item


@dataclass(frozen=True)
class Receipt:
    order: str
    amount: Decimal
    at: datetime


def did(order: str, what: str) -> None:
    if trouble[order, what]:
        ledger[order].append(f"{what}!")
        raise trouble[order, what].pop(0)
    keys[order, what].append(aft.current().key)
    ledger[order].append(what)


def release(order: str, result: str) -> None:
    did(order, "release")
    assert result == f"stock-{order}"


@aft.compensate_with(release)
@aft.activity(levels=[aft.Level("20ms", tries=2), "50ms"], recoverable=(Busy,), unrecoverable=(OutOfStock,))
def reserve(order: str) -> str:
    did(order, "reserve")
    return f"stock-{order}"


def refund(order: str, amount: Decimal, result: Receipt, fault: aft.Fault | None, key: str) -> None:
    did(order, "refund")
    assert isinstance(result, Receipt)
    assert result.amount == amount
    assert key.endswith("/undo")


@aft.activity(levels=["20ms"], recoverable=(Busy,))
@aft.compensate_with(refund)
async def pay(order: str, amount: Decimal) -> Receipt:
    did(order, "pay")
    return Receipt(order, amount, datetime.fromisoformat("2026-01-02T03:04:05+00:00"))


@aft.activity(levels=["20ms", "20ms"], recoverable=(Busy,), unrecoverable=(OutOfStock,))
def ship(order: str) -> str:
    did(order, "ship")
    return f"parcel-{order}"


@aft.activity(immediate=2, levels=["20ms"], recoverable=(Busy,))
def label(order: str) -> int:
    did(order, "label")
    return aft.current().attempt


@aft.activity
def slow(order: str) -> str:
    reached[order].set()
    assert gates[order].wait(60)
    did(order, "slow")
    return "late"


@aft.activity(transactional=True, levels=["20ms"], recoverable=(Busy,))
def book(order: str) -> int:
    aft.session().execute(text("INSERT INTO shop_books (id) VALUES (:order)"), {"order": order})
    did(order, "book")
    return 1


def cancel_request(order: str, result: object) -> None:
    did(order, f"cancel {result!r}")


@aft.compensate_with(cancel_request, when="started")
@aft.activity(levels=[])
def request(order: str) -> str:
    did(order, "request")
    return "asked"


@aft.activity(timeout="1s", levels=["20ms"])
def with_deadline(order: str) -> str:
    if aft.current().attempt == 1:
        reached[order].set()
        gates[order].wait(60)
    did(order, "with_deadline")
    return "in time"


@aft.flow
def buy(order: str) -> str:
    reserve(order)
    pay(order, Decimal("9.99"))  # a plain flow gets its value, executed
    return ship(order)


@aft.flow
async def buy_async(order: str) -> tuple[str, Decimal]:
    reserve(order)
    receipt = await pay(order, Decimal("1.50"))
    return ship(order), receipt.amount


@aft.flow
def buy_or_apologise(order: str) -> str:
    try:
        return reserve(order)
    except OutOfStock as error:
        return f"sorry: {error.args}, {error.fault.name}"  # type: ignore[attr-defined]


@aft.flow
def with_savepoint(order: str) -> str:
    reserve(order)
    try:
        with aft.savepoint("payment"):
            pay(order, Decimal(5))
            ship(order)
    except OutOfStock:
        return f"kept {label(order)}"
    return "shipped"


@aft.flow
def with_savepoint_and_more(order: str) -> int:
    try:
        with aft.savepoint("shipping"):
            reserve(order)
            ship(order)
    except OutOfStock:
        ship(order)
    return label(order)


@aft.flow
def with_label(order: str) -> int:
    return label(order)


@aft.flow
def with_slow(order: str) -> str:
    reserve(order)
    slow(order)
    return ship(order)


@aft.flow
def booked(order: str) -> int:
    return book(order)


@aft.flow
def requested(order: str) -> str:
    request(order)
    return ship(order)


@aft.flow
def with_values(order: str) -> tuple[datetime, UUID, float, datetime]:
    first, made, drawn = aft.now(), aft.uuid(), aft.random().random()
    ship(order)
    return first, made, drawn, aft.now()


@aft.flow
def limited(order: str) -> str:
    return with_deadline(order)


def changing(name: str, body: Callable[[str], Any]) -> aft.Flow[[str], Any]:
    """Declare a flow whose code can be changed by declaring it again, as a deploy does."""

    @aft.flow(name=name)
    def changed(order: str) -> Any:
        return body(order)

    return changed


def parked(app: aft.Aft, run: aft.Run) -> str:
    """Wait until a run is parked; returns for what reason."""
    eventually(lambda: run.status == "parked")
    return run.row.reason or ""
