"""A process that uses SQLite and forks: what the child writes is kept, or it is told that it cannot write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.setups import migrate

#: An app is used, then the process forks: in the middle of a transaction, beside a dispatcher, or with nothing to do.
SCRIPT = """
import os, sys
import aft
from aft.store.sqlite import forks as forking

@aft.flow
def fork_flow() -> int:
    return 1

url, how = sys.argv[1:]
forking.PATIENCE = 0.1 if how == "transaction" else 60.0
app = aft.Aft(url)
assert app.start(fork_flow).result(60) == 1
opened, closed = os.pipe(), os.pipe()

def live_on():
    print(app.start(fork_flow).result(60), flush=True)
    os.write(opened[1], b"!")
    os.read(closed[0], 1)  # the parent has closed its app
    for _ in range(2):
        print(app.start(fork_flow).result(60), flush=True)
    print(len(aft.Aft(url).runs()), flush=True)

def fork():
    if (child := os.fork()) == 0:
        try:
            live_on()
        except aft.AftError as error:
            print(type(error).__name__, error, flush=True)
            os.write(opened[1], b"!")
        os._exit(0)
    return child

if how == "transaction":
    with app.store.read() as connection:
        child = fork()
elif how == "dispatcher":
    with app.dispatcher():
        assert app.submit(fork_flow).result(60) == 1
        child = fork()
        assert app.submit(fork_flow).result(60) == 1
else:
    child = fork()
os.read(opened[0], 1)
app.close()
os.write(closed[1], b"!")
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

#: Four threads write without a break while the process forks again and again.
BUSY = """
import os, sys, threading
from sqlalchemy import text
from aft.store.sqlite import forks as forking
from aft.store.engine import Store

url, forks = sys.argv[1], int(sys.argv[2])
forking.PATIENCE = 60.0
store = Store(url)
over = threading.Event()

def write():
    with store.write() as connection:
        connection.execute(text(f"INSERT INTO written VALUES ({os.getpid()})"))

def write_on():
    while not over.is_set():
        write()

with store.write() as connection:
    connection.execute(text("CREATE TABLE written (pid INTEGER)"))
threads = [threading.Thread(target=write_on) for _ in range(4)]
for thread in threads:
    thread.start()
children = []
for _ in range(forks):
    if (child := os.fork()) == 0:
        try:
            write()
        finally:
            os._exit(0)
    children.append(child)
    os.waitpid(child, 0)
over.set()
for thread in threads:
    thread.join()
with store.read() as connection:
    pids = [row[0] for row in connection.execute(text("SELECT pid FROM written"))]
print(sum(child in pids for child in children))
"""

#: Threads write in each way there is while the process forks again and again, until a child is refused the database.
EVERY_WAY = """
import os, sys, threading
from sqlalchemy import text
from aft.errors import StoreError
from aft.store.sqlite import forks as forking
from aft.store.engine import Store

url, forks = sys.argv[1], int(sys.argv[2])
forking.PATIENCE = 20.0
store = Store(url)
over = threading.Event()

class Write:
    def write_sqlite(self, connection, items):
        connection.executemany("INSERT INTO written VALUES (?)", [(item,) for item in items])
        return [True] * len(items)

shared, alone = Write(), Write()

def write():
    with store.write() as connection:
        connection.execute(text("INSERT INTO written VALUES (1)"))

def write_and_read():
    with store.write() as connection:
        connection.execute(text("INSERT INTO written VALUES (1)"))
        with store.read() as another:
            another.execute(text("SELECT 1 FROM written LIMIT 1")).all()

def write_on(how):
    while not over.is_set():
        how()

with store.write() as connection:
    connection.execute(text("CREATE TABLE written (pid INTEGER)"))
ways = [write, write_and_read, lambda: store.commit(shared, 1), lambda: store.write_now(alone, [1])]
threads = [threading.Thread(target=write_on, args=(way,)) for way in ways]
for thread in threads:
    thread.start()
served = 0
for _ in range(forks):
    if (child := os.fork()) == 0:
        try:
            write()
        except StoreError:
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        break
    served += 1
over.set()
for thread in threads:
    thread.join()
print(served)
"""


def play(tmp_path: Path, how: str, script: str = SCRIPT) -> list[str]:
    url = f"sqlite:///{tmp_path / 'aft.db'}"
    migrate(url)
    command = [sys.executable, "-W", "ignore", "-c", script, url, how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(("how", "runs"), [("nothing", "4"), ("dispatcher", "6")])
def test_what_a_child_writes_is_kept_though_its_parent_closes_the_database(tmp_path: Path, how: str, runs: str) -> None:
    assert play(tmp_path, how) == ["1", "1", "1", runs]


def test_a_child_of_a_process_in_the_middle_of_a_transaction_is_told_that_it_cannot_use_the_database(
    tmp_path: Path,
) -> None:
    (told,) = play(tmp_path, "transaction")
    assert told.startswith("StoreError this process was forked from one that was using 'sqlite:///")


def test_forks_among_threads_that_write_lose_nothing(tmp_path: Path) -> None:
    assert play(tmp_path, "40", BUSY) == ["40"]


def test_no_child_is_refused_the_database_because_of_threads_that_write(tmp_path: Path) -> None:
    assert play(tmp_path, "40", EVERY_WAY) == ["40"]
