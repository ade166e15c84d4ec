"""What a flow catches: the exception's own class, whatever the exception carried, on first pass and replay alike."""

from __future__ import annotations

import abc
import enum
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import pytest

import aft
from aft.runs.states import Status
from tests.setups import Setup, eventually, run_to
from tests.world import ledger

seen: dict[str, list[Any]] = defaultdict(list)


class Why(enum.Enum):
    """Why a card was declined."""

    LIMIT = "limit"


class CardDeclined(Exception):
    """An exception of a shop, which carries more than its text."""

    def __init__(self, *args: object, why: Why | None = None) -> None:
        super().__init__(*args)
        self.why = why


class CardsDeclined(ExceptionGroup[Exception]):
    """Several of them."""


class Response:
    """What an HTTP library keeps of an answer."""

    status_code = 402
    reason = "Payment Required"
    text = "card 4111-1111 was declined"

    def __init__(self) -> None:
        self.headers = {"Authorization": "Bearer secret", "X-Request-Id": "7"}


class HTTPError(Exception):
    """As HTTP libraries raise it."""

    def __init__(self, message: str, response: Response) -> None:
        super().__init__(message)
        self.response = response


CARRIED: dict[str, Callable[[], Exception]] = {
    "an enum": lambda: CardDeclined(Why.LIMIT),
    "a path": lambda: CardDeclined(PurePosixPath("/cards/7")),
    "nan": lambda: CardDeclined(float("nan")),
    "an exception": lambda: CardDeclined(KeyError("limit")),
    "a long text": lambda: CardDeclined("x" * 17_000),
    "an object": lambda: CardDeclined(object()),
    "a lock": lambda: CardDeclined(why=object()),  # type: ignore[arg-type]
}


def refund(order: str) -> None:
    ledger[order].append("refund")


@aft.compensate_with(refund)
def charge(order: str) -> None:
    ledger[order].append("charge")


@aft.activity(levels=[])
def decline(order: str, what: str) -> None:
    raise CARRIED[what]()


@aft.activity(levels=[])
def invoice(order: str) -> None:
    ledger[order].append("invoice")


@aft.flow
def selling(order: str, what: str) -> str:
    charge(order)
    try:
        decline(order, what)
    except CardDeclined as error:
        seen[order].append((type(error), str(error), repr(error.args)))
        invoice(order)
    aft.wait_for("go")  # so that everything is replayed
    return "sold"


@pytest.mark.parametrize("what", CARRIED)
def test_a_fallback_is_taken_whatever_the_exception_carries(setup: Setup, order: str, what: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(selling, order, what)
        eventually(lambda: run.status is Status.WAITING)
    with app.dispatcher():
        run.signal("go")
        assert run.result(60) == "sold"
    assert ledger[order] == ["charge", "invoice"]
    assert len(seen[order]) >= 2
    assert len(set(seen[order])) == 1


class Abstract(OSError, metaclass=abc.ABCMeta):
    """A base with a metaclass."""


class Registering(OSError):
    """A base that is told of what is derived from it."""

    known: ClassVar[list[type]] = []

    def __init_subclass__(cls) -> None:
        cls.known.append(cls)


BANK = """
from tests.acceptance.test_rebuilt_exceptions import Abstract, Registering

class Refused(ConnectionError): pass
class Closed(Abstract): pass
class Bankrupt(Registering): pass
"""


@aft.activity(levels=[])
def ask_bank(order: str) -> None:
    import aft_late_bank  # type: ignore[import-not-found]

    bank = aft_late_bank
    raise ExceptionGroup("three", [bank.Refused("refused"), bank.Closed("closed"), bank.Bankrupt("bankrupt")])


@aft.flow
def asking_bank(order: str) -> str:
    try:
        ask_bank(order)
    except* aft.ActivityFailed:
        seen[order].append("failed")
    except* Abstract as group:
        seen[order] += map(str, group.exceptions)
    except* Registering as group:
        seen[order] += map(str, group.exceptions)
    except* OSError as group:
        seen[order] += map(str, group.exceptions)
    aft.wait_for("go")
    return "asked"


def test_a_fallback_is_taken_where_the_module_of_the_exception_is_not_imported(
    setup: Setup, order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "aft_late_bank.py").write_text(BANK)
    monkeypatch.syspath_prepend(tmp_path)
    app, known = setup.app(), len(Registering.known)
    with app.dispatcher():
        run = app.submit(asking_bank, order)
        eventually(lambda: run.status is Status.WAITING)
    del sys.modules["aft_late_bank"]  # as in another process
    with app.dispatcher():
        run.signal("go")
        assert run.result(60) == "asked"
    passes = [seen[order][first : first + 3] for first in range(0, len(seen[order]), 3)]
    assert len(passes) >= 2
    assert all(told == ["closed", "bankrupt", "refused"] for told in passes)
    assert "aft_late_bank" not in sys.modules
    assert len(Registering.known) == known + 1


@aft.activity(levels=[])
def decline_two(order: str) -> None:
    raise CardsDeclined("two", [CardDeclined("a", why=Why.LIMIT), ValueError("b")])


@aft.flow
def selling_two(order: str) -> list[str]:
    told: list[str] = []
    try:
        decline_two(order)
    except* CardDeclined as group:
        told += [f"{error.args[0]} {error.why is Why.LIMIT}" for error in group.exceptions]  # type: ignore[union-attr]
    except* ValueError as group:
        told += [str(error) for error in group.exceptions]
    return told


def test_a_group_comes_back_with_its_leaves(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        assert app.submit(selling_two, order).result(60) == ["a True", "b"]


@aft.activity(levels=[])
def decline_with_reason(order: str) -> None:
    raise CardDeclined("no", why=Why.LIMIT)


@aft.flow
def asking_why(order: str) -> str:
    try:
        decline_with_reason(order)
    except CardDeclined as error:
        return "limit" if error.why is Why.LIMIT else "other"
    return "none"


def test_attributes_that_can_be_stored_are_restored(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        assert app.submit(asking_why, order).result(60) == "limit"


@aft.activity(levels=[])
def post(order: str) -> None:
    raise HTTPError("402 Client Error", Response())


@aft.flow
def posting(order: str) -> int:
    try:
        post(order)
    except HTTPError as error:
        return error.response.status_code
    return 0


@aft.flow
def reading(order: str) -> str:
    charge(order)
    try:
        post(order)
    except HTTPError as error:
        return error.response.text
    return ""


def test_the_status_of_an_answer_is_there_as_its_library_has_it(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        assert app.submit(posting, order).result(60) == 402


def test_what_was_not_kept_parks_the_run_and_is_named(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher():
        run = app.submit(reading, order)
        eventually(lambda: run.status is Status.PARKED)
    assert "NotKept: response.text" in (run.row.reason or "")
    assert "e.fault" in (run.row.reason or "")
    assert ledger[order] == ["charge"]


def test_the_failure_is_the_cause_of_what_result_raises(setup: Setup, order: str) -> None:
    app = setup.app()
    with app.dispatcher(), pytest.raises(aft.FlowCompensated, match="failed") as raised:
        app.submit(declined, order).result(60)
    cause = raised.value.__cause__
    assert isinstance(cause, CardDeclined)
    assert cause.why is Why.LIMIT


@aft.flow
def declined(order: str) -> None:
    decline_with_reason(order)


@aft.flow
def waits(order: str) -> None:
    charge(order)
    aft.wait_for("never")


def test_a_run_that_was_cancelled_and_undone_says_so(setup: Setup, order: str) -> None:
    with run_to(setup.app(), waits, order, status=Status.WAITING) as run:
        run.cancel()
        with pytest.raises(aft.FlowCompensated, match=r"was cancelled, and everything it had done was undone$"):
            run.result(60)
    assert ledger[order] == ["charge", "refund"]


def test_a_completed_run_that_was_undone_by_order_says_so(setup: Setup, order: str) -> None:
    with run_to(setup.app(), charging, order) as run:
        run.result(60)
        run.compensate()
        eventually(lambda: run.status is Status.COMPENSATED)
        with pytest.raises(aft.FlowCompensated, match=r"had completed, and was undone by order$"):
            run.result(60)


@aft.flow
def charging(order: str) -> None:
    charge(order)
