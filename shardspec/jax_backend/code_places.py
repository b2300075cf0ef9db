"""Constraints on values of code that is not the user's: `at:` of an activation.

The function is traced once by itself. While Python runs it, values of the functions that are meant
are marked: what they are given, and what they return. Then the program is evaluated again, one
equation after the other, with a constraint behind each mark, and behind what leaves a scope or a
line. That is traced in turn, by `jit`, `grad` or `vmap` around it, so that gradients are laid out
as well. Loops, conditions, `jax.checkpoint`, `jax.jit` and the rules of `jax.custom_vjp` are gone
into; bodies of `shard_map`, where an array is one device's, are not.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax._src import source_info_util
from jax.extend.core import Literal, Primitive, jaxprs_in_params
from jax.interpreters import ad, batching, mlir

from shardspec.diagnostics import Diagnostic, ShardspecError, codes
from shardspec.diagnostics.diagnostic import point
from shardspec.diagnostics.words import by_key, counted, did_you_mean, listed
from shardspec.ir.program import CodePlace
from shardspec.ir.spec import Activation, Pattern, Shape
from shardspec.jax_backend.equations import computed
from shardspec.kept import kept
from shardspec.programs.op_names import is_library
from shardspec.resolve.match import path_matcher

Function = TypeVar("Function", bound=Callable[..., Any])
#: Puts the constraint of an activation on a value.
Put = Callable[[str, Any], Any]
Path = tuple[str, ...]

#: What is traced for some places is not what is traced without them, or for others.
_PLACES = jax.make_user_context(default_value=None)

#: Of a value that a function is given or returns; `at` is the number of the activation, `dims`
#: those that `vmap` put in.
_mark = Primitive("shardspec_mark")
_mark.def_impl(lambda x, **_: x)
_mark.def_abstract_eval(lambda x, **_: x)
mlir.register_lowering(_mark, lambda _, x, **__: [x])


def _mark_batched(args: Any, dims: Any, *, at: int, batched: tuple[int, ...]) -> Any:
    return _mark.bind(*args, at=at, batched=(dims[0], *batched)), dims[0]


ad.primitive_jvps[_mark] = lambda given, moved, **told: (_mark.bind(*given, **told), moved[0])
batching.primitive_batchers[_mark] = _mark_batched


def constrained(function: Function, activations: Sequence[Activation], put: Put) -> Function:
    """Return a function with the constraints of `at:` on what it computes.

    Args:
      activations: those with a place.
      put: is given the name of an activation and a value.

    Raises:
      ShardspecError: from the function that is returned, where a place has no value, or several
        of different ranks.
    """
    if not activations:
        return function

    @functools.wraps(function)
    def own(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        given = [at for at, leaf in enumerate(leaves) if _is_array(leaf)]
        results: list[Any] = []

        def flat(*arrays: Any) -> list[Any]:
            whole = list(leaves)
            for at, array in zip(given, arrays, strict=True):
                whole[at] = array
            again, named = jax.tree.unflatten(tree, whole)
            outs, out_tree = jax.tree.flatten(function(*again, **named))
            results[:] = [out_tree, *(_ARRAY if _is_array(out) else out for out in outs)]
            return [out for out in outs if _is_array(out)]

        arrays = [leaves[at] for at in given]
        placing = _Placing(activations, put)
        with placing.watching():
            closed = jax.make_jaxpr(flat)(*arrays)
        outs = iter(placing.run(closed.jaxpr, closed.consts, arrays, _Where(_scopes_here())))
        placing.raise_missing()
        out_tree, *stated = results
        made = [next(outs) if each is _ARRAY else each for each in stated]
        return jax.tree.unflatten(out_tree, made)

    return own  # type: ignore[return-value]


#: Stands for an array among the results of a function.
_ARRAY = object()


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic) or hasattr(leaf, "__jax_array__")


@dataclass(slots=True)
class _Found:
    """What a place fits.

    Attributes:
      shapes: of its values.
      results: how many it has.
      others: names of places like it: functions of the file, or scopes.
      placed: on how many values a constraint is.
    """

    shapes: list[Shape] = field(default_factory=list)
    results: set[int] = field(default_factory=set)
    others: set[str] = field(default_factory=set)
    placed: int = 0


class _Where(NamedTuple):
    """Where a program is: in which scopes, and as a part of which activations' places."""

    path: Path
    within: frozenset[int] = frozenset()


class _Region(NamedTuple):
    """Equations of a place: which activation it is for, and which of its scopes."""

    at: int
    scope: Hashable


class _Placing:
    """Finds the values of places, and constrains them."""

    def __init__(self, activations: Sequence[Activation], put: Put) -> None:
        self._activations, self._put = activations, put
        self._found = [_Found() for _ in activations]
        places = [(at, each.at) for at, each in enumerate(activations) if each.at is not None]
        self._watched = [
            (at, place)
            for at, place in places
            if place.value == "argument" or (not place.scope and place.value == "result")
        ]
        self._regions = [pair for pair in places if pair not in self._watched]
        self._functions = tuple(pair for pair in self._watched if not pair[1].scope)
        self._files = tuple((at, replace(place, function="")) for at, place in self._functions)
        self._alive: list[Any] = []  # JAX leaves out equations whose results nobody has
        self._inside: dict[FrameType, set[Hashable]] = {}
        self._kept: dict[object, object] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Mark values of functions while Python runs them."""
        before = sys.getprofile()
        key = tuple((each.name, str(each.at)) for each in self._activations)
        with _PLACES(key):
            if self._watched:
                sys.setprofile(self._on)
            try:
                yield
            finally:
                sys.setprofile(before)
                self._alive.clear()

    def _on(self, frame: FrameType, event: str, value: Any) -> None:
        """Take notice of a call or a return."""
        if event == "call":
            for at, _ in _of_code(frame.f_code, self._files):
                self._found[at].others.add(frame.f_code.co_qualname)
            for at, place in self._arguments_of(frame):
                self._note(at, jax.tree.leaves(frame.f_locals[place.name]))
        elif event == "return":
            self._inside.pop(frame, None)
            for at, place in _of_code(frame.f_code, self._functions):
                if place.value == "result" and value is not None:
                    self._note(at, jax.tree.leaves(value), place.index)

    def _arguments_of(self, frame: FrameType) -> Iterator[tuple[int, CodePlace]]:
        """Yield the places an argument of which the call of a frame is given."""
        for at, place in self._watched:
            code = frame.f_code
            if place.value != "argument" or place.name not in _arguments(code):
                continue
            if not place.scope:
                if _is_at(place, code.co_filename, code.co_qualname):
                    yield at, place
            elif not is_library(code.co_filename):
                scope = _scope_of(place, _scopes_here())
                key = None if scope is None else (at, scope)
                if key and not any(key in keys for keys in self._inside.values()):
                    self._inside.setdefault(frame, set()).add(key)
                    yield at, place

    def _note(self, at: int, leaves: Sequence[Any], index: int | None = None) -> None:
        """Mark the arrays among what is given or returned."""
        arrays = [leaf for leaf in leaves if isinstance(leaf, jax.core.Tracer) and leaf.ndim]
        self._found[at].results.add(len(arrays))
        for array in arrays if index is None else arrays[index : index + 1]:
            self._alive.append(_mark.bind(array, at=at, batched=()))

    def run(
        self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], where: _Where
    ) -> list[Any]:
        """Return what a program computes, with constraints in it."""
        known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
        leaving = self._leaving(jaxpr, where)

        def read(each: Any) -> Any:
            return each.val if isinstance(each, Literal) else known[each]

        for eqn in jaxpr.eqns:
            values = [read(each) for each in eqn.invars]
            if eqn.primitive is _mark:
                params = eqn.params
                self._see(eqn)
                made = [self._placed(params["at"], values[0], params["batched"])]
                if not isinstance(eqn.invars[0], Literal):
                    known[eqn.invars[0]] = made[0]
            else:
                made = self._bound(eqn, values, where)
            for var, value in zip(eqn.outvars, made, strict=True):
                for at in leaving.get(var, ()):
                    self._found[at].shapes.append(tuple(value.shape))
                    value = self._placed(at, value, ())
                known[var] = value
        return [read(each) for each in jaxpr.outvars]

    def _see(self, eqn: Any) -> None:
        """Take down the shape of what is marked."""
        shape, batched = list(eqn.invars[0].aval.shape), eqn.params["batched"]
        for dim in batched:
            del shape[dim]
        self._found[eqn.params["at"]].shapes.append(tuple(shape))

    def _see_all(self, jaxpr: Any) -> None:
        """Take down what is marked where no constraint is put."""
        for eqn in jaxpr.eqns:
            if eqn.primitive is _mark:
                self._see(eqn)
            for each in jaxprs_in_params(eqn.params):
                self._see_all(getattr(each, "jaxpr", each))

    def _placed(self, at: int, value: Any, batched: tuple[int, ...]) -> Any:
        """Return a value with its constraint, if it has as many dimensions as there are names."""
        activation = self._activations[at]
        if value.ndim - len(batched) != len(activation.logical_axes):
            return value
        put: Callable[[Any], Any] = functools.partial(self._put, activation.name)
        for dim in reversed(batched):
            put = jax.vmap(put, in_axes=dim, out_axes=dim)
        self._found[at].placed += 1
        return put(value)

    def _bound(self, eqn: Any, values: list[Any], where: _Where) -> list[Any]:
        """Return what an equation computes, with constraints in its programs."""
        params = eqn.params
        if eqn.primitive.name == "shard_map":
            self._see_all(params["jaxpr"])
        else:
            own = self._inside_of(eqn, where)
            params = {key: self._changed(each, own) for key, each in params.items()}
            if "fwd_jaxpr_thunk" in params:
                params["fwd_jaxpr_thunk"] = _Forward(params["fwd_jaxpr_thunk"], self, own)
        stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
        with (
            source_info_util.user_context(eqn.source_info.traceback, name_stack=stack),
            eqn.ctx.manager,
        ):
            return computed(eqn, values, params)

    def _inside_of(self, eqn: Any, where: _Where) -> _Where:
        """Return where the programs of an equation are."""
        within = {each.at for each in self._regions_of(eqn, where)}
        return _Where((*where.path, *_scopes(eqn)), where.within | within)

    def _changed(self, value: Any, where: _Where) -> Any:
        """Return a parameter of an equation: programs in it with constraints."""
        if type(value) is tuple:
            return tuple(self._changed(each, where) for each in value)
        inner = getattr(value, "jaxpr", value)
        if not hasattr(inner, "eqns") or not self._touches(inner, where):
            return value

        def own(*args: Any) -> list[Any]:
            return self.run(inner, getattr(value, "consts", ()), args, where)

        made = jax.make_jaxpr(own)(*(_struct(var.aval) for var in inner.invars))
        return made if inner is not value else made.jaxpr

    @kept
    def _touches(self, jaxpr: Any, where: _Where) -> bool:
        """Say whether a value in a program is at a place."""
        return any(
            eqn.primitive is _mark
            or "fwd_jaxpr_thunk" in eqn.params
            or any(True for _ in self._regions_of(eqn, where))
            or any(
                self._touches(getattr(each, "jaxpr", each), self._inside_of(eqn, where))
                for each in jaxprs_in_params(eqn.params)
            )
            for eqn in jaxpr.eqns
        )

    def _regions_of(self, eqn: Any, where: _Where) -> Iterator[_Region]:
        """Yield the places that an equation is at, of scopes and of lines."""
        for at, place in self._regions:
            if at in where.within:
                continue
            scope: Hashable = None
            if place.scope:
                path = (*where.path, *_scopes(eqn))
                scope = _scope_of(place, path)
                self._found[at].others.add("/".join(path))
                if scope is None:
                    continue
            if place.value == "result" or _is_on(place, eqn):
                yield _Region(at, scope)

    def _leaving(self, jaxpr: Any, where: _Where) -> dict[Any, list[int]]:
        """Return the values of a program that leave a place, with its activation."""
        if not self._regions:
            return {}
        of_eqn = [set(self._regions_of(eqn, where)) for eqn in jaxpr.eqns]
        made: dict[Any, set[_Region]] = {}
        left: dict[Any, set[_Region]] = {}
        for eqn, own in zip(jaxpr.eqns, of_eqn, strict=True):
            for var in eqn.invars:
                if not isinstance(var, Literal):
                    left.setdefault(var, set()).update(made.get(var, set()) - own)
            made |= dict.fromkeys(eqn.outvars, own) if own else {}
        for var in jaxpr.outvars:
            if not isinstance(var, Literal):
                left.setdefault(var, set()).update(made.get(var, set()))
        shaped = (var for var in made if var.aval.shape)
        results = by_key((region, var) for var in shaped for region in left.get(var, ()))
        regions = sorted(results, key=lambda each: each.at)
        return by_key((var, at.at) for at in regions for var in self._asked(at.at, results[at]))

    def _asked(self, at: int, values: list[Any]) -> list[Any]:
        """Return the values of one scope or line that an activation is for, which are in order."""
        place = self._activations[at].at
        if place is None or place.value != "result":
            return values
        self._found[at].results.add(len(values))
        return values if place.index is None else values[place.index : place.index + 1]

    def raise_missing(self) -> None:
        """Refuse places that have no value, or values of different ranks.

        Raises:
          ShardspecError: there are such.
        """
        pairs = zip(self._activations, self._found, strict=True)
        wrong = tuple(each for each in (_wrong(*pair) for pair in pairs) if each is not None)
        if wrong:
            raise ShardspecError(wrong)


class _Forward:
    """The forward rule of a `custom_vjp`, with constraints in it: JAX calls it where it derives."""

    def __init__(self, thunk: Any, placing: _Placing, where: _Where) -> None:
        """Note the rule."""
        self.debug_info = thunk.debug_info
        self._thunk, self._placing, self._where = thunk, placing, where

    def call_wrapped(self, *nonzeros: Any) -> tuple[Any, Any]:
        """Return its program with constraints, and the constants of it."""
        with self._placing.watching():
            jaxpr, consts = self._thunk.call_wrapped(*nonzeros)

        def own(*args: Any) -> list[Any]:
            return self._placing.run(jaxpr, consts, args, self._where)

        made = jax.make_jaxpr(own)(*(_struct(var.aval) for var in jaxpr.invars))
        return made.jaxpr, made.consts


_TRACED = "it has to be traced inside of the function that is given to `constrained`"


def _wrong(activation: Activation, found: _Found) -> Diagnostic | None:
    """Return what is wrong with a place; None where all is well."""
    place, rank = activation.at, len(activation.logical_axes)
    ranks = sorted({len(shape) for shape in found.shapes})
    shapes = listed([str(list(shape)) for shape in dict.fromkeys(found.shapes)][:8])
    where = f"`{place.text}`" if place is not None else ""
    help: str | None = None
    if not found.shapes:
        message = f"activation `{activation.name}` is for {where}, where no value is"
        if place is not None and place.index is not None and found.results:
            most = counted(max(found.results), "result")
            message = f"activation `{activation.name}` is for {where}, which has {most}"
        named = "" if place is None else place.function or place.scope
        help = did_you_mean(named, sorted(found.others - {""})) or _TRACED
    elif len(ranks) > 1:
        message = f"{where} has values of different ranks: {shapes}"
        help = f"say which one `{activation.name}` is for: `result[0]`, `argument x`, or a line"
    elif ranks != [rank]:
        names = counted(rank, "name")
        message = f"activation `{activation.name}` has {names}, and {where} is {shapes}"
    elif not found.placed:
        message = f"all values at {where} are in the body of a `shard_map`"
        help = "there an array is one device's, and nothing is left to place"
    else:
        return None
    return point(codes.UNPLACED_ACTIVATION, message, activation.span, help=help)


def _struct(aval: Any) -> Any:
    sharding = getattr(aval, "sharding", None)
    is_typed = sharding is not None and not sharding.mesh.empty
    weak = getattr(aval, "weak_type", False)
    more = {"sharding": sharding} if is_typed else {}
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak, **more)


def _scopes_here() -> Path:
    return _names(source_info_util.current_name_stack())


def _scopes(eqn: Any) -> Path:
    return _names(eqn.source_info.name_stack)


def _names(stack: Any) -> Path:
    """Return named scopes, without what JAX puts between them: `jit(f)`, `vmap()`."""
    found = (each.name for each in stack.stack if type(each).__name__ == "Scope")
    return tuple(part for name in found if "(" not in name for part in name.split("/"))


@functools.lru_cache(maxsize=65536)
def _scope_of(place: CodePlace, path: Path) -> Path | None:
    """Return the outermost scope of a path that a place is for."""
    if not place.scope:
        return None
    matcher = path_matcher((Pattern(place.pattern, "regex" if place.is_regex else "glob"),))
    for end in range(1, len(path) + 1):
        if matcher.first_match("/".join(path[:end])) is not None:
            return path[:end]
    return None


def _is_at(place: CodePlace, file: str, function: str) -> bool:
    """Say whether a function of a file is the one of a place."""
    is_file = f"/{file}".replace("\\", "/").endswith(f"/{place.file}")
    is_function = f".{function}".endswith(f".{place.function}") if place.function else True
    return is_file and is_function


def _is_on(place: CodePlace, eqn: Any) -> bool:
    """Say whether the line of a place asked for an equation."""
    traceback = eqn.source_info.traceback
    for frame in () if traceback is None else traceback.frames:
        if place.scope:
            if not is_library(frame.file_name):
                return bool(frame.line_num == place.line)
        elif frame.line_num == place.line and _is_at(place, frame.file_name, frame.function_name):
            return True
    return False


@functools.lru_cache(maxsize=4096)
def _of_code(
    code: CodeType, places: tuple[tuple[int, CodePlace], ...]
) -> tuple[tuple[int, CodePlace], ...]:
    """Return the places that are for a function."""
    return tuple(
        (at, place) for at, place in places if _is_at(place, code.co_filename, code.co_qualname)
    )


def _arguments(code: CodeType) -> tuple[str, ...]:
    count = code.co_argcount + code.co_kwonlyargcount
    return code.co_varnames[: count + bool(code.co_flags & 4) + bool(code.co_flags & 8)]
