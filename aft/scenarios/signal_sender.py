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
from aft.scenarios.rules import Lesson
from aft.scenarios.signals import ScenarioSignal, When, value_of


class SignalSender:
    """Sends the signals of one run; records those sent, those dropped, the rules taught, and the kills."""

    def __init__(
        self,
        stage: ReplayEnvironment,
        example: Example,
        run: Run,
        cues: Iterable[ScenarioSignal],
        lessons: Iterable[Lesson],
        teach: Callable[[Lesson], str],
    ) -> None:
        self._stage = stage
        self._flow = example.flow
        self._run = run
        self._ahead = deque(cues)
        self._lessons = list(lessons)
        self._teach = teach
        self.taught: list[str] = []
        self.sent: list[str] = []
        self.dropped: list[str] = []
        self.killed: KilledProcess | None = None
        self.story: list[StoryEvent] = []

    def prompt(self) -> str | None:
        """Send every signal that is due, and format the last one; None if none was sent."""
        news = None
        while self._ahead and self._is_time(self._ahead[0]):
            self._prepare(self._ahead[0])
            news = self._send(self._ahead.popleft())
        return news

    def _is_time(self, cue: ScenarioSignal) -> bool:
        if cue.when is When.AT_ONCE:
            return True
        row = self._run.row
        awaited = row.status is Status.WAITING and awaits_signal(row.waits, cue.name)
        return awaited and (cue.after is None or cue.after in self._recorded())

    def _recorded(self) -> set[str]:
        with self._stage.app.store.read() as connection:
            return {entry.name for entry in journal.load(connection, self._run.id)}

    def _prepare(self, cue: ScenarioSignal) -> None:
        """Teach what is to be taught before a signal is sent."""
        due = [lesson for lesson in self._lessons if lesson.before == cue.name and cue.when is When.AWAITED]
        for lesson in due:
            self._lessons.remove(lesson)
            at = datetime.now(UTC)
            told = self._teach(lesson)
            self.taught.append(lesson.exlet)
            self.story.append(StoryEvent(at, StoryEventKind.ACTION, None, "teach", told))

    def _send(self, cue: ScenarioSignal) -> str:
        if cue.kill:
            self.killed = self._stage.kill_worker()
        # One that comes after the run's end was not sent; the check of the scenario reports that.
        with suppress(OrderRefused):
            taken_in = self._run.signal(cue.name, value_of(cue, self._flow), key=cue.key)
            self.sent.append(cue.name)
            if not taken_in:
                self._emit_drop(cue)
        return f"sent {cue.name}"

    def _emit_drop(self, cue: ScenarioSignal) -> None:
        """Record a dropped signal, which leaves no row behind."""
        self.dropped.append(cue.name)
        told = f"{cue.name} with key {cue.key!r} once more: dropped"
        self.story.append(StoryEvent(datetime.now(UTC), StoryEventKind.ACTION, None, "signal", told))
