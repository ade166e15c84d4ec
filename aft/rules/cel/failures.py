"""Explains why CEL could not evaluate a condition, without any value of the case: it may be secret.

CEL's own words may repeat values, and may change with its library. So only those that are known to hold none are told
as they are; others are put into words of ours, and whatever is not known says nothing of the values.
"""

from __future__ import annotations

import re

_QUOTES = "\"'"
_STATUS = re.compile(r"^[A-Z_]+: ")
_TYPE = "(?:bool|bytes|double|[dD]uration|u?int(?:64)?|list|map|null_type|[sS]tring|[tT]imestamp|type)"
#: What is told as it is.
_KNOWN = re.compile(
    rf"cannot convert {_TYPE} to {_TYPE}|{_TYPE} to {_TYPE} conversion failed|{_TYPE} out of {_TYPE} range"
    rf"|Type conversion error from '{_TYPE}' to '{_TYPE}'|Invalid (?:map key|container) type: '{_TYPE}'"
    rf"|Index error: expected integer type, got {_TYPE}|(?:integer|unsigned integer|timestamp|duration) overflow"
    r"|(?:divide|modulus) by zero|Invalid timezone|malformed UTF-8 bytes|duplicate key in map"
    r"|Iteration budget exceeded"
)
_KEY = re.compile(r"Key not found in map : (.+)")
_OVERLOAD = re.compile(r"No matching overloads found : (?:\((\w+)\)\.)?([^()]+)(?:\((.*)\))?")
_INDEX = re.compile(r"Index error: index=(-?\d+) size=\d+")
_FACT = re.compile(r"Unexpected value type for '([a-z_.]+)(?:\[\d+\])?': \w+\. \(Expected ([\w<>, ]+)\)")
_FOREIGN = re.compile(r"Non-CEL value type for .*': (\w+)\.", re.DOTALL)


def explain(text: str, source: str) -> str:
    """Return what is wrong, from CEL's error about a condition. Pure."""
    text = _STATUS.sub("", text)
    if known := _KNOWN.match(text):
        return known[0]
    if found := _KEY.match(text):
        key = f"key {found[1]}" if _is_named(found[1], source) else "such key"
        return f"there is no {key}; has(…) asks whether there is"
    if found := _OVERLOAD.match(text):
        return _explain_overload(*found.groups())
    if "Applying SELECT" in text:
        return "something that is not a map was asked for a part by name"
    if found := _INDEX.match(text):
        return text if _is_named(found[1], source) else "an index is outside of its list"
    if text.startswith("Duration ") and "allowed duration" in text:
        return "a duration is too long"
    return _explain_fact(text) or "CEL cannot evaluate it with the values that it met"


def _explain_fact(text: str) -> str | None:
    """Return what is wrong with a fact that CEL does not take; None if the text is about something else."""
    if found := _FACT.fullmatch(text):
        return f"{found[1]} is not of type {found[2].lower()}"
    if text.startswith("Integer value ") or text == "int too big to convert":
        return "a number of the case is too large"
    if found := _FOREIGN.fullmatch(text):
        return f"something in the case is of type {found[1]}, which CEL does not know"
    return None


def _explain_overload(receiver: str | None, formatted: str, met: str | None) -> str:
    operator = "'?:'" if formatted == "<jump_condition>" else repr(formatted.strip("_."))
    types = ", ".join(each for each in (receiver, met) if each)
    shown = types.replace("int64", "int").replace("null_type", "null").replace(", ", " and ")
    return f"{operator} cannot be applied to {shown or 'the values that it met'}"


def _is_named(key: str, source: str) -> bool:
    """Return whether an expression names a key or an index; else it is a value of the case, which may be secret."""
    return re.search(rf"(?<!\w){re.escape(key.strip(_QUOTES))}(?!\w)", source) is not None
