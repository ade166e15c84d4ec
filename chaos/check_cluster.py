"""Checks the cluster's network: a cut blocks all traffic between the two named ends, and no other traffic.

Of the cluster, this is its network and its balancer, without RabbitMQ: three nodes take a minute. Needs root on Linux,
so it is not among the tests that run everywhere: ``part_broker`` begins with it, and fails with it.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from chaos.cluster import CLIENTS, CONNECT, NODES, PORT, Balancer, Network, NoNamespaces
from tests.servers import has_ended
from tests.setups import eventually

ROOT = Path(__file__).parents[1]

#: A server that sends its own number to whoever connects, and then whatever it is sent.
ECHO = """
import socket, sys, threading
def serve(peer):
    with peer:
        peer.sendall(sys.argv[3].encode())
        while data := peer.recv(100):
            peer.sendall(data)
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""

#: A server that never stops talking, and writes down what it hears.
TALK = """
import socket, sys, threading, time
def talk(peer):
    while True:
        peer.sendall(b".")
        time.sleep(0.02)
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
while True:
    peer = listener.accept()[0]
    threading.Thread(target=talk, args=(peer,), daemon=True).start()
    while data := peer.recv(100):
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
"""


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network()
    try:
        yield made
    finally:
        made.close()


def _listed(*what: str) -> str:
    return subprocess.run(["ip", *what], capture_output=True, text=True, check=True).stdout


@contextmanager
def echoing(network: Network, node: int) -> Iterator[None]:
    """Run an echo server in a node's place."""
    inside = ["ip", "netns", "exec", network.namespace(node), sys.executable, "-c", ECHO]
    process = subprocess.Popen([*inside, network.address(node), str(PORT), str(node)])
    try:
        eventually(lambda: _reach(network.address(node)) == str(node))
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def talking(network: Network, node: int) -> Iterator[Path]:
    """Run a server that sends continually in a node's place; yield the file of what it has received."""
    inside = ["ip", "netns", "exec", network.namespace(node), sys.executable, "-c", TALK]
    with tempfile.NamedTemporaryFile() as heard:
        process = subprocess.Popen([*inside, network.address(node), str(PORT)], stdout=heard, stderr=subprocess.DEVNULL)
        try:
            eventually(lambda: _reach(network.address(node)) == ".")
            yield Path(heard.name)
        finally:
            process.kill()
            process.wait()


def _reach(address: str, port: int = PORT) -> str:
    """Return what this address sends, or how the attempt failed: ``closed``, ``silent`` or ``refused``."""
    try:
        with socket.create_connection((address, port), CONNECT) as peer:
            return peer.recv(1).decode() or "closed"
    except TimeoutError:
        return "silent"
    except OSError:
        return "refused"


def _drain(peer: socket.socket) -> None:
    """Read and discard what has arrived already."""
    peer.setblocking(False)
    with suppress(BlockingIOError):
        while peer.recv(100):
            pass
    peer.settimeout(CONNECT)


def _reach_from(network: Network, source: int, target: int) -> str:
    code = (
        "import socket, sys\n"
        "try: print(socket.create_connection((sys.argv[1], int(sys.argv[2])), 1).recv(1).decode())\n"
        "except TimeoutError: print('silent')\n"
        "except OSError: print('refused')\n"
    )
    inside = ["ip", "netns", "exec", network.namespace(source), sys.executable, "-W", "ignore", "-c", code]
    command = [*inside, network.address(target), str(PORT)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_cut_is_silent_or_told_and_touches_only_the_two_ends_it_names(network: Network) -> None:
    with echoing(network, 0):
        network.cut(0, 1, "blackhole")
        network.cut(0, CLIENTS, "unreachable")
        assert _reach_from(network, 1, 0) == "silent"
        assert _reach_from(network, 2, 0) == "0"
        assert _reach(network.address(0)) == "refused"
        network.heal(0, 1)
        network.heal(0, CLIENTS)
        assert _reach_from(network, 1, 0) == "0"
        assert _reach(network.address(0)) == "0"


def test_nothing_passes_in_either_direction_on_a_connection_that_was_open_before_the_cut(network: Network) -> None:
    with talking(network, 0) as heard, socket.create_connection((network.address(0), PORT), CONNECT) as peer:
        assert peer.recv(1) == b"."
        network.cut(0, CLIENTS, "blackhole")
        peer.sendall(b"x")
        _drain(peer)
        with pytest.raises(TimeoutError):
            peer.recv(1)
        assert heard.read_bytes() == b""
        network.heal(0, CLIENTS)
        peer.settimeout(10)
        assert peer.recv(1) == b"."
        eventually(lambda: heard.read_bytes() == b"x")


def test_closing_a_network_ends_what_runs_in_it_and_leaves_nothing_behind() -> None:
    network = Network()
    inside = ["ip", "netns", "exec", network.namespace(1), "sleep", "600"]
    process = subprocess.Popen(inside)
    eventually(lambda: str(process.pid) in _listed("netns", "pids", network.namespace(1)))
    network.close()
    assert has_ended(process.pid)
    process.wait()
    assert network.namespace(1) not in _listed("netns", "list")
    prefix = network.address(0).rpartition(".")[0]
    assert prefix not in _listed("-4", "route", "show", "table", "all")


def test_what_a_killed_process_left_behind_is_removed_by_the_next_network() -> None:
    code = (
        "import os, signal; from chaos.cluster import Network\n"
        "print(Network().namespace(0), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    command = [sys.executable, "-c", code]
    left = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    assert left
    Network().close()
    assert left not in _listed("netns", "list")


def test_a_machine_that_cannot_make_namespaces_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NoNamespaces, match="iproute2"):
        Network()


def test_the_balancer_goes_past_nodes_that_are_dead_or_silent(network: Network) -> None:
    with ExitStack() as stack:
        for node in (1, 2):
            stack.enter_context(echoing(network, node))
        network.cut(1, CLIENTS, "blackhole")
        balancer = Balancer([network.address(node) for node in range(NODES)])
        stack.callback(balancer.close)
        assert {_reach_patiently(balancer.port) for _ in range(NODES)} == {"2"}
        network.heal(1, CLIENTS)
        assert {_reach_patiently(balancer.port) for _ in range(NODES)} == {"1", "2"}
        balancer.prefer(2)
        assert {_reach_patiently(balancer.port) for _ in range(NODES)} == {"2"}


def test_connections_to_a_node_that_is_not_preferred_are_lost(network: Network) -> None:
    with ExitStack() as stack:
        stack.enter_context(echoing(network, 0))
        balancer = Balancer([network.address(node) for node in range(NODES)])
        stack.callback(balancer.close)
        with socket.create_connection(("127.0.0.1", balancer.port), 5) as client:
            assert client.recv(1) == b"0"
            balancer.prefer(1)
            assert client.recv(1) == b""


def _reach_patiently(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), 5 * CONNECT) as peer:
        return peer.recv(1).decode() or "closed"
