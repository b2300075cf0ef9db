"""What a search may choose: meshes, and settings beside them.

Each word (`rules=preset:a|preset:b`, `state`, `remat`, `microbatches`) makes specs of a spec, the
spec as it is first; several make all combinations.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple, cast

from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.diagnostic import excerpt_of
from shardspec.diagnostics.words import did_you_mean, grouped, listed
from shardspec.ir import spec as specs
from shardspec.ir.plan import stacked_names
from shardspec.language import loader
from shardspec.language.catalogue import find_hardware, machine_fault
from shardspec.language.grammar import expressions
from shardspec.language.grammar.step_lines import parse_schedule
from shardspec.language.grammar.syntax import SyntaxFault
from shardspec.resolve.resolver import padded, padding
from shardspec.search.roles import ROLES, RoleSet, merged, role_sets, with_rules
from shardspec.topology.assignment import tilings
from shardspec.topology.placement import Order, Placement, place

#: What may be chosen, and its values where none are named.
WORDS: dict[str, str] = {
    "roles": f"{'|'.join(ROLES)}: meshes with an axis for each, and the rules of their presets",
    "mesh": "the sizes of mesh axes, and where they lie",
    "order": "the order of chips: t5x or ring",
    "rules": "other rules: preset:NAME|preset:NAME",
    "rule": "where logical axes go, by name: none, or one mesh axis: mlp|late_mlp",
    "state": "same|zero1|zero2",
    "remat": "none|dots|full",
    "indivisible": "pad: sizes that mesh axes do not divide are padded",
    "batch": "sequences of a step: 256|512; rows are then ranked by tokens a second",
    "dtype": "of what is multiplied: bf16|f32",
    "axes": "the order of mesh axes: the last ones are neighbours",
    "microbatches": "1|2|4|8|16|32, those that divide the batch; up to 256 in a pipeline",
    "gather": "layer|microbatch|step: how long weights stay gathered",
    "reduce": "microbatch|step: when gradients are reduced",
    "schedule": "of a pipeline: 1f1b|interleaved(2)|zero-bubble",
    "stages": "the sizes of the mesh axes that split layers, and of those that split the batch",
    "offload": "state|activations|both: what lies in the memory of the host",
    "hardware": "the machines of all targets; --hardware names others",
}
#: The only values that some may have.
_KNOWN: Mapping[str, tuple[str, ...]] = {
    "state": ("same", "zero1", "zero2"),
    "offload": ("state", "activations", "both"),
    "indivisible": ("pad",),
    "gather": ("layer", "microbatch", "step"),
    "reduce": ("microbatch", "step"),
}
#: Variants of one spec, at most.
MOST_VARIANTS = 512
_MACHINES = "as in `tpu v5p 4x4x8`, `v5p-256`, `16 * h100`"
_COUNT = re.compile(r"[1-9][0-9]{0,5}")
#: The most microbatches that are tried, and in a pipeline, which they keep busy.
_MOST_PARTS, _MOST_IN_PIPELINE = 32, 256


class Refusal(NamedTuple):
    """Why something cannot be done, and the way out."""

    message: str
    help: str


#: Word -> the values that are named; empty where none are.
Over = Mapping[str, tuple[str, ...]]


def parse_over(text: str) -> Over | Refusal:
    """Return the words of `mesh,remat=full|dots`.

    >>> parse_over("mesh,remat=full|dots")
    {'mesh': (), 'remat': ('full', 'dots')}
    """
    found: dict[str, tuple[str, ...]] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        word, _, values = part.partition("=")
        if word not in WORDS:
            near = did_you_mean(word, WORDS)
            return Refusal(f"`{word}` cannot be chosen", near or f"words: {listed(WORDS)}")
        if values and word in ("mesh", "order", "axes", "stages", "hardware"):
            help = {"hardware": "--hardware names machines", "order": "it is t5x or ring"}
            kept = "--keep AXIS=SIZE keeps sizes"
            return Refusal(f"`{word}` takes no values", help.get(word, kept))
        found[word] = tuple(filter(None, (value.strip() for value in values.split("|"))))
    if not found:
        return Refusal("nothing is to be chosen", f"words: {listed(WORDS)}")
    return found


def variants(
    spec: specs.Spec, over: Over, today: specs.Mesh | None = None
) -> tuple[Variant, ...] | Refusal:
    """Return the specs that some words make of a spec, itself first.

    Args:
      today: the mesh beside which `roles` are others.
    """
    twice = next((word for word in ("roles", "rules") if word in over and "rule" in over), None)
    if twice is not None:
        return Refusal(f"`rule` and `{twice}` both choose rules", f"leave `{twice}` out")
    choices: list[Sequence[Variant]] = []
    if "roles" in over:
        sets = role_sets(spec, today or specs.Mesh(), over["roles"])
        if not isinstance(sets, dict):
            return Refusal(*sets)
        made_of = (Variant(each, (("roles", name),), own) for name, (each, own) in sets.items())
        choices.append((Variant(spec), *made_of))
    for word, make in _MAKERS.items():
        if word not in over:
            continue
        known = _KNOWN.get(word, over[word])
        unknown = next((value for value in over[word] if value not in known), None)
        if unknown is not None:
            return Refusal(f"`{word}={unknown}` is not known", f"one of {listed(known)}")
        made = make(spec, over[word])
        if isinstance(made, Refusal):
            return made
        own = Variant(spec)
        others = (Variant(each, ((word, value),)) for value, each in made.items() if each != spec)
        choices.append((own, *others))
    return _few(_combined(spec, choices))


def with_counts(found: Sequence[Variant], values: Sequence[str]) -> tuple[Variant, ...] | Refusal:
    """Return specs with numbers of microbatches that the code of their step is called with."""
    unread = _no_count(values)
    if unread is not None or not values:
        what = (
            f"`microbatches={unread}` is no number of them" if unread else "`microbatches` of what?"
        )
        return Refusal(
            what, "name them: `--over microbatches=1|4`; the step takes `microbatches=4`"
        )
    return _few(
        each if count is None else replace(each, changes=(*each.changes, ("microbatches", count)))
        for each in found
        for count in (None, *values)
    )


def _no_count(values: Sequence[str]) -> str | None:
    return next((each for each in values if not _COUNT.fullmatch(each)), None)


def _few(made: Iterable[Variant]) -> tuple[Variant, ...] | Refusal:
    """Return variants, or that they are too many to look at."""
    found = tuple(itertools.islice(made, MOST_VARIANTS + 1))
    if len(found) > MOST_VARIANTS:
        message = f"more than {MOST_VARIANTS} combinations beside the mesh"
        return Refusal(message, "name fewer values: `--over mesh,microbatches=1|4`")
    return found


def _combined(spec: specs.Spec, choices: Sequence[Sequence[Variant]]) -> Iterator[Variant]:
    """Yield all combinations; each choice says what it changes of the spec."""
    for chosen in itertools.product(*choices):
        made = spec
        for each in chosen:
            made = _with_changes(made, spec, each.spec)
        roles = next((each.roles for each in chosen if each.roles is not None), None)
        yield Variant(made, tuple(change for each in chosen for change in each.changes), roles)


def _with_changes(made: specs.Spec, before: specs.Spec, after: specs.Spec) -> specs.Spec:
    """Return a spec with what one choice changed."""
    if after is before:
        return made
    made = _with_step(made, **_changed(before.step, after.step, _OF_STEP))
    return replace(
        made, **_changed(before, after, ("state", "logical_axes", *_HOST, *_PADDED, *_RULES))
    )


#: What choices change of a step, and with sizes; what are the rules of a spec.
_OF_STEP = ("remat", "microbatches", "pipeline", "gather", "reduce", "dtype")
_HOST = ("memory", "activations")
_PADDED = ("policy", "params", "multiples")
_RULES = ("axis_rules", "any_rules", "placed_rules")


def _changed(before: object, after: object, names: Iterable[str]) -> dict[str, Any]:
    """Return the attributes of some names that differ; None has none."""
    pairs = ((name, getattr(after, name, None)) for name in names)
    return {name: value for name, value in pairs if value != getattr(before, name, None)}


_Made = dict[str, specs.Spec]


def _rules(spec: specs.Spec, values: Sequence[str]) -> _Made | Refusal:
    if not values:
        help = "name presets: `--over mesh,rules=preset:fsdp|preset:megatron`"
        return Refusal("`rules` needs rules to choose from", help)
    found: _Made = {}
    for value in values:
        name = value.removeprefix("preset:")
        loaded, faults = loader.load_text(f"shardspec: 1\nextends: [{name!r}]\n", "<rules>")
        errors = [fault for fault in faults if fault.is_error]
        if loaded is None or errors or not loaded.axis_rules:
            why = errors[0].help if errors and errors[0].help else "a preset is named `preset:fsdp`"
            return Refusal(f"`rules={value}`: no preset is called `{name}`", why)
        found[value] = replace(spec, **{name: getattr(loaded, name) for name in _RULES})
    return found


def _rule(spec: specs.Spec, values: Sequence[str]) -> _Made | Refusal:
    """Make specs that place some logical axes otherwise, such as those of a group of layers."""
    known = dict.fromkeys(rule.logical_axis for rule in spec.axis_rules)
    unknown = next((value for value in values if value not in known), None)
    if unknown is not None or not values:
        help = did_you_mean(unknown or "", known) or f"name them: `--over rule={'|'.join(known)}`"
        return Refusal(f"`rule={unknown or ''}` is no logical axis that a rule places", help)
    meshes = (axis for target in spec.targets for axis in target.mesh.names)
    ways = ((), *((axis,) for axis in dict.fromkeys(meshes)))
    options: list[list[specs.AxisRule | None]] = []
    for name in dict.fromkeys(values):
        now = [rule for rule in spec.axis_rules if rule.logical_axis == name]
        others = (replace(now[0], mesh_axes=axes, in_part=False) for axes in ways)
        options.append([None, *(each for each in others if [each] != now)])
    found: _Made = {}
    for chosen in itertools.product(*options):
        child = {rule.logical_axis: [rule] for rule in chosen if rule is not None}
        made = with_rules(spec, merged(spec.placed_rules, child), spec.any_rules)
        found[",".join(f"{name}->{rule.right}" for name, (rule,) in child.items())] = made
        if len(found) > MOST_VARIANTS:
            break
    return found


def _state(spec: specs.Spec, values: Sequence[str]) -> _Made | Refusal:
    if spec.state is None:
        help = "say what stands beside parameters: `state: {optimizer: same, dtype: f32}`"
        return Refusal("`state` cannot be chosen: the spec has no `state:`", help)
    ways = cast(Sequence[Literal["same", "zero1", "zero2"]], values or _KNOWN["state"])
    return {way: replace(spec, state=replace(spec.state, optimizer=way)) for way in ways}


#: The state that is offloaded, and what is kept of each layer.
OFFLOADED, KEPT = "opt_state/**", "residual"


def _offload(spec: specs.Spec, values: Sequence[str]) -> _Made | Refusal:
    kept = next((each for each in spec.activations if each.name == KEPT), None)
    can = {"state": spec.state is not None, "activations": kept is not None}
    can["both"] = all(can.values())
    chosen = values or [word for word in _KNOWN["offload"] if can[word]]
    missing = next((word for word in chosen if not can[word]), None)
    if missing is not None or not chosen:
        help = f"state them: `state: {{optimizer: same}}`, `activations: {{{KEPT}: ...}}`"
        return Refusal(f"`offload={missing or 'state'}`: the spec does not state what it is", help)
    rule = specs.MemoryRule(specs.Pattern(OFFLOADED), "pinned_host")
    moved = tuple(
        replace(each, memory="pinned_host") if each is kept else each for each in spec.activations
    )
    return {
        word: replace(
            spec,
            memory=(rule, *spec.memory) if word != "activations" else spec.memory,
            activations=moved if word != "state" else spec.activations,
        )
        for word in chosen
    }


def _remat(spec: specs.Spec, values: Sequence[str]) -> _Made | Refusal:
    if spec.step is not None and spec.step.mode == "serve":
        return Refusal("`remat` cannot be chosen: the step serves", "leave it out of --over")
    found = {value: tuple(value.split()) for value in values or ("none", "dots", "full")}
    return {name: _with_step(spec, remat=kept) for name, kept in found.items()}


def _microbatches(spec: specs.Spec, values: Sequence[str]) -> _Made | Refusal:
    if (unread := _no_count(values)) is not None:
        return Refusal(f"`microbatches={unread}` is no number of them", "as in `microbatches=1|4`")
    sizes = {axis.name: axis.size for axis in spec.logical_axes}
    batch, most = sizes.get("batch"), _MOST_IN_PIPELINE if stage_axes(spec) else _MOST_PARTS
    counts = [int(each) for each in values] or [
        1 << power
        for power in range(most.bit_length())
        if not batch or 1 << power in specs.divisors(batch)
    ]
    return {f"{count}": _with_step(spec, microbatches=count) for count in counts}


def _batch(spec: specs.Spec, values: Sequence[str]) -> _Made | Refusal:
    now = next((axis.size for axis in spec.logical_axes if axis.name == "batch"), None)
    if now is None or (spec.step is not None and spec.step.tokens is not None):
        help = "state it: `axes: {batch: 256}`, and no `tokens` in `step:`"
        return Refusal("`batch` cannot be chosen: the spec does not state its size", help)
    if (unread := _no_count(values)) is not None:
        return Refusal(f"`batch={unread}` is no number of sequences", "as in `batch=256|512`")
    found: _Made = {}
    for size in map(int, values or (str(max(1, now // 2)), str(now * 2), str(now * 4))):
        axes = (replace(a, size=size) if a.name == "batch" else a for a in spec.logical_axes)
        found[f"{size}"] = replace(spec, logical_axes=tuple(axes))
    return found


def _dtype(spec: specs.Spec, values: Sequence[str]) -> _Made | Refusal:
    found: _Made = {}
    for value in values or ("bf16", "f32"):
        name = specs.dtype_name(value)
        if name is None:
            return Refusal(f"`dtype={value}` is no dtype", "as in `dtype=bf16|f32`")
        found[name] = _with_step(spec, dtype=name)
    return found


def _indivisible(spec: specs.Spec, values: Sequence[str]) -> _Made | Refusal:
    if spec.policy.indivisible == "pad":
        return Refusal("`indivisible` cannot be chosen: the spec pads", "leave it out of --over")
    return {"pad": padded(padding(spec))[0]}


def _schedule(spec: specs.Spec, values: Sequence[str]) -> _Made | Refusal:
    if not stage_axes(spec):
        help = "a rule puts stacked layers on a mesh axis: `layers -> stage`"
        return Refusal("`schedule` cannot be chosen: no mesh axis splits layers", help)
    found: _Made = {}
    for value in values or ("1f1b", "interleaved(2)", "zero-bubble"):
        schedule = parse_schedule(value)
        if isinstance(schedule, SyntaxFault):
            return Refusal(schedule.message, schedule.help or "as in `schedule=1f1b|zero-bubble`")
        found[value] = _with_step(spec, pipeline=schedule)
    return found


def _one_of(word: str, spec: specs.Spec, values: Sequence[str]) -> _Made | Refusal:
    return {value: _with_step(spec, **{word: value}) for value in values or _KNOWN[word]}


def stage_axes(spec: specs.Spec) -> tuple[str, ...]:
    """Return the mesh axes that rules put stacked layers on."""
    return _axes_of(spec, stacked_names(spec))


def batch_axes(spec: specs.Spec) -> tuple[str, ...]:
    """Return the mesh axes that rules put the batch on."""
    return _axes_of(spec, {"batch"})


def _axes_of(spec: specs.Spec, names: Container[str]) -> tuple[str, ...]:
    rules = (rule for rule in spec.axis_rules if rule.logical_axis in names)
    return tuple(dict.fromkeys(axis for rule in rules for axis in rule.mesh_axes))


def _with_step(spec: specs.Spec, **changes: Any) -> specs.Spec:
    return replace(spec, step=replace(spec.step, **changes)) if spec.step else spec


_Maker = Callable[[specs.Spec, Sequence[str]], "_Made | Refusal"]
_MAKERS: dict[str, _Maker] = {
    "rules": _rules,
    "rule": _rule,
    "state": _state,
    "remat": _remat,
    "offload": _offload,
    "indivisible": _indivisible,
    "batch": _batch,
    "dtype": _dtype,
    "microbatches": _microbatches,
    "schedule": _schedule,
    "gather": partial(_one_of, "gather"),
    "reduce": partial(_one_of, "reduce"),
}


def machine_of(text: str) -> specs.Hardware | Refusal:
    """Return the machine that a text means, as `hardware:` of a spec does."""
    parsed = expressions.parse_hardware(text)
    if isinstance(parsed, SyntaxFault):
        fault = machine_fault(parsed, text)
        return Refusal(fault.message, fault.help or _MACHINES)
    if parsed.counts:
        return Refusal("several counts of slices", "name each: `2 * tpu v5e 16x16`")
    found = find_hardware(parsed, excerpt_of(text))
    if isinstance(found, Diagnostic):
        return Refusal(found.message, found.help or _MACHINES)
    return replace(found, span=None)


# Which meshes there are to choose from, and what else of a spec may be chosen beside them.
#
# A mesh is sizes for the axes that the spec has, which multiply to the devices; where it lies is a
# choice of its own: which axis crosses DCN, which tile of the torus the axis that talks most takes,
# and in what order chips are counted. What a spec says beside its mesh makes a variant of it.
#
# There may be more of them than anybody waits for: those most like the mesh of today come first.


#: Sizes that are looked at before the nearest are chosen; a hostile mesh has no end of them.
MOST_SIZES = 200_000
#: Orders of mesh axes that are tried: all of four.
_MOST_ORDERS = 24
#: Tiles of one size that are tried, the most compact first.
_MOST_TILES = 12
#: Devices beyond which a placement is no longer worked out.
MOST_DEVICES = 1 << 17


@dataclass(frozen=True, slots=True)
class Variant:
    """A spec as it might be, but for its mesh.

    Attributes:
      changes: what differs from the spec, by word: `remat` -> `full`.
      roles: what its mesh is made of; None for the axes of the spec's own.
    """

    spec: specs.Spec = field(repr=False)
    changes: tuple[tuple[str, str], ...] = ()
    roles: RoleSet | None = None

    def __str__(self) -> str:
        """Return `remat=full microbatches=4`; empty for the spec as it is."""
        return " ".join(f"{word}={value}" for word, value in self.changes)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One layout of a model on a machine."""

    target: specs.Target
    order: Order
    variant: Variant

    @property
    def hardware(self) -> specs.Hardware:
        """Return the machine."""
        assert self.target.hardware is not None, "only meshes on machines are candidates"
        return self.target.hardware

    @property
    def mesh(self) -> specs.Mesh:
        """Return the mesh."""
        return self.target.mesh

    @property
    def spec(self) -> specs.Spec:
        """Return the spec with this layout as its only target."""
        spec = self.variant.spec
        policy = replace(spec.policy, order=self.order)
        return replace(spec, policy=policy, targets=(self.target,), phases=())

    def arrays(self, params: specs.Params) -> specs.Params:
        """Return the arrays of a model, with caches for as many sequences as there are then."""
        if "batch" not in dict(self.variant.changes):
            return params
        batch = next(a.size for a in self.variant.spec.logical_axes if a.name == "batch")
        return tuple(_for_batch(param, batch) if param.is_cache else param for param in params)

    @property
    def mesh_text(self) -> str:
        """Return `data=2 @ dcn fsdp=16 tensor=submesh 2x2x1x1`, as a mesh is written."""
        return _mesh_text(self.mesh.axes)

    def __str__(self) -> str:
        """Return the mesh with all that is chosen beside it."""
        return self._with_choice(self.mesh_text)

    def text(self, shown: Container[str]) -> str:
        """Return it without the mesh axes of size 1 that are not among some."""
        axes = [each for each in self.mesh.axes if each.size > 1 or each.name in shown]
        return self._with_choice(_mesh_text(axes or self.mesh.axes))

    def _with_choice(self, mesh: str) -> str:
        order = () if self.order == self.variant.spec.policy.order else (f"order={self.order}",)
        return " ".join(filter(None, (mesh, *order, str(self.variant))))


def _for_batch(cache: specs.Param, batch: int | None) -> specs.Param:
    names = cache.logical_axes or (None,) * cache.rank
    sizes = (
        batch if name == "batch" and batch else size
        for name, size in zip(names, cache.shape, strict=True)
    )
    return replace(cache, shape=tuple(sizes))


def _mesh_text(axes: Iterable[specs.MeshAxis]) -> str:
    return " ".join(f"{axis.name}={size_text(axis)}" for axis in axes)


def size_text(axis: specs.MeshAxis) -> str:
    """Return the size of an axis as a spec has it: `4`, `2 @ dcn`, `submesh 2x2x1x1`, `over x`."""
    if axis.submesh is not None:
        return f"submesh {specs.shape_text(axis.submesh)}"
    if axis.over:
        return f"over {' '.join(map(str, axis.over))}"
    return f"{axis.size} @ dcn" if axis.network == "dcn" else str(axis.size)


class Sizes(NamedTuple):
    """The sizes that a mesh may have.

    Attributes:
      found: by mesh axis in order, those nearest to today's first.
      is_cut: whether there are more.
    """

    found: tuple[tuple[int, ...], ...]
    is_cut: bool = False


def sizes_of(
    today: specs.Mesh,
    devices: int,
    keep: Mapping[str, Sequence[int]],
    above_one: Container[str] = (),
) -> Sizes:
    """Return every way to write the devices as sizes of the axes.

    Args:
      keep: what the size of an axis may be, where that is stated.
      above_one: axes that are larger than 1.

    Invariants:
      product: the sizes of each multiply to the devices.
      distinct: no two are equal.
    """
    axes = today.names
    made = _factored(devices, axes, keep, above_one)
    found = list(itertools.islice(made, MOST_SIZES + 1))
    now = tuple(today.sizes.values())
    found.sort(key=lambda sizes: (_distance(sizes, now), sizes))
    return Sizes(tuple(found[:MOST_SIZES]), len(found) > MOST_SIZES)


def _factored(
    left: int, axes: Sequence[str], keep: Mapping[str, Sequence[int]], above_one: Container[str]
) -> Iterator[tuple[int, ...]]:
    if not axes:
        if left == 1:
            yield ()
        return
    first, *rest = axes
    options = keep.get(first)
    if options is None:
        options = specs.divisors(left) if rest else (left,)
    for size in options:
        if size > (first in above_one) and left % size == 0:
            inner = _factored(left // size, rest, keep, above_one)
            yield from ((size, *others) for others in inner)


def _distance(sizes: Sequence[int], others: Sequence[int]) -> float:
    """Return how many doublings lie between two meshes of the same axes."""
    pairs = zip(sizes, others, strict=True)
    return round(sum(abs(math.log2(one / other)) for one, other in pairs), 6)


class Freedom(NamedTuple):
    """What is chosen, and from what.

    Attributes:
      mesh: whether sizes are, and where the axes lie.
      order: whether the order of chips is.
      keep: sizes of axes that are stated.
      axes: whether the order of mesh axes is.
    """

    mesh: bool = True
    order: bool = True
    keep: Mapping[str, Sequence[int]] = {}
    axes: bool = False


def candidates(
    today: specs.Target, hardware: specs.Hardware, variants: Sequence[Variant], freedom: Freedom
) -> Iterator[Candidate]:
    """Yield the layouts on one machine, those of each set of roles in turns.

    Of one set those of the same sizes and variant are side by side.
    """
    by_roles = grouped(variants, lambda each: each.roles)
    streams = [_of_roles(today, hardware, alike, freedom) for alike in by_roles.values()]
    if len(streams) == 1:
        yield from streams[0]
        return
    while streams:
        for stream in tuple(streams):
            found = next(stream, None)
            if found is None:
                streams.remove(stream)
            else:
                yield found


def _of_roles(
    today: specs.Target, hardware: specs.Hardware, variants: Sequence[Variant], freedom: Freedom
) -> Iterator[Candidate]:
    """Yield the layouts on the meshes of one set of roles."""
    roles = variants[0].roles
    for sizes in mesh_sizes(today, hardware, freedom, roles).found:
        meshes = [
            mesh
            for base, own in _in_orders(_mesh(today, roles), sizes, freedom)
            for mesh in _placed(base, own, hardware, freedom)
        ]
        for variant in variants:
            own = variant.spec.policy.order
            for mesh in meshes:
                is_today = mesh == today.mesh and hardware == today.hardware
                listed = today.devices if is_today else ()
                target = replace(today, mesh=mesh, hardware=hardware, is_sound=True, devices=listed)
                for order in _orders(own, hardware, freedom):
                    yield Candidate(target, order, variant)


def _in_orders(
    mesh: specs.Mesh, sizes: tuple[int, ...], freedom: Freedom
) -> Iterator[tuple[specs.Mesh, tuple[int, ...]]]:
    """Yield a mesh and its sizes in each order of the axes that are larger than 1, as it is first.

    Axes of size 1 stay in their places, since they lie nowhere.
    """
    places = [at for at, size in enumerate(sizes) if size > 1]
    orders = itertools.permutations(places) if freedom.axes else iter([tuple(places)])
    for order in itertools.islice(orders, _MOST_ORDERS):
        at = dict(zip(places, order, strict=True))
        moved = [at.get(place, place) for place in range(len(sizes))]
        axes = tuple(mesh.axes[place] for place in moved)
        own = mesh if axes == mesh.axes else specs.Mesh(axes, mesh.wholes)
        yield own, tuple(sizes[place] for place in moved)


def _mesh(today: specs.Target, roles: RoleSet | None) -> specs.Mesh:
    """Return the mesh whose axes get sizes."""
    return today.mesh if roles is None else roles.mesh(today.mesh)


def mesh_sizes(
    today: specs.Target, hardware: specs.Hardware, freedom: Freedom, roles: RoleSet | None = None
) -> Sizes:
    """Return the sizes that are tried on a machine, of today's axes or those of some roles."""
    mesh, devices = _mesh(today, roles), hardware.device_count
    now = tuple(mesh.sizes.values())
    if roles is None and not freedom.mesh and math.prod(now) == devices:
        return Sizes((now,))
    if any(axis not in mesh.names and 1 not in sizes for axis, sizes in freedom.keep.items()):
        return Sizes(())
    return sizes_of(mesh, devices, freedom.keep, () if roles is None else roles.new)


def _orders(own: Order, hardware: specs.Hardware, freedom: Freedom) -> tuple[Order, ...]:
    if not freedom.order or hardware.chip.torus_rank < 2:
        return (own,)
    return (own, "ring" if own == "t5x" else "t5x")


def _placed(
    today: specs.Mesh, sizes: Sequence[int], hardware: specs.Hardware, freedom: Freedom
) -> Iterator[specs.Mesh]:
    """Yield meshes of the same sizes: as placement chooses, over DCN by name, on tiles."""
    if sizes == tuple(today.sizes.values()) and hardware.device_count == today.device_count:
        if isinstance(place(specs.Target("", today, hardware)), Placement):
            yield today
        if not freedom.mesh:
            return
    for crossing in _crossings(today, sizes, hardware):
        axes = [
            specs.MeshAxis(
                axis.name,
                size,
                "dcn" if axis.name in crossing else "ici",
                axis_type=axis.axis_type,
                span=axis.span,
            )
            for axis, size in zip(today.axes, sizes, strict=True)
        ]
        for mesh in (specs.Mesh(tuple(axes), today.wholes), *_tiled(today, axes, hardware)):
            if mesh != today:
                yield mesh


def _crossings(
    today: specs.Mesh, sizes: Sequence[int], hardware: specs.Hardware
) -> Iterator[tuple[str, ...]]:
    """Yield the axes that may be said to cross slices or nodes, the fewest first."""
    count, is_gpu = hardware.slice_count, hardware.chip.platform == "gpu"
    named = [(name, size) for name, size in zip(today.names, sizes, strict=True) if size > 1]
    found = 0
    for number in (1, 2):
        for axes in itertools.combinations(named, number):
            across = math.prod(size for _, size in axes)
            if count > 1 and (count % across == 0 if is_gpu else across == count):
                found += across == count
                yield tuple(name for name, _ in axes)
    if not found:  # an axis that is partly inside of a slice
        yield ()


def _tiled(
    today: specs.Mesh, axes: Sequence[specs.MeshAxis], hardware: specs.Hardware
) -> Iterator[specs.Mesh]:
    """Yield meshes in which the last axis, or the one that has a tile today, takes a tile."""
    if hardware.chip.torus_rank < 2:
        return
    own = next((at for at, axis in enumerate(today.axes) if axis.submesh or axis.auto), None)
    inner = [at for at, axis in enumerate(axes) if axis.size > 1 and axis.network == "ici"]
    at = own if own in inner else next(reversed(inner), None)
    if at is None or axes[at].size in (1, hardware.devices_per_slice):
        return
    tiles = sorted(tilings(hardware, axes[at].size), key=lambda tile: (sum(tile), tile))
    for tile in tiles[:_MOST_TILES]:
        placed = replace(axes[at], submesh=tile)
        yield specs.Mesh((*axes[:at], placed, *axes[at + 1 :]), today.wholes)
