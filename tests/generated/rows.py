"""One case: its recipe predicted and compiled, as a row of plain data."""

from __future__ import annotations

import time
import traceback
from typing import Any

from shardspec.diagnostics import ShardspecError
from shardspec.ir.step import Step
from shardspec.jax_backend.step.trace import Call
from shardspec.jax_backend.xla.compiling import Compiling
from shardspec.jax_backend.xla.verifying import verify_step
from shardspec.programs.proof import Proof
from tests.generated.recipe import Recipe, parsed
from tests.generated.steps import resolver_of, step_of_recipe

Row = dict[str, Any]
#: The figures of a row, None where there is an error; see the package.
FIGURES = (
    *("predicted_bytes", "compiled_bytes", "by_axis", "difference", "predicted_memory"),
    *("compiled_memory", "limit", "predicted_fits", "compiled_fits", "unknown"),
    *("unknown_compiled", "reshards", "flops", "flops_compiled", "compiler", "broken"),
)

#: What is said where it is the runner that gives a case too little: memory of a worker, time.
_OURS = {"room": "Failed to allocate buffer", "late": "no program for"}


def row_of(text: str, seed: int | None, timeout_s: float) -> Row:
    """Return the row of a recipe; whatever is raised on the way is its `error`."""
    started = time.monotonic()
    recipe = parsed(text)
    row = empty(recipe, seed)
    try:
        resolver = resolver_of(recipe)
        step, args = step_of_recipe(recipe, resolver)
        fault = _untraceable(step, args)
        if fault:
            return {**row, "error": fault, "fault": "generator"}
        how = Compiling(timeout_s, is_cached=False)
        row |= figures(verify_step(resolver, Call(step, args), how=how))
    except ShardspecError as error:
        first = error.diagnostics[0]
        fault = next((name for name, said in _OURS.items() if said in first.message), "refused")
        row |= {"error": f"{first.code.name}: {first.message}"[:400], "fault": fault}
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{where.filename.partition('site-packages/')[2] or where.filename}:{where.lineno}"
        told = f"{type(error).__name__}: {error}"[:400]
        row |= {"error": f"{told} at {place}", "fault": "crash"}
    return {**row, "seconds": round(time.monotonic() - started, 1)}


def empty(recipe: Recipe, seed: int | None) -> Row:
    """Return the row of a recipe without its figures."""
    about = {
        "recipe": recipe.text,
        "seed": seed,
        "platform": recipe.platform,
        "mode": "train" if recipe.mode == "train" else "serve",
        "hardware": recipe.machine,
        "tags": list(recipe.tags),
    }
    return {**about, **dict.fromkeys(FIGURES), "error": None, "fault": None, "seconds": None}


def _untraceable(step: Any, args: tuple[Any, ...]) -> str:
    """Return why JAX cannot trace a step, without shardspec; empty where it can."""
    try:
        step.trace(*args)
    except ShardspecError:
        return ""  # of a constraint: the step's own trace will tell of it
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:400]
    return ""


def figures(proof: Proof) -> Row:
    """Return what is kept of a proof."""
    predicted = proof.cost.step
    assert predicted is not None
    sent = proof.compiled_bytes
    return {
        "predicted_bytes": proof.predicted_bytes,
        "compiled_bytes": sent,
        "by_axis": {"+".join(row.mesh_axes): [row.predicted, row.compiled] for row in proof.rows},
        "difference": round(proof.difference, 5) if sent else None,
        "predicted_memory": proof.cost.memory.total.bytes,
        "compiled_memory": None if proof.memory is None else proof.memory.bytes,
        "limit": proof.cost.memory.hbm_bytes,
        "predicted_fits": proof.cost.memory.fits,
        "compiled_fits": proof.fits,
        "unknown": [str(each.what) for each in predicted.unknown],
        "unknown_compiled": [str(each.what) for each in proof.step.unknown],
        "reshards": len({each.reshard.at for each in predicted.collectives if each.reshard}),
        "flops": _flops(predicted),
        "flops_compiled": _flops(proof.step),
        "compiler": proof.compiler,
        "broken": [*broken(predicted), *broken(proof.step)],
    }


def broken(step: Step) -> list[str]:
    """Return the invariants that a step does not keep."""
    found, axes = [], set(step.mesh.sizes)
    for each in step.collectives:
        told = f"{step.source}: {each.kind} at {each.place}"
        if each.wire_bytes_per_run > 2 * each.payload_bytes:
            found.append(f"{told} sends {each.wire_bytes_per_run} of {each.payload_bytes}")
        if not set(each.mesh_axes) <= axes or each.count < 0:
            found.append(f"{told} goes over {each.mesh_axes}, {each.count} times")
    for tensor in step.tensors:
        if tensor.born > tensor.dies:
            found.append(f"{step.source}: {tensor.array} dies before it is born")
    return found


def _flops(step: Step) -> int:
    return round(sum(op.flops * op.count for op in step.ops))
