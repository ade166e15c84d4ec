"""A database whose times are spelled in another way than drivers read them is used like any other."""

from __future__ import annotations

import secrets

import psycopg

import aft
from aft.store import schema


@aft.activity(name="dated_step")
def step() -> None:
    """Do nothing."""


@aft.flow(name="dated_flow")
def dated() -> str:
    step()
    aft.sleep("10ms")
    return "done"


def test_runs_are_executed_whatever_the_style_of_dates(postgres_url: str) -> None:
    server = postgres_url.replace("postgresql+psycopg", "postgresql")
    name = f"aft_dates_{secrets.token_hex(4)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        connection.execute(f"ALTER DATABASE \"{name}\" SET datestyle = 'German'")
    url = f"{postgres_url.rpartition('/')[0]}/{name}"
    try:
        app = aft.Aft(url, "embedded")
        try:
            schema.upgrade(app.store)
            with app.dispatcher():
                run = app.submit(dated)
                assert run.result(60) == "done"
            assert run.row.ended_at is not None
        finally:
            app.close()
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
