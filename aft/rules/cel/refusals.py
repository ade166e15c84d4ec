"""Translates CEL's errors about a condition for people: what is wrong, where, and what would be right.

CEL says ``ERROR: <input>:1:10: found no matching overload for '_==_' applied to '(string, int)'``. The translation says
the same with the line, a caret under the place, and a hint.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from aft.errors import RuleRefused
from aft.texts import with_article

#: What CEL offers besides facts: the names that a typing error may have meant.
FUNCTIONS = (
    "all", "bool", "bytes", "contains", "double", "duration", "dyn", "endsWith", "exists", "exists_one", "false",
    "filter", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getFullYear", "getHours", "getMilliseconds",
    "getMinutes", "getMonth", "getSeconds", "has", "int", "map", "matches", "null", "size", "startsWith", "string",
    "timestamp", "true", "type", "uint",
)  # fmt: skip
#: Python's words, and what CEL has for them.
_PYTHON = {"and": "&&", "or": "||", "not": "!", "True": "true", "False": "false", "None": "null", "len": "size"}

_ERROR = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): (.*)")
_UNKNOWN = re.compile(r"undeclared reference to '(.+?)'")
_OVERLOAD = re.compile(r"found no matching overload for '(.+?)' applied to '\((.*)\)'")
_SELECT = re.compile(r"expression of type '(.+?)' cannot be the operand of a select operation")
_RANGE = re.compile(r"expression of type '(.+?)' cannot be the range of a comprehension")
_STRAY = re.compile(r"(?:mismatched|extraneous|no viable alternative at) input '(.*?)'(?: expecting|$)")
_TOKEN = re.compile(r"token recognition error at: '(.*)'")
_DEEP = re.compile(r"recursion (?:limit|depth)")


def refusal(source: str, at: int, what: str, hint: str) -> RuleRefused:
    """Return the error for the character ``at`` of a condition: the place, the line with a caret, the hint."""
    at = max(0, min(at, len(source)))
    begin = source.rfind("\n", 0, at) + 1
    line, column = source.count("\n", 0, at) + 1, at - begin + 1
    shown = source[begin:].split("\n", 1)[0]
    # Of a long line only the part around the place.
    left = max(0, column - 100)
    caret = "".join("\t" if character == "\t" else " " for character in shown[left : column - 1]) + "^"
    return RuleRefused(f"line {line}, column {column}: {what}\n  {shown[left : left + 160]}\n  {caret}\nhint: {hint}")


def translate(source: str, error: str, names: Iterable[str]) -> RuleRefused:
    """Return our error for CEL's error about a condition that may mention these facts."""
    if _DEEP.search(error):
        return refusal(source, 0, "it is nested too deeply", "CEL goes 32 levels deep; make two rules of it, or more")
    found = _ERROR.search(error)
    if found is None:
        return refusal(source, 0, "it cannot be read", error.removesuffix(" [INVALID_ARGUMENT]"))
    line, column, text = int(found[1]), int(found[2]), found[3].removesuffix(" [INVALID_ARGUMENT]")
    at = _offset(source, line, column)
    if unknown := _UNKNOWN.match(text):
        return _unknown(source, at, unknown[1], names)
    return refusal(source, at, *_explain(text))


def _offset(source: str, line: int, column: int) -> int:
    before = source.split("\n")[: max(0, line - 1)]
    return sum(len(text) + 1 for text in before) + max(0, column - 1)


def _unknown(source: str, at: int, name: str, names: Iterable[str]) -> RuleRefused:
    # CEL points at the last dot, or at the bracket of a call; people look at where the name begins.
    begin = source.rfind(name, 0, at + len(name))
    at = at if begin < 0 else begin
    return refusal(source, at, f"nothing is named {name!r}", _meant(name, list(names)))


def _meant(name: str, names: list[str]) -> str:
    if name in _PYTHON:
        return f"CEL writes {_PYTHON[name]!r}"
    members = [known for known in names if known.startswith(name.split(".")[0] + ".")]
    if members and "." not in name:
        return f"there are {', '.join(members)}"
    near = difflib.get_close_matches(name, [*names, *FUNCTIONS], n=1)
    if not near and "." in name:
        # run.args.x misspelt as run.arg.x: the part that goes on is not the mistake
        near = difflib.get_close_matches(".".join(name.split(".")[:2]), names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    if members:
        return f"there are {', '.join(members)}"
    if name.startswith("source"):
        return "no source is registered; sources are registered where the app is made"
    return "facts begin with run., activity., fault., history., timeout., trigger. or source.; texts need quotes"


def _explain(text: str) -> tuple[str, str]:
    """Return what is wrong, and a hint."""
    if found := _OVERLOAD.match(text):
        return _mismatch(found[1], found[2])
    if found := _SELECT.match(text):
        return (
            f"{with_article(found[1])} has no parts to be named after a dot",
            "only maps have: run.args.NAME, run.tags.NAME",
        )
    if found := _RANGE.match(text):
        return (
            f"{with_article(found[1])} cannot be looped over",
            "loop over a list or a map: fault.bases.exists(b, b == '…')",
        )
    text = text.removeprefix("Syntax error: ")
    if found := _TOKEN.match(text):
        return f"{found[1]!r} cannot be read", _hint_token(found[1])
    if found := _STRAY.match(text):
        if found[1] == "<EOF>":
            return "it ends too early", "something is missing at the end, or a bracket is not closed"
        return f"{found[1]!r} is not expected here", _hint_stray(found[1])
    return text, "CEL's own words; the language is described at https://cel.dev"


def _hint_token(text: str) -> str:
    if text.startswith("="):
        return "to compare, write '=='"
    return "a quotation mark is not closed" if text[:1] in "'\"" else "CEL has no such sign; texts need quotes"


def _hint_stray(text: str) -> str:
    if text in _PYTHON:
        return f"CEL writes {_PYTHON[text]!r}"
    return "between two parts there must be an operator: &&, ||, ==, !=, <, >, in, +"


def _mismatch(function: str, types: str) -> tuple[str, str]:
    met = _split(types.replace("null_type", "null"))
    if function == "_?_:_":
        return f"'?:' cannot choose: {', '.join(met)}", "what is before '?' must be a bool, the two after it alike"
    operator = "[]" if function == "_[_]" else function.strip("_@")
    if operator.isalpha() and operator != "in":
        return f"{operator!r} does not take ({', '.join(met)})", _hint_types(met)
    return f"{operator!r} cannot be applied to {' and '.join(met)}", _hint_types(met)


def _split(types: str) -> list[str]:
    """Split a list of types: ``int, map(string, dyn)`` is two types."""
    return re.findall(r"[^,(\s]+(?:\([^()]*(?:\([^()]*\)[^()]*)*\))?", types)


def _hint_types(met: list[str]) -> str:
    if len(met) == 1:
        return "compare it first: … == '…', … > 0"
    if set(met) == {"int", "double"}:
        return "compare like with like: double(run.priority) > 1.5, or a number without a point"
    if "null" in met:
        return "this fact is never null; what is not known is '' or 0"
    if set(met) == {"int", "string"}:
        return "a number needs no quotes, a text does; int(…) and string(…) convert"
    return "the two must fit one another; int(…), double(…) and string(…) convert"
