"""Plays one scenario: sets it up, submits its run, sends signals, teaches rules, kills a hanging worker, waits.

The rows say what has happened; they are read ten times a second.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aft.app import Run
from aft.app.views import timeline
from aft.app.views.timeline import StoryEvent, StoryEventKind
from aft.fault import Fault
from aft.ids import RunId
from aft.runs.records import faults, journal, notices
from aft.runs.records.journal import EntryKind, Outcome
from aft.runs.run_rows import RunRow
from aft.runs.states import Status
from aft.scenarios.environment import KilledProcess, ReplayEnvironment
from aft.scenarios.example import Example, ExampleError
from aft.scenarios.rules import RuleTeacher, RuleToTeach
from aft.scenarios.scenario import AS_BEFORE, Scenario
from aft.scenarios.signal_sender import SignalSender

#: Seconds between two reads of the run.
LOOK = 0.1
#: Seconds after which a run is considered stuck.
STUCK = 60.0

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ScenarioOutcome:
    """The outcome of a scenario: the run, its story, the example's tables, its signals, the killed process."""

    scenario: Scenario
    row: RunRow
    story: list[StoryEvent]
    done: list[str]  #: activities that completed, in order
    faults: list[Fault]
    notices: list[str]  #: notices that are sent outside
    tables: str
    sent: list[str]
    dropped: list[str]
    taught: list[str]  #: exlets that a rule was added for
    killed: KilledProcess | None
    seconds: float


class Player:
    """Plays the scenarios of one example in a replay environment. One thread at a time."""

    def __init__(self, environment: ReplayEnvironment, example: Example, token: str) -> None:
        self._environment = environment
        self._example = example
        self._token = token
        self._teacher = RuleTeacher(environment.app, example.flow.name)
        self._runs: dict[str, RunId] = {}

    def play(self, scenario: Scenario, tell: Tell) -> ScenarioOutcome:
        """Play a scenario to its end, or until it is considered stuck. Raises ExampleError, AftError."""
        began = time.monotonic()
        self._teacher.put_in_force(scenario.rules)
        subject = f"{scenario.name}-{self._token}"
        arguments = self._set_up(subject, scenario)
        _, before = self._example.read_state(subject)
        flow = self._example.flow.options(key=subject, deadline=scenario.deadline)
        run = self._environment.app.submit(flow, **arguments)
        self._runs[scenario.name] = run.id
        sender = SignalSender(self._environment, self._example, run, scenario.signals, scenario.to_teach, self._teach)
        killed = self._wait(run, subject, scenario, sender, tell) or sender.killed
        state, after = self._example.read_state(subject)
        row, story, done, raised, sent_notices = self._read(run)
        return ScenarioOutcome(
            scenario=scenario,
            row=row,
            story=_weave(story, sender.story, killed),
            done=done,
            faults=raised,
            notices=sent_notices,
            tables=AS_BEFORE if after == before else state,
            sent=sender.sent,
            dropped=sender.dropped,
            taught=sender.taught,
            killed=killed,
            seconds=time.monotonic() - began,
        )

    def _teach(self, rule: RuleToTeach) -> str:
        return self._teacher.teach(rule, self._runs[rule.scenario])

    def _set_up(self, subject: str, scenario: Scenario) -> dict[str, Any]:
        try:
            return self._example.set_up(subject, scenario.scene)
        except (KeyError, ValueError) as error:
            raise ExampleError(f"scenario {scenario.name!r}: {error}") from error

    def _wait(
        self, run: Run, subject: str, scenario: Scenario, sender: SignalSender, tell: Tell
    ) -> KilledProcess | None:
        killed: KilledProcess | None = None
        deadline = time.monotonic() + STUCK
        while not _is_over(run.status) and time.monotonic() < deadline:
            self._environment.check()
            if (news := sender.send_due()) is not None:
                tell(news)
            else:
                time.sleep(LOOK)
            if scenario.kill and killed is None and (pid := self._example.find_hanging_process(subject)) is not None:
                killed = self._environment.kill_worker(pid)
                tell(f"killed process {pid}; another worker will notice")
        return killed

    def _read(self, run: Run) -> tuple[RunRow, list[StoryEvent], list[str], list[Fault], list[str]]:
        app = self._environment.app
        with app.store.read() as connection:
            row, story = timeline.read_timeline(connection, app.namespace, run.id)
            completed = [entry for entry in journal.load(connection, run.id) if entry.outcome is Outcome.OK]
            done = [entry.name for entry in completed if entry.kind is EntryKind.ACTIVITY]
            sent_notices = [str(json.loads(notice.body).get("note")) for notice in notices.of_run(connection, run.id)]
            return row, story, done, faults.of_run(connection, run.id), sent_notices


def _weave(
    story: list[StoryEvent], actions_of_replay: list[StoryEvent], killed: KilledProcess | None
) -> list[StoryEvent]:
    """Insert into the run's story the events that the replay itself has caused."""
    actions = [*actions_of_replay, *([] if killed is None else [_kill_event(killed)])]
    return sorted([*story, *actions], key=lambda happening: happening.at)


def _kill_event(killed: KilledProcess) -> StoryEvent:
    cause = signal.Signals(killed.signal).name if killed.signal > 0 else "nothing of ours"
    return StoryEvent(
        killed.at, StoryEventKind.ACTION, None, "kill -9", f"worker process {killed.pid}, which died of {cause}"
    )


def _is_over(status: Status) -> bool:
    return status.ended or status is Status.PARKED
