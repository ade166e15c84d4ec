"""Flows that orders are given to at random: savepoints within each other and side by side, and what may hold them up.

What each run does is in ``ledger``; ``gates`` hold steps up, and ``fixed`` are runs whose mistakes are fixed.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aft
from tests.world import fixed, gates, ledger

#: What may hold up a branch.
TROUBLES = ("gate", "wait", "busy", "spoil", "spoil_owed", "bug", "undo_fails", "child", "none")


def strike(order: str, what: str) -> None:
    ledger[order].append(f"un{what}")


def strike_or_fail(order: str, what: str) -> None:
    if order not in fixed:
        raise ValueError("it does not come off")
    ledger[order].append(f"un{what}")


@aft.compensate_with(strike)
@aft.activity(name="campground_pitch")
def pitch(order: str, what: str) -> str:
    ledger[order].append(what)
    return what


@aft.compensate_with(strike_or_fail)
@aft.activity(name="campground_nail")
def nail(order: str, what: str) -> str:
    ledger[order].append(what)
    return what


@aft.compensate_with(strike)
@aft.activity(name="campground_gate", levels=[])
def hold_up(order: str, what: str) -> str:
    ledger[order].append(what)
    assert gates[order].wait(60)
    return what


@aft.compensate_with(strike)
@aft.activity(name="campground_busy")
def be_busy(order: str, what: str) -> str:
    if not gates[order].is_set():
        raise aft.Recoverable("busy", after="100ms")
    ledger[order].append(what)
    return what


@aft.activity(name="campground_spoil", levels=[])
def spoil(order: str, what: str) -> int:
    ledger[order].append(f"~{what}")
    assert gates[order].wait(60)
    return 1 if order in fixed else "not a number"  # type: ignore[return-value]


def strike_unknown(order: str, what: str, result: int | aft.Unknown) -> None:
    ledger[order].append(f"un{what}")


@aft.compensate_with(strike_unknown)
@aft.activity(name="campground_spoil_owed", levels=[])
def spoil_owed(order: str, what: str) -> int:
    ledger[order].append(what)
    return 1 if order in fixed else "not a number"  # type: ignore[return-value]


@aft.flow(name="campground_child")
def camp_child(order: str, what: str) -> str:
    pitch(order, f"{what}/child")
    return str(aft.wait_for("go"))


#: The step that holds a branch up, by its trouble.
STEPS: dict[str, Any] = {
    "gate": hold_up,
    "busy": be_busy,
    "spoil": spoil,
    "spoil_owed": spoil_owed,
    "undo_fails": nail,
    "child": camp_child,
}


def _check_code(order: str, what: str, trouble: str) -> None:
    if trouble == "bug" and order not in fixed:
        raise NameError(f"a mistake at {what}")


def meet(order: str, what: str, trouble: str) -> None:
    """Let a branch be held up."""
    _check_code(order, what, trouble)
    if trouble == "wait":
        aft.wait_for("go")
    elif trouble in STEPS:
        STEPS[trouble](order, what)


async def meet_async(order: str, what: str, trouble: str) -> None:
    """Let a branch of an async flow be held up."""
    _check_code(order, what, trouble)
    if trouble == "wait":
        await aft.wait_for("go")
    elif trouble in STEPS:
        await STEPS[trouble].call(order, what)


@aft.flow(name="campground_line")
def line(order: str, troubles: list[str], catches: list[bool]) -> str:
    """One savepoint in another."""
    first, second, third = troubles
    with aft.savepoint("closed"):
        pitch(order, "c0")
    try:
        with aft.savepoint("outer"):
            pitch(order, "o1")
            meet(order, "o2", first)
            try:
                with aft.savepoint("inner"):
                    pitch(order, "i1")
                    meet(order, "i2", second)
                    pitch(order, "i3")
                    meet(order, "i4", third)
            except aft.UndoneByHand:
                if not catches[0]:
                    raise
                pitch(order, "i5")
            pitch(order, "o3")
            meet(order, "o4", second)
    except aft.UndoneByHand:
        if not catches[1]:
            raise
        pitch(order, "o5")
    pitch(order, "z")
    return "done"


@aft.flow(name="campground_sides")
async def sides(order: str, troubles: list[str], catches: list[bool]) -> str:
    """Savepoints side by side, in another one."""

    async def side(name: str, what: str, trouble: str) -> None:
        try:
            with aft.savepoint(name):
                await pitch.call(order, f"{what}1")
                await meet_async(order, f"{what}2", trouble)
                await pitch.call(order, f"{what}3")
                if trouble in ("gate", "undo_fails"):
                    await aft.wait_for("go")
        except aft.UndoneByHand:
            if not catches[0]:
                raise
            await pitch.call(order, f"{what}4")

    names = ["inner", "beside", "beside" if catches[2] else "closed"]
    try:
        with aft.savepoint("outer"):
            await pitch.call(order, "o1")
            calls = [side(*one) for one in zip(names, "abc", troubles, strict=True)]
            if catches[3]:
                async with asyncio.TaskGroup() as group:
                    for call in calls:
                        group.create_task(call)
            else:
                await asyncio.gather(*calls)
            await pitch.call(order, "o2")
    except* aft.UndoneByHand:
        if not catches[1]:
            raise
    await pitch.call(order, "z")
    return "done"
