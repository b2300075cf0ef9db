from __future__ import annotations

import textwrap

import pytest

import shardspec
from shardspec import pipeline
from shardspec.ir.plan import ShardingPlan
from shardspec.report.drawing import COLUMNS_DRAWN, ROWS_DRAWN, TABLES_DRAWN, drawing, drawing_of

SPEC = """\
shardspec: 1
targets:
  v4: {hardware: 2 * tpu v4 2x2x2, mesh: {replica: 2 @ dcn, data: rest, model: 2}}
  bare: {mesh: {data: 2, model: 2, stage: 2}}
  wide: {mesh: {data: 64, model: 64, stage: 8}}
rules:
  - batch -> (replica, data)
  - embed -> data
  - mlp -> model
  - layers -> stage
  - length -> none
activations: {residual: batch length mlp}
arrays:
  matrix: bf16[embed=512 mlp=1024]
  bias: f32[mlp=128]
  scalar: f32[]
  stacked: f32[layers=8 embed=64 mlp=64]
  h: f32[batch=64 _=3 mlp=64]
"""


def plan(target: str) -> ShardingPlan:
    spec = shardspec.loads(SPEC).ir
    found = next(each for each in spec.targets if each.name == target)
    return pipeline.compile_plans(spec, None, [found])[0]


def drawn(target: str, name: str) -> str:
    return str(drawing_of(name, plan(target)))


def test_rank_two_with_borders_of_hosts_and_slices() -> None:
    wanted = """\
        h   f32[64, 3, 64]   P(('replica', 'data'), None, 'model')   shard [8, 3, 32], 3.00 KiB per device
          mesh replica=2 data=4 model=2 on 2 x TPU v4 2x2x2, 16 chips
          dim 0 batch=64 over (replica, data), down; dim 2 mlp=64 over model, across
          a cell is a part, held by one device: numbers in mesh order
          `|` and `-`: another host; `||` and `=`: another slice

                                   model 0  model 1
                                   0:32     32:64
          replica 0 data 0  0:8    0        1
                                   ----------------
          replica 0 data 1  8:16   2        3
                                   ----------------
          replica 0 data 2  16:24  4        5
                                   ----------------
          replica 0 data 3  24:32  6        7
                                   ================
          replica 1 data 0  32:40  8        9
                                   ----------------
          replica 1 data 1  40:48  10       11
                                   ----------------
          replica 1 data 2  48:56  12       13
                                   ----------------
          replica 1 data 3  56:64  14       15"""  # noqa: E501
    text = drawn("v4", "h")
    assert text == textwrap.dedent(wanted)


def test_copies_are_listed_and_counted_by_slice() -> None:
    text = drawn("v4", "matrix")
    assert "held by 2 devices of 2 slices" in text
    assert "data 0  0:128    0 8      1 9" in text


def test_rank_one_goes_down() -> None:
    assert drawn("bare", "bias").splitlines()[-2:] == [
        "  model 0  0:64    0 1 4 5",
        "  model 1  64:128  2 3 6 7",
    ]


def test_a_scalar_is_one_cell() -> None:
    assert drawn("bare", "scalar").splitlines()[2:] == [
        "  a scalar",
        "  a cell is a part, held by 8 devices: numbers in mesh order",
        "  the target has no hardware, so hosts are not known",
        "",
        "  0-7",
    ]


def test_rank_three_is_a_table_for_each_part_of_the_first() -> None:
    lines = drawn("bare", "stacked").splitlines()
    assert "  dim 0 layers=8 over stage: stage 0, 0:4" in lines
    start = lines.index("  dim 0 layers=8 over stage: stage 1, 4:8")
    assert lines[start + 1 :] == [
        "                 model 0  model 1",
        "                 0:32     32:64",
        "  data 0  0:32   1        3",
        "  data 1  32:64  5        7",
    ]


def test_an_activation_of_unknown_sizes() -> None:
    text = drawn("bare", "residual")
    assert text.startswith("activation residual   P('data', None, 'model')\n")
    assert "data 1  2 of 2" in text


def test_what_is_large_is_cut_and_says_so() -> None:
    found = drawing_of("stacked", plan("wide"))
    text = str(found)
    assert len(found.grids[0].tables) == 8 > TABLES_DRAWN
    assert "(4 more tables)" in text
    assert f"({64 - ROWS_DRAWN} more rows and " in text
    assert max(map(len, text.splitlines())) <= 112
    assert all(len(table.cells[0]) > COLUMNS_DRAWN for table in found.grids[0].tables)


def test_several_and_unknown() -> None:
    bare = plan("bare")
    text = str(drawing(bare.arrays[:2], bare))
    assert text.startswith("matrix ")
    assert "\n\nbias " in text
    assert repr(drawing(bare.arrays[:2], bare)) == text, "a prompt shows the drawing itself"
    with pytest.raises(KeyError, match="did you mean `matrix`"):
        drawing_of("matrx", bare)


def test_a_plan_draws_its_arrays() -> None:
    found = shardspec.loads(SPEC).compile(target="bare").visualize("bias")
    assert str(found) == drawn("bare", "bias")
