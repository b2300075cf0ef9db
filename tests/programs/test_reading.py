"""Compiled programs as steps: real ones of every compiler, and any text at all.

`tests/data/programs` holds final programs of the steps of `tests/models/small_steps.py`, written
by `python -m benchmarks.final_programs --samples`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.diagnostics import Diagnostic
from shardspec.ir.spec import Mesh, MeshAxis
from shardspec.ir.step import Collective, CollectiveKind, Role, Step, StepArgument, StepArray
from shardspec.programs.calls import Ref
from shardspec.programs.hlo import with_chips
from shardspec.programs.operations import ALL
from shardspec.programs.reading import ReadProgram, read_program

DATA = Path(__file__).parents[1] / "data"
FINAL: Any = json.loads((DATA / "final_programs.json").read_text(encoding="utf-8"))["small"]
SAMPLES = sorted(path.stem for path in (DATA / "programs").glob("*.txt"))
MESH = Mesh((MeshAxis("fsdp", 8), MeshAxis("tensor", 2)))
#: One product of the small steps: all tokens, [embed=1024 mlp=4096], on one of 16 devices.
PRODUCT = 2 * 64 * 128 * 1024 * 4096 // 16
FLOPS = {"microbatches": 5, "clipped_adam": 5, "shard_mapped": 2, "branch": 2}


def text_of(name: str) -> str:
    return (DATA / "programs" / f"{name}.txt").read_text(encoding="utf-8")


def step_of_program(
    text: str, mesh: Mesh, arguments: Sequence[StepArgument | None] = ()
) -> Step | Diagnostic:
    read = read_program(text, mesh, arguments)
    return read if isinstance(read, Diagnostic) else read.step


def read(text: str, mesh: Mesh = MESH) -> Step:
    step = step_of_program(text, mesh)
    assert isinstance(step, Step), step
    return step


@cache
def step_of(name: str) -> Step:
    return read(text_of(name))


def sent(step: Step) -> dict[str, int]:
    return {"+".join(axes): count for axes, count in step.wire_bytes.items()}


def rows(step: Step, kind: str) -> list[Collective]:
    return [each for each in step.collectives if each.kind == kind]


@pytest.mark.parametrize("name", SAMPLES)
def test_every_collective_of_a_real_program_has_the_users_line(name: str) -> None:
    step = step_of(name)
    assert step.collectives
    assert all(each.place.file == "tests/models/small_steps.py" for each in step.collectives)
    assert all(each.wire_bytes > 0 and each.mesh_axes for each in step.collectives)
    assert all(op.place.is_known for op in step.ops)


@pytest.mark.parametrize("name", SAMPLES)
def test_flops_are_those_of_the_model_whatever_compiled_it(name: str) -> None:
    products = FLOPS.get(name.partition("-")[0])
    flops = step_of(name).flops
    assert flops == (144 if products is None else products) * (
        2**30 if products is None else PRODUCT
    )


@pytest.mark.parametrize("name", [name for name in SAMPLES if name.endswith("-v5e")])
def test_bytes_are_those_of_the_figures(name: str) -> None:
    assert sent(step_of(name)) == FINAL[name.removesuffix("-v5e")]


@pytest.mark.parametrize("chip", ["v4", "v5e", "v5p", "v6e"])
def test_loops_count_without_a_word_of_their_rounds(chip: str) -> None:
    step = step_of(f"microbatches-{chip}")
    assert "known_trip_count" not in text_of(f"microbatches-{chip}")
    gathers = rows(step, "all-gather")
    assert [(each.count, each.is_invariant) for each in gathers] == [(4, True), (4, True)]
    assert [each.carries.name for each in gathers] == ["params/mlp/wi", "params/mlp/wo"]
    scatter = rows(step, "reduce-scatter")[0]
    assert (str(scatter.carries), scatter.phase) == ("gradient of params/mlp/wi", "backward")


def test_an_asynchronous_collective_is_one_row() -> None:
    text = text_of("microbatches-v5e")
    assert sum(" all-gather(" in line for line in text.splitlines()) > 2
    assert len(rows(step_of("microbatches-v5e"), "all-gather")) == 2


def test_a_collective_on_sparse_cores_is_one_row() -> None:
    assert " async-update(" in text_of("microbatches-tpu7x")
    found = rows(step_of("microbatches-tpu7x"), "reduce-scatter")
    names = {str(each.carries) for each in found}
    assert names == {"gradient of params/mlp/wi", "gradient of params/mlp/wo"}


def test_combined_arrays_have_a_row_each() -> None:
    text = text_of("clipped_adam-h100")
    assert sum(" reduce-scatter-start(" in line for line in text.splitlines()) == 1
    found = rows(step_of("clipped_adam-h100"), "reduce-scatter")
    assert [str(each.carries) for each in found] == ["gradient of mlp/wi", "gradient of mlp/wo"]
    assert found[0].place != found[1].place
    assert sum(each.wire_bytes for each in found) == 2 * 7 * 1024 * 2048 * 2 // 8


def test_a_windowed_product_is_turns_of_a_ring() -> None:
    turns = rows(step_of("kept_activations-v5e"), "collective-permute")
    assert {each.count for each in turns} == {6, 12}
    assert sum(each.wire_bytes for each in turns) == 9 * 6 * 2 * 524288 * 1


def test_what_a_user_wrote_keeps_its_axes() -> None:
    for name in ("shard_mapped-v5e", "shard_mapped-h100"):
        kinds = {(str(each.kind), each.mesh_axes) for each in step_of(name).collectives}
        assert ("collective-permute", ("fsdp",)) in kinds
        assert ("all-reduce", ("tensor",)) in kinds


def test_of_a_condition_the_dearer_branch_counts() -> None:
    step = step_of("branch-cpu")
    assert [note for note in step.notes if "dearer branch" in note]
    assert len(step.ops) == 2


def test_arguments_name_what_is_carried() -> None:
    array = StepArray("f32", (128, 2048), None, (128, 2048))  # type: ignore[arg-type]
    given = (
        StepArgument("mlp/wi", "parameter", array),
        StepArgument("mlp/wo", "parameter", array),
        StepArgument("x", "batch", array),
    )
    step = step_of_program(text_of("microbatches-v5e"), MESH, given)
    assert isinstance(step, Step)
    carried = {str(each.carries) for each in step.collectives}
    assert {"weight mlp/wi", "weight mlp/wo", "activation x", "gradient of mlp/wi"} <= carried
    assert [each.is_donated for each in step.arguments] == [True, True, False]


@pytest.mark.parametrize("name", SAMPLES)
def test_ticks_are_within_the_clock(name: str) -> None:
    step = step_of(name)
    ticks = [each.at for each in (*step.ops, *step.collectives)]
    assert all(0 < at <= step.end for at in ticks)


def test_a_program_of_one_of_several_slices() -> None:
    mesh = Mesh((MeshAxis("replica", 2, "dcn"), MeshAxis("fsdp", 4)))
    step = read(SLICED, mesh)
    inside, across = step.collectives
    assert (inside.mesh_axes, inside.wire_bytes) == (("fsdp",), 3 * 4096 * 4 // 4)
    assert (across.mesh_axes, across.wire_bytes) == (("replica",), 1024 * 4)
    assert (str(across.place), str(across.carries)) == ("train.py:7", "gradient of p")
    assert step.unknown == ()
    refused = step_of_program(SLICED, MESH)
    assert isinstance(refused, Diagnostic)
    assert "`@ dcn`" in (refused.help or "")


@pytest.mark.parametrize(("role", "is_gradient"), [("parameter", True), ("cache", False)])
def test_a_sum_into_a_cache_is_no_gradient(role: Role, is_gradient: bool) -> None:
    mesh = Mesh((MeshAxis("replica", 2, "dcn"), MeshAxis("fsdp", 4)))
    array = StepArray("f32", (1024,), None, (1024,))  # type: ignore[arg-type]
    step = step_of_program(SLICED, mesh, (StepArgument("p", role, array),))
    assert isinstance(step, Step)
    assert (str(step.collectives[1].carries) == "gradient of p") == is_gradient


#: What libtpu 0.0.52 prints for two slices, shortened: both run this program.
SLICED = """\
HloModule jit_step, input_output_alias={ {0}: (0, {}, may-alias) }, num_partitions=4

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

ENTRY %main (p: f32[1024]) -> (f32[1024]) {
  %p = f32[1024]{0} parameter(0), metadata={op_name="p"}
  %wide = f32[4096]{0} pad(%p), padding=0_3072
  %reduce-scatter = f32[1024]{0} reduce-scatter(%wide), channel_id=1, replica_groups={{0,1,2,3}}, \
use_global_device_ids=true, dimensions={0}, to_apply=%add, metadata={op_name="jit(step)/dot" \
source_file="train.py" source_line=7}
  %after-all = token[] after-all()
  %send = (f32[1024]{0}, u32[], token[]) send(%reduce-scatter, %after-all), channel_id=2, \
is_host_transfer=true, frontend_attributes={_xla_host_transfer_rendezvous="psum.1_0",\
_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}
  %recv = (f32[1024]{0}, u32[], token[]) recv(%after-all), channel_id=3, is_host_transfer=true, \
frontend_attributes={_xla_host_transfer_rendezvous="psum.1_0",\
_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}
  %send-done = token[] send-done(%send), channel_id=2, is_host_transfer=true
  %recv-done = (f32[1024]{0}, token[]) recv-done(%recv), channel_id=3, is_host_transfer=true
  %summed = f32[1024]{0} get-tuple-element(%recv-done), index=0
  %new = f32[1024]{0} subtract(%p, %summed)
  ROOT %result = (f32[1024]{0}) tuple(%new)
}
"""


def test_a_permute_of_which_a_part_leaves_the_slice_is_one() -> None:
    """Check that a device sends once: to another slice, or in the branch of its own slice."""
    (sent,) = read(with_chips(PERMUTED, CHIPS), SLICES).collectives
    assert sent.kind is CollectiveKind.COLLECTIVE_PERMUTE
    assert (sent.mesh_axes, sent.wire_bytes, sent.count) == (("slice", "inner"), 4096, 1)
    # where the text does not say which chip is where, the branches still do not count again
    assert [each.wire_bytes for each in read(PERMUTED, SLICES).collectives] == [4096]
    # a condition on another array is another permute
    other = PERMUTED.replace("conditional(%slice, %p, %p)", "conditional(%slice, %q, %q)")
    assert len(read(with_chips(other, CHIPS), SLICES).collectives) == 2


SLICES = Mesh((MeshAxis("slice", 2, network="dcn"), MeshAxis("inner", 4)))
#: The chip at each of its places.
CHIPS = (100_000, 100_002, 100_001, 100_003, 200_000, 200_002, 200_001, 200_003)
#: Device 0 sends to 5, 5 to 2, 2 to 0, and 6 to 7.
PERMUTED = """\
HloModule jit_step, is_scheduled=true, num_partitions=4

%inside.1 (a: f32[1024]) -> f32[1024] {
  %a = f32[1024]{0} parameter(0)
  ROOT %permute.1 = f32[1024]{0} collective-permute(%a), source_target_pairs={{2,0}}
}

%inside.2 (b: f32[1024]) -> f32[1024] {
  %b = f32[1024]{0} parameter(0)
  ROOT %permute.2 = f32[1024]{0} collective-permute(%b), source_target_pairs={{2,3}}
}

ENTRY %main (p: f32[1024], q: f32[1024], slice: s32[]) -> (f32[1024], f32[1024]) {
  %p = f32[1024]{0} parameter(0)
  %q = f32[1024]{0} parameter(1)
  %slice = s32[] parameter(2)
  %after-all = token[] after-all()
  %send = (f32[1024]{0}, u32[], token[]) send(%p, %after-all), channel_id=2, \
is_host_transfer=true, frontend_attributes={_xla_host_transfer_rendezvous="permute.1_0",\
_xla_megascale_target={{100000->200002},{200002->100001}},_xla_megascale_transfer_type="ONE_TO_ONE"}
  %recv = (f32[1024]{0}, u32[], token[]) recv(%after-all), channel_id=3, is_host_transfer=true, \
frontend_attributes={_xla_host_transfer_rendezvous="permute.1_0",\
_xla_megascale_target={{100000->200002},{200002->100001}},_xla_megascale_transfer_type="ONE_TO_ONE"}
  %send-done = token[] send-done(%send), channel_id=2, is_host_transfer=true
  %recv-done = (f32[1024]{0}, token[]) recv-done(%recv), channel_id=3, is_host_transfer=true
  %others = f32[1024]{0} get-tuple-element(%recv-done), index=0
  %own = f32[1024]{0} conditional(%slice, %p, %p), branch_computations={%inside.1, %inside.2}
  ROOT %result = (f32[1024]{0}, f32[1024]{0}) tuple(%others, %own)
}
"""


# any text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no `ENTRY` computation"),
        ("HloModule jit_step, num_partitions=16\n", "names no `ENTRY` computation"),
        ("HloModule m, num_partitions=8\nENTRY %m () -> f32[] {\n}\n", "for 8 devices, the mesh"),
        (
            "HloModule m, num_partitions=16\nENTRY %m () -> f32[] {\n"
            "  ROOT %r = f32[] call(), to_apply=%m\n}\n",
            "in a circle",
        ),
    ],
)
def test_what_is_no_program(text: str, said: str) -> None:
    found = step_of_program(text, MESH)
    assert isinstance(found, Diagnostic)
    assert said in found.message
    assert found.help


def test_an_empty_program_sends_nothing() -> None:
    assert read("HloModule m, num_partitions=16\nENTRY %m () -> f32[] {\n}\n").collectives == ()


def test_devices_that_cannot_be_read_are_said() -> None:
    text = text_of("shard_mapped-v5e").replace("replica_groups=", "replica_groups=new ")
    assert read(text).unknown
    assert all("cannot be read" in each.reason for each in read(text).unknown)


@given(st.lists(st.text("ab ?", min_size=1, max_size=80).map("? {}".format), max_size=4))
def test_each_line_that_is_no_instruction_is_unknown_by_its_text(lost: list[str]) -> None:
    rows = [f"  {line}" for line in ("ROOT %x = f32[] parameter(0)", *lost)]
    text = "\n".join(("HloModule m, num_partitions=16", "ENTRY %m () -> f32[] {", *rows, "}"))
    unknown = read(text).unknown
    assert {each.what for each in unknown} == {line.strip()[:60] for line in lost}
    assert all(each.figures == ALL for each in unknown)


LINES = [line for name in SAMPLES for line in text_of(name).splitlines()]


@given(st.lists(st.sampled_from(LINES), max_size=60), st.booleans())
def test_any_lines_give_a_step_or_a_diagnostic(lines: list[str], is_headed: bool) -> None:
    head = ["HloModule m, num_partitions=16", "ENTRY %main () -> f32[] {"] if is_headed else []
    assert isinstance(step_of_program("\n".join([*head, *lines]), MESH), Step | Diagnostic)


@given(st.text(alphabet='%=(){}[],.:-"\\ \nabERNTYO019' + "٣", max_size=300))
def test_any_text_gives_a_step_or_a_diagnostic(text: str) -> None:
    found = step_of_program(
        f"HloModule m, num_partitions=16\nENTRY %m () -> f32[] {{\n{text}", MESH
    )
    assert isinstance(found, Step | Diagnostic)


@given(st.sampled_from(SAMPLES), st.integers(0, 2**32))
def test_a_damaged_program_gives_a_step_or_a_diagnostic(name: str, seed: int) -> None:
    draw = random.Random(seed)
    lines = text_of(name).splitlines()
    for _ in range(draw.randrange(1, 40)):
        at = draw.randrange(len(lines))
        line = lines[at]
        cut = draw.randrange(len(line) + 1)
        changes = (line[:cut], line[cut:], "", line.replace("1", "9" * draw.choice((1, 30, 5000))))
        lines[at] = draw.choice((*changes, draw.choice(lines), line.replace("(", "")))
    assert isinstance(step_of_program("\n".join(lines), MESH), Step | Diagnostic)


def test_deep_and_wide_programs_are_read() -> None:
    deep = "".join(
        f"%c{at} (p: f32[4]) -> f32[4] {{\n  %p = f32[4] parameter(0)\n"
        f"  ROOT %r = f32[4] fusion(%p), calls=%c{at + 1}\n}}\n"
        for at in range(2000)
    )
    entry = "ENTRY %m (p: f32[4]) -> f32[4] {\n  %p = f32[4] parameter(0)\n"
    calls = "".join(f"  %f{at} = f32[4] fusion(%p), calls=%c0\n" for at in range(2000))
    last = "%c2000 (p: f32[4]) -> f32[4] {\n  %p = f32[4] parameter(0)\n  ROOT %a = f32[4]"
    last += " all-reduce(%p), replica_groups=[1,16]<=[16]\n}\n"
    step = read(f"HloModule m, num_partitions=16\n{deep}{last}{entry}{calls}}}\n")
    assert [each.count for each in step.collectives] == [2000]


def test_a_fusion_without_a_name_is_at_the_line_of_what_it_is_made_of() -> None:
    """XLA:GPU fuses a product by elements with conversions, which have no name."""
    text = """\
HloModule m, num_partitions=16

FileNames
1 "/workspace/train.py"

FunctionNames
1 "step"

FileLocations
1 {file_name_id=1 function_name_id=1 line=24 end_line=24 column=8 end_column=22}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

%fused_convert (a: bf16[8], b: bf16[8]) -> bf16[8] {
  %b = bf16[8] parameter(1)
  %a = bf16[8] parameter(0)
  %mul.1 = bf16[8] multiply(%a, %b), metadata={op_name="jit(multiply)/mul" stack_frame_id=1}
  %convert.1 = f32[8] convert(%mul.1)
  ROOT %convert.2 = bf16[8] convert(%convert.1)
}

ENTRY %main (x: bf16[8], y: bf16[8]) -> bf16[8] {
  %y = bf16[8] parameter(1), metadata={op_name="y"}
  %x = bf16[8] parameter(0), metadata={op_name="x"}
  ROOT %loop_convert_fusion = bf16[8] fusion(%y, %x), kind=kLoop, calls=%fused_convert
}
"""
    program = read_program(text, MESH)
    assert isinstance(program, ReadProgram)
    at = Ref("main", "loop_convert_fusion")
    fusion = program.calls.instruction(at)
    assert fusion is not None
    what, place, _ = program.told(at, fusion)
    assert (what, place.line) == ("mul", 24)
