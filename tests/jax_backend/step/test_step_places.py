"""Where an operation stands in the user's code, out of locations."""

from __future__ import annotations

import os

from shardspec.ir.step import Place
from shardspec.jax_backend.step.graph import Located, joined, located
from shardspec.jax_backend.step.passes import asked
from shardspec.programs.op_names import Frame

HERE = os.path.abspath("tests/models/steps.py")
FLAX = os.path.join("lib", "python3.11", "site-packages", "flax", "linen", "linear.py")
DEEP = (
    f'loc("jit(step)/jvp(bte,ev->btv)/dot_general"(callsite("Dense.__call__"("{FLAX}":12:4 to :9)'
    f' at callsite("loss"("{HERE}":71:14 to :52) at "<module>"("{HERE}":90:2 to :51)))))'
)


def test_frames_outside_of_libraries_are_the_users() -> None:
    name, stack = asked(DEEP)
    assert name == "jit(step)/jvp(bte,ev->btv)/dot_general"
    assert stack == (Frame(HERE, 71, 14), Frame(HERE, 90, 2))


def test_a_location_without_frames_has_no_place() -> None:
    for text in ('loc("while:"("while"))', "loc(unknown)"):
        assert not located(text).place.is_known
        assert not asked(text)[1]


def test_a_line_may_be_that_of_a_helper_that_another_calls() -> None:
    alone = 'loc("jit(step)/ffn/add"("model.py":7:0))'
    assert located(alone) == Located("jit(step)/ffn/add", Place("model.py", 7, "ffn"))
    called = 'loc("jit(step)/ffn/add"(callsite("linears.py":6:0 at "model.py":7:0)))'
    via = Place("model.py", 7, "ffn", ("linears.py", 6))
    assert located(called) == Located("jit(step)/ffn/add", via)


def test_a_callee_keeps_the_place_of_its_caller_where_it_has_none() -> None:
    outer = Located("jit(step)/jvp()/while/body/closed_call", Place("model.py", 7))
    inner = joined(outer, Located("checkpoint/mul", Place()))
    assert inner.name == "jit(step)/jvp()/while/body/closed_call/checkpoint/mul"
    assert (inner.place.file, inner.place.line) == ("model.py", 7)
    own = joined(outer, Located("jit(step)/add", Place("other.py", 3)))
    assert (own.name, own.place.file) == ("jit(step)/add", "other.py")
