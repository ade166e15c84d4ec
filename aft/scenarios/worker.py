"""A worker process of a replay: ``python -m aft.scenarios.worker DIRECTORY``. It lives until its stdin is closed.

So it ends with the replay that started it, however that ends: the system closes the pipe even after SIGKILL.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from aft.app import Aft
from aft.errors import AftError
from aft.scenarios.load import load_example
from aft.telemetry import log_event

#: Seconds that runs have to reach a step's end.
PATIENCE = 2.0


def main(directory: Path) -> None:
    """Execute runs of the example in this directory until stdin is closed. Raises AftError."""
    load_example(directory)
    with Aft.from_env() as app:
        app.telemetry.subscribe(log_event)
        dispatcher = app.dispatcher()
        dispatcher.start()
        sys.stdin.buffer.read()
        if not dispatcher.stop(PATIENCE):
            os._exit(1)  # an activity hangs: a plain exit would wait for its thread


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    try:
        main(Path(sys.argv[1]))
    except AftError as error:
        sys.exit(str(error))
