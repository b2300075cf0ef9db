"""Every finding: its page, and its check where one on this floor finds it.

A finding has its page in `pages/`, a text with a bad and a good example; the good one is what to
change in the bad one, where that is shorter. What is found on this floor has a function of its name
in a module of `checks/`, those about one thing in one. The code is a row of `diagnostics/codes.py`,
on the lowest floor, where levels are. No check is loaded before one is asked for: a page is a text.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from pkgutil import iter_modules
from textwrap import indent
from typing import TYPE_CHECKING, Any

from shardspec.diagnostics import Code, Diagnostic
from shardspec.diagnostics.budget import spend
from shardspec.diagnostics.codes import ALL
from shardspec.diagnostics.diagnostic import Stage

if TYPE_CHECKING:
    from shardspec.lints.context import Context

Check = Callable[..., Iterator[Diagnostic]]

_FOLDER = Path(__file__).parent
_CHANGE = re.compile(r" {4}[-+ ]")
_EXAMPLE = re.compile(r"^## (Bad|Good)\n\n```\w+\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


@cache
def checks() -> dict[Code, Check]:
    """Return the checks of plans by their codes, in the order that they run in."""
    return _checks("plan", "last")


@cache
def step_checks() -> dict[Code, Check]:
    """Return the checks that read a step, by their codes."""
    return _checks("step")


def _checks(*stages: Stage) -> dict[Code, Check]:
    known = _functions()
    names = {code: code.name.replace("-", "_") for code in ALL}
    found = {code: known[name] for code, name in names.items() if name in known}
    return {code: found[code] for stage in stages for code in found if code.runs == stage}


@cache
def _functions() -> Mapping[str, Any]:
    modules = (module.name for module in iter_modules([str(_FOLDER / "checks")]))
    return ChainMap(*(vars(import_module(f"shardspec.lints.checks.{name}")) for name in modules))


def run(context: Context, only: Container[Code] | None = None) -> Iterator[Diagnostic]:
    """Yield what every check finds, or those of some codes."""
    for code, check in checks().items():
        if only is not None and code not in only:
            continue
        spend(100)
        for found in check(context):
            spend(100)
            yield found
    yield from run_on_steps(context)


def run_on_steps(context: Context) -> Iterator[Diagnostic]:
    """Yield what the checks that read a step find, each on the target of its step."""
    for check in step_checks().values() if context.costs else ():
        for cost, step in context.steps:
            for found in check(cost, step):
                yield replace(found, target=cost.target.name)


def page(code: Code) -> str:
    """Return what is to be read of a finding: the fact, the reason, a bad and a good example."""
    written = (_FOLDER / "pages" / f"{code.name}.md").read_text(encoding="utf-8")
    _, _, text = written.partition("\n\n")
    text = _EXAMPLE.sub(lambda found: f"{found[1]}:\n{indent(found[2], '    ')}", text).rstrip()
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
