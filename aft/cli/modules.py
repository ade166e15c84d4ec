"""Imports the modules that a person names, and explains why one cannot be imported."""

from __future__ import annotations

import difflib
import importlib
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import aft
from aft.app import Aft
from aft.cli.errors import Failure
from aft.config import Settings
from aft.errors import AftError
from aft.texts import with_article

#: Frames of a failed import that are shown, the innermost last.
MOST_FRAMES = 3

_OURS = Path(aft.__file__).parent


@dataclass(frozen=True, slots=True)
class LoadedModules:
    """What was imported; ``app`` if one was named as ``module:app``."""

    modules: tuple[ModuleType, ...] = ()
    app: Aft | None = None
    app_name: str = ""


def load(names: Sequence[str]) -> LoadedModules:
    """Import modules, each named ``module`` or ``module:app``. The current directory is last on the path."""
    modules: list[ModuleType] = []
    apps: dict[str, Aft] = {}
    for name in names:
        module_name, colon, attribute = name.partition(":")
        module = load_module(module_name)
        modules.append(module)
        if colon:
            apps[name] = _find_app(module, attribute)
    if len({id(app) for app in apps.values()}) > 1:
        raise Failure(f"{' and '.join(apps)} are different applications; a process has one")
    found = next(iter(apps.items()), ("", None))
    return LoadedModules(tuple(modules), found[1], found[0])


def load_module(name: str) -> ModuleType:
    """Import one module, or raise Failure that says what was tried, or what failed inside it."""
    _refuse_file(name)
    here = str(Path.cwd())
    _look_here_last(here)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise Failure(_missing(name, error, here)) from None
        raise _broken(name, error) from None
    except (Exception, SystemExit) as error:
        # Whatever a user's module raises while it is imported is shown to the user.
        raise _broken(name, error) from None
    _check_is_meant(module, here)
    return module


def _look_here_last(here: str) -> None:
    """Append the current folder to the path, unless Python was told not to (PYTHONSAFEPATH, -P).

    Last: a file in that folder must not shadow a module of Python's, or an installed one.
    """
    if here not in sys.path and not sys.flags.safe_path:
        sys.path.append(here)


def _check_is_meant(module: ModuleType, here: str) -> None:
    """Raise Failure if an installed module was imported, and the current folder has one of that name."""
    top = module.__name__.partition(".")[0]
    found = getattr(module, "__file__", None)
    if sys.flags.safe_path or found is None or Path(found).is_relative_to(here) or top not in _modules_in(Path(here)):
        return
    raise Failure(
        f"{module.__name__!r} is {found}, and there is a module {top!r} in {here}, too: rename that one, or set "
        f"PYTHONPATH={here} if you mean it"
    )


def stray_app(loaded: LoadedModules, settings: Settings) -> str:
    """Return the name of a module's application whose database, broker or namespace differ; empty if there is none."""
    ours = (settings.database_url, settings.broker_url, settings.namespace)
    for module in loaded.modules:
        for name, value in vars(module).items():
            if isinstance(value, Aft):
                theirs = value.settings
                if (theirs.database_url, theirs.broker_url, theirs.namespace) != ours:
                    return f"{module.__name__}:{name}"
    return ""


def _find_app(module: ModuleType, attribute: str) -> Aft:
    found = getattr(module, attribute, None)
    if isinstance(found, Aft):
        return found
    apps = [name for name, value in vars(module).items() if isinstance(value, Aft)]
    what = "does not exist" if found is None else f"is {with_article(type(found).__name__)}, not an aft.Aft"
    hint = f"{module.__name__} has {', '.join(map(repr, apps))}" if apps else f"name {module.__name__!r} alone"
    raise Failure(f"{module.__name__}:{attribute} {what}; {hint}")


def _refuse_file(name: str) -> None:
    if name.endswith(".py") or "/" in name or "\\" in name:
        module = name.removesuffix(".py").replace("\\", "/").strip("./").replace("/", ".")
        raise Failure(f"{name!r} is a file; name its module, from the directory where it can be imported: {module}")
    if not all(part.isidentifier() for part in name.split(".")):
        raise Failure(f"{name!r} is not the name of a module; write 'package.module' or 'package.module:app'")


def _missing(name: str, error: ModuleNotFoundError, here: str) -> str:
    which = f"there is no module {name!r}"
    if "is not a package" in str(error):
        return f"{which}: {name.rpartition('.')[0]!r} is a module, not a package"
    if error.name != name:
        which += f", not even {error.name!r},"
    near = difflib.get_close_matches(name, _modules_in(Path(here)), n=1)
    hint = f"did you mean {near[0]!r}?" if near else "is it installed in this Python, or in another directory?"
    if sys.flags.safe_path:
        hint = "PYTHONSAFEPATH, or -P, keeps Python from looking in the current folder: set PYTHONPATH, or install it"
        return f"{which} on the path of {sys.executable}; {hint}"
    return f"{which} in {here} or on the path of {sys.executable}; {hint}"


def _modules_in(directory: Path) -> list[str]:
    files = [path.stem for path in directory.glob("*.py")]
    return files + [path.parent.name for path in directory.glob("*/__init__.py")]


def _broken(name: str, error: BaseException) -> Failure:
    lines = "".join(traceback.format_exception_only(error)).strip().splitlines()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    shown = "".join(traceback.format_list(frames[-MOST_FRAMES:])).rstrip()
    if isinstance(error, SyntaxError):
        shown = "\n".join(lines[:-1])
    what = str(error) if isinstance(error, AftError) else lines[-1]
    return Failure(f"module {name!r} was found, but failed while it was imported: {what}", shown)


def _is_users(filename: str) -> bool:
    """Return whether a frame is of the user's code, not of what imports it."""
    return "importlib" not in filename and not Path(filename).is_relative_to(_OURS)
