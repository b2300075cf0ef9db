"""The table of operations: each stands there once, and it says what JAX and XLA make of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from jax import Array, lax
from jaxlib.mlir.dialects import stablehlo

from shardspec.ir.operations import _TABLE, IN_STABLEHLO, op_info

#: What JAX does not write: shapes that change, calls that are inlined, ends of asynchronous pairs,
#: and a sum on one device alone, which jaxlib 0.12 knows. A program that has them is `unknown`.
UNSEEN = """
async_start collective_reduce composite cross-replica-sum dynamic_broadcast_in_dim dynamic_conv
dynamic_iota dynamic_pad einsum real_dynamic_slice recv send torch_index_select unary_einsum
"""
ALL = [name for names in _TABLE.values() for name in names.split()]


def _names(dialect: Any) -> set[str]:
    found = (each for each in vars(dialect).values() if hasattr(each, "OPERATION_NAME"))
    return {each.OPERATION_NAME.partition(".")[2] for each in found}


def test_each_stands_there_once() -> None:
    assert len(ALL) == len(set(ALL))
    assert not {f"stablehlo.{name}" for name in ALL} & IN_STABLEHLO.keys()


def test_every_operation_of_stablehlo_is_known() -> None:
    names = _names(stablehlo)
    assert len(names) > 100
    unknown = {name for name in names if not op_info(f"stablehlo.{name}").is_known}
    assert {name for name in unknown if f"stablehlo.{name}" not in IN_STABLEHLO} <= {
        *UNSEEN.split()
    }


@pytest.mark.parametrize("name", ALL)
def test_what_is_said_agrees(name: str) -> None:
    info = op_info(name)
    assert sum((info.kind is not None, info.view is not None, info.is_elementwise)) <= 1
    assert info.is_free or not info.is_elementwise
    assert info.is_linear or info.view is None
    assert op_info(f"stablehlo.{name}") == op_info(name.replace("_", "-")) == info


#: Operations on two arrays [3, 4].
CALLS: dict[str, Callable[[Array, Array], Array]] = {
    "add": lax.add,
    "subtract": lax.sub,
    "multiply": lax.mul,
    "divide": lax.div,
    "maximum": lax.max,
    "negate": lambda x, _: -x,
    "exponential": lambda x, _: lax.exp(x),
    "tanh": lambda x, _: lax.tanh(x),
    "select": lambda x, y: lax.select(jnp.arange(12).reshape(3, 4) % 2 == 0, x, y),
    "reshape": lambda x, _: x.reshape(4, 3),
    "transpose": lambda x, _: x.T,
    "reverse": lambda x, _: lax.rev(x, (0,)),
    "slice": lambda x, _: x[1:, :2],
    "pad": lambda x, _: lax.pad(x, 0.0, ((1, 1, 0), (0, 0, 0))),
    "broadcast_in_dim": lambda x, _: lax.broadcast(x, (2,)),
    "concatenate": lambda x, y: lax.concatenate((x, y), 0),
    "dynamic_update_slice": lambda x, y: lax.dynamic_update_slice(x, y[:1], (1, 0)),
    "sort": lambda x, _: lax.sort(x),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_linear_and_by_element(name: str) -> None:
    call, info = CALLS[name], op_info(name)
    x, y, z = (jnp.cos(jnp.arange(12.0).reshape(3, 4) * at) + 0.1 for at in (1, 2, 3))
    both = (call(x + y, z + x), call(x, z) + call(y, x))
    assert bool(jnp.allclose(*both, atol=1e-5)) is info.is_linear
    if info.is_elementwise:
        changed = jnp.ravel(call(x, y) != call(x.at[0, 0].set(5.0), y))
        assert not bool(jnp.any(changed[1:]))
