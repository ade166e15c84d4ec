"""Sends notices to receivers outside, and tries again until each is acknowledged or given up.

Any number of dispatchers may do this: a notice that one has taken is hidden from the others (``runs.records.notices``).
Taking a notice and recording its outcome are separate transactions; the request is sent outside of any. Requests are
sent on a few threads. One receiver never occupies all of them, and one whose last request failed gets a single one, so
that a dead receiver does not delay the others. Emits: NoticeAcknowledged, NoticeFailed, NoticeGivenUp.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import assert_never

from sqlalchemy import Connection

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

#: Requests at a time.
POOL = 4
#: Seconds that one request may take.
LIMIT = 10.0
#: The longest that a receiver's Retry-After is believed.
LONGEST_AFTER = timedelta(hours=1)


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
        #: Notices being sent, with their receivers; guarded, like all that follows, by the condition.
        self._under_way: dict[NoticeId, str] = {}
        self._changed = threading.Condition()
        self._ended = 0
        #: Receivers whose last request failed.
        self._doubted: set[str] = set()
        self._error: Exception | None = None

    def step(self) -> float:
        """Begin to send one notice; return the seconds until the next is due, ``notices.LOOK`` at most.

        While requests are under way it waits here for one of them to end. Raises what recording an outcome has raised.
        """
        with self._changed:
            error, self._error = self._error, None
            seen, busy, full = self._ended, len(self._under_way), self._full()
        if error is not None:
            raise error
        wait = self._begin_one(full) if busy < POOL else notices.LOOK
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

    def _begin_one(self, full: list[str]) -> float:
        if not self._store.query([(notices.ANY_SOON, self._namespace)])[0]:
            return notices.LOOK
        with self._store.read() as connection:
            wait = notices.seconds_to_next(connection, self._namespace, full)
        if wait is None or wait > 0:
            return notices.LOOK if wait is None else min(notices.LOOK, wait)
        with self._store.write() as connection:
            taken = notices.take(connection, self._namespace, 1, full)
        for notice in taken:
            with self._changed:
                self._under_way[notice.id] = notice.receiver
            # Not a pool of the library's: at the process's end it would wait for a name that is being resolved.
            threading.Thread(target=self._deliver, args=[notice], name="aft-notice", daemon=True).start()
        return 0.0

    def _full(self) -> list[str]:
        """Return the receivers that have as many requests under way as they may."""
        busy = Counter(self._under_way.values())
        return [each for each, count in busy.items() if count >= (1 if each in self._doubted else POOL - 1)]

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
        try:
            answer = self._send(notice)
        except NoAnswer as error:
            self._try_later(notice, str(error), None)
        except ValueError as error:  # no URL to send to, or not from here
            self._give_up(notice, str(error))
        else:
            self._apply_ruling(notice, answer)

    def _send(self, notice: Notice) -> WebhookReply:
        body = notice.body.encode()
        headers = {"Content-Type": "application/json", "Aft-Notice": notice.id, "User-Agent": f"aft/{__version__}"}
        if self._secrets:
            headers[HEADER] = sign(self._secrets[0], body, self._clock.now().timestamp(), *self._secrets[1:])
        return post(notice.url, body, headers, self._limit, self._receivers)

    def _apply_ruling(self, notice: Notice, answer: WebhookReply) -> None:
        meaning = classify_status(answer.status)
        match meaning:
            case ReplyMeaning.HEARD:
                self._doubt(notice, False)
                self._record(lambda connection: notices.record_delivery(connection, notice))
            case ReplyMeaning.REFUSED:
                self._doubt(notice, False)
                self._give_up(notice, f"{answer.status} {answer.text}")
            case ReplyMeaning.LATER:
                self._try_later(notice, f"{answer.status} {answer.text}", answer.retry_after)
            case _:
                assert_never(meaning)

    def _try_later(self, notice: Notice, why: str, asked: str | None) -> None:
        self._doubt(notice, True)
        after = read_retry_after(asked, self._clock.now()) or timedelta(0)
        # Not before it was asked to, nor as often as it likes: "0" would be sent again at once, for days.
        wait = max(min(after, LONGEST_AFTER), wait_after(notice.attempts, self._chance()))
        self._record(lambda connection: notices.record_failure(connection, notice, why, wait))

    def _give_up(self, notice: Notice, why: str) -> None:
        self._record(lambda connection: notices.give_up(connection, notice, why))

    def _doubt(self, notice: Notice, doubted: bool) -> None:
        with self._changed:
            (self._doubted.add if doubted else self._doubted.discard)(notice.receiver)

    def _record(self, write: Callable[[Connection], list[Event]]) -> None:
        with self._store.write() as connection:
            events = write(connection)
        for event in events:
            self._telemetry.emit(event)
