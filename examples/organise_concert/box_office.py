"""The box office: concerts, what is booked for each, and the tickets that were sold. A pretend one, of three tables.

They lie beside aft's own, in the database that ``AFT_DATABASE_URL`` names. Everything is written under the caller's
idempotency key: doing it again under the same key changes nothing, and taking it back takes away exactly what it added.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Column, Connection, ForeignKey, Integer, MetaData, String, Table, delete, insert, select, update

import aft
from aft.store import Store

metadata = MetaData()

#: The halls of the town, and how many people each seats.
SEATS = {"stadium": 1000, "mid venue": 750, "small venue": 500}

#: When a concert takes place unless somebody postpones it.
THIS_SEASON = "this season"


class State(StrEnum):
    """How far a concert has come."""

    PLANNED = "planned"
    PLAYED = "played"
    POSTPONED = "postponed"


concerts = Table(
    "concert_concerts",
    metadata,
    Column("id", String(80), primary_key=True),
    Column("state", String(20), nullable=False),
    Column("venue", String(80)),  # where it was played, or will be
)

bookings = Table(
    "concert_bookings",
    metadata,
    Column("key", String(200), primary_key=True),
    Column("concert_id", ForeignKey(concerts.c.id), nullable=False, index=True),
    Column("kind", String(20), nullable=False),  # venue or artist
    Column("name", String(80), nullable=False),
)

tickets = Table(
    "concert_tickets",
    metadata,
    Column("key", String(200), primary_key=True),
    Column("concert_id", ForeignKey(concerts.c.id), nullable=False, index=True),
    Column("sold", Integer, nullable=False),
)


@dataclass(frozen=True)
class Booking:
    """What was booked; ``key`` is that of its row."""

    name: str
    seats: int  #: none, if it is an artist
    key: str


@dataclass(frozen=True)
class Sale:
    """Tickets that were sold; ``key`` is that of their row."""

    sold: int
    key: str


@dataclass(frozen=True)
class Show:
    """What became of a concert, and where."""

    state: State
    venue: str


@dataclass(frozen=True)
class Contents:
    """Everything that the tables hold about one concert."""

    concert: dict[str, Any]
    bookings: list[dict[str, Any]]
    tickets: list[dict[str, Any]]


def database() -> Store:
    """Give this process's connections to the database of the box office. Thread-safe."""
    return _connect(aft.Settings.load().database_url)


def prepare() -> None:
    """Make the tables of the box office exist. Idempotent."""
    with database().write() as connection:
        metadata.create_all(connection)


def plan(concert_id: str) -> None:
    """Take in a concert that somebody wants to organise."""
    with database().write() as connection:
        connection.execute(insert(concerts), {"id": concert_id, "state": State.PLANNED.value, "venue": None})


def book(concert_id: str, kind: str, name: str, key: str) -> Booking:
    """Book a venue or an artist."""
    _write(bookings, {"key": key, "concert_id": concert_id, "kind": kind, "name": name})
    return Booking(name, SEATS.get(name, 0), key)


def cancel(booking: Booking) -> None:
    """Take a booking back."""
    _delete(bookings, booking.key)


def sell(concert_id: str, sold: int, key: str) -> Sale:
    """Write down how many tickets were sold."""
    _write(tickets, {"key": key, "concert_id": concert_id, "sold": sold})
    return Sale(sold, key)


def refund(sale: Sale) -> None:
    """Give everybody the money back."""
    _delete(tickets, sale.key)


def play(concert_id: str, venue: str, season: str) -> Show:
    """Hold the concert, or announce it for a later season; the venue is booked anew if it is another one."""
    show = Show(State.PLAYED if season == THIS_SEASON else State.POSTPONED, venue)
    with database().write() as connection:
        of_venue = (bookings.c.concert_id == concert_id, bookings.c.kind == "venue")
        connection.execute(update(bookings).where(*of_venue).values(name=venue))
        changes = {"state": show.state.value, "venue": venue}
        connection.execute(update(concerts).where(concerts.c.id == concert_id).values(changes))
    return show


def contents(concert_id: str) -> Contents:
    """Read everything that the tables hold about a concert."""
    with database().read() as connection:
        concert = connection.execute(select(concerts).where(concerts.c.id == concert_id)).one()
        return Contents(
            dict(concert._mapping), _rows(connection, bookings, concert_id), _rows(connection, tickets, concert_id)
        )


def _write(table: Table, row: dict[str, Any]) -> None:
    with database().write() as connection:
        if connection.execute(select(table.c.key).where(table.c.key == row["key"])).first() is None:
            connection.execute(insert(table), row)


def _delete(table: Table, key: str) -> None:
    with database().write() as connection:
        connection.execute(delete(table).where(table.c.key == key))


def _rows(connection: Connection, table: Table, concert_id: str) -> list[dict[str, Any]]:
    found = connection.execute(select(table).where(table.c.concert_id == concert_id).order_by(table.c.key))
    return [dict(row._mapping) for row in found]


@functools.cache
def _connect(url: str) -> Store:
    return Store(url)
