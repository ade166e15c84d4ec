"""Claims about the server that is farther away: it passes everything on, in order, and not before its time."""

from __future__ import annotations

import socket
import threading
import time

from bench.delay import delayed


def _echo(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        while chunk := connection.recv(65_536):
            connection.sendall(chunk)


def test_what_is_sent_comes_back_whole_and_no_sooner_than_the_distance_allows() -> None:
    sent = bytes(range(256)) * 2_000
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_echo, args=(server,), daemon=True).start()
        with delayed(f"postgresql://me@127.0.0.1:{server.getsockname()[1]}/shop", 0.05) as url:
            assert url.startswith("postgresql://me@127.0.0.1:")
            port = int(url.rpartition(":")[2].partition("/")[0])
            with socket.create_connection(("127.0.0.1", port)) as client:
                began = time.monotonic()
                threading.Thread(target=client.sendall, args=(sent,), daemon=True).start()
                received = client.recv(65_536)
                first = time.monotonic() - began
                while len(received) < len(sent):
                    received += client.recv(65_536)
    assert received == sent
    assert first >= 0.05
