"""Finds and imports an example: the same way from a checkout, from a wheel and in every worker process."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import aft
from aft.scenarios.example import Example, ExampleError

_HERE = Path(aft.__file__).parent
#: Where examples lie that are named without a path: in a wheel, in a checkout.
SHELVES = (_HERE / "_examples", _HERE.parent / "examples")

_OFFERED = ("flow", "prepare", "set_up", "read_state", "find_hanging_process")


def find_example(named: str) -> Path:
    """Return the directory of an example, given by its path or by its name alone. Raises ExampleError.

    A name alone is never a folder of the current one: whoever may write there would choose the code that is executed.
    """
    is_name = named not in ("", ".", "..") and Path(named).name == named
    for directory in [shelf / named for shelf in SHELVES] if is_name else [Path(named)]:
        if _is_example(directory):
            return directory.resolve()
    if is_name and _is_example(Path(named)):
        raise ExampleError(f"no example {named!r} comes with aft; to execute the one in this folder, write './{named}'")
    if Path(named).is_dir():
        raise ExampleError(f"{named!r} is no example: it lacks replay.py or scenarios/")
    known = sorted({directory.name for directory in _shelved()})
    near = difflib.get_close_matches(Path(named).name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(map(repr, known)) or 'none'}"
    raise ExampleError(f"no example {named!r}; {hint}")


def load_example(directory: Path) -> Example:
    """Import an example as a package of its directory's name, wherever that lies. Raises ExampleError."""
    name = directory.name
    if not name.isidentifier():
        raise ExampleError(f"the example's directory {name!r} cannot be a package; give it a Python name")
    if name not in sys.modules:
        _import_package(name, directory)
    elif list(getattr(sys.modules[name], "__path__", [])) != [str(directory)]:
        raise ExampleError(f"the example {name!r} has the name of another module; rename its directory")
    module = importlib.import_module(f"{name}.replay")
    missing = [offer for offer in _OFFERED if not hasattr(module, offer)]
    if missing:
        raise ExampleError(f"{directory / 'replay.py'} has no {', '.join(map(repr, missing))}")
    return cast(Example, module)


def _import_package(name: str, directory: Path) -> None:
    """Import without changing ``sys.path``, so that other files beside the example cannot shadow modules."""
    spec = importlib.util.spec_from_file_location(
        name, directory / "__init__.py", submodule_search_locations=[str(directory)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        # User code: whatever it raised is reported in one line, like every mistake.
        del sys.modules[name]
        raise ExampleError(f"{directory} cannot be imported: {type(error).__name__}: {error}") from error


def _is_example(directory: Path) -> bool:
    return (directory / "replay.py").is_file() and (directory / "scenarios").is_dir()


def _shelved() -> Iterator[Path]:
    for shelf in SHELVES:
        if shelf.is_dir():
            yield from filter(_is_example, shelf.iterdir())
