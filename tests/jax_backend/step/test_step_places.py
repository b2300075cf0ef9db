"""Where an operation stands in the user's code, out of the locations that JAX writes."""

from __future__ import annotations

import os

from shardspec.ir.step import Place
from shardspec.jax_backend.step.graph import Located, joined, located

HERE = os.path.abspath("tests/models/steps.py")
FLAX = os.path.join("lib", "python3.11", "site-packages", "flax", "linen", "linear.py")
DEEP = (
    f'loc("jit(step)/jvp(bte,ev->btv)/dot_general"(callsite("Dense.__call__"("{FLAX}":12:4 to :9)'
    f' at callsite("loss"("{HERE}":71:14 to :52) at "<module>"("{HERE}":90:2 to :51)))))'
)


def test_the_first_frame_outside_of_libraries_is_the_users() -> None:
    found = located(DEEP)
    assert found.name == "jit(step)/jvp(bte,ev->btv)/dot_general"
    assert found.place == Place("tests/models/steps.py", 71, "bte,ev->btv")


def test_a_location_without_frames_has_no_place() -> None:
    assert not located('loc("while:"("while"))').place.is_known
    assert not located("loc(unknown)").place.is_known


def test_a_callee_keeps_the_place_of_its_caller_where_it_has_none() -> None:
    outer = Located("jit(step)/jvp()/while/body/closed_call", Place("model.py", 7))
    inner = joined(outer, Located("checkpoint/mul", Place()))
    assert inner.name == "jit(step)/jvp()/while/body/closed_call/checkpoint/mul"
    assert (inner.place.file, inner.place.line) == ("model.py", 7)
    own = joined(outer, Located("jit(step)/add", Place("other.py", 3)))
    assert (own.name, own.place.file) == ("jit(step)/add", "other.py")
