"""Arrays by path or glob, with the nearest path for one that is not there."""

from __future__ import annotations

import re
from typing import NoReturn

from shardspec.cli.session import FAILED, fail
from shardspec.cli.streams import echo
from shardspec.ir.plan import ParamSharding, ShardingPlan


def select_or_exit(subject: str, plan: ShardingPlan) -> list[ParamSharding]:
    """Return the arrays that `subject` names; exit with 2 and the nearest where there is none."""
    found = _matching(subject, plan)
    if not found:
        _unknown_path(subject, plan)
    return found


def has_path(plan: ShardingPlan, path: str) -> bool:
    """Say whether an array has this path."""
    return any(sharding.param.path == path for sharding in plan.params)


def _matching(subject: str, plan: ShardingPlan) -> list[ParamSharding]:
    """Return the array with this path, or those that match it as a glob."""
    exact = [sharding for sharding in plan.params if sharding.param.path == subject]
    if exact or not set(subject) & set("*{?"):
        return exact
    from shardspec.frontend.grammar.syntax import SyntaxFault
    from shardspec.frontend.patterns.glob import compile_glob
    from shardspec.ir.spec import Pattern
    from shardspec.resolve.match import PathMatcher

    compiled = compile_glob(subject)
    if isinstance(compiled, SyntaxFault):
        fail(f"`{subject}`: {compiled.message}", compiled.help)
    matcher = PathMatcher((Pattern(subject),))
    return [s for s in plan.params if matcher.first_match(s.param.path) is not None]


def _unknown_path(subject: str, plan: ShardingPlan) -> NoReturn:
    from shardspec.diagnostics.suggest import nearest
    from shardspec.ir.grouping import counted, template
    from shardspec.report.finding_page import near_findings

    named = near_findings(subject)
    if not plan.params:
        ways = ("add `arrays:` or `manifest:`, or pass --params FILE", named)
        fail("the spec lists no arrays", "; ".join(filter(None, ways)))
    paths = {template(s.param.path): s.param.path for s in reversed(plan.params)}
    near = [
        _with_numbers(subject, paths[key], plan)
        for key in nearest(template(subject), paths, count=3)
    ]
    near += nearest(subject, [each.activation.name for each in plan.activations], count=1)
    meant = f"did you mean {' or '.join(f'`{path}`' for path in near)}?" if near else None
    help = "; ".join(filter(None, (named, meant)))
    count = counted(len(plan.params), "array")
    echo(f"Error: no array has the path `{subject}` ({count})", err=True)
    if help:
        echo(f"  help: {help}", err=True)
    raise SystemExit(FAILED)


def _with_numbers(subject: str, path: str, plan: ShardingPlan) -> str:
    """Return `path` with the numbers of `subject`, where such an array exists."""
    numbers = iter(re.findall(r"\d+", subject))
    candidate = re.sub(r"\d+", lambda found: next(numbers, found[0]), path)
    return candidate if has_path(plan, candidate) else path
