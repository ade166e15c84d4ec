"""Does a line stay on this machine? Then nobody on the way can read or change what is said."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine by its very name: ``localhost``, a loopback address, or a local socket."""
    name = host.strip("[]").rstrip(".").lower()
    if not name or name.startswith(("/", "@")):
        return True
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
