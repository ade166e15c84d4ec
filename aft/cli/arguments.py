"""Converts words on a command line to a flow and the arguments of its call.

Each word is a JSON value, or a plain text if it is not JSON, or JSON of a type that the flow does not take: ``7`` is
a number for an ``int`` and a text for a ``str``. ``name=value`` names the argument.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Sequence
from datetime import datetime
from types import ModuleType
from typing import Any

from aft.cli.errors import Failure
from aft.cli.modules import LoadedModules, load, load_module
from aft.codec import ValueCodec
from aft.errors import CodecError, UnknownFlow
from aft.flows.declare.activity import Activity
from aft.flows.declare.flow import Flow
from aft.flows.declare.registry import Registry, declared

_NAMED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


def find_flow(target: str, modules: Sequence[str]) -> tuple[Flow[Any, Any], LoadedModules]:
    """Import the modules and return the flow that ``MODULE:FLOW`` names, or ``FLOW`` in one of the modules."""
    module_name, colon, name = target.rpartition(":")
    loaded = load(modules)
    registry = declared if loaded.app is None else loaded.app.registry
    if not colon:
        return _registered(registry, name), loaded
    module = load_module(module_name)
    found = getattr(module, name, None)
    loaded = LoadedModules((*loaded.modules, module), loaded.app, loaded.app_name)
    if isinstance(found, Flow):
        return found, loaded
    try:
        return _registered(registry, name), loaded
    except UnknownFlow as error:
        raise Failure(_no_flow(module, name, found) or str(error)) from None


def _no_flow(module: ModuleType, name: str, found: object) -> str:
    """Return what a module has under the name of a missing flow, for a message; empty if it has nothing."""
    if isinstance(found, Activity):
        return f"{module.__name__}.{name} is an activity, not a flow; start the flow that calls it"
    if inspect.isfunction(found):
        return f"{module.__name__}.{name} is a plain function, not a flow; put @aft.flow on it"
    flows = [repr(key) for key, value in vars(module).items() if isinstance(value, Flow)]
    if found is None and not flows:
        return f"module {module.__name__!r} has no flow; put @aft.flow on a function there"
    return ""


def _registered(registry: Registry, name: str) -> Flow[Any, Any]:
    name, at, version = name.partition("@")
    return registry.flow(name, int(version) if at and version.isdigit() else None)


def read_arguments(flow: Flow[Any, Any], words: Sequence[str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Convert the words to a call of the flow, each value by its annotation; raises Failure."""
    decoded: dict[str, Any] = {}
    for name, given in _bind(flow, words).arguments.items():
        decoded[name] = _read(flow, name, given)
    return flow.arguments.call_arguments(decoded)


def read_time(word: str) -> datetime:
    """Parse a time with a zone; raises Failure."""
    try:
        found = datetime.fromisoformat(word)
    except ValueError:
        raise Failure(f"{word!r} is not a time; write it as 2027-01-31T08:00+01:00, or …Z for UTC") from None
    if found.utcoffset() is None:
        raise Failure(f"{word!r} does not say in which zone; write {word}+01:00, or {word}Z for UTC")
    return found


def read_tags(words: Sequence[str]) -> dict[str, Any]:
    """Parse ``name=value`` pairs, each value as JSON, else as plain text; raises Failure."""
    tags: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise Failure(f"--tag {word!r} names no value; write --tag NAME=VALUE")
        if name in tags:
            raise Failure(f"tag {name!r} is given twice")
        tags[name] = _as_json(value)
    return tags


def _bind(flow: Flow[Any, Any], words: Sequence[str]) -> inspect.BoundArguments:
    signature = flow.arguments.signature
    anything = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in signature.parameters.values())
    positional: list[str] = []
    named: dict[str, str] = {}
    for word in words:
        match = _NAMED.fullmatch(word)
        if match is None:
            positional.append(word)
            continue
        name, value = match.groups()
        if name not in signature.parameters and not anything:
            raise Failure(
                f"flow {flow.name!r} has no argument {name!r}; it takes {_format(signature)}. "
                f"To pass the text {word!r} itself, quote it as JSON: {json.dumps(word)!r}"
            )
        if name in named:
            raise Failure(f"argument {name!r} is given twice")
        named[name] = value
    try:
        return signature.bind(*positional, **named)
    except TypeError as error:
        raise Failure(f"flow {flow.name!r}: {error}; it takes {_format(signature)}") from None


def _format(signature: inspect.Signature) -> str:
    parameters = [one.replace(annotation=_bare(one.annotation)) for one in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def _bare(annotation: Any) -> Any:
    # Under `from __future__ import annotations` these are texts, which would be shown in quotes.
    return _Bare(annotation) if isinstance(annotation, str) else annotation


class _Bare(str):
    """A text that is shown without quotes."""

    def __repr__(self) -> str:
        return str(self)


def read_value(codec: ValueCodec, word: str) -> Any:
    """Parse one word as a codec's value: as JSON, else as plain text; raises CodecError."""
    try:
        return codec.decode(json.dumps(_as_json(word)))
    except CodecError as error:
        try:
            return codec.decode(json.dumps(word))
        except CodecError:
            raise error from None


def _read(flow: Flow[Any, Any], name: str, given: Any) -> Any:
    """Decode what was given for one parameter: as JSON, else as plain text."""
    errors: list[CodecError] = []
    for value in (_as_json(given), _as_text(given)):
        try:
            return flow.arguments.decode(json.dumps({name: value}))[name]
        except CodecError as error:
            errors.append(error)
    raise Failure(f"flow {flow.name!r}, argument {errors[0]}")


def _as_json(given: Any) -> Any:
    if isinstance(given, tuple):
        return [_as_json(one) for one in given]
    if isinstance(given, dict):
        return {name: _as_json(value) for name, value in given.items()}
    try:
        return json.loads(given, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return given


def _as_text(given: Any) -> Any:
    return list(given) if isinstance(given, tuple) else given


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
