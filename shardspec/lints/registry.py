"""Every finding: its page, and its check where one on this floor finds it.

A finding that is made on this floor is one file in `checks/`: page (the docstring), bad and good
example, check. The good example is what to change in the bad one, where that is shorter. What other
stages find has its page in `pages/`, a text. The code of either is a row of `diagnostics/codes.py`,
on the lowest floor, where levels are. Nothing is loaded before it is asked for, and a page is read
as text: to ask what one finding means loads no check.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Container, Iterator
from dataclasses import replace
from functools import cache
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from pkgutil import iter_modules
from textwrap import indent
from types import ModuleType
from typing import TYPE_CHECKING

from shardspec.diagnostics import Code, Diagnostic
from shardspec.diagnostics.budget import spend
from shardspec.diagnostics.codes import ALL
from shardspec.diagnostics.diagnostic import Stage
from shardspec.python_syntax import parsed

if TYPE_CHECKING:
    from shardspec.lints.context import Context

_FOLDER = Path(__file__).parent
_CHANGE = re.compile(r" {4}[-+ ]")
_EXAMPLE = re.compile(r"^## (Bad|Good)\n\n```\w+\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


@cache
def checks() -> tuple[ModuleType, ...]:
    """Return the modules of `codes`, loaded."""
    return tuple(map(_module, codes()))


@cache
def step_checks() -> tuple[ModuleType, ...]:
    """Return the modules of `step_codes`, loaded."""
    return tuple(map(_module, step_codes()))


def run(context: Context, only: Container[Code] | None = None) -> Iterator[Diagnostic]:
    """Yield what every check finds, or those of some codes."""
    for code, module in zip(codes(), checks(), strict=True):
        if only is not None and code not in only:
            continue
        spend(100)
        for found in module.check(context):
            spend(100)
            yield found
    yield from run_on_steps(context)


def run_on_steps(context: Context) -> Iterator[Diagnostic]:
    """Yield what the checks that read a step find, each on the target of its step."""
    for module in step_checks() if context.costs else ():
        for cost, step in context.steps:
            for found in module.check(cost, step):
                yield replace(found, target=cost.target.name)


def codes() -> tuple[Code, ...]:
    """Return the codes that have a check, in the order of the checks."""
    return _checked("plan", "last")


def step_codes() -> tuple[Code, ...]:
    """Return the codes that have a check which reads a step."""
    return _checked("step")


@cache
def _checked(*stages: Stage) -> tuple[Code, ...]:
    known = {module.name for module in iter_modules([str(_FOLDER / "checks")])}
    found = [code for code in ALL if code.name.replace("-", "_") in known]
    return tuple(code for stage in stages for code in found if code.runs == stage)


def _module(code: Code) -> ModuleType:
    name = code.name.replace("-", "_")
    return import_module(f"shardspec.lints.checks.{name}")


def page(code: Code) -> str:
    """Return what is to be read of a finding: the fact, the reason, a bad and a good example."""
    written = _FOLDER / "pages" / f"{code.name}.md"
    if written.is_file():
        _, _, text = written.read_text(encoding="utf-8").partition("\n\n")
        return _EXAMPLE.sub(lambda found: f"{found[1]}:\n{indent(found[2], '    ')}", text).rstrip()
    source = _FOLDER / "checks" / f"{code.name.replace('-', '_')}.py"
    if source.is_file():
        text = ast.get_docstring(parsed(source.read_text(encoding="utf-8"))) or ""
    else:  # where only compiled files are installed
        text = inspect.cleandoc(_module(code).__doc__ or "")
    bad, heading, change = text.rpartition("\nGood:\n")
    is_change = heading and _CHANGE.match(change)
    return f"{bad}{heading}{_changed(bad + heading, change)}" if is_change else text


def _changed(bad: str, change: str) -> str:
    """Return the good example: the bad one with the lines of `-` out and those of `+` in.

    A line behind a blank stays; it says where the next `+` belongs.
    """
    _, _, example = bad.partition("Bad:\n")
    left = iter(example.rpartition("\nGood:\n")[0].rstrip().splitlines())
    good: list[str] = []
    for line in change.splitlines():
        sign, text = line[4], f"    {line[5:]}"
        if sign != "+":
            good += takewhile(text.__ne__, left)
        if sign != "-":
            good.append(text)
    return "\n".join((*good, *left))
