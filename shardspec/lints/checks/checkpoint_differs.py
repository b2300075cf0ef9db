"""A checkpoint does not have the arrays to be restored.

Before `resolver.restore(path, tree)` reads any array, it compares the tree with what the
checkpoint says it holds: arrays that the tree has and the checkpoint lacks, arrays that are in the
checkpoint alone, and arrays of another shape or dtype. All of them are named at once, layers
taken together. A dtype counts too, since Orbax would cast without a word. The layout of the
checkpoint does not count: it may have been saved on another mesh and another machine.

Bad:
    # the checkpoint holds wi/kernel f32[512, 2048], the tree wi/kernel f32[512, 4096]
    shardspec: 1
    mesh: {data: 4, model: 2}
    rules:
      - mlp -> model
    arrays:
      wi/kernel: f32[_=512 mlp=4096]

Good:
    # the checkpoint holds wi/kernel f32[512, 2048], as the tree does; the mesh may be another
    shardspec: 1
    mesh: {data: 2, model: 4}
    rules:
      - mlp -> model
    arrays:
      wi/kernel: f32[_=512 mlp=2048]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, codes
from shardspec.diagnostics.words import by_key, collapsed, counted, natural, template
from shardspec.ir.spec import Param

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


def finding(name: str, saved: Iterable[Param], wanted: Iterable[Param]) -> Diagnostic | None:
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
        notes=tuple(_notes(found)),
        help=_help(found, held, asked),
    )


def _is_unlike(held: Mapping[str, Param], wanted: Param) -> bool:
    saved = held.get(wanted.path, wanted)
    return (saved.shape, saved.dtype) != (wanted.shape, wanted.dtype)


def _notes(found: _Difference) -> Iterator[str]:
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
