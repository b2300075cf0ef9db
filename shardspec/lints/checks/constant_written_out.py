"""The compiler writes a constant out in memory, as large as the array that it is used with.

Found in the compiled program (`--basis auto` or `compiler`). A scale, a mask or the number that
fills in masked scores is small, and a kernel that reads it can repeat it. libtpu for v6e and v7x
writes it to memory where scores of attention in f32 have 2,817 to 6,399 keys: a scale, a mask and
its number take three times the memory of the scores. It does so neither with a mask that is added
nor with queries that were scaled before the product. Reported where it is large for the step.

Bad:
    # def attend(params, x):
    #     heads = (x @ params["q"]).reshape(16, 4096, 8, 128)
    #     scores = jnp.einsum("bqhk,bthk->bhqt", heads, heads, preferred_element_type="float32")
    #     mask = jnp.tril(jnp.ones((4096, 4096), bool))
    #     scores = jnp.where(mask, scores * 0.09, -1e9)
    #     weights = jax.nn.softmax(scores).astype("bfloat16")
    #     return jnp.mean(jnp.einsum("bhqt,bthk->bqhk", weights, heads) ** 2)
    # step = jax.grad(attend)
    shardspec: 1
    hardware: tpu v6e 4x4
    mesh: {data: 4, tensor: 4}
    axes: {batch: 16, length: 4096, features: 1024}
    rules:
      - batch -> data
      - joined -> tensor
      - length, features -> none
    params:
      q: features joined
    arrays:
      q: bf16[1024, 1024]
    activations:
      x: batch length features

Good:
    -#     heads = (x @ params["q"]).reshape(16, 4096, 8, 128)
    -#     scores = jnp.einsum("bqhk,bthk->bhqt", heads, heads, preferred_element_type="float32")
    +#     heads = (x @ params["q"]).reshape(16, 4096, 8, 128)
    +#     small = heads * 0.09
    +#     scores = jnp.einsum("bqhk,bthk->bhqt", small, heads, preferred_element_type="float32")
    -#     scores = jnp.where(mask, scores * 0.09, -1e9)
    +#     scores += jnp.where(mask, 0, -1e9)
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.analysis.cost import Cost
from shardspec.analysis.coverage import is_large
from shardspec.diagnostics import Diagnostic, codes, point
from shardspec.diagnostics.words import binary_bytes, grouped
from shardspec.ir.step import Step
from shardspec.lints.evidence.steps import per_step

_SHOWN = 5


def check(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield one finding for all constants of a step that the compiler writes out."""
    del step
    found = [each for each in cost.added if each.what == "written out"]
    size = sum(each.step_bytes for each in found)
    if not is_large(max((each.bytes for each in found), default=0), cost.memory.total.bytes):
        return
    lines = grouped(found, lambda each: (each.array, each.place))
    notes = (
        f"{binary_bytes(round(sum(each.step_bytes for each in same)))}  {array}, {place}"
        for (array, place), same in [*lines.items()][:_SHOWN]
    )
    yield point(
        codes.CONSTANT_WRITTEN_OUT,
        f"the compiler writes constants out to the size of what they are used with:"
        f" {per_step(size)}",
        cost.target.span,
        notes=tuple(notes),
        help="scale queries before their product with keys, and add the mask to the scores"
        " (`scores + jnp.where(mask, 0, -1e9)`): kernels repeat these themselves",
    )
