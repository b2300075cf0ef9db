"""Known faults of compilers are found in their programs, and nowhere else.

`xla-42481.hlo` is what jaxlib 0.10.2 compiles `SOURCE` to for eight CPU devices.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxlib
import pytest
from jax.sharding import PartitionSpec as P

import shardspec
from shardspec.ir.spec import Mesh, MeshAxis
from shardspec.programs.proof import Miscompiled, known_faults, miscompiled
from shardspec.programs.reading import ReadProgram, read_program

MESH = Mesh((MeshAxis("dp", 2), MeshAxis("tp", 4)))
TEXT = Path(__file__).parents[1].joinpath("data/programs/xla-42481.hlo").read_text("utf-8")
OVER_DP = "replica_groups={{0,4},{1,5},{2,6},{3,7}}"
OVER_TP = "replica_groups={{0,1,2,3},{4,5,6,7}}"
IS_FAULTY = tuple(map(int, jaxlib.__version__.split(".")[:2])) < (0, 11)


def found_in(text: str) -> tuple[Miscompiled, ...]:
    program = read_program(text, MESH, ())
    assert isinstance(program, ReadProgram)
    return miscompiled(program, MESH)


def test_slices_that_are_added_up_over_other_slices() -> None:
    (found,) = found_in(TEXT)
    assert found.fault.name == "slices-summed-before-they-are-whole"
    assert found.place.file == "step.py"
    assert "https://github.com/openxla/xla/issues/42481" in str(found)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (OVER_DP, OVER_TP),  # all of a group take the same slice
        ("u32[8]{0} constant({0, 0, 0, 0, 1, 1, 1, 1})", "u32[8]{0} constant({0,0,0,0,0,0,0,0})"),
        ("%partition-id.2 = u32[] partition-id()", "%partition-id.2 = u32[] replica-id()"),
        (" scatter(", " pad("),
        (" all-reduce(%bitcast_dynamic", " all-gather(%bitcast_dynamic"),
    ],
)
def test_what_is_right_or_not_known_is_not_reported(old: str, new: str) -> None:
    assert old in TEXT
    assert found_in(TEXT.replace(old, new)) == ()


def test_every_entry_has_a_public_report() -> None:
    for fault in known_faults():
        assert fault.source.startswith("https://github.com/")
        assert len(fault.chain) > 1
        assert fault.effect
        assert fault.compiler


@cache
def resolver() -> shardspec.Resolver:
    spec = shardspec.loads(
        """
shardspec: 1
mesh: {dp: 2 explicit, tp: 4 explicit}
axes: {vocab: 16, embed: 8, batch: 4, length: 8}
rules: [vocab -> dp, batch -> dp, length -> tp, embed -> none]
params: {table: vocab embed}
"""
    )
    return shardspec.Resolver(spec, devices=jax.devices()[:8])


def step(resolver: shardspec.Resolver) -> object:
    """Return the step that is compiled wrong, and what it is given."""

    def loss(table: jax.Array, ids: jax.Array) -> jax.Array:
        whole = jax.reshard(table, P("dp", None, reduced={"tp"}))
        rows = whole.at[ids].get(out_sharding=P("dp", "tp", None))
        return jnp.sum(rows * rows)

    places = [jax.sharding.NamedSharding(resolver.mesh, spec) for spec in (P("dp"), P("dp", "tp"))]
    table = jax.ShapeDtypeStruct((16, 8), jnp.float32, sharding=places[0])
    ids = jax.ShapeDtypeStruct((4, 8), jnp.int32, sharding=places[1])
    return jax.jit(jax.grad(loss)), (table, ids)


@pytest.mark.skipif(not IS_FAULTY, reason="jaxlib 0.11 does not make such programs")
def test_the_same_program_computes_other_numbers() -> None:
    numbers = resolver().same_numbers(step)
    assert numbers.verdict == "different", str(numbers)
    assert ("dp",) in numbers.axes or ("dp", "tp") in numbers.axes
