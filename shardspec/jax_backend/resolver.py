"""The spec in JAX code: a mesh, shardings of trees, and constraints on activations.

One `Resolver` is one spec on one machine. It has no global state and needs no context: what it
gives back carries its mesh, so it works the same in eager code, under `jax.jit`, inside
`jax.set_mesh` and inside `jax.shard_map`.

Live arrays from the layout of one resolver to that of another, and what that moves.

A device keeps the part of its new shard that it held before; the rest comes from another one. Which
devices are the same the meshes say, so the figures hold for the devices of this process's run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, Self, TypeVar, cast

import jax

from shardspec import pipeline
from shardspec.analysis import layout_diff
from shardspec.analysis.cost import cost_of
from shardspec.analysis.layout_diff import Restore, TargetDiff, layout_of, reasons_of, restore
from shardspec.diagnostics import Diagnostic, ShardspecError, codes, point
from shardspec.diagnostics.codes import LevelTable, level_table
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Spec, Target
from shardspec.jax_backend import code_places, constrain, live, train_state, trees
from shardspec.jax_backend.batch import Batch
from shardspec.jax_backend.on_target import tracing_for
from shardspec.jax_backend.shardings import Walk, plan_faults, plan_of, raise_errors, tree_placer
from shardspec.jax_backend.state import Accumulation, StatePlacer
from shardspec.jax_backend.target_devices import Devices, match_target, mesh_for, need_devices
from shardspec.jax_backend.trees import SCALARS, Place, is_initializing, shape_of, unboxed
from shardspec.programs.numbers import Numbers
from shardspec.programs.proof import Proof
from shardspec.report.cost import Cost
from shardspec.report.drawing import Drawing, drawing, drawing_of
from shardspec.report.page import target_pieces
from shardspec.report.plan import Plan
from shardspec.report.table import rows
from shardspec.resolve.resolver import array_resolver
from shardspec.versions import renamed

#: Findings about a spec that no array has to be there for.
_OF_MESHES = (codes.UNKNOWN_MESH_AXIS, codes.SUMS_NOT_EXPLICIT)

#: An array, or a tree of them.
Tree = TypeVar("Tree")
Function = TypeVar("Function", bound=Callable[..., Any])


class Loaded(Protocol):
    """A loaded spec, as `shardspec.load` returns it."""

    @property
    def ir(self) -> Spec:
        """Return the lowered form."""


class Resolver:
    """A spec on the devices of this machine.

    Attributes:
      target: the target in use.
      mesh: its mesh over real devices, in the order that the spec's `policy` asks for, axis types
        set; a `jax.sharding.AbstractMesh` under `devices="abstract"`.
    """

    def __init__(
        self,
        spec: str | os.PathLike[str] | Spec | Loaded,
        target: str = "auto",
        devices: Devices = None,
        *,
        phase: str | None = None,
        levels: Mapping[str, str] | None = None,
        agree_within_s: float | None = 300.0,
    ) -> None:
        """Load the spec, choose the target, and build its mesh.

        Where devices of several processes are in it, every one of them has to make the same
        `Resolver`, and they compare what they read.

        Args:
          spec: a file, a loaded spec, or its lowered form.
          target: a name, or `auto` for the target whose hardware `devices` are.
          devices: None for `jax.devices()`, which are those of the target where `--step` runs this
            code; `"abstract"` for none: the mesh is an `AbstractMesh` of the target, which need not
            be here. Shardings, constraints and plans over it serve to trace and to lower; what
            needs devices says that there are none.
          phase: the phase of the spec that is to run here, such as `decode`; None for the spec
            itself.
          levels: how loud findings are here, as for `shardspec.load`: beats project and spec.
          agree_within_s: how long to wait for the other processes, in seconds; None does not
            compare, and a process may be alone in making one.

        Raises:
          ShardspecError: the spec is wrong, no target fits the devices, or another process
            plans by another spec.
        """
        trees.devices_given(devices)
        traced = tracing_for() if devices is None else None
        if isinstance(devices, str) or traced is not None:
            agree_within_s = None
        with live.failure_told(None if isinstance(devices, str) else devices, agree_within_s):
            lowered = _lowered(spec, level_table(levels))
            if traced is not None:
                lowered, target = traced.asked_for(lowered, target, phase)
            lowered = _of_phase(lowered, phase)
            self.target: Target = _chosen(lowered, target, devices)
            self.mesh: Any = mesh_for(self.target, devices, lowered.policy.order)
            found = pipeline.findings(lowered, [ShardingPlan(lowered, self.target, ())]).shown
            raise_errors(d for d in found if d.code in _OF_MESHES)
        if agree_within_s is not None:
            live.agree(lowered, self.target, self.mesh, agree_within_s)
        #: Whether code was given `constrained`, through which entries with `at:` reach it.
        self._has_places = False
        self._arrays = array_resolver(lowered, self.target)
        self._placer = tree_placer(self._arrays, self.mesh)
        self._activations = constrain.ActivationResolver(self._arrays)
        self._constrainer = constrain.Constrainer(self.mesh, self._activations, self._placer)
        self._state = StatePlacer(self._arrays, self._placer)
        is_bare = isinstance(spec, Spec)
        self._lock = None if is_bare else live.fresh_lock(lowered, stacklevel=2)
        self._hash = hash((self.target, self.mesh))

    def __eq__(self, other: object) -> bool:
        """Say whether both say the same, on the same devices: spec, levels, target and lock.

        So a Resolver made anew, from a file or from text, is the same static argument to `jax.jit`.
        """
        if self is other:
            return True
        if not isinstance(other, Resolver):
            return NotImplemented
        return (
            (self._hash, self.target, self.mesh) == (other._hash, other.target, other.mesh)
            and self._lock == other._lock
            and _content(self._arrays.spec) == _content(other._arrays.spec)
        )

    def __hash__(self) -> int:
        """Return the same number for equal resolvers."""
        return self._hash

    def __enter__(self) -> Self:
        """Let `shardspec.constrain` constrain by this one."""
        constrain.enter(self)
        return self

    def __exit__(self, *error: object) -> None:
        """Let it go back to the one around this, if there is one."""
        constrain.leave()

    def __repr__(self) -> str:
        """Return `Resolver(spec.yaml, target laptop: data=4 model=2)`."""
        spec = self._arrays.spec
        phase = f"phase {spec.phase}, " if spec.phase else ""
        return f"Resolver({spec.source.name}, {phase}target {self.target.name}: {self.target.mesh})"

    def _repr_html_(self) -> str:
        return target_pieces(self._arrays.spec, self.target)

    def __deepcopy__(self, memo: dict[int, Any]) -> Resolver:
        """Return the resolver itself: nothing about it changes, and devices have no copies."""
        return self

    def __reduce__(self) -> Any:
        """Refuse to be pickled: another process has other devices.

        Raises:
          TypeError: always.
        """
        raise TypeError(
            "a Resolver belongs to one process: pickle the spec, and make a Resolver in each"
        )

    def shardings(self, tree: Any, *, boxed: bool = True) -> Any:
        """Return a `NamedSharding` for every array of a pytree, in a tree of the same structure.

        It serves as `in_shardings` and `out_shardings` of `jax.jit`, and for `jax.device_put`.
        Equal specs share one object. Specs are of full rank: trailing Nones stay, as in
        `flax.linen.logical_to_mesh_sharding` and in the types of arrays on an explicit mesh. On
        an automatic mesh, a step without `out_shardings` may return `P('d')` for `P('d', None)`:
        JAX compiles nothing again, and looks the call up a second time. A leaf that is no array
        (a function, a string) gets None. Where the tree holds optimizer state beside
        its parameters (Flax's `TrainState`), that follows from them, see `state_shardings`.

        Args:
          tree: arrays, `ShapeDtypeStruct`s, or whatever has a shape and a dtype; boxed by
            Flax or not.
          boxed: whether Flax's boxes stay around the shardings. Without them the tree fits
            the unboxed arrays, and as a prefix the boxed ones too.

        Raises:
          ShardspecError: an array has no names, too few, or sizes that do not divide.
        """
        walk = Walk(self._placer, tree, lambda _, answer: self._placer.placed(answer), boxed=boxed)
        if not walk.is_params or train_state.named_params(tree) is not None:
            held = self._held(tree)
            if held is not None:
                return self._state.shardings(tree, *held, boxed=boxed)
        return walk.placed(tree)

    def state_shardings(self, state: Any, params: Any, *, boxed: bool = True) -> Any:
        """Return a `NamedSharding` for every array of an optimizer state, None for other leaves.

        An array that has dimensions of its parameter lies as the parameter does in those; `state:`
        of the spec may split it further. Everything else is replicated.

        Args:
          state: `jax.eval_shape(tx.init, params)` or a live one, of any optimizer.
          params: the parameters it was made for, boxed or not, or their `plan`.
          boxed: whether Flax's boxes stay around the shardings.

        Raises:
          ShardspecError: a parameter is at fault, or an array's shape leaves open which dimensions
            of its parameter it has, and nothing settles it.
        """
        trees.refuse_no_arrays(state, "state")
        params = train_state.params_alone(params)
        return self._state.shardings(state, params, _params_at(state), boxed=boxed)

    def state_plan(self, state: Any, params: Any) -> Plan:
        """Return the answer for every array of an optimizer state, with its reason.

        `print(plan)` has a line for each, `plan.explain(path)` says more, and `plan.diagnostics`
        is what is wrong. The arguments are those of `state_shardings`.
        """
        trees.refuse_no_arrays(state, "state")
        return self._state.plan(state, train_state.params_alone(params), _params_at(state))

    def grad_shardings(self, params: Any) -> Any:
        """Return a `NamedSharding` for the gradient of every parameter.

        It is the parameter's, and under `state: {optimizer: zero2}` that of its optimizer state:
        under `jax.lax.with_sharding_constraint` the sum over the batch is then a reduce-scatter.
        """
        return self._state.gradients(train_state.params_alone(params))

    def accumulation_shardings(self, params: Any) -> Accumulation:
        """Return shardings for gradients that are added up over microbatches, unsummed.

        `.params` is for the parameters as the loss takes them, `.sums` for what their gradients are
        added to; both by `jax.sharding.reshard`. Then devices of the mesh axes that see other data
        (`over:` of `state:`, or those of `batch`) sum up once a step, and not once a microbatch:
        `reshard(total, resolver.grad_shardings(params))` does, and scatters under `zero2`. A
        parameter that is split by such an axis itself is summed up over it in every microbatch.

        Raises:
          ShardspecError: the mesh is not explicit, or no mesh axis is known to see other data.
        """
        return self._state.accumulation(train_state.params_alone(params))

    def partition_spec(self, names: constrain.Names) -> jax.sharding.PartitionSpec:
        """Return the `PartitionSpec` for logical axes, e.g. `"batch length embed"`.

        Sizes count where the spec's `axes` state them.
        """
        return self.sharding(names).spec

    def size(self, axis: str) -> int:
        """Return the size that the spec states of a logical axis.

        Under `policy: {indivisible: pad}` it is the padded size, which the model is built with.
        Code that takes its sizes from here can be run with small ones, by `same_numbers` and
        `shardspec verify --numbers`.

        Raises:
          ShardspecError: the spec has no such axis, or states no size of it.
        """
        sizes = {each.name: each.size for each in self._arrays.spec.logical_axes}
        size = sizes.get(axis)
        if size is None:
            known = ", ".join(f"`{name}`" for name, each in sizes.items() if each is not None)
            help = (
                f"the spec states sizes of {known}" if known else "state it: `axes: {embed: 4096}`"
            )
            message = f"the spec states no size of `{axis}`"
            raise ShardspecError([Diagnostic(codes.UNKNOWN_LOGICAL_AXIS, message, help=help)])
        return size

    def padded(self, tree: Tree) -> Tree:
        """Return arrays of the true shapes, as of a checkpoint, with the padding of the spec.

        For `policy: {indivisible: pad}`: zeros behind the last element of each padded axis. Arrays
        that are padded stay as they are.

        Args:
          tree: parameters, or a train state; arrays or `ShapeDtypeStruct`s.
        """
        return cast(Tree, live.resized(tree, self.plan(tree), is_padded=False))

    def unpadded(self, tree: Tree) -> Tree:
        """Return padded arrays in their true shapes, to save them in.

        The true size of an axis is the one that `axes` of the spec states.
        """
        return cast(Tree, live.resized(tree, self.plan(tree), is_padded=True))

    def spec(self, names: constrain.Names) -> jax.sharding.PartitionSpec:
        """Return what `partition_spec` does, by the word of the version before."""
        renamed("resolver.spec(names)", "resolver.partition_spec(names)")
        return self.partition_spec(names)

    def sharding(
        self, names: constrain.Names, shape: Sequence[int] | None = None
    ) -> jax.sharding.NamedSharding:
        """Return the sharding for logical axes.

        Args:
          shape: None where it is not known; then the sizes that the spec's `axes` state count.
        """
        return self._placer.named(self._activations.dims(names, shape))

    def constrain(
        self,
        x: Tree,
        names: Any = None,
        *,
        activation: str | None = None,
        name: str | None = None,
        mapped: Any = None,
    ) -> Tree:
        """Return `x` with a sharding constraint by its logical axes or its activation's name.

        Args:
          x: an array; or a tree of them, and then `names` is a tree of strings that may end
            earlier, and None in it leaves what is below as it is.
          names: one per dimension, `_` or None for a dimension without a name.
          activation: an entry of the spec's `activations`.
          name: what an error calls the array; the activation's name if that is given.
          mapped: inside of `jax.vmap`, where `x` is one example: names of the dimensions that it
            maps, the outermost first, as in `constrain(x, "length embed", mapped="batch")`.

        While Flax Linen or Haiku makes parameters, sizes that do not divide leave `x` as it is: a
        model is often made from one example, and nothing that it computes then is used.

        Raises:
          ShardspecError: unknown names, too few or too many, or sizes that do not divide.
        """
        try:
            if mapped is not None:
                found = constrain.constrained_mapped(self._constrainer, x, names, mapped, name)
            else:
                found = self._constrainer.constrain(x, names, activation, name)
        except ShardspecError as error:
            is_uneven = all(each.code is codes.INDIVISIBLE for each in error.diagnostics)
            if is_uneven and is_initializing():
                return x
            raise
        return cast(Tree, found)

    def constrained(self, function: Function) -> Function:
        """Return a function with the constraints of entries of `activations` that have an `at`.

        For code that cannot be changed: the entries say where in it. Give it what is derived: the
        loss, and not the step around its gradient. What it closes over stays as it is; its
        arguments and results are trees of arrays, and it has no side effects on them.

        Raises:
          ShardspecError: when the function is called and a place has no value, or values of
            several ranks (SHD236).
        """
        self._has_places = True
        placed = [each for each in self._arrays.spec.activations if each.at is not None]

        def put(name: str, value: Any) -> Any:
            return self.constrain(value, activation=name)

        return code_places.constrained(function, placed, put)

    def put(self, tree: Tree, *, like: Any = None, memory_kind: str | None = None) -> Tree:
        """Return `tree` with its arrays on the devices where the plan wants them.

        Python numbers stay what they are: a module may branch on them. Each array comes into the
        memory that the plan says, or that of `memory_kind`; partial sums are summed up, or made,
        as it says.

        Args:
          like: what has the names of a tree without boxes: its boxed form, or the plan of that.
          memory_kind: of all arrays; None for what the spec's `memory:` says of each.

        Raises:
          ShardspecError: as `shardings` does, or for an array that has no values to move: it is
            abstract, deleted, or traced, as everything is inside of `jax.jit`.
        """
        need_devices(self.mesh, "put()")
        trees.refuse_no_arrays(tree, "tree")
        trees.refuse_unmovable(tree, "put", sums=True)
        shardings = self.shardings(tree) if like is None else self._shardings_like(tree, like)
        treedef: Any
        leaves, treedef = jax.tree_util.tree_flatten(tree)
        arrays = [at for at, leaf in enumerate(leaves) if shape_of(leaf) is not None]
        wanted = dict(zip(arrays, jax.tree_util.tree_leaves(shardings), strict=True))
        places = [at for at in arrays if type(leaves[at]) not in SCALARS]
        moved = live.moved_to(
            [leaves[at] for at in places],
            [live.in_memory(wanted[at], memory_kind) for at in places],
        )
        for at, array in zip(places, moved, strict=True):
            leaves[at] = array
        return cast(Tree, treedef.unflatten(leaves))

    def reshard(
        self, tree: Tree, *, to: Resolver, memory_kind: str | None = None
    ) -> tuple[Tree, Moved]:
        """Return live arrays where another resolver wants them, and what that moved.

        From one phase to another, as from training to decoding, or to another machine's mesh.

        Args:
          tree: arrays that lie as this resolver's plan says: what `put` or a step gave back.
          to: where they go: of the same spec or of another one that names the arrays.
          memory_kind: as for `put`.

        Raises:
          ShardspecError: an array lies otherwise than planned, or `to` is at fault with it.
        """
        if not isinstance(to, Resolver):
            raise TypeError(f"`to` is a `Resolver`, not {trees.kind_of(to)}")
        kinds = () if memory_kind is None else (memory_kind,)
        self.verify_placement(tree, strict=True, memory_kinds=kinds)
        moved = moved_between(self.plan(tree), self.mesh, to.plan(tree), to.mesh)
        return to.put(tree, memory_kind=memory_kind), moved

    def batch(self, names: Any) -> Batch:
        """Return the layout of a batch: its sharding, this process's rows, and how to put it.

        Args:
          names: logical axes, e.g. `"batch length"`, whose first is that of the batch; or a tree
            of strings for a tree of arrays.
        """
        return Batch(names, self._activations, self._placer)

    def abstract(
        self, tree: Any, params: Any = None, *, like: Any = None, boxed: bool = True
    ) -> Any:
        """Return `tree` with a `ShapeDtypeStruct` that has a sharding in place of every array.

        It is what Orbax's `StandardRestore` takes, and what `jax.jit(step).lower` does.

        Args:
          params: of which `tree` is optimizer state; None where it is parameters, or both.
          like: what has the names of a tree without boxes: its boxed form, or the plan of that.
          boxed: whether Flax's boxes stay around the structs.
        """
        if like is not None:
            if params is not None:
                raise TypeError("`params` has the names of optimizer state; `like` is for a tree")
            return live.abstract(tree, self._shardings_like(tree, like))
        of_state = params is not None
        shardings = (
            self.state_shardings(tree, params, boxed=boxed)
            if of_state
            else self.shardings(tree, boxed=boxed)
        )
        return live.abstract(tree if boxed else unboxed(tree), shardings)

    def restore(
        self,
        path: str | os.PathLike[str],
        tree: Any,
        params: Any = None,
        *,
        like: Any = None,
        boxed: bool = True,
    ) -> Any:
        """Return the arrays of an Orbax checkpoint, each shard read to where the plan wants it.

        The checkpoint may have been saved on any other mesh. Axis types are those of this one.

        Args:
          path: what `StandardCheckpointer.save` wrote, or one item of a manager's step.
          tree: what was saved: live arrays or `ShapeDtypeStruct`s, in the same structure.
          params: of which `tree` is optimizer state; None where it is parameters, or both.
          like: what has the names of a tree without boxes: its boxed form, or the plan of that.
          boxed: False where `tree` has Flax's boxes, and what was saved has not.

        Raises:
          ShardspecError: a parameter is at fault, or the checkpoint does not hold the tree.
          ModuleNotFoundError: Orbax is not installed.
        """
        need_devices(self.mesh, "restore()")
        wanted = self.abstract(tree, params, like=like, boxed=boxed)
        raise_errors(self._checkpoint_findings(path, wanted))
        return live.restored(path, wanted)

    def checkpoint_findings(
        self,
        path: str | os.PathLike[str],
        tree: Any,
        params: Any = None,
        *,
        like: Any = None,
        boxed: bool = True,
    ) -> tuple[Diagnostic, ...]:
        """Return what an Orbax checkpoint and a tree do not have in common, reading no array.

        The arguments are those of `restore`.
        """
        wanted = self.abstract(tree, params, like=like, boxed=boxed)
        return self._checkpoint_findings(path, wanted)

    def _checkpoint_findings(
        self, path: str | os.PathLike[str], wanted: Any
    ) -> tuple[Diagnostic, ...]:
        found = live.difference(path, wanted)
        return () if found is None else pipeline.report(self._arrays.spec, [found]).shown

    def plan(self, tree: Any) -> Plan:
        """Return the plan for the arrays of a pytree, with the reasons for every dimension.

        `print(plan)` is the table, `plan[path]` one array, `plan.explain(path)` its reasons, and
        `plan.visualize(path)` draws it. `plan.diagnostics` is what is wrong with it; `findings`
        says also what a lock says otherwise.
        """
        held = self._held(tree)
        if held is None:
            return plan_of(self._arrays, tree)
        return replace(self._state.plan(tree, *held), is_checked=False)

    def findings(self, tree: Any) -> tuple[Diagnostic, ...]:
        """Return everything the checks have to say about the arrays of a pytree.

        That includes what a lock beside the spec says otherwise.
        """
        held = self._held(tree)
        if held is not None:
            return (*self.findings(held.params), *self._state.plan(tree, *held).diagnostics)
        plan = plan_of(self._arrays, tree)
        return (*plan.diagnostics, *self._lock_findings(plan))

    def verify_placement(
        self,
        tree: Any,
        state: Any = None,
        *,
        like: Any = None,
        strict: bool = False,
        memory_kinds: Collection[str] = (),
    ) -> tuple[Diagnostic, ...]:
        """Return where live arrays lie otherwise than planned, and what a lock says otherwise.

        Nothing is moved, and no array is read. NumPy's arrays lie on no device, which is a finding;
        Python's numbers, and scalars that nothing has placed, are fine. Where the plan itself is at
        fault, as for arrays that nothing names, its errors come first.

        Args:
          tree: parameters, or parameters beside their optimizer state (Flax's `TrainState`).
          state: the optimizer state of these parameters. Where its types tell which is which, the
            two may stand in the order of `state_shardings`, too.
          like: what has the names of a tree without boxes: its boxed form, or the plan of that.
          strict: whether to raise where a finding is an error.
          memory_kinds: memories in which arrays may lie beside the planned one, such as
            `("pinned_host",)` for state that is offloaded at times.

        Raises:
          ShardspecError: under `strict`; or a leaf is abstract or traced, and lies nowhere.
        """
        need_devices(self.mesh, "verify_placement()")
        trees.refuse_no_arrays(tree, "tree")
        if state is not None:
            trees.refuse_no_arrays(state, "state")
            if train_state.is_state_of(tree, state):
                tree, state = state, tree
        if like is None:
            held = self._held(tree)
            plan = self.plan(tree)
            of_params = plan if held is None else plan_of(self._arrays, held.params)
        else:
            plan, of_params = self._plans_like(tree, like)
        allowed = trees.kinds_given(memory_kinds)
        lying = live.LivePlan(plan, self.mesh, allowed)
        found = plan_faults(self._arrays, of_params) + lying.findings(tree)
        found += self._lock_findings(of_params)
        if state is not None:
            planned = self.state_plan(state, tree if like is None else of_params)
            found += live.LivePlan(planned, self.mesh, allowed).findings(state)
        if strict:
            raise_errors(found)
        return found

    def check(
        self,
        tree: Any,
        state: Any = None,
        *,
        like: Any = None,
        strict: bool = False,
        memory_kinds: Collection[str] = (),
    ) -> tuple[Diagnostic, ...]:
        """Return what `verify_placement` does, by the word of the version before."""
        renamed("resolver.check(...)", "resolver.verify_placement(...)")
        return self.verify_placement(
            tree, state, like=like, strict=strict, memory_kinds=memory_kinds
        )

    def _plans_like(self, tree: Any, like: Any) -> tuple[Plan, Plan]:
        """Return the plan of a tree, and that of its parameters, by the names of another."""
        if not isinstance(like, ShardingPlan):
            trees.refuse_no_arrays(like, "like")
        named = like if isinstance(like, ShardingPlan) else self.plan(like)
        return train_state.plan_like(tree, named, train_state.contents_of(tree).held, self._state)

    def _shardings_like(self, tree: Any, like: Any) -> list[Any]:
        """Return the sharding of each array of a tree by the names of another.

        Raises:
          ShardspecError: a parameter is at fault, or has no counterpart.
        """
        plan, of_params = self._plans_like(tree, like)
        raise_errors(plan_faults(self._arrays, of_params))
        return list(map(self._placer.placed, plan.arrays))

    def _held(self, tree: Any) -> train_state.Held | None:
        trees.refuse_no_arrays(tree, "tree")
        found = train_state.contents_of(tree)
        train_state.refuse_lone_state(found.states, self._arrays.spec.state)
        return found.held

    def _lock_findings(self, plan: ShardingPlan) -> tuple[Diagnostic, ...]:
        return () if self._lock is None else live.lock_findings(self._lock, plan)

    def cost(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Cost:
        """Return what one call of a function costs on the target: memory, time, and what is sent.

        It runs the function's Python once, on shapes; nothing is compiled, and no device is needed.
        `print` shows it as `shardspec cost` does, and `cost.by("rule")` is what each rule sends.

        Args:
          function: jitted or not: a train step, a loss, a serve step.
          args: trees of arrays or of `ShapeDtypeStruct`s. Leaves without a sharding are placed by
            the spec: parameters, optimizer state, and a batch along its first dimension.

        Raises:
          ShardspecError: the spec does not lay out an argument, or this jaxlib lacks a pass.
          TypeError: `args` and `kwargs` do not fit the parameters of the function.
        """
        from shardspec.jax_backend.step.reading import step_of

        step = step_of(self, function, *args, **kwargs)
        (plan,) = pipeline.compile_plans(self._arrays.spec, None, [self.target])
        return Cost.of(cost_of(plan, step))

    def verify(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Proof:
        """Return what the compiler of the target's chips makes of a step, beside the prediction.

        The chips need not be here: libtpu compiles for any TPU slice, XLA's CUDA plugin for GPUs.
        It takes 10 to 80 s, in a process of its own. `print` shows it as `shardspec verify` does,
        and `proof.faults` says why the step is not proved, if it is not.

        Args:
          function: as for `cost`, and so are the other arguments.

        Raises:
          ShardspecError: as `cost`, and where the compiler gives no program.
        """
        from shardspec.jax_backend.step.trace import Call
        from shardspec.jax_backend.xla.verifying import verify_step

        return verify_step(self, Call(function, args, kwargs))

    def same_numbers(self, function: Callable[..., Any], *args: Any, seeds: int = 2) -> Numbers:
        """Return whether a step computes the same on a small mesh as on one device.

        For tests: `assert resolver.same_numbers(step, params, batch).verdict == "same"`. The step
        runs twice in a row in float32 on a mesh of 2 or 4 devices along each axis that it uses, and
        on one device. `print` of the answer says what differs, over which axis and from which line.

        Args:
          function: as for `cost`; or, without `args`, `def make(resolver): return step, args`,
            which a step needs that holds the mesh of its resolver, as under `jax.shard_map`.
          args: arrays, or `ShapeDtypeStruct`s for which random values will do.
          seeds: how many sets of random values are tried.

        Raises:
          ShardspecError: as `cost`, and where this process has fewer than 8 devices.
        """
        from shardspec.jax_backend.numbers.comparing import Asked
        from shardspec.jax_backend.numbers.functions import StepFunction, same_function

        def on(spec: Spec, target: str, devices: Any) -> Resolver:
            return Resolver(spec, target, devices, agree_within_s=None)

        step = StepFunction(self, function, args or None, on)
        return same_function(step, Asked(seeds=seeds))

    def visualize(self, what: Any) -> Drawing:
        """Return who holds which part of an array: text in a terminal, tables in a notebook.

        Args:
          what: the path of an array that the spec lists or the name of an activation; or a tree of
            arrays or `ShapeDtypeStruct`s, whose layers are drawn once.
        """
        if isinstance(what, str):
            (own,) = pipeline.compile_plans(self._arrays.spec, None, [self.target])
            return drawing_of(what, own)
        plan = self.plan(what)
        return drawing([row.first for row in rows(plan)], plan)


def _lowered(spec: str | os.PathLike[str] | Spec | Loaded, asked: LevelTable) -> Spec:
    if isinstance(spec, Spec):
        return pipeline.asked_also(spec, asked)
    if isinstance(spec, str) and "\n" in spec:
        message = "a `Resolver` takes the path of a spec, and this is its text"
        help = "`shardspec.Resolver(shardspec.loads(text))`"
        raise ShardspecError((Diagnostic(codes.UNREADABLE, message, help=help),))
    if isinstance(spec, str | os.PathLike):
        loaded, faults = pipeline.load_path(os.fspath(spec), asked=asked)
        if loaded is None:
            raise ShardspecError(faults)
        raise_errors(pipeline.report(loaded, faults).shown)
        return loaded
    if isinstance(spec, ShardingPlan) or not isinstance(getattr(spec, "ir", None), Spec):
        kind = type(spec).__name__
        raise TypeError(f"a spec is a path, or what `shardspec.load` returns; this is `{kind}`")
    return pipeline.asked_also(spec.ir, asked)


def _of_phase(spec: Spec, name: str | None) -> Spec:
    if not (name is None or isinstance(name, str)):
        raise TypeError(f"a phase is named by a string, not by {trees.kind_of(name)}")
    found = pipeline.find_phase(spec, name)
    if isinstance(found, Diagnostic):
        raise ShardspecError([found])
    return found


def _params_at(state: Any) -> Place | None:
    """Return where a state holds the parameters themselves, None where it does not."""
    held = train_state.named_params(state)
    return None if held is None else held.place


#: What a spec does not say itself: where it lies, and what its other phases say.
_NO_CONTENT = frozenset({"source", "sources", "doc", "phases"})


def _content(spec: Spec) -> tuple[Any, ...]:
    """Return what a spec says, wherever its text lies."""
    told = (each.name for each in fields(Spec) if each.compare)
    return tuple(getattr(spec, name) for name in told if name not in _NO_CONTENT)


def _chosen(spec: Spec, name: str, devices: Devices) -> Target:
    given: Any = name
    if not isinstance(given, str):
        help = ": devices go by name, `devices=`" if isinstance(given, Sequence) else ""
        raise TypeError(f"a target is named by a string, not by {trees.kind_of(given)}{help}")
    found: Target | Diagnostic
    if name == "auto" and isinstance(devices, str) and len(spec.targets) > 1:
        names = ", ".join(target.name for target in spec.targets)
        message = "without devices, a resolver needs the name of its target"
        help = f"`target=`, one of {names}"
        found = point(codes.UNKNOWN_TARGET, message, spec.targets[0].span, help=help)
    elif name == "auto" and spec.targets and not isinstance(devices, str):
        found = match_target(spec.targets, jax.devices() if devices is None else devices)
    else:
        found = pipeline.find_target(spec, None if name == "auto" else name)
    return pipeline.sound_target(found)


@dataclass(frozen=True, slots=True)
class Moved:
    """What `Resolver.reshard` moved; `print` shows it as `shardspec diff --between` does.

    Attributes:
      diff: how each array lay, and how it lies now.
      restored: the arrays of which some device needed what it did not hold, and the bytes.
    """

    diff: TargetDiff = field(repr=False)
    restored: Restore = field(repr=False)

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the paths of the arrays of which something moved."""
        return self.restored.arrays

    @property
    def total_bytes(self) -> int:
        """Return the bytes that came from another device, of all devices together."""
        return self.restored.total_bytes

    @property
    def most_bytes(self) -> int:
        """Return the bytes that came to the device that received most."""
        return self.restored.most_bytes

    def __str__(self) -> str:
        """Return what moved, by the rules that say so; one line where nothing did."""
        from shardspec.lock.diff_forms import diff_lines, restore_text

        same = f"{restore_text(self.diff)}, of other devices" if self.paths else "nothing moved"
        return "\n".join(diff_lines((self.diff,), "reshard")) or same

    def __repr__(self) -> str:
        """Return `Moved(8 arrays, 1073741824 bytes)`."""
        return f"Moved({len(self.paths)} arrays, {self.total_bytes} bytes)"


def moved_between(before: ShardingPlan, here: Any, after: ShardingPlan, there: Any) -> Moved:
    """Return what moves from one plan to another of the same arrays.

    Args:
      here: the mesh of `before`, over devices; `there` is that of `after`.
    """
    old, new = (layout_of(plan.spec, [plan]) for plan in (before, after))
    (diff,) = layout_diff.diff_layouts(old, new, reasons_of([before]), reasons_of([after]))
    places = {device: at for at, device in enumerate(here.devices.flat)}
    held_by = tuple(places.get(device) for device in there.devices.flat)
    diff = replace(diff, held_by=held_by)
    return Moved(diff, restore(old.targets[0], new.targets[0], held_by))
