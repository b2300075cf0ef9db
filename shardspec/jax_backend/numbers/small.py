"""A step made small: its spec on a small mesh of CPU devices, and values for its arguments.

Most code has its sizes written in it: `EMBED = 4096`. A step that is run small needs small ones. So
the user's modules are imported with smaller numbers written in them. A module is read as ever, and
in its syntax tree an integer that is a size of the step gets the small size. Nothing is written,
and Python's own cache of compiled modules is neither read nor filled.

Every size of its arrays gets a small one, and relations stay. A size is a number, and the same
number gets the same small one wherever it stands: in the arguments, in the spec, in the code. So
arrays that share an axis still agree. Sizes up to 16 stay as they are. A size that the program
makes of others - heads times their width, three parts behind one another, one more than another -
is made of their small ones. All others become 16 or 32, factors of a product 8, and multiples of
what divides them.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shardspec.ir.spec import LogicalAxis, Mesh, Spec, Target
from shardspec.jax_backend.equations import followed, followed_inside
from shardspec.jax_backend.numbers.room import NOTE, Noted, NotingCode
from shardspec.jax_backend.on_target import files_behind
from shardspec.jax_backend.step.trace import Program
from shardspec.programs.op_names import is_users, shown

#: What a number of layers is called, and what it becomes where it is larger.
_OF_LAYERS = re.compile(r"(layers?|depth|blocks)(_?(num|count|total))?$", re.IGNORECASE)
_LAYERS = 4
#: Parts that a size along a mesh axis has, at the most.
_PARTS = 4
#: Two large sizes no further apart than this stay as far apart: a length, and one more for labels.
_NEAR = 4


class Scale(NamedTuple):
    """How small sizes become.

    Attributes:
      stays: sizes up to this one stay.
      steps: what others become, in their order; the last is for all that follow.
      factor: what those become of which others are products.
    """

    stays: int
    steps: tuple[int, ...]
    factor: int


ROOMY = Scale(16, (16, 32), 8)
#: For steps that are slow with roomy sizes.
TIGHT = Scale(4, (8, 16), 4)


@dataclass(frozen=True, slots=True)
class Relations:
    """How sizes are made of others, as the reshapes and concatenations of a program show it.

    Attributes:
      products: a size and the sizes that it is the product of.
      sums: a size and the sizes that it is the sum of.
    """

    products: tuple[tuple[int, tuple[int, ...]], ...] = ()
    sums: tuple[tuple[int, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class SmallSizes:
    """The small size for each size; a number of layers, known by its name, has one of its own.

    Attributes:
      kept: sizes that stay.
      loops: what numbers are called that code counts to.
    """

    sizes: Mapping[int, int] = field(default_factory=dict)
    kept: frozenset[int] = frozenset()
    loops: frozenset[str] = frozenset()

    def of(self, size: int) -> int:
        """Return the small size for one without a name, or itself."""
        return self.sizes.get(size, size)

    def named(self, size: int, name: str) -> int | None:
        """Return the small size for one that is called so; None where it stays."""
        if _is_of_layers(name) and size > _LAYERS and size not in self.kept:
            return _LAYERS
        small = self.sizes.get(size)
        is_count = small is None and name in self.loops and size not in self.kept
        return min(size, _LAYERS) if is_count else small


def small_sizes(
    named: Iterable[tuple[str, int]],
    sizes: Iterable[int],
    relations: Relations = Relations(),
    kept: Iterable[int] = (),
    loops: Iterable[str] = (),
    scale: Scale = ROOMY,
    split: Iterable[int] = (),
) -> SmallSizes:
    """Return small sizes for those that have names, and those of arrays.

    Args:
      named: what sizes are called in the code and in the spec.
      sizes: of arrays.
      kept: sizes that stay as they are.
      loops: what numbers are called that code counts to.
      split: sizes of which each device has a part that others divide: they stay larger.
    """
    pairs = list(named)
    stay = frozenset(kept)
    layers = {size for name, size in pairs if _is_of_layers(name) and size > _LAYERS} - stay
    others = {size for name, size in pairs if not _is_of_layers(name) and name}
    own = dict.fromkeys(layers - others, _LAYERS)
    return SmallSizes(
        smaller({*sizes} - own.keys(), relations, stay, scale, split) | own,
        stay,
        frozenset(loops),
    )


def products_among(sizes: Iterable[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield each size that is the product of two others, and those: the nearest to each other.

    >>> list(products_among([24, 128, 512, 3072]))
    [(3072, (24, 128))]
    """
    known = sorted({each for each in sizes if each > 1})
    for whole in known:
        pairs = [(each, whole // each) for each in known if each * each <= whole]
        found = [(a, b) for a, b in pairs if a * b == whole and b in known and a > ROOMY.factor]
        if found:
            yield whole, found[-1]


def of_layers(named: Iterable[tuple[str, int]]) -> set[int]:
    """Return the numbers that are called one of layers."""
    return {size for name, size in named if _is_of_layers(name)}


def _is_of_layers(name: str) -> bool:
    return _OF_LAYERS.search(name) is not None


def smaller(
    sizes: Iterable[int],
    relations: Relations = Relations(),
    kept: Iterable[int] = (),
    scale: Scale = ROOMY,
    split: Iterable[int] = (),
) -> dict[int, int]:
    """Return a small size for each size that gets another one.

    Args:
      kept: sizes that stay as they are.
      split: sizes of which each device has a part that others divide.

    >>> smaller([8, 32, 128, 4096, 4097], Relations(((4096, (32, 128)),)))
    {32: 8, 128: 8, 4096: 64, 4097: 65}
    """
    asked = set(sizes)
    stay = set(kept)
    wanted = sorted(size for size in asked if size > scale.stays and size not in stay)
    made = dict(_made_of_others(relations, wanted, stay | {*range(scale.stays + 1)}))
    chosen: dict[int, int] = {size: size for size in stay}
    parts_of = {*split}
    factors = {part for is_product, parts in made.values() if is_product for part in parts}
    free = [size for size in wanted if size not in made and _near(size, wanted) is None]
    for at, size in enumerate(free):
        step = scale.factor if size in factors else scale.steps[min(at, len(scale.steps) - 1)]
        units = {each: each for each in asked if 1 < each <= scale.stays} | chosen
        small = math.lcm(step, *(unit for each, unit in units.items() if size % each == 0))
        small *= _PARTS if size in parts_of else 1
        chosen[size] = small if small < size else size
    for size in wanted:
        _derive(size, made, chosen, wanted, frozenset())
    return {size: chosen[size] for size in wanted if chosen[size] != size}


Made = Mapping[int, tuple[bool, tuple[int, ...]]]


def _made_of_others(
    relations: Relations, wanted: list[int], stay: set[int]
) -> Iterable[tuple[int, tuple[bool, tuple[int, ...]]]]:
    """Yield each size that others make, with whether it is their product, and them."""
    known = set(wanted)
    both = itertools.chain(
        ((size, True, parts) for size, parts in relations.products),
        ((size, False, parts) for size, parts in relations.sums),
    )
    for size, is_product, parts in both:
        is_of_known = all(part in known or part in stay for part in parts)
        if size in known and is_of_known and max(parts) < size:
            yield size, (is_product, parts)


def _near(size: int, wanted: list[int]) -> int | None:
    """Return the first size just below this one."""
    return next(
        (each for each in wanted if 0 < size - each <= max(1, min(_NEAR, each // 16))), None
    )


def _derive(
    size: int, made: Made, chosen: dict[int, int], wanted: list[int], above: frozenset[int]
) -> int:
    """Return the small size of one, working out what it is made of first."""
    if size in chosen or size not in wanted:
        return chosen.get(size, size)
    if size in made and size not in above:
        is_product, parts = made[size]
        small = [_derive(each, made, chosen, wanted, above | {size}) for each in parts]
        chosen[size] = math.prod(small) if is_product else sum(small)
    else:
        near = _near(size, wanted)
        base = size if near is None else _derive(near, made, chosen, wanted, above | {size})
        chosen[size] = base if near is None else base + size - near
    return chosen[size]


@dataclass(frozen=True, slots=True)
class Trial:
    """A step, traced on a mesh.

    Attributes:
      target: has the mesh.
      written: the sizes in code that became small.
      stated: values for its arguments, where the user gives some; None for others.
      shapes: of its arguments, by path.
    """

    spec: Spec
    target: Target
    program: Program
    written: tuple[Written, ...] = ()
    stated: tuple[Any, ...] = ()
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()


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


#: The arguments that a value comes from, and the positions that it is made of.
_Source = tuple[frozenset[int], int | None]
_NO_SOURCE: _Source = (frozenset(), None)


@dataclass
class _Uses:
    """A walk over a program that carries, for each variable, the arguments that it comes from."""

    uses: list[Use]

    def walk(self, jaxpr: Any, given: Sequence[_Source]) -> list[_Source]:
        """Return the arguments that each result comes from, and of which positions it is made."""
        return followed(jaxpr, given, self._equation, lambda _: _NO_SOURCE)

    def _equation(self, eqn: Any, given: Sequence[_Source]) -> list[_Source]:
        inside = followed_inside(eqn, list(given), self.walk, _NO_SOURCE)
        if inside is not None:
            return inside
        args, at = [own for own, _ in given], [place for _, place in given]
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
                if place is not None and place > 1:  # the only position tells nothing
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


def uses_of(closed: Any) -> list[Use]:
    """Return what a program does with each of its arguments."""
    uses = [Use() for _ in closed.jaxpr.invars]
    found = _Uses(uses)
    found.walk(closed.jaxpr, [(frozenset({at}), None) for at in range(len(uses))])
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


#: What code counts with, and what a number is called that stands in it.
_RANGE = "range"


@dataclass(frozen=True, slots=True)
class Written:
    """A size that is written in code, and what it became.

    Attributes:
      name: of what it is assigned to, where it is.
    """

    file: str
    line: int
    name: str
    size: int
    small: int

    def __str__(self) -> str:
        """Return `train.py:8 EMBED = 4096 (64)`."""
        name = f"{self.name} = " if self.name else ""
        return f"{shown(self.file)}:{self.line} {name}{self.size} ({self.small})"


@dataclass
class SmallerCode(importlib.abc.MetaPathFinder):
    """An importer of the user's modules.

    Attributes:
      sizes: the small size for each.
      noted: the integers that code computes, where they are asked for.
      written: what was replaced, in the order of imports.
    """

    sizes: SmallSizes
    noted: Noted | None = None
    written: list[Written] = field(default_factory=list)

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return how a module of the user's is imported; None of all others."""
        found = importlib.machinery.PathFinder.find_spec(name, path, target)
        file = None if found is None else found.origin
        if found is None or file is None or not is_users(file):
            return None
        return importlib.util.spec_from_file_location(
            name,
            file,
            loader=_Loader(name, file, self),
            submodule_search_locations=found.submodule_search_locations,
        )


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, file: str, finder: SmallerCode) -> None:
        super().__init__(name, file)
        self._finder = finder

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, whose integers are noted where that is asked for."""
        if self._finder.noted is not None:
            vars(module)[NOTE] = self._finder.noted
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType:
        """Return the code with its numbers replaced."""
        tree = ast.parse(Path(self.path).read_bytes(), self.path)
        smaller = _Smaller(self.path, self._finder.sizes)
        made: Any = smaller.visit(tree)
        if self._finder.noted is not None:
            made = NotingCode(shown(self.path)).visit(made)
        code = self.source_to_code(made, self.path)
        self._finder.written += smaller.written
        return code


class _Smaller(ast.NodeTransformer):
    """Replaces sizes in a tree, and notes each with the name it is assigned to."""

    def __init__(self, file: str, sizes: SmallSizes) -> None:
        self.file = file
        self.sizes = sizes
        self.written: list[Written] = []
        self._names: dict[int, str] = {}

    def visit(self, node: ast.AST) -> Any:
        """Return the tree with its sizes replaced."""
        if isinstance(node, ast.Module):
            self._names = dict(pair for each in ast.walk(node) for pair in _named(each))
        return super().visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Return the small size for a size."""
        name, size = self._names.get(id(node), ""), node.value
        small = self.sizes.named(size, name) if type(size) is int else None
        if small is None or type(size) is not int:
            return node
        self.written.append(Written(self.file, node.lineno, name, size, small))
        return ast.copy_location(ast.Constant(small), node)


def loops_written(module: str) -> Iterator[str]:
    """Yield what the numbers are called that a module counts to: `for i in range(N)`.

    Args:
      module: its name; those of the user's that it is made of are read, too.
    """
    yield _RANGE
    for tree in _trees(module):
        for each in ast.walk(tree):
            if isinstance(each, ast.Call) and getattr(each.func, "id", "") == _RANGE:
                names = (getattr(arg, "id", getattr(arg, "attr", "")) for arg in each.args)
                yield from filter(None, names)


def _trees(module: str) -> Iterator[ast.AST]:
    """Yield the syntax trees of a module and of those of the user's that its names come from."""
    for file in files_behind(module, lambda _, file: is_users(file)):
        with contextlib.suppress(OSError, SyntaxError, ValueError):
            yield ast.parse(Path(file).read_bytes(), file)


def _named(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the identity of each value that a node assigns or passes, and what it is called."""
    pairs: list[tuple[Any, ast.AST | None]] = []
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
        pairs = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts, strict=False))
    elif isinstance(node, ast.AnnAssign):
        pairs = [(node.target, node.value)]
    elif isinstance(node, ast.keyword):
        pairs = [(node.arg, node.value)]
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == _RANGE:
        pairs = [(_RANGE, each) for each in node.args]
    elif isinstance(node, ast.Dict):
        keys = (getattr(each, "value", None) for each in node.keys)
        pairs = list(zip(keys, node.values, strict=True))
    elif isinstance(node, ast.arguments):
        plain = [*node.posonlyargs, *node.args][-len(node.defaults) or None :]
        pairs = [(each.arg, value) for each, value in zip(plain, node.defaults, strict=False)]
        own = zip(node.kwonlyargs, node.kw_defaults, strict=True)
        pairs += [(each.arg, value) for each, value in own]
    for target, value in pairs:
        name = getattr(target, "id", getattr(target, "attr", target))
        if isinstance(name, str) and isinstance(value, ast.Constant):
            yield id(value), name


def numbers_written(module: str) -> Iterator[tuple[str, int]]:
    """Yield the integers that are written in a module and those of the user's that it is made of.

    Each with what it is called.
    """
    for tree in _trees(module):
        names = dict(pair for each in ast.walk(tree) for pair in _named(each))
        for each in ast.walk(tree):
            if isinstance(each, ast.Constant) and type(each.value) is int:
                yield names.get(id(each), ""), each.value


@contextlib.contextmanager
def smaller_code(sizes: SmallSizes, noted: Noted | None = None) -> Iterator[SmallerCode]:
    """Import the user's modules anew, with small sizes; afterwards they are as they were.

    Args:
      noted: the integers that code computes, where they are asked for.
    """
    kept = {
        name: module
        for name, module in list(sys.modules.items())
        if name != "__main__" and is_users(getattr(module, "__file__", None) or "")
    }
    finder = SmallerCode(sizes, noted)
    for name in kept:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        yield finder
    finally:
        sys.meta_path.remove(finder)
        for name, module in list(sys.modules.items()):
            if is_users(getattr(module, "__file__", None) or "") and name != "__main__":
                del sys.modules[name]
        sys.modules.update(kept)
