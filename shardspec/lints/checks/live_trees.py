"""Live trees, checkpoints and processes that differ from the plan."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from shardspec.analysis.layout_diff import ArrayMove, Mark, TargetDiff
from shardspec.analysis.layouts import ArrayLayout, TargetLayout
from shardspec.diagnostics import Diagnostic, codes, quote
from shardspec.diagnostics.words import binary_bytes, by_key, collapsed, counted, natural, template
from shardspec.ir.spec import Param
from shardspec.language.catalogue import with_count
from shardspec.lints.evidence.arrays import cut, rows

# sharding-differs


_PUT = "`resolver.put(tree)` moves them; "
_OUT = "where `jax.jit` makes them, pass it `out_shardings=resolver.shardings(tree)`"


class Cause(StrEnum):
    """Why an array is not where it should be: the end of `3 arrays ...`."""

    HOST = "in host memory, on no device"
    UNCOMMITTED = "on one device, uncommitted: nothing has placed"
    ONE_DEVICE = "on one device"
    ELSEWHERE = "on other devices than the mesh"
    ORDER = "on the devices of the mesh, in another order"
    SPLIT = "sharded differently from the plan"
    MEMORY = "in another memory than planned"
    UNREDUCED = "not summed up: each part of a mesh axis holds a partial sum"
    NOT_PARTS = "no partial sums over the mesh axes that the plan has them over"
    REDUCED = "summed up over other mesh axes than planned, as gradients will tell"


_SHARDING_DIFFERS_HELP = {
    Cause.HOST: _PUT + "so does a `jax.jit` with `in_shardings`, at every call",
    Cause.UNCOMMITTED: _PUT + _OUT,
    Cause.ONE_DEVICE: _PUT + _OUT,
    Cause.ELSEWHERE: _PUT
    + "where they are right, make the resolver with the `devices` they are on",
    Cause.ORDER: _PUT + "make every sharding with `resolver.mesh`, never with another mesh",
    Cause.SPLIT: _PUT + _OUT,
    Cause.MEMORY: _PUT + f"{quote.section('memory:')} in the spec says where arrays are placed, or"
    ' `resolver.verify_placement(tree, memory_kinds=["pinned_host"])` where they may',
    Cause.UNREDUCED: "`resolver.put(tree)` sums them up; so does `jax.sharding.reshard` in a step",
    Cause.NOT_PARTS: "`resolver.put(tree)` makes them partial sums",
    Cause.REDUCED: "`resolver.put(tree)` makes them what is planned",
}


class Differing(NamedTuple):
    """One live array that lies otherwise than planned.

    Attributes:
      type: `f32[512, 2048]`.
      planned: a partition spec, or the like of it for people.
      found: what the array says of itself.
      more_bytes: what the fullest device holds more than planned; negative if less.
    """

    path: str
    type: str
    planned: str
    found: str
    cause: Cause
    more_bytes: int


def sharding_differs(arrays: Sequence[Differing], mesh: str) -> Iterator[Diagnostic]:
    """Yield a finding for each cause, layers that agree in everything taken together."""
    for cause in Cause:
        group = [array for array in arrays if array.cause is cause]
        if group:
            yield _finding(cause, group, mesh)


def _finding(cause: Cause, group: Sequence[Differing], mesh: str) -> Diagnostic:
    more = sum(max(array.more_bytes, 0) for array in group)
    is_sum = more and len(group) > 1
    wasted = (f"+{binary_bytes(more)} on the fullest device, in all",) if is_sum else ()
    found = rows((each.path, each._replace(path="")) for each in group)
    lines = (f"{name} {_sharding_differs_text(first, count)}" for name, count, first in found)
    return Diagnostic(
        codes.SHARDING_DIFFERS,
        _message(cause, group, mesh),
        notes=(*cut(lines), *wasted),
        help=_SHARDING_DIFFERS_HELP[cause],
    )


def _message(cause: Cause, group: Sequence[Differing], mesh: str) -> str:
    who = f"`{group[0].path}`" if len(group) == 1 else counted(len(group), "array")
    is_one = len(group) == 1
    end = {Cause.UNCOMMITTED: " it" if is_one else " them", Cause.ELSEWHERE: f" {mesh}"}
    return f"{who} {'is' if is_one else 'are'} {cause}{end.get(cause, '')}"


def _sharding_differs_text(array: Differing, count: int) -> str:
    """Return what is said of so many arrays that differ in numbers of their paths only."""
    more = array.more_bytes
    size = f", {'+' if more > 0 else '-'}{binary_bytes(abs(more))} on a device" if more else ""
    each = " each" if size and count > 1 else ""
    return f"{array.type}: planned {array.planned}, found {array.found}{size}{each}"


# processes-differ


#: The fact that stands alone where a process has no plan: why.
FAILED = "failed"

#: Facts that follow from others: told only where nothing else differs.
CONSEQUENCES = ("the spec with its changes", "the mesh", "the order of the devices")


class View(NamedTuple):
    """What one process plans by.

    Attributes:
      facts: names, such as that of a file, and what stands there, such as its digest.
    """

    process: int
    facts: tuple[tuple[str, str], ...]

    @property
    def digest(self) -> str:
        """Return a short digest of all facts."""
        return hashlib.sha256(repr(self.facts).encode()).hexdigest()[:12]

    @property
    def failure(self) -> str | None:
        """Return why this process has no plan, None where it has one."""
        return dict(self.facts).get(FAILED)


def processes_differ(views: Sequence[View]) -> Diagnostic:
    """Return the diagnostic for processes whose facts are not all the same."""
    failed = [view for view in views if view.failure is not None]
    if failed:
        return _failure(failed)
    groups = by_key((view.digest, view.process) for view in views)
    by_digest = ", ".join(f"`{digest}` on {_processes(at)}" for digest, at in groups.items())
    return Diagnostic(
        codes.PROCESSES_DIFFER,
        f"the processes of this run plan by different specs: {by_digest}",
        notes=tuple(_differences(views)),
        help="start every process with the same files and the same version of shardspec",
    )


def _failure(failed: Sequence[View]) -> Diagnostic:
    reasons = by_key((view.failure or "", view.process) for view in failed)
    has = "has" if len(failed) == 1 else "have"
    return Diagnostic(
        codes.PROCESSES_DIFFER,
        f"{_processes([view.process for view in failed])} {has} no plan, so none can continue",
        notes=tuple(f"{_processes(at)}: {reason}" for reason, at in reasons.items()),
        help="give every process the spec that this one has",
    )


def _differences(views: Sequence[View]) -> Iterator[str]:
    """Yield what differs, causes alone where there are any."""
    known = [dict(view.facts) for view in views]
    names = dict.fromkeys(name for facts in known for name in facts)
    differing = [name for name in names if len({facts.get(name) for facts in known}) > 1]
    causes = [name for name in differing if name not in CONSEQUENCES]
    for name in causes or differing:
        having = [view for view in views if name in dict(view.facts)]
        groups = by_key((dict(view.facts)[name], view.process) for view in having)
        if len(having) < len(views) and len(groups) == 1:
            yield f"{name} is read on {_processes([view.process for view in having])} only"
            continue
        yield f"{name}: " + ", ".join(f"{what} on {_processes(at)}" for what, at in groups.items())


def _processes(numbers: Sequence[int]) -> str:
    """Return "process 1", or "processes 0, 2, 3", cut after a few."""
    if len(numbers) == 1:
        return f"process {numbers[0]}"
    shown = ", ".join(map(str, numbers[:8]))
    rest = len(numbers) - 8
    return f"processes {shown} and {rest} more" if rest > 0 else f"processes {shown}"


# checkpoint-differs


#: Notes of one kind before the rest is counted.
_MOST = 8

#: The component that a box of Flax adds.
_BOX = "value"


class _Difference(NamedTuple):
    """Arrays by what is wrong with them.

    Attributes:
      unlike: pairs of the array in the checkpoint and that in the tree.
    """

    missing: tuple[Param, ...]
    extra: tuple[Param, ...]
    unlike: tuple[tuple[Param, Param], ...]


def checkpoint_differs(
    name: str, saved: Iterable[Param], wanted: Iterable[Param]
) -> Diagnostic | None:
    """Return what a checkpoint and a tree do not have in common, None where that is nothing.

    Args:
      name: of the checkpoint.
    """
    held = {param.path: param for param in saved}
    asked = {param.path: param for param in wanted}
    found = _Difference(
        tuple(param for path, param in asked.items() if path not in held),
        tuple(param for path, param in held.items() if path not in asked),
        tuple((held[path], param) for path, param in asked.items() if _is_unlike(held, param)),
    )
    if not any(found):
        return None
    counts = (
        (found.missing, "missing"),
        (found.extra, "extra"),
        (found.unlike, "of another shape or dtype"),
    )
    what = ", ".join(f"{counted(len(group), 'array')} {how}" for group, how in counts if group)
    return Diagnostic(
        codes.CHECKPOINT_DIFFERS,
        f"the checkpoint `{name}` does not hold the tree: {what}",
        notes=tuple(_checkpoint_differs_notes(found)),
        help=_help(found, held, asked),
    )


def _is_unlike(held: Mapping[str, Param], wanted: Param) -> bool:
    saved = held.get(wanted.path, wanted)
    return (saved.shape, saved.dtype) != (wanted.shape, wanted.dtype)


def _checkpoint_differs_notes(found: _Difference) -> Iterator[str]:
    yield from _cut(f"missing: {each}" for each in _together((p, str(p)) for p in found.missing))
    yield from _cut(f"extra: {each}" for each in _together((p, str(p)) for p in found.extra))
    pairs = ((wanted, f"{saved} there, {wanted} in the tree") for saved, wanted in found.unlike)
    yield from _cut(_together(pairs))


def _together(arrays: Iterable[tuple[Param, str]]) -> Iterator[str]:
    """Yield each array with what is said of it, those of different layers as one."""
    groups = by_key(((template(param.path), said), param.path) for param, said in arrays)
    for (_, said), paths in groups.items():
        ordered = sorted(paths, key=natural)
        shown = collapsed(ordered)
        for path in ordered if shown is None else [shown]:
            yield f"`{path}` {said}"


def _cut(notes: Iterable[str]) -> Iterator[str]:
    whole = list(notes)
    yield from whole[:_MOST]
    if len(whole) > _MOST:
        yield f"and {len(whole) - _MOST} more like these"


def _help(found: _Difference, held: Mapping[str, Param], asked: Mapping[str, Param]) -> str:
    """Return what would work, for the commonest of causes."""
    root = _below(held, asked)
    if root:
        rest = "" if len(held) == len(asked) else ", with the rest of what was saved"
        return f"the checkpoint has the tree below `{root}`: restore {{{root!r}: tree}}{rest}"
    root = _below(asked, held)
    if root:
        return f"the checkpoint is what the tree has below `{root}`: restore tree[{root!r}]"
    if found.missing and _unboxed(held) == _unboxed(asked):
        if held.keys() == _unboxed(asked):
            return "the tree is boxed by Flax, what was saved is not: `restore(..., boxed=False)`"
        return "one of the two is boxed by Flax and the other is not: restore into the same"
    if found.missing:
        return "restore into a tree of what was saved, and make the rest by `init`"
    if found.extra:
        return "restore into a tree that has these too, and drop them after"
    if any(saved.shape != wanted.shape for saved, wanted in found.unlike):
        return "make the model with the sizes that it was saved with"
    return "make the tree with the dtypes that were saved, and cast after restoring"


def _below(paths: Mapping[str, Param], others: Mapping[str, Param]) -> str | None:
    """Return the component below which `paths` have all that `others` are."""
    roots = dict.fromkeys(path.partition("/")[0] for path in paths)
    return next(
        (r for r in roots if others and all(f"{r}/{path}" in paths for path in others)), None
    )


def _unboxed(paths: Mapping[str, Param]) -> set[str]:
    return {path.removesuffix(f"/{_BOX}") for path in paths}


# lock-differs


_LOCK_DIFFERS_HELP = (
    "`shardspec lock --check` compares with the arrays that the spec lists; `shardspec lock` \
writes the lock anew"
)


def lock_differs(diff: TargetDiff, lock: str) -> Iterator[Diagnostic]:
    """Yield what a plan says otherwise than a lock; that it has fewer arrays is no finding.

    Args:
      diff: from the lock to the plan, on one target.
      lock: the file.
    """
    if diff.before is None:
        message = f"`{lock}` does not have the target `{diff.name}`"
        yield Diagnostic(codes.LOCK_DIFFERS, message, help="`shardspec lock` writes the lock anew")
        return
    if diff.after is not None and diff.machine_changed:
        yield _machine(diff.before, diff.after, lock)
    if not diff.before.arrays:
        return
    moved = [move for move in diff.moves if move.mark not in (Mark.NEW, Mark.GONE, Mark.SAME)]
    if moved:
        what = f"{_who(moved)} planned differently from `{lock}`"
        yield Diagnostic(
            codes.LOCK_DIFFERS,
            what,
            notes=tuple(_lock_differs_notes(moved, _change)),
            help=_LOCK_DIFFERS_HELP,
        )
    new = [move for move in diff.moves if move.mark is Mark.NEW]
    if new:
        yield Diagnostic(
            codes.LOCK_DIFFERS,
            f"{_who(new)} not in `{lock}`",
            notes=tuple(_lock_differs_notes(new, _now)),
            help=_LOCK_DIFFERS_HELP,
        )


def _machine(before: TargetLayout, after: TargetLayout, lock: str) -> Diagnostic:
    sides = [_machine_text(each) for each in (before, after)]
    note = f"locked: {sides[0]}; now: {sides[1]}"
    if sides[0] == sides[1]:
        note = "the same mesh, with its devices in another order"
    message = f"target `{after.name}` is another machine than in `{lock}`"
    help = "`shardspec mesh` shows the order of devices; `shardspec lock` writes the lock anew"
    return Diagnostic(codes.LOCK_DIFFERS, message, notes=(note,), help=help)


def _machine_text(target: TargetLayout) -> str:
    axes = target.mesh.axes
    kinds = ", ".join(f"{a.name} {a.axis_type}" for a in axes if a.axis_type != "auto")
    on = f" on {with_count(target.hardware)}" if target.hardware else ""
    return f"{target.mesh}{f' ({kinds})' if kinds else ''}{on}"


def _who(moves: Sequence[ArrayMove]) -> str:
    return f"`{moves[0].path}` is" if len(moves) == 1 else f"{counted(len(moves), 'array')} are"


def _lock_differs_notes(
    moves: Sequence[ArrayMove], text: Callable[[ArrayMove], str]
) -> Iterator[str]:
    found = rows((move.path, text(move)) for move in moves)
    return cut((f"{name}: {said}" for name, _, said in found))


def _change(move: ArrayMove) -> str:
    if move.before is None or move.after is None:
        return ""
    return f"locked {_lock_differs_text(move.before)}, now {_lock_differs_text(move.after)}"


def _now(move: ArrayMove) -> str:
    return "" if move.after is None else _lock_differs_text(move.after)


def _lock_differs_text(array: ArrayLayout) -> str:
    memory = f" in {array.memory}" if array.memory else ""
    return f"{array.dtype}[{', '.join(map(str, array.shape))}] {array.partition}{memory}"
