"""A server of TCP that is farther away: passes everything on to another one on this machine, a while later.

``python -m bench.delay PORT SECONDS`` forwards to 127.0.0.1:PORT, delays each direction by half of SECONDS, prints the
port that it listens at, and ends when its standard input is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

from bench.jobs import ROOT

#: Bytes that are read at a time.
MOST = 65_536


@contextmanager
def delayed(url: str, seconds: float) -> Iterator[str]:
    """Yield a URL of the same server whose answers come ``seconds`` later."""
    parts = urlsplit(url)
    command = [sys.executable, "-m", "bench.delay", str(parts.port), str(seconds)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        host = parts.netloc.rpartition(":")[0]
        yield urlunsplit(parts._replace(netloc=f"{host}:{int(process.stdout.readline())}"))


async def _forward(source: asyncio.StreamReader, target: asyncio.StreamWriter, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    while chunk := await source.read(MOST):
        # The loop's timers keep their order.
        loop.call_later(seconds, target.write, chunk)
    loop.call_later(seconds, target.close)


async def _serve(port: int, seconds: float) -> None:
    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):  # cancelled at the end of it all
            await asyncio.gather(_forward(reader, back, seconds / 2), _forward(there, writer, seconds / 2))

    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2])))
