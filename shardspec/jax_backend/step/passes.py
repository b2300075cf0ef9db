"""A lowered program, made ready for Shardy, and Shardy's own passes over it.

Shardy is the authority on what propagates where: nothing here decides any of it. Calls are put
in place of what they call first, since the passes do not look through them inside of loops.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

from shardspec.diagnostics import ShardspecError, codes
from shardspec.diagnostics.diagnostic import Diagnostic
from shardspec.jax_backend.step.graph import (
    children,
    functions_of,
    joined_names,
    location_texts,
    name_in,
)
from shardspec.programs.op_names import Callers, Frame, Stack, stack_of

#: Propagation, in the order that Shardy's own pipeline has, up to the collectives it asks for.
#: Source: `shardy/dialect/sdy/transforms` (export and propagation pipelines). The names are not
#: public API: a test runs them on every JAX that is supported.
PASSES = (
    "sdy-import-pipeline",
    "sdy-user-priority-propagate{debug-sharding-origins=true}",
    "sdy-close-shardings",
    "func.func(sdy-sink-data-flow-edges)",
    "func.func(sdy-sharding-constraint-to-reshard)",
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true})",
    "func.func(sdy-reshard-to-collectives)",
    "canonicalize",
    "cse",
)
#: After this pass every constraint has the name that origins know it by, and is still there.
NAMED_AFTER = "sdy-close-shardings"


def bytecode_of(module: Any) -> bytes:
    """Return a module as bytes: what another process reads, or another context."""
    buffer = io.BytesIO()
    with module.context:
        module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def copy_of(module: Any) -> Any:
    """Return a module that may be changed: JAX keeps the one that it lowered, and compiles it."""
    with mlir.make_ir_context():
        return ir.Module.parse(bytecode_of(module))


def prepared(module: Any) -> None:
    """Put callees in place of calls, and give every operation the user's own location."""
    inlined(module)
    with module.context:
        _respell(functions_of(module)["main"])
        _place(module)


def inlined(module: Any) -> None:
    """Put callees in place of calls."""
    with module.context:
        functions, text = functions_of(module), location_texts()
        for each in children(functions["main"]):
            _inline(each, functions, _Outer("", (), ()), text)
    _run(module, "symbol-dce")


def propagated(module: Any) -> Iterator[str]:
    """Run the passes in place; yield the name of each when it has run.

    Raises:
      ShardspecError: this jaxlib has one of them not, or not so.
    """
    for name in PASSES:
        _run(module, name)
        yield name


def _run(module: Any, name: str) -> None:
    with module.context:
        try:
            passes = PassManager.parse(f"builtin.module({name})")
        except (ValueError, RuntimeError) as error:
            raise ShardspecError((_no_pass(name),)) from error
        passes.run(module.operation)


def _no_pass(name: str) -> Diagnostic:
    from importlib.metadata import version

    bare = name.removeprefix("func.func(").removesuffix(")")
    return Diagnostic(
        codes.NO_PROPAGATION,
        f"jaxlib {version('jaxlib')} has no pass `{bare}`, with which a traced step is read",
        help="install jax 0.10.2, with which it is tested; what needs no step works with this one:"
        " `shardspec check`, `explain` and memory of the state",
    )


class _Outer(NamedTuple):
    """What is around operations: its name, its frames, and those of the calls of their function.

    The frames of an operation end where the function begins that it is in, and in a loop do not.
    """

    name: str
    stack: Stack
    calls: Stack


#: What calls a function, and the attribute that names that.
CALLS = {"func.call": "callee", "stablehlo.composite": "decomposition"}


def _inline(op: Any, functions: dict[str, Any], outer: _Outer, text: Callable[[Any], str]) -> None:
    """Replace an operation by what it calls, or go into its own regions."""
    own, frames = asked(text(op))
    name = joined_names(outer.name, own)
    stack = stack_of((*frames, *outer.calls)) if frames else outer.stack
    if op.name in CALLS:
        callee = functions[ir.FlatSymbolRefAttr(op.attributes[CALLS[op.name]]).value]
        for new in _spliced(op, callee):
            _inline(new, functions, _Outer(name, stack, stack), text)
        return
    op.location = _location(name, stack)
    for each in children(op):
        _inline(each, functions, _Outer(name, stack, outer.calls), text)


def _location(name: str, stack: Stack) -> Any:
    """Return the location of an operation, with frames as JAX states them."""
    found: Any = None
    for file, line, column in stack[::-1]:
        frame = ir.Location.name("", ir.Location.file(file, line, column))
        found = frame if found is None else ir.Location.callsite(frame, [found])
    return ir.Location.name(name, found)


_FRAME = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')


@lru_cache(maxsize=65536)
def asked(location: str) -> tuple[str, Stack]:
    """Return what the location of an operation states: its name, and the user's frames."""
    frames = (Frame(file, int(line), int(at)) for file, line, at in _FRAME.findall(location))
    return name_in(location), stack_of(frames)


def _place(module: Any) -> None:
    """Leave the user's line in the location of each operation, with that of a helper it calls."""
    text = location_texts()
    found = [(op, *asked(text(op))) for op in operations(module.operation)]
    callers = Callers((stack, name) for _, name, stack in found)
    for op, name, stack in found:
        if stack:
            place = callers.place(stack, name)
            at: Any = ir.Location.file(*place.own, 0)
            if place.via:
                at = ir.Location.callsite(at, [ir.Location.file(place.file, place.line, 0)])
            op.location = ir.Location.name(name, at)


def _spliced(call: Any, callee: Any) -> list[Any]:
    """Return copies of what a function does, in place of a call of it."""
    body = callee.regions[0].blocks[0]
    values = dict(zip(list(body.arguments), list(call.operands), strict=True))
    copies = []
    with ir.InsertionPoint(call):
        for each in body.operations:
            op = each.operation
            if op.name == "func.return":
                for result, value in zip(call.results, op.operands, strict=True):
                    result.replace_all_uses_with(values.get(value, value))
                break
            copy = op.clone().operation
            copies.append(copy)
            _renamed(copy, values)
            values.update(zip(op.results, copy.results, strict=True))
    call.erase()
    return copies


def _renamed(op: Any, values: dict[Any, Any]) -> None:
    """Give an operation, and all inside of it, other operands."""
    for at, value in enumerate(op.operands):
        if value in values:
            op.operands[at] = values[value]
    for each in children(op):
        _renamed(each, values)


def _respell(around: Any) -> None:
    """Replace inner operations that Shardy handles otherwise than XLA, which simplifies them first.

    A reshape stands for what only adds dimensions of size 1, or sums over them: Shardy propagates
    through reshapes before it does through products, and through broadcasts after. Without this,
    the buffers in which a scan keeps activations for its backward pass would be sharded as the
    gradient of a weight, and not as the activations are. And a sum over one element, the gradient
    of such a broadcast, hides that a loop does no more than add up.

    Shardy has no rule for CHLO, where `jnp.square` and `erf` are: no sharding would get past them.
    XLA makes them arithmetic of elements before it propagates.
    """
    for op in children(around):
        if only_reshapes(op):
            become(op, "stablehlo.reshape", [op.operands[0]])
            continue
        if op.name.startswith("chlo.") and _is_by_element(op):
            become(op, *_by_element(op))
            continue
        if op.name in _RULELESS:
            op.attributes["sdy.sharding_rule"] = ir.Attribute.parse(_rule(op))
        _respell(op)


def operations(op: Any) -> Iterator[Any]:
    """Yield all operations inside of one."""
    for each in children(op):
        yield from operations(each)
        yield each


def made_by(value: Any) -> str:
    """Return the name of the operation that makes a value; empty for an argument."""
    return str(getattr(value.owner, "name", ""))


#: What may do no more than that, by how many operands it then has.
_UNITS = {"stablehlo.broadcast_in_dim": 1, "stablehlo.reduce": 2}


def only_reshapes(op: Any) -> bool:
    """Say whether an operation only adds dimensions of size 1, or sums over them."""
    if _UNITS.get(op.name) != len(op.operands):
        return False
    before, after = list(op.operands[0].type.shape), list(op.results[0].type.shape)
    return bool(before) and math.prod(before) == math.prod(after)


#: Operations that Shardy has no rule for.
_RULELESS = frozenset(("chlo.top_k", "chlo.ragged_dot"))


def _letters(op: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the dimensions of operands and results: those of one letter are sharded alike."""
    if op.name == "chlo.top_k":
        return ("*x",), ("*y", "*y")
    if len(op.operands[1].type.shape) == 2:  # a product of each group's rows
        return ("ab", "ce", "f"), ("gbe",)
    numbers = str(op.attributes["ragged_dot_dimension_numbers"])
    kept = "d" if "rhs_contracting_dimensions = [2]" in numbers else "e"
    return ("ab", "cde", "f"), (f"g{kept}",)


def _rule(op: Any) -> str:
    """Return the sharding rule of an operation that Shardy has none for."""
    letters: dict[str, str] = {}
    sizes: dict[str, int] = {}
    sides = []
    for values, dims in zip((op.operands, op.results), _letters(op), strict=True):
        told = []
        for value, each in zip(values, dims, strict=True):
            shape = list(value.type.shape)
            names = each.replace("*", "ABCDEFGH"[: len(shape) - 1])
            # Shardy names them i, j, k and so on, in their order
            own = [letters.setdefault(name, chr(ord("i") + len(letters))) for name in names]
            sizes |= zip(own, shape, strict=True)
            told.append(f"[{', '.join(own)}]")
        sides.append(f"({', '.join(told)})")
    told = [f"{name}={size}" for name, size in sizes.items()]
    return f"#sdy.op_sharding_rule<{'->'.join(sides)} {{{', '.join(told)}}}>"


def _is_by_element(op: Any) -> bool:
    shapes = [list(value.type.shape) for value in (*op.operands, *op.results)]
    return len(op.results) == 1 and not op.regions and all(each == shapes[0] for each in shapes)


def _by_element(op: Any) -> tuple[str, list[Any]]:
    """Return an operation on elements, and its operands, with the types of one of CHLO."""
    operands = list(op.operands)
    if op.name == "chlo.square":
        return "stablehlo.multiply", operands * 2
    if op.results[0].type != operands[0].type:
        return "stablehlo.is_finite", operands[:1]
    return ("stablehlo.tanh", operands) if len(operands) == 1 else ("stablehlo.maximum", operands)


def become(op: Any, name: str, operands: list[Any]) -> None:
    """Put another operation in place of one."""
    with ir.InsertionPoint(op), op.location:
        made = ir.Operation.create(name, results=[op.results[0].type], operands=operands)
    op.results[0].replace_all_uses_with(made.results[0])
    op.erase()
