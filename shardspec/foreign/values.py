"""A value of a foreign file with its place: one shape for Python, gin, JSON and YAML.

In JSON and YAML the file is not ours, and most of what is in it does not concern us. So words that
YAML 1.1 reads otherwise stay text, and whoever wants a boolean says which words are one; a value
under a tag of the tool (`!include data.yaml`) is unreadable, and a fault only for who needs it;
merge keys (`<<`) are joined as YAML's readers join them. Where a key is given twice, those readers
let the last one count: so do we, and say it, but for keys that matter, where it is a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from shardspec.diagnostics import Diagnostic, Excerpt, Label, SourceFile, Span, codes
from shardspec.language.reading import Data, Route, SourceMap
from shardspec.language.yaml_text.printer import ScalarFault, read_plain
from shardspec.language.yaml_text.reader import Composer, read_yaml_value

Kind = Literal[
    "text", "number", "boolean", "nothing", "list", "mapping", "call", "name", "unreadable"
]

MOST_VALUES = 200_000
"""Values in one; names that stand for lists of names can ask for billions."""

DEEPEST = 50
"""Levels of lists in one another."""


@dataclass(frozen=True, slots=True)
class Node:
    """A value.

    Attributes:
      text: of text; the name of a call (`PartitionSpec`, `jax.sharding.PartitionSpec`) or of a
        name; the reason, of what cannot be read without running it.
      number: of a number or boolean.
      items: of a list or tuple; values of a mapping; positional arguments of a call.
      keys: of a mapping, beside `items`.
      keywords: arguments of a call by name.
      size: values in it, itself included.
    """

    kind: Kind
    span: Span = field(compare=False, repr=False)
    text: str = ""
    number: float | int = 0
    items: tuple[Node, ...] = ()
    keys: tuple[Node, ...] = ()
    keywords: tuple[tuple[str, Node], ...] = ()
    size: int = field(default=1, compare=False, repr=False)

    @property
    def is_list(self) -> bool:
        """Say whether it is a list or tuple."""
        return self.kind == "list"

    @property
    def whole(self) -> int | None:
        """Return a whole number; None of anything else."""
        is_whole = self.kind == "number" and isinstance(self.number, int)
        return int(self.number) if is_whole else None

    @property
    def last_name(self) -> str:
        """Return the last part of a dotted name."""
        return self.text.rpartition(".")[2]

    @property
    def pairs(self) -> tuple[tuple[Node, Node], ...]:
        """Return the keys of a mapping with their values; nothing for what is none."""
        return tuple(zip(self.keys, self.items, strict=False))

    @property
    def names(self) -> tuple[str, ...] | None:
        """Return the texts of nothing, of a text, or of a list of texts; None of anything else."""
        if self.kind in ("nothing", "text"):
            return (self.text,) if self.kind == "text" else ()
        is_named = self.is_list and all(item.kind == "text" for item in self.items)
        return tuple(item.text for item in self.items) if is_named else None

    @property
    def has_names(self) -> bool:
        """Say whether it is a mapping with entries, all of whose keys are texts."""
        return bool(self.keys) and all(key.kind == "text" for key in self.keys)

    def get(self, key: str) -> Node | None:
        """Return the value of a mapping at a text key."""
        found = [value for name, value in self.pairs if name.kind == "text" and name.text == key]
        return found[-1] if found else None

    def described(self) -> str:
        """Return what it is, for messages: "a list of 3", "`data`"."""
        words = {
            "text": f"`{self.text[:40]}`",
            "list": f"a list of {len(self.items)}",
            "nothing": "nothing",
            "unreadable": f"a value that is not known ({self.text})",
        }
        return words.get(self.kind, f"a {self.kind}")


def group(
    kind: Kind,
    span: Span,
    items: tuple[Node, ...],
    *,
    keys: tuple[Node, ...] = (),
    text: str = "",
    keywords: tuple[tuple[str, Node], ...] = (),
) -> Node:
    """Return a list, mapping or call; unreadable where it would hold too many values."""
    inner = (*items, *keys, *(value for _, value in keywords))
    size = 1 + sum(node.size for node in inner)
    if size > MOST_VALUES:
        return unreadable(span, f"it stands for more than {MOST_VALUES:,} values")
    return Node(kind, span, text, 0, items, keys, keywords, size)


def mapping_of(span: Span, pairs: Iterable[tuple[Node, Node]]) -> Node:
    """Return the mapping of keys with their values."""
    keys, items = tuple(zip(*pairs, strict=True)) or ((), ())
    return group("mapping", span, items, keys=keys)


def constant(value: object, span: Span) -> Node:
    """Return the node of a value that stands for itself."""
    if isinstance(value, str):
        return Node("text", span, value)
    if value is None:
        return Node("nothing", span)
    if isinstance(value, int | float):
        return Node("boolean" if isinstance(value, bool) else "number", span, str(value), value)
    return unreadable(span, "it is no text and no number")


def unreadable(span: Span, reason: str) -> Node:
    """Return the node of what has no value without running code."""
    return Node("unreadable", span, reason)


_PLAIN_TAGS = ("tag:yaml.org,2002:str", "!")
_AGAIN = "\0"
_MERGE = "<<"
_KEEP_ONE = "keep one of the two"


class _ForeignComposer(Composer):
    """A composer that keeps on where our own files would be faulty.

    Attributes:
      tagged: values that stand under a tag, by route.
      repeated: keys that stand again: their route, the key, the one before it.
    """

    def __init__(self, source: SourceFile) -> None:
        """Start with nothing read."""
        super().__init__(source)
        self.tagged: dict[Route, str] = {}
        self.repeated: list[tuple[Route, Excerpt, Excerpt]] = []
        self._tag = ""

    def _take_key(self, frame: Any, excerpt: Excerpt, is_plain: bool) -> None:
        """File a key; one that stands again gets a name of its own, which `_node` takes off."""
        self._tag = ""
        key, route = excerpt.text, (*frame.route, excerpt.text)
        if route in frame.keys:
            self.repeated.append((route, excerpt, frame.keys[route]))
            key += f"{_AGAIN}{len(self.repeated)}"
        frame.keys[(*frame.route, key)] = excerpt
        frame.key = key

    def _read_plain(self, excerpt: Excerpt) -> Data:
        read = read_plain(excerpt.text)
        return excerpt.text if isinstance(read, ScalarFault) else read

    def _refuse_key(self, parent: Any, span: Span, kind: str) -> None:
        """Pass over an entry whose key is a list or mapping."""
        parent.key, parent.is_detached = "", True

    def _check_tag(self, event: Any, *, is_scalar: bool) -> None:
        if not (is_scalar and event.tag in _PLAIN_TAGS):
            self._tag = event.tag.rpartition("tag:yaml.org,2002:")[2]

    def _child(self, is_mapping: bool, is_flow: bool, start: int) -> Any:
        frame = super()._child(is_mapping, is_flow, start)
        if self._tag:
            self.tagged[frame.route], self._tag = self._tag, ""
        return frame

    def _put(self, data: Data, excerpt: Excerpt, size: int = 1, height: int = 0) -> None:
        if self._tag:
            frame = self._stack[-1] if self._stack else None
            last = () if frame is None else (len(frame.data) if frame.key is None else frame.key,)
            route = (*(() if frame is None else frame.route), *last)
            self.tagged[route], self._tag = self._tag, ""
        super()._put(data, excerpt, size, height)


def read_data(
    source: SourceFile,
    notes: list[Diagnostic] | None = None,
    matters: Callable[[Route], bool] = lambda route: True,
) -> Node | tuple[Diagnostic, ...]:
    """Return the value that a JSON or YAML file holds, or why it holds none.

    Args:
      notes: where warnings go, of keys that are given twice and do not matter.
      matters: says of a key's route whether one of two may be the wrong one.
    """
    composer = _ForeignComposer(source)
    found = read_yaml_value(source, composer)
    twice = [each for each in composer.repeated if each[0][-1] != _MERGE]
    kept = [each for each in twice if notes is None or matters(each[0])]
    faults = [*found.faults, *(_repeated(key, first) for _, key, first in kept)]
    if faults or found.source_map is None:
        return tuple(replace(fault, code=codes.BAD_FOREIGN_FILE, fix=None) for fault in faults)
    if notes is not None:
        notes += [_repeated(key, first) for _, key, first in twice]
    return _node(found.root, (), found.source_map, composer.tagged)


def _repeated(key: Excerpt, first: Excerpt) -> Diagnostic:
    """Return the warning that a key is given twice; as a fault, where it matters, it is recoded."""
    labels = (Label(key.span, "this one counts"), Label(first.span, "first here", primary=False))
    message = f"the key `{key.text}` is given twice"
    notes = ("most readers of YAML and JSON let the last one count; others refuse the file",)
    return Diagnostic(codes.NOT_CARRIED_OVER, message, labels, notes, _KEEP_ONE)


def _node(data: Data, route: Route, source_map: SourceMap, tagged: dict[Route, str]) -> Node:
    span = source_map.value(route).span
    tag = tagged.get(route)
    if tag is not None:
        return unreadable(span, f"it stands under the tag `{tag}`, which is not followed")
    if isinstance(data, dict):
        return mapping_of(span, _pairs(data, route, source_map, tagged))
    if isinstance(data, list):
        inner = (_node(v, (*route, i), source_map, tagged) for i, v in enumerate(data))
        return group("list", span, tuple(inner))
    return constant(data, span)


def _pairs(
    data: dict[str, Data], route: Route, source_map: SourceMap, tagged: dict[Route, str]
) -> Iterator[tuple[Node, Node]]:
    """Yield the entries of a mapping: merged ones first, so that its own count."""
    last = {key.partition(_AGAIN)[0]: key for key in data}
    own: dict[str, tuple[Node, Node]] = {}
    merged: dict[str, tuple[Node, Node]] = {}
    for text, key in last.items():
        value = _node(data[key], (*route, key), source_map, tagged)
        name = Node("text", source_map.key((*route, key)).span, text)
        if text != _MERGE:
            own[text] = (name, value)
            continue
        for each in value.items if value.is_list else (value,):
            for inner, item in each.pairs:
                merged.setdefault(inner.text, (inner, item))
    yield from {**merged, **own}.values()
