"""Detects unprotected transport to PostgreSQL: safe are this machine, and ``sslmode=verify-full``.

Lesser modes of TLS do not verify the server: an attacker in between can pretend to be it, and reads the password and
everything else. What libpq will do counts: its environment variables (``PGHOST``, ``PGSSLMODE``) decide what the URL
leaves open.
"""

from __future__ import annotations

from itertools import zip_longest

from sqlalchemy import URL

from aft.security.loopback import is_loopback

#: The mode that encrypts, and checks both the server's certificate and its name.
SAFE = "verify-full"


def find_exposure(url: URL) -> str | None:
    """Return how others could read the traffic to a database; None if they cannot."""
    if url.get_backend_name() == "sqlite":
        return None
    options = _resolve(url)
    mode = options.get("sslmode") or "prefer"
    if mode == SAFE:
        return None
    if "service" in options:
        return "its URL leaves to a service file where it is"
    far = [host for host in _hosts(options) if not is_loopback(host)]
    return f"{far[0]!r} is another machine, and sslmode is {mode!r}, not {SAFE!r}" if far else None


def _resolve(url: URL) -> dict[str, str]:
    """Return the options that libpq will use: the URL's; for those that it leaves open, libpq's defaults.

    A service file that the URL names overrides the defaults, and is not read here: then only the URL's are returned.
    """
    from psycopg import pq

    _, named = url.get_dialect()().create_connect_args(url)
    options = {name: str(value) for name, value in named.items()}
    if "service" in options:
        return options
    found = {one.keyword.decode(): one.val.decode() for one in pq.Conninfo.get_defaults() if one.val is not None}
    found.pop("service", None)  # what it says is among the defaults
    return found | options


def _hosts(options: dict[str, str]) -> list[str]:
    """Return every host that may be connected to; an address takes precedence over its name."""
    names, addresses = ((options.get(name) or "").split(",") for name in ("host", "hostaddr"))
    return [address or name for name, address in zip_longest(names, addresses, fillvalue="")]
