"""How a run leaves the flow's code.

Leaving is not an error, so it derives from ``BaseException``: a user's ``except Exception`` does not swallow it. While
a run is leaving, every aft call raises it again; a plain ``finally`` in flow code runs each time the run leaves.
"""

from __future__ import annotations


class Leave(BaseException):
    """Raised through flow code when the run leaves this process.

    What had to be written is written; ``lost`` is what kept it from being so.
    """

    def __init__(self, why: str, *, lost: BaseException | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.lost = lost
