"""Private servers: PostgreSQL and RabbitMQ processes that a test may kill, restart and wipe.

Each lives in a directory of its own, listens on free ports of 127.0.0.1, and is ended by its process id. No
other server is ever touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Self

#: Seconds a server may take to be ready, on a machine that does much else.
PATIENCE = 120.0

#: Popen objects of servers that outlive the code that started them; without a reference Python would
#: complain.
_STARTED: list[subprocess.Popen[bytes]] = []


class ServerFailed(Exception):
    """Raised when a private server does not start; the text ends with its log."""


class PrivateServer(ABC):
    """A server process in a directory of its own; a context manager that starts and removes it."""

    name: ClassVar[str]
    #: Consecutive ports that it needs.
    ports: ClassVar[int]

    def __init__(self, directory: Path | None = None) -> None:
        if directory is None:
            directory = Path(tempfile.mkdtemp(prefix=f"aft-{self.name}-"))
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o755)  # another user may have to read it
        self.directory = directory
        self.pid, self.port = self._remembered()

    @property
    @abstractmethod
    def url(self) -> str:
        """Where to connect to."""

    def start(self) -> None:
        """Start it, with the data it had, and return when it answers."""
        self._prepare()
        deadline = time.monotonic() + PATIENCE
        while not self.is_ready():
            if self.pid is None or has_ended(self.pid):
                self.pid = self._launch()  # also when it died of what a crash left behind
                self._remember()
            if time.monotonic() > deadline:
                self.kill()
                raise ServerFailed(f"{self.name} did not become ready:\n{self.log()}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Shut it down in order; the data stays. Harmless when it is not running."""
        self._end(self._stop_signal)

    def kill(self) -> None:
        """End it as a power cut would (SIGKILL); the data stays."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Shut it down and start it again, with its data, on the same port."""
        self.stop()
        self.start()

    def wipe(self) -> None:
        """End it and start it again, empty."""
        self.kill()
        shutil.rmtree(self._data)
        self.start()

    def remove(self) -> None:
        """End it and remove its directory."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def log(self) -> str:
        """Return the last lines of what it said."""
        path = self.directory / "server.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-25:]) if path.exists() else "(no log)"

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it answers."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    _stop_signal: ClassVar[signal.Signals]

    @property
    @abstractmethod
    def _data(self) -> Path: ...

    @abstractmethod
    def _prepare(self) -> None: ...

    @abstractmethod
    def _launch(self) -> int: ...

    def _spawn(self, command: list[str], *, env: dict[str, str], user: str | None = None) -> int:
        with (self.directory / "server.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                env=env,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=user,
                group=user,
                extra_groups=[] if user else None,
            )
        _STARTED.append(process)
        return process.pid

    def _end(self, how: signal.Signals) -> None:
        if self.pid is None:
            return
        end_process(self.pid, how)
        for process in _STARTED:
            process.poll()  # so that Python knows, too
        self.pid = None
        self._remember()

    def _remember(self) -> None:
        self._state.write_text(json.dumps({"pid": self.pid, "port": self.port}))

    def _remembered(self) -> tuple[int | None, int]:
        if self._state.exists():
            state = json.loads(self._state.read_text())
            return state["pid"], state["port"]
        return None, free_ports(self.ports)

    @property
    def _state(self) -> Path:
        return self.directory / "server.json"


class PrivatePostgres(PrivateServer):
    """A PostgreSQL server that trusts everybody on this machine; ``fsync`` off only where nothing crashes."""

    name = "postgresql"
    ports = 1
    _stop_signal = signal.SIGINT

    def __init__(self, directory: Path | None = None, *, fsync: bool = True) -> None:
        super().__init__(directory)
        self._fsync = fsync
        self._user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root

    @property
    def url(self) -> str:
        return f"postgresql://aft@127.0.0.1:{self.port}/postgres"

    @staticmethod
    def binaries() -> Path | None:
        """Where initdb and postgres are installed, the newest version; None if they are not."""
        installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
        on_path = shutil.which("postgres")
        places = [*([Path(on_path).resolve().parent] if on_path else []), *installed]
        return next((place for place in reversed(places) if (place / "initdb").exists()), None)

    def is_ready(self) -> bool:
        if self.pid is None:
            return False
        ask = [str(self._bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(ask, check=False).returncode == 0

    @property
    def _bin(self) -> Path:
        found = self.binaries()
        if found is None:
            raise ServerFailed("PostgreSQL is not installed")
        return found

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _prepare(self) -> None:
        if self._user:
            owner = pwd.getpwnam(self._user)
            os.chown(self.directory, owner.pw_uid, owner.pw_gid)
        if (self._data / "PG_VERSION").exists():
            return
        made = subprocess.run(
            [
                *(str(self._bin / "initdb"), "-D", str(self._data), "-U", "aft", "-A", "trust"),
                *("-E", "UTF8", "--locale=C.UTF-8", "--no-sync"),
            ],
            cwd=self.directory,
            user=self._user,
            group=self._user,
            extra_groups=[] if self._user else None,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise ServerFailed(f"initdb failed: {made.stdout}{made.stderr}")

    def _launch(self) -> int:
        settings = ["listen_addresses=127.0.0.1", f"unix_socket_directories={self.directory}"]
        if not self._fsync:
            settings += ["fsync=off"]
        command = [str(self._bin / "postgres"), "-D", str(self._data), "-p", str(self.port)]
        command += [part for setting in settings for part in ("-c", setting)]
        return self._spawn(command, env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}, user=self._user)


class PrivateRabbit(PrivateServer):
    """A RabbitMQ node without plugins, user guest, vhost "/"."""

    name = "rabbitmq"
    ports = 3
    _stop_signal = signal.SIGTERM

    #: Lines of its configuration besides those that it needs; to be set before it starts for the first time.
    settings: Sequence[str] = ()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @staticmethod
    def binaries() -> Path | None:
        """Where the server's own scripts are; None if they are not installed.

        The ones on Debian's PATH are wrappers that change user and directory.
        """
        usual = [Path("/usr/lib/rabbitmq/bin"), Path("/opt/homebrew/sbin"), Path("/usr/local/sbin")]
        return next((place for place in usual if (place / "rabbitmq-server").exists()), None)

    def ctl(self, *arguments: str) -> str:
        """Run rabbitmqctl against this node."""
        command = [self._script("rabbitmqctl"), "-q", "-n", self._node, *arguments]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise ServerFailed(f"rabbitmqctl {' '.join(arguments)} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def is_ready(self) -> bool:
        """Whether it answers the first bytes of AMQP; it listens only when it has booted."""
        if self.pid is None:
            return False
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as peer:
            peer.settimeout(5)
            peer.sendall(b"AMQP\0\0\x09\x01")
            return bool(peer.recv(1))
        return False

    @property
    def _data(self) -> Path:
        return self.directory / "mnesia"

    @property
    def _node(self) -> str:
        return f"aft{self.port}@localhost"

    @property
    def _env(self) -> dict[str, str]:
        """Everything it may see: nothing of the machine's own RabbitMQ."""
        home = self.directory
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(home),
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.port + 1),
            "ERL_EPMD_PORT": str(self.port + 2),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_CONF_ENV_FILE": str(home / "env.conf"),
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self._data),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(home / "rabbit.pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +S 1:1",
        }

    def _prepare(self) -> None:
        home = self.directory
        for part in (self._data, home / "log"):
            part.mkdir(exist_ok=True)
        cookie = home / ".erlang.cookie"
        if cookie.exists():
            return
        cookie.write_text(f"aft{random.getrandbits(64):x}")
        cookie.chmod(0o400)
        (home / "env.conf").write_text("")
        (home / "advanced.config").write_text("[].\n")
        (home / "enabled_plugins").write_text("[].\n")
        (home / "rabbitmq.conf").write_text(
            "\n".join(
                [
                    f"listeners.tcp.1 = 127.0.0.1:{self.port}",
                    "log.console = true",
                    "log.file = false",
                    *self.settings,
                    "",
                ]
            )
        )

    def _launch(self) -> int:
        (self.directory / "rabbit.pid").unlink(missing_ok=True)
        return self._spawn([self._script("rabbitmq-server")], env=self._env)

    def _end(self, how: signal.Signals) -> None:
        node = self._node_pid()
        super()._end(how)
        if node is not None:  # the script's child; it must be gone before its ports are used again
            end_process(node, signal.SIGKILL)
        self._end_epmd()

    def _node_pid(self) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            return int((self.directory / "rabbit.pid").read_text()) if self.pid is not None else None
        return None

    def _end_epmd(self) -> None:
        """End the port mapper, which outlives the node: this node's own, as its port is."""
        epmd = shutil.which("epmd")
        for _ in _until(10):  # it refuses until it has noticed that the node is gone
            if epmd is None or not _listens(self.port + 2):
                return
            subprocess.run([epmd, "-kill"], env=self._env, capture_output=True, check=False)

    def _script(self, name: str) -> str:
        place = self.binaries()
        if place is None:
            raise ServerFailed("RabbitMQ is not installed")
        return str(place / name)


def end_process(pid: int, how: signal.Signals, patience: float = 30.0) -> None:
    """Signal a process and wait until it has ended; its whole group is killed when it does not."""
    with contextlib.suppress(ProcessLookupError):
        if how == signal.SIGKILL:
            _kill_group(pid)
        else:
            os.kill(pid, how)
    for _ in _until(patience):
        if has_ended(pid):
            return
    _kill_group(pid)
    for _ in _until(patience):
        if has_ended(pid):
            return
    raise ServerFailed(f"process {pid} cannot be ended")


def has_ended(pid: int) -> bool:
    """Whether a process is gone, whoever started it; one that nobody has waited for counts as gone."""
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False


def free_ports(count: int) -> int:
    """Return the first of so many consecutive free ports, below those that the system hands out itself."""
    for _ in range(1000):
        first = random.randrange(20_000, 32_000)
        if all(_is_free(first + offset) for offset in range(count)):
            return first
    raise ServerFailed("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)


def _until(seconds: float) -> Iterator[None]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(0.02)
