"""Claims about failures: any exception becomes a fault; a fault becomes that exception again, and imports nothing."""

from __future__ import annotations

import importlib.util
import json
import sys
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pydantic import TypeAdapter

from aft.errors import ActivityFailed, Recoverable, Unrecoverable
from aft.fault import Fault, FaultKind, FaultState, Recoverability
from aft.flows.declare.policy import Policy
from aft.flows.exceptions import failures
from aft.flows.exceptions.classes import StandIn
from aft.flows.exceptions.failures import (
    BUGS,
    MOST_MESSAGE,
    MOST_TRACEBACK,
    FaultSite,
    is_bug,
    make_fault,
    own_recoverability,
    rebuild,
)
from aft.ids import RunId, StepPath
from aft.recovery.levels import Ladder, Level, read_ladder

AT = datetime(2024, 5, 17, tzinfo=UTC)
PLACE = FaultSite(RunId("r1"), 3, StepPath("2.1"), FaultKind.ACTIVITY, "charge", failures=4)
LADDER = Ladder((Level("5s", tries=3),))


class OutOfStock(Exception):
    """An ordinary exception of a user, whose __init__ takes more than it keeps."""

    def __init__(self, item: str, left: int) -> None:
        super().__init__(item, left)
        self.item = item


class Picky(Exception):
    """One that cannot be made without arguments."""

    def __new__(cls, *args: Any) -> Picky:
        if not args:
            raise TypeError("no")
        return super().__new__(cls, *args)


@dataclass(frozen=True)
class Frozen(Exception):
    """One that allows no attribute to be set."""

    code: int


class ReadOnly(Exception):
    """One that has something else under the name of fault."""

    @property
    def fault(self) -> str:
        return "mine"


def pydantic_error() -> Exception:
    try:
        TypeAdapter(int).validate_python("x")
    except ValueError as error:
        return error
    raise AssertionError


class Outer:
    """A class with an exception in it."""

    class Inner(Exception):
        """The exception."""


def described(error: BaseException, policy: Policy | None = None) -> Fault:
    return make_fault(error, PLACE, policy or Policy(), LADDER, AT)


def raised(error: BaseException) -> BaseException:
    """The exception with a traceback."""
    try:
        raise error
    except BaseException as caught:
        return caught


# --- from an exception to a fault ---


def test_a_fault_says_where_what_and_how_often() -> None:
    found = described(raised(OutOfStock("shoe", 0)))
    assert (found.run_id, found.epoch, found.path, found.kind) == ("r1", 3, "2.1", FaultKind.ACTIVITY)
    assert (found.name, found.attempt, found.state, found.raised_at) == ("charge", 5, FaultState.OPEN, AT)
    assert found.type == f"{__name__}.OutOfStock"
    assert found.lineage[1:] == ("builtins.Exception", "builtins.BaseException", "builtins.object")
    assert (found.message, found.args_exact) == ("('shoe', 0)", True)
    assert "raise error" in found.traceback
    assert read_ladder(found.ladder) == LADDER


def chained() -> NoReturn:
    try:
        raise KeyError("price")
    except KeyError as error:
        raise OutOfStock("shoe", 0) from error


def meanwhile() -> NoReturn:
    try:
        raise KeyError("price")
    except KeyError:
        raise OutOfStock("shoe", 0)  # noqa: B904 - what it looks like is what is asked


def grouped() -> NoReturn:
    raise ExceptionGroup("two", [ValueError("a"), OutOfStock("b", 1)])


class Empty(Exception):
    """A cause that is false."""

    def __len__(self) -> int:
        return 0


def caused_by_nothing() -> NoReturn:
    raise OutOfStock("shoe", 0) from Empty()


def misspelled() -> object:
    return sys.modles  # type: ignore[attr-defined]


def noted() -> NoReturn:
    error = ValueError("a\nb")
    error.add_note("look at the shelf")
    raise error


def endless(depth: int = 0) -> NoReturn:
    if depth > 10:
        raise RecursionError("too deep")
    endless(depth + 1)


@pytest.mark.parametrize(
    "fails",
    [lambda: 1 / 0, lambda: int("a" * 3), chained, meanwhile, caused_by_nothing, grouped, misspelled, noted, endless],
)
def test_a_traceback_is_told_as_python_tells_it_also_the_second_time(fails: Callable[[], object]) -> None:
    told = set()
    for _ in range(2):
        try:
            fails()
        except Exception as error:
            told.add(described(error).traceback)
            told.add("".join(traceback.format_exception(error)))
    (same,) = told
    assert "Traceback" in same


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (Recoverable(), Recoverability.RECOVERABLE),
        (Unrecoverable(), Recoverability.UNRECOVERABLE),
        (ValueError(), None),
    ],
)
def test_a_fault_keeps_what_the_exception_says_of_itself(error: Exception, answer: Recoverability | None) -> None:
    assert own_recoverability(error) is described(error).own_answer is answer


def test_a_fault_keeps_what_the_activity_declares() -> None:
    assert described(OSError(), Policy(recoverable=(OSError,))).declared_answer is Recoverability.RECOVERABLE


@pytest.mark.parametrize(
    ("after", "kept"),
    [
        (None, None),
        ("5s", timedelta(seconds=5)),
        (90, timedelta(seconds=90)),
        ("soon", None),
        (-1, None),
        (object(), None),
    ],
)
def test_a_fault_keeps_how_long_it_asks_to_wait_if_that_is_a_time(after: Any, kept: timedelta | None) -> None:
    found = described(Recoverable(after=after))
    assert found.after == kept
    assert ("passed over its `after`" in found.traceback) == (after is not None and kept is None)


def test_a_fault_keeps_status_and_retry_after_of_an_answer() -> None:
    class Refused(Exception):
        response = types.SimpleNamespace(status_code=503, headers={"Retry-After": "7"})

    found = described(Refused())
    assert (found.http_status, found.after) == (503, timedelta(seconds=7))


def test_long_texts_are_cut_and_of_a_traceback_the_end_is_kept() -> None:
    found = described(raised(ValueError("x" * 100_000 + "end")))
    assert len(found.message) == MOST_MESSAGE
    assert len(found.traceback) == MOST_TRACEBACK
    assert found.traceback.rstrip().endswith("end")


def test_texts_that_no_database_stores_are_made_storable() -> None:
    found = described(ValueError("a\x00b\ud800c"))
    assert found.message == "a\\x00b\\ud800c"
    assert "\x00" not in found.args + found.traceback
    (found.message + found.args + found.traceback).encode()


class Odd:
    """Whatever is asked of it, it raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


class BadStr(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class NoStr(Exception):
    def __str__(self) -> str:
        return None  # type: ignore[return-value]


class Endless(Exception):
    def __str__(self) -> str:
        return str(self)


class BadAttributes(Exception):
    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError(name)


class BadResponse(Exception):
    @property
    def response(self) -> NoReturn:
        raise RuntimeError("no response")


class BadNotes(Exception):
    __notes__ = 5  # type: ignore[assignment]


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(BadStr("x"), id="str raises"),
        pytest.param(NoStr("x"), id="str is no text"),
        pytest.param(Endless("x"), id="str recurses"),
        pytest.param(BadAttributes("x"), id="attributes raise"),
        pytest.param(BadResponse("x"), id="response raises"),
        pytest.param(BadNotes("x"), id="notes are none"),
        pytest.param(ValueError(Odd()), id="argument without repr"),
        pytest.param(ValueError(object(), {1: {2: [Odd()]}}), id="nested argument"),
        pytest.param(ExceptionGroup("many", [BadStr(), ValueError(Odd())]), id="group"),
        pytest.param(KeyboardInterrupt(), id="base exception"),
        pytest.param(SystemExit(3), id="exit"),
        pytest.param(Recoverable(after=float("nan")), id="after is no number"),
    ],
)
def test_whatever_an_exception_does_it_can_be_described(error: BaseException) -> None:
    found = described(raised(error))
    assert found.type.rpartition(".")[2] == type(error).__qualname__
    json.loads(found.args)


class BadArgs(Exception):
    @property
    def args(self) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("no args")


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(Recoverable(after="9999999999999d"), id="after overflows"),
        pytest.param(Recoverable(after=10**400), id="after is no float"),
        pytest.param(Recoverable(after=Odd()), id="after without repr"),  # type: ignore[arg-type]
        pytest.param(BadArgs(), id="args raise"),
    ],
)
def test_even_these_can_be_described(error: BaseException) -> None:
    assert described(raised(error)).path == "2.1"


# --- from a fault back to an exception ---


@pytest.mark.parametrize("error", [OutOfStock("shoe", 0), ValueError("x"), KeyError("k"), Outer.Inner(1, (2, 3))])
def test_an_exception_comes_back_as_its_own_class_with_its_arguments(error: Exception) -> None:
    fault = described(error)
    found = rebuild(fault)
    assert type(found) is type(error)
    assert found.args == error.args
    assert failures.fault_of(found) is fault


def test_coming_back_calls_no_init() -> None:
    found = rebuild(described(OutOfStock("shoe", 0)))
    assert isinstance(found, OutOfStock)
    assert found.item == "shoe"


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(Picky("x"), id="cannot be made without arguments"),
        pytest.param(Frozen(5), id="allows no attribute"),
        pytest.param(ReadOnly("x"), id="has another fault"),
        pytest.param(ValueError(object()), id="arguments cannot be stored"),
    ],
)
def test_the_class_comes_back_whatever_it_forbids(error: Exception) -> None:
    fault = described(error)
    found = rebuild(fault)
    assert type(found) is type(error)
    assert failures.fault_of(found) is fault


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(pydantic_error(), id="of a library that makes it itself"),
        pytest.param(KeyboardInterrupt(), id="no Exception"),
    ],
)
def test_what_cannot_be_rebuilt_comes_back_as_activity_failed(error: BaseException) -> None:
    fault = described(error)
    found = rebuild(fault)
    assert isinstance(found, ActivityFailed)
    assert isinstance(found, ValueError) is isinstance(error, ValueError)
    assert found.fault is fault
    assert str(found).startswith("activity 'charge' failed for good: ")


def test_a_class_inside_a_function_comes_back_as_activity_failed() -> None:
    class Local(Exception):
        pass

    assert type(rebuild(described(Local()))) is ActivityFailed


def stands_in(found: Exception) -> bool:
    return isinstance(found, StandIn) and type(found).__bases__ == (StandIn, Exception) and str(found) == "x"


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "...",
        "ValueError",
        "builtins",
        "builtins.",
        "builtins.print",
        "builtins.int",
        "builtins.BaseException",
        "builtins.SystemExit",
        "builtins.ValueError.args",
        "os.path",
        "os.system",
        "aft.flows.session.blocks.Leave",
        "a" * 400,
        "sys.modules",
    ],
)
def test_a_stored_name_that_is_no_exception_is_a_stand_in(name: str) -> None:
    assert stands_in(rebuild(replace(described(ValueError("x")), type=name)))


@pytest.mark.parametrize("args", ["", "{", "5", '"ab"', "null", '[{"$": "nonsense"}]', "[" * 10_000])
def test_stored_arguments_that_cannot_be_read_do_no_harm(args: str) -> None:
    found = rebuild(replace(described(ValueError("x")), args=args))
    assert isinstance(found, ActivityFailed | ValueError)
    assert failures.fault_of(found) is not None


# --- a crafted row imports nothing ---


def test_a_stored_name_imports_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "aft_never_imported.py").write_text("class Error(Exception): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    for name in ("aft_never_imported.Error", "antigravity.Error", "json.tool.Error", "xml.dom.minidom.DOMException"):
        assert stands_in(rebuild(replace(described(ValueError("x")), type=name)))
    assert set(sys.modules) == before
    assert importlib.util.find_spec("aft_never_imported") is not None


def test_a_stored_name_calls_no_getattr_of_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    module = types.ModuleType("aft_with_getattr")

    def __getattr__(name: str) -> type[Exception]:
        asked.append(name)
        return ValueError

    module.__getattr__ = __getattr__  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "aft_with_getattr", module)
    assert stands_in(rebuild(replace(described(ValueError("x")), type="aft_with_getattr.Anything")))
    assert asked == []


def test_a_stored_name_calls_no_getattr_of_a_metaclass(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Meta(type):
        def __getattr__(cls, name: str) -> type[Exception]:
            asked.append(name)
            return ValueError

    class Holder(metaclass=Meta):
        pass

    module = types.ModuleType("aft_with_metaclass")
    module.Holder = Holder  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aft_with_metaclass", module)
    assert stands_in(rebuild(replace(described(ValueError("x")), type="aft_with_metaclass.Holder.Any")))
    assert asked == []


def test_a_stored_name_executes_no_module_that_waits_to_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "aft_lazy.py"
    source.write_text("import sys\nsys.aft_lazy_was_executed = True\nclass Error(Exception): pass\n")
    spec = importlib.util.spec_from_file_location("aft_lazy", source)
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "aft_lazy", module)
    monkeypatch.setattr(sys, "aft_lazy_was_executed", False, raising=False)
    spec.loader.exec_module(module)
    rebuild(replace(described(ValueError("x")), type="aft_lazy.Error"))
    assert not sys.aft_lazy_was_executed  # type: ignore[attr-defined]


# --- bugs ---


@pytest.mark.parametrize("bug", BUGS)
def test_a_mistake_of_the_flow_s_own_code_is_a_bug(bug: type[Exception]) -> None:
    assert is_bug(bug("x"))


@pytest.mark.parametrize("error", [ValueError("x"), KeyError("x"), OutOfStock("x", 1), ZeroDivisionError()])
def test_any_other_exception_is_none(error: Exception) -> None:
    assert not is_bug(error)


def test_the_failure_of_an_activity_is_never_the_flow_s_bug() -> None:
    assert not is_bug(rebuild(described(TypeError("x"))))
