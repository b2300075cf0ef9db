"""Dimensions that ended whole, or uneven, because their mesh axes do not divide them.

Read off the traces; `indivisible` and `cut_unit` tell the two ways apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from shardspec.diagnostics import Code, Diagnostic, Label
from shardspec.diagnostics.diagnostic import Edit, Fix
from shardspec.diagnostics.source import Span
from shardspec.diagnostics.suggest import listed
from shardspec.ir.plan import DimSharding, Outcome, Sharding
from shardspec.ir.spec import target_text
from shardspec.ir.units import binary_bytes, percent
from shardspec.lints.axis_cases import AxisCase, Judged, axis_cases
from shardspec.lints.context import Context
from shardspec.resolve.fit import axis_sizes, copies, near_multiples, padded, set_text


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
    def step(self) -> int:
        """Return what the size must be a multiple of."""
        return self.case.ways * self.case.unit


Key = tuple[str, int, int]


def uneven(context: Context) -> Iterator[Uneven]:
    """Yield each case once, in order of target and array."""
    cases = axis_cases(context, _refused)
    if not cases:
        return
    even = _even(context)
    everywhere = {plan.target.name for plan in context.plans}
    for case in cases:
        others = even.get((case.axis, case.size, case.unit), {})
        divides_on = tuple(name for name in others if name not in case.meshes)
        yield Uneven(case, divides_on, everywhere == {*divides_on, *case.targets})


def _refused(dims: Sequence[DimSharding]) -> Iterator[Judged]:
    """Yield each dimension that ends whole or uneven for want of division, with the attempt."""
    for dim in dims:
        taken = dim.taken
        if taken is not None and taken.ways > 1 and not dim.is_even:
            yield Judged(dim, taken)
        elif taken is None:
            first = next((a for a in dim.attempts if a.outcome is Outcome.INDIVISIBLE), None)
            if first is not None:
                yield Judged(dim, first)


def _even(context: Context) -> Mapping[Key, dict[str, None]]:
    """Return the targets on which each named dimension is split evenly."""
    found: dict[Key, dict[str, None]] = {}
    for plan in context.plans:
        shardings: tuple[Sharding, ...] = plan.params + plan.activations
        for dims in dict.fromkeys(sharding.dims for sharding in shardings):
            for dim in dims:
                if dim.logical_axis is not None and dim.ways > 1 and dim.is_even:
                    key = (dim.logical_axis, dim.size or 0, dim.unit)
                    found.setdefault(key, {})[plan.target.name] = None
    return found


def finding(context: Context, code: Code, found: Uneven, message: str) -> Diagnostic:
    """Return the diagnostic for one case, with its damage and its ways out."""
    case = found.case
    return Diagnostic(
        code,
        message,
        tuple(_labels(context, found)),
        tuple(_notes(found)),
        _help(found),
        target=case.targets[0] if len(case.targets) == 1 else None,
        fix=_fix(context, found),
        arrays=tuple(case.arrays),
        bytes=case.per_device_bytes if case.arrays else None,
    )


def _labels(context: Context, found: Uneven) -> Iterator[Label]:
    """Yield the rule, then the sizes that do not go together, where they are stated."""
    case = found.case
    rule = case.attempt.span
    if rule is not None:
        said = "fires all the same, and JAX will refuse" if found.kept else "cannot fire here"
        yield Label(rule, said)
        declared = context.axes.get(case.axis)
        if declared is not None and declared.span is not None:
            of_units = f", in units of {case.unit}" if case.unit > 1 else ""
            said = f"`{case.axis}` is {case.size}{of_units}"
            if declared.size not in (None, case.size):
                said = f"`{case.axis}` is {declared.size} here, and {case.size} in what is refused"
            yield Label(declared.span, said, primary=False)
        target, mesh = next(iter(case.meshes.items()))
        for axis in mesh.axes:
            if axis.name in case.attempt.mesh_axes and axis.span is not None:
                said = f"`{axis.name}` is {axis.size} on `{target}`"
                yield Label(axis.span, said, primary=False)


def _notes(found: Uneven) -> Iterator[str]:
    """Yield what it happens to, and for arrays the damage."""
    case = found.case
    first, *others = case.subjects()
    if case.arrays and not found.kept:
        lost = case.per_device_bytes * (case.ways - 1) // case.ways
        first += f"; replicated instead: +{binary_bytes(lost)} per device"
    yield first
    yield from others
    if found.divides_on:
        affected = f"; only {listed(case.targets)} {'is' if len(case.targets) == 1 else 'are'}"
        yield f"divides on {listed(found.divides_on)}{f'{affected} affected' * found.is_only}"
    yield from _padding(found)
    yield from _copies(found)


def _padding(found: Uneven) -> Iterator[str]:
    """Yield the size to pad to and its waste, unless that is more than half of the dimension."""
    case = found.case
    size = padded(case.size, found.step)
    extra = size - case.size
    if not case.arrays or not 0 < 2 * extra <= case.size:
        return
    length = -(-case.size // case.ways) * case.ways if found.kept else case.size
    split = 1 if found.kept else case.ways
    waste = -(-case.per_device_bytes * extra // (length * split))
    yield (
        f"padded to {size} (+{percent(extra, case.size)}) it divides, for"
        f" {binary_bytes(waste)} of padding per device in all"
    )


def _copies(found: Uneven) -> Iterator[str]:
    """Yield how to give each device one unit, where there are fewer units than devices."""
    case = found.case
    times = copies(case.size, case.unit, case.ways)
    if times is None or len(case.attempt.mesh_axes) != 1 or not case.is_named:
        return
    (axis,) = case.attempt.mesh_axes
    taken = {name for mesh in case.meshes.values() for name in mesh.names}
    copy = f"{axis}_copy"
    while copy in taken:
        copy += "_"
    units = case.ways // times
    of = f" units of {case.unit}" if case.unit > 1 else ""
    yield (
        f"{units}{of} over {case.ways}: each would be held x{times} if `{axis}` were two mesh axes,"
        f" `{axis}: {units}` and `{copy}: {times}`; then `{case.axis} -> {axis}`, and `({axis},"
        f" {copy})` for what splits {case.ways} ways"
    )


def _help(found: Uneven) -> str:
    case = found.case
    sizes = near_multiples(case.size, found.step)
    options = [f"{case.axis} = {' or '.join(map(str, sizes))} would divide"]
    for axis, size in zip(case.attempt.mesh_axes, case.mesh_axis_sizes, strict=True):
        fitting = [
            fit
            for fit in axis_sizes(case.size, case.unit, case.ways // size)
            if all(mesh.device_count % fit == 0 for mesh in case.meshes.values())
        ]
        if len(fitting) > 1:
            options.append(f"`{axis}` in {set_text(fitting)}")
    if case.is_named and not found.kept:
        options.append(f"`{case.attempt} | none` says that replication is meant")
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
