"""The meaning of each fact that a condition may mention, one line each."""

from __future__ import annotations

#: In the order in which people look for them: the fault first.
MEANINGS: dict[str, str] = {
    "fault.name": "class of the exception, without its module",
    "fault.type": "class of the exception, with its module",
    "fault.bases": "the class and its bases, with modules",
    "fault.text": "text of the exception",
    "fault.signature": "STEP/CLASS: what faults of the same sort share",
    "fault.recoverable": "whether aft itself classifies it as recoverable",
    "fault.exhausted": "whether no level of the ladder is left",
    "fault.status": "HTTP status; 0: none",
    "fault.after": "seconds that it asked to wait; 0: none",
    "fault.deaths": "workers that were lost in a row",
    "fault.resource": "what the activity needs",
    "fault.kind": "activity, compensator or abort",
    "fault.id": "its id",
    "activity.name": "the step that it is about",
    "activity.args": "its arguments, by name",
    "activity.result": "what it returned, for constraints after it",
    "activity.attempts": "failures of this step so far, itself included",
    "activity.level": "level of the ladder that would be next; 0: none",
    "activity.elapsed": "seconds that it has taken so far",
    "run.flow": "its flow",
    "run.version": "version of its flow",
    "run.args": "arguments of the flow, by name",
    "run.tags": "its tags, by name",
    "run.key": "its key; empty: none",
    "run.owner": "its owner; empty: none",
    "run.priority": "its priority",
    "run.age": "seconds since it was made",
    "run.status": "running, recovering, …",
    "run.id": "its id",
    "history.same_1m": "faults like it within a minute, itself included",
    "history.same_10m": "… within ten minutes",
    "history.same_1h": "… within an hour",
    "history.same_1d": "… within a day",
    "history.outcome": "by level, the outcome of the last try there",
    "timeout.activity": "activity that did not return in time",
    "trigger.name": "event that was raised from outside",
}
#: What is said of an outside source.
SOURCE = "declared with @aft.source"
