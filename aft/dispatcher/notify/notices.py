"""Sends notices to receivers outside, and tries again until each is acknowledged or given up.

Any number of dispatchers may do this: a notice that one has taken is hidden from the others (``runs.records.notices``).
Taking a notice and recording its outcome are separate transactions; the request is sent outside of any. Requests are
sent on a few threads, and no receiver delays the others: none occupies all of the threads, one that has not answered
its last request soon, or could not take it, gets a single one, and all of these together, with the new ones, leave one
thread to the others. Emits: NoticeAcknowledged, NoticeFailed, NoticeGivenUp.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import NamedTuple, assert_never

from sqlalchemy import Connection

from aft import durations
from aft.dispatcher.dependencies import DispatcherDependencies
from aft.dispatcher.notify.receivers import Receivers
from aft.dispatcher.notify.webhook import NoAnswer, ReplyMeaning, WebhookReply, classify_status, post
from aft.ids import NoticeId
from aft.recovery.http_hints import read_retry_after
from aft.runs.records import notices
from aft.runs.records.notices import Notice, wait_after
from aft.security.signing import HEADER, sign
from aft.telemetry import Event
from aft.version import __version__

#: Requests at a time: in all, and to receivers that are not known to answer soon.
POOL, MOST_UNSURE = 4, 3
#: Receivers that are remembered as answering soon.
MOST_KNOWN = 100
#: Seconds for which a receiver that has failed is doubted: at first, and at most; and how many of these are remembered.
DOUBTED, LONGEST_DOUBTED, MOST_DOUBTED = 60.0, 3600.0, 1000
#: The part of a request's time limit within which an answer comes soon.
SOON = 1 / 4
#: Seconds that one request may take.
LIMIT = 10.0
#: The longest that a receiver's Retry-After is believed.
LONGEST_AFTER = timedelta(hours=1)


class Request(NamedTuple):
    """A request that is under way: to whom, and since when."""

    receiver: str
    begun: float


def choose(under_way: Sequence[Request], known: Collection[str], late: float) -> tuple[list[str], list[str] | None]:
    """Return the receivers that have as many requests under way as they may, and the only ones that may have more.

    The latter is None if all others may. ``known`` are receivers that answer soon; one with a request that was begun
    before ``late`` does not any more. Pure.
    """
    silent = {each.receiver for each in under_way if each.begun <= late}
    sure = [each for each in known if each not in silent]
    busy = Counter(each.receiver for each in under_way)
    full = [each for each, count in busy.items() if count >= (POOL - 1 if each in sure else 1)]
    unsure = sum(count for each, count in busy.items() if each not in sure)
    return full, None if unsure < MOST_UNSURE else sure


class Doubt(NamedTuple):
    """How often a receiver has failed of late, and until when it does not count as known."""

    failures: int
    until: float


def doubt_after(before: Doubt | None, at: float) -> Doubt:
    """Return the doubt about a receiver that has failed at this time. Pure."""
    failures = 1 if before is None else before.failures + 1
    return Doubt(failures, at + durations.back_off(failures, DOUBTED, LONGEST_DOUBTED))


class NoticeSender:
    """Sends the notices of one namespace. ``step`` belongs to one thread; ``close`` is called after the last step."""

    def __init__(
        self,
        deps: DispatcherDependencies,
        secrets: Sequence[str] = (),
        receivers: Receivers | None = None,
        *,
        limit: float = LIMIT,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._namespace = deps.namespace
        self._store = deps.store
        self._telemetry = deps.telemetry
        self._clock = deps.clock
        self._secrets = secrets
        self._receivers = receivers or Receivers()
        self._limit = limit
        self._chance = chance
        #: Notices being sent; guarded, like all that follows, by the condition.
        self._under_way: dict[NoticeId, Request] = {}
        self._changed = threading.Condition()
        self._ended = 0
        #: Receivers whose last request was answered soon, the last one last; at first, from the database.
        self._known: list[str] = []
        #: Those that have failed of late: how often, and until when they do not count as known.
        self._doubted: dict[str, Doubt] = {}
        self._has_begun = False
        self._error: Exception | None = None

    def step(self) -> float:
        """Begin to send one notice; return the seconds until the next is due, ``notices.LOOK`` at most.

        While requests are under way it waits here for one of them to end. Raises what recording an outcome has raised.
        """
        with self._changed:
            error, self._error = self._error, None
            seen, busy = self._ended, len(self._under_way)
        if error is not None:
            raise error
        wait = self._begin_one() if busy < POOL else notices.LOOK
        if wait > 0 and busy:
            with self._changed:
                self._changed.wait_for(lambda: self._ended != seen, wait)
            return 0.0
        return wait

    def close(self, timeout: float | None = None) -> bool:
        """Wait for requests under way, no longer than one may take; return False if one has not ended.

        Its notice is taken again, here or elsewhere, when its hold expires.
        """
        patience = self._limit if timeout is None else min(timeout, self._limit)
        with self._changed:
            return self._changed.wait_for(lambda: not self._under_way, patience)

    def _begin_one(self) -> float:
        if not self._store.query([(notices.ANY_SOON, self._namespace)])[0]:
            return notices.LOOK
        with self._store.read() as connection:
            full, only = self._choose(connection)
            wait = notices.seconds_to_next(connection, self._namespace, full, only)
        if wait is None or wait > 0:
            return notices.LOOK if wait is None else min(notices.LOOK, wait)
        with self._store.write() as connection:
            taken = notices.take(connection, self._namespace, 1, full, only)
        for notice in taken:
            with self._changed:
                self._under_way[notice.id] = Request(notice.receiver, self._clock.ticks())
            # Not a pool of the library's: at the process's end it would wait for a name that is being resolved.
            threading.Thread(target=self._deliver, args=[notice], name="aft-notice", daemon=True).start()
        return 0.0

    def _choose(self, connection: Connection) -> tuple[list[str], list[str] | None]:
        """Return the receivers that have as many requests under way as they may, and the only ones that may have more.

        The latter is None if all others may.
        """
        if not self._has_begun:
            self._known = notices.heard_last(connection, self._namespace, MOST_KNOWN)
            self._has_begun = True
        late = self._clock.ticks() - self._limit * SOON
        with self._changed:
            return choose(list(self._under_way.values()), self._known, late)

    def _deliver(self, notice: Notice) -> None:
        try:
            self._send_or_defer(notice)
        except Exception as error:
            # The edge of a thread: ``step`` raises it. Most likely the outcome could not be recorded; then the
            # notice is sent again when its hold is over.
            with self._changed:
                self._error = error
        finally:
            with self._changed:
                del self._under_way[notice.id]
                self._ended += 1
                self._changed.notify_all()

    def _send_or_defer(self, notice: Notice) -> None:
        begun = self._clock.ticks()
        try:
            answer = self._send(notice)
        except NoAnswer as error:
            self._note(notice, begun, None)
            self._try_later(notice, str(error), None)
        except ValueError as error:  # no URL to send to, or not from here
            self._give_up(notice, str(error))
        else:
            meaning = classify_status(answer.status)
            self._note(notice, begun, meaning)
            self._apply_ruling(notice, answer, meaning)

    def _send(self, notice: Notice) -> WebhookReply:
        body = notice.body.encode()
        headers = {"Content-Type": "application/json", "Aft-Notice": notice.id, "User-Agent": f"aft/{__version__}"}
        if self._secrets:
            headers[HEADER] = sign(self._secrets[0], body, self._clock.now().timestamp(), *self._secrets[1:])
        return post(notice.url, body, headers, self._limit, self._receivers)

    def _apply_ruling(self, notice: Notice, answer: WebhookReply, meaning: ReplyMeaning) -> None:
        match meaning:
            case ReplyMeaning.HEARD:
                self._record(lambda connection: notices.record_delivery(connection, notice))
            case ReplyMeaning.REFUSED:
                self._give_up(notice, f"{answer.status} {answer.text}")
            case ReplyMeaning.LATER:
                self._try_later(notice, f"{answer.status} {answer.text}", answer.retry_after)
            case _:
                assert_never(meaning)

    def _try_later(self, notice: Notice, why: str, asked: str | None) -> None:
        after = read_retry_after(asked, self._clock.now()) or timedelta(0)
        # Not before it was asked to, nor as often as it likes: "0" would be sent again at once, for days.
        wait = max(min(after, LONGEST_AFTER), wait_after(notice.attempts, self._chance()))
        self._record(lambda connection: notices.record_failure(connection, notice, why, wait))

    def _give_up(self, notice: Notice, why: str) -> None:
        self._record(lambda connection: notices.give_up(connection, notice, why))

    def _note(self, notice: Notice, begun: float, meaning: ReplyMeaning | None) -> None:
        """Remember whether a receiver answers soon: the last request tells, and a failure counts as no answer.

        After a failure it is doubted for a while, the longer the more often it has failed: who answers and falls silent
        in turn must not get several requests each time.
        """
        at, receiver = self._clock.ticks(), notice.receiver
        answers = at - begun < self._limit * SOON and meaning in (ReplyMeaning.HEARD, ReplyMeaning.REFUSED)
        with self._changed:
            others = [each for each in self._known if each != receiver]
            doubt = self._doubted.pop(receiver, None)
            if not answers:
                doubt = doubt_after(doubt, at)
            elif doubt is not None and doubt.until + DOUBTED <= at:
                doubt = None
            if doubt is not None:
                self._doubted[receiver] = doubt
                if len(self._doubted) > MOST_DOUBTED:
                    del self._doubted[next(iter(self._doubted))]
            is_known = answers and (doubt is None or doubt.until <= at)
            self._known = [*others, receiver][-MOST_KNOWN:] if is_known else others

    def _record(self, write: Callable[[Connection], list[Event]]) -> None:
        with self._store.write() as connection:
            events = write(connection)
        for event in events:
            self._telemetry.emit(event)
