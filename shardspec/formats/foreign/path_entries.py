"""Lists of (regex, partition) of other tools: read from a file, and who wins a path.

A partition is a `PartitionSpec` in Python (`P`, `PS`), a list in JSON or YAML: one entry for each
dimension, a mesh axis, several, or none. What runs code to come by is kept as an entry without a
partition, so that it still takes the arrays it takes in its tool.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, SourceFile, Span
from shardspec.formats.foreign.imported import NotRead, ambiguous, bad, is_name, lost
from shardspec.formats.foreign.known_code import no_list
from shardspec.formats.foreign.named_values import likely, read_named_values
from shardspec.formats.foreign.node import Node
from shardspec.formats.foreign.regexes import Match, fault, naive, whole_path_regex
from shardspec.formats.foreign.rules import Dims
from shardspec.ir.partition import PartitionSpec
from shardspec.ir.spec import Pattern
from shardspec.resolve.match import PathMatcher

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
    reason: str = ""
    span: Span | None = field(default=None, compare=False, repr=False)

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
    values = read_named_values(source)
    if isinstance(values, tuple):
        return values
    if name is None and values.root is not None and _holds_entries(values.root):
        return Found(values.root)
    return _choose(values.named, name, source, what, axes if values.root is None else ())


def _choose(
    named: Sequence[tuple[str, Node]],
    name: str | None,
    source: SourceFile,
    what: str,
    axes: Sequence[str],
) -> Found | tuple[Diagnostic, ...]:
    found = {key: _opened(value) for key, value in named}
    fitting = [key for key, each in found.items() if _holds_entries(each.node)]
    listed = ", ".join(f"`{key}`" for key in fitting[:10])
    if name is not None:
        ending = [key for key in found if key == name or key.endswith(f".{name}")]
        if name in found or len(ending) == 1:
            return found[name if name in found else ending[0]]
        help = f"here are {listed}" if listed else None
        return (bad(f"`{source.name}` binds no `{name}`", source.whole, help=help),)
    usual = [key for key in fitting if key.rpartition(".")[2] in _USUAL]
    fitting = usual if len(usual) == 1 else fitting
    if fitting and all(found[key].node.kind == "mapping" for key in fitting):
        kept = likely([(key, found[key].node) for key in fitting], axes)
        if isinstance(kept, Diagnostic):
            return (kept,)
        fitting = [key for key, _ in kept]
    if len({found[key].node for key in fitting}) == 1:
        return found[fitting[0]]
    if fitting:
        message = f"`{source.name}` has {len(fitting)} values that may be meant: {listed}"
        span = found[fitting[1]].node.span
        return (ambiguous(message, span, f"say which: --name {fitting[0]}"),)
    hidden = [key for key in found if key.rpartition(".")[2] in _USUAL]
    if hidden:
        node = found[hidden[-1]].node
        message = f"`{hidden[-1]}` cannot be read: {node.text or node.described()}"
        return (bad(message, node.span, help=_FORM),)
    return (no_list(source, what, _FORM),)


def _opened(node: Node) -> Found:
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
        pairs = list(zip(node.keys, node.items, strict=True))
    elif node.is_list and all(_may_be_pair(item) for item in node.items):
        pairs = [(item.items[0], item.items[1]) for item in node.items if item.is_list]
    else:
        return False
    return any(
        key.kind == "text" and (_may_be_partition(value) or _is_tactic(value))
        for key, value in pairs
    )


def _is_tactic(node: Node) -> bool:
    """Say whether a value is one of big_vision's: `replicate`, `fsdp(axis="data")`."""
    return node.kind == "text" and _TACTIC.fullmatch(node.text) is not None


def _may_be_pair(node: Node) -> bool:
    return (node.is_list and len(node.items) == 2) or node.kind in ("unreadable", "name", "call")


def _may_be_partition(node: Node) -> bool:
    if node.kind == "call":
        return node.last_name in (*_PARTITIONS, *_SHARDINGS)
    if node.is_list:
        return all(item.kind in ("text", "nothing", "list") for item in node.items)
    return False


def read_entries(node: Node) -> tuple[tuple[PathEntry, ...], tuple[Diagnostic, ...]]:
    """Return the entries of a list or mapping, and what in it no tool would read."""
    if node.kind == "mapping":
        pairs = [(key, value, key.span) for key, value in zip(node.keys, node.items, strict=True)]
    elif node.is_list:
        pairs = [_pair(item) for item in node.items]
    else:
        why = node.text if node.kind == "unreadable" else f"it is {node.described()}"
        return (), (bad(f"the entries cannot be read: {why}", node.span, help=_FORM),)
    entries: list[PathEntry] = []
    faults: list[Diagnostic] = []
    for key, value, span in pairs:
        entry = _entry(key, value, span)
        faults += [entry] if isinstance(entry, Diagnostic) else []
        entries += [entry] if isinstance(entry, PathEntry) else []
    return tuple(entries), tuple(faults)


def _pair(item: Node) -> tuple[Node, Node, Span]:
    if item.is_list and len(item.items) == 2:
        return item.items[0], item.items[1], item.span
    return item, item, item.span


def _entry(key: Node, value: Node, span: Span) -> PathEntry | Diagnostic:
    if key is value:
        if key.kind in ("unreadable", "name", "call"):
            return PathEntry(None, None, _why(key), span)
        return bad(f"an entry is a pair, and this is {key.described()}", span, help=_FORM)
    if key.kind in ("unreadable", "name", "call"):
        return PathEntry(None, None, f"its regex: {_why(key)}", span)
    if key.kind != "text":
        return bad(f"an entry starts with a regex: not {key.described()}", key.span, help=_FORM)
    wrong = fault(key.text)
    if wrong is not None:
        return bad(f"`{key.text[:80]}` is no regex: {wrong}", key.span)
    dims = _dims(value)
    if isinstance(dims, str):
        return PathEntry(key.text, None, dims, span)
    return PathEntry(key.text, dims, span=span)


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
    if item.kind == "nothing":
        return ()
    if item.kind == "text":
        return (item.text,)
    if item.is_list and all(axis.kind == "text" for axis in item.items):
        return tuple(axis.text for axis in item.items)
    wrong = next((axis for axis in item.items if axis.kind != "text"), item)
    return _why(wrong) if wrong.kind in ("unreadable", "name", "call") else wrong.described()


def unwritable(entry: PathEntry) -> str | None:
    """Return why an entry cannot stand in a spec, None where it can."""
    if entry.dims is None:
        return entry.reason
    used = [axis for dim in entry.dims for axis in dim]
    strange = next((axis for axis in used if not is_name(axis)), None)
    if strange is not None:
        return f"`{strange}` cannot be the name of a mesh axis in a spec"
    if len(set(used)) < len(used):
        return f"{entry} has a mesh axis twice, which JAX refuses"
    return None


def worked_out(entry: PathEntry) -> NotRead:
    """Return the answer for arrays that an entry takes whose partition only running it tells."""
    pattern = entry.pattern or "?"
    help = "state them in `overrides:`, and compare with what the tool prints"
    return NotRead(pattern, f"`{pattern}` takes them, and {entry.reason}", help)


def left_out(entries: Sequence[PathEntry]) -> tuple[Diagnostic, ...]:
    """Return a finding for each entry that cannot stand in a spec."""
    help = "the arrays it takes there fall to later entries here: state them in `overrides:`"
    return tuple(
        lost(f"`{entry.pattern or '?'}` is left out: {reason}", entry.span, help=help)
        for entry in entries
        if (reason := unwritable(entry)) is not None
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
