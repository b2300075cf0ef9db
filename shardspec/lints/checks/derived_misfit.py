"""An array has not the dimensions that `derive:` gives it.

Each dimension in `dims` is one of the parent's: as long as that, or as its spelling says, `0/128`
with one for each 128, `0*8` with 8 for each; size 1 is always whole. Where a size is another, the
entry is for other arrays, or the parent is another one. Nothing is guessed: the array stays whole.

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
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      - mlp -> tensor
    derive:
      "**/scale": from **/kernel dims 0/128 1
    params:
      "**/kernel": _ mlp
    arrays:
      mlp/wi/kernel: s8[1024, 128]
      mlp/wi/scale: f32[8, 128]
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic, codes, labels_at
from shardspec.diagnostics.words import grouped
from shardspec.ir.plan import Derivation, ParamSharding
from shardspec.ir.spec import DeriveRule, Param, ParentDim
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import with_cost


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each entry and fault."""
    wrong = [each for each in context.first if each.derivation and each.derivation.fault]
    for group in grouped(wrong, _entry_and_fault).values():
        yield with_cost(_finding(group[0]), context, [each.path for each in group])


def _entry_and_fault(sharding: ParamSharding) -> tuple[object, str]:
    return sharding.named_at, sharding.derivation.fault if sharding.derivation else ""


def _finding(first: ParamSharding) -> Diagnostic:
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
        help=_help(param, derivation, parent),
    )


def _help(param: Param, derivation: Derivation, parent: Param) -> str:
    if derivation.reading:
        spelt = [
            _fitting(size, dim, parent)
            for size, dim in zip(param.shape, derivation.reading, strict=True)
        ]
        return f"`dims {' '.join(spelt)}` fits these sizes; or another parent was meant"
    example = " ".join(["0", *["_"] * (param.rank - 1)])
    return (
        f"say of each of the {param.rank} dimensions which of the parent's it is: `dims {example}`;"
        " `_` is none, `0/any` one for each block of them, `0*any` several for each"
    )


def _fitting(size: int, dim: ParentDim | str | None, parent: Param) -> str:
    """Return a dimension as it would fit; `_` where nothing of the parent's does."""
    if not isinstance(dim, ParentDim):
        return dim or "_"
    whole = parent.shape[dim.place or 0]
    if size in (1, whole):
        return str(dim.place)
    if 0 < size < whole and whole % size == 0:
        return f"{dim.place}/{whole // size}"
    return f"{dim.place}*{size // whole}" if whole and size % whole == 0 else "_"
