"""The ``list`` of a noun: what is there as a table or as JSON, or a sentence that nothing is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from aft.app import Aft
from aft.cli.application import NoDatabase, open_for_reading
from aft.cli.options import ConnectionOptions
from aft.cli.show.output import print_json, print_message

T = TypeVar("T")


def print_listing(
    given: ConnectionOptions,
    read: Callable[[Aft], tuple[list[T], str]],
    *,
    as_json: bool,
    document: Callable[[T], Any],
    table: Callable[[list[T]], None],
    nothing: str,
    limit: int | None = None,
) -> None:
    """Print what ``read`` returns, or the sentence that it returns with it, if that is nothing.

    Where there is no database yet, it is ``nothing`` and the reason. A ``limit`` is of the newest.
    """
    try:
        with open_for_reading(given) as app:
            app.check()
            found, none = read(app)
    except NoDatabase as error:
        found, none = [], f"{nothing}: {error}."
    if as_json:
        print_json([document(one) for one in found])
    elif not found:
        print_message(none)
    else:
        table(found)
        if len(found) == limit:
            print_message(f"The newest {limit}; --limit shows more.")
