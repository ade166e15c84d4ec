"""Flows that live for days, for the acceptance tests: an agency that books journeys in several branches.

Activities keep a ledger, by journey; ``trouble`` is what they raise next, and ``gates`` hold them up.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import aft
from tests.world import Busy, Refused, gates, ledger, trouble

LEVELS = [aft.Level("50ms", tries=2), aft.Level("100ms")]


def do(journey: str, what: str) -> None:
    """Do something, unless there is trouble, and write it down."""
    if (gate := gates.get((journey, what))) is not None:
        assert gate.wait(60)
    if waiting := trouble.get((journey, what)):
        ledger[journey].append(f"{what}!")
        raise waiting.pop(0)
    ledger[journey].append(what)


_as_declared: dict[str, Any] = {"levels": LEVELS, "recoverable": (Busy,), "unrecoverable": (Refused,)}


def unbook(journey: str, what: str) -> None:
    ledger[journey].append(f"un{what}")


@aft.compensate_with(unbook)
@aft.activity(name="agency_book", **_as_declared)
def book(journey: str, what: str) -> str:
    """Book something."""
    do(journey, what)
    return f"{what} of {journey}"


@aft.compensate_with(unbook)
@aft.activity(name="agency_book_async", **_as_declared)
async def book_async(journey: str, what: str) -> str:
    """Book something, from an event loop."""
    await asyncio.to_thread(do, journey, what)
    return f"{what} of {journey}"


async def later(call: Any) -> Any:
    """Make a task of a call."""
    return await call


def refund(journey: str) -> None:
    do(journey, "refund")


@aft.compensate_with(refund)
@aft.activity(name="agency_charge", **_as_declared)
def charge(journey: str) -> str:
    """Take money; giving it back may fail, too."""
    do(journey, "charge")
    return "charged"


@aft.flow(name="agency_approval", signals={"verdict": Literal["yes", "no"]})
def approval(journey: str, timeout: str | None = None) -> str:
    """Wait for a person."""
    book(journey, "draft")
    verdict = aft.wait_for("verdict", timeout=timeout)
    book(journey, f"verdict {verdict}")
    return str(verdict)


@aft.flow(name="agency_reminded")
def reminded(journey: str) -> str:
    """Wait, remind, wait again."""
    verdict = aft.wait_for("verdict", str, timeout="100ms", default=None)
    if verdict is None:
        book(journey, "reminder")
        verdict = aft.wait_for("verdict", str)
    return str(verdict)


@aft.flow(name="agency_collects")
def collects(journey: str, count: int) -> list[int]:
    """Take as many numbers as are asked for."""
    return [aft.wait_for("number", int) for _ in range(count)]


@aft.flow(name="agency_naps")
def naps(journey: str, duration: str) -> str:
    """Sleep between two bookings."""
    book(journey, "before")
    began = aft.now()
    aft.sleep(duration)
    book(journey, "after")
    return str((aft.now() - began).total_seconds())


@aft.flow(name="agency_journey")
def journey_flow(journey: str) -> tuple[str, ...]:
    """Book three things side by side, then pay."""
    booked = aft.parallel(book.call(journey, "flight"), book.call(journey, "hotel"), book.call(journey, "car"))
    book(journey, "invoice")
    return tuple(booked)


@aft.flow(name="agency_fallback")
def fallback(journey: str) -> str:
    """Another way, if one of two fails for good."""
    book(journey, "deposit")
    try:
        with aft.savepoint("sea"):
            aft.parallel(book.call(journey, "ferry"), book.call(journey, "cabin"))
    except Refused:
        return book(journey, "train")
    return "sea"


@aft.flow(name="agency_tour")
def tour(journey: str, stops: list[str]) -> list[str]:
    """Book each stop."""

    def stop(what: str) -> aft.Call[str]:
        return book.call(journey, what)

    return list(aft.parallel(*(stop(what) for what in stops)))


@aft.activity(name="agency_visit", **_as_declared)
def visit(stop: str) -> str:
    """Visit a stop; its name begins with the journey's."""
    journey, _, what = stop.partition(":")
    do(journey, what)
    return what.upper()


@aft.flow(name="agency_round_trip")
def round_trip(stops: list[str], concurrency: int = 2) -> list[str]:
    """Visit each stop, so many at a time."""
    return aft.map(visit, stops, concurrency=concurrency)


@aft.flow(name="agency_async_journey")
async def async_journey(journey: str) -> list[str]:
    """The same on asyncio: branches of several steps."""

    async def leg(first: str, second: str) -> str:
        await book_async(journey, first)
        booked: str = await book_async(journey, second)
        return booked

    return list(await asyncio.gather(leg("flight", "seat"), leg("hotel", "breakfast")))


@aft.flow(name="agency_grouped")
async def grouped(journey: str) -> str:
    """A task group, one of whose tasks fails for good; undone by a savepoint."""
    failed = False
    try:
        with aft.savepoint("group"):
            async with asyncio.TaskGroup() as group:
                group.create_task(later(book_async(journey, "flight")))
                group.create_task(later(book_async(journey, "hotel")))
    except* Refused:
        failed = True
    return await book_async(journey, "train") if failed else "group"


@aft.flow(name="agency_leg")
def leg(journey: str, what: str) -> str:
    """A child: two bookings."""
    book(journey, f"{what} there")
    return book(journey, f"{what} back")


@aft.flow(name="agency_family")
def family(journey: str) -> str:
    """Two children, one after the other, and something of its own."""
    first = leg(journey, "train")
    book(journey, "lunch")
    second = leg(journey, "boat")
    book(journey, "dinner")
    return f"{first}, {second}"


@aft.flow(name="agency_family_at_once")
def family_at_once(journey: str) -> tuple[str, str]:
    """Two children side by side."""
    return aft.parallel(leg.call(journey, "train"), leg.call(journey, "boat"))


@aft.flow(name="agency_waits_below")
def waits_below(journey: str) -> str:
    """A parent whose child waits for a person."""
    book(journey, "deposit")
    return approval(journey)


@aft.activity(name="agency_pay", levels=LEVELS)
def pay(journey: str) -> str:
    """Fails until somebody has refilled the balance."""
    if waiting := trouble.get((journey, "pay")):
        ledger[journey].append("pay!")
        raise waiting.pop(0)
    ledger[journey].append("pay")
    return "paid"


@aft.flow(name="agency_pays")
def pays(journey: str) -> str:
    """Pay, when there is a balance."""
    return pay(journey)


# Pivots, versions, conditions -----------------------------------------------------------------------------------


@aft.flow(name="agency_pivoted")
def pivoted(journey: str) -> str:
    """Book, pass the point of no return, send the tickets."""
    book(journey, "flight")
    aft.pivot()
    book(journey, "tickets")
    try:
        with aft.savepoint("extras"):
            book(journey, "lounge")
            book(journey, "upgrade")
    except Refused:
        book(journey, "voucher")
    return book(journey, "mail")


@aft.compensate_with(unbook, only_if=lambda result: result is not None)
@aft.activity(name="agency_insure")
def insure(journey: str, what: str) -> str | None:
    """Insure, if that is needed; what was not insured needs no undo."""
    do(journey, what)
    return None if what == "nothing" else what


@aft.flow(name="agency_insured")
def insured(journey: str, what: str) -> None:
    """Insure, then fail."""
    insure(journey, what)
    book(journey, "flight")


@aft.flow(name="agency_months")
def months(journey: str, month: int) -> str:
    """A flow that begins anew for each month."""
    book(journey, f"month {month}")
    if month < 3:
        aft.continue_as_new(journey, month + 1)
    return book(journey, "year")


@aft.flow(name="agency_undecided")
def undecided(journey: str) -> str:
    """Book the sea way and wait for a word; another way, if somebody has that undone."""
    book(journey, "deposit")
    try:
        with aft.savepoint("sea"):
            book(journey, "ferry")
            return str(aft.wait_for("word"))
    except aft.UndoneByHand:
        return book(journey, "train")
