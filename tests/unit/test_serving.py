"""Claims about the signals that end a dispatcher."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, signal
from aft.cli.serving import Stop

stop = Stop("last words")
stop.hear()
looks = []

def over():
    asked = stop.asked
    if not looks:
        os.kill(os.getpid(), signal.SIGTERM)  # after the look, before the wait
    looks.append(asked)
    return asked

stop.wait(over)
assert looks == [False, True], looks
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_signal_that_comes_between_the_look_and_the_wait_is_heard_and_the_second_one_ends_the_process() -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (1, "aft: last words\n")
