"""Playing one scenario: put it up, with its rules; submit the run, send it its signals, kill who hangs, await its end.

The express stream tells what goes on meanwhile; the rows decide. Where nothing is heard, the rows are looked at.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aft.app import Run, timeline
from aft.app.timeline import Happening, What
from aft.brokers.base import Subscription
from aft.cli.replay.example import Example, ExampleError
from aft.cli.replay.prompter import Prompter
from aft.cli.replay.rules import Lesson, Teacher
from aft.cli.replay.scenario import AS_BEFORE, Scenario
from aft.cli.replay.stage import Killed, Stage
from aft.errors import BrokerError
from aft.fault import Fault
from aft.ids import RunId
from aft.runs import faults, journal, notices
from aft.runs.journal import EntryKind, Outcome
from aft.runs.rows import RunRow
from aft.runs.states import Status

#: Seconds between two looks at the run, when nothing is heard.
LOOK = 0.1
#: Seconds after which a run is taken for stuck.
STUCK = 60.0

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Played:
    """What became of a scenario: the run, its story, the example's tables, its signals, who was killed."""

    scenario: Scenario
    row: RunRow
    story: list[Happening]
    done: list[str]  #: activities that completed, in order
    faults: list[Fault]
    notices: list[str]  #: what somebody outside is told
    tables: str
    sent: list[str]
    dropped: list[str]
    taught: list[str]  #: exlets that a rule was added for
    killed: Killed | None
    seconds: float


class Player:
    """Plays the scenarios of one example on a stage. One thread at a time."""

    def __init__(self, stage: Stage, example: Example, token: str) -> None:
        self._stage = stage
        self._example = example
        self._token = token
        self._teacher = Teacher(stage.app, example.flow.name)
        self._runs: dict[str, RunId] = {}

    def play(self, scenario: Scenario, tell: Tell) -> Played:
        """Play a scenario to its end, or until it is taken for stuck. Raises ExampleError, AftError."""
        began = time.monotonic()
        self._teacher.put_up(scenario.rules)
        subject = f"{scenario.name}-{self._token}"
        arguments = self._set_up(subject, scenario)
        _, before = self._example.look(subject)
        with _Listener(self._stage) as listener:
            flow = self._example.flow.options(key=subject, deadline=scenario.deadline)
            run = self._stage.app.submit(flow, **arguments)
            self._runs[scenario.name] = run.id
            prompter = Prompter(self._stage, self._example, run, scenario.cues, scenario.lessons, self._teach)
            killed = self._wait(run, subject, scenario, prompter, listener, tell) or prompter.killed
        state, after = self._example.look(subject)
        row, story, done, raised, told = self._read(run)
        return Played(
            scenario=scenario,
            row=row,
            story=_weave(story, prompter.story, killed),
            done=done,
            faults=raised,
            notices=told,
            tables=AS_BEFORE if after == before else state,
            sent=prompter.sent,
            dropped=prompter.dropped,
            taught=prompter.taught,
            killed=killed,
            seconds=time.monotonic() - began,
        )

    def _teach(self, lesson: Lesson) -> str:
        return self._teacher.teach(lesson, self._runs[lesson.scenario])

    def _set_up(self, subject: str, scenario: Scenario) -> dict[str, Any]:
        try:
            return self._example.set_up(subject, scenario.scene)
        except (KeyError, ValueError) as error:
            raise ExampleError(f"scenario {scenario.name!r}: {error}") from error

    def _wait(
        self, run: Run, subject: str, scenario: Scenario, prompter: Prompter, listener: _Listener, tell: Tell
    ) -> Killed | None:
        killed: Killed | None = None
        deadline = time.monotonic() + STUCK
        while not _is_over(run.status) and time.monotonic() < deadline:
            self._stage.check()
            if (news := prompter.prompt() or listener.hear(run.id)) is not None:
                tell(news)
            if scenario.kill and killed is None and (pid := self._example.hanging(subject)) is not None:
                killed = self._stage.kill_worker(pid)
                tell(f"killed process {pid}; another worker will notice")
        return killed

    def _read(self, run: Run) -> tuple[RunRow, list[Happening], list[str], list[Fault], list[str]]:
        app = self._stage.app
        with app.store.read() as connection:
            row, story = timeline.read(connection, app.namespace, run.id)
            completed = [entry for entry in journal.load(connection, run.id) if entry.outcome is Outcome.OK]
            done = [entry.name for entry in completed if entry.kind is EntryKind.ACTIVITY]
            told = [str(json.loads(notice.body).get("note")) for notice in notices.of_run(connection, run.id)]
            return row, story, done, faults.of_run(connection, run.id), told


class _Listener:
    """Hears the live events of a namespace; where there is no stream, or no more, it only waits."""

    def __init__(self, stage: Stage) -> None:
        self._subscription: Subscription | None = None
        with suppress(BrokerError):
            self._subscription = stage.app.broker.subscribe(stage.app.namespace)

    def hear(self, run: str) -> str | None:
        """Wait a moment for news of a run, and word them."""
        if self._subscription is None:
            time.sleep(LOOK)
            return None
        try:
            heard = self._subscription.receive(LOOK)
        except BrokerError:
            self._subscription = None
            return None
        return None if heard is None else word_event(heard, run)

    def __enter__(self) -> _Listener:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._subscription is not None:
            self._subscription.close()


def word_event(body: bytes, run: str) -> str | None:
    """Say in a few words what a live event means for a run; None: nothing worth saying, or about another run."""
    try:
        event: Any = json.loads(body)
    except ValueError:
        return None
    match event:
        case {"run": str(other)} if other != run:
            return None
        case {"event": "AttemptStarted", "activity": name, "attempt": attempt}:
            return f"{name}, attempt {attempt}"
        case {"event": "FaultRaised", "activity": name, "type": kind}:
            return f"{name} failed: {kind.rpartition('.')[2]}"
        case {"event": "FaultRouted", "activity": name, "wait": float(wait)} if wait:
            return f"{name} waits {wait:g}s"
        case {"event": "RunWaits", "what": what}:
            return f"waits for {what}"
        case {"event": "RunRescued"}:
            return "taken from the lost worker"
        case {"event": "FrameCompensated", "compensator": name}:
            return f"{name} done"
    return None


def _weave(story: list[Happening], prompted: list[Happening], killed: Killed | None) -> list[Happening]:
    """Put what the replay itself did into the run's story."""
    deeds = [*prompted, *([] if killed is None else [_tell_kill(killed)])]
    return sorted([*story, *deeds], key=lambda happening: happening.at)


def _tell_kill(killed: Killed) -> Happening:
    cause = signal.Signals(killed.signal).name if killed.signal > 0 else "nothing of ours"
    return Happening(killed.at, What.DEED, None, "kill -9", f"worker process {killed.pid}, which died of {cause}")


def _is_over(status: Status) -> bool:
    return status.ended or status is Status.PARKED
