"""Organising a concert: the flow, its activities, and how each is undone.

It books the stadium and the artist, waits until the sale of tickets is closed, and has the show done. What is to be
done when too few tickets were sold is nowhere here: the rules in ``rules/`` say it, and people change them while
concerts are being organised.
"""

from __future__ import annotations

import aft

from . import box_office
from .box_office import THIS_SEASON, Booking, Sale, Show

#: Short, so that a replay is over soon. A hall that is really busy gets hours.
of_box_office = aft.activity(levels=[aft.Level("200ms", tries=2)], recoverable=(ConnectionError,))


def cancel_venue(result: Booking) -> None:
    """Give the hall back, whichever it is by now."""
    box_office.cancel(result)


def cancel_artist(result: Booking) -> None:
    """Let the artist go."""
    box_office.cancel(result)


def refund_tickets(result: Sale) -> None:
    """Give everybody the money back."""
    box_office.refund(result)


@aft.compensate_with(cancel_venue)
@of_box_office
def book_venue(concert_id: str, venue: str) -> Booking:
    """Book a hall."""
    return box_office.book(concert_id, "venue", venue, aft.current().key)


@aft.compensate_with(cancel_artist)
@of_box_office
def book_artist(concert_id: str, artist: str) -> Booking:
    """Book the artist."""
    return box_office.book(concert_id, "artist", artist, aft.current().key)


@aft.compensate_with(refund_tickets)
@of_box_office
def sell_tickets(concert_id: str, sold: int) -> Sale:
    """Close the sale, and take the money."""
    return box_office.sell(concert_id, sold, aft.current().key)


@of_box_office
def do_show(concert_id: str, venue: str, seats: int, sold: int, season: str = THIS_SEASON) -> Show:
    """Hold the concert in this venue. What was played cannot be undone; rules are asked before."""
    return box_office.play(concert_id, venue, season)


@aft.flow(signals={"sales_closed": int})
def organise_concert(concert_id: str, artist: str, venue: str = "stadium") -> Show:
    """Bring a planned concert to its end; ``sales_closed`` says how many tickets were sold, in weeks or months."""
    hall = book_venue(concert_id, venue)
    book_artist(concert_id, artist)
    sold = aft.wait_for("sales_closed", int)
    sell_tickets(concert_id, sold)
    return do_show(concert_id, hall.name, hall.seats, sold)
