"""The decision about one fault: its route, the choice of rules behind it, and the row that is written of it. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, assert_never

from aft import names
from aft.dispatcher.route import ApplyRuling, CarryOutExlet, GiveUp, ParkRun, RetryLater, Route
from aft.envelope import Message, MessageKind
from aft.fault import Fault, FaultKind, FaultState
from aft.rules.cases import step_snapshot
from aft.rules.trees.choose import RuleChoice
from aft.runs.rulings import Ruling, RulingAction

#: The columns of a decision's row that most routes leave out.
_LEFT_OUT: dict[str, Any] = {
    "tries_again": False,
    "slack": 0.0,
    **dict.fromkeys(("level", "try_in_level", "wait", "ruling", "reason", "address", "body")),
}


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about one fault. ``choice`` is None if aft's own decision holds, and no rule was asked.

    ``queue`` is None if the timer or a person continues the run; ``key`` is the routing key of the run's wake-ups.
    """

    fault: Fault
    route: Route
    choice: RuleChoice | None = None
    queue: str | None = None
    key: str = ""

    def at(self, epoch: int) -> Decision:
        """Return the same decision for a fault that a later owner has raised again since it was read."""
        return self if self.fault.epoch == epoch else replace(self, fault=replace(self.fault, epoch=epoch))

    @property
    def state(self) -> FaultState:
        """The state of the fault after this decision."""
        match self.route:
            case RetryLater():
                return FaultState.WAITING
            case GiveUp():
                return FaultState.FINAL
            case ParkRun():
                return FaultState.PARKED
            case ApplyRuling(state=state):
                return state
            case CarryOutExlet():
                return FaultState.HANDLED
            case _:
                assert_never(self.route)

    @property
    def needs_more(self) -> bool:
        """Whether more than its row is written (``dispatcher.decisions_single``)."""
        match self.route:
            case RetryLater(signal=signal):
                return signal is not None
            case ApplyRuling(ruling=ruling):
                return bool(texts_of(self.fault, ruling))
            case GiveUp() | ParkRun():
                return False
            case CarryOutExlet():
                return True
            case _:
                assert_never(self.route)

    def message(self, at: datetime) -> tuple[str, str] | None:
        """Return (address, body) of the message that wakes the run; None if the decision publishes none."""
        if self.queue is None:
            return None
        kind = MessageKind.COMPENSATE if isinstance(self.route, GiveUp) else MessageKind.RESUME
        body = Message.about_fault(kind, self.fault.run_id, self.fault.id, at).encode()
        return names.address(self.queue, self.key), body

    def fields(self, namespace: str, grace: float, at: datetime) -> dict[str, Any]:
        """Return the row that ``decisions_batch.DECIDES`` writes; ``grace``: see ``_outcome``."""
        row = _LEFT_OUT | {
            "fault": self.fault.id,
            "run": self.fault.run_id,
            "epoch": self.fault.epoch,
            "namespace": namespace,
            "state": self.state.value,
            "queue": self.queue,
            "why": self.route.why,
            "decision": None if self.choice is None else self.choice.encode(),
        }
        if (message := self.message(at)) is not None:
            row["address"], row["body"] = message
        row.update(self._outcome(grace))
        return row

    def _outcome(self, grace: float) -> dict[str, Any]:
        """Return the columns of its route. ``wait``: seconds until the run is due; None leaves that as it is.

        ``slack``: seconds from then until the timer claims the run; ``grace`` if a message comes, which may be lost.
        """
        match self.route:
            case RetryLater(wait=wait, level=level, try_in_level=try_in_level):
                return {
                    "tries_again": True,
                    "level": level,
                    "try_in_level": try_in_level,
                    "wait": None if wait is None else wait.total_seconds(),
                    # Without a queue the timer is the way back; with one it comes in only if the message does not.
                    "slack": 0.0 if self.queue is None else grace,
                    "ruling": again(self.fault).encode() if self.fault.kind is FaultKind.CONSTRAINT else None,
                }
            case GiveUp():
                return {"wait": 0.0, "slack": grace}
            case ApplyRuling(ruling=ruling):
                return {"wait": 0.0, "slack": grace, "ruling": ruling.encode()}
            case ParkRun(why=why):
                return {"reason": self.fault.describe_parked(why)}
            case CarryOutExlet():
                return {}
            case _:
                assert_never(self.route)


def again(fault: Fault, ruling: Ruling | None = None) -> Ruling:
    """Return the ruling that tries a step again; a step that had its effect is undone first."""
    return replace(ruling or Ruling(), do=RulingAction.AGAIN if step_snapshot.had_effect(fault) else None)


def texts_of(fault: Fault, ruling: Ruling) -> dict[str, Any]:
    """Return the texts of the fault that a ruling changes: a constraint fails with the exlet's message."""
    if ruling.do is RulingAction.FAIL and ruling.why and fault.kind is FaultKind.CONSTRAINT:
        return {"message": ruling.why, "args": json.dumps([ruling.why])}
    return {}
