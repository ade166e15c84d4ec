"""Rebuilds an exception from its stored form (``flows.exceptions.capture`` stores it).

Which ``except`` of a flow catches it must not depend on the process, but a class whose module an activity imports is
present in one process and not in another. So the process that catches an exception records whether its class can be
found and made again. If it can, a process without the class makes a stand-in of all bases that it has
(``flows.exceptions.classes``): a flow can name only classes that are present. If it cannot, it is ``ActivityFailed``
everywhere, plus all its bases that are present.

Rows may be crafted: classes are looked up among modules that are imported already, nothing is imported by a stored
name, and no code of the class is called: instances are made by the ``__new__`` of Python's own base class, attributes
are written without ``__setattr__``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NoReturn

from aft.codec import decode_untyped
from aft.errors import ActivityFailed, CodecError, NotKept, is_a
from aft.fault import Fault
from aft.flows.exceptions.classes import (
    DICT,
    HEAP_TYPE,
    TEXT,
    can_derive,
    find_class,
    flags_of,
    members_of,
    mro_of,
    slots_of,
    stand_in,
)
from aft.texts import escape_unstorable

#: The key that marks a stored object for rebuilding; a user's dict that contains this key is marked itself.
MARK = "$kept"
CAUSE, NOTES = "__cause__", "__notes__"
SET_CAUSE = BaseException.__dict__[CAUSE].__set__
#: Marks, among its attributes, an exception whose class could not be made again even where it was raised.
UNMADE = "$unmade"

_HELP = (
    "e.fault has its message, traceback and HTTP status; what a flow needs belongs into the exception's arguments or "
    "attributes as plain values"
)
#: Reads and writes an exception's ``args``, bypassing anything that its class defines under that name.
ARGS: Any = BaseException.__dict__["args"]


class MissingValue:
    """Replaces a value that was not stored; every use of it except ``repr`` raises NotKept."""

    __slots__ = ("_name", "_text", "_why")

    def __init__(self, name: str, why: str, text: str | None = None) -> None:
        self._name = name
        self._why = why
        self._text = text

    def __getattr__(self, name: str) -> Any:
        _raise_lost(f"{self._name}.{name}", self._why)

    def __repr__(self) -> str:
        return self._text or f"<{self._name}, not kept: {self._why}>"

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        _raise_lost(self._name, self._why)

    __hash__ = None  # type: ignore[assignment]
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __bool__ = __int__ = __float__ = __index__ = __len__ = __iter__ = __call__ = __contains__ = __getitem__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __mod__ = __enter__ = _refuse


class Response:
    """Replaces the HTTP response of an exception: only its status and reason were stored."""

    def __init__(self, name: str, status: int, reason: str | None, truth: bool) -> None:
        self.status_code = self.status = status
        self.reason = self.reason_phrase = reason
        self.ok = status < 400
        self._name = name
        self._truth = truth

    def __getattr__(self, name: str) -> Any:
        more = "; what Retry-After asked for is e.fault.after" if name == "headers" else ""
        _raise_lost(f"{self.__dict__.get('_name', 'response')}.{name}", f"only status and reason of it are{more}")

    def __bool__(self) -> bool:
        return self._truth

    def __repr__(self) -> str:
        return f"<response {self.status_code}, of which status and reason were kept>"


def _raise_lost(what: str, why: str) -> NoReturn:
    raise NotKept(f"{what} was not kept with the failure: {why}; {_HELP}")


def rebuild_exception(fault: Fault, failed: str) -> Exception:
    """Make the exception that a fault describes; ``failed`` is its text if its class cannot be made."""
    args, attributes = _read(fault.args, list), _read(fault.attributes, dict)
    stored = FaultFields(fault.type, fault.lineage, args or [], attributes or {}, fault.message, failed)
    made = _Rebuilding(fault).make(stored)
    if not fault.args_exact:
        lost = [name for name, value in DICT.__get__(made).items() if type(value) in (MissingValue, Response)]
        what = f"not all that it carried was kept ({', '.join(lost) or 'arguments were shortened'})"
        _add_note(made, f"aft: {what}; {_HELP}")
    return made


@dataclass(frozen=True, slots=True)
class FaultFields:
    """The stored form of an exception; ``failed`` is its text if its class cannot be made."""

    type: str
    lineage: Sequence[str]
    args: list[Any] = field(repr=False)
    attributes: Mapping[str, Any] = field(repr=False)
    text: str = field(repr=False)
    failed: str


def _read(text: str, kind: type) -> Any:
    try:
        found = decode_untyped(text)
    except CodecError:
        return None
    return found if type(found) is kind else None


class _Rebuilding:
    """Rebuilds the values of one fault; each exception among them carries the fault."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def make(self, stored: FaultFields) -> Exception:
        args = [self.value(arg, f"args[{place}]") for place, arg in enumerate(stored.args)]
        cls = None if UNMADE in stored.attributes else find_class(stored.type, Exception)
        made = None if cls is None else _instance(cls, args)
        if made is None:
            made = self._stand_in(stored, args)
        slots = {name: slot for name, slot, _ in reversed(list(slots_of(type(made))))}
        for attribute, kept in stored.attributes.items():
            if attribute != UNMADE:
                self._restore(made, attribute, kept, slots.get(attribute))
        DICT.__get__(made)["fault"] = self._fault
        if "fault" in slots:
            slots["fault"].__set__(made, self._fault)
        return made

    def _stand_in(self, stored: FaultFields, args: list[Any]) -> Exception:
        cls = stand_in(stored.type, tuple(stored.lineage), failed=UNMADE in stored.attributes)
        failed = issubclass(cls, ActivityFailed)
        text = stored.failed if failed else stored.text
        made = _instance(cls, [text] if failed and not issubclass(cls, BaseExceptionGroup) else args)
        if made is None:
            return ActivityFailed(stored.failed, self._fault)
        DICT.__get__(made)[TEXT] = text
        return made

    def _restore(self, made: Exception, name: str, stored: Any, slot: Any) -> None:
        value = self.value(stored, name)
        if name == CAUSE:
            if issubclass(type(value), BaseException):
                SET_CAUSE(made, value)  # not by the class's own __setattr__, or a property of that name
        elif name == NOTES:
            if type(value) is list and all(type(note) is str for note in value):
                DICT.__get__(made)[name] = value
        elif slot is None:
            DICT.__get__(made)[name] = value
        else:
            try:
                slot.__set__(made, value)
            except (AttributeError, TypeError, ValueError, OverflowError, SystemError):
                return  # one of Python's own that cannot be written, or not with this

    def value(self, found: Any, name: str) -> Any:
        """Rebuild a decoded value; anything else that a crafted row holds is returned as it is."""
        kind = type(found)
        if kind in (list, tuple):
            return kind(self.value(item, name) for item in found)
        if kind is not dict:
            return found
        mark = found.get(MARK)
        if mark is None:
            return {key: self.value(item, name) for key, item in found.items()}
        try:
            return self._marked(mark, found, name)
        except (KeyError, TypeError, ValueError, AttributeError):
            return MissingValue(name, "its stored text cannot be read")

    def _marked(self, mark: Any, found: dict[str, Any], name: str) -> Any:
        match mark:
            case "lost":
                return MissingValue(name, str(found["why"]), found.get("text"))
            case "response":
                return Response(name, int(found["status"]), found["reason"], bool(found["truth"]))
            case "dict":
                return {key: self.value(item, name) for key, item in found["v"].items()}
            case "float":
                return float(found["v"])
            case "path":
                return {"path": Path, "windows": PureWindowsPath, "posix": PurePosixPath}[found["kind"]](found["v"])
            case "enum":
                return self._member(found, name)
            case "exception":
                args, attributes, lineage = list(found["args"]), dict(found["attributes"]), found.get("lineage", [])
                kind, text = str(found["type"]), str(found["text"])
                return self.make(FaultFields(kind, tuple(map(str, lineage)), args, attributes, text, f"{kind}: {text}"))
        raise ValueError(mark)

    def _member(self, found: dict[str, Any], name: str) -> Any:
        kind = str(found["type"])
        if "<locals>" in kind:  # it is there in no process
            return self.value(found["v"], name)
        cls = find_class(kind, enum.Enum)
        members = {} if cls is None else members_of(cls).get("_member_map_", {})
        member = members.get(found["name"]) if isinstance(members, dict) else None
        return (
            member if isinstance(member, enum.Enum) else MissingValue(name, f"there is no {kind}.{found['name']} here")
        )


def can_make(cls: type) -> bool:
    """Whether an exception of this class can be made again here, from its stored name alone.

    Also requires that a stand-in would have all its bases, in a process without the class.
    """
    found = find_class(format_class(cls), Exception)
    if found is not cls or not all(can_derive(base) for base in mro_of(cls)[1:] if issubclass(base, Exception)):
        return False
    return issubclass(cls, BaseExceptionGroup) or _make(found) is not None


def format_class(cls: type) -> str:
    """Return the name by which a class is found again."""
    return escape_unstorable(f"{cls.__module__}.{cls.__qualname__}"[:400])


def _instance(cls: type[Exception], args: list[Any]) -> Exception | None:
    # Not isinstance: that may read the exception's own ``__class__``.
    if issubclass(cls, BaseExceptionGroup):
        return _make_group(cls, args)
    if (made := _make(cls)) is not None:
        ARGS.__set__(made, tuple(args))
    return made


def _make(cls: type[Exception]) -> Exception | None:
    """Make an instance by the ``__new__`` of Python's own base: not the class's, and without ``__init__``."""
    for base in mro_of(cls):
        if not flags_of(base) & HEAP_TYPE and issubclass(base, BaseException):
            try:
                made = base.__new__(cls)
            except TypeError:  # "not safe": another base decides how the instance is laid out
                continue
            return made if issubclass(type(made), Exception) else None
    return None


def _make_group(cls: type[Exception], args: list[Any]) -> Exception | None:
    if len(args) < 2 or not isinstance(args[0], str) or not isinstance(args[1], list | tuple):
        return None
    leaves = [leaf for leaf in args[1] if isinstance(leaf, Exception)]
    try:
        made = BaseExceptionGroup.__new__(cls, args[0], leaves)  # type: ignore[type-var]
    except (TypeError, ValueError):  # it has no leaves, or its class is no group of exceptions
        return None
    return made if isinstance(made, Exception) else None


def _add_note(error: Exception, note: str) -> None:
    notes = DICT.__get__(error).setdefault(NOTES, [])
    if isinstance(notes, list):
        notes.append(note)


def fault_of(error: BaseException) -> Fault | None:
    """Return the fault that an exception was rebuilt from, or None; of a group, the first that has one."""
    fault = DICT.__get__(error).get("fault")
    if type(fault) is Fault:
        return fault
    if is_a(error, BaseExceptionGroup):
        return next((fault for one in error.exceptions if (fault := fault_of(one)) is not None), None)
    return None
