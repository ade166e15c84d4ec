"""Claims about notices: each is heard at least once, or given up with a reason; a dead receiver harms only itself."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, select, update

from aft.dispatcher.notify.notices import DOUBTED, NoticeSender
from aft.dispatcher.notify.receivers import Receivers
from aft.errors import StoreError
from aft.ids import NoticeId, RunId
from aft.runs.records import notices
from aft.runs.records.notices import HOLD, Notice, NoticeState
from aft.security.signing import verify
from aft.store.db_time import later, now
from aft.store.tables import notices as table
from aft.telemetry import Event, NoticeAcknowledged, NoticeFailed, NoticeGivenUp
from tests.setups import Setup, eventually
from tests.storing import Stage, at_once

SECRET = "a secret of the two of us"
#: Seconds after which a test that waits for something has failed.
LONG = 60.0
#: Seconds until the second attempt: so many that a slow machine does not see it come.
FIRST_WAIT = 100.0


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "FIRST_WAIT", FIRST_WAIT)


@dataclass
class Request:
    """What a receiver got."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["Aft-Notice"]


Reply = Callable[["Handler"], None]


def reply(status: int, body: bytes = b"", **headers: str) -> Reply:
    """Answer with a status."""

    def answer(handler: Handler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def hang(handler: Handler) -> None:
    """Answer nothing, until the test is over."""
    handler.receiver.over.wait(LONG)


def drip(handler: Handler) -> None:
    """Answer a byte now and then, and never come to an end."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not handler.receiver.over.wait(0.02):
        handler.wfile.write(b".")


def flood(handler: Handler) -> None:
    """Answer, and never come to an end."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not handler.receiver.over.is_set():
        handler.wfile.write(b"." * 65536)


class Handler(BaseHTTPRequestHandler):
    """One request."""

    receiver: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = self.receiver.next_reply(Request(self.path, dict(self.headers), body))
        try:
            answer(self)
        except OSError:
            self.close_connection = True  # the sender has hung up

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the tests say what happened."""


@dataclass
class Receiver:
    """A server on loopback that answers as it is told, at last always 200."""

    replies: list[Reply] = field(default_factory=list)
    got: list[Request] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    always: Reply = field(default_factory=lambda: reply(200, b"thank you"))

    def __enter__(self) -> Receiver:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"receiver": self}))
        self._server.daemon_threads = False  # joined when it is closed
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.01])
        self._thread.start()
        self._lock = threading.Lock()
        return self

    def __exit__(self, *exc: object) -> None:
        self.over.set()
        self._server.shutdown()
        self._thread.join(LONG)
        self._server.server_close()

    def url(self, path: str = "/hook?a=b") -> str:
        return f"http://127.0.0.1:{self._server.server_port}{path}"

    @property
    def ids(self) -> list[str]:
        return [request.id for request in self.got]

    def next_reply(self, request: Request) -> Reply:
        with self._lock:
            answer = self.replies.pop(0) if self.replies else self.always
            self.got.append(request)  # last: whoever sees it may change what the next one gets
            return answer


Listen = Callable[..., Receiver]


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Make receivers; they are closed at the end."""
    with ExitStack() as stack:

        def begin(*replies: Reply, always: Reply | None = None) -> Receiver:
            made = Receiver(list(replies))
            made.always = always or made.always
            return stack.enter_context(made)

        yield begin


def sender(stage: Stage, secret: str | None = SECRET, limit: float = LONG, chance: float = 0.0) -> NoticeSender:
    return NoticeSender(
        stage.dispatcher_deps(),
        secrets=[] if secret is None else [secret],
        receivers=Receivers(["127.0.0.1", "localhost"]),
        limit=limit,
        chance=lambda: chance,
    )


def send_due(service: NoticeSender) -> None:
    """Go on until nothing is due and nothing under way."""
    deadline = time.monotonic() + LONG
    while service.step() == 0.0:
        assert time.monotonic() < deadline, "it does not come to an end"


def put(stage: Stage, url: str, **body: Any) -> NoticeId:
    run = stage.queued()
    with stage.store.write() as connection:
        return notices.put(connection, stage.namespace, run.id, url, body)


def look(stage: Stage, notice_id: NoticeId) -> Notice:
    with stage.store.read() as connection:
        run = connection.execute(select(table.c.run_id).where(table.c.id == notice_id)).scalar_one()
        found = {each.id: each for each in notices.of_run(connection, RunId(run))}
    return found[notice_id]


def due_in(stage: Stage, notice_id: NoticeId) -> float:
    """Seconds until it is sent again."""
    with stage.store.read() as connection:
        statement = select(table.c.due_at, now()).where(table.c.id == notice_id)
        due, at = connection.execute(statement).one()
    return float((due - at).total_seconds())


def change(stage: Stage, **values: Any) -> None:
    """Change all open ones by hand."""
    with stage.store.write() as connection:
        mine = (table.c.namespace == stage.namespace) & (table.c.state == NoticeState.OPEN)
        connection.execute(update(table).where(mine).values(**values))


def let_time_pass(stage: Stage) -> None:
    change(stage, due_at=later(-1))


def told(stage: Stage, *kinds: type[Event]) -> list[Event]:
    return [
        event for event in stage.events if isinstance(event, kinds or (NoticeAcknowledged, NoticeFailed, NoticeGivenUp))
    ]


# Being heard --------------------------------------------------------------------------------------------------------


def test_a_notice_is_posted_signed_and_with_its_id(stage: Stage, listen: Listen) -> None:
    receiver = listen()
    notice = put(stage, receiver.url(), note="look", text="übel", id="not this")
    send_due(sender(stage))
    [request] = receiver.got
    assert json.loads(request.body) == {"id": notice, "note": "look", "text": "übel"}
    assert (request.path, request.id, request.headers["Content-Type"]) == ("/hook?a=b", notice, "application/json")
    assert verify(SECRET, request.body, request.headers["Aft-Signature"], time.time())
    assert not verify("another", request.body, request.headers["Aft-Signature"], time.time())
    found = look(stage, notice)
    assert (found.state, found.attempts, found.note) == (NoticeState.HEARD, 1, None)
    assert found.ended_at is not None
    assert told(stage) == [
        NoticeAcknowledged(notice=notice, run=found.run_id, receiver=receiver.url("/"), attempt=1),
    ]


def test_without_a_secret_nothing_is_signed(stage: Stage, listen: Listen) -> None:
    receiver = listen()
    put(stage, receiver.url())
    send_due(sender(stage, secret=None))
    assert "Aft-Signature" not in receiver.got[0].headers


def test_what_was_heard_is_not_sent_again(stage: Stage, listen: Listen) -> None:
    receiver = listen()
    put(stage, receiver.url())
    send_due(sender(stage))
    change(stage, due_at=later(-1))
    send_due(sender(stage))
    assert len(receiver.got) == 1


def test_a_count_at_its_end_keeps_no_other_notice_from_being_sent(stage: Stage, listen: Listen) -> None:
    receiver = listen()
    put(stage, receiver.url("/spoilt"))
    change(stage, attempts=2**31 - 1)
    put(stage, receiver.url("/good"))
    send_due(sender(stage))
    assert len(receiver.got) == 2


def test_a_notice_is_written_with_what_it_tells_of_or_not_at_all(stage: Stage) -> None:
    run = stage.queued()
    with suppress(InterruptedError), stage.store.write() as connection:
        notices.put(connection, stage.namespace, run.id, "http://127.0.0.1/", {})
        raise InterruptedError
    with stage.store.read() as connection:
        assert notices.of_run(connection, run.id) == []


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("file:///etc/passwd", {}),
        ("http://h/", {"x": float("nan")}),
        ("http://h/", {"x": "x" * 1_048_576}),
    ],
)
def test_what_cannot_be_sent_is_not_written(sqlite_stage: Stage, url: str, body: dict[str, Any]) -> None:
    run = sqlite_stage.queued()
    with pytest.raises(ValueError), sqlite_stage.store.write() as connection:
        notices.put(connection, sqlite_stage.namespace, run.id, url, body)


def test_another_namespace_s_notices_are_not_sent(stage: Stage, listen: Listen) -> None:
    receiver = listen()
    put(stage, receiver.url())
    stage.namespace = f"t{secrets.token_hex(6)}"
    assert sender(stage).step() > 0
    assert receiver.got == []


# Not being heard ----------------------------------------------------------------------------------------------------


def test_what_was_not_heard_is_sent_again_later_and_later(stage: Stage, listen: Listen) -> None:
    receiver = listen(reply(503, b"too\x00 much\r\n to do"), reply(500))
    notice = put(stage, receiver.url())
    service = sender(stage, chance=0.5)
    waits = []
    for _ in range(2):
        send_due(service)
        waits.append(due_in(stage, notice))
        let_time_pass(stage)
    send_due(service)
    assert waits == [pytest.approx(150, abs=LONG), pytest.approx(300, abs=LONG)]
    assert receiver.ids == [notice] * 3
    first, second, third = told(stage)
    assert isinstance(first, NoticeFailed)
    assert (first.attempt, first.why) == (1, "503 Service Unavailable too much to do")
    assert isinstance(second, NoticeFailed)
    assert isinstance(third, NoticeAcknowledged)
    assert third.attempt == 3
    assert (look(stage, notice).state, look(stage, notice).attempts) == (NoticeState.HEARD, 3)


def test_until_it_is_due_it_is_not_sent_again(stage: Stage, listen: Listen) -> None:
    receiver = listen(reply(503))
    put(stage, receiver.url())
    service = sender(stage)
    send_due(service)
    assert 0 < service.step() <= 1.0
    assert len(receiver.got) == 1


@pytest.mark.parametrize(("asked", "waits"), [("150", 150), ("9999999", 3600), ("0", 100), ("soon", 100)])
def test_a_receiver_may_ask_for_time_within_bounds(sqlite_stage: Stage, listen: Listen, asked: str, waits: int) -> None:
    receiver = listen(reply(429, Retry_After=asked))
    notice = put(sqlite_stage, receiver.url())
    send_due(sender(sqlite_stage))
    assert len(receiver.got) == 1
    assert due_in(sqlite_stage, notice) == pytest.approx(waits, abs=LONG)


def test_a_redirect_is_not_followed(stage: Stage, listen: Listen) -> None:
    elsewhere = listen()
    receiver = listen(reply(307, Location=elsewhere.url("/secret")))
    notice = put(stage, receiver.url())
    send_due(sender(stage))
    assert elsewhere.got == []
    found = look(stage, notice)
    assert found.state is NoticeState.OPEN
    assert found.note == f"307 redirects are not followed, this one leads to {elsewhere.url('/secret')}"


@pytest.mark.parametrize("status", [400, 404, 410])
def test_what_is_refused_is_given_up_at_once(stage: Stage, listen: Listen, status: int) -> None:
    receiver = listen(reply(status, b"never \x00\xff\n again", Retry_After="5"))
    notice = put(stage, receiver.url())
    send_due(sender(stage))
    let_time_pass(stage)
    send_due(sender(stage))
    found = look(stage, notice)
    assert (found.state, len(receiver.got)) == (NoticeState.GIVEN_UP, 1)
    assert found.note is not None
    assert found.note.startswith(f"{status} ")
    assert found.note.endswith("never � again")
    [event] = told(stage)
    assert isinstance(event, NoticeGivenUp)
    assert event.why == found.note


def test_what_was_not_heard_for_days_is_given_up_with_the_last_reason(stage: Stage, listen: Listen) -> None:
    receiver = listen(reply(503), reply(503))
    notice = put(stage, receiver.url())
    almost = notices.PATIENCE - timedelta(minutes=1)
    change(stage, made_at=later(-almost.total_seconds()))
    send_due(sender(stage))
    assert look(stage, notice).state is NoticeState.OPEN
    change(stage, made_at=later(-notices.PATIENCE.total_seconds() - 1), due_at=later(-1))
    send_due(sender(stage))
    found = look(stage, notice)
    assert found.state is NoticeState.GIVEN_UP
    assert found.note == "not heard for 3 days; at last: 503 Service Unavailable"
    assert [type(event) for event in told(stage)] == [NoticeFailed, NoticeGivenUp]


def test_a_url_that_was_written_by_hand_is_given_up(stage: Stage) -> None:
    notice = put(stage, "http://127.0.0.1/")
    change(stage, url="file:///etc/passwd")
    send_due(sender(stage))
    assert look(stage, notice).state is NoticeState.GIVEN_UP


def test_nobody_listening_is_tried_again(stage: Stage) -> None:
    with Receiver() as gone:
        url = gone.url()
    notice = put(stage, url)
    send_due(sender(stage))
    found = look(stage, notice)
    assert found.state is NoticeState.OPEN
    assert "refused" in (found.note or "")


# Receivers that take their time -------------------------------------------------------------------------------------


@pytest.mark.parametrize("never", [hang, drip], ids=["hangs", "drips"])
def test_a_receiver_that_does_not_answer_in_time_is_tried_again(stage: Stage, listen: Listen, never: Reply) -> None:
    receiver = listen(never)
    notice = put(stage, receiver.url())
    begun = time.monotonic()
    send_due(sender(stage, limit=1))
    assert time.monotonic() - begun < LONG / 2
    assert look(stage, notice).note == "no answer within 1 s"
    let_time_pass(stage)
    send_due(sender(stage))
    assert look(stage, notice).state is NoticeState.HEARD
    assert receiver.ids == [notice] * 2


def test_an_answer_without_end_is_not_read_to_its_end(stage: Stage, listen: Listen) -> None:
    receiver = listen(flood)
    notice = put(stage, receiver.url())
    send_due(sender(stage))
    assert look(stage, notice).state is NoticeState.HEARD


def test_a_receiver_that_hangs_does_not_delay_another(stage: Stage, listen: Listen) -> None:
    dead, alive = listen(always=hang), listen()
    for _ in range(6):
        put(stage, dead.url())
    others = [put(stage, alive.url()) for _ in range(6)]
    service = sender(stage)

    def goes_on() -> bool:
        service.step()
        return all(look(stage, each).state is NoticeState.HEARD for each in others)

    eventually(goes_on)
    eventually(lambda: dead.got)
    assert told(stage, NoticeFailed) == []  # the dead one's is still under way
    assert len(dead.got) == 1
    dead.over.set()
    assert service.close()


def spread(stage: Stage, listening: list[Receiver], alive: Receiver, service: NoticeSender) -> NoticeId:
    """Write a notice to each of these, and after them one to a receiver that answers; go on until it was heard."""
    for each in listening:
        put(stage, each.url())
    last = put(stage, alive.url())

    def goes_on() -> bool:
        service.step()
        return look(stage, last).state is NoticeState.HEARD

    eventually(goes_on)
    return last


def test_many_receivers_that_hang_do_not_delay_one_that_has_answered(stage: Stage, listen: Listen) -> None:
    dead, alive, service = [listen(always=hang) for _ in range(6)], listen(), sender(stage)
    put(stage, alive.url())
    send_due(service)
    spread(stage, dead, alive, service)
    for each in dead:
        each.over.set()
    assert service.close()


def test_a_dispatcher_that_has_just_started_knows_who_has_answered(stage: Stage, listen: Listen) -> None:
    dead, alive, service = [listen(always=hang) for _ in range(6)], listen(), sender(stage)
    put(stage, alive.url())
    send_due(sender(stage))
    spread(stage, dead, alive, service)
    for each in dead:
        each.over.set()
    assert service.close()


def test_whoever_takes_long_to_answer_counts_as_one_who_does_not(stage: Stage, listen: Listen) -> None:
    def late(handler: Handler) -> None:
        stage.clock.passed += LONG / 2
        reply(200)(handler)

    slow, alive, service = [listen(late, always=hang) for _ in range(6)], listen(), sender(stage)
    put(stage, alive.url())
    send_due(service)
    for each in slow:
        put(stage, each.url())
        send_due(service)
    spread(stage, slow, alive, service)
    for each in slow:
        each.over.set()
    assert service.close()


def test_those_that_answered_once_and_fail_since_leave_a_request_to_others(stage: Stage, listen: Listen) -> None:
    failing, alive, service = [listen(reply(200), reply(503), always=hang) for _ in range(6)], listen(), sender(stage)
    for _ in range(2):
        for each in [*failing, alive]:
            put(stage, each.url())
        send_due(service)
    assert len(told(stage, NoticeFailed)) == 6
    spread(stage, failing, alive, service)
    for each in failing:
        each.over.set()
    assert service.close()


def test_a_dispatcher_that_has_just_started_does_not_trust_those_that_fail_since(stage: Stage, listen: Listen) -> None:
    failing, alive, before = [listen(reply(200), reply(503), always=hang) for _ in range(6)], listen(), sender(stage)
    for _ in range(2):
        for each in [*failing, alive]:
            put(stage, each.url())
        send_due(before)
    service = sender(stage)
    spread(stage, failing, alive, service)
    for each in failing:
        each.over.set()
    assert service.close()


def test_one_that_answered_and_is_silent_now_has_no_more_requests_than_those_under_way(
    stage: Stage, listen: Listen
) -> None:
    silent, others, alive = listen(reply(200), always=hang), [listen(always=hang) for _ in range(3)], listen()
    service = sender(stage)
    for each in (silent, alive):
        put(stage, each.url())
        send_due(service)
    put(stage, silent.url())
    eventually(lambda: service.step() >= 0 and len(silent.got) == 2)
    stage.clock.passed += LONG / 2
    for _ in range(3):
        put(stage, silent.url("/another"))
    spread(stage, others, alive, service)
    assert len(silent.got) == 2
    for each in (silent, *others):
        each.over.set()
    assert service.close()


def test_one_receiver_is_one_however_its_url_is_spelled(stage: Stage, listen: Listen) -> None:
    dead, alive, service = listen(always=hang), listen(), sender(stage)
    port = dead.url("").rpartition(":")[2]
    for host in ("127.0.0.1:", "127.1:", "2130706433:0", "127.0.0.1:0", "127.0.0.1:00", "127.0.0.1:000"):
        put(stage, f"http://{host}{port}/hook")
    spread(stage, [], alive, service)
    eventually(lambda: dead.got)
    assert len(dead.got) == 1
    dead.over.set()
    assert service.close()


def test_one_that_did_not_hear_has_one_request_at_a_time_until_it_does(stage: Stage, listen: Listen) -> None:
    receiver, other = listen(reply(503)), listen()
    put(stage, receiver.url())
    service = sender(stage)
    send_due(service)
    receiver.always = hang
    for _ in range(3):
        put(stage, receiver.url("/another"))
    mark = put(stage, other.url())

    def goes_on() -> bool:
        service.step()
        return look(stage, mark).state is NoticeState.HEARD

    eventually(goes_on)
    eventually(lambda: len(receiver.got) >= 2)
    assert len(receiver.got) == 2
    receiver.always = reply(200)
    receiver.over.set()
    send_due(service)
    assert len(told(stage, NoticeAcknowledged)) == 3
    stage.clock.passed += 2 * DOUBTED  # it is not doubted any more
    put(stage, receiver.url())
    send_due(service)
    receiver.always, receiver.over = hang, threading.Event()
    for _ in range(3):
        put(stage, receiver.url())
    before = len(receiver.got)
    eventually(lambda: service.step() >= 0 and len(receiver.got) == before + 3)
    receiver.over.set()
    assert service.close()


def test_closing_waits_for_a_request_as_long_as_it_may_take_and_no_longer(stage: Stage, listen: Listen) -> None:
    receiver = listen(always=hang)
    put(stage, receiver.url())
    service = sender(stage, limit=3)
    service.step()
    eventually(lambda: receiver.got)
    assert not service.close(timeout=0)
    begun = time.monotonic()
    service.close()
    assert time.monotonic() - begun < LONG / 2
    eventually(lambda: told(stage, NoticeFailed))
    eventually(lambda: service.close(timeout=0))


# Several senders, and crashes ---------------------------------------------------------------------------------------


def test_two_senders_at_once_send_each_notice_once(stage: Stage, listen: Listen) -> None:
    receiver = listen()
    put_here = [put(stage, receiver.url()) for _ in range(20)]
    at_once([lambda: send_due(sender(stage)) for _ in range(2)])
    assert sorted(receiver.ids) == sorted(put_here)


def test_nothing_is_sent_within_a_transaction(stage: Stage, listen: Listen) -> None:
    def write_too(handler: Handler) -> None:
        change(stage, note="written while it was sent")
        reply(200)(handler)

    receiver = listen(write_too)
    put(stage, receiver.url())
    send_due(sender(stage, limit=5))
    assert len(told(stage, NoticeAcknowledged)) == 1


def test_a_crash_between_sending_and_recording_sends_again_with_the_same_id(
    stage: Stage, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, receiver = notices.record_delivery, listen()
    notice = put(stage, receiver.url())

    def write_and_die(connection: Connection, notice: Notice) -> list[Event]:
        real(connection, notice)
        raise StoreError("died before the commit")

    with monkeypatch.context() as patch:
        patch.setattr(notices, "record_delivery", write_and_die)
        with pytest.raises(StoreError, match="died before the commit"):
            send_due(sender(stage))
    assert (look(stage, notice).state, told(stage)) == (NoticeState.OPEN, [])
    assert 0 < due_in(stage, notice) <= HOLD
    send_due(sender(stage))
    assert len(receiver.got) == 1  # it is held
    let_time_pass(stage)
    send_due(sender(stage))
    assert receiver.ids == [notice] * 2
    assert (look(stage, notice).state, look(stage, notice).attempts) == (NoticeState.HEARD, 2)


def take(stage: Stage, **options: Any) -> list[Notice]:
    with stage.store.write() as connection:
        return notices.take(connection, stage.namespace, 10, **options)


def test_what_was_taken_is_nobody_else_s_until_its_hold_is_over(stage: Stage) -> None:
    notice = put(stage, "http://127.0.0.1/")
    [taken] = take(stage)
    assert (taken.id, taken.attempts, take(stage)) == (notice, 1, [])
    let_time_pass(stage)
    [again] = take(stage)
    assert (again.id, again.attempts) == (notice, 2)


def test_whoever_lost_a_notice_cannot_say_that_it_failed_but_that_it_was_heard(stage: Stage) -> None:
    notice = put(stage, "http://127.0.0.1/")
    [mine] = take(stage)
    let_time_pass(stage)
    [others] = take(stage)
    with stage.store.write() as connection:
        assert notices.record_failure(connection, mine, "no", timedelta(0)) == []
        assert notices.give_up(connection, mine, "no") == []
    assert (look(stage, notice).state, look(stage, notice).note) == (NoticeState.OPEN, None)
    with stage.store.write() as connection:
        assert len(notices.record_delivery(connection, mine)) == 1
        assert notices.record_delivery(connection, others) == []
        assert notices.record_failure(connection, others, "no", timedelta(0)) == []
    assert look(stage, notice).state is NoticeState.HEARD


def test_a_receiver_is_passed_over_however_it_is_spelled(stage: Stage) -> None:
    for url in ("http://H.Example/a", "http://h.example./b", "http://h.example:80/c", "http://h.example.:080/d"):
        put(stage, url)
    assert take(stage, but_not=["http://h.example/"]) == []
    assert take(stage, only=[]) == []
    assert take(stage, only=["http://h/"]) == []
    assert len(take(stage, only=["http://h.example/", "http://h/"])) == 4


@pytest.mark.parametrize("url", ["http://[::1/", "http://h:port/", "http://me:s3cret@h/", ""])
def test_a_url_that_is_none_is_given_up_and_delays_no_other(stage: Stage, listen: Listen, url: str) -> None:
    spoilt, receiver = put(stage, "http://127.0.0.1/"), listen()
    change(stage, url=url)
    put(stage, receiver.url())
    send_due(sender(stage))
    assert (len(receiver.got), look(stage, spoilt).state) == (1, NoticeState.GIVEN_UP)
    assert not [event for event in stage.events if "s3cret" in repr(event)]


def test_receivers_are_passed_over_by_name_and_only_they(stage: Stage) -> None:
    put(stage, "http://h_1.example/a")
    kept = {put(stage, "http://h_1.example:8080/a"), put(stage, "http://hx1.example/a")}
    assert {each.id for each in take(stage, but_not=["http://h_1.example/"])} == kept


# In a dispatcher ----------------------------------------------------------------------------------------------------


def test_a_dispatcher_that_decides_about_faults_sends_notices(tmp_path: Path, listen: Listen) -> None:
    setup, receiver = Setup("sqlite", f"sqlite:///{tmp_path / 'aft.db'}", "embedded"), listen()
    app = setup.app(webhook_secret=SECRET)
    try:
        with app.dispatcher(only=["intake"]):
            stage = Stage(app.store, app.namespace)
            notice = put(stage, receiver.url())
            eventually(lambda: look(stage, notice).state is NoticeState.HEARD)
    finally:
        setup.close()
    [request] = receiver.got
    assert verify(SECRET, request.body, request.headers["Aft-Signature"], time.time())


def test_those_that_answer_and_fall_silent_in_turn_leave_a_request_to_others(stage: Stage, listen: Listen) -> None:
    turning, alive, service = (
        [listen(reply(200), reply(503), reply(200), always=hang) for _ in range(4)],
        listen(),
        sender(stage),
    )
    for _ in range(3):
        for each in [*turning, alive]:
            put(stage, each.url())
        send_due(service)
    for each in turning:
        put(stage, each.url())
    spread(stage, turning, alive, service)
    for each in turning:
        each.over.set()
    assert service.close()
