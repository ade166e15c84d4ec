"""Whoever waits for a run's end goes on waiting while the database ends connections, as when it is restarted."""

from __future__ import annotations

import secrets
import threading
from typing import Any

import psycopg
import pytest

import aft
from tests.setups import Setup, eventually


@aft.flow(name="restarts_waiting")
def waiting(order: str) -> str:
    return str(aft.wait_for("go"))


def end_connections(setup: Setup) -> None:
    with psycopg.connect(setup.database) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def send(run: aft.Run[Any]) -> bool:
    try:
        run.signal("go", "on", key="once")
    except aft.StoreError:
        return False
    return True


# A worker whose connections were ended may count as lost until it says that it is there.
@pytest.mark.filterwarnings("ignore::aft.app.run.NoWorkerWarning")
@pytest.mark.parametrize("timeout", [60, None])
def test_a_wait_for_a_result_outlasts_ended_connections(production: Setup, timeout: float | None) -> None:
    app, other = production.app(), production.app()
    found: list[object] = []

    def wait() -> None:
        try:
            found.append(run.result(timeout))
        except aft.AftError as error:
            found.append(error)

    with app.dispatcher():
        run = other.submit(waiting, secrets.token_hex(4))
        eventually(lambda: app.run(run.id).status == "waiting")
        thread = threading.Thread(target=wait)
        thread.start()
        for _ in range(5):
            end_connections(production)
            thread.join(0.3)
        assert not found
        eventually(lambda: send(app.run(run.id)))
        thread.join(60)
    assert found == ["on"]
