"""Groups failures that have one cause: by step, exception, text without what differs, and the place in the user's code.

A group's id is a short hash of these, so that every process finds the same one, and it says nothing of the text. The
line in the file is no part of it: the next version of the code has other numbers.
"""

from __future__ import annotations

import hashlib
import re
import sysconfig
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import CodeType, TracebackType

from aft.fault import Fault

#: What differs between failures of one cause, and its place-holder; in this order.
_DIFFERENT = (
    (re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"), "ID"),
    (re.compile(r"\S+@\S+"), "ADDRESS"),
    (re.compile(r"'[^']*'|\"[^\"]*\""), "TEXT"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b|\b[0-9a-fA-F]{8,}\b"), "ID"),
    (re.compile(r"\S*\d\S*"), "NUMBER"),
    (re.compile(r"\s+"), " "),
)
#: Characters of a message that are looked at.
MOST_TEXT = 500
_OURS = Path(__file__).parent.parent.parent
#: Where code is that is not the user's: Python's own, and what was installed.
_INSTALLED = tuple(
    str(Path(found)) for name in ("stdlib", "platstdlib", "purelib", "platlib") if (found := sysconfig.get_path(name))
)


def in_group(fault: Fault, traceback: TracebackType | None = None) -> Fault:
    """Return a new fault with its group; ``traceback`` is the one of its exception."""
    found = group_id(fault.kind.value, fault.name, fault.type, fault.message, place_of(traceback))
    return replace(fault, group_id=found)


def group_id(kind: str, step: str, exception: str, message: str, place: str) -> str:
    """Return the id of a group; ``place`` is where the user's code failed, as ``place_of`` names it."""
    parts = (kind, step, exception, normalise(message), place)
    return hashlib.blake2s("\x00".join(parts).encode(errors="replace"), digest_size=6).hexdigest()


def normalise(message: str) -> str:
    """Return a message with place-holders for what differs between failures of one cause."""
    text = message[:MOST_TEXT]
    for pattern, instead in _DIFFERENT:
        text = pattern.sub(instead, text)
    return text.strip()


def place_of(traceback: TracebackType | None) -> str:
    """Return the innermost place in the user's own code, ``shop.py:pay``; empty if there is none."""
    found = ""
    while traceback is not None:
        found = _name(traceback.tb_frame.f_code) or found
        traceback = traceback.tb_next
    return found


@lru_cache(maxsize=2000)
def _name(code: CodeType) -> str:
    """Name the place of some code; empty: it is not the user's."""
    file = Path(code.co_filename)
    if code.co_filename.startswith((*_INSTALLED, "<")) or _OURS in file.parents:
        return ""
    return f"{file.name}:{code.co_qualname}"
