"""A step made small: its spec on a small mesh of CPU devices, and values for its arguments.

Most code has its sizes written in it: `EMBED = 4096`. A step that is run small needs small ones. So
the user's modules are imported with smaller numbers written in them. A module is read as ever, and
in its syntax tree an integer that is a size of the step gets the small size. Nothing is written,
and Python's own cache of compiled modules is neither read nor filled.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from shardspec.ir.spec import LogicalAxis, Mesh, Spec, Target
from shardspec.jax_backend.numbers.sizes import SmallSizes
from shardspec.jax_backend.step.trace import Program
from shardspec.programs.op_names import is_library, shown


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


_MOST_MODULES = 1000
#: What a share or a number of tokens is called beyond which experts drop them.
_CAPACITY = re.compile(r"capacity", re.IGNORECASE)
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
      room: how many times capacities become larger.
      written: what was replaced, in the order of imports.
      rooms: the lines of those capacities.
    """

    sizes: SmallSizes
    room: int = 1
    written: list[Written] = field(default_factory=list)
    rooms: list[str] = field(default_factory=list)

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

    def get_code(self, fullname: str) -> CodeType:
        """Return the code with its numbers replaced."""
        tree = ast.parse(Path(self.path).read_bytes(), self.path)
        if self._finder.room > 1:
            for each in _capacities(tree):
                _enlarge(each, self._finder.room)
                self._finder.rooms.append(f"{shown(self.path)}:{each.lineno}")
        smaller = _Smaller(self.path, self._finder.sizes)
        made: Any = smaller.visit(tree)
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


def states_capacity(module: str) -> bool:
    """Say whether a module, or one of the user's that it is made of, states a capacity."""
    return any(next(_capacities(tree), None) is not None for tree in _trees(module))


def _capacities(tree: ast.AST) -> Iterator[ast.Assign]:
    """Yield what assigns a capacity that is computed: `capacity = int(FACTOR * tokens / EXPERTS)`.

    A capacity that is a number is a size, as of an array.
    """
    for each in ast.walk(tree):
        if isinstance(each, ast.Assign) and len(each.targets) == 1:
            name = getattr(each.targets[0], "id", "")
            is_computed = isinstance(each.value, ast.BinOp | ast.Call | ast.IfExp)
            if is_computed and _CAPACITY.search(name):
                yield each


def _enlarge(assignment: ast.Assign, times: int) -> None:
    """Multiply what an assignment assigns."""
    made = ast.BinOp(assignment.value, ast.Mult(), ast.Constant(times))
    assignment.value = ast.fix_missing_locations(ast.copy_location(made, assignment.value))


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
    waiting, seen = [module], set[str]()
    while waiting and len(seen) < _MOST_MODULES:
        name = waiting.pop()
        found = sys.modules.get(name) if name not in seen else None
        seen.add(name)
        file = getattr(found, "__file__", None) or ""
        if found is None or not is_users(file):
            continue
        with contextlib.suppress(OSError, SyntaxError, ValueError):
            yield ast.parse(Path(file).read_bytes(), file)
        for value in list(vars(found).values()):
            owner = value.__name__ if isinstance(value, ModuleType) else _owner(value)
            waiting += [owner] if isinstance(owner, str) else []


def _owner(value: Any) -> Any:
    with contextlib.suppress(Exception):  # any object may stand in a module
        return getattr(value, "__module__", None)
    return None


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


def is_users(file: str) -> bool:
    """Say whether a file is source of the user's, and of no package that is installed."""
    is_installed = "site-packages" in file or "dist-packages" in file
    return file.endswith(".py") and not is_installed and not is_library(os.path.abspath(file))


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
def smaller_code(sizes: SmallSizes, room: int = 1) -> Iterator[SmallerCode]:
    """Import the user's modules anew, with small sizes; afterwards they are as they were.

    Args:
      room: how many times capacities become larger.
    """
    kept = {
        name: module
        for name, module in list(sys.modules.items())
        if name != "__main__" and is_users(getattr(module, "__file__", None) or "")
    }
    finder = SmallerCode(sizes, room)
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
