"""Tracks unknown outcomes: steps that an earlier owner may have begun. Such a step is *in doubt*.

An owner that dies leaves steps at work of which nothing is recorded. The next owner replays the journal to its
*end*: where the code requests steps that have no outcome. Only those may have been at work. Each of them stays in
doubt until it has its own outcome; steps that are begun from then on are not in doubt.

In the database an unknown outcome is an open fault of kind *abort*. The abort of a death names no steps: it means those
at the journal's end. An owner that releases the run regularly leaves an abort that names the steps which are still in
doubt. The write after which no step is in doubt closes all aborts.

A crash leaves the aborts as they were, and a new one for the death; the next owner finds the steps at the journal's
end again. The branches of one run use it at the same time; ``flows.session.step_states`` calls it under its lock.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable
from dataclasses import dataclass
from datetime import datetime

from aft.codec.text import StoredJson
from aft.fault import Fault
from aft.ids import StepPath

#: How the path of a compensator ends.
UNDO = "/undo"


@dataclass(frozen=True, slots=True)
class UnknownSteps:
    """The steps that an abort names; none: those at the journal's end.

    ``tried`` have failed before, which was seen, and a person lets them start again.
    """

    steps: tuple[StepPath, ...] = ()
    tried: tuple[StepPath, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.steps or self.tried)

    def encode(self) -> str:
        """Encode it as the arguments of an abort; that of a death has none."""
        return json.dumps([self.steps, self.tried] if self else [])

    @staticmethod
    def decode(args: str) -> UnknownSteps:
        """Decode the arguments of an abort."""
        return UnknownSteps(*_STORED.read(args))

    def __str__(self) -> str:
        steps = sorted({*self.steps, *self.tried})
        if not steps:
            return "the outcome of its next step is unknown"
        listed = ", ".join(steps[:5]) + (", …" if len(steps) > 5 else "")
        return f"the outcome of step{'s' * (len(steps) > 1)} {listed} is unknown"


_STORED: StoredJson[tuple[tuple[StepPath, ...], ...]] = StoredJson(tuple[tuple[StepPath, ...], ...])


def count_losses(aborts: Iterable[Fault], since: datetime) -> int:
    """Return how often workers were lost on the run after the first loss since ``since``.

    The first loss, which left the outcome unknown, does not count; nor does an owner that released the run regularly,
    and named the steps which are still in doubt.
    """
    again = sorted(aborts, key=lambda abort: abort.raised_at)[1:]
    return sum(abort.raised_at > since and not UnknownSteps.decode(abort.args) for abort in again)


@dataclass(frozen=True, slots=True)
class Handover:
    """What an owner writes at release about unknown outcomes: the aborts that it closes, the steps of each new one."""

    closed: tuple[str, ...] = ()
    named: tuple[UnknownSteps, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.closed or self.named)


class UnknownOutcomes:
    """The steps in doubt of one run, as its owner knows them."""

    def __init__(self) -> None:
        #: Whether an owner has died, and the replay has not reached the journal's end yet.
        self.before_journal_end = False
        #: Whether this owner may have begun steps: not while it has not read what earlier owners have recorded.
        self.may_grow = False
        self._steps: set[StepPath] = set()
        #: Steps that have failed before, and that a person lets start again. Their failure was seen.
        self._tried: set[StepPath] = set()
        #: The steps that each open abort names, by the abort's id.
        self._aborts: dict[str, UnknownSteps] = {}
        #: The step whose outcome is written together with closing all aborts.
        self._last: StepPath | None = None

    @property
    def any(self) -> bool:
        """Whether any step may have had an effect that was not seen."""
        return self.any_but(())

    def any_but(self, undone: Container[str]) -> bool:
        """Whether a step outside ``undone`` may have had an effect that was not seen."""
        return self.before_journal_end or any(not step.endswith(UNDO) and step not in undone for step in self._steps)

    @property
    def any_tried(self) -> bool:
        """Whether a person lets a step start again that has not been begun since."""
        return bool(self._tried)

    def __contains__(self, path: StepPath) -> bool:
        """Whether a step may have had an effect that was not seen."""
        return path in self._steps

    def was_tried(self, path: StepPath) -> bool:
        """Whether a person lets this step start again."""
        return path in self._tried

    # Reading --------------------------------------------------------------------------------------------------------

    def read(self, aborts: Iterable[Fault], seen: Container[str] = ()) -> None:
        """Load the aborts that earlier owners left; ``seen`` are steps that have their outcome by now."""
        for abort in aborts:
            if abort.id in self._aborts:
                continue  # read in an earlier pass: this owner knows more since then
            named = UnknownSteps.decode(abort.args)
            self._aborts[abort.id] = named
            self._steps.update(step for step in named.steps if step not in seen)
            self._tried.update(step for step in named.tried if step not in seen)
            self.before_journal_end = self.before_journal_end or not named

    def take_over(self, before: UnknownOutcomes) -> None:
        """Copy what this owner's previous pass has left."""
        self.before_journal_end, self.may_grow = before.before_journal_end, before.may_grow
        self._steps, self._tried = set(before._steps), set(before._tried)
        self._aborts = dict(before._aborts)

    # Keeping up -----------------------------------------------------------------------------------------------------

    def note_journal_end(self, steps: Iterable[StepPath]) -> None:
        """Note that the replay has reached the journal's end, and which steps the last owner may have begun there."""
        if self.before_journal_end:
            self._steps.update(steps)
            self.before_journal_end = False

    def add(self, path: StepPath) -> None:
        """Add a step that was begun, with unknown outcome."""
        self._steps.add(path)

    def note_all_unknown(self) -> None:
        """Put all steps in doubt that this owner has begun."""
        self.before_journal_end = True

    def allow_restart(self, path: StepPath) -> None:
        """Note that a person lets a step start again."""
        self._tried.add(path)

    def drop_abort(self, abort: str) -> None:
        """Drop an abort that was closed, though its outcome stays unknown."""
        self._aborts.pop(abort, None)

    def note_outcome(self, path: StepPath) -> None:
        """Note that a step has its outcome, or has failed."""
        self.rule_out(path)
        self._tried.discard(path)
        if path == self._last:
            self._aborts, self._last = {}, None

    def rule_out(self, path: StepPath) -> None:
        """Remove a step that cannot have been begun since it was last seen to fail."""
        self._steps.discard(path)

    def clear(self) -> None:
        """Remove all steps, but keep the aborts to be closed."""
        self.keep_compensators_only()
        self._steps.clear()

    def drop_all(self) -> None:
        """Drop steps and aborts that will never be resolved: the run is undone, and its final aborts record that."""
        self.keep_compensators_only()
        self._aborts.clear()

    def keep_compensators_only(self) -> None:
        """Keep only compensators: the run is undone from now on."""
        self.before_journal_end = False
        self._steps = {step for step in self._steps if step.endswith(UNDO)}
        self._tried.clear()

    # Writing --------------------------------------------------------------------------------------------------------

    def faults_closed_by(self, path: StepPath) -> tuple[str, ...]:
        """Return the aborts to close with the outcome of a step: all, if nothing is in doubt after it."""
        if not self._aborts or self.before_journal_end or self._steps - {path}:
            return ()
        self._last = path
        return tuple(self._aborts)

    def make_handover(self) -> Handover:
        """Return what a regular release writes, so that the next owner knows the same."""
        known = UnknownSteps(tuple(sorted(self._steps)), tuple(sorted(self._tried)))
        wanted = [UnknownSteps()] * self.before_journal_end + [known] * bool(known)
        kept = [abort for abort, named in self._aborts.items() if named in wanted]
        settled = tuple(abort for abort in self._aborts if abort not in kept)
        written = [self._aborts[abort] for abort in kept]
        return Handover(settled, tuple(named for named in wanted if named not in written))
