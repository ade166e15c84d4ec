"""Claims about what an exception carries: it is stored within bounds, and comes back exactly or names what is gone."""

from __future__ import annotations

import abc
import enum
import http
import json
import sqlite3
import sys
import types
import urllib.error
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.message import Message
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, ClassVar, Generic, TypeVar

import pytest
from hypothesis import given

from aft.errors import ActivityFailed, NotKept, Recoverable
from aft.fault import Fault, FaultKind
from aft.flows.declare.policy import Policy
from aft.flows.exceptions.capture import MOST_ARGS, MOST_ATTRIBUTES, store
from aft.flows.exceptions.failures import FaultSite, fault_of, is_bug, make_fault, must_park, rebuild
from aft.ids import RunId, StepPath
from aft.recovery.levels import Ladder, Level
from tests.unit.test_codec import Angry, anything, exact, nested

T = TypeVar("T")
AT = datetime(2024, 5, 17, tzinfo=UTC)
PLACE = FaultSite(RunId("r1"), 3, StepPath("2.1"), FaultKind.ACTIVITY, "charge")


class Colour(enum.Enum):
    RED = "red"


class Level2(enum.IntEnum):
    HIGH = 2


class Plain(Exception):
    """One whose attributes are its own."""

    def __init__(self, *args: object, **attributes: object) -> None:
        super().__init__(*args)
        self.__dict__.update(attributes)


class Slotted(Exception):
    """One with a slot."""

    __slots__ = ("code", "unset")
    code: Any

    def __init__(self, code: Any) -> None:
        super().__init__("slotted")
        self.code = code


class Written(Exception):
    """One that notes what is written to it."""

    written: ClassVar[list[str]] = []

    def __setattr__(self, name: str, value: object) -> None:
        self.written.append(name)


class Hostile:
    """One that fails however it is looked at."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        raise RuntimeError("no")


class Odd(Exception):
    """An exception that cannot be shown, and does not tell its class."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


class Faulty(Exception):
    """One with a slot of the name that aft uses."""

    __slots__ = ("fault",)
    fault: Any


class Several(ExceptionGroup[Exception]):
    """A group that is made of other things than its leaves."""

    def __new__(cls, leaves: list[Exception]) -> Several:
        made = super().__new__(cls, "several", leaves)
        made.many = len(leaves)
        return made

    many: int


class Response:
    """As requests has it: false where the status tells of an error."""

    status_code = 404
    reason = "Not Found"
    headers: dict[str, str]
    content = b"secret"

    def __init__(self) -> None:
        self.headers = {"authorization": "secret"}

    def __bool__(self) -> bool:
        return False


def described(error: BaseException) -> Fault:
    return make_fault(error, PLACE, Policy(), Ladder((Level("5s"),)), AT)


def again(error: BaseException) -> Any:
    """The exception as a flow gets it."""
    return rebuild(described(error))


# --- arguments ---


@pytest.mark.parametrize(
    "value",
    [
        Colour.RED,
        Level2.HIGH,
        http.HTTPStatus.NOT_FOUND,
        Path("/a/b"),
        PurePosixPath("a"),
        PureWindowsPath("c:/a"),
        float("inf"),
        Decimal("1.50"),
        (1, [Colour.RED, {"path": Path("x"), "at": AT}]),
        {"$kept": "lost", "why": "not ours"},
        {1: "a", "b": {2, 3}},
    ],
    ids=repr,
)
def test_an_argument_comes_back_as_it_was(value: Any) -> None:
    fault = described(Plain("text", value))
    found = rebuild(fault)
    assert type(found) is Plain
    assert found.args == ("text", value)
    assert repr(found.args) == repr(("text", value))
    assert fault.args_exact


def test_what_is_no_number_comes_back_so() -> None:
    (found,) = again(Plain(float("nan"))).args
    assert found != found


@given(anything)
def test_what_can_be_stored_comes_back_exactly(value: Any) -> None:
    fault = described(Plain(value, attribute=value))
    found: Any = rebuild(fault)
    if fault.args_exact:
        assert exact(found.args[0]) == exact(value)
        assert exact(found.attribute) == exact(value)
    assert len(fault.args.encode()) <= MOST_ARGS


@pytest.mark.parametrize(
    "value",
    [
        Angry(),
        [Angry()],
        {1: Angry()},
        10**6000,
        "\ud800",
        ("\ud800" * 5000,),
        nested(500),
        "x" * 10_000_000,
        ["x" * 900] * 100,
        {str(n): "ä" * 900 for n in range(90)},
        {10**6000: Decimal("sNaN")},
        [{(1, "\ud800"): b"x" * 100_000}],
        list(range(100_000)),
        iter([]),
        ExceptionGroup("many", [ValueError("x" * 500) for _ in range(500)]),
    ],
    ids=lambda found: str(type(found)),
)
def test_whatever_it_carries_storing_never_raises_and_is_bounded(value: Any) -> None:
    error = Plain("first", value, attribute=value)
    kept = store(error)
    assert not kept.exact
    assert len(kept.args.encode()) <= MOST_ARGS
    assert len(kept.attributes.encode()) <= MOST_ATTRIBUTES + 1_000
    found = again(error)
    assert type(found) is Plain
    assert found.args[0] == "first"
    assert any("e.fault" in note for note in found.__notes__)


def test_an_exception_that_holds_itself_can_be_stored() -> None:
    error = Plain("x")
    error.args = ("x", error)
    error.__dict__["me"] = error
    error.__cause__ = error
    assert type(again(error)) is Plain


def test_an_argument_that_cannot_be_stored_shows_as_before_and_cannot_be_used() -> None:
    thing = object()
    found = again(Plain("no", thing))
    assert str(found) == str(Plain("no", thing))
    with pytest.raises(NotKept, match=r"args\[1\]\.code was not kept .* e\.fault"):
        _ = found.args[1].code


def test_a_long_text_is_cut_and_that_is_said() -> None:
    found = again(ValueError("x" * 17_000))
    assert type(found) is ValueError
    assert str(found).startswith("x" * 5_000)
    assert "arguments were shortened" in found.__notes__[0]


# --- attributes ---


def test_attributes_and_slots_come_back() -> None:
    assert again(Plain(code=Colour.RED, lines=[1, Decimal(2)])).__dict__.items() >= {"code": Colour.RED}.items()
    assert again(Slotted(Colour.RED)).code is Colour.RED
    assert not hasattr(again(Slotted(1)), "unset")


def test_a_slot_that_is_none_comes_back_and_one_of_python_s_own_that_was_never_set_does_not() -> None:
    assert again(Slotted(None)).code is None
    assert json.loads(described(OSError("x")).attributes) == {}


def test_a_slot_of_the_name_fault_holds_the_fault() -> None:
    fault = described(Faulty("x"))
    found: Any = rebuild(fault)
    assert type(found) is Faulty
    assert found.fault is fault is fault_of(found)


def test_an_exception_that_cannot_be_looked_at_comes_back() -> None:
    fault = described(Odd("x"))
    found = rebuild(fault)
    assert type(found) is Odd
    assert found.args == ("x",)
    assert fault.message == "(Odd cannot be shown: its __str__ raised RuntimeError)"
    assert not must_park(found)
    assert type(again(Plain(Odd("x"))).args[0]) is Odd


def test_an_argument_that_cannot_be_looked_at_takes_no_other_with_it() -> None:
    found = again(Plain("a", Hostile(), 3))
    assert (found.args[0], found.args[2]) == ("a", 3)
    with pytest.raises(NotKept):
        bool(found.args[1])


@pytest.mark.parametrize(
    "fails",
    [
        lambda: Path("/no/such/file").read_text(),
        lambda: json.loads("{"),
        lambda: b"\xff".decode(),
        lambda: sqlite3.connect(":memory:").execute("SELECT"),
        lambda: dict[str, int]()["k"],
        lambda: urllib.error.HTTPError("http://x", 503, "busy", Message(), None),
    ],
)
def test_exceptions_of_python_say_what_they_said(fails: Callable[[], Any]) -> None:
    try:
        error = fails()
    except Exception as raised:
        error = raised
    found = again(error)
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert getattr(found, "errno", None) == getattr(error, "errno", None)
    assert getattr(found, "code", None) == getattr(error, "code", None)


def test_an_exception_within_comes_back_too() -> None:
    error = Plain("outer", orig=KeyError("inner"))
    error.__cause__ = error.__dict__["orig"]
    found = again(error)
    assert (type(found.orig), found.orig.args) == (KeyError, ("inner",))
    assert isinstance(found.__cause__, KeyError)


def test_a_class_that_forbids_attributes_gets_them_back() -> None:
    @dataclass(frozen=True)
    class Frozen(Exception):
        code: int

    sys.modules[__name__].Frozen = Frozen  # type: ignore[attr-defined]
    Frozen.__qualname__ = "Frozen"
    assert again(Frozen(5)).code == 5


def test_a_cause_is_written_without_code_of_the_class() -> None:
    error = Written("no")
    BaseException.__dict__["__cause__"].__set__(error, KeyError("k"))
    found = again(error)
    assert type(found) is Written
    assert isinstance(found.__cause__, KeyError)
    assert Written.written == []


USES: list[Callable[[Any], Any]] = [
    lambda thing: thing.anything,
    lambda thing: thing(),
    bool,
    int,
    len,
    iter,
    lambda thing: thing["x"],
    lambda thing: thing == 1,
    lambda thing: thing != 1,
    lambda thing: "x" in thing,
    lambda thing: thing + 1,
]


@pytest.mark.parametrize("use", USES)
def test_what_was_not_kept_names_itself_however_it_is_used(use: Callable[[Any], Any]) -> None:
    found = again(Plain("x", session=object()))
    with pytest.raises(
        NotKept, match=r"session.* was not kept with the failure: it was a builtins.object, .* e\.fault"
    ):
        use(found.session)
    assert "not kept" in str(found.session)
    assert found.session is not None


def test_using_what_was_not_kept_is_a_bug_that_parks() -> None:
    with pytest.raises(AttributeError) as raised:
        _ = again(Plain("x", session=object())).session.id
    assert is_bug(raised.value)


@pytest.mark.parametrize("name", ["password", "api_key", "Authorization", "access_token", "_cookies"])
def test_attributes_that_are_secret_by_name_are_not_stored(name: str) -> None:
    fault = described(Plain("x", **{name: "hunter2"}))
    assert "hunter2" not in fault.attributes
    with pytest.raises(NotKept, match="secret"):
        bool(getattr(rebuild(fault), name))


def test_of_a_response_status_and_reason_are_kept_and_nothing_else() -> None:
    fault = described(Plain("404", response=Response()))
    assert "secret" not in fault.attributes
    found: Any = rebuild(fault)
    assert (found.response.status_code, found.response.reason, found.response.ok) == (404, "Not Found", False)
    assert not found.response
    with pytest.raises(NotKept, match=r"response\.headers was not kept .*e\.fault\.after"):
        _ = found.response.headers
    with pytest.raises(NotKept, match=r"response\.json was not kept"):
        found.response.json()


def test_parameters_that_sqlalchemy_hides_are_not_stored() -> None:
    assert "hunter2" not in described(Plain(params=("hunter2",), hide_parameters=True)).attributes


def test_what_an_exception_of_aft_says_of_itself_comes_back() -> None:
    assert again(Recoverable("x", after=timedelta(seconds=5))).after == timedelta(seconds=5)


def test_an_attribute_of_the_name_fault_gives_way() -> None:
    fault = described(Plain("x", fault="mine"))
    assert fault_of(rebuild(fault)) is fault


# --- groups ---


def test_a_group_comes_back_as_its_class_with_its_leaves() -> None:
    fault = described(Several([ValueError("a"), ExceptionGroup("in", [Plain("b", code=7), OSError(5, "io")])]))
    found = rebuild(fault)
    assert isinstance(found, Several)
    assert (found.message, found.many) == ("several", 2)
    first, inner = found.exceptions
    assert (type(first), first.args) == (ValueError, ("a",))
    assert isinstance(inner, ExceptionGroup)
    plain, os_error = inner.exceptions
    assert isinstance(plain, Plain)
    assert plain.__dict__["code"] == 7
    assert str(os_error) == "[Errno 5] io"
    assert fault_of(found) is fault_of(plain) is fault


def test_a_group_of_an_activity_s_mistakes_is_no_bug_of_the_flow() -> None:
    found = again(ExceptionGroup("two", [TypeError("a"), ValueError("b")]))
    assert not must_park(found)
    mistakes, _ = found.split(TypeError)
    assert not must_park(mistakes)


def test_a_leaf_whose_class_is_not_there_is_activity_failed() -> None:
    class Local(Exception):
        pass

    found = again(ExceptionGroup("two", [Local("a"), ValueError("b")]))
    assert [type(leaf) for leaf in found.exceptions] == [ActivityFailed, ValueError]


# --- classes that are not there ---


class Bank(OSError):
    """A base that the flow knows."""


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that is imported where the activity runs, and goes when the flow is replayed elsewhere."""
    module = types.ModuleType("aft_imported_late")

    def say(self: Any) -> str:
        return f"refused with {self.code}"

    module.Refused = type("Refused", (Bank, KeyError), {"__module__": module.__name__, "__str__": say})  # type: ignore[attr-defined]
    module.Many = type("Many", (ExceptionGroup,), {"__module__": module.__name__})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aft_imported_late", module)
    return module


def refused(late: Any) -> Exception:
    error: Exception = late.Refused("refused")
    error.__dict__["code"] = 7
    return error


def both(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The exception where its class is there, and where it is not."""
    fault = described(error)
    found = [rebuild(fault)]
    monkeypatch.delitem(sys.modules, "aft_imported_late")
    return [*found, rebuild(fault)]


def test_one_whose_class_is_not_there_is_caught_by_the_same_bases(late: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = both(refused(late), monkeypatch)
    assert type(first) is late.Refused
    for found in (first, second):
        assert isinstance(found, Bank)
        assert isinstance(found, KeyError)
        assert not isinstance(found, ActivityFailed)
        assert (str(found), found.args, vars(found)["code"]) == ("refused with 7", ("refused",), 7)
        assert vars(found)["fault"].type == "aft_imported_late.Refused"
        assert type(found).__name__ == "Refused"


def test_one_within_is_caught_by_the_same_bases(late: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for found in both(late.Many("two", [refused(late), ValueError("b")]), monkeypatch):
        assert isinstance(found, ExceptionGroup)
        assert [str(leaf) for leaf in found.exceptions if isinstance(leaf, OSError)] == ["refused with 7"]
        assert [type(leaf) for leaf in found.exceptions if isinstance(leaf, ValueError)] == [ValueError]


def test_one_that_no_process_can_make_is_activity_failed_and_its_bases() -> None:
    class Local(Bank):
        pass

    found = again(Local("x"))
    assert isinstance(found, ActivityFailed)
    assert isinstance(found, OSError)
    assert str(found) == "activity 'charge' failed for good: Local: x"


class Watching(type):
    """A metaclass that tells of each of its methods that is called, as its own metaclass does."""

    called: ClassVar[list[str]] = []

    def __new__(cls, *args: Any) -> Any:
        Watching.called.append("new")
        return type.__new__(cls, *args)

    def __init__(cls, *args: Any) -> None:
        Watching.called.append("init")

    def __init_subclass__(cls) -> None:
        Watching.called.append("init_subclass of the metaclass")

    def __getattribute__(cls, name: str) -> Any:
        Watching.called.append(f"getattribute {name}")
        return type.__getattribute__(cls, name)

    def __subclasscheck__(cls, other: type) -> bool:
        Watching.called.append("subclasscheck")
        return False

    def __eq__(cls, other: object) -> bool:
        Watching.called.append("eq")
        return cls is other

    def __hash__(cls) -> int:
        Watching.called.append("hash")
        return 7


class Above(Watching):
    """A metaclass of metaclasses."""


class Within(Watching, metaclass=Above):
    """A metaclass with a metaclass of its own."""


class Watched(ValueError, metaclass=Within):
    """A base that is told of what is derived from it, in each way that Python has."""

    def __init_subclass__(cls) -> None:
        Watching.called.append("init_subclass")


class Abstract(LookupError, Generic[T], metaclass=abc.ABCMeta):
    """A base with a metaclass of the standard library, and ``__init_subclass__`` of another."""


class Both(abc.ABCMeta, Within):
    """What Python demands of a class of both."""


def test_one_whose_class_is_not_there_has_the_bases_that_watch_who_derives_from_them(
    late: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"__module__": late.__name__}
    late.Gone = Both("Gone", (Abstract, Watched), body)
    late.Alone = Both("Alone", (Abstract,), body)
    for error in (late.Gone("x"), late.Alone("x"), ExceptionGroup("g", [late.Gone("x")])):
        monkeypatch.setitem(sys.modules, late.__name__, late)
        for found in both(error, monkeypatch):
            for one in getattr(found, "exceptions", [found]):
                mro = type(one).__mro__
                assert (Abstract in mro, LookupError in mro) == (True, True)
                assert any(base is Watched for base in mro) == (type(one).__name__ == "Gone")
                assert not isinstance(one, ActivityFailed)
                assert isinstance(one, Abstract)
    assert not issubclass(KeyError, Abstract)


def test_a_stand_in_calls_no_code_of_its_bases() -> None:
    names = [f"{__name__}.{name}" for name in ("Gone", "Watched", "Abstract")]
    fault = replace(described(Plain("x")), type=names[0], lineage=(*names, "builtins.LookupError"))
    Watching.called.clear()
    found = rebuild(fault)
    assert Watching.called == []
    assert [base for base in type(found).__mro__ if base is Watched or base is Abstract] == [Watched, Abstract]


class Ordering(type):
    """A metaclass whose code Python calls for each class that is derived from one of its classes."""

    def mro(cls) -> list[type]:
        return super().mro()


class Ordered(ValueError, metaclass=Ordering):
    """A base that nobody can derive from without calling code."""


def test_one_that_no_stand_in_can_be_made_for_is_activity_failed_everywhere(
    late: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    late.Gone = Ordering("Gone", (Ordered,), {"__module__": late.__name__})
    for found in both(late.Gone("x"), monkeypatch):
        assert type(found).__mro__[2:4] == (ActivityFailed, *ActivityFailed.__mro__[1:2])
        assert isinstance(found, ValueError)
        assert not isinstance(found, Ordered)


# --- crafted rows ---


class Loud(Exception):
    """One that tells of each of its methods that is called."""

    called: ClassVar[list[str]] = []

    def __new__(cls, *args: object) -> Loud:
        cls.called.append("new")
        return super().__new__(cls, *args)

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.called.append("init")

    def __setattr__(self, name: str, value: object) -> None:
        self.called.append("setattr")

    def __getattribute__(self, name: str) -> Any:
        if name != "called":
            Loud.called.append("getattribute")
        return super().__getattribute__(name)


def test_rebuilding_calls_no_code_of_the_class() -> None:
    fault = described(Plain("x", code=1))
    Loud.called.clear()
    found = rebuild(replace(fault, type=f"{__name__}.Loud"))
    assert Loud.called == []
    assert type(found) is Loud


class Touched(enum.Enum):
    A = 1

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise AssertionError("called")


@pytest.mark.parametrize(
    "stored",
    [
        {"$kept": "enum", "type": "os.system", "name": "x", "v": "plain"},
        {"$kept": "enum", "type": f"{__name__}.Touched", "name": "missing", "v": "plain"},
        {"$kept": "enum", "type": "antigravity.X", "name": "x", "v": "plain"},
    ],
)
def test_a_stored_name_that_is_no_member_is_lost(stored: Any) -> None:
    before = set(sys.modules)
    fault = replace(described(Plain()), attributes=json.dumps({"code": stored}))
    with pytest.raises(NotKept, match="there is no "):
        assert rebuild(fault).__dict__["code"] == "plain"
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    "attributes",
    [
        "",
        "5",
        "[]",
        '{"a": {"$kept": "nonsense"}}',
        '{"a": {"$kept": "exception"}}',
        '{"a": {"$kept": ["x"]}}',
        '{"a": {"$kept": "path", "kind": "x", "v": 1}}',
        '{"a": {"$kept": "response", "status": "x"}}',
        '{"__cause__": 5, "__notes__": 7, "__class__": "x", "__traceback__": 3, "args": 4}',
        '{"a": {"$aft": "set", "v": [[]]}}',
    ],
)
def test_stored_attributes_that_make_no_sense_do_no_harm(attributes: str) -> None:
    found = rebuild(replace(described(Plain("x")), attributes=attributes))
    assert type(found) is Plain
    assert found.args == ("x",)
    assert found.__cause__ is None
    assert "Plain" in repr(found)


def test_a_stored_attribute_calls_no_property(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[object] = []

    class Guarded(Exception):
        code = property(lambda self: 5, lambda self, value: called.append(value))

    Guarded.__qualname__ = "Guarded"
    module = types.ModuleType("aft_guarded")
    module.Guarded = Guarded  # type: ignore[attr-defined]
    Guarded.__module__ = "aft_guarded"
    monkeypatch.setitem(sys.modules, "aft_guarded", module)
    found: Any = rebuild(replace(described(Plain(code=1)), type="aft_guarded.Guarded"))
    assert type(found) is Guarded
    assert (called, found.code) == ([], 5)
