"""Which steps may an earlier owner have begun, without anybody having seen what came of them?

An owner that dies leaves steps at work of which nothing is recorded. The next owner replays the journal to its
*frontier*: where the code asks for steps that have no outcome. Those may have been at work, and no others. Each of them
stays in doubt until it has its own outcome; steps that are begun from then on are not in doubt.

In the database a doubt is a fault of kind *abort* that is not settled. The abort of a death names no steps: it means
whatever is at the frontier. An owner that lets go of the run in order leaves one that names the steps which are still
in doubt. All are settled by the write after which nothing is.

What a crash leaves: the aborts as they were, and a new one for the death; the next owner finds the steps at the
frontier again. Who may run at the same time: the branches of one run; ``flows.standing`` calls this under its lock.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable
from dataclasses import dataclass
from datetime import datetime

from aft.fault import Fault
from aft.ids import StepPath

#: How the path of a compensator ends.
UNDO = "/undo"


@dataclass(frozen=True, slots=True)
class Named:
    """The steps that an abort names; none: whatever is at the frontier.

    ``tried`` have failed before, which was seen, and a person lets them begin anew.
    """

    steps: tuple[StepPath, ...] = ()
    tried: tuple[StepPath, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.steps or self.tried)

    def encode(self) -> str:
        """Spell it, as the arguments of an abort; that of a death has none."""
        return json.dumps([self.steps, self.tried] if self else [])

    @staticmethod
    def decode(args: str) -> Named:
        """Read the arguments of an abort."""
        return Named(*(tuple(map(StepPath, steps)) for steps in json.loads(args)))

    def __str__(self) -> str:
        steps = sorted({*self.steps, *self.tried})
        if not steps:
            return "what its next step has come to is not known"
        listed = ", ".join(steps[:5]) + (", …" if len(steps) > 5 else "")
        return f"what came of step{'s' * (len(steps) > 1)} {listed} is not known"


def count_losses(aborts: Iterable[Fault], since: datetime) -> int:
    """Count how often a run was lost again since then: its first loss, which left the doubt, does not count.

    Neither does an owner that let go in order, and only said which steps are still in doubt.
    """
    again = sorted(aborts, key=lambda abort: abort.raised_at)[1:]
    return sum(abort.raised_at > since and not Named.decode(abort.args) for abort in again)


@dataclass(frozen=True, slots=True)
class Handover:
    """What an owner writes about its doubts when it lets go: the aborts it settles, and what each new one names."""

    settled: tuple[str, ...] = ()
    named: tuple[Named, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.settled or self.named)


class Doubts:
    """The steps of one run that are in doubt, as its owner knows them."""

    def __init__(self) -> None:
        #: Whether an owner has died, and the replay has not come to the frontier yet.
        self.before_frontier = False
        self._steps: set[StepPath] = set()
        #: Steps that have failed before, and that a person lets begin anew. Their failure was seen.
        self._tried: set[StepPath] = set()
        #: The steps that each unsettled abort names, by the abort's id.
        self._aborts: dict[str, Named] = {}
        #: The step whose outcome is written together with the end of all aborts.
        self._last: StepPath | None = None

    @property
    def any(self) -> bool:
        """Whether a step may have had an effect that nobody saw."""
        return self.any_but(())

    def any_but(self, undone: Container[str]) -> bool:
        """Tell whether another step may have had an effect that nobody saw."""
        return self.before_frontier or any(not step.endswith(UNDO) and step not in undone for step in self._steps)

    @property
    def any_tried(self) -> bool:
        """Whether a person lets a step begin anew that has not been begun since."""
        return bool(self._tried)

    def __contains__(self, path: StepPath) -> bool:
        """Tell whether a step may have had an effect that nobody saw."""
        return path in self._steps

    def was_tried(self, path: StepPath) -> bool:
        """Tell whether a person lets this step begin anew."""
        return path in self._tried

    # Reading --------------------------------------------------------------------------------------------------------

    def read(self, aborts: Iterable[Fault], seen: Container[str] = ()) -> None:
        """Take over the aborts that earlier owners left; ``seen`` are steps that have their outcome by now."""
        for abort in aborts:
            if abort.id in self._aborts:
                continue  # read in an earlier pass: since then this owner knows better
            named = Named.decode(abort.args)
            self._aborts[abort.id] = named
            self._steps.update(step for step in named.steps if step not in seen)
            self._tried.update(step for step in named.tried if step not in seen)
            self.before_frontier = self.before_frontier or not named

    def take_over(self, before: Doubts) -> None:
        """Begin another pass of the same owner: what is in doubt still is, and nothing else."""
        self.before_frontier = before.before_frontier
        self._steps, self._tried = set(before._steps), set(before._tried)
        self._aborts = dict(before._aborts)

    # Keeping up -----------------------------------------------------------------------------------------------------

    def reach_frontier(self, steps: Iterable[StepPath]) -> None:
        """Say that the replay has come to the frontier, and which steps the last owner may have begun there."""
        if self.before_frontier:
            self._steps.update(steps)
            self.before_frontier = False

    def add(self, path: StepPath) -> None:
        """Say that a step was begun, and that nobody knows what came of it."""
        self._steps.add(path)

    def lose_sight(self) -> None:
        """Say that nobody knows what came of the steps that this owner has begun."""
        self.before_frontier = True

    def try_again(self, path: StepPath) -> None:
        """Say that a person lets a step begin anew."""
        self._tried.add(path)

    def drop_abort(self, abort: str) -> None:
        """Say that an abort was settled, though what it is about was not seen."""
        self._aborts.pop(abort, None)

    def see(self, path: StepPath) -> None:
        """Say that a step has its outcome, or has failed."""
        self.rule_out(path)
        self._tried.discard(path)
        if path == self._last:
            self._aborts, self._last = {}, None

    def rule_out(self, path: StepPath) -> None:
        """Say that a step cannot have been begun since it was last seen to fail."""
        self._steps.discard(path)

    def forget(self) -> None:
        """Say that nothing is in doubt any more."""
        self.turn_back()
        self._steps.clear()

    def give_up(self) -> None:
        """Say that nobody will see any more what is in doubt: the run is undone, and its aborts say so for good."""
        self.turn_back()
        self._aborts.clear()

    def turn_back(self) -> None:
        """Say that the run is undone from now on: what compensators have done is all that may still be in doubt."""
        self.before_frontier = False
        self._steps = {step for step in self._steps if step.endswith(UNDO)}
        self._tried.clear()

    # Writing --------------------------------------------------------------------------------------------------------

    def settle_with(self, path: StepPath) -> tuple[str, ...]:
        """Return the aborts that are settled with the outcome of a step: all, if nothing is in doubt after it."""
        if not self._aborts or self.before_frontier or self._steps - {path}:
            return ()
        self._last = path
        return tuple(self._aborts)

    def leave(self) -> Handover:
        """Decide what is written when the run is let go in order, so that the next owner knows as much."""
        known = Named(tuple(sorted(self._steps)), tuple(sorted(self._tried)))
        wanted = [Named()] * self.before_frontier + [known] * bool(known)
        kept = [abort for abort, named in self._aborts.items() if named in wanted]
        settled = tuple(abort for abort in self._aborts if abort not in kept)
        written = [self._aborts[abort] for abort in kept]
        return Handover(settled, tuple(named for named in wanted if named not in written))
