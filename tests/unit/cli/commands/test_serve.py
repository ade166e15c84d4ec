"""Claims about the signals that end a dispatcher."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import os, signal
from aft.cli.commands.serve import Stop

stop = Stop("last words")
stop.install()
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


#: A child that was forked while its parent listens; a signal is sent to itself. ``early``: before the child has begun.
FORKED = """
import os, signal, sys, threading
from aft.cli.commands.serve import Stop

number, early = signal.Signals[sys.argv[1]], sys.argv[2] == "early"
if early:
    os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), number))
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, where the tests run in the background
stop = Stop("last words")
stop.install()
told = os.pipe()

def fork():
    if (child := os.fork()) == 0:
        try:
            os.write(told[1], str(signal.set_wakeup_fd(-1)).encode() + b" ")
            os.kill(os.getpid(), number)
            os.write(told[1], b"went on")
        except KeyboardInterrupt:
            os.write(told[1], b"interrupted")
        finally:
            os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)

thread = threading.Thread(target=fork)  # as an activity does
thread.start()
thread.join()
os.close(told[1])
print(os.read(told[0], 99).decode(), stop.asked, signal.getsignal(number) == stop._on_signal)
"""


@pytest.mark.parametrize(
    ("number", "when", "said"),
    [
        ("SIGTERM", "begun", "-15\n-1  False True\n"),
        ("SIGINT", "begun", "0\n-1 interrupted False True\n"),
        ("SIGTERM", "early", "-15\n False True\n"),
    ],
)
def test_a_child_made_by_fork_has_the_signals_that_were_there_before(number: str, when: str, said: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKED, number, when]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == (said, "")
