"""`package.module:function` -> the arrays that the function makes, without making them.

The one way to arrays that runs a user's code, so it is taken only where the command line spells
it out. The function is called without arguments under `jax.eval_shape`; what is no function is
taken as the tree itself. What it prints goes to stderr, since stdout is for the answer.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any

from shardspec.diagnostics import Diagnostic, ShardspecError, Span, codes, point
from shardspec.diagnostics.words import did_you_mean, listed
from shardspec.ir.spec import Params, StatePolicy
from shardspec.language.files import read_source

_WRAP = "it is called without arguments: wrap what needs some, `def arrays(): return init(key)`"


def call_entry_point(
    name: str, policy: StatePolicy | None = None
) -> tuple[Params, tuple[Diagnostic, ...]]:
    """Return the arrays of the tree that `package.module:function` gives, or why there are none.

    The current folder is searched for modules first, as `python -m` does.

    Args:
      policy: of the spec that they are for: under ZeRO they are parameters alone.
    """
    with _this_folder_first(), contextlib.redirect_stdout(sys.stderr):
        try:
            found = _find(name)
            params = found if isinstance(found, Diagnostic) else _arrays(found, policy)
        except ShardspecError as error:
            return (), error.diagnostics
        except (Exception, SystemExit) as error:
            return (), (_raised(name, error),)
    if isinstance(params, Diagnostic):
        return (), (params,)
    if not params:
        help = "return a tree of arrays or `ShapeDtypeStruct`s"
        return (), (Diagnostic(codes.BAD_MANIFEST, f"`{name}` gives no arrays", help=help),)
    return params, ()


@contextlib.contextmanager
def _this_folder_first() -> Iterator[None]:
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def _find(name: str) -> Any:
    """Return what the name stands for, or a `Diagnostic` where there is no such thing."""
    module_name, _, route = name.partition(":")
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name != missing and not module_name.startswith(f"{missing}."):
            raise
        message = f"there is no module `{missing}`"
        help = "it is looked for in this folder, then where Python looks"
        return Diagnostic(codes.UNKNOWN_PRESET, f"`{name}`: {message}", help=help)
    here = module_name
    for attribute in route.split("."):
        if not hasattr(found, attribute):
            public = [each for each in dir(found) if not each.startswith("_")]
            message = f"`{here}` has no `{attribute}`"
            return Diagnostic(codes.UNKNOWN_PRESET, message, help=_names(attribute, public))
        found, here = getattr(found, attribute), f"{here}.{attribute}"
    return found


def _names(attribute: str, public: list[str]) -> str:
    return did_you_mean(attribute, public) or f"there are {listed(public)}"


def _arrays(made: Any, policy: StatePolicy | None) -> Params:
    """Return the arrays of a tree, or of what a function returns."""
    import jax

    from shardspec.jax_backend.train_state import arrays_alone

    if not callable(made):
        return arrays_alone(made, policy)
    kept: list[Params] = []

    def traced() -> None:
        kept.append(arrays_alone(made(), policy))

    jax.eval_shape(traced)
    return kept[0]


def _raised(name: str, error: BaseException) -> Diagnostic:
    """Return the finding for an exception, at the innermost line of the user's own."""
    first = str(error).strip().partition("\n")[0].rstrip(".")
    message = f"`{name}` raised {type(error).__name__}" + (f": {first}" if first else "")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame)]
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        span = _line(error.filename, error.lineno)
    else:
        span = _line(frames[-1].filename, frames[-1].lineno or 1) if frames else None
    help = _WRAP if isinstance(error, TypeError) and "argument" in first else None
    return point(codes.BAD_MANIFEST, message, span, "raised here" if span else "", help=help)


def _is_users(frame: traceback.FrameSummary) -> bool:
    """Say whether a frame is in code that is neither installed nor ours."""
    path = os.path.abspath(frame.filename)
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    installed = ("site-packages", "dist-packages", f"{os.sep}lib{os.sep}python")
    is_ours = path.startswith(ours + os.sep)
    return os.path.isfile(path) and not is_ours and not any(each in path for each in installed)


def _line(path: str, number: int) -> Span | None:
    """Return the line of a source file, without its indentation."""
    from pathlib import Path

    shown = os.path.relpath(path)
    source = read_source(Path(path), name=path if shown.startswith("..") else shown)
    if isinstance(source, Diagnostic):
        return None
    lines = source.text.split("\n")
    if not 0 < number <= len(lines):
        return None
    start = sum(len(line) + 1 for line in lines[: number - 1])
    text = lines[number - 1].rstrip()
    return Span(source, start + len(text) - len(text.lstrip()), start + len(text))
