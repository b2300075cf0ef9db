"""Buffer assignments of compilers: a real one of libtpu, and any text at all."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from shardspec.programs.memory import CompiledMemory, memory_of_assignment, memory_of_stats

ASSIGNMENT = Path(__file__).parents[1] / "data" / "assignments" / "plain-v5e.txt"
#: What libtpu's own memory report says of the same program: "Total bytes: 6610944 (6.30MiB)". It
#: adds what is thread-local, three arguments of reductions; XLA's memory statistics do not.
TOTAL = 6_610_944
THREAD_LOCAL = 3 * 512

BLOCK = """\
BufferAssignment:
allocation 0: size 4096, page 0, parameter 0, shape |f32[1024]| at ShapeIndex {}:
 value: <1 param @0> (size=4096,offset=0): f32[1024]{0:T(1024)}
allocation 1: size 512, page 0, constant:
allocation 2: size 12288, page 0, preallocated-temp:
 value: <2 loop @0> (size=8192,offset=0): f32[2048]{0:T(1024)}
 value: <3 loop{1} (phi) @0> (size=8192,offset=0): f32[2048]{0:T(1024)}
 value: <4 small @0> (size=4096,offset=8192): f32[1024]{0:T(1024)}
allocation 3: size 99999, color 1, page 0, preallocated-temp:
 value: <5 vmem @0> (size=99999,offset=0): f32[2048]{0:T(1024)}
allocation 4: size 1024, page 0, parameter 1, shape |f32[256]| at ShapeIndex {}, maybe-live-out:
allocation 6: size 77777, page 0, thread-local:
 value: <6 param_0.410 @0> (size=77777,offset=0): bf16[32,256]{1,0:T(8,128)(2,1)}
allocation 5: size 2048, page 0, output shape is |f32[512]|, maybe-live-out:

Total bytes used: 123
allocation 6: size 7, page 0, constant:
"""


def test_the_sum_is_that_of_the_compilers_own_report() -> None:
    memory = memory_of_assignment(ASSIGNMENT.read_text(encoding="utf-8"))
    assert memory is not None
    assert memory.bytes == TOTAL - THREAD_LOCAL
    assert memory.arguments == {0: 1 << 20, 1: 1 << 20, 2: 2 << 20}
    assert memory.output_bytes == 2 << 20


def test_every_allocation_counts_once_for_what_it_is() -> None:
    memory = memory_of_assignment(BLOCK)
    assert memory is not None
    assert memory.arguments == {0: 4096, 1: 1024}
    assert (memory.output_bytes, memory.temporary_bytes, memory.other_bytes) == (2048, 12288, 512)
    assert [(each.name, each.bytes) for each in memory.largest] == [("loop", 8192), ("small", 4096)]
    assert memory.bytes == 4096 + 1024 + 2048 + 12288 + 512


def test_memory_of_a_caller_counts_once() -> None:
    memory = memory_of_assignment(BLOCK)
    assert memory is not None
    assert "thread-local" in BLOCK
    assert "param_0.410" not in [each.name for each in memory.largest]
    assert memory.other_bytes == 512


def test_results_in_the_memory_of_arguments_count_once() -> None:
    stats = {"argument": 100, "output": 90, "alias": 80, "temp": 7}
    assert memory_of_stats(stats).bytes == 100 + 10 + 7


def test_a_text_without_allocations_says_nothing() -> None:
    assert memory_of_assignment("HloModule jit_step") is None


@given(st.text() | st.lists(st.sampled_from(BLOCK.split("\n"))).map("\n".join))
def test_any_text_gives_figures_or_none(text: str) -> None:
    memory = memory_of_assignment(f"BufferAssignment:\n{text}")
    assert memory is None or isinstance(memory, CompiledMemory)


LIVES = """\
HloLiveRange (max 9):
  InstructionSequence:
    0:loop
  BufferLiveRange:
    loop{}:0-3
    loop{1}:2-6
    small{}:5-9
    other{}:7-9
  Live ranges at 5 (peak):
    loop{1}: 8192 bytes (cumulative: 8192 bytes)
"""


def test_what_is_alive_at_the_peak_is_told_and_what_lies_between() -> None:
    memory = memory_of_assignment(BLOCK, LIVES)
    assert memory is not None
    assert [(each.name, each.bytes) for each in memory.largest] == [("loop", 8192), ("small", 4096)]
    assert memory.alive_bytes == memory.temporary_bytes == 12288
    apart = memory_of_assignment(BLOCK, LIVES.replace("small{}:5-9", "small{}:7-9"))
    assert apart is not None
    assert [each.name for each in apart.largest] == ["loop"], "they are never alive together"
    assert (apart.alive_bytes, apart.temporary_bytes) == (8192, 12288)


def test_a_place_that_two_names_have_counts_once() -> None:
    both = LIVES.replace("loop{}:0-3", "loop{}:2-6")
    memory = memory_of_assignment(BLOCK, both)
    assert memory is not None
    assert memory.alive_bytes == 12288


lives = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(0, 20)), max_size=8)


@given(lives)
def test_the_peak_is_that_of_the_worst_moment(ranges: list[tuple[int, int, int]]) -> None:
    """Beside a count of every moment; ranges that end before they begin are alive at none."""
    names = ("loop{}", "loop{1}", "small{}", "unknown{}")
    text = "".join(f"    {names[which]}:{born}-{dies}\n" for which, born, dies in ranges)
    memory = memory_of_assignment(BLOCK, text)
    assert memory is not None
    last = {names[which]: (born, dies) for which, born, dies in ranges}
    seats = {8192: ("loop{}", "loop{1}"), 4096: ("small{}",)}
    moments = [
        sum(
            size
            for size, held in seats.items()
            if any(last[name][0] <= at <= last[name][1] for name in held if name in last)
        )
        for at in range(21)
    ]
    if max(moments):
        assert memory.alive_bytes == max(moments)
    else:
        assert memory.alive_bytes is None
