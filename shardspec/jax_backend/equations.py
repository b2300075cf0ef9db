"""The equations of a jaxpr, read in one way for all versions of JAX.

Here are the user's lines they come from, and constraints that do nothing: without rules, Flax
returns the value as it is. Our own frames are kept out of the locations that JAX writes down.
"""

from __future__ import annotations

import contextlib
import dis
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType
from typing import Any, TypeVar

import jax
import jax.extend.core
import jax.numpy as jnp
from jax._src import config, mesh, source_info_util
from jax.ad_checkpoint import checkpoint_name

from shardspec.diagnostics.words import counted, reached
from shardspec.jax_backend.trees import argument_names
from shardspec.programs.op_names import Callers, Frame, Stack, is_library, is_users, shown, stack_of

Known = TypeVar("Known")


def stack_at(equation: Any) -> Stack:
    """Return the user's frames of an equation, those of the function that it is traced in."""
    returned = returned_at(equation)
    if returned:
        return returned
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
    for each in programs_of(program):
        yield from each.eqns


def programs_of(program: Any) -> Iterator[Any]:
    """Yield a program and all programs in it, each once."""
    inside = jax.extend.core.jaxprs_in_params
    return reached([program], lambda now: (each for eqn in now.eqns for each in inside(eqn.params)))


def followed(
    program: Any,
    given: Sequence[Known],
    rule: Callable[[Any, list[Known]], Sequence[Known]],
    otherwise: Callable[[Any], Known],
) -> list[Known]:
    """Return what is known of the results of a jaxpr, by what is known of its arguments.

    Args:
      rule: returns what is known of the results of an equation, by its operands.
      otherwise: returns what is known of a literal, or of what no equation makes.
    """
    known = dict(zip(program.invars, given, strict=True))

    def read(var: Any) -> Known:
        is_known = not isinstance(var, jax.extend.core.Literal) and var in known
        return known[var] if is_known else otherwise(var)

    for each in program.eqns:
        made = rule(each, [read(var) for var in each.invars])
        known.update(zip(each.outvars, made, strict=False))
    return [read(var) for var in program.outvars]


def followed_inside(
    equation: Any,
    given: list[Known],
    walk: Callable[[Any, list[Known]], list[Known]],
    nothing: Known,
) -> list[Known] | None:
    """Return what a walk finds of the results of an equation that runs programs; None of others."""
    outs: list[Known] | None = None
    for program, skipped in _programs(equation):
        outs = outs or [nothing] * len(equation.outvars)
        if len(program.invars) == len(given) - skipped:
            made = walk(program, given[skipped:])
            outs = made if len(made) == len(outs) else outs
    return outs


def _programs(equation: Any) -> Iterator[tuple[Any, int]]:
    """Yield the programs inside an equation, and how many of its operands are not theirs."""
    params, name = equation.params, equation.primitive.name
    if name == "while":
        yield params["body_jaxpr"].jaxpr, params["cond_nconsts"]
    elif name == "cond":
        yield from ((each.jaxpr, 1) for each in params["branches"])
    elif name != "pallas_call":
        keys = ("jaxpr", "call_jaxpr", "fun_jaxpr")
        inner = next((params[key] for key in keys if params.get(key) is not None), None)
        if inner is not None:
            yield getattr(inner, "jaxpr", inner), 0


def computed(equation: Any, values: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """Return what an equation computes of some values, with other parameters."""
    found: Any = equation.primitive.get_bind_params(params)
    functions, bound = found if isinstance(found, tuple) else ((), found)
    made = equation.primitive.bind(*functions, *values, **bound)
    return list(made) if equation.primitive.multiple_results else [made]


def is_transposed(equation: Any) -> bool:
    """Say whether an equation computes gradients."""
    return "transpose(" in str(equation.source_info.name_stack)


#: What gradients are named that a backward rule returns, before its line.
BACKWARD = "custom_vjp"


def returned_at(equation: Any) -> Stack:
    """Return the line at which a backward rule returns what an equation names; none of others."""
    kind, _, place = str(equation.params.get("name", "")).partition(" ")
    if kind != BACKWARD or equation.primitive.name != "name":
        return ()
    file, _, line = place.rpartition(":")
    return (Frame(file, int(line), 0),)


@contextlib.contextmanager
def backward_lines() -> Iterator[None]:
    """Trace the backward rules of the user's `jax.custom_vjp` at their own lines.

    JAX gives what they compute the line of the call. What they return is named, since a rule that
    forgets something may compute nothing at all.
    """
    kind: Any = jax.custom_vjp
    call, kept = kind.__call__, list[tuple[Any, Any]]()

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        code = getattr(self.bwd, "__code__", None)
        if code is not None and is_users(code.co_filename):
            kept.append((self, self.bwd))
            self.bwd = _at_its_lines(self.bwd, code)
        return call(self, *args, **kwargs)

    kind.__call__ = called
    try:
        yield
    finally:
        kind.__call__ = call
        for function, rule in kept:
            function.bwd = rule


def _at_its_lines(rule: Callable[..., Any], code: CodeType) -> Callable[..., Any]:
    ends = [each for each in dis.get_instructions(code) if each.opname.startswith("RETURN_")]
    line = (ends[-1].positions.lineno if ends and ends[-1].positions else 0) or code.co_firstlineno

    def named(value: Any) -> Any:
        is_float = jnp.issubdtype(getattr(value, "dtype", bool), jnp.inexact)
        name = f"{BACKWARD} {code.co_filename}:{line}"
        return checkpoint_name(value, name) if is_float else value

    def run(*args: Any) -> Any:
        here: Any = source_info_util._source_info_context
        call = here.context
        here.context = source_info_util.SourceInfo(None, call.name_stack)
        try:
            return jax.tree_util.tree_map(named, rule(*args))
        finally:
            here.context = call

    return run


#: The module of Flax whose constraints ask for rules, and what they ask.
_MODULE, _ASKED = "flax.linen.spmd", "get_logical_axis_rules"
_CONSTRAINS = "with_logical_constraint"
#: The modules of Flax that constrain what they declare: boxed weights, `param_with_axes`.
_DECLARING = (_MODULE, "flax.linen.partitioning")
#: Lines that a note names.
_MOST_PLACES = 3

#: A line of the user's code: file and number.
Caller = tuple[str, int]


@contextlib.contextmanager
def idle_constraints(found: list[Caller]) -> Iterator[None]:
    """Add the lines of this thread that call a constraint of Flax without rules in context.

    Weights that Flax takes out of their boxes, or that `param_with_axes` declares, are left out:
    the spec shards these.
    """
    module, own = sys.modules.get(_MODULE), threading.get_ident()
    rules_of = getattr(module, _ASKED, None)
    if rules_of is None:
        yield
        return

    def asked() -> Any:
        rules = rules_of()
        if not rules and threading.get_ident() == own:
            caller = _caller(sys._getframe(1))
            if caller is not None and caller not in found:
                found.append(caller)
        return rules

    setattr(module, _ASKED, asked)
    try:
        yield
    finally:
        setattr(module, _ASKED, rules_of)


def _caller(frame: Any) -> Caller | None:
    """Return the line that calls a constraint; None where it names no axes, or for a weight."""
    is_meant = frame.f_code.co_name == _CONSTRAINS
    if not is_meant or frame.f_locals.get("logical_axis_resources") is None:
        return None
    frame = frame.f_back
    if frame is None or frame.f_globals.get("__name__") in _DECLARING:
        return None
    while frame.f_back is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def summary(found: Sequence[Caller]) -> str:
    """Return what constraints do nothing, and why, as a sentence without their places."""
    verb = "does" if len(found) == 1 else "do"
    who = f"{counted(len(found), 'constraint')} of Flax"
    return f"{who} {verb} nothing: no `nn.logical_axis_rules` are in context"


def notes_of(found: Sequence[Caller]) -> Iterator[str]:
    """Yield the same with their places; nothing where there are none."""
    if not found:
        return
    places = ", ".join(f"{shown(file)}:{line}" for file, line in found[:_MOST_PLACES])
    more = f" and {len(found) - _MOST_PLACES} more" if len(found) > _MOST_PLACES else ""
    yield f"{summary(found)} ({places}{more})"


#: The settings that have the mesh of the context, with devices and without.
_OWNER: Any = mesh if hasattr(mesh, "device_context") else config
DEVICE_CONTEXT: Any = getattr(_OWNER, "device_context", None)
AXES_CONTEXT: Any = getattr(_OWNER, "abstract_mesh_context_manager", None)


def scan_counts(equation: Any) -> tuple[int, int]:
    """Return how many values of a scan are the same in each turn, and how many it carries.

    What it takes a part of for each turn, or stacks, has one dimension more outside of its body.
    """
    body = equation.params["jaxpr"]
    carried = _of_one_rank(equation.outvars, body.out_avals)
    return _of_one_rank(equation.invars, body.in_avals) - carried, carried


def made_manual(equation: Any) -> frozenset[str]:
    """Return the mesh axes that a `shard_map` makes manual, without those that are so around it.

    The first versions of jax 0.10 list both.
    """
    params = equation.params
    if "newly_manual_axes" in params:
        return frozenset(params["newly_manual_axes"])
    return frozenset(params["manual_axes"]) - frozenset(params["mesh"].manual_axes)


def _of_one_rank(outside: Iterable[Any], inside: Iterable[Any]) -> int:
    return sum(len(v.aval.shape) == len(a.shape) for v, a in zip(outside, inside, strict=True))


def donated_inside(traced: Any, args: Sequence[Any]) -> list[int]:
    """Return the arguments that jitted functions donate which a function passes them on to."""
    calls = [each for each in traced.jaxpr.eqns if "donated_invars" in each.params]
    pairs = (zip(each.invars, each.params["donated_invars"], strict=True) for each in calls)
    given_on = {id(var) for each in pairs for var, is_donated in each if is_donated}
    waiting = iter(traced.jaxpr.jaxpr.invars)
    owned = [[id(next(waiting)) for _ in jax.tree_util.tree_leaves(each)] for each in args]
    return [at for at, own in enumerate(owned) if own and given_on.issuperset(own)]


def donated_by(function: Any, names: Sequence[str], count: int) -> dict[str, Any]:
    """Return the arguments that an `eqx.filter_jit` donates, which is traced as plain code.

    Args:
      count: how many of the arguments are given by place.
    """
    is_first = getattr(function, "donate_first", False) is True
    is_rest = getattr(function, "donate_rest", False) is True
    first = next(iter(argument_names(function, 1, ())), "")
    given = [at for at in range(len(names)) if (is_first if names[at] == first else is_rest)]
    by_name = tuple(names[at] for at in given if at >= count)
    return {"donate_argnums": tuple(at for at in given if at < count), "donate_argnames": by_name}


def _own_files() -> Iterator[str]:
    """Yield what the files of our own frames begin with, from the command line to a constraint."""
    yield os.path.dirname(os.path.dirname(__file__)) + os.sep
    yield "<frozen runpy>"
    if "click" in sys.modules:
        yield os.path.dirname(str(sys.modules["click"].__file__)) + os.sep
    program = getattr(sys.modules["__main__"], "__file__", None) or ""
    if os.path.basename(program) in ("shardspec", "shardspec.exe"):
        yield program


# The same step then has the same bytes for every verb, and is compiled once for all of them.
for _each in _own_files():
    source_info_util.register_exclusion(_each)
