"""Every finding: its page, and its check where one on this floor finds it.

A finding that is made on this floor is one file in `checks/`: page (the docstring), bad and good
example, check. What other stages find has its page in `pages/`, a text. The code of either is a row
of `diagnostics/codes.py`, on the lowest floor, where levels are. Nothing is loaded before it is
asked for, and a page is read as text: to ask what one finding means loads no check.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from textwrap import indent
from types import ModuleType
from typing import TYPE_CHECKING

from shardspec.diagnostics import Code, Diagnostic
from shardspec.diagnostics.budget import spend
from shardspec.diagnostics.codes import ALL

if TYPE_CHECKING:
    from shardspec.lints.context import Context

#: The modules with a `check(context)`, in the order they run; each is called after its code.
CHECKS: tuple[str, ...] = (
    *("unknown_mesh_axis", "lost_in_phase", "unknown_logical_axis", "axis_without_array"),
    *("axis_without_rule", "unused_let", "dead_rule", "unmatched_pattern"),
    *("hidden_pattern", "single_digit", "unnamed_array", "unnamed_small", "missing_parent"),
    *("derived_misfit", "rank_mismatch", "repeated_axis", "indivisible", "size_mismatch"),
    *("cut_unit", "cut_part", "uneven_microbatch", "below_tile", "below_minimum"),
    *("size_one_axis", "submesh_tiling", "missing_memory", "crosses_slices", "slow_ring"),
    *("replicated_large", "pinned_large", "replicated_over_budget", "exceeds_memory"),
    *("dominant_array", "uneven_load", "needless_replicate", "activation_conflict"),
    *("state_not_split", "target_name", "nameless_dimension", "lost_contest"),
    *("short_range", "broken_unit", "whole_batch", "unused_mesh_axis", "tensor_over_dcn"),
    *("replicated_here", "explicit_fsdp", "fast_link", "sums_not_explicit"),
    *("rule_without_array", "fallback_never_reached", "contested_axis"),
    *("priority_reorders", "tuple_skipped", "conflicting_names"),
    *("regex_like_glob", "nnx_differs"),
    # after those that ask about paths: what they ran under shows then
    *("slow_regex", "step_line", "unread_arrays", "faster_mesh", "regex_budget"),
)

#: Those that read a step as well, and find nothing without one; in the order they run.
STEP_CHECKS: tuple[str, ...] = (
    *("resharded_twice", "forced_gather", "needless_gather", "repeated_over_dcn"),
    *("repeated_work", "full_rematerialization", "invariant_gather"),
    *("activations_summed", "experts_gathered", "repeated_sum", "torn_batch"),
    *("compiles_twice", "guessed_placement", "step_exceeds_memory", "unknown_operation"),
)

_FOLDER = Path(__file__).parent
_EXAMPLE = re.compile(r"^## (Bad|Good)\n\n```\w+\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


@cache
def checks() -> tuple[ModuleType, ...]:
    """Return the modules of `CHECKS`, loaded."""
    return tuple(import_module(f"shardspec.lints.checks.{name}") for name in CHECKS)


@cache
def step_checks() -> tuple[ModuleType, ...]:
    """Return the modules of `STEP_CHECKS`, loaded."""
    return tuple(import_module(f"shardspec.lints.checks.{name}") for name in STEP_CHECKS)


def run(context: Context) -> Iterator[Diagnostic]:
    """Yield what every check finds."""
    for module in checks():
        spend(100)
        for found in module.check(context):
            spend(100)
            yield found
    yield from run_on_steps(context)


def run_on_steps(context: Context) -> Iterator[Diagnostic]:
    """Yield what the checks that read a step find."""
    for module in step_checks() if context.costs else ():
        yield from module.check(context)


def codes() -> tuple[Code, ...]:
    """Return the codes that have a check, in the order of the checks."""
    return _codes(CHECKS)


def step_codes() -> tuple[Code, ...]:
    """Return the codes that have a check which reads a step."""
    return _codes(STEP_CHECKS)


def _codes(checks: Iterable[str]) -> tuple[Code, ...]:
    by_name = {code.name.replace("-", "_"): code for code in ALL}
    return tuple(by_name[name] for name in checks)


def page(code: Code) -> str:
    """Return what is to be read of a finding: the fact, the reason, a bad and a good example."""
    written = _FOLDER / "pages" / f"{code.name}.md"
    if written.is_file():
        _, _, text = written.read_text(encoding="utf-8").partition("\n\n")
        return _EXAMPLE.sub(lambda found: f"{found[1]}:\n{indent(found[2], '    ')}", text).rstrip()
    name = code.name.replace("-", "_")
    source = _FOLDER / "checks" / f"{name}.py"
    if source.is_file():
        return ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    # where only compiled files are installed
    module = import_module(f"shardspec.lints.checks.{name}")
    return inspect.cleandoc(module.__doc__ or "")
