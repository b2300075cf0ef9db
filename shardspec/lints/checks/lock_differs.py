"""The plan of a live tree differs from the lock of the spec.

`spec.lock` is made of the arrays that the spec lists. If its digests are those of today and the
answers are not, the running model has arrays that the list does not have, or has in other sizes
or under other names; or another version of shardspec made the lock. `resolver.findings(tree)` and
`resolver.verify_placement(tree)` say so. A lock that is older than its files is a warning when the
`Resolver` is made, and is not compared.

Bad:
    # spec.lock:   mlp/kernel : f32[embed=512 mlp=2048] = (data, model)
    # the model:   mlp/kernel   f32[512, 2049]

Good:
    # spec.lock:   mlp/kernel : f32[embed=512 mlp=2048] = (data, model)
    # the model:   mlp/kernel   f32[512, 2048]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from shardspec.analysis.layout_diff import ArrayLayout, ArrayMove, Mark, TargetDiff, TargetLayout
from shardspec.diagnostics import Diagnostic, codes
from shardspec.diagnostics.words import counted
from shardspec.language.catalogue import with_count
from shardspec.lints.evidence.arrays import cut, rows

_HELP = "`shardspec lock --check` compares with the arrays that the spec lists; `shardspec lock` \
writes the lock anew"


def findings(diff: TargetDiff, lock: str) -> Iterator[Diagnostic]:
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
        yield Diagnostic(codes.LOCK_DIFFERS, what, notes=tuple(_notes(moved, _change)), help=_HELP)
    new = [move for move in diff.moves if move.mark is Mark.NEW]
    if new:
        yield Diagnostic(
            codes.LOCK_DIFFERS,
            f"{_who(new)} not in `{lock}`",
            notes=tuple(_notes(new, _now)),
            help=_HELP,
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


def _notes(moves: Sequence[ArrayMove], text: Callable[[ArrayMove], str]) -> Iterator[str]:
    found = rows((move.path, text(move)) for move in moves)
    return cut((f"{name}: {said}" for name, _, said in found))


def _change(move: ArrayMove) -> str:
    if move.before is None or move.after is None:
        return ""
    return f"locked {_text(move.before)}, now {_text(move.after)}"


def _now(move: ArrayMove) -> str:
    return "" if move.after is None else _text(move.after)


def _text(array: ArrayLayout) -> str:
    memory = f" in {array.memory}" if array.memory else ""
    return f"{array.dtype}[{', '.join(map(str, array.shape))}] {array.partition}{memory}"
