"""A lowered program, made ready for Shardy, and Shardy's own passes over it.

Shardy is the authority on what propagates where: nothing here decides any of it. Calls are put
in place of what they call first, since the passes do not look through them inside of loops.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from typing import Any

from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

from shardspec.diagnostics import ShardspecError, codes
from shardspec.diagnostics.diagnostic import Diagnostic
from shardspec.jax_backend.step.graph import functions_of
from shardspec.jax_backend.step.places import Located, joined, located

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
    with module.context:
        functions = functions_of(module)
        for block in functions["main"].regions[0].blocks:
            _inline_block(block, functions, Located("", located("loc(unknown)").place))
            _reshape_units(block)
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


def _inline_block(block: Any, functions: dict[str, Any], outer: Located) -> None:
    for each in list(block.operations):
        _inline(each.operation, functions, outer)


def _inline(op: Any, functions: dict[str, Any], outer: Located) -> None:
    """Replace an operation by what it calls, or go into its own regions."""
    here = joined(outer, located(op.location))
    if op.name == "func.call":
        callee = functions[ir.FlatSymbolRefAttr(op.attributes["callee"]).value]
        for new in _spliced(op, callee):
            _inline(new, functions, here)
        return
    op.location = _location(here)
    for region in op.regions:
        for block in region:
            _inline_block(block, functions, here)


def _location(where: Located) -> Any:
    if not where.place.is_known:
        return ir.Location.name(where.name)
    return ir.Location.name(where.name, ir.Location.file(where.place.file, where.place.line, 0))


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
    for region in op.regions:
        for block in region:
            for each in block.operations:
                _renamed(each.operation, values)


def _reshape_units(block: Any) -> None:
    """Make a reshape of what only adds dimensions of size 1, or sums over them, as XLA does early.

    Shardy propagates through reshapes before it does through products, and through broadcasts
    after. Without this, the buffers in which a scan keeps activations for its backward pass lie as
    the gradient of a weight would have them, and not as the activations do. And a sum over one
    element, the gradient of such a broadcast, hides that a loop does no more than add up.
    """
    for each in list(block.operations):
        op = each.operation
        if _UNITS.get(op.name) == len(op.operands) and _has_as_many(op):
            _become_reshape(op)
            continue
        for region in op.regions:
            for inner in region:
                _reshape_units(inner)


#: What may do no more than that, by how many operands it then has.
_UNITS = {"stablehlo.broadcast_in_dim": 1, "stablehlo.reduce": 2}


def _has_as_many(op: Any) -> bool:
    before, after = list(op.operands[0].type.shape), list(op.results[0].type.shape)
    return bool(before) and math.prod(before) == math.prod(after)


def _become_reshape(op: Any) -> None:
    with ir.InsertionPoint(op), op.location:
        made = ir.Operation.create(
            "stablehlo.reshape", results=[op.results[0].type], operands=[op.operands[0]]
        )
    op.results[0].replace_all_uses_with(made.results[0])
    op.erase()
