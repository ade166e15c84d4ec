"""Notices go to public addresses, or to hosts that an operator has listed; and to the address that was looked at."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from aft.dispatcher.notify.receivers import ReceiverRefused, Receivers
from aft.dispatcher.notify.webhook import post

URL = "https://hooks.example/hook"
PUBLIC = [
    "93.184.216.34",
    "8.8.8.8",
    "2606:2800:220:1:248:1893:25c8:1946",
    "2a00:1450:4001:830::200e",
    "64:ff9b::808:808",
    "::ffff:8.8.8.8",
    "2002:808:808::1",
]
INNER = [
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.3.4",
    "192.168.1.1",
    "169.254.169.254",
    "168.63.129.16",
    "192.0.0.192",
    "100.64.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "::1",
    "::",
    "fe80::1%lo",
    "fd00::1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::a00:1",
    "64:ff9b:1::808:808",
    "fec0::1",
    "2002:7f00:1::",
    "::127.0.0.1",
    "::10.0.0.1",
    "::8.8.8.8",
    "::ffff:0:127.0.0.1",
    "::ffff:0:8.8.8.8",
    "::ffff:100.64.0.1",
    "::ffff:168.63.129.16",
    "64:ff9b::a83f:8110",
    "2002:a83f:8110::",
    "3fff::1",
    "3fff:fff::1",
    "5f00::1",
    "4000::1",
    "100::1",
    "2001:db8::1",
    "2001:0:7f00:1::1",
    "2001:20::1",
    "192.0.0.8",
    "192.0.0.9",
    "192.88.99.1",
    "198.18.0.1",
    "240.0.0.1",
]


class Names:
    """A resolver that an attacker controls: it answers each question with the next of its answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: list[list[str]] = []
        self.asked = 0
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self._resolve)

    def _resolve(self, host: str, port: int, *more: Any, **named: Any) -> Any:
        if not host.rstrip(".").endswith(".example"):
            return self._real(host, port, *more, **named)
        self.asked += 1
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


@pytest.fixture
def server() -> Iterator[int]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(204)
            self.end_headers()

        def log_message(self, *given: Any) -> None:
            pass

    made = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made.server_port
    made.shutdown()
    made.server_close()


def find(receivers: Receivers, host: str = "hooks.example", url: str = URL) -> list[str]:
    return receivers.find(host, 443, url)


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_may_be_sent_to(names: Names, address: str) -> None:
    names.answers = [[address]]
    assert find(Receivers()) == [address]


@pytest.mark.parametrize("address", INNER)
def test_an_address_of_this_network_is_refused_whatever_its_name(names: Names, address: str) -> None:
    names.answers = [[address]]
    with pytest.raises(ReceiverRefused, match="AFT_WEBHOOK_HOSTS"):
        find(Receivers())
    assert find(Receivers(["hooks.example"])) == [address]
    assert find(Receivers(trusted=[URL])) == [address]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "127.1", "::1"])
def test_this_machine_is_refused_however_it_is_spelled(host: str) -> None:
    with pytest.raises((ReceiverRefused, OSError)):
        find(Receivers(), host)


def test_where_hosts_are_listed_there_are_no_others(names: Names) -> None:
    names.answers = [["8.8.8.8"]]
    receivers = Receivers(["hooks.example", "*.inner.example"])
    for host in ("hooks.example", "HOOKS.example.", "a.inner.example", "a.b.inner.example"):
        assert find(receivers, host)
    for host in ("inner.example", "evilhooks.example", "hooks.example.evil.example", "ainner.example"):
        with pytest.raises(ReceiverRefused, match="none of the hosts"):
            find(receivers, host)


OTHER_URLS = [
    "http://hooks.example/hook",
    "https://hooks.example:8443/hook",
    "https://hooks.example/",
    "https://hooks.example/hook/",
    "https://hooks.example/hook?a=b",
]


@pytest.mark.parametrize("url", OTHER_URLS)
@pytest.mark.parametrize("listed", [[], ["elsewhere.example"]])
def test_a_trusted_url_is_allowed_and_no_other_of_its_host(names: Names, url: str, listed: list[str]) -> None:
    names.answers = [["10.0.0.1"]]
    receivers = Receivers(listed, trusted=[URL])
    assert find(receivers) == ["10.0.0.1"]
    with pytest.raises(ReceiverRefused, match="AFT_WEBHOOK_HOSTS"):
        find(receivers, url=url)


def test_of_several_addresses_only_public_ones_are_connected_to(names: Names) -> None:
    names.answers = [["10.0.0.1", "8.8.8.8", "127.0.0.1"]]
    assert find(Receivers()) == ["8.8.8.8"]


def test_a_name_is_resolved_once_and_the_connection_goes_to_what_was_looked_at(names: Names, server: int) -> None:
    names.answers = [["127.0.0.1"], ["192.0.2.1"]]
    answer = post(f"http://hooks.example:{server}/", b"{}", {}, 5.0, Receivers(["hooks.example"]))
    assert (answer.status, names.asked) == (204, 1)


@pytest.mark.parametrize("size", ["-5", "-ffffffffffff", "zz", "ffffffffffffffffffffffff"])
def test_a_status_counts_whatever_is_wrong_with_the_body_below_it(size: str) -> None:
    answer = f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{size}\r\nx"
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            line, _ = listening.accept()
            with line:
                line.recv(10_000)
                line.sendall(answer.encode())

        thread = threading.Thread(target=serve)
        thread.start()
        port = listening.getsockname()[1]
        assert post(f"http://127.0.0.1:{port}/", b"{}", {}, 5.0, Receivers(["127.0.0.1"])).status == 200
        thread.join()


def test_an_address_that_does_not_answer_is_followed_by_the_next(names: Names, server: int) -> None:
    names.answers = [["127.0.0.9", "127.0.0.1"]]
    answer = post(f"http://hooks.example:{server}/", b"{}", {}, 5.0, Receivers(["hooks.example"]))
    assert answer.status == 204
