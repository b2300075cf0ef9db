"""Where the mesh axes of a dimension are, if it is several indices of an operation."""

from __future__ import annotations

import math
from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from shardspec.analysis.step_partition import laid
from shardspec.analysis.step_values import Index
from shardspec.ir.plan import Attempt, DimSharding, Kind, Outcome
from shardspec.ir.spec import Mesh, MeshAxis

#: Of each index the sizes of the mesh axes that split it, and what is left of it.
INDICES = st.lists(
    st.tuples(st.lists(st.sampled_from((2, 3, 4)), max_size=2), st.sampled_from((1, 5, 7))),
    min_size=1,
    max_size=3,
)


@given(st.lists(INDICES, min_size=1, max_size=2))
@settings(max_examples=60)
def test_mesh_axes_split_the_indices_from_the_major_one_on(
    made: list[list[tuple[list[int], int]]],
) -> None:
    """An index that mesh axes split to the end is followed by the next."""
    view, dims, axes, expected, number = [], [], [], {}, 0
    for at, indices in enumerate(made):
        # behind an index of which something is left, no other can be split
        ends = [*accumulate((left != 1 for _, left in indices), max)]
        inner, own = [], []
        for place, (ways, left) in enumerate(indices):
            ways = ways if not place or not ends[place - 1] else []
            name = f"i{at}{place}"
            inner.append(Index(name, math.prod(ways) * left))
            for size in ways:
                own.append(MeshAxis(f"m{number}", size))
                expected[f"m{number}"] = (name, at)
                number += 1
        names = tuple(axis.name for axis in own)
        ways = math.prod(axis.size for axis in own)
        taken = Attempt(Kind.RULE, 0, names, names, Outcome.TAKEN, ways)
        size = math.prod(index.size for index in inner)
        dims.append(DimSharding(size, None, (taken,) if own else ()))
        view.append(tuple(inner))
        axes += own
    found = laid(tuple(view), dims, "bf16", Mesh(tuple(axes)))
    assert {axis: (seat.name, seat.dim) for axis, seat in found.seats.items()} == expected
    elements = math.prod(index.size for inner in view for index in inner)
    assert found.elements == elements
    assert found.bytes(1) == elements * 2
    assert found.indices == {index.name for inner in view for index in inner}
