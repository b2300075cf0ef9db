"""Sizes that mesh axes do not divide, or divide too far: each logical axis and size told once.

Ten thousand arrays on six targets meet the same few rules in the same few ways. A case gathers
all of them, so that a finding is about the axis, and counts its arrays. All is read off the traces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shardspec.diagnostics import Code, Diagnostic, Edit, Fix, Span, labels_at, quote
from shardspec.diagnostics.words import binary_bytes, described, listed, named, percent
from shardspec.ir.plan import Alike, Attempt, Dims, DimSharding, Kind, Outcome, ShardingPlan
from shardspec.ir.spec import Mesh, Spec, axis_of, divisors, target_text
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import Affected, Subject, subjects


class Judged(NamedTuple):
    """A dimension, and the attempt that there is something to say about."""

    dim: DimSharding
    attempt: Attempt


Judge = Callable[[Dims], Iterable[Judged]]


@dataclass(slots=True)
class AxisCase:
    """One axis of one size under one rule, with all that it happens to and every target.

    Attributes:
      last: the last rule that was tried on the dimension.
      meshes: of the targets, by name.
      bytes: what a device holds of all the arrays.
      grain: what `unit` elements are, of which a shard has whole ones: a `unit`, or a `group`.
      has_parts: whether its size is the sum of its parts, and nothing to choose by itself.
    """

    axis: str
    size: int
    unit: int
    attempt: Attempt
    last: Attempt
    segments: int = 1
    grain: str = "unit"
    has_parts: bool = False
    meshes: dict[str, Mesh] = field(default_factory=dict)
    affected: Affected = field(default_factory=Affected)
    bytes: int = 0

    @property
    def ways(self) -> int:
        """Return into how many shards the rule would split."""
        return self.attempt.ways

    @property
    def is_named(self) -> bool:
        """Say whether it is a logical axis, and not a dimension whose partition is stated."""
        return self.attempt.rule is not None

    @property
    def mesh_text(self) -> str:
        """Return "`tensor` = 16", or "`(a, b)` = 2 x 8 = 16"."""
        return ways_text(self.attempt.mesh_axes, next(iter(self.meshes.values())))

    @property
    def targets_text(self) -> str:
        """Return "target `a`", or "targets `a`, `b`"."""
        return named("target", self.meshes)

    def axis_sizes(self) -> Iterator[tuple[str, list[int], int]]:
        """Yield each mesh axis, the sizes at which it would divide, and the ways of the others."""
        sizes = next(iter(self.meshes.values())).sizes
        for axis in self.attempt.mesh_axes:
            others = self.ways // sizes[axis]
            fitting = [
                size
                for size in axis_sizes(self.size, self.unit, others)
                if size * others % self.segments == 0 or size * others == 1
                if all(mesh.device_count % size == 0 for mesh in self.meshes.values())
            ]
            yield axis, fitting, others

    def add(self, subject: Subject, plan: ShardingPlan) -> None:
        """Add what it happens to on one more target."""
        if isinstance(subject, Alike):
            new = sum(path not in self.affected.arrays for path in subject.paths)
            self.bytes += subject.shard_bytes * new
        self.affected.add(subject, plan)
        self.meshes[plan.target.name] = plan.mesh

    def notes(self) -> Iterator[str]:
        """Yield notes on the arrays and activations that it happens to."""
        if self.affected.arrays:
            yield described(self.affected.arrays)
        if self.affected.activations:
            sizes = quote.either("in `axes`", "of each `axis`")
            yield f"{named('activation', self.affected.activations)}, by the sizes {sizes}"


def axis_cases(context: Context, judge: Judge) -> tuple[AxisCase, ...]:
    """Return each case once, in order of target and array.

    Args:
      judge: gives the dimensions of one array that there is something to say about.
    """
    cases: dict[tuple[object, ...], AxisCase] = {}
    for plan in context.plans:
        sizes = plan.mesh.sizes
        for subject in subjects(plan):
            for dim, attempt in judge(subject.dims):
                is_of_any = attempt.kind is Kind.ANY
                at = next(at for at, each in enumerate(subject.dims) if each is dim)
                nameless = "the largest dimension" if is_of_any else f"dim {at}"
                axis = dim.logical_axis or nameless
                axes = attempt.mesh_axes
                fired = attempt is dim.taken
                over = tuple(sizes[name] for name in axes)
                key = (axis, dim.size, dim.unit, attempt.span, axes, over, fired)
                last = dim.attempts[-1]
                declared = context.axes.get(axis_of(axis))
                new = AxisCase(axis, dim.size or 0, dim.unit, attempt, last, dim.segments)
                if declared is not None:
                    new.grain, new.has_parts = declared.grain, declared.parts is not None
                cases.setdefault(key, new).add(subject, plan)
    return tuple(cases.values())


class Uneven(NamedTuple):
    """One case of division failing.

    Attributes:
      divides_on: other targets, on which the same dimension is split evenly.
      is_only: whether it fails on these targets and divides on all others.
    """

    case: AxisCase
    divides_on: tuple[str, ...]
    is_only: bool

    @property
    def kept(self) -> bool:
        """Say whether the rule fired all the same (`policy: {indivisible: keep}`)."""
        return self.case.attempt.outcome is Outcome.TAKEN

    @property
    def cuts_unit(self) -> bool:
        """Say whether the size divides and the units do not."""
        return self.case.size % self.case.ways == 0

    @property
    def cuts_parts(self) -> bool:
        """Say whether the size divides, and a shard would have pieces of two parts."""
        return self.cuts_unit and self.case.ways % self.case.segments != 0

    @property
    def step(self) -> int:
        """Return what the size must be a multiple of."""
        return self.case.ways * self.case.unit


def uneven(context: Context) -> tuple[Uneven, ...]:
    """Return each case once, in order of target and array."""
    return context.once(_uneven)


def _uneven(context: Context) -> tuple[Uneven, ...]:
    cases = axis_cases(context, _refused)
    even = _even(context) if cases else {}
    everywhere = {plan.target.name for plan in context.plans}
    found = []
    for case in cases:
        declared = context.axes.get(case.axis)
        if declared is not None and declared.padding and case.size == declared.true_size:
            continue  # which SHD302 says: the array is not padded
        others = even.get((case.axis, case.size, case.unit), {})
        divides_on = tuple(name for name in others if name not in case.meshes)
        found.append(Uneven(case, divides_on, everywhere == {*divides_on, *case.meshes}))
    return tuple(found)


def _refused(dims: Dims) -> Iterator[Judged]:
    """Yield each dimension that ends whole or uneven for want of division, with the attempt.

    Of an array of which rules for `*` divide no dimension, that is the largest.
    """
    largest = dims.not_split_by_any
    for dim in dims if not dims.is_of_any else filter(None, (largest,)):
        attempt = refused(dim)
        if attempt is not None:
            yield Judged(dim, attempt)


def refused(dim: DimSharding) -> Attempt | None:
    """Return the attempt that leaves a dimension whole or uneven for want of division."""
    taken = dim.taken
    if taken is None:
        return dim.first_of(Outcome.INDIVISIBLE)
    return taken if taken.ways > 1 and not dim.is_even else None


def _even(context: Context) -> Mapping[tuple[str, int, int], dict[str, None]]:
    """Return the targets on which each named dimension is split evenly."""
    found: dict[tuple[str, int, int], dict[str, None]] = {}
    for plan in context.plans:
        for subject in subjects(plan):
            for dim in subject.dims:
                if dim.logical_axis is not None and dim.ways > 1 and dim.is_even:
                    key = (dim.logical_axis, dim.size or 0, dim.unit)
                    found.setdefault(key, {})[plan.target.name] = None
    return found


def finding(context: Context, code: Code, found: Uneven, message: str) -> Diagnostic:
    """Return the diagnostic for one case, with its cost and its ways out."""
    case = found.case
    return Diagnostic(
        code,
        message,
        labels_at(*_places(context, found)),
        (*_notes(context, found), *_by_policy(context, found)),
        _help(found),
        target=case.affected.target,
        fix=_fix(context, found),
        arrays=tuple(case.affected.arrays),
        bytes=case.bytes if case.affected.arrays else None,
    )


def _places(context: Context, found: Uneven) -> Iterator[tuple[Span | None, str]]:
    """Yield the rule, then the sizes that do not go together, where they are stated."""
    case = found.case
    if case.attempt.span is None:
        return
    refused = "" if found.cuts_unit else ", and JAX will refuse it"
    said = f"is applied anyway{refused}" if found.kept else "is skipped here"
    yield case.attempt.span, said
    declared = context.axes.get(case.axis)
    if declared is not None:
        of_units = f", in {case.grain}s of {case.unit}" if case.unit > 1 else ""
        said = f"`{case.axis}` is {case.size}{of_units}"
        if declared.size not in (None, case.size):
            said = f"`{case.axis}` is {declared.size} here, and {case.size} in what is refused"
        yield declared.span, said
    target, mesh = next(iter(case.meshes.items()))
    for axis in mesh.axes:
        if axis.name in case.attempt.mesh_axes:
            yield axis.span, f"`{axis.name}` is {axis.size} on `{target}`"


def _notes(context: Context, found: Uneven) -> Iterator[str]:
    """Yield what it happens to, and for arrays what they cost."""
    case = found.case
    first, *others = case.notes()
    if case.affected.arrays and not found.kept:
        lost = case.bytes * (case.ways - 1) // case.ways
        first += f"; replicated instead: +{binary_bytes(lost)} per device"
    yield first
    yield from others
    if found.divides_on:
        affected = f"; only {listed(case.meshes)} {'is' if len(case.meshes) == 1 else 'are'}"
        yield f"divides on {listed(found.divides_on)}{f'{affected} affected' * found.is_only}"
    if not found.cuts_parts:
        yield from _padding(found)
        yield from _copies(context, found)


def _by_policy(context: Context, found: Uneven) -> Iterator[str]:
    """Yield what the policy to pad does, or why it does not help."""
    case = found.case
    pad = quote.setting("policy", ("indivisible", "pad"))
    if context.spec.policy.indivisible != "pad":
        is_worth_it = not found.cuts_parts and any(_padding(found))
        if is_worth_it and axis_of(case.axis) in context.padded_axes:
            yield f"{pad} pads it so in every array"
    else:
        if axis_of(case.axis) in dict(context.spec.multiples):
            yield f"{pad} pads the arrays of the spec; for others there is `resolver.padded(tree)`"
        else:
            yield f"{pad} does not pad it: docs/dimensions.md says what is never padded"


def _padding(found: Uneven) -> Iterator[str]:
    """Yield the size to pad to and its waste, unless that is more than half of the dimension."""
    case = found.case
    size = padded(case.size, found.step)
    extra = size - case.size
    is_derived = case.attempt.kind is Kind.PARENT
    if is_derived or case.has_parts or not case.affected.arrays or not 0 < 2 * extra <= case.size:
        return
    length = -(-case.size // case.ways) * case.ways if found.kept else case.size
    split = 1 if found.kept else case.ways
    waste = -(-case.bytes * extra // (length * split))
    yield (
        f"padded to {size} (+{percent(extra, case.size)}) it divides, for"
        f" {binary_bytes(waste)} of padding per device in all"
    )


def _copies(context: Context, found: Uneven) -> Iterator[str]:
    """Yield how to give each device one unit, where there are fewer units than devices."""
    case = found.case
    times = copies(case.size, case.unit, case.ways)
    if times is None or len(case.attempt.mesh_axes) != 1 or not case.is_named:
        return
    (axis,) = case.attempt.mesh_axes
    taken = {name for mesh in case.meshes.values() for name in mesh.names}
    part, copy = f"{axis}_part", f"{axis}_copy"
    while {part, copy} & taken:
        part, copy = f"{part}_", f"{copy}_"
    units = case.ways // times
    of = f" {case.grain}s of {case.unit}" if case.unit > 1 else ""
    yaml = f"`{axis}: {{{part}: {units}, {copy}: {times}}}`"
    in_two = quote.either(yaml, f"`{axis} = ({part} = {units}, {copy} = {times})`")
    yield (
        f"{units}{of} over {case.ways} devices: {in_two} and `{case.axis} -> {part}` give each"
        f" device one of them, with {times} copies of each; `{axis}` still means both parts"
        f"{_for_rows(context.spec, axis, copy)}"
    )


def _has_rows(name: str) -> bool:
    return "batch" in name or name == "pages"


def _for_rows(spec: Spec, axis: str, copy: str) -> str:
    """Return the rule that gives the devices of each copy rows of their own.

    It comes last: where something else has all of the axis, rows are split over the others alone.
    """
    over: dict[tuple[str, ...], list[str]] = {}
    for rule in spec.axis_rules:
        over.setdefault(rule.mesh_axes, []).append(rule.logical_axis)
    rows = next((each for each in over.items() if all(map(_has_rows, each[1]))), None)
    if rows is None or axis in rows[0]:
        return ""
    axes, names = rows
    right = target_text((*axes, copy), in_part=True)
    text = f"{', '.join(names)} -> {right} | none"
    entry = quote.either(f'`{{rule: "{text}", at: end}}`', f"`{text} at end`")
    return f"; {entry}, in place of the rule for {listed(names)}, gives each copy rows of its own"


def _help(found: Uneven) -> str:
    case = found.case
    if case.attempt.kind is Kind.PARENT:
        return (
            f"the parent is split {case.ways} ways there, which would cut what each of the"
            f" {case.size} is for; `_` for this dimension in `dims` keeps it whole"
        )
    sizes = near_multiples(case.size, found.step)
    options = [f"{case.axis} = {' or '.join(map(str, sizes))} would divide"]
    if case.has_parts:
        options = [f"`parts` of {' or '.join(map(str, sizes))} in all may divide"]
    if found.cuts_parts:
        both = quote.either("`interleaved: true`", "`interleaved`")
        options = [f"{both}, if every shard's piece has its share of each part"]
    options += [
        f"`{axis}` in {set_text(fitting)}"
        for axis, fitting, _ in case.axis_sizes()
        if len(fitting) > 1
    ]
    if case.is_named and not found.kept:
        options.append(f"write `{case.attempt} | none` to replicate it here")
    return "; or ".join(options)


def _fix(context: Context, found: Uneven) -> Fix | None:
    """Return ` | none` behind the last alternative, where that stands in the spec as it is."""
    case, span = found.case, found.case.last.span
    if found.kept or not case.is_named or span is None or not context.is_own(span):
        return None
    if "".join(span.text.split()) != "".join(target_text(case.last.asked).split()):
        return None
    end = Span(span.source, span.end, span.end)
    return Fix(f"replicate `{case.axis}` where it does not divide", (Edit(end, " | none"),))


# sizes that would have fitted: the way out that a finding offers


def near_multiples(size: int, step: int) -> tuple[int, ...]:
    """Return the multiples of `step` next to `size`, below and above, without 0.

    >>> near_multiples(14340, 8)
    (14336, 14344)
    """
    below = size - size % step
    return tuple(multiple for multiple in (below, below + step) if multiple)


def padded(size: int, step: int) -> int:
    """Return the multiple of `step` next above `size`, or `size` where it is one.

    >>> padded(14340, 8), padded(16, 8)
    (14344, 16)
    """
    return -(-size // step) * step


def copies(size: int, unit: int, ways: int) -> int | None:
    """Return how often each unit must stand so that `ways` devices hold one unit each.

    None where the units are not fewer, or do not go into `ways`; one unit is no split at all.

    >>> copies(8, 1, 16), copies(512, 64, 16), copies(8, 1, 12), copies(1, 1, 4)
    (2, 2, None, None)
    """
    units = size // unit if size % unit == 0 else 0
    return ways // units if 1 < units < ways and ways % units == 0 else None


def axis_sizes(size: int, unit: int, others: int) -> tuple[int, ...]:
    """Return the sizes of a mesh axis that divide a dimension, which others split `others` ways.

    >>> axis_sizes(8, 1, 1)
    (1, 2, 4, 8)
    """
    units = size // unit if size % unit == 0 else 0
    if not units or units % others:
        return ()
    return divisors(units // others)


def ways_text(axes: Sequence[str], mesh: Mesh) -> str:
    """Return "`fsdp` = 32", or "`(data, fsdp)` = 2 x 16 = 32"."""
    if len(axes) == 1:
        return f"`{axes[0]}` = {mesh.ways(axes)}"
    product = " x ".join(str(mesh.sizes[axis]) for axis in axes)
    return f"`({', '.join(axes)})` = {product} = {mesh.ways(axes)}"


def set_text(numbers: Iterable[int]) -> str:
    """Return `{1, 2, 4, 8}`, cut after eight."""
    numbers = list(numbers)
    more = ", ..." if len(numbers) > 8 else ""
    return f"{{{', '.join(map(str, numbers[:8]))}{more}}}"
