"""Claims about turns: one writer at a time, among threads and processes, and who gives up keeps nobody out."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from aft.errors import StoreError
from aft.store.sqlite import write_queue
from aft.store.sqlite.write_queue import WriteQueue

#: A process that has the turn until its input ends.
HOLDER = """
import sys
from aft.store.sqlite.write_queue import WriteQueue
turn = WriteQueue(sys.argv[1])
turn.take(10, "db")
print("has it", flush=True)
sys.stdin.read()
turn.release()
"""
#: A process that writes without a break until its input ends.
GREEDY = """
import sys, threading
from aft.store.sqlite.write_queue import WriteQueue
turn = WriteQueue(sys.argv[1])
over = threading.Thread(target=sys.stdin.read)
over.start()
turn.take(10, "db")
print("has it", flush=True)
while over.is_alive():
    over.join(0.02)
    turn.release()
    turn.take(10, "db")
turn.release()
"""


def hold(file: str, script: str = HOLDER) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", script, file]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"has it\n"
    return process


def is_free(file: str) -> bool:
    """Whether nobody has the turn, tried as a stranger would."""
    stranger = os.open(f"{file}-turn", os.O_RDWR)
    try:
        fcntl.flock(stranger, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(stranger)
    return True


def test_one_process_at_a_time(tmp_path: Path) -> None:
    file = str(tmp_path / "aft.db")
    turn = WriteQueue(file)
    with hold(file) as other:
        assert other.stdin is not None
        other.stdin.close()
        turn.take(10, "db")
    assert not is_free(file)
    turn.release()
    assert is_free(file)


def test_who_waited_long_enough_goes_on_without_a_turn_and_ends_nobody_s(tmp_path: Path) -> None:
    file = str(tmp_path / "aft.db")
    turn = WriteQueue(file)
    with hold(file):
        turn.take(0.05, "db")
        turn.release()
        assert not is_free(file)


def test_a_process_that_is_paused_at_the_gate_keeps_nobody_out_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_queue, "GATE_PATIENCE", 0.05)
    file = str(tmp_path / "aft.db")
    turn = WriteQueue(file)
    with hold(file):
        started = time.monotonic()
        turn.take(120, "db")
        assert time.monotonic() - started < 60
        turn.release()


def test_a_process_that_writes_without_a_break_lets_the_others_in_between(tmp_path: Path) -> None:
    file = str(tmp_path / "aft.db")
    turn = WriteQueue(file)
    with hold(file, GREEDY) as greedy:
        for _ in range(3):
            turn.take(30, "db")
            assert turn._through, "it came in without a turn, past somebody who writes"
            turn.release()
        assert greedy.stdin is not None
        greedy.stdin.close()


def test_who_gave_up_keeps_nobody_out(tmp_path: Path) -> None:
    file = str(tmp_path / "aft.db")
    turn = WriteQueue(file)
    with hold(file):
        turn.take(0.05, "db")
        turn.release()
    for thread in threading.enumerate():
        if thread.name == "aft-turn":
            thread.join(60)
    assert is_free(file)


def test_a_process_that_dies_lets_the_next_one_in(tmp_path: Path) -> None:
    file = str(tmp_path / "aft.db")
    turn = WriteQueue(file)
    with hold(file) as other:
        other.kill()
        turn.take(10, "db")
    turn.release()


def test_one_thread_at_a_time_and_none_twice(tmp_path: Path) -> None:
    turn, got = WriteQueue(str(tmp_path / "aft.db")), list[int]()
    turn.take(1, "db")
    with pytest.raises(StoreError, match="of the same thread"):
        turn.take(1, "db")

    def second() -> None:
        turn.take(10, "db")
        got.append(2)
        turn.release()

    thread = threading.Thread(target=second)
    thread.start()
    got.append(1)
    turn.release()
    thread.join(60)
    assert got == [1, 2]


def test_where_no_file_can_be_made_there_is_nothing_to_wait_for(tmp_path: Path) -> None:
    turn = WriteQueue(str(tmp_path / "nowhere" / "aft.db"))
    turn.take(1, "db")
    turn.release()
