"""Which receivers may notices be sent to, and at which addresses are they?

A rule's URL may come from somebody who may teach rules, and may reach nothing else from here. So addresses that only
this network knows (private, loopback, link-local: also that of a cloud's metadata) are refused, unless an operator has
listed their host. Where hosts are listed, there are no others.

A name is resolved once, and the connection goes to an address that was looked at: who controls the name cannot answer
one look with a harmless address and the next with another.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

#: IPv6 addresses that stand for IPv4 ones behind a translator.
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
#: The same behind a translator of this network's own.
_TRANSLATED_HERE = ipaddress.ip_network("64:ff9b:1::/48")
#: Where clouds answer their own machines, at addresses that look public.
_METADATA = frozenset({"168.63.129.16", "192.0.0.192"})


class ReceiverRefused(ValueError):
    """Raised for a receiver that notices must not be sent to. Says why, and what to do."""


class Receivers:
    """The hosts that notices may be sent to. Thread-safe.

    ``listed`` are names (``*.example.com`` for all below one) and addresses; none: every host with a public address.
    ``trusted`` are hosts besides, which the settings themselves name.
    """

    def __init__(self, listed: Sequence[str] = (), trusted: Sequence[str] = ()) -> None:
        self._listed = [_normal(host) for host in listed]
        self._trusted = [_normal(host) for host in trusted]

    def find(self, host: str, port: int) -> list[str]:
        """Resolve a host and return the addresses that may be connected to.

        Raises ReceiverRefused, or OSError if the name is not known.
        """
        name = _normal(host)
        is_known = any(_fits(name, each) for each in (*self._listed, *self._trusted))
        if self._listed and not is_known:
            raise ReceiverRefused(f"{host!r} is none of the hosts in AFT_WEBHOOK_HOSTS; add it there if it is meant")
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(info[4][0]) for info in infos))
        allowed = addresses if is_known else [each for each in addresses if _is_public(each)]
        if not allowed:
            where = f"{host!r} is at {addresses[0]}, which is no public address"
            raise ReceiverRefused(f"{where}; if it is meant, list it in AFT_WEBHOOK_HOSTS")
        return allowed


def _normal(host: str) -> str:
    return host.strip().lower().rstrip(".").strip("[]")


def _fits(name: str, pattern: str) -> bool:
    return name.endswith(pattern[1:]) if pattern.startswith("*.") else name == pattern


def _is_public(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour
        if found in _TRANSLATED:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFF_FFFF)
        if inner is not None:
            return _is_public(str(inner))
        if found.is_site_local or found in _TRANSLATED_HERE:
            return False
    return found.is_global and not found.is_multicast and address not in _METADATA
