"""Encodes and decodes the arguments of a function's calls, and makes the codec of its result.

Arguments are stored by name, each as its annotation says, so that a function may get parameters with defaults while
calls of it are stored.
"""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from aft.codec.compare import is_same
from aft.codec.refusal import first_line, kind_phrase
from aft.codec.text import decode_untyped, write
from aft.codec.values import ValueCodec, value_codec
from aft.errors import CodecError, DefinitionError

_PLAIN = inspect.Parameter.POSITIONAL_OR_KEYWORD
_STAR = inspect.Parameter.VAR_POSITIONAL
_STARS = inspect.Parameter.VAR_KEYWORD


class ArgumentsCodec:
    """Encodes and decodes the arguments of one function, by name; made by :func:`arguments_codec`."""

    def __init__(self, signature: inspect.Signature, codecs: Mapping[str, ValueCodec], function: str) -> None:
        self.signature = signature
        self.names = tuple(signature.parameters)
        self._codecs = codecs
        self._function = function
        self._star = next((name for name, found in signature.parameters.items() if found.kind is _STAR), None)
        #: Whether all parameters can be positional: most functions are so, and binding is much quicker.
        self._plain = all(found.kind is _PLAIN for found in signature.parameters.values())
        #: The last encoded text and its arguments: a first execution decodes just that.
        self._last: tuple[str | None, dict[str, Any]] = (None, {})

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        """Bind a call as Python would, defaults applied; a wrong call raises Python's own TypeError."""
        bound = self._bind(args, kwargs)
        if len(bound.arguments) < len(self.names):
            bound.apply_defaults()
        return bound

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        if self._plain and not kwargs and len(args) == len(self.names):
            return inspect.BoundArguments(self.signature, OrderedDict(zip(self.names, args, strict=True)))
        try:
            return self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._function}() {error}") from None

    def encode_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, str]:
        """Encode the arguments of a call twice: with the defaults of those left out, and only those given."""
        bound = self._bind(args, kwargs)
        given = tuple(bound.arguments)
        if len(given) < len(self.names):
            bound.apply_defaults()
        tagged = self._tag(bound.arguments)
        text = self._write(tagged)
        self._remember(text, bound)
        return text, text if len(given) == len(self.names) else self._write({name: tagged[name] for name in given})

    def encode_with_defaults(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
        """Encode the arguments of a call with the defaults of those left out; returns also the names of these."""
        bound = self._bind(args, kwargs)
        left_out = tuple(name for name in self.names if name not in bound.arguments)
        if left_out:
            bound.apply_defaults()
        return self.encode(bound), left_out

    def encode(self, bound: inspect.BoundArguments) -> str:
        """Encode the arguments as one JSON object; raises CodecError, whose path begins with the parameter."""
        text = self._write(self._tag(bound.arguments))
        self._remember(text, bound)
        return text

    def encode_some(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Encode single arguments, by name, as decoded JSON; raises CodecError, also for a name that there is not."""
        for name in given:
            if name not in self._codecs:
                known = ", ".join(map(repr, self.names)) or "none"
                raise CodecError(f"{self._function}() has no parameter {str(name)[:40]!r}; it has {known}", path=name)
        decoded: dict[str, Any] = json.loads(self._write(self._tag(given)))
        return decoded

    def _remember(self, text: str, bound: inspect.BoundArguments) -> None:
        if all(self._codecs[name].decodes_to_itself(value) for name, value in bound.arguments.items()):
            self._last = (text, dict(bound.arguments))

    def _tag(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {
                name: self._codecs[name].tag(list(value) if name == self._star else value, name, 1)
                for name, value in arguments.items()
            }
        except CodecError as error:
            raise CodecError(f"{self._function}(): {error}", path=error.path) from error.__cause__

    def _write(self, tagged: dict[str, Any]) -> str:
        return write(tagged, f"the arguments of {self._function}()")

    def codec(self, name: str) -> ValueCodec | None:
        """Return the codec of a parameter, or None if there is no such."""
        return self._codecs.get(name)

    def build(self, name: str, found: Any) -> Any:
        """Build an argument from its untagged value; raises only CodecError."""
        self._refuse_surplus({name: found})
        return self._codecs[name].build(found, name)

    def is_same(self, name: str, was: Any, now: Any) -> bool:
        """Return whether two untagged values of an argument are the same to the function."""
        if is_same(was, now, was):
            return True
        try:
            return is_same(self.build(name, was), self.build(name, now), was)
        except CodecError:
            return False

    def is_default(self, name: str, found: Any) -> bool:
        """Return whether the untagged value of an argument is the parameter's default."""
        bound = inspect.BoundArguments(self.signature, OrderedDict())
        bound.apply_defaults()
        defaults = read_by_name(self._write(self._tag(bound.arguments)))
        return name in defaults and self.is_same(name, defaults[name], found)

    def decode(self, text: str) -> dict[str, Any]:
        """Decode arguments by name, each as its annotation says; raises only CodecError."""
        text_of_last, last = self._last
        if text is text_of_last:
            return dict(last)
        found = decode_untyped(text)
        if type(found) is not dict:
            raise CodecError(f"the arguments of {self._function}() must be an object, not {kind_phrase(type(found))}")
        self._refuse_surplus(found)
        built = {name: self._codecs[name].build(value, name) for name, value in found.items()}
        if self._star in built:
            built[self._star] = tuple(built[self._star])
        return built

    def call_arguments(self, decoded: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arrange decoded arguments for ``fn(*args, **kwargs)``.

        A parameter that the function got since, with a default, may be missing; any other difference raises
        CodecError.
        """
        self._refuse_surplus(decoded)
        if self._plain and len(decoded) == len(self.names):
            return tuple(decoded[name] for name in self.names), {}
        bound = inspect.BoundArguments(self.signature, OrderedDict(decoded))
        if len(decoded) < len(self.names):
            bound.apply_defaults()
            self._refuse_missing(bound)
        return bound.args, bound.kwargs

    def with_defaults(self, decoded: Mapping[str, Any]) -> dict[str, Any]:
        """Add the defaults of parameters that the function got since these arguments were stored."""
        bound = inspect.BoundArguments(self.signature, OrderedDict(decoded))
        bound.apply_defaults()
        return dict(bound.arguments)

    def _refuse_missing(self, bound: inspect.BoundArguments) -> None:
        for name in self.names:
            if name not in bound.arguments:
                raise CodecError(
                    f"the stored arguments of {self._function}() lack {name!r}; give that parameter a default",
                    path=name,
                )

    def _refuse_surplus(self, found: Mapping[Any, Any]) -> None:
        for name in found:
            if name not in self._codecs:
                raise CodecError(
                    f"the stored arguments of {self._function}() hold {str(name)[:40]!r}, "
                    f"which is no parameter of it; it has {', '.join(map(repr, self.names)) or 'none'}",
                    path=str(name)[:40],
                )


def read_by_name(text: str) -> dict[str, Any]:
    """Decode stored arguments without their types; empty if they cannot be read."""
    try:
        found = decode_untyped(text)
    except CodecError:
        return {}
    return found if isinstance(found, dict) else {}


def arguments_codec(fn: Callable[..., Any]) -> ArgumentsCodec:
    """Make the codec for a function's parameters.

    Raises DefinitionError that names the function and the parameter whose type cannot be resolved or stored,
    or whose default does not fit its own annotation.
    """
    signature, hints = inspect.signature(fn), _hints(fn)
    codecs: dict[str, ValueCodec] = {}
    for name, parameter in signature.parameters.items():
        try:
            codecs[name] = value_codec(_declared(parameter, hints.get(name, Any)))
            if parameter.default is not inspect.Parameter.empty:
                codecs[name].tag(parameter.default, f"the default of {name}", 1)
        except (DefinitionError, CodecError) as error:
            raise DefinitionError(f"parameter {name!r} of {_function_name(fn)}(): {error}") from None
    return ArgumentsCodec(signature, codecs, _function_name(fn))


def result_codec(fn: Callable[..., Any]) -> ValueCodec:
    """Make the codec for a function's result; raises DefinitionError that names the function."""
    try:
        return value_codec(_hints(fn).get("return", Any))
    except DefinitionError as error:
        raise DefinitionError(f"the result of {_function_name(fn)}(): {error}") from None


def _declared(parameter: inspect.Parameter, hint: Any) -> Any:
    """Return the stored type of a parameter: a list for ``*args``, a dict for ``**kwargs``, else its annotation."""
    if parameter.kind not in (_STAR, _STARS):
        return hint
    if typing.get_origin(hint) is typing.Unpack:
        if parameter.kind is _STAR:
            raise DefinitionError("unpacked tuples in *args are not supported; write *args: SomeType")
        return typing.get_args(hint)[0]
    return list[hint] if parameter.kind is _STAR else dict[str, hint]


def _hints(fn: Callable[..., Any]) -> dict[str, Any]:
    """Resolve the annotations of a function; raises DefinitionError that names the one that cannot be."""
    try:
        return typing.get_type_hints(fn, include_extras=True)
    except Exception:  # evaluating a written annotation may raise anything
        inner = inspect.unwrap(fn)
        for name, annotation in getattr(inner, "__annotations__", {}).items():
            try:
                one = types.SimpleNamespace(__annotations__={name: annotation})
                typing.get_type_hints(one, globalns=getattr(inner, "__globals__", {}), include_extras=True)
            except Exception as error:
                what = "the result" if name == "return" else f"parameter {name!r}"
                raise DefinitionError(
                    f"{what} of {_function_name(fn)}() is annotated {annotation!r}, which cannot be resolved "
                    f"({first_line(error)}); import or define the name at the top of the module, "
                    "not under TYPE_CHECKING"
                ) from None
        raise


def _function_name(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__qualname__", None) or type(fn).__qualname__)
