"""A step for any spec, and what stands for a compiler: its program lies in the folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

#: Of the arrays of a spec, so many are in the step.
MOST_ARRAYS = 6


def step(resolver: Any) -> Any:
    """Return a function over some arrays of the spec, and these, by their paths."""
    import jax
    import jax.numpy as jnp

    params: dict[str, Any] = {}
    for each in resolver._arrays.spec.params[:MOST_ARRAYS]:
        *folders, name = each.path.split("/")
        inside: Any = params
        for folder in folders:
            inside = inside.setdefault(folder, {})
            if not isinstance(inside, dict):
                break
        else:
            dtype = jnp.bfloat16 if each.dtype == "bf16" else jnp.float32
            inside.setdefault(name, jax.ShapeDtypeStruct(each.shape, dtype))

    def loss(params: Any, x: Any) -> Any:
        wide = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim == 2][:2]
        for leaf in wide:
            x = x[:, :1] @ leaf[:1].astype(x.dtype)
        return sum(jnp.sum(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(params)) + x.sum()

    return jax.grad(loss), (params, jax.ShapeDtypeStruct((64, 128), jnp.bfloat16))


def put_a_program_in_the_compilers_place() -> None:
    """Have `verify` read `program.txt` and `assignment.txt` of this folder."""
    from shardspec.jax_backend.xla import compiling
    from shardspec.jax_backend.xla.cache import Compiled
    from shardspec.programs.memory import memory_of_assignment
    from tests.cli.compilers import answering

    def compiled(module: bytes, target: Any, how: Any) -> Compiled:
        text, memory = (
            Path(name).read_text("utf-8", errors="replace")
            for name in ("program.txt", "assignment.txt")
        )
        devices = f"num_partitions={target.mesh.device_count}"
        text = text.replace("num_partitions=16", devices)
        return Compiled(text, memory_of_assignment(memory), "none 1", 1.0, how.is_whole)

    compiling.Compile = answering(compiled)  # type: ignore[misc]
