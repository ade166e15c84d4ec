"""Tracks the unconfirmed messages of a channel; confirms may be single or cumulative, in any order."""

from __future__ import annotations

from typing import Any


class Unconfirmed:
    """The numbers of a channel's messages that are not confirmed."""

    def __init__(self) -> None:
        self._sent = 0
        self._under_way: set[int] = set()

    def add(self) -> None:
        """Add the message that was published next."""
        self._sent += 1
        self._under_way.add(self._sent)

    def confirm(self, frame: Any) -> None:
        """Apply a confirm frame of pika's."""
        tag: int = frame.method.delivery_tag
        self._under_way -= {other for other in self._under_way if other <= tag} if frame.method.multiple else {tag}

    def __len__(self) -> int:
        return len(self._under_way)
