"""How long does one wait at a station of several servers? Erlang's formula; the exact simulation is held against it."""

from __future__ import annotations

import math


def must_wait(servers: int, offered: float) -> float:
    """The share of those who find all servers busy (M/M/c); ``offered`` is how many servers the load would fill."""
    if offered >= servers:
        return 1.0
    blocked = 1.0
    for number in range(1, servers + 1):
        blocked = offered * blocked / (number + offered * blocked)
    return blocked / (1 - offered / servers * (1 - blocked))


def mean_wait(servers: int, service: float, rate: float) -> float:
    """Seconds that one waits on average before being served."""
    offered = rate * service
    return must_wait(servers, offered) * service / (servers - offered) if offered < servers else math.inf


def wait_within(share: float, servers: int, service: float, rate: float) -> float:
    """The wait that this share of all does not exceed."""
    offered = rate * service
    waiting = must_wait(servers, offered)
    if waiting <= 1 - share:
        return 0.0
    return math.log(waiting / (1 - share)) * service / (servers - offered) if offered < servers else math.inf
