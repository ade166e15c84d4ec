"""A part: a million inputs from outside must not crash, hang or mislead a process.

Doors, each with the claim that is judged:

==============  ====================================================================================================
door            claim
==============  ====================================================================================================
``decoder``     a message that reads the same when it is written again, or ``Refused`` with one printable line
``stored``      a value, or ``CodecError``; nothing else
``values``      text that comes back as the same value, or ``CodecError``
``settings``    ``Settings``, or ``ConfigError`` without the password
``addresses``   an address that does not show its password, or ``ConfigError`` without it
``durations``   a duration or ladder that reads the same when it is spelled, or ``ValueError``
==============  ====================================================================================================

No input may take longer than ``SLOWEST``, and the process may not grow by more than ``MOST_GROWTH``.

And one door at which all of aft stands: ``flood`` publishes garbage, damaged copies, duplicates, old messages and other
runs' ids into the real queues, while healthy runs go through them.
"""

from __future__ import annotations

import os
import random
import re
import resource
import time
import typing
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from multiprocessing import get_context
from typing import Any

from pydantic import BaseModel
from sqlalchemy import func, select

import aft
from aft import codec, durations, envelope, names
from aft.brokers.base import Outgoing, Topology
from aft.brokers.rabbitmq.address import Address
from aft.config import Settings
from aft.envelope import Message, MessageKind, MessageRefused
from aft.errors import CodecError, ConfigError
from aft.flows.exceptions import capture
from aft.ids import FaultId, OrderId, RunId
from aft.recovery.levels import Ladder, read_ladder
from aft.runs.records.quarantine import MOST_KEPT, MOST_ROWS
from aft.runs.states import ENDS
from aft.store.connect import parse_url
from aft.store.tables import quarantine, runs
from aft.telemetry import Event, FaultRaised, MessagesDropped, RunClaimed, ServiceFailed
from chaos import fuzzing, load
from chaos.checker import check, read_facts
from chaos.drive import Driver
from chaos.fuzzing import SECRET
from chaos.load import Plan, plan_of
from chaos.results import Context, Progress, Result, silent
from chaos.setups import Site, private
from tests.setups import eventually, forget_queues

#: Seconds of one processor that an input may take; an address may be one with certificates, which are read then.
SLOWEST = {"settings": 0.5, "addresses": 0.5}
SLOWEST_ELSEWHERE = 0.05
#: Kilobytes that a process may grow by while it is fuzzed.
MOST_GROWTH = 65_536
#: Findings of one kind that are told; the rest are counted.
MOST_TOLD = 3


_NUMBER = re.compile(r"\d+")


class Wrong(Exception):
    """Raised by a judge when an input had an effect that is not allowed."""


@dataclass
class Findings:
    """The findings at one door."""

    door: str
    inputs: int = 0
    read: int = 0
    refused: int = 0
    slowest: float = 0.0
    wrong: dict[str, list[str]] = field(default_factory=dict)

    def tell(self, why: str, given: object) -> None:
        """Record what is wrong, with the input that shows it; a few of each kind."""
        told = self.wrong.setdefault(_NUMBER.sub("N", why), [])
        if len(told) < MOST_TOLD:
            told.append(_shown(given))

    def add(self, other: Findings) -> None:
        """Add the findings of another process."""
        self.inputs += other.inputs
        self.read += other.read
        self.refused += other.refused
        self.slowest = max(self.slowest, other.slowest)
        for why, told in other.wrong.items():
            self.wrong[why] = [*self.wrong.get(why, []), *told][:MOST_TOLD]

    @property
    def violations(self) -> list[str]:
        return [f"{self.door}: {why}: {given}" for why, told in self.wrong.items() for given in told]


#: Makes an input.
Draw = Callable[[random.Random], Any]
#: Tells whether an input was read (True) or refused as it should be (False); raises Wrong, or anything else.
Judge = Callable[[Any], bool]


def fuzz(door: str, seed: str, count: int) -> Findings:
    """Draw ``count`` inputs for one door, and judge each."""
    draw, judge = DOORS[door]
    rng, found = random.Random(f"{door}/{seed}"), Findings(door)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(count):
        _one(found, draw(rng), judge)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    if grown > MOST_GROWTH:
        found.tell(f"the process grew by {grown} kB", seed)
    return found


def fuzz_on_all_processors(door: str, seed: str, count: int) -> Findings:
    """Do the same as ``fuzz`` in two processes, each with its own inputs."""
    whole = Findings(door)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for part in pool.map(fuzz, [door] * 2, [f"{seed}/{number}" for number in range(2)], [-(-count // 2)] * 2):
            whole.add(part)
    return whole


def _one(found: Findings, given: Any, judge: Judge) -> None:
    found.inputs += 1
    begun = time.thread_time()
    try:
        if judge(given):
            found.read += 1
        else:
            found.refused += 1
    except Wrong as wrong:
        found.tell(str(wrong), given)
    except Exception as error:
        found.tell(f"{type(error).__name__} came out", given)
    taken, most = time.thread_time() - begun, SLOWEST.get(found.door, SLOWEST_ELSEWHERE)
    if taken > most:
        taken = min(taken, _again(given, judge))
        if taken > most:
            found.tell("it took too long", given)
    found.slowest = max(found.slowest, taken)


def _again(given: Any, judge: Judge) -> float:
    """Return the shortest of three measurements, so that a busy machine is not taken for a slow input."""
    return min(_taken(given, judge) for _ in range(3))


def _taken(given: Any, judge: Judge) -> float:
    begun = time.thread_time()
    try:
        judge(given)
    except Exception:
        pass
    return time.thread_time() - begun


def _shown(given: object) -> str:
    try:
        text = repr(given)
    except Exception as error:
        text = f"<{type(given).__name__}, whose repr raises {type(error).__name__}>"
    return text if len(text) <= 300 else f"{text[:200]}… {text[-60:]} ({len(text)} characters)"


# --- messages -------------------------------------------------------------------------------------------------------


def judge_message(body: bytes) -> bool:
    """Check that a message decodes to the same when it is encoded again, or is refused in one printable line."""
    try:
        message = envelope.decode(body)
    except MessageRefused as refused:
        reason = str(refused)
        if not reason or not reason.isprintable():
            raise Wrong(f"the reason is not one printable line: {reason[:80]!r}") from None
        return False
    try:
        again = envelope.decode(message.encode().encode())
    except MessageRefused as refused:
        raise Wrong(f"a message that was read is refused when it is written again: {refused}") from None
    if again != message:
        raise Wrong("a message that was read is another when it is written again")
    return True


# --- what lies in rows, and what users pass -----------------------------------------------------------------------


class Line(BaseModel):
    """A model as users declare them."""

    a: int
    b: list[Decimal] = []
    when: datetime | None = None


def _function(a: int, b: Line | None = None, *rest: str, steps: tuple[int, ...] = (), **more: Any) -> None:
    """A function whose arguments are stored."""


_ARGUMENTS = codec.arguments_codec(_function)
_ANNOTATIONS: tuple[Any, ...] = (
    *(Any, int, str, bool | None, bytes, datetime, Line, Decimal, list[Any], dict[str, Any], dict[Any, Any]),
    *(tuple[int, ...], set[str], list[Line], typing.Literal["a", 1], int | str),
)


def judge_stored_text(text: str) -> bool:
    """Check that reading a stored text gives a value or a CodecError, whatever type is declared."""
    read = False
    for decode in (codec.decode_untyped, _ARGUMENTS.decode, *(codec.value_codec(one).decode for one in _ANNOTATIONS)):
        try:
            found = decode(text)
        except CodecError as error:
            _check_text(error, "CodecError")
            continue
        read = True
        if decode == _ARGUMENTS.decode:
            _call(found)
    return read


def _call(found: dict[str, Any]) -> None:
    try:
        _ARGUMENTS.call_arguments(found)
    except CodecError as error:
        _check_text(error, "CodecError")


def judge_value(value: Any) -> bool:
    """Check that encoding a value gives text that decodes to the same value, or a CodecError."""
    kept = capture.store(Exception(value))
    codec.decode_untyped(kept.args)
    written = False
    for one in _ANNOTATIONS:
        known = codec.value_codec(one)
        try:
            text = known.encode(value, "value")
        except CodecError as error:
            _check_text(error, "CodecError")
            continue
        written = True
        if known.encode(known.decode(text), "value") != text:
            raise Wrong(f"a value of {one} is another when it was stored")
    return written


# --- settings -------------------------------------------------------------------------------------------------------

_FIELDS = tuple(Settings.model_fields)


def a_settings_input(rng: random.Random) -> dict[str, str]:
    """Return some variables, without NUL, which no variable can contain."""
    names = [rng.choice((*_FIELDS, *_FIELDS, "lese", "database_urls")) for _ in range(rng.choice((1, 1, 2, 4)))]
    return {f"AFT_{name.upper()}": fuzzing.a_setting(rng).replace("\x00", "") for name in names}


def judge_settings(given: dict[str, str]) -> bool:
    """Check that settings are read or refused, and that no text of either shows a password."""
    try:
        with _environ(given):
            settings = Settings.load()
        parse_url(settings.database_url)
        Ladder.parse(settings.levels)
        if settings.broker_url != "embedded":
            Address.parse(settings.broker_url)
    except ConfigError as error:
        _check_text(error, "ConfigError")
        return False
    except ValueError as error:
        if type(error) is not ValueError:
            raise
        return False  # Ladder.parse; whoever makes an app turns it into a ConfigError
    if SECRET in repr(settings):
        raise Wrong("the settings show a password")
    return True


def judge_url(url: str) -> bool:
    """Check that a URL is read or refused, and that no text of either shows its password."""
    read = False
    for parse in (Address.parse, parse_url):
        try:
            found = parse(url)
        except ConfigError as error:
            _check_text(error, "ConfigError")
            continue
        read = True
        password = getattr(found, "password", None) or SECRET
        if isinstance(found, Address) and f":{SECRET}@" in url and password in f"{found!r} {found}":
            raise Wrong("an address shows its password")
    return read


@contextmanager
def _environ(given: dict[str, str]) -> Iterator[None]:
    before = {name: value for name, value in os.environ.items() if name.startswith("AFT_")}
    try:
        for name in before:
            del os.environ[name]
        for name, value in given.items():
            os.environ[name] = value.encode("utf-8", "replace").decode()
        yield
    finally:
        for name in given:
            os.environ.pop(name, None)
        os.environ.update(before)


def _check_text(error: Exception, name: str) -> None:
    """Check that an error has a text, and that neither it nor its causes show a password."""
    if type(error).__name__ != name or not str(error):
        raise Wrong(f"{type(error).__name__} without a text")
    cause: BaseException | None = error
    while cause is not None:
        if SECRET in str(cause):
            raise Wrong(f"the text of a {type(cause).__name__} under a {name} gives the password away")
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


# --- durations and ladders ------------------------------------------------------------------------------------------


def judge_duration(text: str) -> bool:
    """Check that a duration or ladder reads the same when it is formatted, or is refused with a ValueError."""
    read = False
    try:
        found = durations.parse(text)
        read = True
        if abs(durations.parse(durations.format(found)) - found) > durations.parse("1ms"):
            raise Wrong(f"{found!r} is another duration when it is spelled")
    except ValueError as error:
        _check_plain(error)
    try:
        ladder = Ladder.parse(text)
        read = True
        if read_ladder(ladder.stored) != ladder:
            raise Wrong("a ladder is another when it was stored")
    except ValueError as error:
        _check_plain(error)
    return read


def _check_plain(error: ValueError) -> None:
    if type(error) is not ValueError or not str(error):
        raise Wrong(f"{type(error).__name__} and not a ValueError with a text")


def a_duration_or_ladder(rng: random.Random) -> str:
    return rng.choice((fuzzing.a_duration, fuzzing.a_ladder))(rng)


DOORS: dict[str, tuple[Draw, Judge]] = {
    "decoder": (fuzzing.an_input, judge_message),
    "stored": (fuzzing.a_stored_text, judge_stored_text),
    "values": (fuzzing.a_python_value, judge_value),
    "settings": (a_settings_input, judge_settings),
    "addresses": (fuzzing.a_url, judge_url),
    "durations": (a_duration_or_ladder, judge_duration),
}


# --- into the queues, while healthy runs go through them ----------------------------------------------------------


class Busy(Exception):
    """Raised by an attempt that has to wait for a long time."""


@aft.activity(levels=[aft.Level("1h")], recoverable=(Busy,))
def call_later() -> None:
    """Fail, so that the run waits."""
    raise Busy


@aft.flow
def waiting_flow() -> None:
    """Wait for an hour."""
    call_later()


@aft.flow
def mistaken_flow() -> None:
    """Raise a programming error, so that the run parks."""
    raise TypeError("a mistake in the flow")


#: What a service says whose step has ended before the broker was connected to; the next one goes on with that.
_CONNECTING = "no connection to RabbitMQ at "


@dataclass
class Overheard:
    """What an eavesdropper can know of a namespace: its runs, its faults, and its used wakes."""

    used: list[tuple[str, str]] = field(default_factory=list)
    faults: list[tuple[str, str]] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    #: Refused messages that were not kept.
    dropped: int = 0

    def hear(self, event: Event) -> None:
        """Record an event. Subscribe this."""
        self.seen[event.name] += 1
        if isinstance(event, RunClaimed) and event.wake != "due":
            self.used.append((event.run, event.wake))
        elif isinstance(event, MessagesDropped):
            self.dropped += event.count
        elif isinstance(event, FaultRaised):
            self.faults.append((event.run, event.fault))
        elif isinstance(event, ServiceFailed) and not event.why.startswith(_CONNECTING):
            self.failed.append(f"{event.service}: {event.why}")


@dataclass
class Flood:
    """Generates bad messages for the queues of one namespace; ``strangers`` are (run, wake) of another one."""

    namespace: str
    overheard: Overheard
    bystanders: list[str]
    strangers: list[tuple[str, str]]
    rng: random.Random
    sent: Counter[str] = field(default_factory=Counter)
    malformed: int = 0

    def draw(self) -> Outgoing:
        """Make one bad message, for a queue where it must have no effect."""
        kind = self.rng.choice(tuple(_BAD))
        queue, body = _BAD[kind](self)
        self.sent[kind] += 1
        self.malformed += not _is_sound(body)
        return Outgoing(queue, body)

    def queue(self) -> str:
        """Return one of the three work queues."""
        return self.rng.choice((names.faults, names.resume, names.compensate))(self.namespace)

    def used(self) -> tuple[str, str]:
        """Return a run, and a wake that it was woken by before."""
        return self.rng.choice(self.overheard.used or [self.stranger()])

    def stranger(self) -> tuple[str, str]:
        """Return a run of another namespace, and the wake that it awaits there."""
        return self.rng.choice(self.strangers)

    def message(self, run: str, wake: str, kind: MessageKind | None = None) -> bytes:
        """Encode a well-formed message."""
        kind = kind or self.rng.choice(tuple(MessageKind))
        at = datetime.fromtimestamp(self.rng.uniform(0, 4e9), UTC)
        if kind is MessageKind.RESUME and self.rng.random() < 0.5:
            return Message.about_order(RunId(run), OrderId(wake), at).encode().encode()
        return Message.about_fault(kind, RunId(run), FaultId(wake), at).encode().encode()


def _garbage(flood: Flood) -> tuple[str, bytes]:
    return flood.queue(), fuzzing.an_input(flood.rng)


def _damaged(flood: Flood) -> tuple[str, bytes]:
    return flood.queue(), fuzzing.damaged(flood.rng, flood.message(*flood.used()))


def _replayed(flood: Flood) -> tuple[str, bytes]:
    return flood.queue(), flood.message(*flood.used())


def _repeated_fault(flood: Flood) -> tuple[str, bytes]:
    """Return a copy of a fault's own message; also of runs that wait or are parked."""
    run, fault = flood.rng.choice(flood.overheard.faults or [flood.stranger()])
    return names.faults(flood.namespace), flood.message(run, fault, MessageKind.FAULT)


def _mismatched(flood: Flood) -> tuple[str, bytes]:
    """Return a message that names a run, and a fault or an order of another run."""
    run, wake = flood.used()[0], flood.rng.choice([*flood.overheard.faults[-20:], flood.used()])
    return flood.queue(), flood.message(run, wake[1] if wake[0] != run else "nothing")


def _bystander(flood: Flood) -> tuple[str, bytes]:
    """Return a message for a run that is parked or waits, with the wake of another run."""
    return flood.queue(), flood.message(flood.rng.choice(flood.bystanders), flood.used()[1])


def _foreign(flood: Flood) -> tuple[str, bytes]:
    return flood.queue(), flood.message(*flood.stranger())


_BAD: dict[str, Callable[[Flood], tuple[str, bytes]]] = {
    "garbage": _garbage,
    "damaged": _damaged,
    "replayed": _replayed,
    "repeated fault": _repeated_fault,
    "other run's wake": _mismatched,
    "run at rest": _bystander,
    "other namespace": _foreign,
}


def _is_sound(body: bytes) -> bool:
    try:
        envelope.decode(body)
    except MessageRefused:
        return False
    return True


def flood(
    site: Site,
    plans: list[Plan],
    messages: int,
    seed: int,
    progress: Progress = silent,
    patience: float | None = None,
) -> Result:
    """Publish bad messages while plans use the same queues, and check that they have no effect.

    ``patience`` is how many seconds may pass in which no run ends; three leases, if it is not given.
    """
    begun, overheard = time.monotonic(), Overheard()
    other = site.another()
    with _environ(site.environ()), site.app() as app, other.app() as elsewhere:
        app.telemetry.subscribe(overheard.hear)
        strangers = [str(elsewhere.submit(load.chaos_flow, plans[0].encode()).id) for _ in range(5)]
        with app.dispatcher(concurrency=8):
            resting = _bystanders(app)
            before = _rows(app, [*resting, *strangers])
            bad = Flood(app.namespace, overheard, resting, _wakes(app, strangers), random.Random(f"flood {seed}"))
            with Driver(site, plans, progress=progress) as driver:
                _publish(app, bad, driver, messages, progress)
                # What does not come to rest is told by the checker, which run it is and how it stands.
                _wait(driver, patience or 3 * site.lease, lambda: _at_rest(app, plans) and not _left(app))
                left = _left(app)
        facts = read_facts(app.store, app.namespace)
        violations = [str(each) for each in check(plans, site.ledger.read(), facts)]
        violations += _changed(before, _rows(app, list(before)))
        violations += [f"a service failed: {why}" for why in overheard.failed]
        violations += [f"{left} messages were left in the queues"] if left else []
        violations += _unquarantined(app, bad)
        forget(app)
    figures = {"malformed": bad.malformed, "quarantined": overheard.seen["MessageQuarantined"]}
    figures["ignored"] = overheard.seen["WakeIgnored"]
    seconds = time.monotonic() - begun
    return Result(f"flood {site.name}", seed, len(plans), dict(bad.sent), violations, seconds, figures)


def _bystanders(app: aft.Aft) -> list[str]:
    """Make two runs that must not change: one is parked, one waits."""
    made = [app.submit(mistaken_flow), app.submit(waiting_flow)]
    eventually(lambda: made[0].status == "parked" and made[1].status == "recovering")
    eventually(lambda: not _left(app) and all(fault.state != "open" for fault in app.faults()))
    return [run.id for run in made]


def _publish(app: aft.Aft, bad: Flood, driver: Driver, messages: int, progress: Progress) -> None:
    """Publish the bad messages at the pace of the healthy runs, all before the last of those has ended."""
    rest, total = messages, len(driver.plans)
    while rest:
        share = min(1.0, driver.look().resting / max(1, total - driver.backlog))
        due = rest if share >= 1.0 else max(0, int(messages * share) + 50 - (messages - rest))
        batch = [bad.draw() for _ in range(min(rest, due, 200))]
        if batch:
            app.broker.publish(batch)
        rest -= len(batch)
        progress(messages - rest, messages, "flooding")


def _wait(driver: Driver, patience: float, claim: Callable[[], bool]) -> None:
    """Wait until ``claim`` is true, or nothing has changed for ``patience`` seconds."""
    changed, before = time.monotonic(), driver.seen
    while not claim() and time.monotonic() - changed < patience:
        if driver.look() != before:
            changed, before = time.monotonic(), driver.seen
        time.sleep(0.05)


def _at_rest(app: aft.Aft, plans: list[Plan]) -> bool:
    with app.store.read() as connection:
        ended = runs.c.status.in_([status.value for status in ENDS])
        here = runs.c.namespace == app.namespace
        many = connection.execute(select(func.count()).select_from(runs).where(here, ended)).scalar_one()
    return bool(many == len(plans))


def _left(app: aft.Aft) -> int:
    """Count the messages in the work queues; delay queues are left out, as a run waits there."""
    topology = Topology(app.namespace)
    return sum(queue.messages for queue in app.broker.status(topology) if queue.name in topology.work_queues)


def _rows(app: aft.Aft, ids: list[str]) -> dict[str, dict[str, Any]]:
    with app.store.read() as connection:
        found = connection.execute(select(runs).where(runs.c.id.in_(ids)))
        return {row.id: dict(row._mapping) for row in found}


def _wakes(app: aft.Aft, ids: list[str]) -> list[tuple[str, str]]:
    return [(run, row["wake_id"]) for run, row in _rows(app, ids).items()]


def _changed(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> list[str]:
    return [
        f"run {run} of namespace {row['namespace']} was touched: {name} was {value}, is {after[run][name]}"
        for run, row in before.items()
        for name, value in row.items()
        if after[run][name] != value
    ]


def _unquarantined(app: aft.Aft, bad: Flood) -> list[str]:
    """Return what is wrong: malformed messages are quarantined or counted, and no others are.

    Of the last second, what was not kept may not have been told yet.
    """
    with app.store.read() as connection:
        here = quarantine.c.namespace == app.namespace
        kept = connection.execute(select(func.count()).select_from(quarantine).where(here)).scalar_one()
        largest = connection.execute(select(func.max(func.length(quarantine.c.body))).where(here)).scalar() or 0
    wrong = []
    dropped = bad.overheard.dropped
    least = 1 if dropped else min(bad.malformed, MOST_ROWS)
    if not least <= kept <= min(bad.sent.total(), MOST_ROWS * 1.1):
        wrong.append(
            f"quarantine holds {kept} messages, {dropped} were dropped; "
            f"{bad.malformed} of {bad.sent.total()} were malformed"
        )
    if largest > MOST_KEPT:
        wrong.append(f"quarantine keeps {largest} bytes of a message")
    return wrong


def forget(app: aft.Aft) -> None:
    """Remove the namespace's queues from a broker that is shared."""
    if app.settings.broker_url.startswith("amqp"):
        forget_queues(app.settings.broker_url, app.delays().topology())


# --- the part -------------------------------------------------------------------------------------------------------

#: Inputs at each door, in the long profile and in a small one.
INPUTS = {
    "decoder": (1_000_000, 5_000),
    "stored": (100_000, 500),
    "values": (50_000, 100),
    "settings": (20_000, 200),
    "addresses": (20_000, 200),
    "durations": (200_000, 1_000),
}
#: Bad messages, and healthy runs beside them, on each of these.
MESSAGES, RUNS = 6_000, 600
FLOODED = ("postgresql+rabbitmq", "sqlite+embedded")


def run(ctx: Context) -> Result:
    """Fuzz every door, then flood private servers."""
    begun = time.monotonic()
    violations: list[str] = []
    injected: Counter[str] = Counter()
    figures: dict[str, Any] = {}
    for place, (door, (full, quick)) in enumerate(INPUTS.items()):
        ctx.progress(place, len(INPUTS) + len(FLOODED), door)
        found = fuzz_on_all_processors(door, str(ctx.seed), ctx.size(full, quick))
        violations += found.violations
        injected[f"inputs at {door}"] += found.inputs
        figures[door] = {"read": found.read, "refused": found.refused, "slowest ms": round(found.slowest * 1000, 1)}
    plans = [plan_of(ctx.seed, number, slow=0.0) for number in range(ctx.size(RUNS, 40))]
    for place, combination in enumerate(FLOODED):
        ctx.progress(len(INPUTS) + place, len(INPUTS) + len(FLOODED), combination)
        with private(combination, ctx.directory / combination) as site:
            result = flood(site, plans, ctx.size(MESSAGES, 300), ctx.seed)
        violations += [f"{result.name}: {each}" for each in result.violations]
        injected.update({f"messages, {kind}": many for kind, many in result.faults.items()})
        figures[result.name] = result.figures
    seconds, many = time.monotonic() - begun, len(plans) * len(FLOODED)
    return Result("fuzz", ctx.seed, many, dict(injected), violations, seconds, figures, ctx.quick)
