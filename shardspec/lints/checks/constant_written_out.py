"""The compiler writes a constant out in memory, as large as the array that it is used with.

Found in the compiled program (`--basis auto` or `compiler`). A scale, a mask or the number that
fills in masked scores is small, and a kernel that reads it can repeat it. libtpu for v6e and v7x
writes it to memory where scores of attention in f32 have 2,817 to 6,399 keys: a scale, a mask and
its number take three times the memory of the scores. It does so neither with a mask that is added
nor with queries that were scaled before the product. libtpu for all TPUs writes out 32 arrays that
random bits are made of, where dropout of 896 to 1,152 scores squared is computed again in a
backward pass; a mask that all heads share avoids it. Reported where it is large for the step.

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

from collections.abc import Iterator, Sequence

from shardspec.analysis.cost import Added, Cost
from shardspec.analysis.coverage import is_large
from shardspec.diagnostics import Diagnostic, codes, point
from shardspec.diagnostics.words import binary_bytes, grouped
from shardspec.ir.step import Step
from shardspec.lints.evidence.steps import per_step

_SHOWN = 5


#: The ways out, for a constant and for what random bits are made of.
_OF_CONSTANTS = (
    "scale queries before their product with keys, and add the mask to the scores"
    " (`scores + jnp.where(mask, 0, -1e9)`): kernels repeat these themselves"
)
_OF_BITS = (
    "draw one mask for all heads (`broadcast_dims` of `nn.Dropout` names the dimensions of heads,"
    " and `jax.random.bernoulli` takes 1 for them), or do not drop attention weights where layers"
    " are rematerialized"
)


def check(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for all constants of a step that the compiler writes out, and all bits."""
    del step
    found = [each for each in cost.added if each.what == "written out"]
    drawn = {_sizes(each) for each in found if each.array.startswith("u32[")}
    bits = [each for each in found if _sizes(each) in drawn]
    others = [each for each in found if _sizes(each) not in drawn]
    yield from _told(
        cost, others, "constants out to the size of what they are used with", _OF_CONSTANTS
    )
    yield from _told(cost, bits, "out what random bits are made of", _OF_BITS)


def _sizes(each: Added) -> str:
    return each.array.partition("[")[2]


def _told(cost: Cost, found: Sequence[Added], what: str, help: str) -> Iterator[Diagnostic]:
    if not is_large(max((each.bytes for each in found), default=0), cost.memory.total.bytes):
        return
    lines = grouped(found, lambda each: (each.array, each.place))
    notes = (
        f"{binary_bytes(round(sum(each.step_bytes for each in same)))}  {array}, {place}"
        for (array, place), same in [*lines.items()][:_SHOWN]
    )
    size = per_step(sum(each.step_bytes for each in found))
    yield point(
        codes.CONSTANT_WRITTEN_OUT,
        f"the compiler writes {what}: {size}",
        cost.target.span,
        notes=tuple(notes),
        help=help,
    )
