"""Who holds which part: against JAX's own answer, device by device."""

from __future__ import annotations

import itertools

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.sharding import Mesh as DeviceMesh

from shardspec.diagnostics import SourceFile
from shardspec.ir.plan import ParamSharding, ShardingPlan
from shardspec.ir.spec import AxisRule, Mesh, MeshAxis, Override, Param, Pattern, Spec, Target
from shardspec.report.drawing import HOST, SAME, SLICE, Grid, Side, grid
from shardspec.resolve.resolver import resolve
from tests.topology.machines import hardware

SOURCE = SourceFile("spec.yaml", "")


def planned(target: Target, param: Param, partition: tuple[tuple[str, ...], ...]) -> ShardingPlan:
    override = Override(Pattern(param.path), partition=partition)
    spec = Spec(SOURCE, overrides=(override,), targets=(target,))
    return resolve(spec, target, [param])


@st.composite
def cut_arrays(draw: st.DrawFn) -> tuple[ShardingPlan, ParamSharding]:
    """An array of rank 0 to 4 on 8 devices, its mesh axes dealt out to dimensions at random."""
    sizes = draw(st.sampled_from(((8,), (2, 4), (4, 2), (2, 2, 2), (8, 1), (1, 2, 4))))
    axes = tuple(MeshAxis(name, size) for name, size in zip("abc", sizes, strict=False))
    rank = draw(st.integers(0, 4))
    homes = [draw(st.integers(-1, rank - 1)) for _ in axes] if rank else []
    order = draw(st.permutations(list(zip(axes, homes, strict=True)))) if rank else []
    dims = [tuple(axis.name for axis, home in order if home == dim) for dim in range(rank)]
    mesh = Mesh(axes)
    shape = tuple(mesh.ways(dim) * draw(st.integers(1, 3)) for dim in dims)
    plan = planned(Target("t", mesh), Param("w", shape), tuple(dims))
    return plan, plan.arrays[0]


def elements(side: Side, part: int) -> tuple[int, int]:
    """Return first and last of the elements that a drawing says a part has."""
    text = side.range_text(part)
    if text.startswith("all "):
        return 0, int(text[4:])
    start, end = text.split(":")
    return int(start), int(end)


@given(cut_arrays())
def test_every_device_holds_what_jax_says(cut: tuple[ShardingPlan, ParamSharding]) -> None:
    plan, sharding = cut
    found = grid(sharding, plan)
    names, sizes = plan.mesh.names, tuple(plan.mesh.sizes.values())
    devices = np.array(jax.devices()).reshape(sizes)
    mesh = DeviceMesh(devices, names, axis_types=(AxisType.Auto,) * len(names))
    spec = PartitionSpec(*(dim or None for dim in sharding.partition_spec.dims))
    indices = NamedSharding(mesh, spec).devices_indices_map(sharding.param.shape)
    numbers = {device: number for number, device in enumerate(devices.flat)}
    wanted = {numbers[device]: index for device, index in indices.items()}
    seen = []
    for table, row, column in cells(found):
        sides = zip(
            (*found.outer, found.down, found.across), (*table.outer, row, column), strict=True
        )
        for side, part in sides:
            if side.dim is None:
                continue
            for number in table.cells[row][column]:
                size = sharding.param.shape[side.dim]
                start, stop, _ = wanted[number][side.dim].indices(size)
                assert elements(side, part) == (start, stop)
        seen += table.cells[row][column]
    assert sorted(seen) == list(range(8)), "each device stands in one cell"
    assert found.copies * sharding.shard_count == 8


def cells(found: Grid) -> list[tuple[object, int, int]]:
    return [
        (table, row, column)
        for table in found.tables
        for row, column in itertools.product(range(found.down.count), range(found.across.count))
    ]


def machine(file: str, topology: tuple[int, ...], slices: int, **sizes: int) -> Target:
    axes = tuple(MeshAxis(name, size) for name, size in sizes.items())
    return Target("t", Mesh(axes), hardware(file, topology, slices))


def gaps(target: Target) -> tuple[tuple[int, ...], tuple[int, ...]]:
    plan = planned(target, Param("w", (64, 64)), (("data",), ("model",)))
    found = grid(plan.arrays[0], plan)
    (table,) = found.tables
    return found.gaps(tuple(zip(*table.cells, strict=True))), found.gaps(table.cells)


def test_borders_of_nodes() -> None:
    down, across = gaps(machine("h100", (8,), 2, data=4, model=4))
    assert down == (SAME, SLICE, SAME)
    assert across == (SAME,) * 3


def test_borders_of_hosts_inside_a_slice() -> None:
    """A host of v4 has 2x2x1 chips, and a row of the mesh is one x, y plane of 4 chips."""
    down, across = gaps(machine("tpu_v4", (2, 2, 4), 1, data=4, model=4))
    assert down == (HOST,) * 3
    assert across == (SAME,) * 3


def test_borders_of_slices() -> None:
    down, across = gaps(machine("tpu_v4", (2, 2, 1), 4, data=4, model=4))
    assert down == (SLICE,) * 3
    assert across == (SAME,) * 3


def test_one_host_has_no_borders() -> None:
    assert gaps(machine("cpu", (16,), 1, data=4, model=4)) == ((SAME,) * 3,) * 2


def test_uneven_and_unknown_sizes() -> None:
    target = Target("t", Mesh((MeshAxis("data", 4),)))
    override = Override(Pattern("w"), partition=(("data",),))
    from shardspec.ir.spec import Activation, Policy

    rules = (AxisRule("batch", ("data",)),)
    spec = Spec(
        SOURCE,
        axis_rules=rules,
        overrides=(override,),
        activations=(Activation("x", ("batch",)),),
        policy=Policy("keep"),
        targets=(target,),
    )
    plan = resolve(spec, target, [Param("w", (5,))])
    found = grid(plan.arrays[0], plan)
    assert [found.down.range_text(part) for part in range(4)] == ["0:2", "2:4", "4:5", "empty"]
    activation = grid(plan.activations[0], plan)
    assert activation.down.range_text(1) == "2 of 4"
