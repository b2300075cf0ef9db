"""Measured and predicted steps, drawn at random."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from shardspec.analysis.comparison import Asker, Comparison, Spent
from shardspec.ir.step import Place

PLACES = [Place(), Place("model.py", 3), Place("model.py", 7)]
SECONDS = st.sampled_from((0.0, 1e-4, 0.25, 1.0, 3.5))
SPENT = st.builds(
    Spent,
    st.sampled_from(("collective", "matmul", "other", "idle")),
    st.sampled_from(("all-gather", "ab,bc->ac")),
    st.sampled_from(PLACES),
    st.just("forward"),
    st.lists(st.sampled_from(("data", "model")), unique=True, max_size=2).map(tuple),
    st.sampled_from(("x", "y")),
    st.lists(st.sampled_from((Asker("b -> data"), Asker("a -> model"))), unique=True).map(tuple),
    st.just(4.0),
    SECONDS,
    st.just(1.0),
)


def _as_made(each: Spent) -> Spent:
    """Return a row as runs have them: only collectives have mesh axes."""
    return each if each.kind == "collective" else replace(each, mesh_axes=())


@st.composite
def comparisons(draw: st.DrawFn, *, is_timed: bool | None = None) -> Comparison:
    """Return a step; what is measured of it sums to what it takes, and so does the prediction."""
    rows = st.lists(SPENT.map(_as_made), max_size=6).map(tuple)
    measured, predicted = draw(rows), draw(rows)
    is_timed = draw(st.booleans()) if is_timed is None else is_timed
    took, guess = (sum(each.shown for each in side) for side in (measured, predicted))
    return Comparison(
        *("run", "jit_step", 2, 3, took, took / 2, took * 2, None),
        *(guess if is_timed else None, measured, predicted if is_timed else ()),
        *(tuple(each for each in measured if each.kind == "collective"), ("a note",)),
    )
