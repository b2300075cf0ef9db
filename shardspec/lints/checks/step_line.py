"""A line of `step:` does not match the arrays, activations and axes of the spec.

A line names what it reads and makes: a value that a line before makes, an activation, an array by
pattern. What is named has to be there, the names in brackets have to be as many as the dimensions,
and in an einsum everything has to agree: a name has one size, what the result has must come from
something that is read, and a name that only one operand has would be summed over without need.

Lines of a step that the spec extends are for many models: those that match no array are left out,
and it is a finding only where nothing is left.

Bad:
    shardspec: 1
    mesh: {data: 8}
    axes: {batch: 64, length: 128, embed: 256, mlp: 1024}
    rules:
      - batch, embed -> data
      - length, mlp -> none
    params:
      wi: embed mlp
    arrays:
      wi: f32[256, 1024]
    step:
      program:
        - residual[batch length embed], "wi" -> hidden[batch length heads]

Good:
    -    - residual[batch length embed], "wi" -> hidden[batch length heads]
    +    - residual[batch length embed], "wi" -> hidden[batch length mlp]
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic
from shardspec.lints.context import Context


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield why lines of `step:` cannot be; without arrays, nothing is known of them."""
    if context.spec.step is not None and context.all_plans and context.first:
        yield from context.flow.faults
