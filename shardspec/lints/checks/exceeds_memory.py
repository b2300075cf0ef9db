"""Parameters and state need more memory than a device has.

Parameters, and where the spec has `state:` (training) gradients of the parameters' dtype and the
optimizer's moments, laid out as `state:` says, in the tiles of a TPU. That is a lower bound:
activations and the compiler's buffers come on top, so a plan without this finding may still not
fit. What `memory:` puts into that of the host does not count. The memory is what programs have of a
device: what the compiler of a TPU hands out, and the share of a GPU that JAX allocates, 75 % where
`memory 0.9` behind the machine does not say otherwise. A target without hardware, or on CPU, has no
limit. Nothing is said where names that are missing or do not fit make it too much (SHD205, SHD206):
with its names, an array will be split.

Bad:
    shardspec: 1
    hardware: tpu v5e 4x4
    mesh: {data: rest, model: 2}
    state: {optimizer: same, moments: 2, dtype: f32}
    rules:
      - batch -> data
      - mlp -> model
    arrays:
      "layers_{0..31}/mlp/kernel": bf16[_=4096 mlp=28672]
    activations:
      hidden: batch mlp

Good:
    -state: {optimizer: same, moments: 2, dtype: f32}
    +state: {optimizer: zero1, moments: 2, dtype: f32}
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from shardspec.analysis.coverage import PARTS
from shardspec.analysis.memory import Held, Memory, memory, room_text, share_notes
from shardspec.diagnostics import Diagnostic, codes, point, quote
from shardspec.diagnostics.words import binary_bytes, counted, listed
from shardspec.ir.plan import ParamSharding, ShardingPlan
from shardspec.ir.spec import AxisRule, MemoryRule, Pattern, Spec
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import largest, would_divide
from shardspec.lints.evidence.rules import is_stacked, stacked_axes
from shardspec.resolve.resolver import resolve
from shardspec.resolve.state import OPT_STATE, state_axes

#: Arrays of less than one part in so many need no rule of their own.
_SMALL = 1000


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each target whose devices have too little memory."""
    for plan in context.plans:
        held = memory(plan)
        if not held.fits:
            fits = _with_right_names(held).fits
            misnamed = (s.param.path for s in plan.arrays if fits and _is_misnamed(s))
            yield replace(_finding(plan, held), arrays=tuple(misnamed))


def _with_right_names(held: Memory) -> Memory:
    """Return what is held of arrays that have names: the others are whole by a mistake."""
    figures = (f for f in held.figures if not any(map(_is_misnamed, f.arrays.shardings)))
    return replace(held, figures=tuple(figures))


def _is_misnamed(sharding: ParamSharding) -> bool:
    return sharding.needs_names or sharding.mismatch is not None


def _finding(plan: ShardingPlan, held: Memory) -> Diagnostic:
    hardware = plan.target.hardware
    assert hardware is not None, "only hardware has a limit"
    assert held.hbm_bytes is not None
    what = " and ".join(part.value for part in Held if held.of(part))
    if what.count(" and ") == 2:
        what = what.replace(" and ", ", ", 1)
    has = f"a device of {hardware.chip.title} has {room_text(held.hbm_bytes, held.hbm_share)}"
    return point(
        codes.EXCEEDS_MEMORY,
        f"{what} take {binary_bytes(held.bytes)} per device of target `{plan.target.name}`; {has}",
        hardware.span or plan.target.span,
        f"{binary_bytes(held.hbm_bytes)} per device",
        notes=(
            *(_line(plan, held, part) for part in Held if held.of(part)),
            "a lower bound: activations and buffers come on top",
            *(f"of which {line}" for line in _largest(held)),
            *share_notes(plan.target),
        ),
        help=_help(plan, held),
        target=plan.target.name,
    )


def _line(plan: ShardingPlan, held: Memory, part: Held) -> str:
    """Return one line of the sum: "12.0 GiB  optimizer state: 32 arrays x2 of f32"."""
    figures = held.of(part)
    count = counted(sum(figure.arrays.count for figure in figures), "array")
    copies = f" x{figures[0].copies}" if figures[0].copies > 1 else ""
    dtypes = ", ".join(dict.fromkeys(figure.arrays.dtype for figure in figures))
    total = binary_bytes(sum(figure.bytes for figure in figures))
    return f"{total}  {part.value}: {count}{copies} of {dtypes}{_further(plan, part)}"


def _further(plan: ShardingPlan, part: Held) -> str:
    """Return how `state:` splits it further than the parameters, if it does."""
    state, axes = plan.spec.state, state_axes(plan.spec, plan.mesh)
    parts = {"zero1": {Held.MOMENTS}, "zero2": {Held.GRADIENTS, Held.MOMENTS}}
    if state is None or not axes or part not in parts.get(state.optimizer, set()):
        return ""
    return f", {state.optimizer} over {listed(axes)}"


def _largest(held: Memory) -> tuple[str, ...]:
    sizes: dict[str, int] = {}
    for figure in held.figures:
        for path in figure.arrays.paths:
            sizes[path] = sizes.get(path, 0) + figure.bytes // figure.arrays.count
    return largest(sizes.items(), least=held.bytes // PARTS)


def _help(plan: ShardingPlan, held: Memory) -> str:
    """Return what would fit, computed; or how many devices it takes at the least."""
    assert held.hbm_bytes is not None
    devices = plan.mesh.device_count
    if held.global_bytes > held.hbm_bytes * devices:
        least = -(-held.global_bytes // held.hbm_bytes)
        return (
            f"it needs at least {least} such devices, with every array sharded over all of them,"
            f" not {devices}"
        )
    options = [_makes(text, fit) for text, fit in _what_ifs(plan) if fit.fits]
    if options:
        return "; or ".join(options[:3])
    text, further = _under_rules(plan, [axis.name for axis in plan.mesh.axes if axis.size > 1])
    if further.fits:
        return _makes(text, further)
    return (
        f"all arrays over all {devices} devices are {binary_bytes(held.global_bytes / devices)},"
        " but their named dimensions do not divide so: change the sizes, or take more devices"
    )


def _makes(text: str, fit: Memory) -> str:
    return f"{text} {'make' if text.count('->') > 1 else 'makes'} it {binary_bytes(fit.bytes)}"


def _under_rules(plan: ShardingPlan, axes: Sequence[str]) -> tuple[str, Memory]:
    """Return rules that shard what they can over more mesh axes, and what is held under them.

    The largest arrays choose first. All is resolved again: a rule that one array needs may take
    a mesh axis from another.
    """
    spec, stacked = plan.spec, stacked_axes(plan.spec)
    chosen: dict[str, str] = {}
    for axis in axes:
        wider: dict[str, tuple[str, ...]] = {}
        least = memory(plan).bytes / _SMALL
        for group in sorted(plan.alike, key=lambda group: -group.device_bytes):
            if group.device_bytes < least or axis in group.first.mesh_axes:
                continue
            named = [dim for dim in group.dims if would_divide(plan.mesh.sizes[axis], dim)]
            names = {dim.logical_axis: (*dim.mesh_axes, axis) for dim in named if dim.logical_axis}
            if wider.keys().isdisjoint(names):
                own = (name for name in names if not is_stacked(name, stacked))
                wider |= {name: names[name] for name in islice(own, 1)}
        for name, mesh_axes in wider.items():
            spec, chosen[name] = _with_rule(spec, name, mesh_axes)
        plan = resolve(spec, plan.target, [each.param for each in plan.arrays])
    return " and ".join(f"`{rule}`" for rule in chosen.values()), memory(plan)


def _with_rule(spec: Spec, name: str, mesh_axes: tuple[str, ...]) -> tuple[Spec, str]:
    """Return a spec that tries these mesh axes first for a logical axis, and that rule."""
    rules = list(spec.axis_rules)
    own = [rule for rule in rules if rule.logical_axis == name]
    at = rules.index(own[0]) if own else len(rules)
    rules.insert(at, AxisRule(name, mesh_axes))
    text = " | ".join((str(rules[at]), *(rule.right for rule in own)))
    return replace(spec, axis_rules=tuple(rules)), text


def _what_ifs(plan: ShardingPlan) -> Iterator[tuple[str, Memory]]:
    """Yield what one change would make of it."""
    state = plan.spec.state
    if state is not None:
        for optimizer in ("zero1", "zero2"):
            if state.optimizer < optimizer:
                policy = replace(state, optimizer=optimizer)
                yield (
                    quote.setting("state", ("optimizer", optimizer)),
                    memory(plan, state=policy),
                )
    for axis in plan.mesh.axes:
        if axis.size > 1:
            yield _under_rules(plan, (axis.name,))
    if memory(plan).of(Held.MOMENTS):
        entry = MemoryRule(Pattern(f"{OPT_STATE}/**"), "pinned_host")
        spec = replace(plan.spec, memory=(entry, *plan.spec.memory))
        kind = entry.memory
        yaml, dsl = f'{{"{entry.pattern}": {kind}}}', f"{{ {entry.pattern} : {kind} }}"
        what = quote.either(f"`memory: {yaml}`", f"`memory {dsl}`")
        yield what, memory(replace(plan, spec=spec))
