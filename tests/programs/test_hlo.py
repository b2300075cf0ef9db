"""HLO text, line by line."""

from __future__ import annotations

import pytest

from shardspec.programs.hlo import HloArray, Instruction, Program, arrays_of, program_of
from shardspec.programs.op_names import Frame

TEXT = """\
HloModule jit_f, is_scheduled=true, input_output_alias={ {0}: (1, {}, may-alias), {1}: (0, {}, \
must-alias) }, entry_computation_layout={(f32[4]{0})->f32[4]{0}}, num_partitions=8

FileNames
1 "lib/site-packages/flax/linear.py"
2 "model.py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=5 end_line=5}
2 {file_name_id=2 function_name_id=1 line=71 end_line=71}

StackFrames
1 {file_location_id=2 parent_frame_id=1}
2 {file_location_id=1 parent_frame_id=2}

%fused (p: f32[4]) -> (f32[4], s32[]) {
  %p = f32[4]{0:T(128)} parameter(0)
  %one = s32[] constant(1)
  ROOT %t = (f32[4]{0}, /*index=1*/s32[]) tuple(%p, %one)
}

ENTRY %main (a: f32[4]) -> f32[4] {
  %a = f32[4]{0:T(8,128)(2,1)S(1)} parameter(0), metadata={op_name="p[\\'w\\']"}
  %f = (f32[4]{0}, s32[]) fusion(%a), kind=kLoop, calls=%fused
  ROOT %g = f32[4]{0} get-tuple-element(%f), index=0, metadata={op_name="jit(f)/calls=%no/mul" \
stack_frame_id=2}
}
"""


@pytest.fixture(scope="module")
def program() -> Program:
    return program_of(TEXT)


def root(program: Program) -> Instruction:
    assert program.entry is not None
    assert program.entry.root is not None
    return program.entry.root


def test_the_header(program: Program) -> None:
    assert (program.partitions, program.aliases) == (8, {0: 1, 1: 0})
    assert list(program.computations) == ["fused", "main"]


def test_instructions(program: Program) -> None:
    assert program.entry is not None
    fusion = program.entry.instructions["f"]
    assert (fusion.operation, fusion.operands, fusion.called) == ("fusion", ("a",), ("fused",))
    assert fusion.arrays == (HloArray("f32", (4,)), HloArray("s32", ()))
    inner = program.computations["fused"]
    assert inner.root is not None
    assert inner.root.operands == ("p", "one")
    assert inner.instructions["one"].stated == "1"
    assert program.entry.parameters[0].op_name == "p['w']"
    assert [user.name for user in program.entry.users["f"]] == ["g"]


def test_what_is_quoted_says_nothing(program: Program) -> None:
    assert root(program).called == ()
    assert root(program).op_name == "jit(f)/calls=%no/mul"


def test_frames_go_outward(program: Program) -> None:
    frames = list(program.frames_of(root(program)))
    assert frames == [Frame("lib/site-packages/flax/linear.py", 5), Frame("model.py", 71)]


def test_callers_may_be_counted_from_zero() -> None:
    text = TEXT.replace("parent_frame_id=1", "parent_frame_id=0")
    program = program_of(text.replace("parent_frame_id=2", "parent_frame_id=1"))
    assert len(list(program.frames_of(root(program)))) == 2


def test_a_source_line_may_stand_in_the_instruction() -> None:
    line = '  ROOT r = f32[] add(f32[] x, f32[] y), metadata={source_file="m.py" source_line=7}'
    program = program_of(f"ENTRY main {{\n{line}\n}}\n".replace("main", "main ()"))
    assert list(program.frames_of(root(program))) == [Frame("m.py", 7)]
    assert root(program).operands == ("x", "y")


@pytest.mark.parametrize(
    ("kind", "arrays"),
    [
        ("f32[]", [("f32", (), 4)]),
        ("bf16[2,3]{1,0:T(8,128)(2,1)}", [("bf16", (2, 3), 12)]),
        ("pred[5]", [("bool", (5,), 5)]),
        ("s4[3]{0:E(4)}", [("s4", (3,), 2)]),
        ("f8e4m3fn[8]", [("f8_e4m3fn", (8,), 8)]),
        ("f4e2m1fn[8]", [("f4_e2m1fn", (8,), 4)]),
        ("c64[2]", [("c64", (2,), 16)]),
        ("f32[<=7,2]", [("f32", (7, 2), 56)]),
        ("((f32[2]{0}, u32[]), token[])", [("f32", (2,), 8), ("u32", (), 4)]),
    ],
)
def test_types(kind: str, arrays: list[tuple[str, tuple[int, ...], int]]) -> None:
    assert [(each.dtype, each.shape, each.bytes) for each in arrays_of(kind)] == arrays


def test_an_element_of_a_tuple_is_an_operand_of_its_own() -> None:
    """Tuples in tuples, numbers that are no element, and tuples that nothing makes end nowhere."""
    lines = (
        "%p = (s32[], (f32[2,3]{1,0:T(8,128)}, f32[4])) parameter(0)",
        "%a = f32[4] negate(%p#1#1)",
        "ROOT %b = f32[4] add(%p#9, %gone#0)",
    )
    text = "ENTRY %m () -> f32[4] {\n" + "".join(f"  {line}\n" for line in lines) + "}\n"
    entry = program_of(text).entry
    assert entry is not None
    types = {name: each.type for name, each in entry.instructions.items() if "#" in name}
    assert types == {
        "p#1": "(f32[2,3]{1,0:T(8,128)}, f32[4])",
        "p#1#1": "f32[4]",
        "p#9": "",
        "gone#0": "",
    }
    assert entry.instructions["p#1#1"].operands == ("p#1",)
    assert entry.instructions["p#1#1"].attribute("index") == "1"
