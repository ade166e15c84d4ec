"""Returns the flow or the attempt whose code runs on this thread.

Context variables hold this, also in the event loop's thread. In a flow, activities are durable. In an attempt (and so
in compensators), and outside, they are the plain functions they wrap.
"""

from __future__ import annotations

import random as random_module
import uuid as uuid_module
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn, Protocol

from sqlalchemy import Connection
from sqlalchemy.exc import PendingRollbackError
from sqlalchemy.orm import Session

from aft.codec import ValueCodec
from aft.errors import DefinitionError
from aft.flows.runtime.generators import check_collector
from aft.ids import RunId
from aft.texts import check_storable, require_text


@dataclass(frozen=True, slots=True)
class Current:
    """The place where an activity or a flow runs; ``key`` is the same for every attempt of the same step."""

    run_id: RunId | None
    key: str
    attempt: int
    epoch: int
    activity: str | None = None


class FlowContext(Protocol):
    """The engine's interface for a flow's code."""

    def current(self) -> Current: ...
    def now(self) -> datetime: ...
    def uuid(self) -> uuid_module.UUID: ...
    def random(self) -> random_module.Random: ...
    def savepoint(self, name: str) -> AbstractContextManager[None]: ...
    def signal_codec(self, name: str, annotation: Any) -> ValueCodec: ...
    def patched(self, change: str) -> bool: ...
    def continue_as_new(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn: ...
    def call(self, call: Any) -> Any: ...
    def awaited(self, call: Any) -> Generator[Any, Any, Any]: ...
    def parallel(self, calls: Sequence[Any], most: int | None) -> Any: ...


@dataclass(slots=True)
class AttemptContext:
    """The engine's interface for an attempt's code."""

    current: Current
    connection: Connection | None = None
    session: ActivitySession | None = None


_flow: ContextVar[FlowContext | None] = ContextVar("aft_flow", default=None)
_attempt: ContextVar[AttemptContext | None] = ContextVar("aft_attempt", default=None)


def flow_context() -> FlowContext | None:
    """Return the flow whose code is running; None inside an attempt and outside a run."""
    check_collector()
    return None if _attempt.get() is not None else _flow.get()


class ActivitySession(Session):
    """A session in a savepoint of the outcome's transaction: only ``rollback`` discards changes.

    ``close``, ``reset`` and the end of a ``with`` would discard uncommitted changes, though the activity returns
    normally; here they do so only if an exception leaves the ``with``, or if the database refuses what is left to
    flush.
    """

    #: A failed flush without a rollback by the activity: its changes are lost, so the activity must fail.
    _pending: PendingRollbackError | None = None

    def __exit__(self, type_: Any, value: Any, traceback: Any) -> None:
        if type_ is None:
            self.close()
        else:
            super().close()

    def close(self) -> None:
        """Commit to the savepoint, and start again."""
        try:
            self.commit()
        except PendingRollbackError as error:
            self._pending = self._pending or error  # raised later: it must not replace what is being raised
        finally:
            super().close()

    def reset(self) -> None:
        """Do what ``close`` does: either leaves a session that starts again."""
        self.close()

    def leave(self) -> None:
        """Release the savepoint into the transaction around it; raises what the database refuses."""
        self.close()
        if self._pending is not None:
            raise self._pending


@contextmanager
def in_flow(context: FlowContext) -> Iterator[None]:
    """Run the code in this block as a flow's."""
    flow_token, attempt_token = _flow.set(context), _attempt.set(None)
    try:
        yield
    finally:
        _flow.reset(flow_token)
        _attempt.reset(attempt_token)


class in_attempt:  # read as a verb, like the one above; a class, because it is entered very often
    """Run the code in this block as an attempt's."""

    __slots__ = ("_context", "_token")

    def __init__(self, context: AttemptContext) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._token = _attempt.set(self._context)

    def __exit__(self, *_: object) -> None:
        _attempt.reset(self._token)


def current() -> Current:
    """Return where this code is running: run id, idempotency key, attempt, epoch.

    Outside a run there is no run id, and the key is a fresh one each time: such a call is an operation of its own.
    """
    if (attempt := _attempt.get()) is not None:
        return attempt.current
    if (flow := _flow.get()) is not None:
        return flow.current()
    return Current(run_id=None, key=str(uuid_module.uuid4()), attempt=1, epoch=0)


def now() -> datetime:
    """Return the time; in a flow, that of the last recorded outcome, so that a replay sees the same."""
    flow = flow_context()
    return datetime.now(UTC) if flow is None else flow.now()


def uuid() -> uuid_module.UUID:
    """Return a new UUID; in a flow, the same one again on replay."""
    flow = flow_context()
    return uuid_module.uuid4() if flow is None else flow.uuid()


def random() -> random_module.Random:
    """Return a random number generator; in a flow it is seeded by the run, so that a replay draws the same."""
    flow = flow_context()
    return random_module.Random() if flow is None else flow.random()


def session() -> Session:
    """Return the SQLAlchemy session of a transactional activity: its changes commit with the outcome, or not at all."""
    attempt = _attempt.get()
    if attempt is None or attempt.connection is None:
        raise DefinitionError(
            "aft.session() works only inside an activity declared with transactional=True, while it runs in a flow"
        )
    if attempt.session is None:
        attempt.session = ActivitySession(bind=attempt.connection, join_transaction_mode="create_savepoint")
    return attempt.session


class _Savepoint(AbstractContextManager[None]):
    """The block of a savepoint; warns if it was made and never entered, as nothing is undone with it."""

    def __init__(self, name: str, block: AbstractContextManager[None]) -> None:
        self._name = name
        self._block = block
        self._entered = False

    def __enter__(self) -> None:
        self._entered = True
        return self._block.__enter__()

    def __exit__(self, *raised: Any) -> bool | None:
        return self._block.__exit__(*raised)

    def __del__(self) -> None:
        if not self._entered:
            call = f"aft.savepoint({self._name!r})" if self._name else "aft.savepoint()"
            warnings.warn(
                f"{call} was never entered, so nothing is undone with it; write `with {call}:`",
                RuntimeWarning,
                stacklevel=2,
            )


def savepoint(name: str = "") -> AbstractContextManager[None]:
    """Unwind the frames pushed in this block if an exception leaves it; then the exception propagates."""
    require_text("a savepoint's name", name, DefinitionError)
    check_storable("a savepoint's name", name, DefinitionError)
    flow = flow_context()
    return _Savepoint(name, nullcontext() if flow is None else flow.savepoint(name))
