"""A program under `shard_map`, walked once for each mesh axis: what is known of each value.

A finding is made only of what is proved. Code may do with a part of a sum what it likes, as long as
a collective joins the devices again: a softmax in parts is computed so. A part is used as the whole
where what was computed from it is returned by an `out_specs` that does not name the axis. JAX has
checked that where `check_vma` is on. Of sums, those that JAX writes when it transposes a program
are no fault of the user's: without `check_vma` it sums gradients too often, and a mean corrects it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any, NamedTuple

import jax.extend.core
from jax.extend.core import Literal

from shardspec.diagnostics.words import by_key
from shardspec.ir.step import Place, WrongSum
from shardspec.jax_backend import equations
from shardspec.jax_backend.equations import callers_of, is_transposed, scan_counts, stack_at
from shardspec.jax_backend.step import sum_rules as rules
from shardspec.programs.op_names import Callers, place_of

#: The parameter of a primitive that is a program it calls.
_CALLS = {
    **dict.fromkeys(("jit", "pjit", "checkpoint", "remat", "remat2", "shard_map"), "jaxpr"),
    **dict.fromkeys(("closed_call", "core_call", "custom_jvp_call"), "call_jaxpr"),
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}
_SUMS = frozenset(("psum", "psum_invariant"))
_JOINS = frozenset((*_SUMS, "pmax", "pmin", "all_gather", "all_gather_invariant"))
#: What does with the parts of a sum over another axis what it does with their total.
_LINEAR = frozenset((*_SUMS, "all_gather", "all_gather_invariant", "reduce_scatter", "ppermute"))
_COLLECTIVES = frozenset((*_JOINS, *_LINEAR, "all_to_all", "axis_index"))
_VIEWS = frozenset(("neg", "convert_element_type", "reshape", "transpose", "broadcast_in_dim"))
_ADDS = frozenset(("add", "sub", "add_any"))
#: What may make up for a sum too many: a number of the code, as in a mean; another value; whatever
#: the caller does.
_MEAN, _SCALED, _RETURNED = "mean", "scaled", "returned"
#: Rounds of a loop until what is known of its values no longer changes; then it is not known.
_ROUNDS = 12


class Results(NamedTuple):
    """What becomes of the results of a `shard_map`.

    Attributes:
      paths: those of the results of the step that they are.
      are_scaled: whether a number may multiply them afterwards.
      is_backward: whether JAX made the `shard_map` by transposing another.
    """

    paths: Sequence[str]
    are_scaled: Sequence[bool]
    is_backward: bool = False


def wrong_sums(program: Any, paths: Sequence[str] = ()) -> tuple[WrongSum, ...]:
    """Return the sums that code under `shard_map` leaves out or takes too often.

    Args:
      program: a jaxpr.
      paths: of its results.
    """
    mapped = [*_mapped(program, paths)]
    callers = callers_of(program) if mapped else Callers()
    found = (
        each
        for equation, results in mapped
        for axis in sorted(equations.made_manual(equation))
        if equation.params["mesh"].shape[axis] > 1
        for each in Walk(equation, axis, results, callers).wrong()
    )
    return tuple(dict.fromkeys(found))


def _mapped(
    program: Any, paths: Sequence[str], *, is_root: bool = True, is_backward: bool = False
) -> Iterator[tuple[Any, Results]]:
    """Yield each `shard_map` with what becomes of its results."""
    pairs = zip(program.outvars, paths, strict=False)
    named = {var: path for var, path in pairs if not isinstance(var, Literal)}
    readers = _readers(program)
    for equation in program.eqns:
        backward = is_backward or is_transposed(equation)
        names = [named.get(var, "") for var in equation.outvars]
        if equation.primitive.name == "shard_map":
            scaled = [
                bool(set(_ends(var, readers, _outside)) - ({_RETURNED} if is_root else set()))
                for var in equation.outvars
            ]
            yield equation, Results(names, scaled, backward)
        own = names if equation.primitive.name in _CALLS else ()
        for each in jax.extend.core.jaxprs_in_params(equation.params):
            inner = getattr(each, "jaxpr", each)
            yield from _mapped(inner, own, is_root=False, is_backward=backward)


def _names(entry: Any) -> tuple[Any, ...]:
    return entry if isinstance(entry, tuple) else (entry,)


class Known(NamedTuple):
    """What is known of the results of a program, and what is wrong in it."""

    states: tuple[rules.State, ...]
    wrong: tuple[WrongSum, ...] = ()


class Walk:
    """A walk over the program of one `shard_map`, along one mesh axis.

    Attributes:
      axis: the mesh axis.
      states: what is known of each value of the outermost program, by its variable.
    """

    def __init__(self, mapped: Any, axis: str, results: Results, callers: Callers) -> None:
        """Make a walk.

        Args:
          mapped: the equation that is the `shard_map`.
          callers: the helpers of the step.
        """
        self.axis = axis
        self._callers = callers
        self.states: dict[Any, rules.State] = {}
        self._mapped = mapped
        self._results = results
        self._is_backward = results.is_backward
        self._is_checked = bool(mapped.params["check_vma"])
        self._ways = mapped.params["mesh"].shape[axis]
        self._walked: dict[Any, tuple[Any, Known]] = {}
        self._places: dict[int, tuple[Any, Place]] = {}

    def wrong(self) -> Iterator[WrongSum]:
        """Yield what is wrong along the axis."""
        params, results = self._mapped.params, self._results
        given = [self._given(spec) for spec in params["in_specs"]]
        known = self._run(params["jaxpr"], given)
        yield from known.wrong
        if self._is_checked or results.is_backward:
            return
        place = self._where
        returned = zip(known.states, params["out_specs"], results.paths, strict=True)
        for state, spec, path in returned:
            if state.is_partial and not self._is_named(spec):
                first, second = state.born or place, state.used or place
                yield self._found("missing", first, second, part=state.part, result=path)

    @property
    def _where(self) -> Place:
        """Return where the function is that is mapped, or else where it is called."""
        told = self._mapped.params["jaxpr"].debug_info
        place = place_of([(told.func_filename or "<", told.func_lineno or 0)], "")
        return place if place.is_known else self._place(self._mapped)

    def _given(self, spec: Any) -> rules.State:
        """Return what is known of an argument.

        What a backward pass is given of the forward pass looks split along the first dimension.
        """
        if not self._is_named(spec):
            return rules.SAME
        dims = [dim for dim, entry in enumerate(spec) if self.axis in _names(entry)]
        return rules.split(dims[0]) if dims and not self._results.is_backward else rules.UNKNOWN

    def _is_named(self, spec: Any) -> bool:
        entries = [name for entry in spec for name in _names(entry)]
        return self.axis in (*entries, *(getattr(spec, "unreduced", None) or ()))

    def _found(self, fault: Any, first: Place, second: Place, **rest: Any) -> WrongSum:
        return WrongSum(fault, self.axis, self._ways, first, second, self._where, **rest)

    def _place(self, equation: Any) -> Place:
        kept = self._places.get(id(equation))
        if kept is None:
            name = f"{equation.source_info.name_stack}/"
            place = self._callers.place(stack_at(equation), name)
            kept = self._places[id(equation)] = equation, place
        return kept[1]

    def _run(self, program: Any, given: Sequence[rules.State]) -> Known:
        """Return what is known of the results of a program, by what is known of its arguments."""
        backward = self._is_backward
        key = (id(program), tuple(given), backward)
        if key not in self._walked:
            self._walked[key] = program, self._walk(program, given)
            self._is_backward = backward
        return self._walked[key][1]

    def _walk(self, program: Any, given: Sequence[rules.State]) -> Known:
        inner = getattr(program, "jaxpr", program)  # a closed program has one inside
        states: dict[Any, rules.State] = dict.fromkeys(inner.constvars, rules.SAME)
        states.update(zip(inner.invars, given, strict=True))
        backward, is_outermost = self._is_backward, inner is self._mapped.params["jaxpr"]
        wrong: list[WrongSum] = []
        sums: list[tuple[Any, tuple[rules.State, Any]]] = []

        def read(var: Any) -> rules.State:
            return _literal(var) if isinstance(var, Literal) else states[var]

        for equation in inner.eqns:
            self._is_backward = backward or is_transposed(equation)
            own = [read(var) for var in equation.invars]
            known = self._equation(equation, own)
            wrong += known.wrong
            states.update(zip(equation.outvars, known.states, strict=True))
            is_sum = equation.primitive.name in _SUMS and self._is_over(equation)
            if is_sum and not self._is_backward:
                sums += ((equation, each) for each in zip(own, equation.outvars, strict=True))
        readers = _readers(inner)
        for equation, (state, var) in sums:
            ends = set(_ends(var, readers, read))
            if is_outermost and not self._is_scaled_later(inner, var):
                ends.discard(_RETURNED)
            wrong += self._summed_again(equation, state, ends)
        if is_outermost:
            self.states = states
        return Known(tuple(map(read, inner.outvars)), tuple(wrong))

    def _equation(self, equation: Any, own: list[rules.State]) -> Known:
        name = equation.primitive.name
        if name in _COLLECTIVES:
            return Known(tuple(self._collective(equation, own)))
        if name in ("optimization_barrier", "device_put"):
            return Known(tuple(own))
        if name in _CALLS and _CALLS[name] in equation.params:
            return self._run(equation.params[_CALLS[name]], own)
        if name == "scan":
            return self._scan(equation, own)
        if name == "while":
            return self._while(equation, own)
        if name == "cond":
            return self._cond(equation, own)
        if name in rules.deterministic():
            place = partial(self._place, equation)
            return Known(tuple(rules.computed(equation, own, place, is_backward=self._is_backward)))
        return Known(tuple(map(self._stated, equation.outvars)))

    def _stated(self, var: Any) -> rules.State:
        """Return what JAX's type says of a value that is made nobody knows how."""
        told = getattr(var.aval, "mat", None)
        varying = getattr(var.aval, "vma", None) if told is None else told.varying
        is_stated = self._is_checked and isinstance(varying, frozenset)
        return rules.SAME if is_stated and self.axis not in (varying or ()) else rules.UNKNOWN

    def _is_over(self, equation: Any) -> bool:
        params = equation.params
        return self.axis in _names(params.get("axes", params.get("axis_name")))

    def _collective(self, equation: Any, own: list[rules.State]) -> Iterator[rules.State]:
        name = equation.primitive.name
        is_over = self._is_over(equation)
        if name == "axis_index":
            yield rules.UNKNOWN if is_over else rules.SAME
        elif equation.params.get("axis_index_groups") is not None:
            yield from (rules.UNKNOWN for _ in equation.outvars)
        elif is_over:
            yield from (self._joined(equation, each) for each in own)
        else:
            yield from (self._beside(equation, each) for each in own)

    def _joined(self, equation: Any, state: rules.State) -> rules.State:
        """Return what is known behind a collective over the axis."""
        name = equation.primitive.name
        if name in _SUMS:
            if state.is_same:
                return state
            implicit = self._is_checked and self._is_backward
            return rules.State(rules.Kind.SAME, summed=self._place(equation), is_implicit=implicit)
        if name in _JOINS:
            return rules.SAME
        params = equation.params
        if name == "reduce_scatter" and state.is_sum and params["tiled"]:
            return rules.split(params["scatter_dimension"])
        if (
            name == "all_to_all"
            and params.get("tiled")
            and state == rules.split(params["concat_axis"])
        ):
            return rules.split(params["split_axis"])
        return rules.UNKNOWN

    @staticmethod
    def _beside(equation: Any, state: rules.State) -> rules.State:
        """Return what is known behind a collective over other axes."""
        name = equation.primitive.name
        if name == "ppermute" or name in _SUMS:
            return state
        if state.is_same:
            return rules.ZERO if state.kind is rules.Kind.ZERO else rules.SAME
        is_tiled = equation.params.get("tiled", True)
        if state.kind is rules.Kind.SPLIT:
            return state if is_tiled and name != "all_to_all" else rules.UNKNOWN
        return state if state.is_sum and name in _LINEAR and is_tiled else rules.UNKNOWN

    def _is_scaled_later(self, body: Any, sum_: Any) -> bool:
        """Say whether a number may multiply a result of the `shard_map` that shows a sum."""
        shown = {sum_}
        for equation in body.eqns:
            if equation.primitive.name in _VIEWS and not shown.isdisjoint(_variables(equation)):
                shown.update(equation.outvars)
        returned = zip(body.outvars, self._results.are_scaled, strict=True)
        return any(
            scaled for var, scaled in returned if not isinstance(var, Literal) and var in shown
        )

    def _summed_again(
        self, equation: Any, state: rules.State, ends: set[str]
    ) -> Iterator[WrongSum]:
        """Yield what is wrong with a sum over the axis that the user wrote."""
        place = self._place(equation)
        if state.is_same and state.summed is not None:
            if not ends:
                implicit = state.is_implicit
                yield self._found("twice", state.summed, place, is_implicit=implicit)
            elif state.is_implicit and _MEAN in ends:
                yield self._found("mean", state.summed, place, is_implicit=True)
        if state.kind is rules.Kind.PARTIAL and state.used and state.is_product and not ends:
            yield self._found("added", state.used, place)

    def _scan(self, equation: Any, own: list[rules.State]) -> Known:
        params = equation.params
        consts, carried = scan_counts(equation)
        fixed, first = own[:consts], own[consts : consts + carried]
        parts = [_shifted(each, -1) for each in own[consts + carried :]]

        def turn(carry: Sequence[rules.State]) -> Known:
            return self._run(params["jaxpr"], (*fixed, *carry, *parts))

        carry = _settled(first, lambda carry: turn(carry).states[:carried])
        known = turn(carry)
        stacked = (_shifted(each, 1) for each in known.states[carried:])
        return Known((*known.states[:carried], *stacked), known.wrong)

    def _while(self, equation: Any, own: list[rules.State]) -> Known:
        params = equation.params
        asks, works = params["cond_nconsts"], params["body_nconsts"]
        first = own[asks + works :]

        def turn(carry: Sequence[rules.State]) -> Known:
            given = (*own[asks : asks + works], *carry)
            return self._run(params["body_jaxpr"], given)

        carry = _settled(first, lambda carry: turn(carry).states)
        goes_on = self._run(params["cond_jaxpr"], (*own[:asks], *carry))
        if not goes_on.states[0].is_same:
            return Known((rules.UNKNOWN,) * len(carry))
        return Known(tuple(carry), turn(carry).wrong)

    def _cond(self, equation: Any, own: list[rules.State]) -> Known:
        runs = [self._run(branch, own[1:]) for branch in equation.params["branches"]]
        wrong = tuple(each for run in runs for each in run.wrong)
        if not own[0].is_same:
            return Known((rules.UNKNOWN,) * len(equation.outvars), wrong)
        states = zip(*(run.states for run in runs), strict=True)
        return Known(tuple(reduce(rules.joined, each) for each in states), wrong)


def _outside(var: Any) -> rules.State:
    """Return what is known of a value outside of the `shard_map`."""
    return _literal(var) if isinstance(var, Literal) else rules.UNKNOWN


def _literal(var: Any) -> rules.State:
    try:
        is_zero = not var.val
    except ValueError:
        is_zero = False
    return rules.ZERO if is_zero else rules.State(rules.Kind.CONSTANT)


def _shifted(state: rules.State, by: int) -> rules.State:
    """Return what is known of one element along a first dimension, or of all of them together."""
    if state.kind is rules.Kind.SPLIT:
        return rules.split(state.dim + by) if state.dim + by >= 0 else rules.UNKNOWN
    return replace(state, even=frozenset(dim + by for dim in state.even if dim + by >= 0))


def _settled(first: Sequence[rules.State], turn: Any) -> list[rules.State]:
    """Return what is known of the values of a loop in each of its rounds."""
    carry = list(first)
    for round_ in range(_ROUNDS * 2):
        after = [rules.joined(*pair) for pair in zip(carry, turn(carry), strict=True)]
        if after == carry:
            return carry
        changed = zip(carry, after, strict=True)
        carry = [new if new == old or round_ < _ROUNDS else rules.UNKNOWN for old, new in changed]
    return [rules.UNKNOWN] * len(carry)


def _variables(equation: Any) -> list[Any]:
    return [var for var in equation.invars if not isinstance(var, Literal)]


def _readers(program: Any) -> dict[Any, list[Any]]:
    """Return the equations that read each variable; None among them for the end of the program."""
    read = ((var, equation) for equation in program.eqns for var in _variables(equation))
    ends = ((var, None) for var in program.outvars if not isinstance(var, Literal))
    return by_key((*read, *ends))


def _ends(
    var: Any, readers: Mapping[Any, list[Any]], read: Any, *, is_alone: bool = True
) -> Iterator[str]:
    """Yield what may make up for a sum too many: a number that scales it, here or elsewhere.

    Args:
      is_alone: whether nothing was added to the sum on the way.
    """
    for equation in readers.get(var, ()):
        name = "" if equation is None else equation.primitive.name
        if equation is None or name in _CALLS:
            if is_alone:
                yield _RETURNED
            continue
        others = [each for each in equation.invars if each is not var]
        if name == "mul" or (name == "div" and equation.invars[0] is var):
            for each in others:
                state = read(each)
                if state.kind in (rules.Kind.CONSTANT, rules.Kind.ZERO):
                    yield _MEAN
                elif len(state.even) == len(each.aval.shape):
                    yield _SCALED
        if name in _VIEWS or name in _ADDS:
            onward = is_alone and name in _VIEWS
            yield from _ends(equation.outvars[0], readers, read, is_alone=onward)
