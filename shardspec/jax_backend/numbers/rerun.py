"""Run a traced program again: on the devices that are here, at one width of floats, and watched.

The program is JAX's own, a jaxpr, equation by equation. Three things are changed. Meshes of the
same axes get the devices that are here. Every float has one width, so that two runs differ by the
rounding of that width and no other. Random bits whose key depends on the device (`axis_index`
folded into it) are replaced by constants: no other mesh can repeat them, and that is no fault.

A watched run also returns what each equation computes. Inside `shard_map` that is one value per
device, and inside `scan` one per iteration.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.sharding import NamedSharding, PartitionSpec

from shardspec.ir.spec import jax_entries
from shardspec.ir.step import Place
from shardspec.jax_backend.batch import names_of
from shardspec.jax_backend.equations import (
    BACKWARD,
    callers_of,
    computed,
    made_manual,
    returned_at,
    scan_counts,
    stack_at,
)
from shardspec.programs.op_names import Callers

#: What wraps a value of an inner program: a first dimension of iterations, in the order in which
#: they run or in the reverse one, or of devices.
Wrap = Literal["iterations", "reversed", "devices"]

#: Calls of a program in a program that stand for nothing else, and where they have it.
_CALLS = frozenset(
    (
        *("jit", "pjit", "closed_call", "core_call", "core_closed_call", "checkpoint", "remat"),
        *("remat2", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_lin"),
    )
)
_PROGRAMS = ("jaxpr", "call_jaxpr", "fun_jaxpr")
#: What only says something about an array, prints it, or rounds it to a narrower type.
_AS_IS = frozenset(("reduce_precision", "optimization_barrier", "copy", "copy_p"))
#: What only gives an array another form: not watched.
_FORMS = frozenset(
    (
        *("broadcast_in_dim", "reshape", "transpose", "squeeze", "expand_dims", "copy"),
        *("convert_element_type", "stop_gradient", "neg", "pvary", "axis_index"),
        *("sharding_constraint", "reshard"),
    )
)
#: What brings the values of other devices; the one that passes them on along an axis.
RING = "ppermute"
MOVES = frozenset(("all_gather", "all_to_all", RING, "psum_scatter", "reduce_scatter"))
#: Forms that are watched after all where they order what devices have exchanged.
FORMS_OF_PARTS = frozenset(("reshape", "transpose"))
KERNEL = "pallas_call"
#: What all iterations of a loop have made: an iteration may differ, and the end be right again.
LOOP = "scan"
#: What an iteration gets of the one before.
CARRY = "carry"
#: What computes at the widths that it states: code for that width, and the bits of numbers.
_OWN_WIDTHS = frozenset((KERNEL, "bitcast_convert_type"))
_DROPPED = frozenset(("debug_callback", "debug_print"))


@dataclass(frozen=True, slots=True)
class Mark:
    """One watched value.

    Attributes:
      primitive: what computes it, as JAX names it.
      place: the user's line.
      wraps: what the value is wrapped in, outermost first.
      sources: the marks of the values that it is computed from.
      indices: where the device's place on the mesh is asked for that decides it.
    """

    primitive: str
    place: Place
    wraps: tuple[Wrap, ...]
    sources: tuple[int, ...]
    indices: frozenset[Place] = frozenset()


@dataclass(frozen=True, slots=True)
class End:
    """A result of a `shard_map`.

    Attributes:
      marks: of the value that the devices have.
      axes: the mesh axes that it is returned as split over, one part on each device.
    """

    marks: tuple[int, ...]
    axes: frozenset[str]
    place: Place


@dataclass(frozen=True, slots=True)
class Watched:
    """One watched run.

    Attributes:
      results: the marks of each result.
    """

    marks: Sequence[Mark]
    values: Sequence[Any]
    results: Sequence[tuple[int, ...]]
    ends: Sequence[End]


@dataclass(frozen=True)
class _Scope:
    """Where in the program the interpreter is.

    Attributes:
      place: the line that calls the program; JAX's own functions have none of the user's.
      callers: the helpers of the program.
      seen: the values that are watched here, in order.
    """

    wraps: tuple[Wrap, ...] = ()
    axes: tuple[str, ...] = ()
    is_watched: bool = False
    place: Place = field(default_factory=Place)
    callers: Callers = field(default_factory=Callers)
    seen: list[Any] = field(default_factory=list)

    def at(self, eqn: Any) -> Place:
        """Return the line of an equation here."""
        own = self.callers.place(stack_at(eqn), "")
        return own if own.is_known else self.place


@dataclass
class _Known:
    """What is known of a variable: its value, its marks, and which `axis_index` decides it."""

    value: Any
    marks: tuple[int, ...] = ()
    indices: frozenset[Place] = frozenset()


def _renewed(known: Sequence[_Known], values: Sequence[Any]) -> list[_Known]:
    """Return variables with other values, of which all else is known that was."""
    return [replace(each, value=value) for each, value in zip(known, values, strict=True)]


@dataclass
class Rerun:
    """A program on a mesh.

    Attributes:
      mesh: of devices that are here.
      width: of all floats, `float32` or `float64`.
      marks: of a watched run, in the order of its values.
      device_random: the lines whose random bits depend on the device.
      ends: the results of each `shard_map`, and how it returns them.
      results: the marks of each result of the program.
    """

    mesh: jax.sharding.Mesh
    width: np.dtype[Any]
    is_watched: bool = False
    marks: list[Mark] = field(default_factory=list)
    device_random: dict[Place, None] = field(default_factory=dict)
    ends: list[End] = field(default_factory=list)
    results: list[tuple[int, ...]] = field(default_factory=list)

    def __call__(self, closed: core.ClosedJaxpr, leaves: Sequence[Any]) -> tuple[list[Any], Any]:
        """Return what a program computes, and its watched values by their marks.

        It is called where `jax.set_mesh` has set the mesh.
        """
        self.marks.clear()
        self.ends.clear()
        given = [_Known(self._widened(each)) for each in leaves]
        scope = _Scope(is_watched=self.is_watched, callers=callers_of(closed.jaxpr))
        outs = self._program(closed.jaxpr, closed.consts, given, scope)
        self.results = [each.marks for each in outs]
        return [each.value for each in outs], scope.seen

    def _program(
        self, jaxpr: Any, consts: Sequence[Any], given: Sequence[_Known], scope: _Scope
    ) -> list[_Known]:
        known: dict[Any, _Known] = {}

        def read(atom: Any) -> _Known:
            if isinstance(atom, core.Literal):
                aval: Any = atom.aval
                return _Known(self._widened(np.asarray(atom.val, aval.dtype)))
            return known[atom]

        for var, const in zip(jaxpr.constvars, consts, strict=True):
            known[var] = const if isinstance(const, _Known) else _Known(self._widened(const))
        known.update(zip(jaxpr.invars, given, strict=True))
        for eqn in jaxpr.eqns:
            with self._context(eqn, scope):
                found = self._equation(eqn, [read(each) for each in eqn.invars], scope)
            known.update(zip(eqn.outvars, found, strict=True))
        return [read(each) for each in jaxpr.outvars]

    def _context(self, eqn: Any, scope: _Scope) -> contextlib.AbstractContextManager[Any]:
        """Return the mesh in whose context an equation was traced: code may leave explicit axes."""
        own = getattr(eqn.ctx, "cur_abstract_mesh", None)
        if scope.axes or own is None or own.empty:
            return contextlib.nullcontext()
        return jax.sharding.use_abstract_mesh(self._abstract(own))

    def _abstract(self, mesh: Any) -> Any:
        """Return a mesh of the program as one of the devices that are here."""
        here = self.mesh.abstract_mesh
        same = here.axis_names == mesh.axis_names
        return here.update(axis_types=mesh.axis_types) if same else mesh

    def _equation(self, eqn: Any, given: list[_Known], scope: _Scope) -> list[_Known]:
        name = eqn.primitive.name
        if name in _CALLS:
            inner = next(eqn.params[each] for each in _PROGRAMS if each in eqn.params)
            jaxpr, consts = (inner.jaxpr, inner.consts) if hasattr(inner, "consts") else (inner, ())
            return self._program(jaxpr, consts, given, replace(scope, place=scope.at(eqn)))
        if name in _DROPPED:
            return []
        rules: dict[str, Callable[..., list[_Known]]] = {
            "scan": self._scan,
            "while": self._while,
            "cond": self._cond,
            "shard_map": self._shard_map,
        }
        rule: Callable[..., list[_Known]] = rules.get(name, self._plain)
        return rule(eqn, given, scope)

    def _plain(self, eqn: Any, given: list[_Known], scope: _Scope) -> list[_Known]:
        """Return what an equation without a program of its own computes."""
        name = eqn.primitive.name
        values = [each.value for each in given]
        indices = frozenset[Place]().union(*(each.indices for each in given))
        if name == "axis_index":
            indices = frozenset((scope.at(eqn),))
        if name == "random_bits" and indices and scope.axes:
            self.device_random.setdefault(scope.at(eqn))
            outs = [_middle_bits(eqn)]
        elif name in _AS_IS:
            outs = values
        else:
            outs = self._bound(eqn, values, scope)
        is_watched = name not in _FORMS or self._orders_parts(name, given)
        return self._results(eqn, outs, given, scope, indices, is_watched=is_watched)

    def _orders_parts(self, name: str, given: Sequence[_Known]) -> bool:
        """Say whether a form is one of what devices have exchanged."""
        if name not in FORMS_OF_PARTS or not self.is_watched:
            return False
        sources = [self.marks[mark].primitive for each in given for mark in each.marks]
        return bool(sources) and all(each in MOVES or each in FORMS_OF_PARTS for each in sources)

    def _results(
        self,
        eqn: Any,
        outs: Sequence[Any],
        given: Sequence[_Known],
        scope: _Scope,
        indices: frozenset[Place] = frozenset(),
        *,
        is_watched: bool = True,
    ) -> list[_Known]:
        """Return what is known of the results of an equation.

        Args:
          is_watched: whether their values are worth it. Integers that the device decides are
            places, which differ as they should.
        """
        sources = tuple(dict.fromkeys(mark for each in given for mark in each.marks))
        made = []
        for out in outs:
            is_float = jnp.issubdtype(out.dtype, jnp.inexact)
            known = _Known(out, sources, indices)
            is_computed = is_watched and (is_float or not scope.axes)
            if is_computed or (is_watched and not indices):
                self._watch(eqn.primitive.name, eqn, known, scope)
            made.append(replace(known, indices=frozenset()) if is_computed else known)
        return made

    def _watch(self, name: str, eqn: Any, known: _Known, scope: _Scope) -> None:
        """Mark a value where this is a watched run."""
        if not scope.is_watched or not _is_number(known.value):
            return
        kind = BACKWARD if returned_at(eqn) else name
        mark = Mark(kind, scope.at(eqn), scope.wraps, known.marks, known.indices)
        known.marks = (len(self.marks),)
        self.marks.append(mark)
        scope.seen.append(known.value)

    def _feed_back(self, state: Sequence[_Known], outs: Sequence[_Known]) -> None:
        """Note that what an iteration returns is what the next one gets."""
        for before, after in zip(state, outs, strict=False):
            for at in before.marks:
                if self.marks[at].primitive == CARRY:
                    sources = dict.fromkeys((*self.marks[at].sources, *after.marks))
                    self.marks[at] = replace(self.marks[at], sources=tuple(sources))

    def _bound(self, eqn: Any, values: list[Any], scope: _Scope) -> list[Any]:
        """Return what JAX makes of one equation here."""
        name, params = eqn.primitive.name, eqn.params
        if name == "sharding_constraint":
            spec = _with_open(params["sharding"], params["unconstrained_dims"], values[0].ndim)
            if spec is None:
                return values
            target = spec if scope.axes else NamedSharding(self.mesh, spec)
            return [jax.lax.with_sharding_constraint(values[0], target)]
        if name in _OWN_WIDTHS:
            return self._as_stated(eqn, values)
        return computed(eqn, values, {key: self._param(value) for key, value in params.items()})

    def _as_stated(self, eqn: Any, values: list[Any]) -> list[Any]:
        """Return what an equation computes at the widths that it states; a kernel, interpreted."""
        pairs = zip(eqn.invars, values, strict=True)
        own = [jnp.asarray(value).astype(var.aval.dtype) for var, value in pairs]
        is_kernel = eqn.primitive.name == KERNEL
        made = eqn.primitive.bind(*own, **eqn.params | ({"interpret": True} if is_kernel else {}))
        outs = made if eqn.primitive.multiple_results else [made]
        return [self._widened(each) for each in outs]

    def _param(self, value: Any) -> Any:
        if isinstance(value, np.dtype) and jnp.issubdtype(value, jnp.floating):
            return self.width
        if isinstance(value, type) and issubclass(value, np.generic):
            return self._param(np.dtype(value))
        if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
            return self._retraced(value)
        if isinstance(value, NamedSharding) and not value.mesh.empty:
            return NamedSharding(self._abstract(value.mesh.abstract_mesh), value.spec)
        return self.mesh if isinstance(value, jax.sharding.Mesh) else value

    def _retraced(self, value: Any) -> Any:
        """Return the program by which a primitive adds up, at the width of the run."""
        inner = getattr(value, "jaxpr", value)

        def run(*values: Any) -> list[Any]:
            given = [_Known(each) for each in values]
            consts = getattr(value, "consts", ())
            return [each.value for each in self._program(inner, consts, given, _Scope())]

        structs = [
            jax.ShapeDtypeStruct(var.aval.shape, self._param(var.aval.dtype))
            for var in inner.invars
        ]
        made = jax.make_jaxpr(run)(*structs)
        return made if inner is not value else made.jaxpr

    def _widened(self, value: Any) -> Any:
        """Return a float at the width of the run, and anything else as it is."""
        dtype = getattr(value, "dtype", None)
        if dtype is None:
            dtype = np.result_type(value)
            is_weak = isinstance(value, float)
            return np.asarray(value, self.width) if is_weak else value
        if jnp.issubdtype(dtype, jnp.floating) and dtype != self.width:
            return value.astype(self.width)
        return value

    def _scan(self, eqn: Any, given: list[_Known], scope: _Scope) -> list[_Known]:
        params = eqn.params
        closed, (fixed, carried) = params["jaxpr"], scan_counts(eqn)
        wrap: Wrap = "reversed" if params["reverse"] else "iterations"
        inner = replace(scope, wraps=(*scope.wraps, wrap), place=scope.at(eqn))
        start, ends = len(self.marks), len(self.ends)
        about: list[_Known] = []

        def body(carry: Any, xs: Any) -> Any:
            del self.marks[start:], self.ends[ends:]
            now = (*(each.value for each in given[:fixed]), *carry, *xs)
            whole, turn = _renewed(given, now), replace(inner, seen=[])
            state = whole[fixed : fixed + carried]
            for each in state:
                self._watch(CARRY, eqn, each, turn)
            outs = self._program(closed.jaxpr, closed.consts, whole, turn)
            self._feed_back(state, outs)
            about[:] = outs
            values = [each.value for each in outs]
            return self._like(values[:carried], carry), (values[carried:], turn.seen)

        init = [each.value for each in given[fixed : fixed + carried]]
        xs = [each.value for each in given[fixed + carried :]]
        options = {"length": params["length"], "reverse": params["reverse"]}
        final, (ys, seen) = jax.lax.scan(body, init, xs, **options)
        scope.seen.extend(seen)
        ended = _renewed(about, (*final, *ys))
        for each in ended:
            self._watch(LOOP, eqn, each, scope)
        return ended

    def _like(self, values: Sequence[Any], carry: Sequence[Any]) -> list[Any]:
        """Return values with the dtypes of a carry: weak types may have come apart."""
        pairs = zip(values, carry, strict=True)
        return [
            value if value.dtype == old.dtype else value.astype(old.dtype) for value, old in pairs
        ]

    def _while(self, eqn: Any, given: list[_Known], scope: _Scope) -> list[_Known]:
        params = eqn.params
        inner = replace(scope, is_watched=False, place=scope.at(eqn))
        tests, fixed = params["cond_nconsts"], params["body_nconsts"]
        values = [each.value for each in given]
        init = values[tests + fixed :]

        def run(closed: Any, consts: Sequence[Any], carry: Sequence[Any]) -> list[Any]:
            whole = [_Known(each) for each in (*consts, *carry)]
            outs = self._program(closed.jaxpr, closed.consts, whole, inner)
            return [each.value for each in outs]

        final = jax.lax.while_loop(
            lambda carry: run(params["cond_jaxpr"], values[:tests], carry)[0],
            lambda carry: self._like(
                run(params["body_jaxpr"], values[tests : tests + fixed], carry), carry
            ),
            init,
        )
        return self._results(eqn, final, given, scope)

    def _cond(self, eqn: Any, given: list[_Known], scope: _Scope) -> list[_Known]:
        inner = replace(scope, is_watched=False, place=scope.at(eqn))

        def branch(closed: Any) -> Callable[..., list[Any]]:
            def run(*values: Any) -> list[Any]:
                whole = [_Known(each) for each in values]
                outs = self._program(closed.jaxpr, closed.consts, whole, inner)
                return [jnp.asarray(each.value) for each in outs]

            return run

        which, *values = (each.value for each in given)
        branches = [branch(each) for each in eqn.params["branches"]]
        outs = jax.lax.switch(which.astype("int32"), branches, *values)
        return self._results(eqn, outs, given, scope)

    def _shard_map(self, eqn: Any, given: list[_Known], scope: _Scope) -> list[_Known]:
        params = eqn.params
        axes = tuple(each for each in self.mesh.axis_names if each in made_manual(eqn))
        is_checked = params["check_vma"]
        wraps: tuple[Wrap, ...] = (*scope.wraps, "devices")
        axes_inside = (*scope.axes, *axes)
        inner = replace(scope, wraps=wraps, axes=axes_inside, place=scope.at(eqn))
        about: list[_Known] = []
        start, ends = len(self.marks), len(self.ends)

        def body(*values: Any) -> Any:
            del self.marks[start:], self.ends[ends:]
            whole, own = _renewed(given, values), replace(inner, seen=[])
            outs = self._program(params["jaxpr"], (), whole, own)
            about[:] = outs
            rows = [_row(each, axes, is_checked) for each in own.seen]
            return [each.value for each in outs], rows

        stacked = PartitionSpec(axes)
        made, seen = jax.shard_map(
            body,
            in_specs=tuple(params["in_specs"]),
            out_specs=(list(params["out_specs"]), stacked),
            check_vma=is_checked,
            axis_names=frozenset(axes),
        )(*(each.value for each in given))
        scope.seen.extend(seen)
        for each, spec in zip(about, params["out_specs"], strict=True):
            split = frozenset(name for entry in jax_entries(spec) for name in names_of(entry))
            self.ends.append(End(each.marks, split, scope.at(eqn)))
        pairs = zip(made, about, strict=True)
        return [_Known(value, each.marks, each.indices) for value, each in pairs]


def _row(value: Any, axes: tuple[str, ...], is_checked: bool) -> Any:
    """Return a value of one device as one row of those of all."""
    if is_checked:
        same = set(axes) - _varying(jax.typeof(value))
        if same:
            value = jax.lax.pcast(value, tuple(same), to="varying")
    return value[None]


def _varying(aval: Any) -> set[str]:
    """Return the mesh axes along which devices have other values, by the type of an array."""
    kinds = getattr(aval, "manual_axis_type", None)
    return set(kinds.varying if kinds is not None else aval.vma)


def _is_number(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.number) or value.dtype == bool)


def _middle_bits(eqn: Any) -> Any:
    """Return random bits that are none: a uniform number of them is one half."""
    aval = eqn.outvars[0].aval
    made = jnp.full(aval.shape, 2 ** (aval.dtype.itemsize * 8 - 1), aval.dtype)
    return jax.lax.pcast(made, tuple(axes), to="varying") if (axes := _varying(aval)) else made


def _with_open(sharding: Any, dims: Any, rank: int) -> PartitionSpec | None:
    """Return the spec of a constraint with its open dimensions; None of no named sharding."""
    spec = getattr(sharding, "spec", None)
    if spec is None:
        return None
    opened = PartitionSpec.UNCONSTRAINED
    made = (opened if at in dims else e for at, e in enumerate(jax_entries(spec, rank)))
    return PartitionSpec(*made, unreduced=spec.unreduced, reduced=spec.reduced)
