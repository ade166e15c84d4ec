"""``Secret``, a value that is stored but never shown: not by ``repr``, nor in stories, lists, logs, rules, exports.

``SecretPlace`` finds out which parts of a declared type are secret, by the path that leads to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, get_args

from pydantic import GetCoreSchemaHandler, ValidationError, ValidatorFunctionWrapHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from aft.security.redaction import HIDDEN, hides_name

T = TypeVar("T")

#: How pydantic names the error of a value that is no such secret.
UNFIT = "aft_secret"

#: Types of schemas that have named fields, those whose items have one type, and those whose steps are items.
_FIELDS = ("model-fields", "typed-dict", "dataclass-args")
_ITEMS = ("list", "set", "frozenset", "generator")
_SETS = ("set", "frozenset")
#: Where schemas that only wrap others have these.
_WRAPPED = ("schema", "lax_schema", "strict_schema", "json_schema", "python_schema")


class Secret(Generic[T]):
    """Holds a value that is not shown by accident; ``reveal()`` returns it. Immutable, and equal if its values are.

    For parameters, results and fields: ``card: aft.Secret[str]``. Callers may pass the bare value. It is stored in the
    database as it is: this keeps it from being shown, not from users who may read the tables.
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
        """Return the schema by which pydantic validates the value inside; the codec does the rest."""
        inner = get_args(source)
        schema = handler.generate_schema(inner[0]) if inner else core_schema.any_schema()
        return core_schema.no_info_wrap_validator_function(
            _read,
            schema,
            serialization=core_schema.plain_serializer_function_ser_schema(_wrap),
        )


def unwrap(value: Any) -> Any:
    """Return the value of a secret; any other value as it is."""
    return value.reveal() if isinstance(value, Secret) else value


def _read(value: Any, read_inside: ValidatorFunctionWrapHandler) -> Secret[Any]:
    """Validate the value of a secret; the error does not show it."""
    try:
        return Secret(read_inside(unwrap(value)))
    except ValidationError:
        raise PydanticCustomError(UNFIT, "it is not what this secret is declared to hold") from None


def _wrap(value: Any) -> Secret[Any]:
    return value if isinstance(value, Secret) else Secret(value)


@dataclass(frozen=True, slots=True)
class SecretPlace:
    """A place in a declared type: the schemas that a value there may have, and whether all that is there is secret."""

    schemas: Sequence[Any] = ()
    #: Whether a name or a type on the way here says that it is secret.
    inside: bool = False
    _definitions: dict[str, Any] = field(default_factory=dict)

    @property
    def is_secret(self) -> bool:
        """Whether a value here is secret, or may hold a secret."""
        return self.inside or any(self._holds_secret(schema) for schema in self.schemas)

    def hides_step(self, step: object) -> bool:
        """Return whether the step itself is a secret: a key of a dict, or an item of a set."""
        nodes = list(self._expand())
        if self.inside:
            return not (
                isinstance(step, int) and nodes and all(node.get("type") in ("list", "tuple") for node in nodes)
            )
        parts = [
            node.get("keys_schema") if node.get("type") == "dict" else node.get("items_schema")
            for node in nodes
            if node.get("type") in ("dict", *_SETS)
        ]
        return any(self._holds_secret(part) for part in parts) or any(map(_is_secret, nodes))

    def under(self, step: object) -> SecretPlace:
        """Return the place that one more step of a path leads to: a field, a key or an index."""
        inside = self.inside or (isinstance(step, str) and hides_name(step))
        below: list[Any] = []
        for node in self._expand():
            found = _below(node, step)
            below += found
            # What is not declared may be a secret whose name is misspelt.
            inside = inside or _is_secret(node) or (not found and self._holds_secret(node))
        return SecretPlace(below, inside, self._definitions)

    def _expand(self) -> Iterator[Any]:
        """Yield the schemas that say what a value consists of, without those that only wrap them."""
        left, seen = list(self.schemas), set()
        while left:
            node = left.pop()
            if not isinstance(node, dict) or id(node) in seen:
                continue
            seen.add(id(node))
            for known in node.get("definitions", ()):
                self._definitions[known.get("ref")] = known
            wrapped = [] if _is_secret(node) else _wrapped(node)
            if node.get("type") == "definition-ref":
                wrapped = [self._definitions.get(node["schema_ref"])]
            left += wrapped
            if not wrapped:
                yield node

    def _holds_secret(self, schema: Any) -> bool:
        left, seen = [schema], set()
        while left:
            node = left.pop()
            if id(node) in seen or not isinstance(node, dict | list | tuple):
                continue
            seen.add(id(node))
            if not isinstance(node, dict):
                left += node
                continue
            if _is_secret(node):
                return True
            for known in node.get("definitions", ()):
                self._definitions[known.get("ref")] = known
            left += (
                [self._definitions.get(node["schema_ref"])] if node.get("type") == "definition-ref" else node.values()
            )
        return False


def _wrapped(node: dict[str, Any]) -> list[Any]:
    if "choices" in node:
        choices = node["choices"].values() if isinstance(node["choices"], dict) else node["choices"]
        return [choice[0] if isinstance(choice, tuple) else choice for choice in choices]
    return list(node["steps"]) if node.get("type") == "chain" else [node[name] for name in _WRAPPED if name in node]


def _below(node: dict[str, Any], step: object) -> list[Any]:
    """Return the schemas that a step leads to; none if it is not declared."""
    kind = node.get("type")
    if kind in _FIELDS:
        fields = node["fields"]
        named = fields.items() if isinstance(fields, dict) else [(each.get("name"), each) for each in fields]
        return [each["schema"] for name, each in named if step in (name, *_aliases(each))]
    if kind == "dict":
        return [node["values_schema"]] if "values_schema" in node else []
    if kind in _ITEMS:
        return [node["items_schema"]] if "items_schema" in node else []
    if kind == "tuple":
        items = node["items_schema"]
        alone = isinstance(step, int) and 0 <= step < len(items) and node.get("variadic_item_index") is None
        return [items[step]] if alone else list(items)
    return []


def _aliases(declared: dict[str, Any]) -> list[Any]:
    return [declared[name] for name in ("validation_alias", "serialization_alias") if name in declared]


def _is_secret(schema: Any) -> bool:
    """Return whether a schema of pydantic's is that of a secret."""
    if not isinstance(schema, dict) or schema.get("type") != "function-wrap":
        return False
    return schema["function"].get("function") is _read
