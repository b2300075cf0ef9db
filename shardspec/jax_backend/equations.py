"""The lines of the user's code that the equations of a jaxpr come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.extend.core
from jax._src import source_info_util

from shardspec.programs.op_names import Callers, Frame, Stack, stack_of


def stack_at(equation: Any) -> Stack:
    """Return the user's frames of an equation, those of the function that it is traced in."""
    frames = source_info_util.user_frames(equation.source_info.traceback)
    return stack_of(Frame(each.file_name, each.start_line, each.start_column) for each in frames)


def callers_of(program: Any) -> Callers:
    """Return the helpers of a jaxpr, and of all in it."""
    return Callers((stack_at(each), each.primitive.name) for each in equations_of(program))


def names_in(traced: Any) -> tuple[str, ...]:
    """Return the names that a traced step gives its values, in order."""
    program, _ = traced or (None, ())
    every = () if program is None else equations_of(program)
    named = (each.params["name"] for each in every if each.primitive.name == "name")
    return tuple(dict.fromkeys(named))


def equations_of(program: Any) -> Iterator[Any]:
    """Yield all equations; those of a program that several call, once."""
    waiting, seen = [program], {id(program)}
    while waiting:
        for each in waiting.pop().eqns:
            yield each
            for found in jax.extend.core.jaxprs_in_params(each.params):
                inner = getattr(found, "jaxpr", found)
                if id(inner) not in seen:
                    seen.add(id(inner))
                    waiting.append(inner)


def is_transposed(equation: Any) -> bool:
    """Say whether an equation computes gradients."""
    return "transpose(" in str(equation.source_info.name_stack)
