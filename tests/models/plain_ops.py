"""Plain operations of `jnp` and `lax` on a sharded array, along its sharded dimension and not.

`tests/data/plain_ops.json` has what one device sends for each, in libtpu's final programs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

SPEC = """\
shardspec: 1
targets:
  pod: {hardware: tpu v5e 2x4, mesh: {x: 8}}
"""


class Array(NamedTuple):
    shape: tuple[int, ...]
    split: tuple[str | None, ...] = ()
    dtype: Any = jnp.float32


class Op(NamedTuple):
    function: Callable[..., Any]
    arrays: tuple[Array, ...]

    def structs(self, mesh: Any) -> list[Any]:
        return [
            jax.ShapeDtypeStruct(
                each.shape, each.dtype, sharding=NamedSharding(mesh, PartitionSpec(*each.split))
            )
            for each in self.arrays
        ]


OPS: dict[str, Op] = {}
ROWS, COLUMNS = 2048, 4096
SHAPE = (ROWS, COLUMNS)
NUMBER = Array((), (), jnp.int32)
SAME = Array(SHAPE, (None, "x"))
PLACES = Array((64,), (None,), jnp.int32)


def both(name: str, function: Callable[..., Any], *more: Array) -> None:
    """Take an operation that works along columns: of split columns, and of split rows."""
    OPS[f"{name} along"] = Op(function, (Array(SHAPE, (None, "x")), *more))
    OPS[f"{name} across"] = Op(function, (Array(SHAPE, ("x", None)), *more))


def one(name: str, function: Callable[..., Any], *arrays: Array) -> None:
    OPS[name] = Op(function, arrays)


def halves(x: Any) -> Any:
    left, right = jnp.split(x, 2, axis=1)
    return left * jax.nn.silu(right)


def shifted(x: Any) -> Any:
    return jnp.pad(x[:, :-3], ((0, 0), (3, 0)))


both("fft", lambda x: jnp.abs(jnp.fft.fft(x, axis=1)))
both("cumsum", lambda x: jnp.cumsum(x, axis=1))
both("cumlogsumexp", lambda x: lax.cumlogsumexp(x, axis=1))
both("roll", lambda x: jnp.roll(x, 1, axis=1))
both("roll back", lambda x: jnp.roll(x, -3, axis=1))
both("roll far", lambda x: jnp.roll(x, 1000, axis=1))
both("roll by a number", lambda x, by: jnp.roll(x, by, axis=1), NUMBER)
both("flip", lambda x: jnp.flip(x, axis=1))
both("sort", lambda x: jnp.sort(x, axis=1))
both("sort, then take", lambda x: jnp.take_along_axis(x, jnp.argsort(x, axis=1), axis=1))
both("top k", lambda x: lax.top_k(x, 16))
both("top k, of them the places", lambda x: lax.top_k(x, 16)[1])
both("top k, many", lambda x: lax.top_k(x, 64))
both("approximate top k", lambda x: lax.approx_max_k(x, 16, reduction_dimension=1))
both("sum", lambda x: jnp.sum(x, axis=1))
both("argmax", lambda x: jnp.argmax(x, axis=1))
both("softmax", lambda x: jax.nn.softmax(x, axis=1))
both("variance", lambda x: jnp.var(x, axis=1))
both("erf", jax.scipy.special.erf)
both("slice", lambda x: x[:, 1:])
both("crop", lambda x: x[:, 64:-64])
both("row", lambda x: x[:, 5] * 2)
both("stride", lambda x: x[:, ::2])
both("halves", halves)
both("shift", shifted)
both("pad", lambda x: jnp.pad(x, ((0, 0), (3, 5))))
both("concatenate", lambda x, y: jnp.concatenate([x, y], axis=1), SAME)
both("repeat", lambda x: jnp.repeat(x, 2, axis=1))
both("tile", lambda x: jnp.tile(x, (1, 2)))
both("slice at a number", lambda x, at: lax.dynamic_slice_in_dim(x, at, 128, axis=1), NUMBER)
both(
    "write at a number",
    lambda x, at: lax.dynamic_update_slice_in_dim(x, jnp.ones((ROWS, 128)), at, axis=1),
    NUMBER,
)
both(
    "write a row at a number",
    lambda x, at: lax.dynamic_update_slice_in_dim(x, jnp.ones((ROWS, 1)), at, axis=1),
    NUMBER,
)
both("set a row", lambda x: x.at[:, 0].set(0.0))
both("add to rows", lambda x, at: x.at[:, at].add(1.0), PLACES)
both("take", lambda x, at: jnp.take(x, at, axis=1), PLACES)
both(
    "take along",
    lambda x, at: jnp.take_along_axis(x, at, axis=1),
    Array(SHAPE, (None, "x"), jnp.int32),
)
both("merge dimensions", lambda x: x.reshape(-1) * 2)
both("divide dimensions", lambda x: x.reshape(ROWS, 64, 64) * 2)
both("divide in two", lambda x: x.reshape(ROWS, 2, ROWS) * 2)
both(
    "windows of three",
    lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3), (1, 1), "SAME"),
)
both("scan", lambda x: lax.scan(lambda c, y: (c + y, c), jnp.zeros(ROWS), x.T)[0])
both("median", lambda x: jnp.median(x, axis=1))
both("random numbers", lambda x: x * jax.random.uniform(jax.random.key(0), x.shape))
both("triangle", jnp.tril)
for _name, _given in {
    "numbers": Array(SHAPE, (None, "x"), jnp.int32),
    "half precision": Array(SHAPE, (None, "x"), jnp.bfloat16),
    "a stack": Array((8, 128, COLUMNS), (None, None, "x")),
    "a list": Array((65536,), ("x",)),
}.items():
    one(f"top k of {_name}", lambda x: lax.top_k(x, 16), _given)
one("flip both", lambda x: x[::-1, ::-1], SAME)
LIST = Array((65536,), ("x",))
one("take of a list", lambda x, at: x[at], LIST, Array((8192,), ("x",), jnp.int32))
TURNED = {"wide": 4096, "as wide": 2048, "narrow": 2000}
for _name, _size in TURNED.items():
    one(f"product, {_name}", jnp.matmul, Array((1024, 2048), (None, "x")), Array((2048, _size)))
one("product with a vector", jnp.matmul, Array((1, 2048), (None, "x")), Array((2048, 4096)))
one("product with rows", jnp.matmul, Array((1024, 2048)), Array((2048, 512), ("x",)))
one(
    "product backward",
    jax.grad(lambda w, x: jnp.sum((x @ w) ** 2)),
    Array((2048, 4096)),
    SAME._replace(shape=(1024, 2048)),
)
SQUARE = Array((256, 256), ("x", None))
STACK = Array((8, 256, 256), ("x", None, None))
for _name, _function in {
    "cholesky": jnp.linalg.cholesky,
    "inverse": jnp.linalg.inv,
    "eigenvectors": lambda x: jnp.linalg.eigh(x)[1],
}.items():
    one(f"{_name} of one", _function, SQUARE)
    one(f"{_name} of many", _function, STACK)
IMAGES = (8, 64, 64, 16)


def convolved(strides: int, groups: int = 1) -> Callable[..., Any]:
    return lambda x, kernel: lax.conv_general_dilated(
        x,
        kernel,
        (strides, strides),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


for _name, _split in {"images": 0, "rows": 1, "channels": 3}.items():
    _images = Array(IMAGES, tuple("x" if at == _split else None for at in range(4)))
    one(f"convolution, {_name}", convolved(1), _images, Array((3, 3, 16, 32)))
    one(f"strided convolution, {_name}", convolved(2), _images, Array((3, 3, 16, 32)))
    one(f"depthwise convolution, {_name}", convolved(1, 16), _images, Array((3, 3, 1, 16)))
TOKENS = (Array((4096, 512), ("x", None)), Array((4096, 512), (None, "x")), Array((4096, 512)))
EXPERTS = Array((8, 512, 256))
SIZES = Array((8,), (), jnp.int32)
one("ragged product, rows", lax.ragged_dot, TOKENS[0], EXPERTS, SIZES)
one("ragged product, inner", lax.ragged_dot, TOKENS[1], Array((8, 512, 256), (None, "x")), SIZES)
one(
    "ragged product, columns",
    lax.ragged_dot,
    TOKENS[2],
    Array((8, 512, 256), (None, None, "x")),
    SIZES,
)
one(
    "tokens by argsort",
    lambda x, to: jnp.take(x.reshape(2048, 1024), jnp.argsort(to.reshape(-1)), axis=0),
    Array((16, 128, 1024), ("x",), jnp.bfloat16),
    Array((16, 128), ("x",), jnp.int32),
)
one(
    "stages",
    lambda x: jnp.concatenate([x[-1:], x[:-1]]) * 2,
    Array((8, 512, 512), ("x",)),
)
