"""An array does not have the dimensions that `derive:` gives it.

Each dimension in `dims` is one of the parent's: as long as that, or as its spelling says, `0/128`
with one for each 128, `0*8` with 8 for each; size 1 is always whole. If a size differs, the entry
was written for other arrays or another parent. The array is replicated.

Bad:
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      - mlp -> tensor
    derive:
      "**/scale": from **/kernel dims 0 1
    params:
      "**/kernel": _ mlp
    arrays:
      mlp/wi/kernel: s8[1024, 128]
      mlp/wi/scale: f32[8, 128]

Good:
    -  "**/scale": from **/kernel dims 0 1
    +  "**/scale": from **/kernel dims 0/128 1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardspec.diagnostics import Diagnostic, codes, labels_at
from shardspec.diagnostics.words import grouped
from shardspec.ir.plan import ParamSharding
from shardspec.ir.spec import DeriveRule, Param
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import with_cost
from shardspec.lints.evidence.derive_cures import cure


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each entry and fault."""
    wrong = [each for each in context.first if each.derivation and each.derivation.fault]
    for at, group in enumerate(grouped(wrong, _entry_and_fault).values()):
        finding = _finding(group[0], context.first if at < _MOST_CURES else ())
        yield with_cost(finding, context, [each.path for each in group])


#: Findings for which a cure is looked for among all arrays.
_MOST_CURES = 16


def _entry_and_fault(sharding: ParamSharding) -> tuple[object, str]:
    return sharding.named_at, sharding.derivation.fault if sharding.derivation else ""


def _finding(first: ParamSharding, arrays: Sequence[ParamSharding]) -> Diagnostic:
    derivation, rule = first.derivation, first.matched
    assert derivation is not None
    assert derivation.parent is not None
    assert isinstance(rule, DeriveRule)
    parent, param = derivation.parent.param, first.param
    return Diagnostic(
        codes.DERIVED_MISFIT,
        f"`{param.path}` derives from `{parent.path}`, {derivation.fault}",
        labels_at(
            (rule.span, "does not fit"), (param.span, str(param)), (parent.span, str(parent))
        ),
        help=cure(first, arrays) or _help(rule, param, derivation.parent),
    )


def _help(rule: DeriveRule, param: Param, parent: ParamSharding) -> str:
    if parent.derivation is not None and (parent.derivation.fault or not parent.derivation.parent):
        return f"lay out `{parent.path}` first"
    if rule.factors is not None:
        return (
            f"say in `params` what `{parent.path}` reads, as in `in:embed mlp`; or name it in an"
            f" entry for this array, as in `from {rule.parent} = {rule.factors.left.text}[embed]"
            f" @ {rule.factors.right.text}`"
        )
    return (
        f"say of each of the {param.rank} dimensions which of the parent's it is, by number;"
        " `_` is none, `0/any` one for each block of the first, `0*any` several for each"
    )
