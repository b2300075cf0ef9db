"""The arrays that a finding is about: which they are, what they cost, what could be split more.

Their cost is what a device holds of them, on the target where that is most, with what one more
mesh axis would make of it. A device of a mesh of one has to hold everything, so nothing is said
of that. SHD112, SHD225, SHD226, SHD401, SHD404, SHD410 and SHD501 ask what could be split more, and
share one measure: what a device holds in vain is large beside what it holds in all (`is_large`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import NamedTuple, TypeVar

from shardspec.diagnostics import Code, Diagnostic, labels_at, words
from shardspec.ir.plan import ActivationSharding, Alike, DimSharding, ParamSharding, ShardingPlan
from shardspec.ir.spec import array_bytes, axis_of
from shardspec.lints.context import Context
from shardspec.resolve.state import extra_axes, split_further

_SHOWN = 5

#: Lines of one kind before the rest is counted.
_MOST_LINES = 8

#: Paths that are worth putting into one glob.
_COLLAPSED = 500

Said = TypeVar("Said", bound=Hashable)


Subject = Alike | ActivationSharding


def subjects(plan: ShardingPlan) -> tuple[Subject, ...]:
    """Return what a plan lays out: its arrays, those that are alike as one, and activations."""
    return (*plan.alike, *plan.activations)


@dataclass(slots=True)
class Affected:
    """The arrays, activations and targets that something happens to, in order."""

    arrays: dict[str, None] = field(default_factory=dict)
    activations: dict[str, None] = field(default_factory=dict)
    targets: dict[str, None] = field(default_factory=dict)

    def add(self, subject: Subject, plan: ShardingPlan) -> None:
        """Add arrays that are alike, or an activation, on a target."""
        if isinstance(subject, Alike):
            self.arrays.update(dict.fromkeys(subject.paths))
        else:
            self.activations.setdefault(subject.activation.name)
        self.targets.setdefault(plan.target.name)

    @property
    def counts(self) -> str:
        """Return `2 arrays and 1 activation`."""
        return words.tallied((len(self.arrays), "array"), (len(self.activations), "activation"))

    @property
    def target(self) -> str | None:
        """Return the only target; None where there are more."""
        return only(self.targets)

    def notes(self) -> Iterator[str]:
        """Yield a note on the arrays and one on the activations."""
        if self.arrays:
            yield words.described(self.arrays)
        if self.activations:
            yield words.named("activation", self.activations)


def only(names: Iterable[str]) -> str | None:
    """Return the only one of some names; None where there are more."""
    first, *others = names
    return None if others else first


class Cost(NamedTuple):
    """What the devices of one target hold of some arrays.

    Attributes:
      bytes: on one device.
      held: of all arrays but those that may be whole, on one device.
      is_whole: whether every device holds all of each.
      axis: the mesh axis that would split them best, and has no part in them; None without one.
      then: bytes on one device if it did.
    """

    plan: ShardingPlan
    bytes: int
    held: int
    is_whole: bool
    axis: str | None
    then: int

    def __str__(self) -> str:
        """Return "replicated: 250 MiB on every device, 40 % of all it holds; `tensor` ..."."""
        where = f" of target `{self.plan.target.name}`" if len(self.plan.spec.targets) > 1 else ""
        share = f"{words.percent(self.bytes, max(self.held, self.bytes))} of all it holds"
        size = f"{words.binary_bytes(self.bytes)} on every device{where}, {share}"
        then = f"; sharded over `{self.axis}`, it would be {words.binary_bytes(self.then)}"
        is_less = self.axis and words.binary_bytes(self.then) != words.binary_bytes(self.bytes)
        return f"{'replicated: ' if self.is_whole else ''}{size}{then if is_less else ''}"


def cost(context: Context, paths: Iterable[str]) -> Cost | None:
    """Return what arrays cost on the target where that is most; None without devices to share."""
    paths = tuple(dict.fromkeys(paths))
    found = (_on_target(context, plan, paths) for plan in context.shared_plans)
    return max((each for each in found if each.bytes), key=lambda each: each.bytes, default=None)


def with_cost(
    finding: Diagnostic, context: Context, paths: Iterable[str], before: str = ""
) -> Diagnostic:
    """Return a finding with a note on its arrays: how many, the first of them, what they cost.

    Args:
      before: what to say first in the note.
    """
    asked = tuple(paths)
    if not asked:
        return finding
    arrays, text, size = context.once(_words, asked)
    notes = (*finding.notes, f"{before}{text}")
    return replace(finding, notes=notes, arrays=arrays, bytes=size or finding.bytes)


def _words(context: Context, paths: tuple[str, ...]) -> tuple[tuple[str, ...], str, int | None]:
    """Return some arrays, each once, in words with what they cost, and that in bytes."""
    arrays = tuple(dict.fromkeys(paths))
    most, text = cost(context, arrays), words.described(arrays)
    return (arrays, text, None) if most is None else (arrays, f"{text}; {most}", most.bytes)


def _on_target(context: Context, plan: ShardingPlan, paths: Sequence[str]) -> Cost:
    groups = tuple(plan.alike_among(frozenset(paths)))
    size = sum(group.device_bytes for group in groups)
    options = ((_bytes_over(plan, axis.name, groups), axis.name) for axis in plan.mesh.axes)
    then, axis = min(options, default=(size, ""))
    whole = all(group.is_replicated for group in groups)
    return Cost(
        plan, size, context.held[plan.target.name], whole, axis if then < size else None, then
    )


def _bytes_over(plan: ShardingPlan, axis: str, groups: Iterable[Alike]) -> int:
    """Return what a device would hold of the arrays, each split over one more mesh axis."""
    return sum(
        group.laid_out(extra_axes(group.dims, plan.mesh, (axis,))).device_bytes for group in groups
    )


def largest(arrays: Iterable[tuple[str, int]], least: int = 0) -> tuple[str, ...]:
    """Return a line for each of the arrays that take most, and one for the rest.

    Arrays whose paths differ in numbers alone stand in one line, and count together.

    Args:
      arrays: paths, and the bytes of each.
      least: bytes below which a line says nothing, and is left out.

    >>> largest([("a/0/w", 1024), ("a/1/w", 1024), ("b", 16)])
    ('2.00 KiB  a/{0,1}/w x2', '16 B  b')
    """
    sizes = words.grouped(arrays, lambda array: words.template(array[0]))
    groups = {key: [path for path, _ in each] for key, each in sizes.items()}
    totals = {key: sum(size for _, size in each) for key, each in sizes.items()}
    order = sorted(groups, key=lambda key: (-totals[key], key))
    lines = [(totals[key], _as_one(groups[key])) for key in order[:_SHOWN]]
    rest = order[_SHOWN:]
    if rest:
        count = sum(len(groups[key]) for key in rest)
        lines.append((sum(totals[key] for key in rest), words.counted(count, "other array")))
    return tuple(f"{words.binary_bytes(size)}  {text}" for size, text in lines if size >= least)


def rows(arrays: Iterable[tuple[str, Said]]) -> Iterator[tuple[str, int, Said]]:
    """Yield paths that differ in numbers alone as one, with their count and what is said of all.

    >>> list(rows([("a/1", "new"), ("a/0", "new"), ("b", "gone")]))
    [('a/{0,1} x2', 2, 'new'), ('b', 1, 'gone')]
    """
    groups = words.grouped(arrays, lambda array: (words.template(array[0]), array[1]))
    for (_, said), members in sorted(
        groups.items(), key=lambda group: words.natural(group[1][0][0])
    ):
        count = f" x{len(members)}" if len(members) > 1 else ""
        yield words.as_one((path for path, _ in members), " ..") + count, len(members), said


def cut(lines: Iterable[str]) -> Iterator[str]:
    """Yield some of the lines of `rows`, and how many there are left."""
    whole = list(lines)
    yield from whole[:_MOST_LINES]
    if len(whole) > _MOST_LINES:
        yield f"and {words.counted(len(whole) - _MOST_LINES, 'more group')} of arrays"


def _as_one(paths: list[str]) -> str:
    if len(paths) == 1:
        return paths[0]
    glob = words.collapsed(sorted(paths, key=words.natural)) if len(paths) <= _COLLAPSED else None
    return f"{glob} x{len(paths)}" if glob else f"{paths[0]} and {len(paths) - 1} alike"


def shared_folder(paths: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the components that all of `paths` begin with.

    >>> shared_folder([("layers", "mlp", "wi"), ("layers", "mlp", "wo")])
    ('layers', 'mlp')
    """
    columns = zip(*paths, strict=False)
    return tuple(column[0] for column in takewhile(lambda each: len(set(each)) == 1, columns))


Layers = tuple[ParamSharding, ...]


def whole_layers(
    context: Context, plan: ShardingPlan, is_wanted: Callable[[ParamSharding], bool]
) -> Iterator[Layers]:
    """Yield the large arrays that every device holds whole, layers together.

    What `replicate:` allows is left out.
    """
    wanted = filter(is_wanted, context.covered[plan.target.name].counted)
    groups = words.grouped(wanted, lambda s: (words.template(s.param.path), s.dims, s.param.dtype))
    for group in groups.values():
        if context.is_large(sum(sharding.param.bytes for sharding in group), plan.target.name):
            yield tuple(group)


def would_divide(ways: int, dim: DimSharding) -> bool:
    """Say whether one more mesh axis would split a dimension, on top of what splits it."""
    size = dim.size or 0
    return ways > 1 and size > 0 and dim.fits(dim.ways * ways)


def one_axis_more(plan: ShardingPlan, arrays: Alike) -> Iterator[tuple[str, int, int]]:
    """Yield each mesh axis that would split arrays further: axis, dimension, bytes of a shard."""
    for axis in plan.mesh.names:
        split = split_further(arrays.dims, plan.mesh, (axis,))
        if split.dim is not None:
            yield axis, split.dim, arrays.laid_out(split.dims).shard_bytes


#: Padding is much where it is one part in so many of the axis.
_PARTS = 10


@dataclass(slots=True)
class Padding:
    """One axis of one size that is padded, on the target where that costs a device most.

    Attributes:
      dim: a dimension that is split so that it needs padding, where there is one.
      device_bytes: of padding; `bytes` of all devices together, each shard counted once.
    """

    axis: str
    true_size: int
    size: int
    plan: ShardingPlan
    dim: DimSharding
    arrays: list[str] = field(default_factory=list)
    bytes: int = 0
    device_bytes: int = 0

    @property
    def is_much(self) -> bool:
        """Say whether the padding is a large part of the axis."""
        return _PARTS * (self.size - self.true_size) >= self.true_size

    def add(self, sharding: ParamSharding, dim: DimSharding, more: int) -> None:
        """Add an array."""
        param = sharding.param
        padding = array_bytes((param.element_count // (dim.size or 1), more), param.dtype)
        self.arrays.append(param.path)
        self.bytes += padding
        self.device_bytes += -(-padding // sharding.shard_count)
        if dim.ways > 1 and self.true_size % (dim.ways * dim.unit):
            self.dim = dim


def paddings(context: Context) -> tuple[Padding, ...]:
    """Return each padded axis once, in order of the arrays."""
    return context.once(_paddings)


def _paddings(context: Context) -> tuple[Padding, ...]:
    worst: dict[tuple[str, int], Padding] = {}
    for plan in context.plans:
        for key, found in _of_plan(plan).items():
            known = worst.setdefault(key, found)
            if found.device_bytes > known.device_bytes:
                worst[key] = found
    return tuple(worst.values())


def _of_plan(plan: ShardingPlan) -> dict[tuple[str, int], Padding]:
    found: dict[tuple[str, int], Padding] = {}
    for sharding in plan.padded:
        for dim, more in zip(sharding.dims, sharding.param.padding, strict=True):
            name, size = axis_of(dim.logical_axis or ""), dim.size or 0
            if more and name:
                new = Padding(name, size - more, size, plan, dim)
                found.setdefault((name, size - more), new).add(sharding, dim, more)
    return found


def finding(context: Context, code: Code, found: Padding, help: str | None) -> Diagnostic:
    """Return the diagnostic for one axis, with its cost."""
    declared = context.axes.get(found.axis)
    taken, more = found.dim.taken, found.size - found.true_size
    target = f" on `{found.plan.target.name}`" if len(context.plans) > 1 else ""
    return Diagnostic(
        code,
        f"`{found.axis}` = {found.true_size} is padded to {found.size}"
        f" (+{words.percent(more, found.true_size)}): {words.binary_bytes(found.device_bytes)} per"
        f" device{target}, {words.binary_bytes(found.bytes)} in all",
        labels_at(
            (taken.span if taken else None, f"does not divide {found.true_size}"),
            (declared.span if declared else None, f"`{found.axis}` is {found.true_size}"),
        ),
        notes=tuple(_notes(found)),
        help=help,
        arrays=tuple(found.arrays),
        bytes=found.device_bytes,
    )


def _notes(found: Padding) -> Iterator[str]:
    yield words.described(found.arrays)
    multiple = dict(found.plan.spec.multiples).get(found.axis)
    if multiple is not None:
        yield f"every array has {found.size} of it, the next multiple of {multiple}"
