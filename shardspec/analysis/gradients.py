"""How a device holds gradients, by `state:` and `step:`: one answer for all verbs.

| `state:` | one pass over the batch | microbatches, added up |
|---|---|---|
| `same` | as the parameter | as the parameter |
| `zero1` | as the state: each goes into the update as it is made | as the parameter |
| `zero2` | as the state | as the state |

`reduce: step` adds up microbatches before anything is sent, so a device holds all of a gradient
that it has a part in: the mesh axes of the batch split none of it. ZeRO's third stage is a matter
of the rules, which split parameters over these axes.

Without a `step:` nothing says how the batch is gone through, and ZeRO-1 is taken at its word: it
splits state, and not gradients. What microbatches add up is held in the dtype that it is added in.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardspec.ir.plan import Dims
from shardspec.ir.spec import Mesh, Spec
from shardspec.resolve.state import data_axes, extra_axes, state_axes, without_axes

#: The axis of microbatches that are in a pipeline at once.
_MICROBATCH = "microbatch"


@dataclass(frozen=True, slots=True)
class Gradients:
    """How the gradients of a spec are held on a mesh.

    Attributes:
      is_split: whether they are held as the state is.
      dtype: what they are added up in; None for that of the parameter.
      over: the mesh axes that ZeRO splits state over.
      is_once: whether microbatches are added up before gradients are reduced.
      whole_over: the mesh axes that split no gradient because of that.
    """

    mesh: Mesh
    is_split: bool
    dtype: str | None
    over: tuple[str, ...]
    is_once: bool = False
    whole_over: tuple[str, ...] = ()

    def held(self, dims: Dims) -> Dims:
        """Return how the gradient of an array that is laid out by `dims` is held."""
        if self.whole_over:
            return without_axes(dims, self.mesh, self.whole_over)
        return self.updated(dims) if self.is_split else dims

    def updated(self, dims: Dims) -> Dims:
        """Return what the update takes of it, as the state is laid out."""
        return extra_axes(dims, self.mesh, self.over)


def gradients_of(spec: Spec, mesh: Mesh) -> Gradients:
    """Return how the gradients of a spec are held on a mesh."""
    step, state = spec.step, "same" if spec.state is None else spec.state.optimizer
    count, dtype, is_training = 1, None, step is not None and step.mode == "train"
    if step is not None and is_training:
        sizes = {axis.name: axis.size or 1 for axis in spec.logical_axes}
        count = max(step.microbatches, sizes.get(_MICROBATCH, 1))
        dtype = (step.gradients or "f32") if count > 1 else None
    is_split = state == "zero2" or (state == "zero1" and is_training and count == 1)
    reduce = None if step is None or count == 1 else step.reduce
    is_once = reduce == "step" or (reduce is None and state == "zero1" and count > 1)
    whole_over = data_axes(spec, mesh) if reduce == "step" else ()
    return Gradients(mesh, is_split, dtype, state_axes(spec, mesh), is_once, whole_over)
