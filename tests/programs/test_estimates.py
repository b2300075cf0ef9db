"""What operations take by the compiler's own estimate: each once for every time it runs."""

from __future__ import annotations

from shardspec.ir.spec import Mesh, MeshAxis
from shardspec.programs.calls import Estimate, by_line, step_cycles
from shardspec.programs.reading import ReadProgram, read_program

MESH = Mesh((MeshAxis("all", 2),))
PROGRAM = """\
HloModule m, num_partitions=2

%inside (p: f32[8]) -> f32[8] {
  %p = f32[8] parameter(0)
  ROOT %again = f32[8] add(%p, %p), backend_config={"estimated_cycles":"999"}
}

%body (t: (s32[], f32[8])) -> (s32[], f32[8]) {
  %t = (s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[8] get-tuple-element(%t), index=1
  %one = s32[] constant(1)
  %n = s32[] add(%i, %one)
  %f = f32[8] fusion(%x), kind=kLoop, calls=%inside, META, backend_config={"estimated_cycles":"10"}
  ROOT %r = (s32[], f32[8]) tuple(%n, %f)
}

%test (t: (s32[], f32[8])) -> pred[] {
  %t = (s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %last = s32[] constant(5)
  ROOT %c = pred[] compare(%i, %last), direction=LT
}

ENTRY %main (p0: f32[8]) -> f32[8] {
  %p0 = f32[8] parameter(0)
  %zero = s32[] constant(0)
  %s = (s32[], f32[8]) tuple(%zero, %p0)
  %w = (s32[], f32[8]) while(%s), condition=%test, body=%body, CYCLES"9"}
  %last = f32[8] get-tuple-element(%w), index=1
  %never = f32[8] negate(%last), CYCLES"9223372036854775807"}
  ROOT %y = f32[8] copy(%never), CYCLES"7"}
}
""".replace("CYCLES", 'backend_config={"estimated_cycles":').replace(
    "META", 'metadata={op_name="jit(f)/jvp()/mul" source_file="a.py" source_line=3}'
)


def estimates() -> tuple[Estimate, ...]:
    found = read_program(PROGRAM, MESH)
    assert isinstance(found, ReadProgram)
    return found.estimates()


def test_each_counts_as_often_as_it_runs_and_no_loop_or_fusion_twice() -> None:
    found = {(each.what, each.cycles, each.count) for each in estimates()}
    assert found == {("mul", 10, 5), ("copy", 7, 1)}
    assert step_cycles(estimates()) == 57


def test_those_of_a_line_stand_together_the_longest_first() -> None:
    (first,), (last,) = by_line(estimates())
    assert (first.what, str(first.place), first.phase) == ("mul", "a.py:3", "forward")
    assert last.what == "copy"
    assert len(by_line(estimates() * 3)[0]) == 3
