"""Decides which receivers notices may be sent to, and resolves their addresses.

A rule's URL may come from a person who may teach rules but may reach nothing else from here (SSRF). So addresses that
only this network knows (private, loopback, link-local, and cloud metadata) are refused, unless an operator has listed
their host. If hosts are listed, all others are refused. A URL that the settings themselves name is sent to in any case;
that says nothing of its host's other ports and paths.

A name is resolved once, and the connection goes to an address that was checked: DNS rebinding, a harmless address for
the check and another for the connection, has no effect.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from aft.runs.records.notices import spell_host

#: IPv6 addresses that stand for IPv4 ones behind a translator.
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
#: The IPv6 addresses that are given out, and those among them that are not for hosts of the internet: assignments of
#: the IETF (with Teredo and ORCHID), and two ranges for documentation. All others are reserved, or of one network.
_GIVEN_OUT = ipaddress.ip_network("2000::/3")
_NOT_HOSTS = tuple(map(ipaddress.ip_network, ("2001::/23", "2001:db8::/32", "3fff::/20")))
#: IPv4 addresses that Python takes for global: assignments of the IETF, relays of 6to4, and a cloud's metadata service.
_INNER_IPV4 = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32")))


class ReceiverRefused(ValueError):
    """Raised for a receiver that notices must not be sent to. Its text says why, and what to do."""


class Receivers:
    """The hosts that notices may be sent to. Thread-safe.

    ``listed`` are names (``*.example.com`` for all below one) and addresses; empty: every host with a public address.
    ``trusted`` are URLs that the settings themselves name, as ``check_url`` returns them: exactly these are allowed
    wherever they lead.
    """

    def __init__(self, listed: Sequence[str] = (), trusted: Sequence[str] = ()) -> None:
        self._listed = [_normal(host) for host in listed]
        self._trusted = frozenset(trusted)

    def find(self, host: str, port: int, url: str) -> list[str]:
        """Resolve the host of a URL and return the addresses that may be connected to for it.

        Raises ReceiverRefused, or OSError if the name cannot be resolved.
        """
        name = _normal(host)
        is_known = url in self._trusted or any(_fits(name, each) for each in self._listed)
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
    return spell_host(host.strip().strip("[]")).rstrip(".")


def _fits(name: str, pattern: str) -> bool:
    return name.endswith(pattern[1:]) if pattern.startswith("*.") else name == pattern


def _is_public(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv4Address):
        return _is_public_ipv4(found)
    inner = found.ipv4_mapped or found.sixtofour
    if found in _TRANSLATED:
        inner = ipaddress.IPv4Address(int(found) & 0xFFFF_FFFF)
    if inner is not None:
        return _is_public_ipv4(inner)
    return found in _GIVEN_OUT and found.is_global and not any(found in network for network in _NOT_HOSTS)


def _is_public_ipv4(found: ipaddress.IPv4Address) -> bool:
    return found.is_global and not found.is_multicast and not any(found in network for network in _INNER_IPV4)
