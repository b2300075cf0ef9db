"""How devices share products, by the partitioned program: what each of them does whole is seen."""

from __future__ import annotations

from dataclasses import replace

from shardspec.ir.spec import Mesh, MeshAxis, PartitionSpec
from shardspec.ir.step import Place, StepArray, StepOp
from shardspec.programs.known import as_shared

MESH = Mesh((MeshAxis("data", 4), MeshAxis("fsdp", 8)))
PLACE = Place("model.py", 3)


def array(shape: tuple[int, ...], *dims: tuple[str, ...]) -> StepArray:
    sizes = zip(shape, dims, strict=True)
    part = tuple(size // MESH.ways(axes) for size, axes in sizes)
    return StepArray("bf16", shape, PartitionSpec(dims), part)


def local(*shape: int) -> StepArray:
    return StepArray("bf16", shape, PartitionSpec(((),) * len(shape)), shape)


def of_program(x: StepArray, w: StepArray, result: StepArray) -> StepOp:
    flops = 2 * x.shape[0] * x.shape[1] * w.shape[1]
    return StepOp("einsum", "ab,bc->ac", (x, w), result, flops, 1, PLACE, "forward")


X = array((64, 32), ("data",), ("fsdp",))
W = array((32, 16), ("fsdp",), ())
SUMMED = StepOp(
    "einsum", "ab,bc->ac", (X, W), array((64, 16), ("data",), ()), 2 * 16 * 4 * 16, 1, PLACE,
    "forward", ("data", "fsdp"), at=5,
)  # fmt: skip


def test_a_product_whose_operands_are_gathered_is_whole_on_each_device() -> None:
    (op,) = as_shared([SUMMED], [of_program(local(16, 32), local(32, 16), local(16, 16))], MESH)
    assert op.flops == 8 * SUMMED.flops
    assert op.mesh_axes == ("data",)
    assert op.operands[0].split == PartitionSpec((("data",), ()))
    assert op.operands[1].shard_shape == (32, 16)
    assert (op.at, op.place) == (SUMMED.at, SUMMED.place)


def test_a_product_that_is_shared_as_propagated_stays() -> None:
    same = of_program(local(16, 4), local(4, 16), local(16, 16))
    assert as_shared([SUMMED], [same], MESH) == (SUMMED,)


def test_each_product_of_a_line_is_taken_once_and_those_that_stay_come_first() -> None:
    later = replace(SUMMED, at=9)
    whole = of_program(local(16, 32), local(32, 16), local(16, 16))
    same = of_program(local(16, 4), local(4, 16), local(16, 16))
    found = as_shared([SUMMED, later], [whole, same], MESH)
    assert sorted(op.flops for op in found) == [SUMMED.flops, 8 * SUMMED.flops]


def test_what_no_mesh_axis_explains_is_left() -> None:
    other = of_program(local(16, 5), local(5, 16), local(16, 16))
    elsewhere = replace(
        of_program(local(16, 32), local(32, 16), local(16, 16)), place=Place("model.py", 4)
    )
    assert as_shared([SUMMED], [other, elsewhere], MESH) == (SUMMED,)
