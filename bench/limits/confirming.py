"""Which messages has the broker not confirmed yet? Confirms may come for one or for all up to one, in any order."""

from __future__ import annotations

from typing import Any


class Unconfirmed:
    """The numbers of a channel's messages that are under way."""

    def __init__(self) -> None:
        self._sent = 0
        self._under_way: set[int] = set()

    def add(self) -> None:
        """Say that one more was published."""
        self._sent += 1
        self._under_way.add(self._sent)

    def confirm(self, frame: Any) -> None:
        """Take a confirm of pika's."""
        tag: int = frame.method.delivery_tag
        self._under_way -= {other for other in self._under_way if other <= tag} if frame.method.multiple else {tag}

    def __len__(self) -> int:
        return len(self._under_way)
