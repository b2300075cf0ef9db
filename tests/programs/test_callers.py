"""Which line is shown: that of the operation, or the one that calls the helper it is in."""

from __future__ import annotations

import os
from itertools import pairwise

import pytest

from shardspec.ir.step import Place
from shardspec.programs.op_names import Callers, Frame, Stack, stack_of

DOT, ADD = "jit(step)/jvp(bd,df->bf)/dot_general", "jit(step)/jvp()/add"


def stack(*frames: str) -> Stack:
    """Return frames of `file:line`, or `file:line:column`, in the working folder."""
    parts = (each.split(":") for each in frames)
    return stack_of(
        Frame(os.path.abspath(f"{file}.py"), int(line), int(*at)) for file, line, *at in parts
    )


def places(*operations: tuple[Stack, str]) -> list[str]:
    callers = Callers(operations)
    return [str(callers.place(*each)) for each in operations]


BLOCK = "model:30"
Q, K = stack("linears:6", "attention:11", BLOCK), stack("linears:6", "attention:12", BLOCK)
UP = stack("linears:6", "mlp:4", "model:31")


def test_a_line_that_several_lines_call_is_shown_at_each_of_them() -> None:
    assert places((Q, DOT), (K, DOT), (UP, DOT)) == [
        f"{caller} (in linears.py:6)"
        for caller in ("attention.py:11", "attention.py:12", "mlp.py:4")
    ]


def test_what_is_beside_the_product_of_a_helper_is_shown_there_too() -> None:
    bias = stack("linears:7", *("attention:11", BLOCK)), stack("linears:7", "mlp:4", "model:31")
    found = places((Q, DOT), (UP, DOT), *((each, ADD) for each in bias))
    assert found[2:] == ["attention.py:11 (in linears.py:7)", "mlp.py:4 (in linears.py:7)"]


def test_a_line_with_one_caller_is_its_own() -> None:
    layers = [stack("linears:6", "attention:11", "model:30")] * 4
    assert places(*((each, DOT) for each in layers)) == ["linears.py:6"] * 4


def test_a_block_of_several_products_is_no_helper_however_often_it_is_called() -> None:
    """Layers that are written out, each on a line of its own."""
    lines = [stack(f"block:{at}", f"model:{30 + layer}") for layer in range(3) for at in (5, 6)]
    assert places(*((each, DOT) for each in lines)) == ["block.py:5", "block.py:6"] * 3


def test_a_helper_in_a_block_of_which_there_are_several_is_shown_in_the_block() -> None:
    lines = [
        stack("linears:6", f"block:{at}", f"model:{30 + layer}")
        for layer in range(3)
        for at in (5, 6)
    ]
    shown = ["block.py:5 (in linears.py:6)", "block.py:6 (in linears.py:6)"]
    assert places(*((each, DOT) for each in lines)) == shown * 3


def test_the_outermost_of_helpers_that_call_each_other_is_the_one_that_is_called() -> None:
    lines = [stack("dots:1", "linears:20", f"attention:{at}", "model:3") for at in (11, 12, 13)]
    found = places(*((each, DOT) for each in lines))
    assert found == [f"attention.py:{at} (in dots.py:1)" for at in (11, 12, 13)]


def test_two_products_of_one_line_are_two() -> None:
    """`dense(relu(dense(x, a)), b)` of an `mlp` that two lines call."""
    lines = [
        stack("linears:6", f"mlp:4:{column}", f"model:{line}:9")
        for line in (30, 31)
        for column in (8, 20)
    ]
    assert places(*((each, DOT) for each in lines)) == ["mlp.py:4 (in linears.py:6)"] * 4
    one = [(each, DOT) for each in lines[::2]]
    assert places(*one) == [f"model.py:{line} (in linears.py:6)" for line in (30, 31)]


def test_frames_that_jax_left_out_are_no_callers() -> None:
    """Of the forward pass of what is computed again, the frames between are not known."""
    lost = stack("norm:3", "model:40"), stack("norm:3", "block:7", "model:40")
    assert places(*((each, ADD) for each in lost)) == ["norm.py:3"] * 2
    named = [stack("linears:6", f"attention:{at}", "model:40") for at in (11, 12)]
    found = places((stack("linears:6", "model:40"), DOT), *((each, DOT) for each in named))
    assert found[0] == "linears.py:6"
    assert found[1:] == [f"attention.py:{at} (in linears.py:6)" for at in (11, 12)]


def test_libraries_and_turns_of_one_line_are_no_frames() -> None:
    flax = Frame("/env/lib/python3.12/site-packages/flax/linen/linear.py", 9)
    own, other = Frame("/a/m.py", 3, 4), Frame("/a/m.py", 7)
    assert stack_of([flax, own, flax, own._replace(column=8), other]) == (own, other)
    assert stack_of([Frame("", 3), flax]) == ()


@pytest.mark.parametrize("depth", [1, 20, 500])
def test_any_stack_has_a_place(depth: int) -> None:
    deep = stack_of(Frame(f"/a/f{at % 7}.py", at, at % 3) for at in range(depth))
    callers = Callers([(deep, DOT), (deep[1:], ADD)])
    assert callers.place(deep, DOT).own[1] == 0
    assert callers.place((), DOT) == Place(scope="bd,df->bf")


def test_places_show_the_helper_and_keep_its_line() -> None:
    place = Place("attention.py", 11, via=("linears.py", 6))
    assert (str(place), place.own) == ("attention.py:11 (in linears.py:6)", ("linears.py", 6))
    alone = Place("linears.py", 6)
    assert (str(alone), alone.own) == ("linears.py:6", place.own)
    assert all(one != other for one, other in pairwise((place.shown, alone.shown, Place().shown)))
