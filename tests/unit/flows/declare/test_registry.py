"""Claims about compensators and the registry: what fits by name, what is refused at import, and in which words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

import aft
from aft.compensation.registry import UNKNOWN, Compensator, Unknown, make_compensator
from aft.errors import DefinitionError, UnknownFlow
from aft.flows.declare.activity import Activity
from aft.flows.declare.flow import Flow
from aft.flows.declare.policy import Policy
from aft.flows.declare.registry import Registry, flow_names
from aft.recovery.levels import Ladder, Level

PARAMETERS = ["ad", "slot_id"]


def make(fn: Callable[..., Any], when: Any = "completed", parameters: list[str] | None = None) -> Compensator:
    return make_compensator("publish_ad", parameters or PARAMETERS, "withdraw_ad", fn, when)


# --- which arguments a compensator gets ---


def test_a_compensator_is_given_what_it_asks_for_by_name() -> None:
    def withdraw_ad(slot_id: int, result: str) -> None: ...

    offered = {"ad": "x", "slot_id": 7, "result": "ok", "fault": None, "key": "k"}
    assert make(withdraw_ad).arguments(offered) == {"slot_id": 7, "result": "ok"}


def test_a_compensator_may_ask_for_nothing() -> None:
    def withdraw_ad() -> None: ...

    assert make(withdraw_ad).arguments({"ad": "x", "result": 1}) == {}


def test_a_compensator_may_ask_for_everything_that_aft_has() -> None:
    def withdraw_ad(*, ad: str, result: Any, fault: Any, key: str) -> None: ...

    assert make(withdraw_ad).wants == ("ad", "result", "fault", "key")


def test_a_compensator_with_keywords_gets_all_there_is() -> None:
    def withdraw_ad(**everything: Any) -> None: ...

    offered = {"ad": "x", "slot_id": 7, "result": "ok", "fault": None, "key": "k"}
    assert make(withdraw_ad).arguments(offered) == offered


def test_a_default_covers_a_name_that_fits_nothing() -> None:
    def withdraw_ad(ad: str, reason: str = "undone") -> None: ...

    assert make(withdraw_ad).wants == ("ad",)


def test_a_default_is_not_used_where_there_is_a_value() -> None:
    def withdraw_ad(ad: str = "none") -> None: ...

    assert make(withdraw_ad).arguments({"ad": "x"}) == {"ad": "x"}


# --- what is refused ---


def test_a_name_that_fits_nothing_is_refused_with_what_there_is() -> None:
    def withdraw_ad(slot: int) -> None: ...

    with pytest.raises(DefinitionError) as caught:
        make(withdraw_ad)
    assert str(caught.value) == (
        "activity 'publish_ad' names compensator 'withdraw_ad', which takes 'slot', but publish_ad has no argument "
        "of that name; it has 'ad', 'slot_id', and every compensator may take 'result', 'fault', 'key'; "
        "did you mean 'slot_id'?"
    )


def test_an_activity_without_arguments_is_said_to_have_none() -> None:
    def withdraw_ad(zzz: int) -> None: ...

    with pytest.raises(DefinitionError, match=r"it has none, and every compensator may take 'result', 'fault', 'key'$"):
        make_compensator("publish_ad", [], "withdraw_ad", withdraw_ad, "completed")


@pytest.mark.parametrize("kind", ["only", "rest"])
def test_an_argument_by_position_is_refused(kind: str) -> None:
    def only(ad: str, /) -> None: ...
    def rest(*ad: str) -> None: ...

    with pytest.raises(DefinitionError, match="takes 'ad' by position; a compensator takes what it needs by name"):
        make({"only": only, "rest": rest}[kind])


@pytest.mark.parametrize("name", ["result", "fault", "key"])
def test_an_argument_that_is_called_like_aft_s_own_is_refused(name: str) -> None:
    def takes_result(result: Any) -> None: ...
    def takes_fault(fault: Any) -> None: ...
    def takes_key(key: Any) -> None: ...

    fn = {"result": takes_result, "fault": takes_fault, "key": takes_key}[name]
    with pytest.raises(DefinitionError, match=f"has an argument '{name}', and its .* rename the argument"):
        make(fn, parameters=["ad", name])


def test_another_when_is_refused() -> None:
    def withdraw_ad() -> None: ...

    with pytest.raises(DefinitionError, match="when='later' is not known; say 'completed' or 'started'"):
        make(withdraw_ad, when="later")


# --- when="started" and UNKNOWN ---


def takes_nothing() -> None: ...
def takes_anything(result) -> None: ...  # type: ignore[no-untyped-def]
def takes_any(result: Any) -> None: ...
def takes_an_object(result: object) -> None: ...
def takes_both(result: str | Unknown) -> None: ...
def takes_both_by_alias(result: "str | aft.Unknown") -> None: ...  # noqa: UP037
def takes_keywords(**rest: Any) -> None: ...
def takes_a_text(result: str) -> None: ...
def takes_an_optional(result: str | None) -> None: ...


@pytest.mark.parametrize(
    "fn",
    [takes_nothing, takes_anything, takes_any, takes_an_object, takes_both, takes_both_by_alias, takes_keywords],
)
def test_a_compensator_that_can_take_unknown_may_be_owed_from_the_start(fn: Callable[..., Any]) -> None:
    assert make(fn, when="started").when == "started"


@pytest.mark.parametrize("fn", [takes_a_text, takes_an_optional])
def test_a_compensator_that_cannot_take_unknown_may_not(fn: Callable[..., Any]) -> None:
    with pytest.raises(DefinitionError, match=r"its result may be aft.UNKNOWN, but .* annotate it '… \| aft.Unknown'"):
        make(fn, when="started")
    assert make(fn, when="completed").when == "completed"


def test_unknown_is_one_value_false_and_shown_as_it_is_written() -> None:
    assert aft.UNKNOWN is UNKNOWN is Unknown("aft.UNKNOWN")
    assert not UNKNOWN
    assert repr(UNKNOWN) == "aft.UNKNOWN"


# --- the registry ---


def place_order() -> None: ...
def charge() -> None: ...
def refund() -> None: ...


@pytest.fixture
def registry() -> Registry:
    return Registry()


def test_the_newest_version_of_a_flow_is_found_if_none_is_named(registry: Registry) -> None:
    for version in (2, 10, 1):
        registry.add_flow(Flow(place_order, version=version))
    assert registry.flow("place_order").version == 10
    assert registry.flow("place_order", 2).version == 2
    assert sorted(flow_names(registry)) == ["place_order@1", "place_order@10", "place_order@2"]


@pytest.mark.parametrize(
    ("name", "version", "said"),
    [
        ("place_ordre", None, "no flow 'place_ordre' is registered here; did you mean 'place_order'?"),
        ("zzz", None, "no flow 'zzz' is registered here; this process knows 'place_order'"),
        ("place_order", 7, "no flow 'place_order' version 7 is registered here; this process knows version 1 of it"),
    ],
)
def test_an_unknown_flow_is_told_what_there_is(registry: Registry, name: str, version: int | None, said: str) -> None:
    registry.add_flow(Flow(place_order))
    with pytest.raises(UnknownFlow) as caught:
        registry.flow(name, version)
    assert str(caught.value) == said


def test_without_any_flow_a_module_is_asked_for(registry: Registry) -> None:
    with pytest.raises(UnknownFlow, match="this process has imported no flow; name its module"):
        registry.flow("place_order")


def test_the_same_function_may_be_declared_again(registry: Registry) -> None:
    first, second = Activity(charge), Activity(charge, policy=Policy(immediate=3))
    registry.add_activity(first)
    registry.add_activity(second)
    assert registry.activity("charge") is second


def test_a_function_is_one_activity_under_its_newest_name(registry: Registry) -> None:
    registry.add_activity(Activity(charge))
    registry.add_activity(Activity(charge, name="take_money"))
    assert registry.activity("charge") is None
    assert registry.activity("take_money") is not None


@pytest.mark.parametrize("what", ["activity", "flow"])
def test_another_function_under_a_name_that_is_taken_is_refused_with_both(registry: Registry, what: str) -> None:
    said = rf"{what} 'charge'.* is declared twice: by .*\.charge and by .*\.refund; give one of them another name="

    def declare(fn: Callable[[], None]) -> None:
        if what == "flow":
            registry.add_flow(Flow(fn, name="charge"))
        else:
            registry.add_activity(Activity(fn, name="charge"))

    declare(charge)
    with pytest.raises(DefinitionError, match=said):
        declare(refund)


def test_a_compensator_is_found_by_what_a_stored_frame_names(registry: Registry) -> None:
    undo = make_compensator("charge", [], "refund", refund, "completed")
    registry.add_activity(Activity(charge, compensator=undo))
    assert registry.compensator("charge", "refund") is undo
    assert registry.compensator("charge", "give_back") is None
    assert registry.compensator("ship", "refund") is None


def test_the_waits_are_those_of_every_declared_ladder(registry: Registry) -> None:
    registry.add_activity(Activity(charge, policy=Policy(ladder=Ladder((Level("5s", tries=3), Level("1m"))))))
    registry.add_activity(Activity(refund, policy=Policy(ladder=Ladder((Level("5s"),)))))
    registry.add_activity(Activity(place_order))
    assert registry.waits == {timedelta(seconds=5), timedelta(minutes=1)}


def test_declarations_that_cannot_be_stored_are_found_by_checking(registry: Registry) -> None:
    def upload(stream: Iterator[bytes]) -> None: ...

    registry.add_activity(Activity(upload))
    with pytest.raises(DefinitionError, match="upload"):
        registry.check()
