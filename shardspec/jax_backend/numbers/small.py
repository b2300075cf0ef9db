"""A step made small: its spec on a small mesh of CPU devices, and values for its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from shardspec.ir.spec import LogicalAxis, Mesh, Spec, Target
from shardspec.jax_backend.numbers.literals import Written
from shardspec.jax_backend.numbers.sizes import SmallSizes
from shardspec.jax_backend.step.trace import Program


@dataclass(frozen=True, slots=True)
class Trial:
    """A step, traced on a mesh.

    Attributes:
      target: has the mesh.
      written: the sizes in code that became small.
      stated: values for its arguments, where the user gives some; None for others.
      rooms: the lines of capacities that became larger.
    """

    spec: Spec
    target: Target
    program: Program
    written: tuple[Written, ...] = ()
    stated: tuple[Any, ...] = ()
    rooms: tuple[str, ...] = ()


def small_spec(
    spec: Spec,
    target: Target,
    sizes: SmallSizes,
    mesh: Mapping[str, int],
    *,
    has_sizes: bool = True,
) -> tuple[Spec, Target]:
    """Return a spec with small sizes, and a small target in place of one: a mesh of CPUs."""
    axes = tuple(
        replace(each, size=mesh.get(each.name, 1), submesh=None, auto=False, over=())
        for each in target.mesh.axes
    )
    small = Target(target.name, Mesh(axes, target.mesh.wholes))
    logical = tuple(_small_axis(each, sizes, has_sizes) for each in spec.logical_axes)
    policy = replace(spec.policy, whole_below=None, whole_below_span=None)
    return (
        replace(
            spec,
            logical_axes=logical,
            targets=tuple(small if each is target else each for each in spec.targets),
            policy=policy,
            params=(),
            memory=(),
            coverage=None,
            step=None,
        ),
        small,
    )


def _small_axis(axis: LogicalAxis, sizes: SmallSizes, has_size: bool) -> LogicalAxis:
    """Return an axis with its small size; what it is made of stays where that still fits."""
    size = axis.size if has_size else None
    if size is not None:
        size = sizes.named(size, axis.name) or size
    unit = sizes.of(axis.unit)
    if size is None or size % unit:
        unit = 1
    parts = axis.parts
    if parts is not None:
        small = tuple((name, sizes.of(each)) for name, each in parts.sizes)
        parts = parts._replace(sizes=small, unit=sizes.of(parts.unit))
        parts = parts if parts.size == size else None
    return replace(axis, size=size, unit=unit, min_shard=1, parts=parts)


# Values for the arguments of a step that has only shapes: numbers that its program can use.
#
# What an argument is for is read from the program. An integer that indexes a dimension is below its
# size; one that is compared with positions is a position. A float that a square root is taken of is
# not negative. Keys of random numbers are keys. What nothing tells apart is a mask of zeros and
# ones.


#: What passes an integer on as it is, or nearly.
_PASSES = frozenset(
    (
        *("broadcast_in_dim", "reshape", "squeeze", "transpose", "slice", "concatenate", "rev"),
        *("convert_element_type", "copy", "pvary", "select_n", "add", "sub", "max", "min", "clamp"),
        *("sharding_constraint", "reshard", "pad", "all_gather", "ppermute", "all_to_all", "rem"),
        *("expand_dims", "dynamic_slice", "gather", "stop_gradient", "sort", "split"),
    )
)
#: What passes a float on whose sign decides whether a root of the result is a number.
_SCALES = frozenset(
    (
        *("mul", "div", "add", "add_any", "max", "convert_element_type", "broadcast_in_dim"),
        *("reshape", "squeeze", "select_n", "sharding_constraint", "pvary", "transpose", "copy"),
        *("reshard", "reduce_sum", "slice"),
    )
)
_ROOTS = frozenset(("sqrt", "rsqrt", "log", "pow"))
_COMPARES = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))


@dataclass
class Use:
    """What the program does with one argument.

    Attributes:
      limit: an integer is below this; None where nothing says.
      is_key: whether random numbers are made of it.
      is_rooted: whether a root is taken of it.
      is_index: whether it indexes a dimension; what is only compared with positions does not.
    """

    limit: int | None = None
    is_key: bool = False
    is_rooted: bool = False
    is_index: bool = False

    def below(self, limit: int) -> None:
        """Note a bound."""
        self.limit = limit if self.limit is None else max(1, min(self.limit, limit))


@dataclass
class _Uses:
    """A walk over a program that carries, for each variable, the arguments that it comes from."""

    uses: list[Use]

    def walk(self, jaxpr: Any, given: Sequence[frozenset[int]], sizes: Sequence[int | None]) -> Any:
        """Return the arguments that each result comes from, and of which positions it is made."""
        known: dict[Any, frozenset[int]] = dict(zip(jaxpr.invars, given, strict=True))
        places: dict[Any, int | None] = dict(zip(jaxpr.invars, sizes, strict=True))
        none: frozenset[int] = frozenset()
        for eqn in jaxpr.eqns:
            args = [
                none if isinstance(each, core.Literal) else known.get(each, none)
                for each in eqn.invars
            ]
            at = [
                None if isinstance(each, core.Literal) else places.get(each) for each in eqn.invars
            ]
            outs = self._equation(eqn, args, at)
            for var, (out, place) in zip(eqn.outvars, outs, strict=True):
                known[var], places[var] = out, place
        return [
            (none, None)
            if isinstance(each, core.Literal)
            else (known.get(each, none), places.get(each))
            for each in jaxpr.outvars
        ]

    def _equation(self, eqn: Any, args: list[frozenset[int]], at: list[int | None]) -> Any:
        inner = list(_programs(eqn))
        if inner:
            found: Any = None
            for jaxpr, skipped in inner:
                own, places = args[skipped:], at[skipped:]
                if len(jaxpr.invars) != len(own):
                    continue
                outs = self.walk(jaxpr, own, places)
                found = outs if len(outs) == len(eqn.outvars) else found
            return found or [(frozenset(), None)] * len(eqn.outvars)
        self._sink(eqn, args, at)
        name = eqn.primitive.name
        passed: frozenset[int] = frozenset()
        place = None
        is_float = jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating)
        if name == "iota":
            place = eqn.params["shape"][eqn.params["dimension"]]
        elif name in _PASSES or name == "mul":
            place = max((each for each in at if each is not None), default=None)
        if name in (_SCALES if is_float else _PASSES):
            own = args[:1] if name in ("gather", "dynamic_slice") else args
            passed = frozenset().union(*own)
        return [(passed, place)] * len(eqn.outvars)

    def _sink(self, eqn: Any, args: list[frozenset[int]], at: list[int | None]) -> None:
        name, params = eqn.primitive.name, eqn.params
        shape = tuple(getattr(eqn.invars[0].aval, "shape", ())) if eqn.invars else ()
        if name == "gather":
            dims = params["dimension_numbers"].start_index_map
            self._below(
                args[1], min((shape[d] - params["slice_sizes"][d] + 1 for d in dims), default=1)
            )
        elif name.startswith("scatter"):
            dims = params["dimension_numbers"].scatter_dims_to_operand_dims
            self._below(args[1], min((shape[d] for d in dims), default=1))
        elif name == "dynamic_slice":
            for dim, (size, whole) in enumerate(zip(params["slice_sizes"], shape, strict=True)):
                self._below(args[1 + dim], whole - size + 1)
        elif name == "dynamic_update_slice":
            for dim, (size, whole) in enumerate(zip(eqn.invars[1].aval.shape, shape, strict=True)):
                self._below(args[2 + dim], whole - size + 1)
        elif name in _COMPARES and len(args) == 2:
            for own, place in ((args[0], at[1]), (args[1], at[0])):
                if place is not None:
                    self._below(own, place, is_index=name == "eq")
        elif name in ("random_wrap", "threefry2x32"):
            for each in self._of(args):
                each.is_key = True
        elif name in _ROOTS:
            for each in self._of(args):
                each.is_rooted = True

    def _below(self, own: frozenset[int], limit: int, *, is_index: bool = True) -> None:
        for each in self._of([own]):
            each.below(max(1, limit))
            each.is_index |= is_index

    def _of(self, args: Sequence[frozenset[int]]) -> Iterator[Use]:
        yield from (self.uses[at] for own in args for at in own)


def _programs(eqn: Any) -> Iterator[tuple[Any, int]]:
    """Yield the programs inside an equation, and how many of its operands are not theirs."""
    params, name = eqn.params, eqn.primitive.name
    if name == "while":
        yield params["body_jaxpr"].jaxpr, params["cond_nconsts"]
        return
    if name == "cond":
        for each in params["branches"]:
            yield each.jaxpr, 1
        return
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = params.get(key)
        if inner is not None and name != "pallas_call":
            yield getattr(inner, "jaxpr", inner), 0
            return


def uses_of(closed: Any) -> list[Use]:
    """Return what a program does with each of its arguments."""
    uses = [Use() for _ in closed.jaxpr.invars]
    found = _Uses(uses)
    given = [frozenset({at}) for at in range(len(uses))]
    found.walk(closed.jaxpr, given, [None] * len(uses))
    return uses


def value_for(
    struct: Any, use: Use, random: np.random.Generator, width: Any, *, is_zero: bool = False
) -> Any:
    """Return a value for one argument.

    Args:
      struct: its shape and dtype.
      width: the dtype of floats.
      is_zero: whether it is optimizer state, which starts at zero: what the step makes of that
        shows the gradients as they are.
    """
    shape, dtype = tuple(struct.shape), struct.dtype
    if is_zero and not jnp.issubdtype(dtype, jax.dtypes.prng_key) and not use.is_key:
        return np.zeros(shape, width if jnp.issubdtype(dtype, jnp.floating) else dtype)
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        seeds = random.integers(0, 2**31, shape)
        return (
            jax.vmap(jax.random.key)(seeds.reshape(-1)).reshape(shape)
            if shape
            else jax.random.key(int(seeds))
        )
    if jnp.issubdtype(dtype, jnp.bool_):
        return _first(random.random(shape) < 0.8, True)
    found: Any
    if jnp.issubdtype(dtype, jnp.integer):
        if use.is_key:
            return random.integers(0, 2**31, shape).astype(dtype)
        low = 0
        limit = 2 if use.limit is None else use.limit
        if use.limit is not None and not use.is_index and limit > 1:
            low = 1
        found = np.asarray(random.integers(low, max(limit, low + 1), shape))
        return _first(found, 1).astype(dtype) if use.limit is None else found.astype(dtype)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return (random.standard_normal(shape) + 1j * random.standard_normal(shape)).astype(dtype)
    found = np.asarray(random.standard_normal(shape))
    found = found / np.sqrt(shape[-2]) if len(shape) > 1 else 1 + 0.1 * found
    return (np.abs(found) if use.is_rooted else found).astype(width)


def _first(found: Any, value: Any) -> Any:
    """Return an array whose first entry of each row is a value: no row is masked whole."""
    found = np.asarray(found)
    if found.ndim:
        found[..., 0] = value
        return found
    return np.asarray(value)


def values_of(trial: Trial, seed: int, width: np.dtype[Any], scale: float) -> list[Any]:
    """Return a value for each argument of a step.

    Args:
      scale: of random floats.
    """
    random = np.random.default_rng(seed)
    uses = uses_of(trial.program.jaxpr)
    program = trial.program
    made = [
        _scaled(value_for(leaf, use, random, width, is_zero=given.role == "optimizer"), scale)
        for leaf, use, given in zip(program.leaves, uses, program.given, strict=True)
    ]
    stated = trial.stated or (None,) * len(made)
    return [
        own if told is None else np.asarray(told, own.dtype).reshape(own.shape)
        for told, own in zip(stated, made, strict=True)
    ]


def _scaled(value: Any, scale: float) -> Any:
    is_float = isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.floating)
    return (value * scale).astype(value.dtype) if is_float else value
