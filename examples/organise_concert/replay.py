"""What ``aft replay`` needs of this example: setup of a scenario, the state of its tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import box_office
from .box_office import SEATS, Contents, State
from .flow import organise_concert

flow = organise_concert
prepare = box_office.prepare


def set_up(subject: str, scene: Mapping[str, Any]) -> dict[str, Any]:
    """Plan a concert of that name; return the flow's arguments."""
    box_office.plan(subject)
    return {"concert_id": subject, "artist": "The Ripples"}


def read_state(subject: str) -> tuple[str, Contents]:
    """Say how the concert stands, and where, if all tables agree; and give everything that they hold about it."""
    found = box_office.contents(subject)
    state, venue = State(found.concert["state"]), found.concert["venue"]
    booked = {row["kind"]: row["name"] for row in found.bookings}
    if state is State.PLANNED and not found.bookings and not found.tickets:
        return state.value, found
    (sold,) = [row["sold"] for row in found.tickets] or [0]
    if state is not State.PLANNED and booked == {"venue": venue, "artist": "The Ripples"} and sold <= SEATS[venue]:
        return f"{state.value}, {venue}", found
    return f"{state.value} in {venue}, but {booked} are booked and {sold} tickets sold", found


def find_hanging_process(subject: str) -> int | None:
    """Nobody hangs in this example."""
    return None
