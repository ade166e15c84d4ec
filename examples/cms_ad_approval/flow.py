"""The approval of an ad slot: the flow, its activities, and the compensator of each.

Two people decide: the system administrator whether the request may enter the CMS, then the reviewer about the slot.
The flow waits for their verdicts, which are signals. Who keeps silent is reminded once; who keeps silent after that has
everything undone, and the slot is as the advertiser submitted it.
"""

from __future__ import annotations

from enum import StrEnum

import aft

from . import cms
from .cms import Decision, Reminder, State
from .trouble import CmsBusy, PolicyViolation

ADMINISTRATOR = "system administrator"
REVIEWER = "reviewer"

#: How long a person is waited for: until the reminder, and from then on. Long enough to type an answer into another
#: terminal. People who read their mail get days: "3d" and "4d".
REMIND_AFTER, GIVE_UP_AFTER = "1m", "1m"
#: Short, so that a replay is over soon. A CMS that is really busy gets minutes: Level("1m", tries=2), Level("10m").
LEVELS = [aft.Level("200ms", tries=2), aft.Level("500ms", tries=1)]

# What every activity of the CMS declares. A compensator that declares nothing is tried as its activity is.
of_cms = aft.activity(levels=LEVELS, recoverable=(CmsBusy,), unrecoverable=(PolicyViolation,))


class Verdict(StrEnum):
    """What a person says about a slot."""

    APPROVE = "approve"
    REJECT = "reject"


def undo_remind(result: Reminder) -> None:
    """Take the reminder off the person's list."""
    cms.withdraw(result)


def undo_sysadmin_approve(result: Decision) -> None:
    """Take the administrator's approval back: the slot is as the advertiser submitted it."""
    cms.undo(result)


def undo_sysadmin_reject(result: Decision) -> None:
    """Take the administrator's rejection back: the slot is as the advertiser submitted it."""
    cms.undo(result)


def undo_approve_slot(result: Decision) -> None:
    """Take the slot off the pages again: it is as the administrator cleared it."""
    cms.undo(result)


def undo_reject_slot(result: Decision) -> None:
    """Take the reviewer's rejection back: the slot is as the administrator cleared it."""
    cms.undo(result)


@aft.compensate_with(undo_remind)
@of_cms
def remind(slot_id: str, person: str) -> Reminder:
    """Put the slot on the list of a person who has not said anything about it."""
    return cms.remind(slot_id, person, aft.current().key)


@aft.compensate_with(undo_sysadmin_approve)
@of_cms
def sysadmin_approve(slot_id: str) -> Decision:
    """The system administrator lets the request into the CMS."""
    return cms.decide(slot_id, ADMINISTRATOR, State.SUBMITTED, State.CLEARED, aft.current().key)


@aft.compensate_with(undo_sysadmin_reject)
@of_cms
def sysadmin_reject(slot_id: str) -> Decision:
    """The system administrator turns the request away."""
    return cms.decide(slot_id, ADMINISTRATOR, State.SUBMITTED, State.REJECTED, aft.current().key)


@aft.compensate_with(undo_approve_slot)
@of_cms
def approve_slot(slot_id: str) -> Decision:
    """The reviewer approves the slot."""
    return cms.decide(slot_id, REVIEWER, State.CLEARED, State.APPROVED, aft.current().key)


@aft.compensate_with(undo_reject_slot)
@of_cms
def reject_slot(slot_id: str) -> Decision:
    """The reviewer rejects the slot."""
    return cms.decide(slot_id, REVIEWER, State.CLEARED, State.REJECTED, aft.current().key)


@aft.flow(signals={"sysadmin_verdict": Verdict, "reviewer_verdict": Verdict})
def ad_slot_approval(slot_id: str, remind_after: str = REMIND_AFTER, give_up_after: str = GIVE_UP_AFTER) -> State:
    """Bring a submitted slot to its end; the reviewer is asked only about what the administrator let in.

    A slot that cannot wait as long as others gets less patience.
    """

    def verdict_of(person: str, signal: str) -> Verdict:
        verdict: Verdict | None = aft.wait_for(signal, timeout=remind_after, default=None)
        if verdict is None:
            remind(slot_id, person)
            verdict = aft.wait_for(signal, Verdict, timeout=give_up_after)  # raises aft.WaitTimeout: all is undone
        return verdict

    if verdict_of(ADMINISTRATOR, "sysadmin_verdict") is Verdict.REJECT:
        return sysadmin_reject(slot_id).state
    sysadmin_approve(slot_id)
    if verdict_of(REVIEWER, "reviewer_verdict") is Verdict.REJECT:
        return reject_slot(slot_id).state
    return approve_slot(slot_id).state
