"""Whatever text or value somebody gives to a public function is taken, or refused in a sentence: nothing else happens.

The functions are found by walking the public interface, so that a new one is covered, or this says that it is not.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import aft
from aft import do
from aft.app.operations import OperationDesk
from aft.app.rules.rules import RuleDesk
from aft.app.run_filter import Wanted
from aft.cli.root import root
from aft.rules.rule_types import RuleType
from aft.runs.operations.operation_rows import Verb
from tests.setups import Setup

HOSTILE = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

#: Texts that break what was not thought of: NUL, halves of characters, what terminals obey, what turns lines around,
#: what is long, what looks like something else.
texts = st.one_of(
    st.text(st.characters(codec=None, categories=None), max_size=30),
    st.sampled_from(
        [
            "",
            " ",
            "\x00",
            "a\ud800",
            "\udfff",
            "\x1b]0;x\x07",
            "\u202etxt",
            "\x85\x9b",
            "a\nb",
            "%s%n{0}",
            "'; DROP TABLE aft_runs; --",
            "../../etc/passwd",
            "x" * 300,
            "x" * 100_000,
            "💣" * 200,
            "\ufeff",
            "null",
            "-1",
            "1e999",
            "@",
            "/",
        ]
    ),
)
scalars = st.one_of(texts, st.none(), st.booleans(), st.integers(), st.floats(), st.just(10**400))
#: Values of all kinds, some of them nested far too deeply.
values = st.one_of(
    st.recursive(
        scalars,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
        max_leaves=8,
    ),
    st.integers(50, 3000).map(lambda depth: _nest(depth)),
)


def _nest(depth: int) -> Any:
    value: Any = "x"
    for number in range(depth):
        value = [value] if number % 2 else {"a": value}
    return value


@aft.activity(name="hostile_step")
def step(value: Any) -> Any:
    return value


@aft.flow(name="hostile_flow")
def flow(value: Any) -> Any:
    step(value)
    return aft.wait_for("word")


@aft.activity(name="hostile_break")
def break_down(value: Any) -> Any:
    raise aft.Unrecoverable("broken")


@aft.flow(name="hostile_broken")
def broken(value: Any) -> Any:
    return break_down(value)


@dataclass
class World:
    """What texts are given to."""

    app: aft.Aft
    schedule: aft.Schedule
    #: A run that was undone, and the id of its fault.
    broken: aft.Run[Any]
    fault: str

    def teach(self, **more: str) -> int:
        """Make a rule of that fault, and put it in force."""
        rules = self.app.rules
        return rules.add(rules.propose(self.fault, "true", "park", **more), accept=True)

    @property
    def other_schedule(self) -> aft.Schedule:
        """A new schedule."""
        return self.app.schedule(f"daily-{secrets.token_hex(4)}", flow.call("x"), cron="0 3 * * *")

    @property
    def run(self) -> aft.Run[Any]:
        """A new run, which has not begun."""
        return self.app.submit(flow.options(after="1h"), "honest")

    def operation(self) -> aft.Operation:
        """A new operation on a new run."""
        return self.order_many("suspend")

    def order_many(self, verb: str, *args: Any, **more: Any) -> aft.Operation:
        """Give an order to many runs, of which there is one."""
        key = secrets.token_hex(4)
        self.app.submit(flow.options(after="1h", key=key), "honest")
        operation: aft.Operation = getattr(self.app.operations, verb)(
            f"key:{key} status:running", *args, note="x", **more
        )
        return operation


@pytest.fixture
def world(setup: Setup) -> World:
    app = setup.app()
    schedule = app.schedule(f"daily-{secrets.token_hex(4)}", flow.call("x"), cron="0 3 * * *")
    run = app.submit(broken, "x")
    with pytest.raises(aft.FlowCompensated), app.dispatcher():
        run.result(60)
    return World(app, schedule, run, app.faults()[0].id)


class Unshowable:
    """What raises whatever is done with it."""

    def __repr__(self) -> str:
        raise RuntimeError("it has no words")

    def __bool__(self) -> bool:
        raise RuntimeError("it is neither true nor false")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("it is like nothing")

    __hash__ = object.__hash__


class Misprinted:
    """What shows as half a character, and as what terminals obey."""

    def __repr__(self) -> str:
        return "\ud800\x1b]0;x\x07" * 1000


class Title(str):
    """A text of a class of its own."""

    __slots__ = ()


def _nest_lists(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


#: What is no text, and hard to show or false besides.
NO_TEXTS: dict[str, Any] = {
    "None": None,
    "an object that cannot be shown": Unshowable(),
    "an object that shows what cannot be written": Misprinted(),
    "a list nested deeply": _nest_lists(10_000),
    "a number too long to be written": 10**5000,
    "a float": float("nan"),
    "zero": 0,
    "bytes": b"daily",
    "no bytes": b"",
    "a dict": {"a": 1},
    "an empty dict": {},
    "an empty list": [],
    "a class": Unshowable,
    "a secret": aft.Secret("hush-hush"),
}


def _exlet(text: str, **more: Any) -> aft.Exlet:
    return aft.Exlet(text, [do.park("look")], **more)


def _undo(world: World, to: Any) -> int:
    world.teach()
    return world.app.rules.undo(("hostile_broken", RuleType.FAULT, "hostile_break"), to)


def _declared(value: Any) -> Any:
    return value


#: What runs are looked for by, besides the text.
SEARCHED = [option for option, hint in Wanted.__annotations__.items() if "str" in str(hint)]


def _look(find: Callable[..., Any], option: str) -> Callable[[World, str], Any]:
    def look(world: World, text: str) -> Any:
        found = find(world.app, **{option: text})
        return found if isinstance(found, int) else list(found)

    return look


#: How a text is given to each parameter that takes one.
GIVES: dict[str, Callable[[World, str], Any]] = {
    "Aft.faults state": lambda world, text: world.app.faults(state=text),
    "Aft.run run_id": lambda world, text: world.app.run(text),
    "Aft.runs where": lambda world, text: world.app.runs(text),
    "Aft.count_runs where": lambda world, text: world.app.count_runs(text),
    "Aft.iter_runs where": lambda world, text: list(world.app.iter_runs(text)),
    **{f"Aft.runs {option}": _look(aft.Aft.runs, option) for option in SEARCHED},
    **{f"Aft.count_runs {option}": _look(aft.Aft.count_runs, option) for option in SEARCHED},
    **{f"Aft.iter_runs {option}": _look(aft.Aft.iter_runs, option) for option in SEARCHED},
    "Aft.schedule name": lambda world, text: world.app.schedule(text, flow.call("x"), cron="0 3 * * *"),
    "Aft.schedule cron": lambda world, text: world.app.schedule("odd", flow.call("x"), cron=text),
    "Aft.schedule zone": lambda world, text: world.app.schedule("odd", flow.call("x"), cron="0 3 * * *", zone=text),
    "Aft.schedule catch_up": lambda world, text: world.app.schedule(
        "odd",
        flow.call("x"),
        cron="0 3 * * *",
        catch_up=text,
    ),
    "Flow.options key": lambda world, text: world.app.submit(flow.options(key=text, after="1h"), "x"),
    "Flow.options owner": lambda world, text: world.app.submit(flow.options(owner=text, after="1h"), "x"),
    "Flow.options resources": lambda world, text: world.app.submit(flow.options(resources=[text], after="1h"), "x"),
    "Flow.options tags": lambda world, text: world.app.submit(flow.options(tags={text: text}, after="1h"), "x"),
    "RuleDesk.add_exlet by": lambda world, text: world.app.rules.add_exlet(_exlet("park_it"), by=text),
    "RuleDesk.add_exlet note": lambda world, text: world.app.rules.add_exlet(_exlet("park_it"), note=text),
    "RuleDesk.exlet name": lambda world, text: world.app.rules.exlet(text),
    "RuleDesk.exlet_history name": lambda world, text: world.app.rules.exlet_history(text),
    "RuleDesk.explain fault_id": lambda world, text: world.app.rules.explain(text),
    "RuleDesk.test fault_id": lambda world, text: world.app.rules.test(text, "true"),
    "RuleDesk.test condition": lambda world, text: world.app.rules.test(world.fault, text),
    "RuleDesk.decide fault_id": lambda world, text: world.app.rules.decide(text, world.app.rules.trees()[0]),
    "RuleDesk.tree flow": lambda world, text: world.app.rules.tree(text, "fault"),
    "RuleDesk.tree on": lambda world, text: world.app.rules.tree("hostile_flow", text),
    "RuleDesk.tree activity": lambda world, text: world.app.rules.tree("hostile_flow", "fault", text),
    "RuleDesk.propose fault_id": lambda world, text: world.app.rules.propose(text, "true", "park"),
    "Operation.cancel by": lambda world, text: world.operation().cancel(by=text),
    "Operation.outcomes state": lambda world, text: world.operation().outcomes(text),
    "Operation.pause by": lambda world, text: world.operation().pause(by=text),
    "Operation.resume by": lambda world, text: world.operation().resume(by=text),
    "OperationDesk.cancel where": lambda world, text: world.app.operations.cancel(text),
    "OperationDesk.compensate where": lambda world, text: world.app.operations.compensate(text),
    "OperationDesk.find_meant where": lambda world, text: world.app.operations.find_meant(Verb.RETRY, text),
    "OperationDesk.force_complete where": lambda world, text: world.app.operations.force_complete(text, 1, note="x"),
    "OperationDesk.force_complete step": lambda world, text: world.order_many("force_complete", 1, step=text),
    "OperationDesk.force_fail where": lambda world, text: world.app.operations.force_fail(text, note="x"),
    "OperationDesk.force_fail step": lambda world, text: world.order_many("force_fail", step=text),
    "OperationDesk.get operation_id": lambda world, text: world.app.operations.get(text),
    "OperationDesk.preview verb": lambda world, text: world.app.operations.preview(text, "all"),
    "OperationDesk.preview where": lambda world, text: world.app.operations.preview("retry", text),
    "OperationDesk.resume where": lambda world, text: world.app.operations.resume(text),
    "OperationDesk.retry where": lambda world, text: world.app.operations.retry(text),
    "OperationDesk.retry args": lambda world, text: world.order_many("retry", args={text: 1}),
    "OperationDesk.retry step": lambda world, text: world.order_many("retry", step=text),
    "OperationDesk.suspend where": lambda world, text: world.app.operations.suspend(text),
    "RuleDesk.propose condition": lambda world, text: world.app.rules.propose(world.fault, text, "park"),
    "RuleDesk.propose exlet": lambda world, text: world.app.rules.propose(world.fault, "true", text),
    "RuleDesk.propose scope": lambda world, text: world.app.rules.propose(world.fault, "true", "park", scope=text),
    "RuleDesk.propose note": lambda world, text: world.teach(note=text),
    "RuleDesk.propose by": lambda world, text: world.teach(by=text),
    "RuleDesk.save_all by": lambda world, text: world.app.rules.save_all([], [_exlet("park_it")], by=text),
    "RuleDesk.save_all note": lambda world, text: world.app.rules.save_all([], [_exlet("park_it")], note=text),
    "RuleDesk.save_all bases": lambda world, text: world.app.rules.save_all([], [_exlet("park_it")], bases={text: 1}),
    "RuleDesk.undo by": lambda world, text: world.app.rules.undo(("hostile_flow", RuleType.FAULT, ""), by=text),
    "Run.cancel note": lambda world, text: world.run.cancel(note=text),
    "Run.cancel by": lambda world, text: world.run.cancel(by=text),
    "Run.compensate to": lambda world, text: world.run.compensate(to=text),
    "Run.compensate note": lambda world, text: world.run.compensate(note=text),
    "Run.compensate by": lambda world, text: world.run.compensate(by=text),
    "Run.failed_step step": lambda world, text: world.run.failed_step(text),
    "Run.force_complete step": lambda world, text: world.run.force_complete(1, note="x", step=text),
    "Run.force_complete note": lambda world, text: world.run.force_complete(1, note=text),
    "Run.force_complete by": lambda world, text: world.run.force_complete(1, note="x", by=text),
    "Run.force_fail step": lambda world, text: world.run.force_fail(note="x", step=text),
    "Run.force_fail note": lambda world, text: world.run.force_fail(note=text),
    "Run.force_fail by": lambda world, text: world.run.force_fail(note="x", by=text),
    "Run.forget note": lambda world, text: world.run.forget(note=text),
    "Run.forget by": lambda world, text: world.run.forget(by=text),
    "Run.frame_done note": lambda world, text: world.run.frame_done(note=text),
    "Run.frame_done by": lambda world, text: world.run.frame_done(note="x", by=text),
    "Run.release note": lambda world, text: world.run.release(note=text),
    "Run.release by": lambda world, text: world.run.release(by=text),
    "Run.resume note": lambda world, text: world.run.resume(note=text),
    "Run.resume by": lambda world, text: world.run.resume(by=text),
    "Run.retry args": lambda world, text: world.run.retry(args={text: 1}),
    "Run.retry step": lambda world, text: world.run.retry(step=text),
    "Run.retry note": lambda world, text: world.run.retry(note=text),
    "Run.retry by": lambda world, text: world.run.retry(by=text),
    "Run.signal name": lambda world, text: world.run.signal(text),
    "Run.signal key": lambda world, text: world.run.signal("word", key=text),
    "Run.signal by": lambda world, text: world.run.signal("word", by=text),
    "Run.skip_frame note": lambda world, text: world.run.skip_frame(note=text),
    "Run.skip_frame by": lambda world, text: world.run.skip_frame(note="x", by=text),
    "Run.suspend reason": lambda world, text: world.run.suspend(text),
    "Run.suspend by": lambda world, text: world.run.suspend("x", by=text),
    "Schedule.pause by": lambda world, text: world.schedule.pause(by=text),
    "Schedule.remove by": lambda world, text: world.other_schedule.remove(by=text),
    "Schedule.resume by": lambda world, text: world.schedule.resume(by=text),
    "Schedule.run_now by": lambda world, text: world.schedule.run_now(by=text),
}
#: How a value is given to parameters that take no text, or not only.
GIVES_OTHERS: dict[str, Callable[[World, Any], Any]] = {
    "Aft.submit flow": lambda world, value: world.app.submit(value, "x"),
    "Aft.submit value": lambda world, value: world.app.submit(flow.options(after="1h"), value),
    "Aft.runs priority": lambda world, value: world.app.runs(priority=value),
    "Aft.runs overdue": lambda world, value: world.app.runs(overdue=value),
    "Aft.runs limit": lambda world, value: world.app.runs(limit=value),
    "Aft.faults limit": lambda world, value: world.app.faults(limit=value),
    "Aft.dispatcher concurrency": lambda world, value: world.app.dispatcher(concurrency=value),
    "Aft.dispatcher only": lambda world, value: world.app.dispatcher(only=[value]),
    "Aft.schedule name alone": lambda world, value: world.app.schedule(value),
    "Aft.schedule call": lambda world, value: world.app.schedule("odd", value, cron="0 3 * * *"),
    "Aft.schedule every": lambda world, value: world.app.schedule("odd", flow.call("x"), every=value),
    "Aft.schedule overlap": lambda world, value: world.app.schedule("odd", flow.call("x"), every="1h", overlap=value),
    "Aft.schedule pinned": lambda world, value: world.app.schedule("odd", flow.call("x"), every="1h", pinned=value),
    "Flow.options priority": lambda world, value: flow.options(priority=value),
    "Flow.options expected": lambda world, value: flow.options(expected=value),
    "Flow.options deadline": lambda world, value: flow.options(deadline=value),
    "Flow.options after": lambda world, value: flow.options(after=value),
    "Flow.options at": lambda world, value: flow.options(at=value),
    "Flow.options resources as a whole": lambda world, value: flow.options(resources=value),
    "Flow.options tags as a whole": lambda world, value: flow.options(tags=value),
    "Flow.options the value of a tag": lambda world, value: flow.options(tags={"a": value}),
    "RuleDesk.add_exlet base": lambda world, value: world.app.rules.add_exlet(_exlet("park_it"), base=value),
    "RuleDesk.add_exlet name": lambda world, value: world.app.rules.add_exlet(_exlet(value)),
    "RuleDesk.add_exlet about": lambda world, value: world.app.rules.add_exlet(_exlet("park_it", about=value)),
    "RuleDesk.save_all name": lambda world, value: world.app.rules.save_all([], [_exlet(value)]),
    "RuleDesk.save_all bases as a whole": lambda world, value: world.app.rules.save_all(
        [], [_exlet("park_it")], bases=value
    ),
    "RuleDesk.save_all base": lambda world, value: world.app.rules.save_all(
        [], [_exlet("park_it")], bases={"park_it": value}
    ),
    "RuleDesk.history limit": lambda world, value: world.app.rules.history(limit=value),
    "RuleDesk.preview limit": lambda world, value: world.app.rules.preview(world.app.rules.trees()[0], value),
    "RuleDesk.tree_at revision": lambda world, value: world.app.rules.tree_at(
        ("hostile_flow", RuleType.FAULT, "*"), value
    ),
    "RuleDesk.undo to": lambda world, value: _undo(world, value),
    "Run.signal value": lambda world, value: world.run.signal("word", value),
    "Run.cancel compensate": lambda world, value: world.run.cancel(compensate=value),
    "Run.compensate dry_run": lambda world, value: world.run.compensate(dry_run=value),
    "Run.result timeout": lambda world, value: world.broken.result(value),
}
#: How a value is given to functions and classes, outside a run.
GIVES_PLAIN: dict[str, Callable[[Any], Any]] = {
    "Aft database": lambda value: aft.Aft(database=value),
    "Aft broker": lambda value: aft.Aft(broker=value),
    "Aft namespace": lambda value: aft.Aft(namespace=value),
    "activity name": lambda value: aft.activity(name=value)(_declared),
    "activity levels": lambda value: aft.activity(levels=value)(_declared),
    "activity a level": lambda value: aft.activity(levels=[value])(_declared),
    "activity immediate": lambda value: aft.activity(immediate=value)(_declared),
    "activity timeout": lambda value: aft.activity(timeout=value)(_declared),
    "activity recoverable": lambda value: aft.activity(recoverable=value)(_declared),
    "activity transactional": lambda value: aft.activity(transactional=value)(_declared),
    "activity probe": lambda value: aft.activity(probe=value)(_declared),
    "activity resource": lambda value: aft.activity(resource=value)(_declared),
    "activity": lambda value: aft.activity(value),
    "compensate_with": lambda value: aft.compensate_with(value)(_declared),
    "compensate_with when": lambda value: aft.compensate_with(step, when=value)(_declared),
    "flow name": lambda value: aft.flow(name=value)(_declared),
    "flow version": lambda value: aft.flow(version=value)(_declared),
    "flow": lambda value: aft.flow(value),
    "savepoint": lambda value: aft.savepoint(value).__enter__(),
    "Recoverable on_signal": lambda value: aft.Recoverable(on_signal=value),
    "Exlet steps": lambda value: aft.Exlet(value, value),
    "do.complete result": lambda value: do.complete(value),
    "do.complete computed": lambda value: do.complete(computed=value),
    "do.fail message": lambda value: do.fail(value),
    "do.fail proceed": lambda value: do.fail("x", value),
    "do.notify url": lambda value: do.notify(value),
    "do.notify note": lambda value: do.notify("https://example.org", value),
    "do.park reason": lambda value: do.park(value),
    "do.remove target": lambda value: do.remove(value),
    "do.remove undo": lambda value: do.remove("run", value),
    "do.resume target": lambda value: do.resume(value),
    "do.retry level": lambda value: do.retry(value),
    "do.retry ladder": lambda value: do.retry(ladder=value),
    "do.retry after": lambda value: do.retry(after=value),
    "do.set args": lambda value: do.set(value),
    "do.set tags": lambda value: do.set(tags={"a": value}),
    "do.set computed": lambda value: do.set(computed={"args.a": value}),
    "do.suspend target": lambda value: do.suspend(value),
    "do.unwind to": lambda value: do.unwind(value),
}
#: Parameters that no text of others reaches, with the reason.
OURS = {
    "Aft.dispatcher only": "names of roles, in code",
    "Activity.owes args": "of the engine",
    "Activity.owes value": "of the engine",
    "Activity.make_probe_call args": "of the engine",
    "Activity.make_probe_call key": "of the engine",
    "Fault.describe_parked why": "of the engine",
}
#: Those that take a text as a key of a dict.
KEYS = ("Flow.options tags", "RuleDesk.save_all bases", "Run.retry args", "OperationDesk.retry args")
PUBLIC = (aft.Aft, aft.Run, aft.Schedule, aft.Operation, OperationDesk, aft.Flow, aft.Activity, aft.Fault, RuleDesk)


def _find_parameters() -> Iterator[str]:
    for owner in PUBLIC:
        for name, member in inspect.getmembers(owner, inspect.isfunction):
            if not name.startswith("_"):
                for parameter in inspect.signature(member).parameters.values():
                    if "Unpack[Wanted]" in str(parameter.annotation):
                        yield from (f"{owner.__name__}.{name} {option}" for option in SEARCHED)
                    elif "str" in str(parameter.annotation):
                        yield f"{owner.__name__}.{name} {parameter.name}"


def test_every_parameter_that_takes_a_text_is_tried_here() -> None:
    assert sorted(_find_parameters()) == sorted([*GIVES, *OURS])


def _give(give: Callable[[], Any]) -> None:
    """Give something; if it is refused, in words that can be shown, and not all over the screen."""
    told = ""
    try:
        give()
    except aft.AftError as refused:
        told = str(refused)
    assert len(told.encode()) < 10_000


def _is_well(world: World, setup: Setup) -> None:
    """Check that what was given harms nobody who comes after."""
    assert world.app.submit(flow.options(after="1h"), "honest").row.flow == "hostile_flow"
    assert world.app.runs(limit=200)
    for words in (["runs", "list"], ["schedules", "list"], ["doctor"]):
        shown = CliRunner().invoke(root, words, env=setup.environ())
        assert shown.exception is None or isinstance(shown.exception, SystemExit), words
        assert shown.output.replace("\n", "").isprintable()


@pytest.mark.parametrize("owner", sorted({name.partition(".")[0] for name in GIVES}))
def test_a_text_is_taken_or_refused(setup: Setup, world: World, owner: str) -> None:
    for name in (one for one in GIVES if one.startswith(f"{owner}.")):
        _try_texts(partial(GIVES[name], world))
    _is_well(world, setup)


def _try_texts(give: Callable[[str], Any]) -> None:
    @HOSTILE
    @given(text=texts)
    def try_one(text: str) -> None:
        _give(lambda: give(text))

    try_one()


def _takes_none(name: str) -> bool:
    """Return whether None may be given to a parameter: then it has its default."""
    function, _, parameter = name.partition(" ")
    owner = next(one for one in PUBLIC if one.__name__ == function.partition(".")[0])
    found = inspect.signature(getattr(owner, function.partition(".")[2])).parameters.get(parameter)
    return found is None or found.default is None


def _find_break(give: Callable[[], Any], *, allowed: bool) -> str | None:
    """Return what is wrong with what became of something given; None if it was refused as it should be, or taken."""
    try:
        give()
        return None if allowed else "taken"
    except aft.AftError as refused:
        told = str(refused)
        return None if told.replace("\n", "").isprintable() and len(told) < 2_000 and "hush" not in told else "told"
    except Exception as raised:
        return type(raised).__name__


@pytest.mark.parametrize("owner", sorted({name.partition(".")[0] for name in GIVES}))
def test_what_is_no_text_is_refused(setup: Setup, world: World, owner: str) -> None:
    broke: list[str] = []
    for name in (one for one in GIVES if one.startswith(f"{owner}.")):
        for what, value in NO_TEXTS.items():
            if name in KEYS and isinstance(value, list | dict):
                continue  # Python itself refuses it as a key
            allowed = value is None and _takes_none(name)
            if wrong := _find_break(partial(GIVES[name], world, value), allowed=allowed):
                broke.append(f"{name} given {what}: {wrong}")
    assert not broke, "\n".join(broke)
    _is_well(world, setup)


@pytest.mark.parametrize("owner", sorted({name.partition(".")[0] for name in GIVES_OTHERS}))
def test_what_does_not_fit_is_taken_or_refused(setup: Setup, world: World, owner: str) -> None:
    broke: list[str] = []
    for name in (one for one in GIVES_OTHERS if one.startswith(f"{owner}.")):
        for what, value in NO_TEXTS.items():
            if wrong := _find_break(partial(GIVES_OTHERS[name], world, value), allowed=True):
                broke.append(f"{name} given {what}: {wrong}")
    assert not broke, "\n".join(broke)
    _is_well(world, setup)


@pytest.mark.parametrize("name", GIVES_PLAIN)
def test_what_does_not_fit_where_it_is_declared_is_taken_or_refused(name: str) -> None:
    broke = {what: _find_break(partial(GIVES_PLAIN[name], value), allowed=True) for what, value in NO_TEXTS.items()}
    assert {what: wrong for what, wrong in broke.items() if wrong} == {}


@pytest.mark.parametrize("owner", sorted({name.partition(".")[0] for name in GIVES}))
def test_a_text_of_a_class_of_its_own_is_a_text(setup: Setup, world: World, owner: str) -> None:
    for name in (one for one in GIVES if one.startswith(f"{owner}.")):
        _give(partial(GIVES[name], world, Title("daily")))
    _is_well(world, setup)


def test_a_value_is_taken_or_refused(setup: Setup, world: World) -> None:
    gives: list[Callable[[Any], Any]] = [
        lambda value: world.app.submit(flow.options(after="1h"), value),
        lambda value: world.run.signal("word", value),
        lambda value: world.app.submit(flow.options(tags={"a": value}, after="1h"), "x"),
    ]

    @HOSTILE
    @given(value=values, give=st.sampled_from(gives))
    def give_it(value: Any, give: Callable[[Any], Any]) -> None:
        _give(lambda: give(value))

    give_it()
    _is_well(world, setup)
