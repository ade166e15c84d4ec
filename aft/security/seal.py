"""Seals on messages: without a key, write access to the broker is not enough to make a message that aft acts on.

A seal is the last field of a message: ``"seal":"<hex HMAC-SHA256 of the message without it>"``. Keys are changed in two
steps: a process seals with its key, and also accepts messages that were sealed with the old one. A process without keys
seals nothing, and accepts every message.

A seal does not prevent replay: a sealed message can be sent again, or earlier than it should be. Both are harmless: a
message is a hint, the row decides.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence

from aft.envelope import MessageRefused

_SEALED = re.compile(rb',"seal":"([0-9a-f]{64})"}\Z')


class Seal:
    """Seals messages with the first of its keys; accepts those that were sealed with any."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._keys = [key.encode() for key in keys]

    def seal(self, body: bytes) -> bytes:
        """Return the message with our seal, replacing any other."""
        plain = _SEALED.sub(b"}", body)
        return plain[:-1] + b',"seal":"%s"}' % _digest(self._keys[0], plain) if self._keys else plain

    def unseal(self, body: bytes) -> bytes:
        """Return the message without its seal; raises MessageRefused if it has none of ours."""
        found = _SEALED.search(body)
        plain = body if found is None else body[: found.start()] + b"}"
        if not self._keys:
            return plain
        if found is None:
            raise MessageRefused("it is not sealed; messages must be, because AFT_MESSAGE_KEY is set")
        given = found.group(1)
        if not any(hmac.compare_digest(_digest(key, plain), given) for key in self._keys):
            raise MessageRefused("its seal was made with none of our keys (AFT_MESSAGE_KEY, AFT_OLD_MESSAGE_KEY)")
        return plain


def _digest(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, body, hashlib.sha256).hex().encode()
