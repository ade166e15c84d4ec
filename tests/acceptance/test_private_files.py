"""Nobody but its owner reads a SQLite database, and nobody who may not write to it can hold up those who may."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import aft
from aft.cli.root import root

#: Whose user nobody is.
STRANGER = 54321


@aft.activity(name="private_note")
def note(text: str) -> str:
    return text


@aft.flow(name="private_noting")
def noting(text: str) -> str:
    return note(text)


@pytest.fixture(autouse=True)
def careless() -> Iterator[None]:
    """Everybody may do everything with new files, unless somebody says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


def work(folder: Path) -> dict[str, int]:
    """Execute a run, and tell which files there are meanwhile, with their modes."""
    app = aft.Aft(f"sqlite:///{folder}/shop.db")
    try:
        with app.dispatcher():
            assert app.submit(noting, "hello").result(60) == "hello"
            return {path.name: stat.S_IMODE(path.lstat().st_mode) for path in folder.rglob("*")}
    finally:
        app.close()


def test_new_files_are_their_owners_alone(tmp_path: Path) -> None:
    found = work(tmp_path)
    assert {"shop.db", "shop.db-wal", "shop.db-shm", "shop.db-turn", "shop.db-workers"} <= {*found}
    folder = found.pop("shop.db-workers")
    assert (folder, set(found.values())) == (0o700, {0o600})


def test_files_beside_a_shared_database_are_shared_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "shop.db").touch(mode=0o660)
    found = work(tmp_path)
    folder = found.pop("shop.db-workers")
    assert (folder, set(found.values())) == (0o770, {0o660})


def test_files_that_an_older_aft_has_left_to_everybody_become_private_with_the_database(tmp_path: Path) -> None:
    for name in ("shop.db", "shop.db-turn"):
        (tmp_path / name).touch(mode=0o666)
    (tmp_path / "shop.db-workers").mkdir(mode=0o777)
    (tmp_path / "shop.db").chmod(0o600)
    found = work(tmp_path)
    assert (found["shop.db-turn"], found["shop.db-workers"]) == (0o600, 0o700)


def test_a_link_that_somebody_has_put_there_is_not_followed(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "shop", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / "shop.db-turn").symlink_to(elsewhere / "turn")
    (folder / "shop.db-workers").symlink_to(elsewhere)
    work(folder)
    assert list(elsewhere.iterdir()) == []


def test_what_a_stranger_has_put_there_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "shop.db-workers").mkdir()
    if os.geteuid() == 0:
        os.chown(tmp_path / "shop.db-workers", STRANGER, STRANGER)
    else:
        (tmp_path / "shop.db-workers").rmdir()
        (tmp_path / "shop.db-workers").symlink_to(tmp_path)
    assert not any("-" in name and len(name) == 36 for name in work(tmp_path)), "no sign of a worker is there"


def test_doctor_names_a_database_that_others_may_read(tmp_path: Path) -> None:
    work(tmp_path)
    database = tmp_path / "shop.db"
    given = ["--database", f"sqlite:///{database}", "doctor"]
    assert "chmod" not in CliRunner().invoke(root, given).output
    database.chmod(0o644)
    told = CliRunner().invoke(root, given).output
    assert "others than its owner may read" in " ".join(told.split())
    assert "chmod go-rwx" in told
