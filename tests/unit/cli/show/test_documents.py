"""Claims about the JSON of listings: its keys are stable, and an attribute that is new is not printed by itself."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest

from aft.app.rules.past_faults import ChangedDecision, Preview
from aft.app.rules.rules import Explanation, Trial
from aft.app.views.health import Backlog, Health, WorkerStatus
from aft.app.views.story import Story
from aft.app.views.timeline import StoryEvent, StoryEventKind
from aft.app.views.undo_preview import Undo
from aft.app.views.versions import VersionUse
from aft.brokers.base import QueueStatus
from aft.cli.commands import audit, broker, doctor, flows
from aft.cli.commands.checks import Setting, warning
from aft.cli.commands.rules import documents as of_rules
from aft.cli.show import documents
from aft.cli.show.documents import document
from aft.compensation.stack import Frame, FrameState
from aft.fault import FaultState, Recoverability
from aft.ids import RunId, StepPath
from aft.rules.exlets.exlet import BUILT_IN
from aft.rules.exlets.plans import Plan, PlanState
from aft.rules.rule_types import RuleType
from aft.rules.trees.choose import AskedTree, RuleChoice
from aft.rules.trees.defaults import FAULT
from aft.rules.trees.preview import Conflict, Proposal
from aft.rules.trees.rows import Revision
from aft.rules.trees.tree import Walk
from aft.runs.records.audit import AuditEntry
from aft.runs.records.inbox import InboxItem, InboxVerb
from aft.runs.records.quarantine import Refusal
from aft.runs.run_rows import RunRow
from aft.runs.schedules.schedule_rows import ScheduleRow
from aft.runs.states import Status
from aft.runs.waits import Wait, WaitKind
from tests.faults import make_fault

T = TypeVar("T")
AT = datetime(2024, 5, 17, 12, 30, tzinfo=UTC)
SOON = AT + timedelta(seconds=90)


def some(kind: type[T], **known: Any) -> T:
    """Return an object with these values, and None for all others that it must have."""
    needed = (each.name for each in fields(kind) if each.default is MISSING)  # type: ignore[arg-type]
    return kind(**dict.fromkeys(needed) | known)


WAIT = Wait(StepPath("2"), WaitKind.SIGNAL, "paid", AT, SOON)
RUN = some(
    RunRow,
    id="run-1",
    status=Status.WAITING,
    args='{"seats": 5}',
    result='{"$aft": "timedelta", "v": 1500000}',
    tags={"at": {"$aft": "date", "v": "2024-05-17"}},
    waits=(WAIT,),
    resources=("hall",),
    expected=timedelta(minutes=1),
    created_at=AT,
    updated_at=AT,
)
EVENTS = (
    StoryEvent(AT, StoryEventKind.AWAITS, "2", "paid", awaited=WAIT),
    StoryEvent(AT, StoryEventKind.WAIT, "1", "pay", wait=timedelta(seconds=5)),
)
SIGNAL = some(InboxItem, verb=InboxVerb.SIGNAL, payload={"name": "paid", "value": '"yes"'}, actor="me", at=AT)
FAILED = make_fault(
    ladder="[[5000, 3]]",
    own_answer=Recoverability.RECOVERABLE,
    wait=timedelta(seconds=5),
    after=timedelta(seconds=7),
    ruling='{"do": "go", "args": {"seats": 1}}',
)
PLAN = some(Plan, exlet=BUILT_IN["park"], state=PlanState.OPEN, made_at=AT)
FRAME = some(Frame, path="1", state=FrameState.OWED, args='{"n": 1}', value="2", pushed_at=AT)
WORKER = WorkerStatus("w", "host", 1, ("work",), ("shop@1",), AT, SOON, True, 2)
CHOICE = RuleChoice(
    "fault", "unwind", 1, "true", [AskedTree("*", "*", 0, [(1, True, None), (9, False, "why")])], {}, []
)
TREES = {("*", RuleType.FAULT, "*"): FAULT}
EXPLAINED = Explanation(FAILED, "shop", CHOICE, {}, "", walk=CHOICE, trees=TREES)
PROPOSED = Proposal(FAULT, FAULT.nodes[2], Walk(), (Conflict(FAULT.nodes[1], None, "park"),))
CHANGED = Preview(3, [ChangedDecision(FAILED, "shop", "park", "unwind")])
REVISION = Revision(("shop", "fault", "pay"), 2, "{}", "me", AT, None)
BACKLOGS = ("undecided", "unpublished", "stalled", "overdue", "stuck_exlets", "unheard")
HEALTH = some(Health, workers=(WORKER,), dead=(), unfinished={"shop@1": 1}, **dict.fromkeys(BACKLOGS, Backlog(2, AT)))
SCHEDULED = some(ScheduleRow, name="nightly", every_seconds=60.0, zone="Europe/Berlin", since=AT, next_at=SOON)

RUN_KEYS = """
id flow version status key args result reason cause fault priority owner tags root parent parent_path waits resources
expected worker epoch deaths created_at started_at updated_at due_at deadline_at ended_at
"""
FAULT_KEYS = """
id run kind name path state type message attempt level try_in_level wait_seconds ladder resource signal why rule_type
decision ruling own_answer declared_answer http_status retry_after_seconds lineage traceback epoch raised_at decided_at
due_at settled_at
"""
RULE_KEYS = "number condition exlet refines refined otherwise note made_by made_at fault cornerstone"
DOCTOR_WORKER_KEYS = "id host pid roles flows started_at heartbeat_at expires_at alive abandoned_attempts"
COUNT_KEYS = """
unfinished unserved parked undecided_faults unpublished_messages stalled_runs overdue_runs orphaned_runs late_effects
stuck_exlets notices_unheard notices_given_up quarantined_messages
"""
#: What each command prints with ``--json``: programs of users depend on these keys.
PRINTED: dict[str, tuple[dict[str, Any], str]] = {
    "run": (documents.run(RUN), RUN_KEYS),
    "wait": (documents.wait(WAIT), "path kind name since until"),
    "story": (documents.story(Story(RUN, [], {}), {RunId("run-1"): []}), f"{RUN_KEYS} timeline inbox children"),
    "event": (
        documents.happening(EVENTS[0]),
        "at what path name detail level wait_seconds by since until child beside",
    ),
    "item": (documents.item(SIGNAL), "id kind name value from at read note"),
    "schedule": (
        documents.schedule(SCHEDULED, Status.COMPLETED),
        "name flow version args cron every_seconds zone catch_up overlap options paused broken next_at next_local "
        "last_at last_local last_run last_status skipped_at skipped_why made_by changed_by created_at updated_at",
    ),
    "fault": (documents.fault(FAILED), FAULT_KEYS),
    "plan": (documents.plan(PLAN), "exlet does state position note made_at ended_at"),
    "frame": (
        documents.frame(FRAME),
        "path scope activity compensator child state args result note pushed_at settled_at",
    ),
    "undo": (
        documents.undo(some(Undo, run_id="run-1")),
        "run_id path activity compensator arguments result obstacle",
    ),
    "refusal": (
        documents.refusal(some(Refusal, body=b"\xff{}", size=3, at=AT)),
        "id queue state reason size body at settled_at settled_by note",
    ),
    "worker": (documents.worker(WORKER), "id host pid roles flows runs watched alive started_at expires_at"),
    "tree": (of_rules.tree(FAULT), "flow on activity revision built_in root rules"),
    "rule": (of_rules.rule(FAULT.nodes[1]), RULE_KEYS),
    "revision": (of_rules.revision(REVISION), "flow on activity revision made_by made_at note what"),
    "exlet": (
        of_rules.exlet(BUILT_IN["park"], [REVISION], [(("*", RuleType.FAULT, "*"), FAULT.nodes[3])]),
        "name about steps does built_in revision history chosen_by",
    ),
    "preview": (of_rules.preview(CHANGED), "examined changes"),
    "changed decision": (
        of_rules.preview(CHANGED)["changes"][0],
        "fault run flow name what raised_at before after",
    ),
    "proposal": (of_rules.proposal(PROPOSED, CHANGED), "tree rule before conflicts preview"),
    "trial": (of_rules.trial(Trial(FAILED, "shop", True, None, {})), "fault run flow holds warning facts"),
    "explanation": (
        of_rules.explanation(EXPLAINED, PLAN),
        "fault run flow name state fault_why told on exlet rule why default asked facts warnings plan",
    ),
    "asked tree": (of_rules.explanation(EXPLAINED, None)["asked"][0], "flow activity revision rules"),
    "asked rule": (
        of_rules.explanation(EXPLAINED, None)["asked"][0]["rules"][1],
        "number condition exlet held warning",
    ),
    "audit": (
        document(some(AuditEntry, at=AT), audit.KEYS),
        "record hash at by os_user db_user action run note",
    ),
    "flow": (document(VersionUse("shop", 1, 2, AT, 1), flows.KEYS), "flow version runs oldest workers undoable"),
    "queue": (document(QueueStatus("q", True), broker.KEYS), "name exists messages consumers problem"),
    "doctor": (
        doctor.shape([Setting("n", "v", "s")], [warning("w", "says")], HEALTH, timedelta(0)),
        "ok settings checks workers counts",
    ),
}


@pytest.mark.parametrize("what", PRINTED)
def test_the_keys_are_these_in_this_order(what: str) -> None:
    printed, keys = PRINTED[what]
    assert list(printed) == keys.split()
    json.dumps(printed)


def test_doctor_prints_these_keys() -> None:
    printed = doctor.shape([Setting("n", "v", "s")], [warning("w", "says")], HEALTH, timedelta(seconds=30))
    assert printed["settings"] == [{"name": "n", "value": "v", "source": "s"}]
    assert printed["checks"] == [{"name": "w", "state": "warning", "says": "says", "advice": ""}]
    assert list(printed["workers"][0]) == DOCTOR_WORKER_KEYS.split()
    assert list(printed["counts"]) == COUNT_KEYS.split()
    assert printed["counts"]["undecided_faults"] == 2


def test_values_are_json_without_the_stored_encoding() -> None:
    run = documents.run(RUN)
    assert (run["status"], run["args"], run["result"]) == ("waiting", {"seats": 5}, 1.5)
    assert (run["tags"], run["resources"], run["expected"]) == ({"at": "2024-05-17"}, ["hall"], 60.0)
    assert (run["created_at"], run["started_at"]) == ("2024-05-17T12:30:00+00:00", None)
    assert run["waits"] == [
        {
            "path": "2",
            "kind": "signal",
            "name": "paid",
            "since": "2024-05-17T12:30:00+00:00",
            "until": "2024-05-17T12:31:30+00:00",
        }
    ]
    assert documents.frame(FRAME)["result"] == 2
    assert (documents.item(SIGNAL)["from"], documents.item(SIGNAL)["value"]) == ("me", "yes")
    assert documents.schedule(SCHEDULED, Status.COMPLETED)["next_local"] == "2024-05-17T14:31:30+02:00"


def test_parts_of_a_part_that_is_missing_are_null() -> None:
    assert [documents.happening(event)["until"] for event in EVENTS] == ["2024-05-17T12:31:30+00:00", None]
    assert [documents.happening(event)["wait_seconds"] for event in EVENTS] == [None, 5.0]
    asked = of_rules.explanation(EXPLAINED, None)["asked"][0]["rules"]
    assert [(rule["number"], rule["condition"], rule["held"]) for rule in asked] == [
        (1, "true", True),
        (9, None, False),
    ]
    nothing = of_rules.explanation(Explanation(FAILED, "shop", None, {}, ""), None)
    assert (nothing["on"], nothing["rule"], nothing["asked"], nothing["plan"]) == (None, None, [], None)


def test_a_fault_is_printed_with_its_ladder_and_its_times_in_seconds() -> None:
    fault = documents.fault(FAILED)
    assert fault["ladder"] == [{"wait_seconds": 5.0, "tries": 3}]
    assert (fault["wait_seconds"], fault["retry_after_seconds"], fault["own_answer"]) == (5.0, 7.0, "recoverable")
    assert (fault["state"], fault["lineage"]) == (FaultState.OPEN.value, ["shop.Busy"])
    assert fault["ruling"] == {"do": "go", "args": {"seats": 1}}
