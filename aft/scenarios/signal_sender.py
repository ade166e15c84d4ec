"""Sends a scenario's signals to its run, one after the other, each when it is due.

What is to be taught before a signal is taught when the run waits for it. Whether a signal is due is read from the run's
row; nothing here depends on timing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime

from aft.app import Run
from aft.app.views.timeline import StoryEvent, StoryEventKind
from aft.errors import OrderRefused
from aft.runs.records import journal
from aft.runs.states import Status
from aft.runs.waits import awaits_signal
from aft.scenarios.environment import KilledProcess, ReplayEnvironment
from aft.scenarios.example import Example
from aft.scenarios.rules import RuleToTeach
from aft.scenarios.signals import ScenarioSignal, When, value_of


class SignalSender:
    """Sends the signals of one run; records those sent, those dropped, the rules taught, and the kills."""

    def __init__(
        self,
        environment: ReplayEnvironment,
        example: Example,
        run: Run,
        signals: Iterable[ScenarioSignal],
        rules: Iterable[RuleToTeach],
        teach: Callable[[RuleToTeach], str],
    ) -> None:
        self._environment = environment
        self._flow = example.flow
        self._run = run
        self._ahead = deque(signals)
        self._rules = list(rules)
        self._teach = teach
        self.taught: list[str] = []
        self.sent: list[str] = []
        self.dropped: list[str] = []
        self.killed: KilledProcess | None = None
        self.story: list[StoryEvent] = []

    def send_due(self) -> str | None:
        """Send every signal that is due, and format the last one; None if none was sent."""
        news = None
        while self._ahead and self._is_time(self._ahead[0]):
            self._prepare(self._ahead[0])
            news = self._send(self._ahead.popleft())
        return news

    def _is_time(self, signal: ScenarioSignal) -> bool:
        if signal.when is When.AT_ONCE:
            return True
        row = self._run.row
        awaited = row.status is Status.WAITING and awaits_signal(row.waits, signal.name)
        return awaited and (signal.after is None or signal.after in self._recorded())

    def _recorded(self) -> set[str]:
        with self._environment.app.store.read() as connection:
            return {entry.name for entry in journal.load(connection, self._run.id)}

    def _prepare(self, signal: ScenarioSignal) -> None:
        """Teach what is to be taught before a signal is sent."""
        due = [rule for rule in self._rules if rule.before == signal.name and signal.when is When.AWAITED]
        for rule in due:
            self._rules.remove(rule)
            at = datetime.now(UTC)
            detail = self._teach(rule)
            self.taught.append(rule.exlet)
            self.story.append(StoryEvent(at, StoryEventKind.ACTION, None, "teach", detail))

    def _send(self, signal: ScenarioSignal) -> str:
        if signal.kill:
            self.killed = self._environment.kill_worker()
        # One that comes after the run's end was not sent; the check of the scenario reports that.
        with suppress(OrderRefused):
            taken_in = self._run.signal(signal.name, value_of(signal, self._flow), key=signal.key)
            self.sent.append(signal.name)
            if not taken_in:
                self._emit_drop(signal)
        return f"sent {signal.name}"

    def _emit_drop(self, signal: ScenarioSignal) -> None:
        """Record a dropped signal, which leaves no row behind."""
        self.dropped.append(signal.name)
        detail = f"{signal.name} with key {signal.key!r} once more: dropped"
        self.story.append(StoryEvent(datetime.now(UTC), StoryEventKind.ACTION, None, "signal", detail))
