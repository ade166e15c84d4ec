"""What the examples of README and guide use without saying where it comes from, declared for type checkers only."""

import asyncio
import enum
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from sqlalchemy import Table, update

import aft

__all__ = ["Decimal", "Literal", "asyncio", "update"]

class CmsBusy(Exception): ...
class PolicyViolation(Exception): ...

class Why(enum.Enum):
    LIMIT = "limit"

class CardDeclined(Exception):
    why: Why

@dataclass
class Receipt:
    charged: bool

#: Other systems, libraries, tables.
bank: Any
cms: Any
requests: Any
slots: Table

@aft.activity
def render(slot_id: str) -> str: ...
@aft.activity
def notify(whom: str) -> str: ...
@aft.activity
async def upload(page: str) -> str: ...
@aft.activity
def approve_slot(slot_id: str) -> dict[str, str]: ...
@aft.activity
def reject_slot(slot_id: str) -> str: ...
@aft.activity
def draft(slot_id: str) -> None: ...
@aft.activity
def remind(slot_id: str) -> None: ...
@aft.activity
def publish(slot_id: str) -> None: ...
@aft.activity
def ask(slot_id: str) -> bool: ...
@aft.activity
def charge(order_id: str) -> Receipt: ...
@aft.flow
def approval(slot_id: str) -> str: ...
@aft.flow
def close_day(city: str) -> None: ...
@aft.flow
def poll() -> None: ...
@aft.flow
def flow(slot_id: str) -> str: ...

slot_id: str
app: aft.Aft
run: aft.Run[str]
