"""`step:` of a spec as a function of JAX, so that a compiler can be asked without any code.

It is what somebody would write: parameters by path, cast where they are used, activations
constrained by the names that the spec has for them, layers in a scan where arrays are stacked and
in a loop of Python where each has arrays of its own, `jax.checkpoint` around a layer, microbatches
in a scan that adds up gradients, and an optimizer like Adam with as many moments as `state:` says.
The loss is the mean square of what no line reads, since all else a loss needs is not stated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from shardspec import pipeline
from shardspec.analysis.memory import gradients_of
from shardspec.analysis.step_flow import flow_of
from shardspec.analysis.step_values import APART, Flow, Loop, Op, Value, Weight
from shardspec.diagnostics import ShardspecError, quote
from shardspec.diagnostics.words import counted, numbers_in
from shardspec.ir.plan import Dims, ParamSharding, ShardingPlan
from shardspec.ir.program import StepSpec
from shardspec.jax_backend.constrain import constrained
from shardspec.jax_backend.stated_lines import Lines, dtype_called, no_function, told
from shardspec.jax_backend.step.trace import Call, Resolving
from shardspec.programs.op_names import constraint_scope

Values = dict[Value, Any]
Arrays = Mapping[str, Any]

_RATE, _DECAY, _LEAST = 1e-3, 0.9, 1e-8


def call_of_step(resolver: Resolving) -> Call:
    """Return the function that `step:` states, and what it is called with: shapes, placed.

    Raises:
      ShardspecError: a line does not go with the arrays, or has no function.
    """
    spec, target = resolver._arrays.spec, resolver.target
    (plan,) = pipeline.compile_plans(spec, None, [target])
    flow = flow_of(spec, plan.arrays)
    step = flow.step
    reason = _refused(plan, step)
    if reason:
        raise no_function(reason, step.span)
    if flow.faults:
        raise ShardspecError(flow.faults)
    program = _Program(resolver, plan, flow)
    return program.serving() if step.mode == "serve" else program.training()


def unlike(plan: ShardingPlan) -> tuple[str, ...]:
    """Return what compiles otherwise than the spec states it, in a line; nothing where all is."""
    ops = flow_of(plan.spec, plan.arrays).ops
    lines = dict.fromkeys(
        op.line for op in ops if op.kind == "op" or (op.line.call == "flash" and op.line.flops)
    )
    if not lines:
        return ()
    places = ", ".join(str(line.span.place) for line in lines if line.span is not None)
    what = f"the FLOPs that {counted(len(lines), 'line')} of `step` state"
    return (f"{what} are not those of the compiled program: {places}",)


def _refused(plan: ShardingPlan, step: StepSpec) -> str:
    """Return why a step has no function; empty where it has one."""
    section = quote.section("step:")
    if not step.program:
        return "the spec states no step"
    if step.pipeline is not None:
        return f"a pipeline of {section} has no function of JAX yet"
    if step.gather != "layer" or step.reduce is not None:
        return f"`gather` and `reduce` of {section} have no function of JAX yet"
    if any(each.memory_kind is not None for each in plan.arrays):
        return f"{section} does not say when arrays leave the host's memory"
    return ""


@dataclass(frozen=True, slots=True)
class _Program:
    """A flow on a mesh."""

    resolver: Resolving
    plan: ShardingPlan
    flow: Flow

    # what it is given

    def _named(self, dims: Dims) -> Any:
        return self.resolver._placer.named(dims)

    def _sharding(self, value: Value) -> Any:
        return self._named(self.resolver._arrays.dims(value.shape, value.names))

    @property
    def _params(self) -> list[ParamSharding]:
        return [each for each in self.plan.arrays if not (each.is_state or each.param.is_cache)]

    def _structs(self, arrays: Sequence[ParamSharding], lies: Callable[[Dims], Dims] = lambda d: d,
                 dtype: str | None = None) -> dict[str, Any]:  # fmt: skip
        struct: Any = jax.ShapeDtypeStruct
        return {
            each.path: struct(
                each.param.shape,
                dtype_called(dtype or each.param.dtype),
                sharding=self._named(lies(each.dims)),
            )
            for each in arrays
        }

    def _input(self, value: Value, passes: int = 1) -> Any:
        """Return an input of all microbatches, or of all layers: one after the other."""
        count = value.rounds if passes == 1 else passes
        lies = self._sharding(value)
        dtype = jnp.dtype("int32") if self.flow.is_index(value) else dtype_called(value.dtype)
        shape = value.shape
        if count > 1:
            spec = jax.sharding.PartitionSpec(None, *lies.spec)
            shape, lies = (count, *shape), jax.sharding.NamedSharding(lies.mesh, spec)
        struct: Any = jax.ShapeDtypeStruct
        return struct(shape, dtype, sharding=lies)

    def training(self) -> Call:
        """Return one step that trains: it takes the state and a batch, and gives the state."""
        plan, flow, step = self.plan, self.flow, self.flow.step
        trained = [each for each in self._params if each.is_trained]
        kept = [each for each in plan.arrays if each.is_state]
        held = gradients_of(plan.spec, plan.mesh)
        policy = plan.spec.state
        moments = 0 if policy is None or kept else policy.moments
        dtype = "f32" if policy is None else policy.dtype
        params = self._structs(self._params)
        state = {
            "params": params,
            "opt_state": {
                **{f"m{n}": self._structs(trained, held.updated, dtype) for n in range(moments)},
                **({"kept": self._structs(kept)} if kept else {}),
            },
        }
        batch = {each.name: self._input(each, flow.passes) for each in flow.inputs}
        sums = {each.path: self._named(held.held(each.dims)) for each in trained}
        updated = {each.path: self._named(held.updated(each.dims)) for each in trained}
        all_gradients = self._gradients(sums)
        shardings = jax.tree.map(lambda x: x.sharding, state)

        def train(state: Any, batch: Any) -> Any:
            params, kept = dict(state["params"]), dict(state["opt_state"])
            found = told(step.span, lambda: all_gradients(params, batch))
            made: dict[str, dict[str, Any]] = {f"m{n}": {} for n in range(moments)}
            for name, gradient in found.items():
                with jax.named_scope("update"):
                    g = constrained(gradient.astype(jnp.float32), updated[name])
                    old = [kept[key][name].astype(jnp.float32) for key in made]
                    new = [_DECAY * m + (1 - _DECAY) * g ** (n + 1) for n, m in enumerate(old)]
                    move = new[0] / (jnp.sqrt(new[1]) + _LEAST) if moments > 1 else (new or [g])[0]
                    p = constrained(params[name], updated[name])
                    params[name] = (p.astype(jnp.float32) - _RATE * move).astype(p.dtype)
                    for key, m in zip(made, new, strict=True):
                        made[key][name] = m.astype(kept[key][name].dtype)
            return {"params": params, "opt_state": {**kept, **made}}

        jitted = jax.jit(train, donate_argnums=0, out_shardings=shardings)
        return Call(jitted, (state, batch), {})

    def _gradients(self, sums: Mapping[str, Any]) -> Callable[[Arrays, Arrays], dict[str, Any]]:
        """Return what makes the gradients of a batch, each held as `sums` says."""
        flow = self.flow
        names, total = frozenset(sums), dtype_called(flow.step.gradients or "f32")

        def loss(some: Arrays, others: Arrays, batch: Arrays) -> Any:
            ends = self._run({**others, **some}, batch)[0]
            return sum(jnp.mean(x.astype(jnp.float32) ** 2) for x in ends)

        def gradients(params: Arrays, batch: Arrays) -> dict[str, Any]:
            some = {name: x for name, x in params.items() if name in names}
            others = {name: x for name, x in params.items() if name not in names}
            found: dict[str, Any] = jax.grad(loss)(some, others, batch)
            return {name: constrained(x, sums[name]) for name, x in found.items()}

        def all_gradients(params: Arrays, batch: Arrays) -> dict[str, Any]:
            if flow.passes == 1:
                return gradients(params, batch)

            def add(before: dict[str, Any], batch: Arrays) -> tuple[dict[str, Any], None]:
                more = gradients(params, batch)
                both = {n: x + more[n].astype(total) for n, x in before.items()}
                return {n: constrained(x, sums[n]) for n, x in both.items()}, None

            start = {n: constrained(jnp.zeros(params[n].shape, total), sums[n]) for n in sums}
            return jax.lax.scan(add, start, batch)[0]

        return all_gradients

    def serving(self) -> Call:
        """Return one step that serves: it takes parameters, caches and a batch."""
        flow = self.flow
        inputs = {each.name: self._input(each) for each in flow.inputs}
        tokens = {each.name for each in flow.inputs if flow.is_index(each)}
        batch = {name: x for name, x in inputs.items() if name in tokens}
        cache = {name: x for name, x in inputs.items() if name not in tokens}
        places = {name: x.sharding for name, x in cache.items()}

        @partial(jax.jit, donate_argnums=1, out_shardings=(places, None))
        def serve(params: Any, cache: Any, batch: Any) -> Any:
            ends, given = told(flow.step.span, lambda: self._run(params, {**cache, **batch}))
            return {name: given[name] for name in cache}, ends

        return Call(serve, (self._structs(self._params), cache, batch), {})

    # what it runs

    def _run(self, params: Arrays, batch: Arrays) -> tuple[list[Any], dict[str, Any]]:
        """Return what no line reads, and the inputs, of which caches were written."""
        run = _Run(self, params)
        values: Values = {each: batch[each.name] for each in self.flow.inputs}
        ends = run.ends
        for loop, group in groupby(self.flow.ops, key=lambda op: op.loop):
            run.segment(loop, list(group), values)
        return [values[each] for each in ends], {e.name: values[e] for e in self.flow.inputs}

    def place(self, value: Value, x: Any, whole: frozenset[int] = frozenset()) -> Any:
        lies = self._sharding(value)
        if whole:
            entries = [None if at in whole else each for at, each in enumerate(lies.spec)]
            spec = jax.sharding.PartitionSpec(*entries)
            lies = jax.sharding.NamedSharding(lies.mesh, spec)
        with jax.named_scope(constraint_scope(value.name)):
            return constrained(x, lies)

    def in_parts(self, op: Op, x: Any) -> Any:
        """Return a result split as what it is made from, where it is less split itself.

        XLA would else gather what it is made from, which may be larger.
        """
        lies = self._sharding(op.result)
        parts = [_axes_in(entry) for entry in lies.spec]
        for read in op.reads:
            if not isinstance(read.source, Value):
                continue
            for entry, dim in zip(self._sharding(read.source).spec, read.view, strict=True):
                at = next((d for d, own in enumerate(op.view) if own[:1] == dim[:1] != ()), None)
                more = [] if at is None else _axes_in(entry)[len(parts[at]) :]
                if at is not None and [*parts[at], *more] == _axes_in(entry):
                    taken = {axis for part in parts for axis in part}
                    parts[at] += [] if taken & {*more} else more
        spec = jax.sharding.PartitionSpec(*(tuple(part) or None for part in parts))
        split = jax.sharding.NamedSharding(lies.mesh, spec)
        return x if split.is_equivalent_to(lies, x.ndim) else constrained(x, split)

    def ways(self, value: Value, dim: int) -> int:
        dims = self.resolver._arrays.dims(value.shape, value.names)
        return self.plan.mesh.ways(dims[dim].mesh_axes)


class _Run:
    """One pass of a flow over a batch."""

    def __init__(self, program: _Program, params: Arrays) -> None:
        flow = program.flow
        self.flow, self.params, self.place = flow, params, program.place
        self.in_parts = program.in_parts
        self.lines = Lines(flow, program.place, program.ways)
        self.is_redone = flow.step.mode == "train" and flow.step.remat != ("none",)
        self.caches = dict(_caches(flow, self.lines)) if flow.step.mode == "serve" else {}
        self.ends = self._ends()

    def _ends(self) -> list[Value]:
        lines = self.lines
        made = [op.result for op in self.flow.ops]
        used = {*lines.read, *lines.bases, *self.caches}
        lone = [value for value in made if value not in used]
        if self.flow.step.mode == "serve":
            return lone
        trained = [value for value in lone if value.is_trained]
        outer = [v for v in trained if v.loop is None or _root(v).loop is not v.loop]
        return outer or trained or lone

    def segment(self, loop: Loop | None, ops: Sequence[Op], values: Values) -> None:
        """Run lines that stand together: once, or round by round."""
        if loop is None:
            self._body(ops, values, [self._weights(op, None) for op in ops], 0)
            return
        made = {op.result: op for op in ops}
        carried: dict[Value, Value] = {}  # what comes into a round -> what it is then
        for value in made:
            if value.base is not None and (root := _root_in(value, made)) not in made:
                carried[root] = value
        own = set(ops)
        others = [op for op in self.flow.ops if op not in own]
        outer: set[Value | Weight | None] = {r.source for op in others for r in op.reads}
        outer |= {op.result.base for op in others}
        late = [v for v in made if (v in outer or v in self.ends) and v not in carried.values()]
        caches = [each for each in self.flow.inputs if each.rounds > 1]

        def body(carry: Any, weights: Any, number: Any) -> Any:
            inside = {**values, **dict(zip(carried, carry[0], strict=True))}
            inside |= dict(zip(caches, carry[2], strict=True))
            self._body(ops, inside, weights, number)
            ends = [inside[value] for value in carried.values()]
            return ends, [inside[value] for value in late], [inside[each] for each in caches]

        body = self._kept(body, ops)
        zeros = [jnp.zeros(value.shape, dtype_called(value.dtype)) for value in late]
        carry: Any = ([values[v] for v in carried], zeros, [values[v] for v in caches])
        carry = self._rounds(loop, ops, body, carry)
        values |= dict(zip(carried.values(), carry[0], strict=True))
        values |= dict(zip(late, carry[1], strict=True))
        values |= dict(zip(caches, carry[2], strict=True))

    def _rounds(self, loop: Loop, ops: Sequence[Op], body: Any, carry: Any) -> Any:
        """Run the rounds of a loop as a scan, for which arrays of their own are stacked.

        XLA makes again what many layers had made before it needs the first of them, unless they
        are a scan. Where nothing is made again, Python repeats layers with arrays of their own.
        """
        count, uses = loop.rounds // loop.uses, loop.uses
        weighty = [op for op in ops if op.weight is not None]
        is_apart = not any(op.weight and op.weight.is_stacked for op in weighty)
        if weighty and is_apart and not self.is_redone:
            for at in range(count):
                weights = [self._weights(op, at) for op in ops]
                for use in range(uses):
                    carry = body(carry, weights, at * uses + use)
            return carry
        stacks = [self._stack(op, count) for op in ops]

        def layer(carry: Any, given: Any) -> Any:
            number, weights = given
            if uses == 1:
                return body(carry, weights, number), None
            each = lambda carry, use: (body(carry, weights, number * uses + use), None)  # noqa: E731
            return jax.lax.scan(each, carry, jnp.arange(uses))

        return jax.lax.scan(layer, carry, (jnp.arange(count), stacks))[0]

    def _stack(self, op: Op, count: int) -> list[Any]:
        """Return the arrays of all rounds, those of a round side by side."""
        weight = op.weight
        if weight is None:
            return []
        if not weight.is_stacked:
            rounds = [self._weights(op, at) for at in range(count)]
            return [jnp.stack(each) for each in zip(*rounds, strict=True)]
        return [self._turned(weight, each.path, count) for each in weight.arrays]

    def _turned(self, weight: Weight, path: str, count: int) -> Any:
        array = self.params[path]
        stacked = [at for at in range(array.ndim) if at not in weight.kept]
        return jnp.moveaxis(array, stacked, range(len(stacked))).reshape(count, *weight.shape)

    def _weights(self, op: Op, at: int | None) -> list[Any]:
        """Return the arrays that a round uses."""
        weight = op.weight
        if weight is None:
            return []
        if weight.is_stacked:
            return [self._turned(weight, each.path, 1)[0] for each in weight.arrays]
        paths = [each.path for each in weight.arrays]
        if at is not None:
            numbers = [numbers_in(APART.sub("", path))[0] for path in paths]
            own = [*dict.fromkeys(numbers)][at]
            paths = [path for path, number in zip(paths, numbers, strict=True) if number == own]
        return [self.params[path] for path in paths]

    def _kept(self, body: Any, ops: Sequence[Op]) -> Any:
        """Return a round that keeps for the backward pass what `remat` says."""
        if not self.is_redone:
            return body
        names = [op.result.name for op in ops if self.flow.keeps(op.result)]
        policy = jax.checkpoint_policies.save_only_these_names(*names)
        return jax.checkpoint(body, policy=policy)

    def _line(self, op: Op, values: Values, weights: Sequence[Any]) -> Any:
        """Return a result where it lies, marked where the backward pass has it as it is."""
        value = op.result
        x, is_kept = self.lines.made(op, values, weights), self.flow.keeps(value)
        if is_kept or value.base is None:
            x = self.in_parts(op, x) if op.kind == "einsum" else x
            x = self.place(value, x)
        x = checkpoint_name(x, value.name) if is_kept else x
        if value.base is None:
            return x
        x = self.place(value, self.lines.added(op, values[value.base], x))
        is_product = self.flow.step.remat == ("dots",)
        return checkpoint_name(x, value.name) if is_kept and not is_product else x

    def _norm(self, value: Value, x: Any) -> Any:
        """Return what products read of a value that others are added to, as of a norm."""
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + _LEAST)
        return self.place(value, (wide * scale).astype(x.dtype))

    def _body(self, ops: Sequence[Op], values: Values, weights: Any, number: Any) -> None:
        """Run lines once, in order."""
        step = self.flow.step
        norms: Values = {}
        for op, given in zip(ops, weights, strict=True):
            own = [x.astype(dtype_called(step.dtype)) for x in given]
            caches = {r.source: values[r.source][number] for r in op.reads
                      if isinstance(r.source, Value) and r.source.rounds > 1}  # fmt: skip
            for source in self.lines.normed(op):
                values_of = partial(self._norm, source, values[source])
                norms[source] = norms[source] if source in norms else told(op.line.span, values_of)
                caches[source] = norms[source]
            x = told(op.line.span, partial(self._line, op, {**values, **caches}, own))
            values[op.result] = x
            cache = self.caches.get(op.result)
            if cache is not None:
                values[cache] = _written(values[cache], x, cache, number)


def _caches(flow: Flow, lines: Lines) -> Iterator[tuple[Value, Value]]:
    """Yield what goes into a cache, and the cache: results that nothing reads, by their order."""
    caches = [each for each in flow.inputs if flow.is_one_of((), each) or not flow.is_index(each)]
    for op in flow.ops:
        value = op.result
        if value in lines.read or value in lines.bases:
            continue
        fits = (each for each in caches if math.prod(each.shape) % math.prod(value.shape) == 0
                and each.shape[0] == value.shape[0] and op.loop is not None)  # fmt: skip
        cache = next(fits, None)
        if cache is not None:
            caches.remove(cache)
            yield value, cache


def _written(held: Any, new: Any, cache: Value, number: Any) -> Any:
    """Return a cache with a token in it, in place."""
    length = math.prod(cache.shape) // new.size
    at = next((d for d, size in enumerate(cache.shape) if d and size == length), None)
    if at is None:
        return held
    new = new.reshape([1 if d == at else size for d, size in enumerate(cache.shape)])
    if cache.rounds == 1:
        return jax.lax.dynamic_update_slice(held, new, (0,) * held.ndim)
    return jax.lax.dynamic_update_slice(held, new[None], (number, *(0,) * new.ndim))


def _axes_in(entry: Any) -> list[str]:
    """Return the mesh axes of one dimension."""
    return [entry] if isinstance(entry, str) else [*(entry or ())]


def _root(value: Value) -> Value:
    while value.base is not None:
        value = value.base
    return value


def _root_in(value: Value, made: Mapping[Value, Op]) -> Value:
    while value.base is not None and value in made:
        value = value.base
    return value
