"""Who sent this? A signature over the body and the time of sending, which only holders of the secret can make.

The header reads ``t=<unix seconds>,v1=<hex HMAC-SHA256 of "t.body">``. The time is part of what is signed: whoever
recorded a request cannot send it again much later. Pure; receivers written in Python may use ``verify`` as it is.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re

#: The header of a notice that carries its signature.
HEADER = "Aft-Signature"
#: Seconds that a signature may be old, or that clocks may differ.
TOLERANCE = 300.0

#: Longer ones are nobody's: they are not looked at.
_MOST_CHARACTERS = 1000
_TIME = re.compile(r"[0-9]{1,15}")


def sign(secret: str, body: bytes, at: float, *others: str) -> str:
    """Spell the signature of a body that is sent at that time; while a secret is changed, with the others as well."""
    moment = str(math.floor(at))
    return ",".join([f"t={moment}", *(f"v1={_digest(one, moment, body)}" for one in (secret, *others))])


def verify(secret: str, body: bytes, header: str, now: float, tolerance: float = TOLERANCE) -> bool:
    """Tell whether the body was signed with the secret, not too long ago; never raises for what others wrote.

    ``body`` is what came, byte for byte; ``now`` is ``time.time()``. One right ``v1`` among several is enough, and
    parts of other names are passed over. The time it takes tells nothing about the right signature.
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
