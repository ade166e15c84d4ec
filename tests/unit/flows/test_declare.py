"""Claims about the decorators: what may be an activity or a flow, alone and stacked, and what is refused at import."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

import aft
from aft.errors import DefinitionError
from aft.flows.declare import activity as activity_module
from aft.flows.declare import context
from aft.flows.declare import flow as flow_module
from aft.flows.declare.activity import Activity, compensator_policy
from aft.flows.declare.options import check_patience
from aft.flows.declare.policy import Policy
from aft.flows.declare.registry import Registry
from aft.recovery.levels import Ladder, Level


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """Keep what tests declare out of the registry that all share."""
    ours = Registry()
    monkeypatch.setattr(activity_module, "registry", ours)
    monkeypatch.setattr(flow_module, "registry", ours)
    return ours


def charge(amount: int) -> int:
    """Take money."""
    return amount * 2


def refund(amount: int, result: int) -> None:
    """Give it back."""


async def charge_async(amount: int) -> int:
    return amount * 2


def order(amount: int) -> int:
    return amount


# --- alone ---


def test_a_bare_decorator_makes_an_activity(registry: Registry) -> None:
    made = aft.activity(charge)
    assert (made.name, made.policy, made.compensator, made.is_async) == ("charge", Policy(), None, False)
    assert registry.activity("charge") is made


def test_an_activity_keeps_the_looks_of_its_function() -> None:
    made = aft.activity(charge)
    assert (made.__name__, made.__doc__, made.__wrapped__) == ("charge", "Take money.", charge)  # type: ignore[attr-defined]
    assert repr(made) == "<activity 'charge'>"
    assert made.parameters == ["amount"]


def test_options_are_kept_as_they_are_declared() -> None:
    made = aft.activity(
        name="take_money",
        levels=[Level("5s", tries=3), "10m", 60],
        immediate=2,
        timeout="30s",
        recoverable=(OSError,),
        unrecoverable=ValueError,
        resource="payments",
        expected="2s",
    )(charge)
    assert made.name == "take_money"
    assert made.policy == Policy(
        ladder=Ladder((Level("5s", tries=3), Level("10m"), Level("1m"))),
        immediate=2,
        timeout=timedelta(seconds=30),
        recoverable=(OSError,),
        unrecoverable=ValueError,
        resource="payments",
        expected=timedelta(seconds=2),
    )


def test_an_empty_list_of_levels_is_a_ladder_of_its_own() -> None:
    assert aft.activity(levels=[])(charge).policy.ladder == Ladder()
    assert aft.activity(charge).policy.ladder is None


def test_a_compensator_is_enough_to_make_an_activity(registry: Registry) -> None:
    made = aft.compensate_with(refund)(charge)
    assert made.compensator is not None
    assert (made.compensator.name, made.compensator.fn, made.compensator.when) == ("refund", refund, "completed")
    assert registry.compensator("charge", "refund") is made.compensator


def test_a_bare_decorator_makes_a_flow(registry: Registry) -> None:
    made = aft.flow(order)
    assert (made.name, made.version, made.is_async) == ("order", 1, False)
    assert registry.flow("order") is made
    assert repr(made) == "<flow 'order' version 1>"


def test_a_flow_may_be_named_and_numbered(registry: Registry) -> None:
    made = aft.flow(name="place_order", version=3)(order)
    assert registry.flow("place_order", 3) is made


def test_versions_of_a_flow_stand_side_by_side(registry: Registry) -> None:
    for version in (1, 2):
        aft.flow(version=version)(order)
    assert sorted(registry.known) == [("order", 1), ("order", 2)]


def test_what_is_said_of_one_run_leaves_the_flow_as_it_is() -> None:
    made = aft.flow(order)
    said = made.options(key="k1", priority=5, owner="shop", expected="10m", resources=["payments", "cms", "cms"])
    assert (said.run_options.key, said.run_options.priority, said.run_options.owner) == ("k1", 5, "shop")
    assert (said.run_options.expected, said.run_options.resources) == (timedelta(minutes=10), ("payments", "cms"))
    assert (said.name, said.fn, made.run_options.key) == ("order", order, None)


# --- stacked ---


def test_the_order_of_the_decorators_does_not_matter(registry: Registry) -> None:
    upper = aft.activity(immediate=3)(aft.compensate_with(refund)(charge))
    assert registry.activity("charge") is upper
    lower = aft.compensate_with(refund)(aft.activity(immediate=3)(charge))
    assert registry.activity("charge") is lower
    assert upper.policy == lower.policy == Policy(immediate=3)
    assert upper.compensator == lower.compensator


@pytest.mark.parametrize("activity_first", [True, False])
def test_a_name_survives_stacking(activity_first: bool, registry: Registry) -> None:
    if activity_first:
        made = aft.compensate_with(refund)(aft.activity(name="take_money")(charge))
    else:
        made = aft.activity(name="take_money")(aft.compensate_with(refund)(charge))
    assert (made.name, registry.activity("take_money"), registry.activity("charge")) == ("take_money", made, None)


def test_a_compensator_may_be_an_activity_with_a_policy_of_its_own() -> None:
    undo = aft.activity(levels=["1h"])(refund)
    made = aft.compensate_with(undo)(aft.activity(immediate=3)(charge))
    assert made.compensator is not None
    assert made.compensator.fn is refund
    assert compensator_policy(made, made.compensator) == Policy(ladder=Ladder((Level("1h"),)))


def test_a_compensator_that_is_a_plain_function_is_tried_like_its_activity() -> None:
    made = aft.compensate_with(refund)(aft.activity(immediate=3, transactional=True)(charge))
    assert made.compensator is not None
    assert compensator_policy(made, made.compensator) == Policy(immediate=3, transactional=False)


def test_a_second_activity_decorator_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"activity 'charge' is declared twice with @aft\.activity"):
        aft.activity(immediate=1)(aft.activity(immediate=2)(charge))


def test_a_second_compensator_is_refused() -> None:
    def give_back(result: int) -> None: ...

    said = "activity 'charge' has two compensators, 'refund' and 'give_back'; call the second one from the first"
    with pytest.raises(DefinitionError, match=said):
        aft.compensate_with(give_back)(aft.compensate_with(refund)(charge))


def test_a_name_that_is_taken_is_avoided_in_the_lowest_decorator(registry: Registry) -> None:
    def elsewhere() -> Callable[[int], int]:
        def charge(amount: int) -> int:
            return amount

        return charge

    aft.activity(elsewhere())
    with pytest.raises(DefinitionError, match="another name= in its lowest decorator"):
        aft.activity(name="charge_here")(aft.compensate_with(refund)(charge))
    assert aft.compensate_with(refund)(aft.activity(name="charge_here")(charge)).name == "charge_here"


# --- names ---


@pytest.mark.parametrize("name", ["a/b", "a@1", "new\nline", "x" * 201])
def test_a_name_that_cannot_be_stored_or_shown_is_refused(name: str) -> None:
    with pytest.raises(DefinitionError, match="cannot name an activity: 1 to 200 printable characters"):
        aft.activity(name=name)(charge)
    with pytest.raises(DefinitionError, match="cannot name a flow"):
        aft.flow(name=name)(order)


@pytest.mark.parametrize("kind", ["activity", "flow"])
def test_a_name_that_another_function_has_is_refused(kind: str) -> None:
    decorate: Any = aft.activity if kind == "activity" else aft.flow
    decorate(charge)
    with pytest.raises(DefinitionError, match=rf"{kind} 'charge'.* is declared twice: by .*charge and by .*order"):
        decorate(name="charge")(order)


class Foreign:
    """A value of a foreign class that has no text."""

    def __repr__(self) -> str:
        raise RuntimeError("it has no words")

    __str__ = __repr__


@pytest.mark.parametrize("version", [0, -1, 1.0, "1", True, None, 2**31])
def test_a_version_is_a_whole_number_from_one(version: Any) -> None:
    with pytest.raises(DefinitionError, match="must be a whole number from 1 on"):
        aft.flow(version=version)(order)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": ""}, "key='' must be a text of 1 to 400"),
        ({"key": "k" * 401}, "must be a text of 1 to 400"),
        ({"key": 5}, "key=5 must be a text"),
        ({"key": "a\x00"}, "holds the control character '.x00'; leave that out"),
        ({"priority": "high"}, "priority='high' must be a whole number"),
        ({"priority": True}, "priority=True must be a whole number"),
        ({"owner": ""}, "owner='' must be a text of 1 to 200"),
        ({"owner": "a\x00"}, "must be a text of 1 to 200 characters, all of them printable"),
        ({"expected": "soon"}, "flow 'order': expected: 'soon' is not a duration"),
        ({"expected": 0}, "expected=0 leaves no time at all"),
        ({"resources": "cms"}, r"resources='cms' must be a list; write resources=\['cms'\]"),
        ({"resources": 5}, "resources=5 must be a list of names"),
        ({"resources": ["cms", ""]}, "resources holds ''; each is a text of 1 to 200"),
        ({"resources": ["\ud800"]}, "all of them printable"),
        ({"resources": {"cms", 5}}, "resources holds 5"),
        ({"resources": [str(n) for n in range(101)]}, "resources holds 101 names; 100 are the most"),
        ({"resources": {Foreign()}}, "resources holds <Foreign instance at "),
        ({"tags": 5}, "tags=5 must be names with values"),
        ({"tags": [("tier", "gold")]}, r"tags=\[\('tier', 'gold'\)\] must be names with values"),
        ({"at": datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))}, "is in no year that UTC has"),
    ],
)
def test_what_cannot_be_said_of_a_run_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        aft.flow(order).options(**options)


@pytest.mark.parametrize("declare", [aft.flow, aft.activity])
def test_an_empty_name_is_not_replaced_by_the_name_of_the_function(declare: Any) -> None:
    with pytest.raises(DefinitionError, match="'' cannot name a"):
        declare(name="")(order)


def test_a_time_out_may_be_any_number() -> None:
    longest = 10 * 365 * 24 * 3600
    assert [check_patience("timeout", given) for given in (None, 0, 2.5, "3s")] == [None, 0, 2.5, 3]
    assert [check_patience("timeout", given) for given in (10**5000, float("inf"))] == [longest, longest]


# --- what can be one ---


class Shop:
    """A class with methods."""

    def sell(self) -> None: ...

    @staticmethod
    def count() -> int:
        return 1


def pages() -> Iterator[int]:
    yield 1


async def stream() -> AsyncIterator[int]:
    yield 1


@pytest.fixture(params=["activity", "flow", "compensate_with"])
def decorator(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    chosen: dict[str, Callable[[Any], Any]] = {
        "activity": aft.activity,
        "flow": aft.flow,
        "compensate_with": aft.compensate_with(Shop.count),
    }
    return chosen[request.param]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        pytest.param(Shop.sell, "cannot go on the method .*Shop.sell: an object cannot be stored", id="method"),
        pytest.param(Shop().sell, "goes on a function, not on <bound method", id="bound"),
        pytest.param(staticmethod(charge), "goes on a function, not on <staticmethod", id="static"),
        pytest.param(
            classmethod(charge),  # type: ignore[arg-type]
            "goes on a function, not on <classmethod",
            id="class method",
        ),
        pytest.param(lambda: None, "cannot go on a lambda: it has no name that stays the same", id="lambda"),
        pytest.param(pages, "cannot go on the generator .*pages; return a list instead", id="generator"),
        pytest.param(stream, "cannot go on the generator .*stream; return a list instead", id="async generator"),
        pytest.param(Shop, "goes on a function, not on <class", id="class"),
        pytest.param("text", "goes on a function, not on 'text'", id="text"),
        pytest.param(len, "goes on a function, not on <built-in", id="builtin"),
    ],
)
def test_what_is_no_function_with_a_name_is_refused(decorator: Callable[[Any], Any], wrong: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        decorator(wrong)


def test_a_function_in_a_function_may_be_an_activity() -> None:
    @aft.activity
    def nested(x: int) -> int:
        return x

    assert nested.name == "nested"


@pytest.mark.parametrize("wrong", [lambda: None, "refund", None, 5, Shop()])
def test_a_compensator_is_a_named_function(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match="it must be a named function"):
        aft.compensate_with(wrong)(charge)


def test_a_compensator_that_does_not_fit_is_refused_at_import() -> None:
    def give_back(sum_: int) -> None: ...

    with pytest.raises(DefinitionError, match="which takes 'sum_', but charge has no argument of that name"):
        aft.compensate_with(give_back)(charge)


# --- options ---


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"levels": "5s*"}, r"levels: '5s\*' in '5s\*' is not a level"),
        ({"levels": ["5s*"]}, r"levels: '5s\*' is not a level"),
        ({"levels": Level("5s")}, "must be a list; write levels="),
        ({"levels": ["soon"]}, "activity 'charge': levels: 'soon' is not a duration"),
        ({"levels": ["5s"] * 33}, "activity 'charge': levels: 33 levels; 32 are the most"),
        ({"immediate": -1}, "immediate=-1 must be a number from 0 to 100"),
        ({"immediate": 101}, "immediate=101 must be"),
        ({"immediate": True}, "immediate=True must be"),
        ({"immediate": "3"}, "immediate='3' must be"),
        ({"timeout": "soon"}, "activity 'charge': timeout: 'soon' is not a duration"),
        ({"timeout": 0}, "timeout=0 leaves no time at all"),
        ({"recoverable": 5}, "recoverable holds 5; give exception classes, or one function"),
        ({"recoverable": (OSError, str)}, "recoverable holds <class 'str'>"),
        ({"unrecoverable": (OSError, lambda e: True)}, "unrecoverable holds <function"),
        ({"unrecoverable": int}, "unrecoverable holds <class 'int'>"),
        ({"recoverable": (OSError,), "unrecoverable": (OSError,)}, "declares OSError both recoverable and unrec"),
        ({"transactional": True, "timeout": "5s"}, "is transactional and has a timeout"),
        ({"transactional": True, "probe": order}, "is transactional and has a probe: its outcome is never unknown"),
        ({"resource": ""}, "activity 'charge': resource='' must be a text of 1 to 200"),
        ({"resource": "r" * 201}, "must be a text of 1 to 200"),
        ({"resource": 5}, "resource=5 must be a text"),
        ({"expected": "soon"}, "activity 'charge': expected: 'soon' is not a duration"),
        ({"expected": "0s"}, "expected='0s' leaves no time at all"),
        ({"probe": lambda amount: None}, "names <function .* as its probe; it must be a named function"),
        ({"probe": "find"}, "names 'find' as its probe; it must be a named function"),
    ],
)
def test_an_option_that_cannot_work_is_refused_with_its_value(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        aft.activity(**options)(charge)


# --- probes ---


def find_charge(amount: int, key: str) -> int | None:
    return None


def find_result(result: int) -> int | None:
    return None


def give_back(amount: int, result: int | aft.Unknown) -> None: ...


def test_a_probe_takes_by_name_what_it_needs() -> None:
    made = aft.activity(probe=find_charge)(charge)
    assert made.policy.probe is not None
    assert (made.policy.probe.name, made.policy.probe.wants) == ("find_charge", ("amount", "key"))
    asked = made.make_probe_call('{"amount": 5}', "k1")
    assert asked is not None
    assert asked.kwargs == {"amount": 5, "key": "k1"}


def test_a_probe_gets_the_default_of_an_argument_that_was_not_stored() -> None:
    def take(amount: int, currency: str = "EUR") -> int:
        return amount

    def find(currency: str) -> int | None: ...

    asked = aft.activity(probe=find)(take).make_probe_call('{"amount": 5}', "k1")
    assert asked is not None
    assert asked.kwargs == {"currency": "EUR"}


def test_a_probe_that_asks_for_what_there_is_not_is_refused_at_import() -> None:
    with pytest.raises(DefinitionError) as caught:
        aft.activity(probe=find_result)(charge)
    assert str(caught.value) == (
        "activity 'charge' names probe 'find_result', which takes 'result', but charge has no argument of that name; "
        "it has 'amount', and every probe may take 'key'"
    )


def test_an_argument_called_key_that_the_probe_asks_for_is_refused() -> None:
    def unlock(key: str) -> None: ...
    def is_open(key: str) -> None: ...

    with pytest.raises(DefinitionError, match="has an argument 'key', and its probe 'is_open' asks for 'key'"):
        aft.activity(probe=is_open)(unlock)


def test_a_probe_may_be_an_activity_but_has_no_transaction() -> None:
    looking = aft.activity(find_charge)
    made = aft.activity(probe=looking)(charge)
    assert made.policy.probe is not None
    assert made.policy.probe.fn is find_charge
    writing = aft.activity(transactional=True)(find_charge)
    with pytest.raises(DefinitionError, match="names probe 'find_charge', which is transactional"):
        aft.activity(probe=writing)(charge)


@pytest.mark.parametrize("activity_first", [True, False])
def test_a_compensator_beside_a_probe_must_take_an_unknown_result(activity_first: bool) -> None:
    def declare(undo: Callable[..., None]) -> Activity[Any, Any]:
        if activity_first:
            return aft.compensate_with(undo)(aft.activity(probe=find_charge)(charge))
        return aft.activity(probe=find_charge)(aft.compensate_with(undo)(charge))

    assert declare(give_back).arms
    with pytest.raises(DefinitionError, match=r"'refund' with probe=find_charge, so its result may be aft\.UNKNOWN"):
        declare(refund)


def test_a_frame_is_armed_only_where_the_undo_of_what_was_started_is_owed() -> None:
    assert not aft.activity(probe=find_charge)(charge).arms
    assert not aft.compensate_with(refund)(charge).arms
    assert aft.compensate_with(give_back, when="started")(charge).arms


def test_a_compensator_inherits_the_resource_but_neither_probe_nor_what_is_expected() -> None:
    declared = aft.activity(probe=find_charge, expected="2s", resource="payments", immediate=3)(charge)
    made = aft.compensate_with(give_back)(declared)
    assert made.compensator is not None
    assert compensator_policy(made, made.compensator) == Policy(immediate=3, resource="payments")


@pytest.mark.parametrize("nothing", [None, aft.UNKNOWN])
def test_a_probe_that_found_nothing_says_so(nothing: Any) -> None:
    asked = aft.activity(probe=find_charge)(charge).make_probe_call('{"amount": 5}', "k1")
    assert asked is not None
    assert asked.read(nothing) is aft.UNKNOWN
    assert asked.read(0) == 0


def test_of_an_activity_without_result_a_probe_says_whether_it_happened() -> None:
    def tell(amount: int) -> None: ...

    asked = aft.activity(probe=find_charge)(tell).make_probe_call('{"amount": 5}', "k1")
    assert asked is not None
    assert [asked.read(answer) for answer in (True, False, None, "yes")] == [None, aft.UNKNOWN, aft.UNKNOWN, None]


# --- transactions ---


def test_an_async_activity_cannot_work_in_a_transaction() -> None:
    with pytest.raises(DefinitionError, match="is async and transactional: aft's transaction is not async; use def"):
        aft.activity(transactional=True)(charge_async)


# --- outside a run ---


def test_outside_a_run_an_activity_is_its_plain_function() -> None:
    assert aft.activity(charge)(21) == 42
    assert aft.compensate_with(refund)(charge)(amount=4) == 8


def test_outside_a_run_an_async_activity_is_awaited_like_its_function() -> None:
    made = aft.activity(charge_async)
    assert made.is_async
    assert asyncio.run(made(21)) == 42


def test_outside_a_run_a_flow_is_its_plain_function() -> None:
    assert aft.flow(order)(7) == 7


def test_a_call_is_not_executed_until_somebody_does() -> None:
    called: list[int] = []

    def note(x: int) -> None:
        called.append(x)

    call = aft.activity(note).call(5)
    assert (call.args, called) == ((5,), [])


class Engine:
    """Stands in for a run: keeps what flow code asks of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[Any, ...]]] = []

    def call(self, call: aft.Call[Any]) -> Any:
        self.asked.append((call.name, call.args))
        return "recorded"

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"nobody should ask for {name}")


def test_inside_a_run_an_activity_is_the_engine_s() -> None:
    engine, made = Engine(), aft.activity(charge)
    with context.in_flow(engine):
        assert made(21) == "recorded"  # type: ignore[comparison-overlap]
    assert engine.asked == [("charge", (21,))]
    assert made(21) == 42


def test_an_activity_inside_an_attempt_is_a_plain_function_again() -> None:
    engine, made = Engine(), aft.activity(charge)
    attempt = context.AttemptContext(context.Current(run_id=None, key="k", attempt=1, epoch=1))
    with context.in_flow(engine), context.in_attempt(attempt):
        assert made(21) == 42
        assert aft.current().key == "k"
    assert engine.asked == []


def test_inside_a_run_a_flow_is_the_engine_s_too() -> None:
    engine, made = Engine(), aft.flow(order)
    with context.in_flow(engine):
        assert made(1) == "recorded"  # type: ignore[comparison-overlap]
    assert engine.asked == [("order", (1,))]


def test_outside_a_run_each_call_has_a_key_of_its_own() -> None:
    one, other = aft.current(), aft.current()
    assert one.run_id is None
    assert one.key != other.key


def test_outside_a_run_a_savepoint_is_nothing() -> None:
    with contextlib.suppress(ValueError), aft.savepoint("both"):
        raise ValueError


def test_outside_a_transactional_activity_there_is_no_session() -> None:
    with pytest.raises(DefinitionError, match="works only inside an activity declared with transactional=True"):
        aft.session()
