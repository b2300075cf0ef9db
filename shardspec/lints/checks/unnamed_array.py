"""The dimensions of an array have no names.

Add an entry under `params:`. Without names no rule applies, and the array is replicated on every
device. A large part of the model in which nothing has names is one finding, such as a tower or the
attention of all layers. Small arrays, such as norms and biases, are one finding together where they
take 2 % of what a device holds; below that they are SHD235. What `replicate:` allows to be whole
needs no names: plain data parallelism is `replicate: [{path: "**", because: data parallel}]`. The
help has the line to paste where the path and the sizes under `axes` allow one answer.

Bad:
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      - mlp -> tensor
    params:
      "**/wi/kernel": _ mlp
    arrays:
      mlp/wi/kernel: bf16[64, 128]
      mlp/wi/bias: bf16[128]

Good:
       "**/wi/kernel": _ mlp
    +  "**/wi/bias": mlp
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from shardspec.analysis.coverage import PARTS, allowed_paths, is_large
from shardspec.diagnostics import Code, Diagnostic, Span, codes, labels_at, point, quote
from shardspec.diagnostics.words import as_one, binary_bytes, counted, grouped, template
from shardspec.ir.plan import ParamSharding
from shardspec.ir.spec import Pattern
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import largest, with_cost
from shardspec.lints.evidence.entries import params_line
from shardspec.resolve.derive import wanted_paths
from shardspec.resolve.match import path_matcher

_CACHE_HELP = (
    "name the dimensions in its type under `caches`, as in `bf16[batch cache_length kv_heads kv]`;"
    " write a size that no axis has after its name, `kv_heads=8`"
)
_THEIR_NAMES = "their names to `params`"
#: Places that are shown of what is small, and lines that would name it.
_SHOWN = 4
#: Ends of paths that one pattern may list, and the components that an end may have.
_MOST_ENDS = 12
_MOST_PARTS = 3


class _Group(NamedTuple):
    """Arrays that one line of the source lists, or that differ in a layer number only.

    Attributes:
      shown: a glob for them, or the first.
    """

    shown: str
    arrays: tuple[ParamSharding, ...]

    @property
    def bytes(self) -> int:
        """Return the bytes of all of them."""
        return sum(sharding.param.bytes for sharding in self.arrays)

    @property
    def paths(self) -> tuple[str, ...]:
        """Return their paths."""
        return tuple(sharding.param.path for sharding in self.arrays)


class _Part(NamedTuple):
    """A part of the model in which nothing has names.

    Attributes:
      front: the front of all its paths, without numbers.
    """

    front: str
    groups: tuple[_Group, ...]

    @property
    def bytes(self) -> int:
        """Return the bytes of all its arrays."""
        return sum(group.bytes for group in self.groups)

    @property
    def shown(self) -> str:
        """Return the front with the numbers that there are."""
        paths = [path for group in self.groups for path in group.paths]
        mark = _mark(paths[0])
        depth = len(self.front.split(mark))
        return as_one(dict.fromkeys(mark.join(path.split(mark)[:depth]) for path in paths))


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each large part of the model that nothing names, and one for the rest."""
    parts, small = context.once(large_and_small)
    for part in parts:
        one = len(part.groups) == 1
        yield _of_one(context, part.groups[0]) if one else _of_part(context, part)
    if small and not is_little(context, small):
        yield of_small(context, small)


def large_and_small(context: Context) -> tuple[tuple[_Part, ...], tuple[_Group, ...]]:
    """Return the large parts of a model that nothing names, and all that is small."""
    groups = tuple(_groups(context))
    if not groups:
        return (), ()
    named = {template(each.param.path) for each in context.first if not each.needs_names}
    has_names = {front for path in named for front in _fronts(path)}

    def front_of(group: _Group) -> str:
        fronts = tuple(_fronts(group.paths[0]))
        return next((front for front in fronts if front not in has_names), fronts[-1])

    parts = tuple(_Part(front, tuple(some)) for front, some in grouped(groups, front_of).items())
    least = context.once(_held)
    large = tuple(part for part in parts if is_large(part.bytes, least))
    return large, tuple(each for part in parts if part not in large for each in part.groups)


def is_little(context: Context, groups: Sequence[_Group]) -> bool:
    """Say whether arrays take less than 2 % of what a device holds, all together."""
    return PARTS * sum(each.bytes for each in groups) < context.once(_held)


def _fronts(path: str) -> Iterator[str]:
    """Yield the fronts of a path without its numbers, the shortest first.

    >>> list(_fronts("layers_0/mlp/wi"))
    ['layers_#', 'layers_#/mlp', 'layers_#/mlp/wi']
    """
    mark = _mark(path)
    yield from accumulate(template(path).split(mark), lambda front, part: f"{front}{mark}{part}")


def _mark(path: str) -> str:
    return "/" if "/" in path else "."


def _held(context: Context) -> int:
    """Return what a device holds of all arrays, on the target where that is least."""
    held = [context.held[plan.target.name] for plan in context.shared_plans]
    return min(held) if held else sum(param.bytes for param in context.params)


def _groups(context: Context) -> Iterator[_Group]:
    unnamed = [
        sharding for sharding in context.first if sharding.needs_names and not sharding.mismatch
    ]
    if not unnamed:
        return
    allowed = allowed_paths(context.spec, (sharding.param.path for sharding in unnamed))
    missed = Counter(each.param.span for each in unnamed)
    ranges = {span for span, count in missed.items() if span is not None and count > 1}
    written = Counter(each.span for each in context.params if ranges and each.span in ranges)
    groups: dict[object, list[ParamSharding]] = {}
    for sharding in unnamed:
        span, path = sharding.param.span, sharding.param.path
        is_range = span in ranges and missed[span] == written[span]
        if path not in allowed:
            alike = (template(path), sharding.param.shape)
            groups.setdefault(span if is_range else alike, []).append(sharding)
    for key, group in groups.items():
        paths = [sharding.param.path for sharding in group]
        shown = key.text.strip("\"'") if isinstance(key, Span) else as_one(paths)
        yield _Group(shown, tuple(group))


def _of_one(context: Context, group: _Group) -> Diagnostic:
    param = group.arrays[0].param
    known = _convention(context, (param.path,)) or _proposal(context, (group,))
    finding = point(
        codes.UNNAMED_ARRAY,
        f"nothing names the dimensions of `{group.shown}` {param}",
        param.span,
        "its type has sizes alone, and no entry of `params` matches it"
        if param.is_cache
        else "no override and no entry of `params` matches it",
        help=known
        or (_CACHE_HELP if param.is_cache else "")
        or f"add to `params`: {_blank_line(group)} (`_` for a dimension without a name); or to"
        " `replicate`, with the reason, what should be replicated",
    )
    return with_cost(finding, context, group.paths)


def _of_part(context: Context, part: _Part) -> Diagnostic:
    """Return the finding about a part of the model in which nothing has names."""
    count = sum(len(group.arrays) for group in part.groups)
    finding = point(
        codes.UNNAMED_ARRAY,
        f"nothing names the dimensions of {counted(count, 'array')} in `{part.shown}`",
        part.groups[0].arrays[0].param.span,
        "no override and no entry of `params` matches it",
        help=_help(context, part.groups),
    )
    return _with_sizes(context, finding, part.groups)


def of_small(
    context: Context, groups: Sequence[_Group], code: Code = codes.UNNAMED_ARRAY
) -> Diagnostic:
    """Return the finding about small arrays that nothing names."""
    if len(groups) == 1:
        return replace(_of_one(context, groups[0]), code=code)
    groups = sorted(groups, key=lambda group: -group.bytes)
    paths = [path for group in groups for path in group.paths]
    places = [group.arrays[0].param.span for group in groups]
    shown = list(dict.fromkeys(span for span in places if span is not None))[:_SHOWN]
    glob = _glob_of(paths, context.paths)
    added = "add to `replicate`: what should be replicated"
    if glob:
        yaml = f'add to `replicate`: `{{path: "{glob}", because: small}}`'
        added = quote.either(yaml, f'add `replicate {glob} because "small"`')
    finding = Diagnostic(
        code,
        f"nothing names the dimensions of {counted(len(paths), 'small array')},"
        f" {binary_bytes(sum(group.bytes for group in groups))} together",
        labels_at(*((span, "no entry matches it") for span in shown)),
        help=_help(context, groups, f"{added}; or "),
    )
    return _with_sizes(context, finding, groups)


def _help(context: Context, groups: Sequence[_Group], instead: str = "") -> str:
    """Return what names arrays: a preset, types of caches, or lines for `params`."""
    known = _convention(context, [path for group in groups for path in group.paths])
    if known:
        return known
    if all(group.arrays[0].param.is_cache for group in groups):
        return _CACHE_HELP
    lines = _proposal(context, groups)
    if lines or instead:
        return instead + (lines or _THEIR_NAMES)
    return (
        f"add a line for each kind to `params`, as {_blank_line(groups[0])}; or to `replicate`,"
        " with the reason, what should be replicated"
    )


def _blank_line(group: _Group) -> str:
    names = " ".join("AXIS" for _ in group.arrays[0].param.shape)
    return quote.pattern(group.shown, names)


def _with_sizes(context: Context, finding: Diagnostic, groups: Sequence[_Group]) -> Diagnostic:
    sizes = [(each.param.path, each.param.bytes) for group in groups for each in group.arrays]
    finding = with_cost(finding, context, [path for path, _ in sizes])
    return replace(finding, notes=(*finding.notes, *largest(sizes)))


def _convention(context: Context, paths: Sequence[str]) -> str | None:
    """Return the preset by which arrays lie as those that they are made from, where one fits."""
    from shardspec.language.loader import known_derives

    rules = known_derives()
    matcher = path_matcher(tuple(rule.pattern for _, rule in rules))
    every = frozenset(context.paths)
    for path in paths:
        for at in matcher.all_matches(path):
            name, rule = rules[at]
            parent = next((each for each in wanted_paths(rule, path) if each in every), None)
            if parent is not None:
                return f"{quote.word('extends', name)} lays `{path}` out as `{parent}`: `{rule}`"
    return None


def _proposal(context: Context, groups: Sequence[_Group]) -> str | None:
    """Return the lines for `params` that name some arrays, where each has one answer."""
    found = [
        None if any(array.param.is_cache for array in group.arrays) else _line(context, group)
        for group in groups[: _SHOWN + 1]
    ]
    lines = [line for line in found if line is not None]
    if len(lines) < len(found) or len(lines) > _SHOWN:
        return None
    return f"add to `params`, by path and size: {', '.join(lines)}"


def _line(context: Context, group: _Group) -> str | None:
    return params_line(context.spec, [array.param for array in group.arrays])


def _glob_of(paths: Sequence[str], every: Sequence[str]) -> str | None:
    """Return a glob for exactly these of all paths, by how they end; None if there is none."""
    wanted = set(paths)
    for parts in range(1, _MOST_PARTS + 1):
        ends = {_end(path, parts) for path in paths}
        if len(ends) <= _MOST_ENDS:
            glob = next(iter(ends)) if len(ends) == 1 else f"{{{','.join(sorted(ends))}}}"
            matcher = path_matcher((Pattern(glob),))
            if {path for path in every if matcher.first_match(path) is not None} == wanted:
                return glob
    return None


def _end(path: str, parts: int) -> str:
    """Return a glob for the last components of a path, whatever stands before them.

    >>> _end("decoder/layers_0/norm/scale", 2), _end("model.layers.0.norm.weight", 2), _end("w", 2)
    ('**/norm/scale', '*.norm.weight', 'w')
    """
    mark, any_before = ("/", "**/") if "/" in path else (".", "*.")
    components = template(path).replace("#", "*").split(mark)
    before = any_before if len(components) > parts else ""
    return before + mark.join(components[-parts:])
