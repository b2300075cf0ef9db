"""`policy: {indivisible: pad}` makes an axis longer, so that mesh axes divide it.

The layout, the memory and the cost are those of the padded size. Build the model with it:
`resolver.size("vocab")` returns it, and `resolver.padded` pads arrays that have the true size. The
values of the padding are zeros, and your code must not read them: mask the logits of the padded
part of a vocabulary. If this is intended, there is nothing to do.

`shardspec check` prints one line for each padded axis; `--pedantic` shows the full finding.
SHD316 reports padding of 10 % or more.

Bad:
    shardspec: 1
    mesh: {tensor: 8}
    policy: {indivisible: pad}
    rules:
      - vocab -> tensor
      - embed -> none
    arrays:
      embedding: bf16[vocab=51865 embed=1280]

Good:
    -  embedding: bf16[vocab=51865 embed=1280]
    +  embedding: bf16[vocab=51872 embed=1280]
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic, codes
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import finding, paddings


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each axis that is padded by less than a tenth."""
    for found in paddings(context):
        if not found.is_much:
            help = f'build the model with `resolver.size("{found.axis}")`, which is {found.size}'
            yield finding(context, codes.PADDED_AXIS, found, help)
