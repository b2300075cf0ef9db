"""Entries of other tools by path: (regex, partition), and who wins a path.

Some tools take `re.search`, some `re.fullmatch`; some join paths by `.`. The language has one
reading, `fullmatch` on `/`-joined paths, so a pattern is rewritten rather than explained. Paths
have no line breaks, which makes `$` an end and `.*` anything at all.

A partition is a `PartitionSpec` in Python (`P`, `PS`), a list in JSON or YAML: one entry for each
dimension, a mesh axis, several, or none. What runs code to come by is kept as an entry without a
partition, so that it still takes the arrays it takes in its tool.

Entries become `overrides:` and `replicate:` of a spec. JAX lets a PartitionSpec be shorter than the
array has dimensions; an override states every dimension. So an entry becomes one override for each
rank of the arrays that it takes: the most common rank keeps the regex, the others come before it by
name. Without arrays an entry is carried over as it is written, and that is said.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from shardspec.diagnostics import Diagnostic, SourceFile, Span, parted, words
from shardspec.diagnostics.words import counted
from shardspec.foreign import formats, python_text
from shardspec.foreign.formats import Dims, NotRead, bad, came_from, lost
from shardspec.foreign.values import Node
from shardspec.ir.spec import Mesh, Param, PartitionSpec, Pattern, override_text
from shardspec.language.grammar.syntax import SyntaxFault
from shardspec.language.reading import Comments, Data, Route
from shardspec.language.regex import MAX_LENGTH, compile_regex
from shardspec.resolve.match import PathMatcher

Match = Literal["search", "fullmatch"]

_FLAGS = re.compile(r"(?:\(\?[aiLmsux]+\))+")
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)


def whole_path_regex(pattern: str, match: Match) -> str:
    r"""Return the regex that matches whole paths where `pattern` does in its tool.

    >>> whole_path_regex("attention/(wq|wk)/kernel", "search")
    '.*attention/(wq|wk)/kernel.*'
    >>> whole_path_regex("^wte|lm_head$", "search")
    '.*(?:^wte|lm_head$).*'
    >>> whole_path_regex("^wte/.*", "search")
    'wte/.*'

    Invariants:
      same: where `pattern` is a regex, `fullmatch` of the result is `match` of it.
    """
    if match == "fullmatch":
        return pattern
    flags = _FLAGS.match(pattern)
    start = flags.group() if flags else ""
    body = pattern[len(start) :]
    if "x" in start:
        return f"{start}.*(?:{body}\n).*"
    tokens = list(_tokens(body))
    if _has_choice(tokens):
        return f"{start}.*(?:{body}).*"
    return start + _opened(tokens, body)


def _opened(tokens: list[str], body: str) -> str:
    """Return a pattern of one branch with `.*` at the ends where it does not say otherwise."""
    before = after = ".*"
    if tokens[:1] == ["^"]:
        before, tokens = "", tokens[1:]
    elif tokens[:2] == [".", "*"] and tokens[2:3] not in (["?"], ["+"], ["*"], ["{"]):
        before = ""
    if tokens[-1:] == ["$"]:
        after, tokens = "", tokens[:-1]
    elif tokens[-2:] == [".", "*"]:
        after = ""
    inner = "".join(tokens)
    return before or after if not inner and (before or after) else before + inner + after


def _tokens(pattern: str) -> Iterator[str]:
    """Yield escapes, sets of characters, and single characters."""
    for found in _TOKEN.finditer(pattern):
        yield found.group()


def _has_choice(tokens: list[str]) -> bool:
    """Say whether `|` stands outside of all groups."""
    depth = 0
    for token in tokens:
        depth += (token == "(") - (token == ")")
        if token == "|" and depth == 0:
            return True
    return False


def slashed(pattern: str, separator: str) -> str:
    r"""Return a pattern for paths joined by `separator` as one for paths joined by `/`.

    The two characters change places wherever they stand for themselves.

    >>> slashed(r"layers\.[^.]+\.wq", ".")
    'layers/[^/]+/wq'
    """
    if separator == "/":
        return pattern
    here = (re.escape(separator), *(() if separator in ".^$*+?{}[]\\|()" else (separator,)))
    return "".join(_swapped(token, separator, here) for token in _tokens(pattern))


def _swapped(token: str, separator: str, here: tuple[str, ...]) -> str:
    if token in here or token == "\\" + separator:
        return "/"
    if token in ("/", r"\/"):
        return re.escape(separator)
    if len(token) > 1 and token[0] == "[":
        table = {ord(separator): "/", ord("/"): separator}
        return token[0] + token[1:-1].translate(table) + token[-1]
    return token


def fault(pattern: str) -> str | None:
    """Return what is wrong with a regex, None where nothing is."""
    if len(pattern) > MAX_LENGTH:
        return f"it has {len(pattern):,} characters"
    found = compile_regex(pattern)
    return found.message if isinstance(found, SyntaxFault) else None


def naive(pattern: str, match: Match) -> str:
    """Return a regex under `fullmatch` for the tool's own paths, whatever it looks like.

    Unlike `whole_path_regex` it looks at nothing in the pattern but its flags.
    """
    if match == "fullmatch":
        return pattern
    flags = _FLAGS.match(pattern)
    start = flags.group() if flags else ""
    end = "\n" if "x" in start else ""
    return f"{start}(?:.*)(?:{pattern[len(start) :]}{end})(?:.*)"


_PARTITIONS = ("P", "PS", "PartitionSpec", "TensorLayout")
_SHARDINGS = ("NamedSharding",)
_USUAL = ("sharding_strategy",)
_TACTIC = re.compile(r"(?:replicate|logical_partitioning|[a-z_]+\(.*\))(?:\|.*)?")
_KEPT = ("tuple", "list", "TreePathShardingRule")
_FORM = 'an entry is a regex and a partition: (".*/kernel", PartitionSpec(None, "tensor"))'


@dataclass(frozen=True, slots=True)
class PathEntry:
    """One entry of a list.

    Attributes:
      pattern: as written; None where it is worked out when the file runs, and may be anything.
      dims: None where only running the file would tell.
      reason: why `dims` is None.
    """

    pattern: str | None
    dims: Dims | None
    span: Span = field(compare=False, repr=False)
    reason: str = ""

    @property
    def is_whole(self) -> bool:
        """Say whether it leaves its arrays whole."""
        return self.dims is not None and not any(self.dims)

    def __str__(self) -> str:
        """Return `P('data', None)`."""
        return "?" if self.dims is None else str(PartitionSpec(self.dims))


class Found(NamedTuple):
    """The value that holds the entries.

    Attributes:
      tool: whose call it stands in, where that tells: `TreePathShardingRule`.
      is_strict: what that call says about arrays that nothing matches; None if nothing.
    """

    node: Node
    tool: str = ""
    is_strict: bool | None = None


def find_entries(
    source: SourceFile, name: str | None, what: str, axes: Sequence[str] = ()
) -> Found | tuple[Diagnostic, ...]:
    """Return the value that holds the entries: the one that is named, or the only one there is.

    Args:
      what: what is looked for, for messages: "list of regexes and PartitionSpecs".
      axes: of the mesh; a mapping that names none of them is not guessed at.
    """
    values = python_text.read_named_values(source)
    if isinstance(values, tuple):
        return values
    if name is None and values.root is not None and _holds_entries(values.root):
        return Found(values.root)
    found = {key: _partition_of(value) for key, value in values.named}
    fitting = [key for key, each in found.items() if _holds_entries(each.node)]
    if name is not None:
        help = f"here are {python_text.ticked(fitting)}" if fitting else None
        meant = python_text.by_name(found.items(), name, source, help)
        return (meant,) if isinstance(meant, Diagnostic) else meant
    usual = [key for key in fitting if key.rpartition(".")[2] in _USUAL]
    fitting = usual if len(usual) == 1 else fitting
    if fitting and all(found[key].node.kind == "mapping" for key in fitting):
        nodes = [(key, found[key].node) for key in fitting]
        kept = python_text.likely(nodes, axes if values.root is None else ())
        if isinstance(kept, Diagnostic):
            return (kept,)
        fitting = [key for key, _ in kept]
    if len({found[key].node for key in fitting}) == 1:
        return found[fitting[0]]
    if fitting:
        what = "values that may be meant"
        return (python_text.several(source, fitting, what, found[fitting[1]].node.span),)
    hidden = [key for key in found if key.rpartition(".")[2] in _USUAL]
    if hidden:
        node = found[hidden[-1]].node
        message = f"`{hidden[-1]}` cannot be read: {node.text or node.described()}"
        return (bad(message, node.span, help=_FORM),)
    return (python_text.no_list(source, what, _FORM),)


def _partition_of(node: Node) -> Found:
    """Return what is inside the calls that hold entries."""
    tool, is_strict = "", None
    while node.kind == "call" and node.last_name in _KEPT:
        if node.last_name == "TreePathShardingRule":
            tool = node.last_name
            strict = dict(node.keywords).get("strict")
            is_strict = bool(strict.number) if strict and strict.kind == "boolean" else True
            node = Node("list", node.span, items=node.items)
        elif len(node.items) == 1:
            node = node.items[0]
        else:
            break
    return Found(node, tool, is_strict)


def _holds_entries(node: Node) -> bool:
    """Say whether a value looks like entries: pairs, at least one with a regex and a partition."""
    if node.kind == "mapping":
        pairs = list(node.pairs)
    elif node.is_list:
        others = [item for item in node.items if not item.is_list or len(item.items) != 2]
        if any(item.kind not in ("unreadable", "name", "call") for item in others):
            return False
        pairs = [(item.items[0], item.items[1]) for item in node.items if item.is_list]
    else:
        return False
    return any(key.kind == "text" and _may_be_partition(value) for key, value in pairs)


def _may_be_partition(node: Node) -> bool:
    if node.kind == "text":  # one of big_vision's: `replicate`, `fsdp(axis="data")`
        return _TACTIC.fullmatch(node.text) is not None
    if node.kind == "call":
        return node.last_name in (*_PARTITIONS, *_SHARDINGS)
    if node.is_list:
        return all(item.kind in ("text", "nothing", "list") for item in node.items)
    return False


def read_entries(node: Node) -> tuple[tuple[PathEntry, ...], tuple[Diagnostic, ...]]:
    """Return the entries of a list or mapping, and what in it no tool would read."""
    if node.kind == "mapping":
        pairs = [(key, value, key.span) for key, value in node.pairs]
    elif node.is_list:
        pairs = [_pair(item) for item in node.items]
    else:
        why = node.text if node.kind == "unreadable" else f"it is {node.described()}"
        return (), (bad(f"the entries cannot be read: {why}", node.span, help=_FORM),)
    return parted(_entry(*pair) for pair in pairs)


def _pair(item: Node) -> tuple[Node, Node, Span]:
    if item.is_list and len(item.items) == 2:
        return item.items[0], item.items[1], item.span
    return item, item, item.span


def _entry(key: Node, value: Node, span: Span) -> PathEntry | Diagnostic:
    if key is value:
        if key.kind in ("unreadable", "name", "call"):
            return PathEntry(None, None, span, _why(key))
        return bad(f"an entry is a pair, and this is {key.described()}", span, help=_FORM)
    if key.kind in ("unreadable", "name", "call"):
        return PathEntry(None, None, span, f"its regex: {_why(key)}")
    if key.kind != "text":
        return bad(f"an entry starts with a regex: not {key.described()}", key.span, help=_FORM)
    wrong = fault(key.text)
    if wrong is not None:
        return bad(f"`{key.text[:80]}` is no regex: {wrong}", key.span)
    dims = _dims(value)
    if isinstance(dims, str):
        return PathEntry(key.text, None, span, dims)
    return PathEntry(key.text, dims, span)


def _why(node: Node) -> str:
    if node.kind == "unreadable":
        return node.text
    return f"`{node.text}{'(...)' if node.kind == 'call' else ''}` is bound elsewhere"


def _dims(value: Node) -> Dims | str:
    """Return the mesh axes of each dimension, or why only running the file would tell."""
    if value.kind == "nothing":
        return ()
    if value.kind == "call" and value.last_name in _SHARDINGS and len(value.items) == 2:
        return _dims(value.items[1])
    if value.kind == "call" and value.last_name == "TensorLayout":
        axes = dict(value.keywords).get("axes") or next(iter(value.items), None)
        return _dims(axes) if axes is not None else "it has no axes"
    if (value.kind == "call" and value.last_name in _PARTITIONS) or value.is_list:
        dims = [_dim(item) for item in value.items]
        wrong = next((each for each in dims if isinstance(each, str)), None)
        return tuple(each for each in dims if not isinstance(each, str)) if wrong is None else wrong
    if value.kind == "text":
        if value.text == "replicate":
            return ()
        return f"`{value.text[:60]}` is worked out from sizes when the file runs"
    return _why(value) if value.kind in ("unreadable", "name", "call") else value.described()


def _dim(item: Node) -> tuple[str, ...] | str:
    if item.names is not None:
        return item.names
    wrong = next((axis for axis in item.items if axis.kind != "text"), item)
    return _why(wrong) if wrong.kind in ("unreadable", "name", "call") else wrong.described()


def unwritable(entry: PathEntry) -> str | None:
    """Return why an entry cannot stand in a spec, None where it can."""
    if entry.dims is None:
        return entry.reason
    used = [axis for dim in entry.dims for axis in dim]
    strange = next((axis for axis in used if not formats.is_name(axis)), None)
    if strange is not None:
        return f"`{strange}` cannot be the name of a mesh axis in a spec"
    if len(set(used)) < len(used):
        return f"{entry} has a mesh axis twice, which JAX refuses"
    return None


def placed(entry: PathEntry, param: Param, mesh: Mesh) -> formats.Answer:
    """Return what an entry gives an array that it takes."""
    if entry.dims is not None:
        return formats.placed(entry.dims, param, mesh)
    pattern = entry.pattern or "?"
    help = "state them in `overrides:`, and compare with what the tool prints"
    return NotRead(pattern, f"`{pattern}` takes them, and {entry.reason}", help)


def left_out(entries: Sequence[PathEntry]) -> tuple[Diagnostic, ...]:
    """Return a finding for each entry that cannot stand in a spec."""
    help = "the arrays it takes there fall to later entries here: state them in `overrides:`"
    reasons = ((entry, unwritable(entry)) for entry in entries)
    return tuple(
        lost(f"`{entry.pattern or '?'}` is left out: {reason}", entry.span, help=help)
        for entry, reason in reasons
        if reason is not None
    )


class Winners:
    """Which entries match a path of the tool."""

    def __init__(self, entries: Sequence[PathEntry], match: Match) -> None:
        """Take the entries in the order the tool tries them."""
        self.entries = tuple(entries)
        texts = [".*" if each.pattern is None else naive(each.pattern, match) for each in entries]
        self._matcher = PathMatcher(tuple(Pattern(text, "regex") for text in texts))

    def first(self, path: str) -> int | None:
        """Return the position of the first entry that matches."""
        return self._matcher.first_match(path)

    def all(self, path: str) -> tuple[int, ...]:
        """Return the positions of all entries that match."""
        return self._matcher.all_matches(path)


def needs_choice(entries: Sequence[PathEntry], paths: Sequence[str] | None) -> PathEntry | None:
    """Return an entry that `search` and `fullmatch` read differently; None where none is.

    Args:
      paths: what arrays are called in the tool; None where they are not known.
    """
    if paths is None:
        return next((each for each in entries if _is_doubtful(each.pattern)), None)
    search, full = Winners(entries, "search"), Winners(entries, "fullmatch")
    for path in paths:
        found = set(search.all(path)) ^ set(full.all(path))
        if found:
            return entries[min(found)]
    return None


def _is_doubtful(pattern: str | None) -> bool:
    if pattern is None:
        return False
    bare = pattern.removeprefix("^").removesuffix("$")
    return whole_path_regex(pattern, "search") not in (pattern, bare)


_ANY_PATH = ".*"
_ANY_PATHS = frozenset((_ANY_PATH, ".+", ".*.+.*", ".*..*"))
_PLAIN = re.compile(r"[\w./-]+")


class Taken(NamedTuple):
    """An entry with the arrays that it takes in its tool.

    Attributes:
      pattern: regex for whole paths of ours.
      params: None where no arrays are known.
      scalars: arrays that match, but that the tool leaves whole whatever the entry says.
      must_win: whether others behind it would take its arrays, though order decides nothing.
    """

    entry: PathEntry
    pattern: str
    params: tuple[Param, ...] | None = None
    scalars: tuple[Param, ...] = ()
    must_win: bool = False


@dataclass(slots=True)
class PathSections:
    """What a list of entries becomes."""

    overrides: list[Data] = field(default_factory=list)
    replicate: list[Data] = field(default_factory=list)
    comments: dict[Route, Comments] = field(default_factory=dict)
    faults: list[Diagnostic] = field(default_factory=list)

    @property
    def data(self) -> dict[str, Data]:
        """Return the sections that are not empty."""
        sections: dict[str, list[Data]] = {"overrides": self.overrides, "replicate": self.replicate}
        return {key: list(value) for key, value in sections.items() if value}

    def override(
        self, key: str, pattern: str, dims: Dims, comment: Comments, *, may_miss: bool = False
    ) -> None:
        """Add an override; `key` is `match` for a regex, `path` for a glob.

        Args:
          may_miss: whether the pattern is for some of the models that the entries serve.
        """
        self.comments["overrides", len(self.overrides)] = comment
        self.overrides.append(_entered(key, pattern, "spec", override_text(dims), may_miss))

    def whole(
        self, pattern: str, because: str, comment: Comments, *, may_miss: bool = False
    ) -> None:
        """Add an entry for arrays that are meant to be whole."""
        self.comments["replicate", len(self.replicate)] = comment
        self.replicate.append(_entered("match", pattern, "because", because, may_miss))


def _entered(key: str, pattern: str, said: str, text: str, may_miss: bool) -> dict[str, Data]:
    optional: dict[str, Data] = {"optional": True} if may_miss else {}
    return {key: pattern, **optional, said: text}


def path_sections(taken: Sequence[Taken], *, is_ordered: bool = True) -> PathSections:
    """Return the sections of a spec that say what the entries do.

    Args:
      is_ordered: whether an earlier entry takes an array from a later one.
    """
    sections = PathSections()
    split = (index for index, each in enumerate(taken) if not each.entry.is_whole)
    last_split = max(split, default=-1)
    as_written: list[PathEntry] = []
    has_match = any(each.params for each in taken)
    for index, each in enumerate(taken):
        entry = each.entry
        if entry.dims is None or unwritable(entry) is not None:
            continue
        # Where others take arrays, one that takes none is for other models.
        may_miss = has_match and each.params == () and not each.scalars
        if entry.is_whole and not each.must_win and (index > last_split or not is_ordered):
            because = f"{entry} in {formats.place(entry.span)}"
            pattern = _ANY_PATH if each.pattern in _ANY_PATHS else each.pattern
            may_miss = may_miss and pattern != _ANY_PATH
            sections.whole(pattern, because, came_from(entry.span), may_miss=may_miss)
        elif each.params is None:
            as_written.append(entry)
            sections.override("match", each.pattern, entry.dims, came_from(entry.span))
        else:
            _by_rank(each, entry.dims, each.params, sections, may_miss=may_miss)
    if as_written:
        first, many = as_written[0], counted(len(as_written), "entry").replace("entrys", "entries")
        fits = counted(len(first.dims or ()), "dimension")
        message = (
            f"{first} serves arrays of {fits} or more, and `overrides:` states every dimension: "
            f"{many} as written"
        )
        help = "--against ARRAYS gives each the dimensions of the arrays it takes"
        sections.faults.append(lost(message, first.span, help=help))
    return sections


def _by_rank(
    taken: Taken, dims: Dims, params: Sequence[Param], sections: PathSections, *, may_miss: bool
) -> None:
    """Add one override for the most common rank, and before it those for all others."""
    entry = taken.entry
    too_short = [param for param in params if param.rank < len(dims)]
    fitting = [param for param in params if param.rank >= len(dims)]
    if too_short:
        shortest = counted(min(param.rank for param in too_short), "dimension")
        message = f"{entry} is too long for {shortest}: JAX refuses it"
        help = "EasyDeL cuts it to fit; state those arrays yourself"
        notes = (words.described([param.path for param in too_short]),)
        sections.faults.append(replace(lost(message, entry.span, help=help), notes=notes))
    ranks = Counter(param.rank for param in fitting)
    main = max(ranks, key=lambda rank: (ranks[rank], -rank)) if ranks else len(dims)
    split = ((_full(dims, each.rank), each.path) for each in fitting if each.rank != main)
    others = words.by_key((*split, *((((),) * each.rank, each.path) for each in taken.scalars)))
    for partition, paths in others.items():
        for key, pattern in patterns_of(paths):
            more = f"with {counted(len(partition), 'dimension')}"
            sections.override(key, pattern, partition, came_from(entry.span, more))
    last = _full(dims, main)
    sections.override("match", taken.pattern, last, came_from(entry.span), may_miss=may_miss)


def _full(dims: Dims, rank: int) -> Dims:
    return dims + ((),) * (rank - len(dims))


def patterns_of(paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the patterns that match exactly these paths: (`path`, glob) or (`match`, regex)."""
    for group in words.grouped(sorted(set(paths), key=words.natural), words.template).values():
        glob = words.collapsed(group) if all(_PLAIN.fullmatch(path) for path in group) else None
        if glob is not None:
            yield "path", glob
        elif len(group) == 1 or not all(_PLAIN.fullmatch(path) for path in group):
            for path in group:
                yield "match", re.escape(path)
        else:
            yield from (("path", path) for path in group)


def document(
    doc: str, sections: PathSections, *, is_strict: bool = False
) -> tuple[dict[str, Data], dict[Route, Comments]]:
    """Return a document of path entries, with what all of these formats have in common.

    Args:
      is_strict: whether the tool refuses arrays that nothing matches; else they are whole.
    """
    data: dict[str, Data] = {"doc": doc, **sections.data}
    data["policy"] = {"indivisible": "keep"}
    comments = dict(sections.comments)
    comments["policy",] = Comments(trailing=formats.AS_JAX)
    says_the_rest = any(isinstance(e, dict) and e["match"] == _ANY_PATH for e in sections.replicate)
    if not is_strict and not says_the_rest:
        data["lints"] = {"unnamed-array": "warn"}
        comments["lints",] = Comments(trailing="what nothing matches is replicated by the tool")
    return data, comments
