"""Signs and verifies webhook requests: an HMAC over the body and the time of sending.

The header reads ``t=<unix seconds>,v1=<hex HMAC-SHA256 of "t.body">``. The time is part of what is signed: a recorded
request cannot be replayed much later. Pure; receivers written in Python may use ``verify`` as it is.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re

#: The header of a notice that carries its signature.
HEADER = "Aft-Signature"
#: Seconds by which a signature may be old, or clocks may differ.
TOLERANCE = 300.0

#: Characters of a header that are read.
_MOST_CHARACTERS = 1000
_TIME = re.compile(r"[0-9]{1,15}")


def sign(secret: str, body: bytes, at: float, *others: str) -> str:
    """Return the signature of a body that is sent at that time; during a change of secrets, with the others as well."""
    moment = str(math.floor(at))
    return ",".join([f"t={moment}", *(f"v1={_digest(one, moment, body)}" for one in (secret, *others))])


def verify(secret: str, body: bytes, header: str, now: float, tolerance: float = TOLERANCE) -> bool:
    """Return whether the body was signed with the secret, not too long ago; never raises for a malformed header.

    ``body`` is what was received, byte for byte; ``now`` is ``time.time()``. One right ``v1`` among several is enough;
    parts of other names are ignored. Constant-time comparison. Raises ValueError for an empty secret.
    """
    if not secret:
        raise ValueError("an empty secret verifies nothing: everybody knows it")
    parts = [part.strip().partition("=") for part in header[:_MOST_CHARACTERS].split(",")]
    moments = [value for name, _, value in parts if name == "t"]
    if len(moments) != 1 or not _TIME.fullmatch(moments[0]) or abs(now - int(moments[0])) > tolerance:
        return False
    right = _digest(secret, moments[0], body).encode()
    return any(hmac.compare_digest(right, value.encode(errors="replace")) for name, _, value in parts if name == "v1")


def _digest(secret: str, moment: str, body: bytes) -> str:
    return hmac.new(secret.encode(), moment.encode() + b"." + body, hashlib.sha256).hexdigest()
