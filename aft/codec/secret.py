"""A value that is stored, and shown to nobody: not by ``repr``, nor in stories, listings, logs, rules and exports."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, get_args

from pydantic import GetCoreSchemaHandler, ValidationError, ValidatorFunctionWrapHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from aft.redaction import HIDDEN

T = TypeVar("T")

#: How pydantic names the error of a value that is no such secret.
UNFIT = "aft_secret"


class Secret(Generic[T]):
    """Holds a value that nobody shall read by accident; ``reveal()`` gives it. Immutable, and equal if its values are.

    For parameters, results and fields: ``card: aft.Secret[str]``. Whoever calls may give the value itself. It lies in
    the database as it is: this keeps it from being shown, not from whoever may read the tables.
    """

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def reveal(self) -> T:
        """Return the value."""
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and bool(self._value == other._value)

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __repr__(self) -> str:
        return f"Secret({HIDDEN})"

    def __str__(self) -> str:
        return HIDDEN

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Let pydantic read the value inside as what is declared, and leave the rest to the codec."""
        inner = get_args(source)
        schema = handler.generate_schema(inner[0]) if inner else core_schema.any_schema()
        return core_schema.no_info_wrap_validator_function(
            _read,
            schema,
            serialization=core_schema.plain_serializer_function_ser_schema(_wrap),
        )


def unwrap(value: Any) -> Any:
    """Return what a secret holds; any other value as it is."""
    return value.reveal() if isinstance(value, Secret) else value


def _read(value: Any, read_inside: ValidatorFunctionWrapHandler) -> Secret[Any]:
    """Read what a secret holds; what does not fit is not told."""
    try:
        return Secret(read_inside(unwrap(value)))
    except ValidationError:
        raise PydanticCustomError(UNFIT, "it is not what this secret is declared to hold") from None


def _wrap(value: Any) -> Secret[Any]:
    return value if isinstance(value, Secret) else Secret(value)
