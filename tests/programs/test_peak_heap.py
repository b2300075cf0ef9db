"""Where XLA places values: laws of any lives, and the gaps in a chain of products."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardspec.analysis.step_memory import highest
from shardspec.programs.hlo import program_of
from shardspec.programs.peak import Device, peak_of
from shardspec.programs.peak_heap import gaps_between
from tests.programs.test_peak import entry

SPANS = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(1, 9)).map(
        lambda each: (min(each[:2]), max(each[:2]), each[2])
    ),
    max_size=12,
)


@given(SPANS)
def test_values_take_no_less_than_what_is_alive_and_no_more_than_all(
    spans: list[tuple[int, int, int]],
) -> None:
    gaps, (_, peak) = gaps_between(spans), highest(spans)
    assert 0 <= gaps <= sum(size for _, _, size in spans) - peak


@given(SPANS, st.integers(2, 5))
def test_gaps_grow_with_the_values(spans: list[tuple[int, int, int]], factor: int) -> None:
    larger = [(born, dies, factor * size) for born, dies, size in spans]
    assert gaps_between(larger) == factor * gaps_between(spans)


@given(st.lists(st.integers(1, 9), max_size=8))
def test_values_that_are_inside_each_other_leave_no_gaps(sizes: list[int]) -> None:
    spans = [(at, 20 - at, size) for at, size in enumerate(sizes)]
    assert gaps_between(spans) == 0


def test_only_the_largest_values_are_placed_and_small_ones_fill_gaps() -> None:
    chain = [(0, 1, 5000), (1, 2, 4000), (2, 3, 3000), (3, 4, 5000)]
    assert gaps_between(chain) == 3000
    assert gaps_between([*chain, (0, 4, 4)]) == 3000
    many = [(born, dies, 6000) for born, dies, _ in chain * 256]
    assert gaps_between([*many, *chain]) == gaps_between(many)


def test_chain_of_products_has_gaps_in_its_peak() -> None:
    """Of 5, 4, 3 and 5 MiB: each is in memory with the next one."""
    sizes = [2560, 2048, 1536, 2560, 8]
    lines = [
        f"%x{at + 1} = bf16[1024,{size}] dot(%x{at}, %w{at}), lhs_contracting_dims={{1}}, "
        "rhs_contracting_dims={0}"
        for at, size in enumerate(sizes)
    ]
    shapes = zip([8, *sizes], sizes, strict=False)
    weights = [f"%w{at} = bf16[{a},{b}] parameter({at + 1})" for at, (a, b) in enumerate(shapes)]
    lines[-1] = "ROOT " + lines[-1]
    text = "\n".join(["%x0 = bf16[1024,8] parameter(0)", *weights, *lines])
    found = peak_of(program_of(entry(text)), Device("gpu"))
    assert found.gap_bytes == 3 << 20
    assert found.made_bytes == sum(each.bytes for each in found.alive)
