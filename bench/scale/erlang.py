"""Erlang's formula for the wait at several servers; the exact simulation is compared with it."""

from __future__ import annotations

import math


def must_wait(servers: int, offered: float) -> float:
    """Return the share of arrivals that find all servers busy (M/M/c); ``offered`` is the load in servers."""
    if offered >= servers:
        return 1.0
    blocked = 1.0
    for number in range(1, servers + 1):
        blocked = offered * blocked / (number + offered * blocked)
    return blocked / (1 - offered / servers * (1 - blocked))


def mean_wait(servers: int, service: float, rate: float) -> float:
    """Return the mean wait before service, in seconds."""
    offered = rate * service
    return must_wait(servers, offered) * service / (servers - offered) if offered < servers else math.inf


def wait_within(share: float, servers: int, service: float, rate: float) -> float:
    """Return the wait that this share of arrivals does not exceed."""
    offered = rate * service
    waiting = must_wait(servers, offered)
    if waiting <= 1 - share:
        return 0.0
    return math.log(waiting / (1 - share)) * service / (servers - offered) if offered < servers else math.inf
