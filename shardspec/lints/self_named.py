"""Entries of `params:` that ask for names, and every array has others of its own.

Names that an array carries come before `params:`, so such an entry decides nothing. Where the two
say the same it is a note for whoever reads the spec; where they differ, one of them is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shardspec.diagnostics import Diagnostic, Label
from shardspec.diagnostics.codes import HIDDEN_PATTERN as CODE
from shardspec.ir.grouping import described
from shardspec.ir.param import LogicalAxes
from shardspec.ir.plan import Origin, ParamSharding
from shardspec.ir.spec import PathRule
from shardspec.lints.context import Context
from shardspec.resolve.match import path_matcher


@dataclass(slots=True)
class _Claims:
    """The arrays of which an entry is the first that matches.

    Attributes:
      named: those that carry names.
      is_used: whether it names any other.
    """

    named: list[ParamSharding] = field(default_factory=list)
    is_used: bool = False


def outvoted(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each own entry of `params:` whose arrays name themselves otherwise."""
    rules = context.spec.path_rules
    if not any(context.is_own(rule.pattern.span) for rule in rules):
        return
    for at, claims in sorted(_claims(rules, context.first).items()):
        rule = rules[at]
        if claims.is_used or not context.is_own(rule.pattern.span):
            continue
        others = [each for each in claims.named if _differs(rule, each)]
        if others:
            yield _finding(rule, claims.named, others)


def _claims(rules: Sequence[PathRule], shardings: Sequence[ParamSharding]) -> dict[int, _Claims]:
    """Return what each entry would name, by its position; overrides come before all of them."""
    matcher = path_matcher(tuple(rule.pattern for rule in rules))
    places = {rule: at for at, rule in reversed([*enumerate(rules)])}
    claims: dict[int, _Claims] = {}
    for sharding in shardings:
        if sharding.origin is Origin.PARAMS:
            at = places.get(sharding.matched) if isinstance(sharding.matched, PathRule) else None
            if at is not None:
                claims.setdefault(at, _Claims()).is_used = True
        elif sharding.origin is Origin.ARRAY:
            at = matcher.first_match(sharding.param.path)
            if at is not None:
                claims.setdefault(at, _Claims()).named.append(sharding)
    return claims


def _differs(rule: PathRule, sharding: ParamSharding) -> bool:
    """Say whether an array's names are others; more of them may be stacked axes."""
    names = iter(sharding.param.logical_axes or ())
    return not all(name in names for name in rule.logical_axes)


def _finding(
    rule: PathRule, named: Sequence[ParamSharding], others: Sequence[ParamSharding]
) -> Diagnostic:
    asked, first = _said(rule.logical_axes), others[0].param
    said = _said(first.logical_axes or ())
    labels = []
    if rule.pattern.span is not None:
        labels.append(Label(rule.pattern.span, f"would say `{asked}`"))
    if first.span is not None:
        labels.append(Label(first.span, f"says `{said}`", primary=not labels))
    both = (f"`{first.path}` says `{said}`, and this `{asked}`",) if first.span is None else ()
    return Diagnostic(
        CODE,
        f"params pattern `{rule.pattern}` has no effect: {_who(len(named), len(others))}",
        tuple(labels),
        notes=(*both, described(each.param.path for each in others)),
        help="take it out, or put it under `overrides`, which come before an array's own names",
    )


def _who(named: int, others: int) -> str:
    """Return whose names count, and how many of them are others."""
    if named == 1:
        return "the only array it matches carries names of its own, different ones"
    share = "" if named == others else f" in {others}"
    return f"all {named} arrays it matches carry names of their own, different ones{share}"


def _said(names: LogicalAxes) -> str:
    return " ".join(name or "_" for name in names)
