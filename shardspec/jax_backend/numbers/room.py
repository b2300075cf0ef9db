"""Capacities of experts: which sizes they are, and a step with room for all tokens.

Devices that have a capacity of their own drop other tokens than one device does, in right steps,
too. What a capacity is called tells nothing, so it is found by what the program does. It counts or
sorts tokens, and what it counts is a place: compared with the capacity, or an index of the slots.
Or so many of the tokens that were sorted are taken. The lines that compute that number are found by
running them: the user's modules are imported with each integer that they compute noted, or the
functions of this process get code that notes them. Then one of these integers gets larger, and the
step is traced again.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core

from shardspec.diagnostics.words import grouped
from shardspec.jax_backend.equations import followed, followed_inside
from shardspec.programs.op_names import is_users, shown

#: The function that notes an integer, in the user's modules.
NOTE = "__shardspec_integer__"
#: How many times a capacity becomes larger, at the most: so that no token is dropped.
TIMES = 16
#: What counts or sorts along a dimension, and by which parameter it names that.
_RANKS = {"cumsum": "axis", "sort": "dimension", "top_k": "axis"}
#: JAX's function that looks up places in what is sorted: its loop shows nothing of them.
_LOOKUP = "searchsorted"
_COMPARES = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))
_BOUNDS = frozenset(("min", "max", "clamp"))
#: What passes places on.
_PASSES = frozenset(
    (
        *("add", "sub", "mul", "neg", "div", "rem", "floor", "round", "select_n", "min", "max"),
        *("clamp", "convert_element_type", "broadcast_in_dim", "reshape", "squeeze", "slice"),
        *("expand_dims", "transpose", "copy", "pvary", "reduce_sum", "reduce_max", "concatenate"),
        *("gather", "dynamic_slice", "sharding_constraint", "reshard", "rev", "pad", "pcast"),
        *("stop_gradient", "all_gather", "all_to_all", "psum", "psum_invariant"),
    )
)
#: Expressions that may compute an integer.
_COMPUTED = ast.BinOp | ast.UnaryOp | ast.Call | ast.IfExp
#: Lines of each kind that are tried at the most.
_TRIES = 4


class _Known(NamedTuple):
    """What is known of a value.

    Attributes:
      extent: how many are counted, or the size of the dimension that it numbers.
      is_ranked: whether something is counted.
      number: of a constant that all its elements have.
    """

    extent: int = 0
    is_ranked: bool = False
    number: int | None = None


def capacities(closed: Any) -> dict[int, int]:
    """Return each number that bounds places in a program, with how many leave none without one."""
    found: dict[int, int] = {}
    _walk(closed.jaxpr, [_Known()] * len(closed.jaxpr.invars), found)
    return found


def _walk(jaxpr: Any, given: Sequence[_Known], found: dict[int, int]) -> list[_Known]:
    def made(eqn: Any, args: list[_Known]) -> list[_Known]:
        if eqn.params.get("name") == _LOOKUP:
            return [_Known(eqn.invars[0].aval.shape[0], is_ranked=True)]
        outs = followed_inside(eqn, args, lambda inner, own: _walk(inner, own, found), _Known())
        if outs is None:
            _bound(eqn, args, found)
            outs = [_passed(eqn, args)] * len(eqn.outvars)
        return outs

    return followed(jaxpr, given, made, _of_literal)


def _of_literal(atom: Any) -> _Known:
    return _Known(number=_number(atom.val)) if isinstance(atom, core.Literal) else _Known()


def _passed(eqn: Any, args: Sequence[_Known]) -> _Known:
    name, shape = eqn.primitive.name, getattr(eqn.outvars[0].aval, "shape", ())
    if name in _RANKS:
        before = eqn.invars[0].aval.shape
        return _Known(before[eqn.params.get(_RANKS[name], -1)], is_ranked=True)
    if name == "iota":
        return _Known(shape[eqn.params["dimension"]])
    if name not in _PASSES:
        return _Known()
    own = args[:1] if name in ("gather", "dynamic_slice") else args
    is_form = len(args) == 1 and name not in ("neg", "floor", "round")
    number = args[0].number if is_form else None
    extent = max((each.extent for each in own), default=0)
    return _Known(extent, any(each.is_ranked for each in own), number)


def _bound(eqn: Any, args: Sequence[_Known], found: dict[int, int]) -> None:
    """Note the numbers that places are compared with, the sizes they index, and how many are taken.

    Twice as many as are counted have room for all where a device rounds its own capacity down.
    """
    name = eqn.primitive.name
    count = max((each.extent for each in args if each.is_ranked), default=0)

    def note(size: int | None, room: int = 2 * count) -> None:
        if size is not None and size > 0:
            found[size] = max(found.get(size, 0), room)

    if name in _COMPARES or name in _BOUNDS:
        if count:
            for each in args:
                if not each.is_ranked:
                    note(each.number if each.number is not None else each.extent)
                    note(None if each.number is None else each.number + 1)
    elif (name.startswith("scatter") or name == "gather") and args[1].is_ranked:
        dims = eqn.params["dimension_numbers"]
        own = getattr(dims, "scatter_dims_to_operand_dims", None) or dims.start_index_map
        for dim in own:
            size = eqn.invars[0].aval.shape[dim]
            note(size)
            note(size - 1)
    elif name == "top_k" or (name == "slice" and count):
        sides = zip(eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape, strict=True)
        for whole, size in sides:
            if size < whole and (name == "top_k" or whole == count):
                note(size, whole)


def _number(value: Any) -> int | None:
    made = np.asarray(value)
    is_whole = made.ndim == 0 and made.dtype.kind in "iuf" and float(made).is_integer()
    return int(made) if is_whole else None


@dataclass
class Noted:
    """The integers that code computes.

    Attributes:
      larger: what some of them become, and the largest that they are on one device, by their places
        in the code: those of a part of the tokens become larger by as much.
      seen: the values of each.
    """

    larger: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    seen: dict[str, set[int]] = field(default_factory=dict)

    def __call__(self, place: str, value: Any) -> Any:
        """Return a value that code computes: a larger one where that is asked for."""
        if type(value) is not int:
            return value
        self.seen.setdefault(place, set()).add(value)
        larger, largest = self.larger.get(place, (1, 1))
        return value * larger // largest


@dataclass
class NotingCode(ast.NodeTransformer):
    """Has each integer noted that the tree of a file computes."""

    file: str

    def visit(self, node: ast.AST) -> Any:
        """Return the tree with a call around each expression that may be an integer."""
        if isinstance(node, ast.JoinedStr | ast.Match):
            return node
        made: Any = self.generic_visit(node)
        is_number = isinstance(node, ast.Constant) and type(node.value) is int and node.value > 1
        if not isinstance(node, ast.expr) or not (is_number or isinstance(node, _COMPUTED)):
            return made
        place = ast.Constant(_place_of(self.file, node))
        call = ast.Call(ast.Name(NOTE, ast.Load()), [place, made], [])
        return ast.fix_missing_locations(ast.copy_location(call, node))


def _place_of(file: str, node: ast.expr) -> str:
    """Return the place of an expression, which ends with `=` where it is a number as written."""
    kind = "=" if isinstance(node, ast.Constant) else ""
    span = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
    return f"{file}:{':'.join(map(str, span))}{kind}"


class _Source(NamedTuple):
    """A file of the user's.

    Attributes:
      codes: of its functions, with each integer noted.
      numbers: the places of what the module gives a name.
    """

    codes: Mapping[object, CodeType]
    numbers: Mapping[str, str]


@functools.cache
def _source(file: str) -> _Source:
    try:
        tree = ast.parse(Path(file).read_bytes(), file)
    except (OSError, SyntaxError, ValueError):
        return _Source({}, {})
    numbers: dict[str, str] = {}
    for each in tree.body:
        if isinstance(each, ast.Assign):
            target, value = each.targets[0], each.value
            is_tuple = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            pairs = zip(target.elts, value.elts, strict=False) if is_tuple else [(target, value)]  # type: ignore[attr-defined]
            numbers |= {a.id: _place_of(shown(file), b) for a, b in pairs if hasattr(a, "id")}
    noting_tree: Any = NotingCode(shown(file)).visit(tree)
    waiting = [SourceFileLoader(file, file).source_to_code(noting_tree, file)]
    codes: list[CodeType] = []
    while waiting:
        codes += (own := [each for each in waiting.pop().co_consts if type(each) is CodeType])
        waiting += own
    alike = grouped(codes, _key)
    return _Source({key: own[0] for key, own in alike.items() if len(own) == 1}, numbers)


def _key(code: CodeType) -> object:
    """Return what tells the code of a function from that of others in its file."""
    return code.co_name, code.co_firstlineno, code.co_freevars, code.co_varnames[: code.co_argcount]


@contextlib.contextmanager
def noting(noted: Noted | None) -> Iterator[None]:
    """Have the user's functions in this process note integers; afterwards they are as they were."""
    if noted is None:
        yield
        return
    live = (each for each in gc.get_objects() if type(each) is FunctionType)
    by_file = grouped(live, lambda each: each.__code__.co_filename)
    functions = [
        (each, each.__code__, code)
        for file, own in by_file.items()
        if is_users(file)
        for each in own
        if (code := _source(file).codes.get(_key(each.__code__)))
    ]
    modules = [m for m in [*sys.modules.values()] if is_users(getattr(m, "__file__", None) or "")]
    numbers = [
        (each, name, value, place)
        for each in map(vars, modules)
        for name, place in _source(each["__file__"]).numbers.items()
        if type(value := each.get(name)) is int
    ]
    setattr(builtins, NOTE, noted)
    jax.clear_caches()  # what was traced without
    try:
        for function, _, code in functions:
            function.__code__ = code
        for names, name, value, place in numbers:
            names[name] = noted(place, value)
        yield
    finally:
        for function, code, _ in functions:
            function.__code__ = code
        for names, name, value, _ in numbers:
            names[name] = value
        delattr(builtins, NOTE)
        jax.clear_caches()


def line_of(place: str) -> str:
    """Return file and line of a noted place.

    >>> line_of("models/moe.py:12:4:12:30")
    'models/moe.py:12'
    """
    return place.rsplit(":", 3)[0]


Traced = Callable[[Noted], Any]


def with_room(program: Any, traced: Traced) -> Iterator[tuple[Noted, Any]]:
    """Yield a step on one device with larger capacities, and the integers that became so.

    Args:
      program: of the step on one device.
      traced: traces it, with integers noted; None where that cannot be.
    """
    wanted = capacities(program)
    noted = Noted()
    if not wanted or traced(noted) is None:
        return
    sizes = {
        place: (min(max(wanted[size] for size in own), TIMES * max(own)), max(values))
        for place, values in noted.seen.items()
        if (own := values & wanted.keys())
    }
    sizes = {place: (size, largest) for place, (size, largest) in sizes.items() if size > largest}
    computed = {place: size for place, size in sizes.items() if not place.endswith("=")}
    written = [{place: size} for place, size in sizes.items() if place not in computed]
    single = [{place: size} for place, size in computed.items()][:_TRIES]
    together = [computed] if len(computed) > 1 else []
    for way in (*single, *together, *written[:_TRIES]):
        larger = Noted(way)
        trial = traced(larger)
        made = () if trial is None else capacities(trial.program.jaxpr)
        if any(size in made for size, _ in way.values()):
            yield larger, trial
