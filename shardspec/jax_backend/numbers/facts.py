"""What a program says of its sizes and its mesh: how sizes are made of others, which axes it uses.

Read from JAX's program at the sizes that the user states, before anything is made smaller.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from jax.extend import core
from jax.sharding import NamedSharding, PartitionSpec

from shardspec.ir.spec import jax_entries
from shardspec.jax_backend.batch import names_of
from shardspec.jax_backend.numbers.sizes import TIGHT, Relations
from shardspec.jax_backend.sums.rules import same_elements
from shardspec.jax_backend.versions import made_manual

#: A size and what it is made of.
_Made = tuple[int, tuple[int, ...]]


@dataclass
class Facts:
    """What is read of one program.

    Attributes:
      sizes: of all its arrays, without the least.
      elements: that it computes, all equations and iterations together.
      axes: the mesh axes that something is sharded over, or that code names.
      split: the sizes of which each device of a `shard_map` has a part.
      rings: the mesh axes along which arrays move from one device to the next.
    """

    sizes: set[int] = field(default_factory=set)
    elements: int = 0
    products: dict[_Made, None] = field(default_factory=dict)
    sums: dict[_Made, None] = field(default_factory=dict)
    axes: dict[str, None] = field(default_factory=dict)
    split: set[int] = field(default_factory=set)
    rings: dict[str, None] = field(default_factory=dict)

    @property
    def relations(self) -> Relations:
        """Return how sizes are made of others."""
        return Relations(tuple(self.products), tuple(self.sums))


def facts_of(closed: Any, leaves: Iterable[Any]) -> Facts:
    """Return the facts of a program and of what it is called with."""
    facts = Facts()
    for leaf in leaves:
        facts.sizes.update(leaf.shape)
        _use(facts, getattr(getattr(leaf, "sharding", None), "spec", None))
    for eqn in equations(closed.jaxpr):
        for var in eqn.outvars:
            facts.sizes.update(each for each in getattr(var.aval, "shape", ()) if type(each) is int)
        _relate(facts, eqn)
        _place(facts, eqn)
    _sliced(facts, closed.jaxpr)
    facts.elements = _elements(closed.jaxpr)
    facts.sizes = {each for each in facts.sizes if each > TIGHT.stays}
    return facts


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yield all equations of a program, those of the programs in it included."""
    for each in programs(jaxpr):
        yield from each.eqns


def programs(jaxpr: Any) -> Iterator[Any]:
    """Yield a program and all programs in it, each once."""
    waiting, seen = [jaxpr], set()
    while waiting:
        now = waiting.pop()
        if id(now) in seen:
            continue
        seen.add(id(now))
        yield now
        for eqn in now.eqns:
            waiting += core.jaxprs_in_params(eqn.params)


def _elements(jaxpr: Any) -> int:
    """Return how many elements a program computes, on all devices and in all iterations."""
    count = 0
    for eqn in jaxpr.eqns:
        inner = [*core.jaxprs_in_params(eqn.params)]
        own = sum(math.prod(getattr(var.aval, "shape", ())) for var in eqn.outvars)
        count += _times(eqn) * sum(map(_elements, inner)) if inner else own
    return count


def _times(eqn: Any) -> int:
    """Return how often the programs in an equation run: by iterations, or by devices."""
    if eqn.primitive.name != "shard_map":
        return int(eqn.params.get("length", 1))
    sizes = dict(eqn.params["mesh"].shape)
    return math.prod(sizes[axis] for axis in made_manual(eqn))


def _relate(facts: Facts, eqn: Any) -> None:
    name = eqn.primitive.name
    if name == "reshape":
        shapes = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
        for sides in same_elements(*shapes):
            pairs = zip(shapes, sides, strict=True)
            sizes = (tuple(shape[d] for d in dims if shape[d] != 1) for shape, dims in pairs)
            one, many = sorted(sizes, key=len)
            if len(one) == 1 < len(many):
                facts.products[one[0], many] = None
    elif name == "concatenate":
        at = eqn.params["dimension"]
        parts = tuple(each.aval.shape[at] for each in eqn.invars)
        facts.sums[eqn.outvars[0].aval.shape[at], parts] = None
    elif name == "split":
        facts.sums[sum(eqn.params["sizes"]), tuple(eqn.params["sizes"])] = None


def _sliced(facts: Facts, jaxpr: Any) -> None:
    """Note the dimensions that slices part without a rest."""
    for each in programs(jaxpr):
        found: dict[tuple[Any, int], set[tuple[int, int]]] = {}
        for eqn in each.eqns:
            if eqn.primitive.name != "slice" or isinstance(eqn.invars[0], core.Literal):
                continue
            shape = eqn.invars[0].aval.shape
            bounds = zip(eqn.params["start_indices"], eqn.params["limit_indices"], strict=True)
            for dim, (start, limit) in enumerate(bounds):
                if limit - start < shape[dim]:
                    found.setdefault((eqn.invars[0], dim), set()).add((start, limit))
        for (var, dim), parts in found.items():
            ordered = sorted(parts)
            ends = [0, *(limit for _, limit in ordered)]
            if [start for start, _ in ordered] == ends[:-1] and ends[-1] == var.aval.shape[dim]:
                sizes = tuple(limit - start for start, limit in ordered)
                facts.sums[var.aval.shape[dim], sizes] = None


def _place(facts: Facts, eqn: Any) -> None:
    """Note the mesh axes that an equation names."""
    name, params = eqn.primitive.name, eqn.params
    if name == "ppermute":
        facts.rings.update(dict.fromkeys(_axes(params["axis_name"])))
    for value in params.values():
        if isinstance(value, NamedSharding):
            _use(facts, value.spec)
    if name == "shard_map":
        for spec in (*params["in_specs"], *params["out_specs"]):
            _use(facts, spec)
        for var, spec in zip(eqn.invars, params["in_specs"], strict=True):
            pairs = zip(var.aval.shape, jax_entries(spec), strict=False)
            facts.split.update(size for size, entry in pairs if names_of(entry))
    for key in ("axes", "axis_name"):
        facts.axes.update(dict.fromkeys(_axes(params.get(key))))


def _axes(value: Any) -> tuple[str, ...]:
    found = value if isinstance(value, tuple | list) else (value,)
    return tuple(each for each in found if isinstance(each, str))


def _use(facts: Facts, spec: Any) -> None:
    if isinstance(spec, PartitionSpec):
        for entry in (*jax_entries(spec), *((each,) for each in spec.unreduced | spec.reduced)):
            if entry is not PartitionSpec.UNCONSTRAINED:
                facts.axes.update(dict.fromkeys(names_of(entry)))


def single_slices(closed: Any) -> Iterator[tuple[str, ...]]:
    """Yield the mesh axes of each dimension of which a `shard_map` takes the first slice alone.

    Its code is written for one slice on each device, and computes something else on fewer devices.
    """
    for eqn in equations(closed.jaxpr):
        if eqn.primitive.name != "shard_map":
            continue
        body = eqn.params["jaxpr"]
        for var, spec in zip(body.invars, eqn.params["in_specs"], strict=True):
            for dim, entry in enumerate(jax_entries(spec)):
                axes = names_of(entry)
                if axes and var.aval.shape[dim] > 1 and _is_first_alone(body, var, dim):
                    yield axes


def _is_first_alone(body: Any, var: Any, dim: int) -> bool:
    readers = [eqn for eqn in body.eqns if any(each is var for each in eqn.invars)]
    return bool(readers) and all(
        eqn.primitive.name == "slice"
        and eqn.params["start_indices"][dim] == 0
        and eqn.params["limit_indices"][dim] == 1
        for eqn in readers
    )
