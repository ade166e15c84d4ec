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
from aft.errors import StoreError

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


@pytest.mark.parametrize(("mode", "expected"), [(0o644, 0o600), (0o640, 0o600), (0o664, 0o660), (0o666, 0o660)])
def test_who_may_only_read_the_database_cannot_lock_what_is_beside_it(tmp_path: Path, mode: int, expected: int) -> None:
    (tmp_path / "shop.db").touch(mode=mode)
    found = work(tmp_path)
    locks = [found["shop.db-turn"], *(mode for name, mode in found.items() if len(name) == 36)]
    assert (found["shop.db-workers"] & 0o666, set(locks)) == (expected, {expected})


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


def plant(path: Path, mode: int = 0o666) -> None:
    """Put an empty file there, as a stranger would; who is not root can give nothing to a stranger: a link then."""
    if os.geteuid() == 0:
        path.touch()
        os.chown(path, STRANGER, STRANGER)
        path.chmod(mode)
    else:
        path.symlink_to(path.parent / "elsewhere")


@pytest.mark.parametrize("name", ["shop.db-wal", "shop.db-shm", "shop.db-journal"])
def test_a_file_of_sqlites_that_a_stranger_has_put_there_is_refused(tmp_path: Path, name: str) -> None:
    tmp_path.chmod(0o1777)
    plant(tmp_path / name)
    with pytest.raises(StoreError, match=rf"(?s)is not used: '.*/{name}' is .*(move|remove) it"):
        work(tmp_path)
    assert (tmp_path / name).lstat().st_size == 0 or (tmp_path / name).is_symlink(), "nothing was written there"


def test_a_database_that_a_stranger_has_put_where_all_may_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    if os.geteuid() == 0:
        plant(tmp_path / "shop.db")
    else:
        (tmp_path / "shop.db").mkdir()
        (tmp_path / "shop.db").rmdir()
        os.mkfifo(tmp_path / "shop.db")
    with pytest.raises(StoreError, match=r"shop\.db' is .*remove it"):
        work(tmp_path)


def test_a_wal_that_a_stranger_has_filled_does_not_become_our_database(tmp_path: Path) -> None:
    forged = tmp_path / "forged"
    forged.mkdir()
    for folder in (tmp_path, forged):
        app = aft.Aft(f"sqlite:///{folder}/shop.db")
        app.submit(noting, "hello")
        wal = (folder / "shop.db-wal").read_bytes()
        app.close()
    (tmp_path / "shop.db-wal").write_bytes(wal)
    (tmp_path / "shop.db-wal").chmod(0o666)
    app = aft.Aft(f"sqlite:///{tmp_path}/shop.db")
    with pytest.raises(StoreError, match=r"more users may use '.*shop\.db-wal' \(666\).*chmod 600"):
        app.check()
    app.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_members_of_a_group_share_a_database_that_it_may_write(tmp_path: Path) -> None:
    database = tmp_path / "shop.db"
    work(tmp_path)
    os.chown(database, STRANGER, STRANGER)
    database.chmod(0o660)
    for end in ("-wal", "-shm"):  # as another member has left them
        plant(tmp_path / f"shop.db{end}", 0o660)
        os.chown(tmp_path / f"shop.db{end}", STRANGER + 1, STRANGER)
    work(tmp_path)
    tmp_path.chmod(0o1777)
    with pytest.raises(StoreError, match="everybody may make files in its folder"):
        work(tmp_path)


def test_a_strangers_link_where_all_may_make_files_is_not_followed_to_a_database(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    link, target = tmp_path / "shop.db", tmp_path / "inner" / "shop.db"
    target.parent.mkdir(mode=0o700)
    link.symlink_to(target)
    work(tmp_path)  # a link of our own
    if os.geteuid() == 0:
        os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
        with pytest.raises(StoreError, match="is a link of user"):
            work(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("given", ["home/mine.db", "open/data/shop.db", "open/../open/data/../data/shop.db"])
def test_a_strangers_link_is_followed_nowhere_on_the_way(tmp_path: Path, given: str) -> None:
    """Not behind a link of our own, and not as a folder."""
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    links = {"open/shop.db": "home/victim.txt", "open/data": "home", "home/mine.db": "open/shop.db"}
    for link, target in links.items():
        (tmp_path / link).symlink_to(tmp_path / target)
        if link.startswith("open"):
            os.chown(tmp_path / link, STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(StoreError, match="is a link of user"):
        aft.Aft(f"sqlite:///{tmp_path}/{given}").start(noting, "hello")
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["mine.db"], "nothing was made there"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_doctor_names_files_that_a_stranger_has_put_there(tmp_path: Path) -> None:
    work(tmp_path)
    (tmp_path / "shop.db-turn").unlink()
    for name in ("shop.db-turn", "shop.db-wal"):
        plant(tmp_path / name, 0o600)
        told = CliRunner().invoke(root, ["--database", f"sqlite:///{tmp_path}/shop.db", "doctor"]).output
        assert f"{name}' is" in " ".join(told.split())
        assert str(STRANGER) in told


def test_doctor_names_a_database_that_others_may_read(tmp_path: Path) -> None:
    work(tmp_path)
    database = tmp_path / "shop.db"
    given = ["--database", f"sqlite:///{database}", "doctor"]
    assert "chmod" not in CliRunner().invoke(root, given).output
    database.chmod(0o644)
    told = CliRunner().invoke(root, given).output
    assert "users other than its owner may read" in " ".join(told.split())
    assert "chmod go-rwx" in told


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_strangers_link_leads_to_no_new_file(tmp_path: Path) -> None:
    everybodys, private = tmp_path / "everybodys", tmp_path / "private"
    everybodys.mkdir()
    everybodys.chmod(0o1777)
    private.mkdir(mode=0o700)
    link = everybodys / "shop.db"
    link.symlink_to(private / "nologin")
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(StoreError, match="is a link of user"):
        work(everybodys)
    result = CliRunner().invoke(root, ["--database", f"sqlite:///{link}", "db", "upgrade"])
    assert "is a link of user" in result.output
    assert list(private.iterdir()) == []
