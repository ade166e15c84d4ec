"""The rule types: what a rule may be about. The plain fault, and the ten types of exception of the worklet paper."""

from __future__ import annotations

from enum import StrEnum


class RuleType(StrEnum):
    """A rule type: what a rule is about."""

    FAULT = "fault"  #: an activity or a compensator raised
    ABORT = "abort"  #: the worker that executed it was lost
    TIMEOUT = "timeout"  #: an activity did not return in its time
    UNAVAILABLE = "unavailable"  #: a resource that an activity needs cannot be had
    ACTIVITY_PRE = "activity_pre"  #: a constraint does not hold before an activity
    ACTIVITY_POST = "activity_post"  #: a constraint does not hold after an activity
    VIOLATED = "violated"  #: a constraint ceases to hold while an activity is executed
    RUN_PRE = "run_pre"  #: a constraint does not hold when a run begins
    RUN_POST = "run_post"  #: a constraint does not hold when a run is about to end
    RUN_TRIGGER = "run_trigger"  #: an event was raised from outside for a run
    ACTIVITY_TRIGGER = "activity_trigger"  #: an event was raised from outside for an activity


#: The public name: it reads well where a rule is taught, ``on=aft.On.TIMEOUT``.
On = RuleType
#: Types that are about a run as a whole: their trees name no activity.
RUN_LEVEL = frozenset({RuleType.RUN_PRE, RuleType.RUN_POST, RuleType.RUN_TRIGGER})
#: Types whose rules are asked where the run is executed: nothing happens unless one holds.
CONSTRAINTS = frozenset(
    {RuleType.RUN_PRE, RuleType.RUN_POST, RuleType.ACTIVITY_PRE, RuleType.ACTIVITY_POST, RuleType.VIOLATED}
)
