"""Bills that are paid in a process that dies, and in another one with other hashes."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import aft

BILLS = {f"bill-{number}" for number in range(8)}


@aft.activity(name="due_bills")
def due(ledger: str) -> set[str]:
    return set(BILLS)


@aft.activity(name="pay_bill")
def pay(ledger: str, bill: str) -> str:
    """Pay, and die at the fourth bill, once."""
    book = Path(ledger)
    paid = book.read_text().split() if book.exists() else []
    if len(paid) == 3 and not book.with_suffix(".died").exists():
        book.with_suffix(".died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    book.write_text(" ".join([*paid, bill]))
    return bill


@dataclass(frozen=True)
class Bill:
    name: str


@aft.activity(name="note_bills")
def note(ledger: str, bills: frozenset[Bill], held: dict[str, set[Bill]]) -> None:
    """Take sets of built values, whose order no process repeats."""


@aft.flow
def paying_noted(ledger: str) -> int:
    bills = frozenset(map(Bill, BILLS))
    note(ledger, bills, {"held": set(bills)})
    return len([pay(ledger, bill) for bill in sorted(BILLS)])


@aft.flow
def paying(ledger: str) -> int:
    return len([pay(ledger, bill) for bill in due(ledger)])


@aft.flow
def paying_without(ledger: str) -> int:
    bills = due(ledger) | {"bill-8"}
    return len([pay(ledger, bill) for bill in bills - {"bill-0"}])


@aft.flow
def paying_own_set(ledger: str) -> int:
    return len([pay(ledger, bill) for bill in {f"bill-{number}" for number in range(8)}])
