"""What ``aft replay`` needs of this example: setup of a scenario, the state of its tables, name who hangs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import cms, database, trouble
from .cms import Contents, State
from .flow import ADMINISTRATOR, REVIEWER, ad_slot_approval

flow = ad_slot_approval

prepare = database.prepare
find_hanging_process = trouble.hanging

#: Who decided what on the way to each end; the audits must say one of these, and each has its notice.
_WAYS: dict[State, list[list[tuple[str, State]]]] = {
    State.SUBMITTED: [[]],
    State.APPROVED: [[(ADMINISTRATOR, State.CLEARED), (REVIEWER, State.APPROVED)]],
    State.REJECTED: [[(ADMINISTRATOR, State.REJECTED)], [(ADMINISTRATOR, State.CLEARED), (REVIEWER, State.REJECTED)]],
}


def set_up(subject: str, scene: Mapping[str, Any]) -> dict[str, Any]:
    """Submit a slot of that name and order its troubles; return the flow's arguments, with the scene's patience."""
    cms.submit_slot(subject, advertiser="Tea & Sons")
    for row in scene.get("trouble", []):
        trouble.order(subject, row["at"], trouble.Kind(row["kind"]), row.get("times", 1))
    return {"slot_id": subject, **scene.get("patience", {})}


def read_state(subject: str) -> tuple[str, Contents]:
    """Say how the slot stands, in one word if all tables agree, and give everything that they hold about it."""
    found = cms.contents(subject)
    state = State(found.slot["state"])
    decided = sorted((audit["decided_by"], audit["state"]) for audit in found.audits)
    agree = (
        decided in map(sorted, _WAYS.get(state, []))
        and [notice["key"] for notice in found.notices] == [audit["key"] for audit in found.audits]
        and not (state is State.SUBMITTED and found.reminders)  # nobody has to be reminded of what was undone
    )
    if agree:
        return state.value, found
    left = f"{len(found.notices)} notices and {len(found.reminders)} reminders"
    return f"{state.value}, but audits say {decided} and there are {left}", found
