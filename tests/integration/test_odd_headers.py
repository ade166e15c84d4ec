"""Claims about messages with headers that nobody can read: they are refused, and end no connection."""

from __future__ import annotations

import logging
from typing import Any

import pika
import pytest
from pika import data

import aft
from aft import names
from aft.runs.records import quarantine
from tests.setups import Setup, dispatching, eventually


@aft.flow(name="odd_headers_flow")
def flow(order: str) -> str:
    return order


class Raw(bytes):
    """A header's value as it is sent."""


@pytest.mark.parametrize(
    "value", [b"T" + b"\xff" * 8, b"T" + b"\x7f" + b"\xff" * 7, b"F\x00\x00\x00\x0b\x01tT" + b"\xff" * 8]
)
def test_a_header_with_a_time_beyond_all_years_ends_no_connection(
    production: Setup, order: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: bytes
) -> None:
    encode = data.encode_value

    def encode_raw(pieces: list[bytes], given: Any) -> int:
        if isinstance(given, Raw):
            pieces.append(bytes(given))
            return len(given)
        return encode(pieces, given)

    monkeypatch.setattr(data, "encode_value", encode_raw)
    app = production.app()
    caplog.set_level(logging.WARNING, "aft")
    with dispatching(app):
        connection = pika.BlockingConnection(pika.URLParameters(production.broker))
        for queue in (names.resume(app.namespace), names.faults(app.namespace)):
            connection.channel().basic_publish("", queue, b"{}", pika.BasicProperties(headers={"x": Raw(value)}))  # type: ignore[no-untyped-call]
        connection.close()

        def held() -> int:
            with app.store.read() as reading:
                return len(quarantine.listing(reading, app.namespace))

        eventually(lambda: held() >= 1)
        assert app.submit(flow, order).result(60) == order
    assert not [record for record in caplog.records if "connection" in record.getMessage()]
