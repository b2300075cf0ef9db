"""What a compiler adds: copies into other layouts and work done again; nothing of the user's."""

from __future__ import annotations

from shardspec.ir.spec import Mesh
from shardspec.programs.costs import added_by
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
