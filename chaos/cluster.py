"""A private RabbitMQ cluster of three nodes that can be killed, and cut off from one another or from clients.

Each node lives in a network namespace of its own; a fourth one routes between them, and to this machine::

    clients ── balancer ── 10.231.N.254 ──┐
                                          │
    node 0 ── 10.231.N.1 ── [ hub: routes, and rules that let nothing through ]
    node 1 ── 10.231.N.2 ─────────────────┤
    node 2 ── 10.231.N.3 ─────────────────┘

So a cut is one rule in the hub for each direction, and nothing of it shows on the machine itself. No packet
leaves the machine; whatever runs in the namespaces is ours and ends with them. What a run that was itself
killed left behind is removed by the next.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Final, Literal, Self

from tests.servers import PATIENCE, PrivateRabbit, ServerFailed, end_process, has_ended
from tests.setups import eventually

Handling = Literal["pause_minority", "autoheal", "ignore"]
#: What a cut does to packets: they vanish, or their sender is told.
Action = Literal["blackhole", "unreachable"]

NODES: Final = 3
#: The end of the network that is not a node: whoever connects from this machine.
CLIENTS: Final = -1
#: AMQP's own port; each node has its own address, so all can use it.
PORT: Final = 5672
#: Seconds after which a node takes a silent one for dead, plus or minus a quarter. RabbitMQ's default is 60:
#: it would sleep through most of what is done to it here. Much less, and a busy machine looks like a dead node.
TICK: Final = 8
#: Seconds the balancer gives a node to accept a connection before it tries the next.
CONNECT: Final = 1.0

_PREFIX: Final = "aft-cluster"


class NoNamespaces(Exception):
    """Raised when network namespaces cannot be created; names what is missing."""


class Network:
    """The network namespaces of the nodes and of their hub. ``close`` ends every process in them."""

    def __init__(self) -> None:
        _check_namespaces()
        _remove_left_behind()
        self._hub = f"{_PREFIX}-{os.getpid()}-{random.getrandbits(32):08x}-hub"
        self._number: int | None = None
        self._cuts: set[tuple[int, int, Action]] = set()
        try:
            self._connect_machine()
            for node in range(NODES):
                self._connect_node(node)
        except BaseException:
            self.close()
            raise

    def namespace(self, node: int) -> str:
        """Return the name of a node's namespace."""
        return self._hub.removesuffix("hub") + str(node)

    def address(self, end: int) -> str:
        """Return the address of a node, or of the clients."""
        return f"10.231.{self._number}.{254 if end == CLIENTS else end + 1}"

    def cut(self, one: int, other: int, action: Action) -> None:
        """Block all traffic between two ends, in both directions. Idempotent."""
        for source, target in ((one, other), (other, one)):
            if not any((source, target, each) in self._cuts for each in ("blackhole", "unreachable")):
                self._rule("add", source, target, action)
                self._cuts.add((source, target, action))

    def heal(self, one: int, other: int) -> None:
        """Restore the traffic between two ends. Idempotent."""
        for source, target, action in list(self._cuts):
            if {source, target} == {one, other}:
                self._rule("del", source, target, action)
                self._cuts.discard((source, target, action))

    def reset(self, node: int, other: int) -> None:
        """Close the connections between two nodes as if either had reset them."""
        for here, there in ((node, other), (other, node)):
            inside = ("ip", "netns", "exec", self.namespace(here))
            _run(*inside, "ss", "-K", "-tn", "dst", self.address(there))

    def close(self) -> None:
        """End every process in the namespaces, and remove them. Idempotent."""
        if self._number is not None:  # else the kernel removes it with the hub, but takes its time
            with contextlib.suppress(ServerFailed):
                _ip("link", "del", f"aft{self._number}")
        _remove(self._hub.removesuffix("hub"))

    def _connect_machine(self) -> None:
        """Create the hub, and its link to this machine with an unused range of addresses."""
        _ip("netns", "add", self._hub)
        _ip("-n", self._hub, "link", "set", "lo", "up")
        forward = ("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        _run("ip", "netns", "exec", self._hub, *forward)
        self._number = number = self._take_range()
        link, gateway, clients = f"aft{number}", f"10.231.{number}.253", self.address(CLIENTS)
        _ip("-n", self._hub, "addr", "add", f"{gateway}/32", "dev", "lo")
        _ip("-n", self._hub, "link", "set", "machine", "up")
        _ip("-n", self._hub, "route", "add", f"{clients}/32", "dev", "machine")
        _ip("addr", "add", f"{clients}/32", "dev", link)
        _ip("link", "set", link, "up")
        _ip("route", "add", f"{gateway}/32", "dev", link, "src", clients)
        _ip("route", "add", f"10.231.{number}.0/29", "via", gateway, "dev", link, "src", clients)

    def _take_range(self) -> int:
        """Reserve an unused number for the range of addresses, by creating the link of that name."""
        taken = _ip("-4", "route", "show", "table", "all")
        for number in random.sample(range(1, 255), 254):
            if f"10.231.{number}." in taken:
                continue
            with contextlib.suppress(ServerFailed):  # another cluster was faster
                _ip("link", "add", f"aft{number}", "type", "veth", "peer", "name", "machine", "netns", self._hub)
                return number
        raise NoNamespaces("every range of 10.231.0.0/16 is taken on this machine")

    def _connect_node(self, node: int) -> None:
        name, link, gateway = self.namespace(node), f"node{node}", f"10.231.{self._number}.253"
        _ip("netns", "add", name)
        _ip("link", "add", "name", "eth0", "netns", name, "type", "veth", "peer", "name", link, "netns", self._hub)
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "addr", "add", f"{self.address(node)}/32", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "route", "add", "default", "via", gateway, "dev", "eth0", "onlink")
        _ip("-n", self._hub, "link", "set", link, "up")
        _ip("-n", self._hub, "route", "add", f"{self.address(node)}/32", "dev", link)

    def _rule(self, change: str, source: int, target: int, action: Action) -> None:
        ends = ("from", self.address(source), "to", self.address(target))
        _ip("-n", self._hub, "rule", change, *ends, action)


class Node(PrivateRabbit):
    """One node of the cluster, in its own namespace; it can be killed and started again."""

    def __init__(self, directory: Path, network: Network, number: int, *, handling: Handling, cookie: str) -> None:
        super().__init__(directory)
        self.port = PORT
        self._network = network
        self._number = number
        self._handling = handling
        self._cookie = cookie

    @property
    def address(self) -> str:
        """Its address, which this machine and the other nodes can reach."""
        return self._network.address(self._number)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self.address}:{PORT}/"

    @property
    def _node(self) -> str:
        return f"aft@{self.address}"  # an address needs no name server

    def is_ready(self) -> bool:
        if self.pid is None:
            return False
        with contextlib.suppress(OSError), socket.create_connection((self.address, PORT), CONNECT) as peer:
            peer.settimeout(5)
            peer.sendall(b"AMQP\0\0\x09\x01")
            return bool(peer.recv(1))
        return False

    def ctl(self, *arguments: str) -> str:
        """Run rabbitmqctl against this node, in its namespace."""
        command = self._inside(self._script("rabbitmqctl"), "-q", "--longnames", "-n", self._node, *arguments)
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise ServerFailed(f"rabbitmqctl {' '.join(arguments)} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def evaluate(self, code: str) -> str:
        """Evaluate Erlang on this node; with erl_call if it is installed, which is a hundred times faster."""
        quick = shutil.which("erl_call")
        if quick is None:
            return self.ctl("eval", code)
        command = self._inside(quick, "-r", "-name", self._node, "-timeout", "10", "-e")
        done = subprocess.run(
            command, env=self._env, input=f"{code}\n", capture_output=True, text=True, timeout=30, check=False
        )
        if done.returncode or not done.stdout.startswith("{ok,"):
            raise ServerFailed(f"{self._node} did not evaluate {code}: {done.stdout}{done.stderr}")
        return done.stdout

    @property
    def _env(self) -> dict[str, str]:
        quiet = "+sbwt none +sbwtdcpu none +sbwtdio none"  # three nodes that wait busily would take the machine
        return super()._env | {
            "RABBITMQ_USE_LONGNAME": "true",
            "RABBITMQ_NODE_IP_ADDRESS": self.address,
            "RABBITMQ_DIST_PORT": "25672",
            "ERL_EPMD_PORT": "4369",
            "ERL_EPMD_ADDRESS": self.address,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-kernel net_ticktime {TICK} +S 1:1 {quiet}",
        }

    def _prepare(self) -> None:
        super()._prepare()
        cookie = self.directory / ".erlang.cookie"
        cookie.chmod(0o600)
        cookie.write_text(self._cookie)
        cookie.chmod(0o400)
        others = [
            f"cluster_formation.classic_config.nodes.{node + 1} = aft@{self._network.address(node)}"
            for node in range(NODES)
        ]
        lines = [
            f"listeners.tcp.1 = {self.address}:{PORT}",
            "loopback_users = none",
            "log.console = true",
            "log.file = false",
            f"cluster_partition_handling = {self._handling}",
            "cluster_formation.peer_discovery_backend = classic_config",
            # One that was killed waits for the others; the default gives up after a few minutes, and that is
            # longer than any of them stays away.
            "mnesia_table_loading_retry_timeout = 5000",
            "mnesia_table_loading_retry_limit = 60",
            *others,
        ]
        (self.directory / "rabbitmq.conf").write_text("\n".join(lines) + "\n")

    def _launch(self) -> int:
        (self.directory / "rabbit.pid").unlink(missing_ok=True)
        return self._spawn(self._inside(self._script("rabbitmq-server")), env=self._env)

    def _inside(self, *command: str) -> list[str]:
        return ["ip", "netns", "exec", self._network.namespace(self._number), *command]

    def _end_epmd(self) -> None:
        """Do nothing: the port mapper outlives a crashed node, and ends with the namespace."""


class Balancer:
    """A load balancer before the cluster: forwards each new connection to a node that accepts it.

    Nodes take turns, but one can be preferred. A connection stays with its node until either side ends it.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._preferred: int | None = None
        self._turns = count()
        self._lock = threading.Lock()
        self._pairs: dict[tuple[socket.socket, socket.socket], int] = {}
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="balancer", daemon=True)
        self._thread.start()

    def prefer(self, node: int | None) -> None:
        """Try this node first for new connections, and close those to the others; None: no preference."""
        self._preferred = node
        if node is not None:
            self.drop(other for other in range(len(self._addresses)) if other != node)

    def drop(self, nodes: Iterable[int]) -> None:
        """Close the connections to these nodes."""
        unwanted = set(nodes)
        with self._lock:
            found = [pair for pair, node in self._pairs.items() if node in unwanted]
        for pair in found:
            _shut(*pair)

    def close(self) -> None:
        """Stop listening and close every connection. Idempotent."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)
        self.drop(range(len(self._addresses)))

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        found = self._connect()
        if found is None:
            client.close()
            return
        node, server = found
        pair = (client, server)
        with self._lock:
            self._pairs[pair] = node
        back = threading.Thread(target=_pump, args=(server, client), daemon=True)
        back.start()
        _pump(client, server)
        back.join()
        with self._lock:
            del self._pairs[pair]
        client.close()
        server.close()

    def _connect(self) -> tuple[int, socket.socket] | None:
        for node in self._order():
            with contextlib.suppress(OSError):
                server = socket.create_connection((self._addresses[node], PORT), CONNECT)
                server.settimeout(None)
                return node, server
        return None

    def _order(self) -> list[int]:
        nodes = range(len(self._addresses))
        first = next(self._turns) if self._preferred is None else self._preferred
        return [(first + step) % len(nodes) for step in nodes]


class Cluster:
    """Three nodes, the network between them, and a balancer before them. A context manager.

    A node is meant by its number, from 0. Everything that is started is ended by ``stop``.
    """

    def __init__(self, *, handling: Handling = "pause_minority") -> None:
        self._handling: Handling = handling
        self._directory = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}-{os.getpid()}-"))
        self._directory.chmod(0o755)
        self._network: Network | None = None
        self._balancer: Balancer | None = None
        self._nodes: list[Node] = []

    @property
    def url(self) -> str:
        """The URL that clients connect to, which is the balancer's."""
        assert self._balancer is not None, "the cluster was not started"
        return f"amqp://guest:guest@127.0.0.1:{self._balancer.port}/"

    @property
    def urls(self) -> list[str]:
        """The URL of each node itself."""
        return [node.url for node in self._nodes]

    def start(self) -> None:
        """Start three nodes as one cluster; return when they are ready. Raises NoNamespaces."""
        self._network = Network()
        cookie = f"aft{random.getrandbits(64):x}"
        self._nodes = [
            Node(self._directory / str(each), self._network, each, handling=self._handling, cookie=cookie)
            for each in range(NODES)
        ]
        self._nodes[0].start()  # alone, so that the others find a cluster to join
        self._each(range(1, NODES), Node.start)
        self._balancer = Balancer([node.address for node in self._nodes])
        self.wait_ready()

    def stop(self) -> None:
        """Stop everything, and remove every trace of it. Idempotent; also after a failed start."""
        if self._balancer is not None:
            self._balancer.close()
        for node in self._nodes:
            node.kill()
        if self._network is not None:
            self._network.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- what is done to it ---

    def kill(self, *nodes: int) -> None:
        """Kill nodes without a shutdown; their data stays."""
        self._each(nodes, Node.kill)

    def shut_down(self, node: int) -> None:
        """Stop a node gracefully."""
        self._nodes[node].stop()

    def restart(self, *nodes: int) -> None:
        """Start nodes that were stopped, with their data; return when they accept clients.

        All that were killed together start together: one alone would wait for those that knew more.
        """
        self._each(nodes, Node.start)

    def cut(self, node: int, *, peers: bool = True, clients: bool = False, silent: bool = True) -> None:
        """Cut a node off from the other nodes, from clients, or from both.

        Silent: packets vanish, and the others learn of it by waiting. Else connections break and new ones are
        refused at once.
        """
        action: Action = "blackhole" if silent else "unreachable"
        others = [other for other in range(NODES) if other != node] if peers else []
        for other in others:
            self._the_network.cut(node, other, action)
            if not silent:
                self._the_network.reset(node, other)
        if clients:
            self._the_network.cut(node, CLIENTS, action)
            if not silent and self._balancer is not None:
                self._balancer.drop([node])

    def heal(self, *nodes: int) -> None:
        """Restore all connections of these nodes, also those to nodes that are still cut off."""
        for node in nodes:
            for end in (CLIENTS, *range(NODES)):
                self._the_network.heal(node, end)

    def prefer(self, node: int | None) -> None:
        """Route clients to this node as long as it accepts them; None: nodes take turns."""
        assert self._balancer is not None, "the cluster was not started"
        self._balancer.prefer(node)

    # --- what is known of it ---

    def leader_of(self, queue: str, *, ask: int | None = None) -> int:
        """Return the node that leads a quorum queue, or hosts a classic one. Raises ServerFailed.

        Asked is the first node that answers, or the one given.
        """
        code = (
            f'{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{queue}">>)), '
            "case amqqueue:get_pid(Q) of {_, Node} -> Node; Pid -> node(Pid) end."
        )
        answer = self._ask(lambda node: node.evaluate(code), ask)
        found = self._named(answer)
        if len(found) != 1:
            raise ServerFailed(f"who leads {queue!r}? {answer}")
        return found.pop()

    def sees(self, node: int) -> set[int]:
        """Return the nodes that a node is connected with, and itself; none if it has ended or was paused."""
        code = "case rabbit:is_running() of true -> [node() | nodes()]; false -> [] end."
        try:
            return self._named(self._nodes[node].evaluate(code))
        except (ServerFailed, subprocess.TimeoutExpired):
            return set()

    def wait_ready(self, within: float = PATIENCE) -> None:
        """Return when every node accepts clients, and sees all others running."""
        eventually(lambda: not self.unwell(), within=within)

    def unwell(self) -> list[int]:
        """Return the nodes that keep the cluster from being complete; empty if it is.

        Those are the ones that accept no clients, or else all that miss another.
        """
        closed = [number for number, node in enumerate(self._nodes) if not node.is_ready()]
        return closed or [number for number in range(NODES) if not self._is_whole(number)]

    def log(self, node: int) -> str:
        """Return the last lines of a node's log."""
        return self._nodes[node].log()

    @property
    def _the_network(self) -> Network:
        assert self._network is not None, "the cluster was not started"
        return self._network

    def _is_whole(self, node: int) -> bool:
        """Whether a node sees all others running, and knows of no partition that was not healed."""
        code = "{length(rabbit_nodes:all_running()), length(rabbit_node_monitor:partitions())}."
        try:
            return f"{{{NODES},0}}" in self._nodes[node].evaluate(code).replace(" ", "")
        except (ServerFailed, subprocess.TimeoutExpired):
            return False

    def _named(self, answer: str) -> set[int]:
        """Return the nodes that are named in a node's output."""
        names = set(re.findall(r"aft@([\d.]+\d)", answer))
        return {number for number, node in enumerate(self._nodes) if node.address in names}

    def _ask(self, question: Callable[[Node], str], ask: int | None) -> str:
        asked = [self._nodes[ask]] if ask is not None else [node for node in self._nodes if node.is_ready()]
        problem: Exception = ServerFailed("no node accepts clients")
        for node in asked:
            try:
                return question(node)
            except (ServerFailed, subprocess.TimeoutExpired) as error:
                problem = error
        raise ServerFailed(str(problem)) from problem

    def _each(self, nodes: Iterable[int], action: Callable[[Node], None]) -> None:
        with ThreadPoolExecutor(NODES) as pool:
            list(pool.map(action, [self._nodes[node] for node in nodes]))


def _check_namespaces() -> None:
    """Raise NoNamespaces, which names what is missing, before anything is created."""
    for program in ("ip", "ss"):
        if shutil.which(program) is None:
            raise NoNamespaces(f"a cluster needs {program!r}: apt-get install iproute2")
    probe = f"{_PREFIX}-{os.getpid()}-{random.getrandbits(32):08x}-probe"
    try:
        _ip("netns", "add", probe)
        _ip("-n", probe, "rule", "add", "from", "10.231.0.1", "to", "10.231.0.2", "blackhole")
    except ServerFailed as error:
        raise NoNamespaces(f"a cluster needs network namespaces, and so root on Linux: {error}") from error
    finally:
        subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)


def _remove_left_behind() -> None:
    """Remove the namespaces and the directories of processes that have ended."""
    for name in _namespaces():
        if _is_left_behind(name):
            with contextlib.suppress(ServerFailed):  # another process was faster
                _remove(name)
    for directory in Path(tempfile.gettempdir()).glob(f"{_PREFIX}-*"):
        if _is_left_behind(directory.name):
            shutil.rmtree(directory, ignore_errors=True)


def _is_left_behind(name: str) -> bool:
    found = re.match(rf"{_PREFIX}-(\d+)-", name)
    return found is not None and int(found[1]) != os.getpid() and has_ended(int(found[1]))


def _remove(prefix: str) -> None:
    for name in _namespaces():
        if name.startswith(prefix):
            for pid in _ip("netns", "pids", name).split():
                end_process(int(pid), signal.SIGKILL)
            _ip("netns", "del", name)


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _ip("netns", "list").splitlines() if line]


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise ServerFailed(f"{' '.join(command)} failed: {done.stdout}{done.stderr}".strip())
    return done.stdout


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    _shut(source, sink)


def _shut(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
