"""A call of several steps that has failed is over, also in a replay: what the code does then may need several tries."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

import aft
from tests.setups import Setup
from tests.world import Refused, ledger


@aft.activity(name="failed_call_render")
def render(order: str) -> str:
    ledger[order.partition("/")[0]].append("render")
    if order.endswith("/0"):
        raise Refused(order)
    return order


@aft.flow(name="failed_call_page")
def page(order: str) -> str:
    return render(order)


@aft.activity(name="failed_call_notify", levels=["50ms*3"])
def notify(order: str) -> str:
    return _try(order)


def forget(order: str, result: str | aft.Unknown) -> None:
    ledger[order].append("forget")


@aft.compensate_with(forget, when="started")
@aft.activity(name="failed_call_notify_started", levels=["50ms*3"])
def notify_started(order: str) -> str:
    return _try(order)


def _try(order: str) -> str:
    ledger[order].append("notify")
    if ledger[order].count("notify") < 3:
        raise aft.Recoverable("busy")
    return "told"


@aft.flow(name="failed_call_telling")
def tell(order: str) -> str:
    aft.sleep("50ms")
    return notify(order)


#: What is called when the others have failed.
AFTER: dict[str, Any] = {"ladder": notify, "started": notify_started, "child": tell}


def _items(order: str) -> list[str]:
    return [f"{order}/{number}" for number in range(20)]


@aft.flow(name="failed_call_map")
def mapping(order: str, after: str) -> str:
    try:
        aft.map(render, _items(order), concurrency=2)
    except Refused:
        return str(AFTER[after](order))
    return "all"


@aft.flow(name="failed_call_children")
def mapping_children(order: str, after: str) -> str:
    try:
        aft.map(page, _items(order), concurrency=2)
    except Refused:
        return str(AFTER[after](order))
    return "all"


@aft.flow(name="failed_call_savepoint")
def in_savepoint(order: str, after: str) -> str:
    try:
        with aft.savepoint("pages"):
            aft.map(render, _items(order), concurrency=2)
    except Refused:
        return str(AFTER[after](order))
    return "all"


@aft.flow(name="failed_call_twice")
def twice(order: str, after: str) -> str:
    try:
        aft.map(render, _items(order), concurrency=2)
    except Refused:
        try:
            aft.map(render, _items(order), concurrency=2)
        except Refused:
            return str(AFTER[after](order))
    return "all"


@aft.flow(name="failed_call_async")
async def in_async(order: str, after: str) -> str:
    try:
        aft.map(render, _items(order), concurrency=2)
    except Refused:
        return str(await AFTER[after].call(order))
    return "all"


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize(
    "flow", [mapping, mapping_children, in_savepoint, twice, in_async], ids=lambda flow: flow.name[12:]
)
def test_what_comes_after_a_failed_call_is_tried_until_it_works(setup: Setup, flow: Any, after: str) -> None:
    order = secrets.token_hex(4)
    app = setup.app()
    with app.dispatcher():
        assert app.submit(flow, order, after).result(60) == "told"
    assert ledger[order].count("notify") == 3
    assert ledger[order].count("render") < 20  # no more were begun
