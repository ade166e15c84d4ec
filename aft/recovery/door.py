"""The door: every message that comes in is read here, and what cannot be read goes to quarantine with its reason."""

from __future__ import annotations

from collections.abc import Sequence

from aft import envelope
from aft.brokers.base import Delivery
from aft.envelope import Message, Refused
from aft.runs import quarantine
from aft.store import Store
from aft.telemetry import MessageQuarantined, Telemetry


def admit(store: Store, telemetry: Telemetry, namespace: str, deliveries: Sequence[Delivery]) -> list[Message]:
    """Read deliveries; the refused ones are on record when this returns, so all may be acknowledged after."""
    admitted: list[Message] = []
    refused: list[tuple[Delivery, str]] = []
    for delivery in deliveries:
        try:
            admitted.append(envelope.decode(delivery.body))
        except Refused as refusal:
            refused.append((delivery, str(refusal)))
    if refused:
        with store.write() as connection:
            for delivery, reason in refused:
                quarantine.add(connection, namespace, delivery.queue, delivery.body, reason)
        for delivery, reason in refused:
            telemetry.emit(MessageQuarantined(queue=delivery.queue, reason=reason))
    return admitted
