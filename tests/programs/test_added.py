"""What a compiler adds: copies, constants written out, work done again; nothing of the user's."""

from __future__ import annotations

from shardspec.ir.spec import Mesh, PartitionSpec
from shardspec.ir.step import StepArgument, StepArray
from shardspec.programs.added import added_by
from shardspec.programs.reading import ReadProgram, read_program

PROGRAM = """\
HloModule jit_step, num_partitions=1

%moved (p: bf16[1024,1024]) -> bf16[1024,1024] {
  %p = bf16[1024,1024]{1,0} parameter(0)
  ROOT %t = bf16[1024,1024]{1,0} transpose(%p), dimensions={1,0}
}

%kept (q: bf16[1024,1024]) -> bf16[1024,1024] {
  %q = bf16[1024,1024]{1,0} parameter(0)
  %c = bf16[1024,1024]{0,1} copy(%q)
  ROOT %n = bf16[1024,1024]{0,1} negate(%c)
}

ENTRY %main (a: bf16[1024,1024]) -> bf16[1024,1024] {
  %a = bf16[1024,1024]{1,0} parameter(0)
  %copy.1 = bf16[1024,1024]{0,1} copy(%a), metadata={op_name="jit(step)/add" source_file="m.py" source_line=3}
  %chip = bf16[1024,1024]{1,0:T(8,128)S(1)} copy(%a)
  %small = bf16[8,8]{0,1} copy(%a)
  %wrapped = bf16[1024,1024]{1,0} fusion(%a), kind=kInput, calls=%moved, metadata={op_name="jit(step)/while" source_file="m.py" source_line=4}
  %users = bf16[1024,1024]{1,0} fusion(%a), kind=kInput, calls=%moved, metadata={op_name="jit(step)/transpose" source_file="m.py" source_line=5}
  %fused = bf16[1024,1024]{0,1} fusion(%a), kind=kLoop, calls=%kept
  %fused.remat = bf16[1024,1024]{0,1} fusion(%a), kind=kLoop, calls=%kept, metadata={op_name="jit(step)/neg" source_file="m.py" source_line=6}
  ROOT %r = bf16[1024,1024]{1,0} add(%copy.1, %wrapped)
}
"""  # noqa: E501


def test_copies_and_what_is_done_again() -> None:
    program = read_program(PROGRAM, Mesh(()))
    assert isinstance(program, ReadProgram)
    added = added_by(program)
    found = [(each.what, each.array, each.bytes, each.runs, each.place.line) for each in added]
    size = 2 << 20
    assert found == [
        ("copy", "bf16[1024, 1024]", size, 1, 3),
        ("copy", "bf16[1024, 1024]", size, 1, 4),
        ("computed again", "bf16[1024, 1024]", size, 1, 6),
    ]


def _program(entry: str, header: str = "") -> ReadProgram:
    """Return a program with a loop that carries or makes an array, and an entry."""
    text = f"""\
HloModule jit_step, {header}entry_computation_layout={{()->()}}, num_partitions=1

%body (c: (s32[], bf16[1024,1024])) -> (s32[], bf16[1024,1024]) {{
  ROOT %c = (s32[], bf16[1024,1024]{{1,0}}) parameter(0)
}}

%less (d: (s32[], bf16[1024,1024])) -> pred[] {{
  %d = (s32[], bf16[1024,1024]{{1,0}}) parameter(0)
  ROOT %yes = pred[] constant(true)
}}

ENTRY %main (a: bf16[1024,1024]) -> bf16[1024,1024] {{
  %zero = s32[] constant(0)
{entry}
}}
"""
    whole = PartitionSpec(((), ()))
    array = StepArray("bf16", (1024, 1024), whole, (1024, 1024), "cache")
    donated = "input_output_alias" in header
    program = read_program(text, Mesh(()), [StepArgument("cache", "cache", array, donated)])
    assert isinstance(program, ReadProgram)
    return program


LOOP = "while(%in), condition=%less, body=%body"
KEPT = f"""\
  %a = bf16[1024,1024]{{1,0}} parameter(0)
  %copy.1 = bf16[1024,1024]{{1,0}} copy(%a)
  %in = (s32[], bf16[1024,1024]{{1,0}}) tuple(%zero, %copy.1)
  %loop = (s32[], bf16[1024,1024]{{1,0}}) {LOOP}
  %out = bf16[1024,1024]{{1,0}} get-tuple-element(%loop), index=1
  ROOT %r = (bf16[1024,1024]{{1,0}}) tuple(%out)
"""
BESIDE = f"""\
  %a = bf16[1024,1024]{{1,0}} parameter(0)
  %in = (s32[], bf16[1024,1024]{{1,0}}) tuple(%zero, %a)
  %loop = (s32[], bf16[1024,1024]{{1,0}}) {LOOP}
  %out = bf16[1024,1024]{{1,0}} get-tuple-element(%loop), index=1
  %copy.2 = bf16[1024,1024]{{1,0}} copy(%out)
  ROOT %r = (bf16[1024,1024]{{1,0}}) tuple(%copy.2)
"""
ALIASED = "input_output_alias={ {0}: (0, {}, may-alias) }, "


def test_an_argument_that_is_wanted_in_another_order_is_named_with_it() -> None:
    turned = KEPT.replace("{1,0} copy", "{0,1} copy")
    (found,) = added_by(_program(turned))
    assert (found.why, found.path, found.order) == ("order", "cache", (1, 0))


def test_a_result_that_is_made_in_another_order_is_that_of_the_argument_whose_memory_it_takes() -> (
    None
):
    turned = BESIDE.replace("%out = bf16[1024,1024]{1,0}", "%out = bf16[1024,1024]{0,1}")
    (found,) = added_by(_program(turned, ALIASED))
    assert (found.why, found.path, found.order) == ("order", "cache", (1, 0))
    (found,) = added_by(_program(turned))
    assert (found.why, found.path, found.order) == ("order", "", (1, 0))


def test_what_a_loop_changes_is_copied_where_the_caller_keeps_it() -> None:
    (found,) = added_by(_program(KEPT))
    assert (found.why, found.path) == ("kept", "cache")
    (donated,) = added_by(_program(KEPT, ALIASED))
    assert not donated.why
    no_place = KEPT.replace("(bf16[1024,1024]{1,0}) tuple(%out)", "(s32[]) tuple(%zero)")
    (found,) = added_by(_program(no_place))
    assert not found.why, "no result could take the memory of what is donated"


def test_what_a_loop_makes_beside_a_donated_array_is_copied() -> None:
    (found,) = added_by(_program(BESIDE, ALIASED))
    assert (found.why, found.path) == ("loop", "cache")
    (found,) = added_by(_program(BESIDE))
    assert not found.why, "the result has memory of its own, and takes nobody's"


def test_a_constant_is_written_out_where_its_reader_could_repeat_it() -> None:
    spread = """\
  %a = bf16[1024,1024]{1,0} parameter(0)
  %one = bf16[] constant(1)
  %wide = bf16[1024,1024]{1,0} broadcast(%one), dimensions={}
  %row = bf16[1024]{0} slice(%a), slice={[0:1024]}
  %keys = bf16[32,1024,1024]{2,1,0} broadcast(%a), dimensions={1,2}
  %sum = bf16[1024,1024]{1,0} add(%a, %wide)
  %more = bf16[32,1024,1024]{2,1,0} negate(%keys)
  ROOT %r = (bf16[1024,1024]{1,0}) tuple(%sum)
"""
    found = added_by(_program(spread))
    assert [(each.what, each.array) for each in found] == [("written out", "bf16[1024, 1024]")]
    stack = spread.replace("add(%a, %wide)", "dynamic-update-slice(%wide, %a, %zero, %zero)")
    assert added_by(_program(stack)) == (), "what is written into is memory of the code's"
