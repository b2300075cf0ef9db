"""A spec has a mesh but no arrays, so there was nothing to check.

List the arrays under `arrays:` or `manifest:`, or name them for one run: `shardspec check --arrays
package.module:function`. Without arrays only the text of the rules is checked, not whether they fit
the model's names and sizes and the memory of a device. If the rules are only used from JAX code,
write `lints: {nothing-checked: allow}`. Only `check` reports this, and only if there is no other
finding. A preset has no mesh and is complete without arrays.

Bad:
    shardspec: 1
    mesh: {fsdp: 8}
    rules:
      - embed -> fsdp

Good:
       - embed -> fsdp
    +arrays:
    +  mlp/wi/kernel: bf16[embed=1024 _=4096]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardspec.diagnostics import Diagnostic, codes, point, quote
from shardspec.ir.spec import Params, Spec, Target


def findings(spec: Spec, params: Params, targets: Sequence[Target]) -> Iterator[Diagnostic]:
    """Yield a finding where there are targets, and neither arrays nor activations for them."""
    if not targets or params or spec.activations:
        return
    yield point(
        codes.NOTHING_CHECKED,
        "only the text was checked: there are no arrays",
        targets[0].span,
        "nothing uses it",
        help=f"add {quote.section('arrays:')} or {quote.section('manifest:')}, or pass --arrays"
        " FILE (or `package.module:function`);"
        f" for rules that only code uses, {quote.setting('lints', ('nothing-checked', 'allow'))}",
    )
