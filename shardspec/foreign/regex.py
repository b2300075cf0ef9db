"""Lists of (regex, PartitionSpec), as big_vision, scalax, EasyLM and EasyDeL have them.

The first regex that matches a path decides. Whether it must match the whole path or any part of it
is not in the list: scalax (`TreePathShardingRule`), EasyLM and EasyDeL search, others match fully.
The tools that search leave scalars whole before they look at the list.
Source: scalax 0.2.6, `scalax.sharding.TreePathShardingRule`; eformer 0.0.101,
`eformer.escale.partition.constraints.match_partition_rules`; google-research/big_vision,
`big_vision.sharding.infer_sharding` (whose entries are tactics, not PartitionSpecs).

Written is a Python module. Paths that differ in their numbers become one regex that matches exactly
these: `layers_0/wi_0` to `layers_23/wi_1` are `layers_(?:[0-9]|1[0-9]|2[0-3])/wi_[0-1]`. Numbers
that do not combine freely are cut into alternatives: no path is matched that is not in the list.

One regex for each group of arrays, anchored, and no two of them match one path: so the order does
not matter, and `re.fullmatch` and `re.search` find the same one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, SourceFile, words
from shardspec.diagnostics.words import by_key, counted, grouped, natural, template
from shardspec.foreign import formats, path_entries
from shardspec.foreign.flax import axes_literal
from shardspec.foreign.formats import Answer, Options, Request, Written, bad
from shardspec.foreign.path_entries import Match, PathEntry, Taken, Winners
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Mesh, Param, Params, PartitionSpec
from shardspec.language.glob import range_regex

TOOL = "the list"
_CHOOSE = "say how the tool reads them: --match search (scalax, EasyLM, EasyDeL) or fullmatch"


class RegexReading(NamedTuple):
    """A list and who reads it.

    Attributes:
      separator: what joins paths there.
      is_strict: whether an array that nothing matches is an error there.
    """

    entries: tuple[PathEntry, ...]
    match: Match
    separator: str = "/"
    is_strict: bool = False

    def there(self, path: str) -> str:
        """Return what the tool calls an array."""
        return path.replace("/", self.separator)


def read(sources: Sequence[SourceFile], options: Options) -> formats.Outcome:
    """Return the spec that says what a list of regexes does."""
    separator = options.separator or "/"
    wrong = check_call(sources, separator)
    if wrong is not None:
        return None, (wrong,)
    what = "list of regexes and PartitionSpecs"
    axes = [axis for axis, _ in options.mesh]
    found = path_entries.find_entries(sources[0], options.name, what, axes)
    if not isinstance(found, path_entries.Found):
        return None, found
    entries, faults = path_entries.read_entries(found.node)
    if faults:
        return None, faults
    if found.tool and options.match is None:
        options = options._replace(match="search")
    match = matching(entries, options, separator, "arrays", _CHOOSE)
    if isinstance(match, Diagnostic):
        return None, (match,)
    is_strict = bool(options.strict if options.strict is not None else found.is_strict)
    reading = RegexReading(entries, match, separator, is_strict)
    winner = Winners(entries, match).first
    taken = all_taken(entries, match, separator, options.params, winner)
    sections = path_entries.path_sections(taken)
    how = "any part of a path" if match == "search" else "the whole path"
    doc = f"A list of regexes, which match {how}; the first decides"
    data, comments = path_entries.document(doc, sections, is_strict=is_strict)
    faults = (*path_entries.left_out(entries), *sections.faults)
    return formats.Imported(data, comments, reading, TOOL), faults


def check_call(sources: Sequence[SourceFile], separator: str) -> Diagnostic | None:
    """Return what is wrong with the number of files, or with the separator."""
    if len(sources) != 1:
        return bad(f"one file holds the entries, and here are {len(sources)}", sources[1].whole)
    if len(separator) != 1:
        return bad(f"`--separator {separator}` is not one character", None)
    return None


def matching(
    entries: Sequence[PathEntry], options: Options, separator: str, what: str, choose: str
) -> Match | Diagnostic:
    """Return how the regexes are meant, or the finding that asks.

    Args:
      what: a tool calls arrays.
      choose: says how to choose.
    """
    if options.match is not None:
        return "search" if options.match == "search" else "fullmatch"
    paths = None
    if options.params is not None:
        paths = [param.path.replace("/", separator) for param in options.params]
    doubtful = path_entries.needs_choice(entries, paths)
    if doubtful is None:
        return "fullmatch"
    message = f"`{doubtful.pattern}` matches other {what} under `search` than under `fullmatch`"
    return formats.ambiguous(message, doubtful.span, choose)


def all_taken(
    entries: Sequence[PathEntry],
    match: Match,
    separator: str,
    params: Params | None,
    winner: Callable[[str], int | None],
) -> list[Taken]:
    """Return the entries with the arrays that each takes.

    Args:
      winner: the position of the entry that takes a path of the tool.
    """
    won = grouped(params or (), lambda param: winner(param.path.replace("/", separator)))
    all_won = (None if params is None else won.get(index, []) for index in range(len(entries)))
    return [_taken(each, match, separator, own) for each, own in zip(entries, all_won, strict=True)]


def _taken(entry: PathEntry, match: Match, separator: str, params: Sequence[Param] | None) -> Taken:
    """Return an entry with its regex for our paths, and the arrays it takes."""
    slashed = path_entries.slashed(entry.pattern or "", separator)
    pattern = path_entries.whole_path_regex(slashed, match)
    if params is None:
        return Taken(entry, pattern)
    others = tuple(param for param in params if match != "search" or not is_scalar(param))
    scalars = tuple(param for param in params if match == "search" and is_scalar(param))
    return Taken(entry, pattern, others, scalars)


def is_scalar(param: Param) -> bool:
    """Say whether tools that search leave an array whole for its size."""
    return math.prod(param.shape) == 1


def answer(reading: RegexReading, params: Params, mesh: Mesh) -> tuple[Answer, ...]:
    """Return what the first matching entry gives each array."""
    winners = Winners(reading.entries, reading.match)
    return tuple(_answer(reading, winners, param, mesh) for param in params)


def _answer(reading: RegexReading, winners: Winners, param: Param, mesh: Mesh) -> Answer:
    whole = PartitionSpec(((),) * param.rank)
    if reading.match == "search" and is_scalar(param):
        return whole
    index = winners.first(reading.there(param.path))
    if index is None:
        help = 'add a last pair to the file, `(".*", PartitionSpec())`'
        refused = formats.NoAnswer("no regex matches (ValueError)", help=help)
        return refused if reading.is_strict else whole
    return path_entries.placed(reading.entries[index], param, mesh)


_SPECIAL = re.compile(r"[^A-Za-z0-9_/ :;,'<>=@!%&~`\-]")

Row = tuple[str, ...]


def path_regex(paths: Sequence[str]) -> str:
    r"""Return the regex of paths that share a template.

    Invariants:
      exact: under `fullmatch`, it matches the paths and nothing else.

    >>> path_regex([f"layers_{n}/k" for n in range(24)])
    'layers_(?:[0-9]|1[0-9]|2[0-3])/k'
    >>> path_regex(["a_0/w_0", "a_1/w_1"])
    '(?:a_0/w_0|a_1/w_1)'
    """
    texts = [escaped(text) for text in words.numbers_apart(paths[0])[::2]]
    rows = [tuple(words.numbers_apart(path)[1::2]) for path in sorted(set(paths), key=natural)]
    found = _alternatives(rows, texts)
    return found[0] if len(found) == 1 else f"(?:{'|'.join(found)})"


def escaped(text: str) -> str:
    r"""Return text as a regex that matches it, with no more backslashes than it takes.

    >>> escaped("wi-0.weight")
    'wi-0\\.weight'
    """
    return _SPECIAL.sub(lambda found: re.escape(found[0]), text)


def _alternatives(rows: Sequence[Row], texts: Sequence[str]) -> list[str]:
    """Return regexes that match the rows put between the texts."""
    if not rows[0]:
        return [texts[0]]
    rests = by_key((row[0], row[1:]) for row in rows)
    by_rest = by_key((tuple(found), number) for number, found in rests.items())
    return [
        f"{texts[0]}{_numbers(numbers)}{rest}"
        for found, numbers in by_rest.items()
        for rest in _alternatives(found, texts[1:])
    ]


def _numbers(numbers: Sequence[str]) -> str:
    """Return a regex of numbers: one, a range, or a list."""
    if len(numbers) == 1:
        return numbers[0]
    low, high = numbers[0], numbers[-1]
    if words.is_run(numbers):
        return range_regex(int(low), int(high), words.run_width(low, high))
    return f"(?:{'|'.join(numbers)})"


class Group(NamedTuple):
    """Arrays whose paths differ in numbers alone, and that are laid out alike.

    Attributes:
      regex: matches exactly these paths under `fullmatch`.
    """

    paths: tuple[str, ...]
    regex: str
    partition: PartitionSpec


def line_end(plan: ShardingPlan) -> str:
    """Return what ends a regex under `search`: `$`, where no path ends with a line break."""
    return r"\Z" if any(each.param.path.endswith("\n") for each in plan.arrays) else "$"


def groups(plan: ShardingPlan) -> tuple[Group, ...]:
    """Return the arrays of a plan in groups, in natural order of their first paths."""
    placed = ((each.param.path, each.partition_spec) for each in plan.arrays)
    found = by_key(((template(path), spec), path) for path, spec in placed)
    for paths in found.values():
        paths.sort(key=natural)
    ordered = sorted(found.items(), key=lambda item: natural(item[1][0]))
    return tuple(Group(tuple(paths), path_regex(paths), spec) for (_, spec), paths in ordered)


def write(request: Request) -> Written:
    """Return the layouts of the plan's arrays, exact for these and for no others."""
    end = line_end(request.plan)
    pairs = ((raw(f"^{each.regex}{end}"), each.partition) for each in groups(request.plan))
    lines = [f"    ({regex}, {spec_literal(partition)})," for regex, partition in pairs]
    title = f"Layouts of {counted(len(request.plan.arrays), 'array')}"
    about = "The first regex that matches the whole path wins, and none matches any other array."
    body = ("from jax.sharding import PartitionSpec as P", "", f"# {request.target_title}")
    text = formats.python_module(request, title, [about], (*body, "RULES = [", *lines, "]"))
    return text, tuple(formats.losses(request, "a list of regexes", *formats.BY_PATH))


def raw(regex: str) -> str:
    r"""Return a regex as a Python literal, raw where that is the same.

    >>> print(raw(r"^a\.b$"))
    r"^a\.b$"
    """
    is_plain = regex.isprintable() and '"' not in regex and not regex.endswith("\\")
    return f'r"{regex}"' if is_plain else repr(regex)


def spec_literal(partition: PartitionSpec) -> str:
    """Return `P("data", None)`, `P(None, unreduced={"model"})`."""
    kinds = zip(partition.sums._fields, partition.sums, strict=True)
    sums = [f"{kind}={{{', '.join(map(axes_literal, zip(axes)))}}}" for kind, axes in kinds if axes]
    return f"P({', '.join((*map(axes_literal, partition.dims), *sums))})"
