"""Recognises hosts on this machine: connections to them cannot be read or changed on the way."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine by its very name: ``localhost``, a loopback address, or a local socket."""
    name = host.strip("[]").rstrip(".").lower()
    if not name or name.startswith(("/", "@")):
        return True
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
