"""The array that another one derives from does not exist.

An entry of `derive:` lays an array out from its parent. The parent is looked for by its path, among
the arrays that are planned and those that the spec lists; without it the array is replicated on
every device. A tree with the small arrays alone, such as the parameters of LoRA, needs the others
in `arrays` or `manifest`.

Bad:
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      - mlp -> tensor
    derive:
      "**/lora_b": from **/weight dims _ 1
    params:
      "**/kernel": _ mlp
    arrays:
      mlp/wi/kernel: bf16[64, 128]
      mlp/wi/lora_b: bf16[8, 128]

Good:
    -  "**/lora_b": from **/weight dims _ 1
    +  "**/lora_b": from **/kernel dims _ 1
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic, codes, labels_at
from shardspec.diagnostics.words import grouped, nearest, template
from shardspec.ir.plan import Derivation, ParamSharding
from shardspec.ir.spec import DeriveRule
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import with_cost


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each entry and kind of array whose parent is not there."""
    alone = [each for each in context.first if each.derivation and each.derivation.parent is None]
    groups = grouped(alone, lambda each: (each.named_at, template(each.path)))
    for group in groups.values():
        first = group[0]
        if first.derivation is not None and isinstance(first.matched, DeriveRule):
            finding = _finding(first, first.derivation, first.matched, context)
            yield with_cost(finding, context, [each.path for each in group])


def _finding(
    first: ParamSharding, derivation: Derivation, rule: DeriveRule, context: Context
) -> Diagnostic:
    wanted = derivation.wanted
    if not rule.parent:
        why = f"`{first.path}` belongs to no parameter, and `{rule.pattern}` names no parent"
        help = "say where it is, as in `from **/kernel dims 0 _`"
    elif not wanted:
        why = f"`{first.path}` would derive from itself, by `{rule}`"
        help = "let `from` say the path of another array, or narrow the pattern"
    elif any(path in context.paths for path in wanted):
        why = f"`{first.path}` derives from `{wanted[0]}`, and that goes round in a circle"
        help = "narrow the patterns: one of the arrays has to be named by `params`"
    else:
        places = " or ".join(f"`{path}`" for path in wanted[:_SHOWN])
        why = f"`{first.path}` derives from {places}, and no array is called so"
        near = nearest(wanted[0], [path for path in context.paths if path != first.path])
        help = f"the nearest path is `{near[0]}`; " if near else ""
        help += "write another `from`, or list the parent under `arrays` or `manifest`, where only"
        help += " a part of the model is given"
    return Diagnostic(
        codes.MISSING_PARENT,
        why,
        labels_at((rule.span, "matches it"), (first.param.span, "is replicated")),
        help=help,
    )


#: Places that are shown of those where a parent was looked for.
_SHOWN = 3
