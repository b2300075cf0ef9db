"""Products of two arrays as XLA writes them, drawn at random."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st


class Contraction(NamedTuple):
    """A product: its attributes, and of each side the shape and the dimensions of each kind."""

    attributes: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dims: tuple[dict[str, list[int]], dict[str, list[int]]]


@st.composite
def contractions(draw: st.DrawFn) -> Contraction:
    """Return a product of indices that are of the batch, summed over, or of one side alone."""
    roles = draw(st.lists(st.sampled_from(("batch", "summed", "lhs", "rhs")), max_size=7))
    sizes = draw(st.lists(st.integers(1, 3), min_size=len(roles), max_size=len(roles)))
    shapes, dims, texts = [], [], []
    for side, other in (("lhs", "rhs"), ("rhs", "lhs")):
        order = draw(st.permutations([at for at, role in enumerate(roles) if role != other]))
        kinds: dict[str, list[int]] = {"batch": [], "summed": [], "free": []}
        for at, role in enumerate(roles):
            if role != other:
                kinds["free" if role == side else role].append(order.index(at))
        kinds["free"].sort()
        dims.append(kinds)
        shapes.append(tuple(sizes[at] for at in order))
        for name, kind in (("batch", "batch"), ("contracting", "summed")):
            texts.append(f"{side}_{name}_dims={{{','.join(map(str, kinds[kind]))}}}")
    return Contraction(", ".join(texts), (shapes[0], shapes[1]), (dims[0], dims[1]))
