"""A SQLite file that is deleted, moved or replaced under a process: nothing is reported as durable any more."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import aft
from tests.acceptance.commands import Dispatcher, until
from tests.conftest import make_setup
from tests.setups import Setup, eventually

MOVED_SHOP = """
    from __future__ import annotations

    import time
    from pathlib import Path

    import aft


    @aft.activity
    def moved_step(name: str) -> str:
        with Path("calls").open("a") as calls:
            calls.write(f"{name}\\n")
        while not Path("go").exists():
            time.sleep(0.01)
        return name


    @aft.flow
    def moved_order() -> str:
        moved_step("first")
        return moved_step("second")
"""


@aft.activity(name="moved_effect")
def effect(do: str) -> str:
    _effects.append(do)
    if do in _changes:
        _changes.pop(do)()
    return do


@aft.flow(name="moved_flow")
def flow() -> str:
    effect("first")
    return effect("second")


@aft.activity(name="moved_booking", transactional=True)
def booking(do: str) -> str:
    _effects.append(do)
    if do in _changes:
        _changes.pop(do)()
    return do


@aft.flow(name="moved_booked")
def booked() -> str:
    booking("first")
    return booking("second")


_effects: list[str] = []
#: What happens to the file while an activity works, by the activity's argument.
_changes: dict[str, Callable[[], None]] = {}


def delete(file: Path) -> None:
    file.unlink()


def delete_all(file: Path) -> None:
    for each in file.parent.glob(f"{file.name}*"):
        if each.is_file():
            each.unlink()


def move(file: Path) -> None:
    file.rename(file.with_name("elsewhere.db"))


def replace(file: Path) -> None:
    shutil.copy(file, file.with_name("new.db"))
    file.with_name("new.db").replace(file)


def delete_wal(file: Path) -> None:
    Path(f"{file}-wal").unlink()


CHANGES = [delete, delete_all, move, replace, delete_wal]


@pytest.fixture
def sqlite(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Setup]:
    made = make_setup("sqlite", request, tmp_path)
    _effects.clear()
    _changes.clear()
    yield made
    made.close()


@pytest.mark.parametrize("change", CHANGES)
def test_a_submit_into_a_file_that_is_not_there_any_more_is_refused(
    sqlite: Setup, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    app = sqlite.app()
    app.submit(flow)
    change(tmp_path / "aft.db")
    for _ in range(3):
        with pytest.raises(aft.DatabaseMoved, match=r"aft\.db.*while this process had it open.*start it again"):
            app.submit(flow)


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_behind_a_link_is_watched_like_any_other(
    sqlite: Setup, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    (tmp_path / "link.db").symlink_to("aft.db")
    sqlite.database = f"sqlite:///{tmp_path / 'link.db'}"
    app = sqlite.app()
    app.submit(flow)
    change(tmp_path / "aft.db")
    for _ in range(2):
        with pytest.raises(aft.DatabaseMoved, match=r"\.db.*while this process had it open.*start it again"):
            app.submit(flow)


def test_who_opens_a_file_by_a_link_and_who_opens_it_by_its_name_have_the_same_files_beside_it(
    sqlite: Setup, tmp_path: Path
) -> None:
    (tmp_path / "link.db").symlink_to("aft.db")
    by_name = sqlite.app()
    sqlite.database = f"sqlite:///{tmp_path / 'link.db'}"
    with sqlite.app().dispatcher(), by_name.dispatcher():
        assert by_name.submit(flow).result(timeout=60) == "second"
        assert not list(tmp_path.glob("link.db-*"))


@pytest.mark.parametrize("change", [delete, replace])
def test_nothing_is_read_from_a_file_that_is_not_there_any_more(
    sqlite: Setup, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    app = sqlite.app()
    run = app.submit(flow)
    change(tmp_path / "aft.db")
    with pytest.raises(aft.DatabaseMoved):
        _ = run.status
    with pytest.raises(aft.DatabaseMoved):
        app.runs()


def test_a_deleted_file_is_not_made_again_by_the_process_that_had_it_open(sqlite: Setup, tmp_path: Path) -> None:
    app = sqlite.app()
    app.submit(flow)
    delete_all(tmp_path / "aft.db")
    app.store.engine.dispose()  # it has to connect anew
    with pytest.raises(aft.DatabaseMoved):
        app.submit(flow)
    assert not (tmp_path / "aft.db").exists()


def test_a_file_that_was_put_back_is_worked_on_again(sqlite: Setup, tmp_path: Path) -> None:
    app = sqlite.app()
    run = app.submit(flow)
    move(tmp_path / "aft.db")
    with pytest.raises(aft.DatabaseMoved):
        app.submit(flow)
    (tmp_path / "elsewhere.db").rename(tmp_path / "aft.db")
    assert {app.submit(flow).id, run.id} == {each.id for each in app.runs()}


def test_an_app_that_is_used_after_it_was_closed_finds_its_file_in_place(sqlite: Setup) -> None:
    app = sqlite.app()
    app.submit(flow)
    app.close()  # the last connection removes the -wal file, and each further one does
    for _ in range(2):
        assert app.submit(flow).status == "running"


@pytest.mark.parametrize("declared", [flow, booked])
@pytest.mark.parametrize("change", CHANGES)
def test_a_run_whose_file_goes_while_an_activity_works_goes_no_further_and_is_not_reported_as_durable(
    sqlite: Setup, tmp_path: Path, change: Callable[[Path], None], declared: aft.Flow[[], str]
) -> None:
    app = sqlite.app()
    _changes["first"] = lambda: change(tmp_path / "aft.db")
    with pytest.raises(aft.DatabaseMoved):
        app.start(declared)
    assert _effects == ["first"]


def test_a_dispatcher_in_the_process_stops_executing_and_says_why(sqlite: Setup, tmp_path: Path) -> None:
    app = sqlite.app()
    with app.dispatcher() as process:
        app.submit(flow).result(timeout=60)
        replace(tmp_path / "aft.db")
        failure = eventually(lambda: process.failure)
        assert isinstance(failure, aft.DatabaseMoved)
        assert "was replaced by another file" in str(failure)
    other = sqlite.app()
    run = other.submit(flow)  # into the new file
    assert run.status == "running"
    assert _effects == ["first", "second"]


@pytest.mark.parametrize("change", [delete, delete_all, replace, delete_wal])
def test_a_dispatcher_whose_file_goes_ends_with_one_clear_line(here: Path, change: Callable[[Path], None]) -> None:
    with Dispatcher("dispatcher", "movedshop", AFT_LEASE="1s") as dispatcher:
        dispatcher.until_it_says("ready")
        change(here / "aft.db")
        assert dispatcher.status() == 1
    last = dispatcher.said.splitlines()[-1]
    assert last.startswith("aft: the file '"), dispatcher.said
    assert "aft.db" in last
    assert "start it again" in last
    assert "Traceback" not in dispatcher.said
    assert "nothing was left half done" not in dispatcher.said


def test_a_dispatcher_whose_file_goes_while_it_executes_runs_says_which_were_cut_off(here: Path) -> None:
    with aft.Aft() as app, Dispatcher("dispatcher", "movedshop") as dispatcher:
        dispatcher.until_it_says("ready")
        movedshop = __import__("movedshop")
        run = app.submit(movedshop.moved_order)
        until(lambda: (here / "calls").exists(), "the activity is called")
        delete_all(here / "aft.db")
        assert dispatcher.status() == 1
        assert run.id in dispatcher.said.splitlines()[-1]
    assert (here / "calls").read_text() == "first\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the module ``movedshop``."""
    (tmp_path / "movedshop.py").write_text(textwrap.dedent(MOVED_SHOP))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path
