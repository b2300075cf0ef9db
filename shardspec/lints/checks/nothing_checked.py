"""A spec has a mesh and nothing to lay out on it, so there was nothing to check.

Rules for use from JAX code alone are fine, and `check` reads their text. But whether they fit a
model, its names, its sizes and the memory of a device, only its arrays can tell: list them under
`arrays:` or `manifest:`, or name them for one run: `shardspec check --arrays
package.module:function`. Told by `check` alone, and where it has nothing else to say; a preset,
which has no mesh, is complete without arrays. Where rules are for code only, say so:
`lints: {nothing-checked: allow}`.

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
        "nothing was checked but the text: there are no arrays",
        targets[0].span,
        "nothing lies on it",
        help=f"add {quote.section('arrays:')} or {quote.section('manifest:')}, or pass --arrays"
        " FILE (or `package.module:function`);"
        f" for rules that only code uses, {quote.setting('lints', ('nothing-checked', 'allow'))}",
    )
