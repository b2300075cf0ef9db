"""What makes what others read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardspec.ir.step import Flows


@given(st.lists(st.sets(st.integers(0, 11), max_size=4), max_size=12))
def test_shortest(program: list[set[int]]) -> None:
    """No maker is reached from another one, and every way of the program is still there."""
    flows, kept = Flows(), dict[int, frozenset[int]]()
    wanted = {at: {tick for tick in reads if tick < at} for at, reads in enumerate(program)}
    for at, reads in wanted.items():
        kept[at] = flows.compute(at, reads)
        flows.make(at, (at,))

    def before(of: dict[int, set[int]] | dict[int, frozenset[int]], at: int) -> set[int]:
        return set(of[at]).union(*(before(of, each) for each in of[at]))

    for at, found in kept.items():
        assert before(kept, at) == before(wanted, at)
        for each in found:
            assert all(each not in before(kept, other) for other in found)


def test_a_sum_with_what_it_is_made_of_comes_from_the_last_alone() -> None:
    flows = Flows()
    flows.make("x", flows.compute(1, ()) | {1})
    assert flows.compute(2, ("x",)) == {1}
    flows.make("f(x)", {2})
    flows.make("x + f(x)", flows.makers(("x", "f(x)")))
    assert flows.compute(3, ("x + f(x)",)) == {2}
