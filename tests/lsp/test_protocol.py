"""What the protocol demands of every answer, for all example specs.

Source: Language Server Protocol 3.17, microsoft.github.io/language-server-protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shardspec.lsp import completion, features, hover, navigation, types
from shardspec.lsp.snapshot import Lines, Snapshot
from shardspec.lsp.types import Kind
from tests.lsp.texts import BOTH, snapshot_of

EXAMPLES = sorted((Path(__file__).parents[2] / "specs/examples").glob("*.yaml"))
TEXTS = [*BOTH, *(("spec.yaml", path.read_text(encoding="utf-8")) for path in EXAMPLES)]

SYMBOLS = (
    "File Module Namespace Package Class Method Property Field Constructor Enum Interface Function"
    " Variable Constant String Number Boolean Array Object Key Null EnumMember Struct Event"
    " Operator TypeParameter"
)
CHOICES = (
    "Text Method Function Constructor Field Variable Class Interface Module Property Unit Value"
    " Enum Keyword Snippet Color File Reference Folder EnumMember Constant Struct Event Operator"
    " TypeParameter"
)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (types.SymbolKind, SYMBOLS),
        (types.CompletionItemKind, CHOICES),
        (types.DiagnosticSeverity, "Error Warning Information Hint"),
        (types.DocumentHighlightKind, "Text Read Write"),
    ],
)
def test_kinds_have_the_numbers_of_the_protocol(kind: type[IntEnum], names: str) -> None:
    numbers = {name: number for number, name in enumerate(names.split(), 1)}
    assert [each.value for each in kind] == [numbers[each.name] for each in kind]


@pytest.fixture(params=range(len(TEXTS)))
def snapshot(request: pytest.FixtureRequest, tmp_path: Path) -> Snapshot:
    return snapshot_of(tmp_path, *TEXTS[request.param])


def _place(at: types.Position) -> tuple[int, int]:
    return at.line, at.character


def _is_within(inner: types.Range, outer: types.Range) -> bool:
    return _place(outer.start) <= _place(inner.start) <= _place(inner.end) <= _place(outer.end)


def _each(symbols: Sequence[types.DocumentSymbol]) -> Iterator[types.DocumentSymbol]:
    for symbol in symbols:
        yield symbol
        yield from _each(symbol.children or ())


def test_a_symbol_is_selected_within_its_range_and_its_parts_are_in_it(snapshot: Snapshot) -> None:
    found = [*_each(navigation.symbols(snapshot))]
    assert found
    for symbol in found:
        assert _is_within(symbol.selection_range, symbol.range), symbol.name
        for part in symbol.children or ():
            assert _is_within(part.range, symbol.range), (symbol.name, part.name)
        for before, after in () if snapshot.is_dsl else pairwise(symbol.children or ()):
            assert _place(before.range.start) <= _place(after.range.start)


def test_a_symbol_that_has_a_key_selects_it(snapshot: Snapshot) -> None:
    for symbol in _each(navigation.symbols(snapshot)):
        low, high = snapshot.lines.offsets(symbol.selection_range)
        text = snapshot.text[low:high]
        assert text
        assert text == text.strip()
        assert "\n" not in text


def test_blocks_that_fold_have_more_than_a_line_and_nest(snapshot: Snapshot) -> None:
    found = [(each.start_line, each.end_line) for each in navigation.folds(snapshot)]
    count = snapshot.text.count("\n") + 1
    assert all(0 <= start < end < count for start, end in found)
    for one in found:
        for other in found:
            assert one[1] < other[0] or other[1] < one[0] or _nested(one, other)


def _nested(one: tuple[int, int], other: tuple[int, int]) -> bool:
    (start, end), (low, high) = one, other
    return (low <= start and end <= high) or (start <= low and high <= end)


def test_hints_are_where_they_were_asked_for(snapshot: Snapshot) -> None:
    every = hover.hints(snapshot, 0, len(snapshot.text), frozenset(hover.KINDS))
    middle = snapshot.text.index("\n", len(snapshot.text) // 2)
    halves = [
        each
        for low, high in ((0, middle), (middle, len(snapshot.text)))
        for each in hover.hints(snapshot, low, high, frozenset(hover.KINDS))
    ]
    key = [(_place(each.position), str(each.label)) for each in every]
    assert {(_place(each.position), str(each.label)) for each in halves} == set(key)


@pytest.mark.parametrize(("name", "text"), BOTH)
def test_what_is_written_is_among_the_choices_and_choosing_it_changes_nothing(
    tmp_path: Path, name: str, text: str
) -> None:
    """The text goes on as the choice would: `axes` is followed by a colon, `embed` by an arrow."""
    snapshot = snapshot_of(tmp_path, name, text)
    uses = [use for use in snapshot.uses if not use.is_definition and use.kind != Kind.PATTERN]
    for use in uses:
        written = use.span.text
        if written.startswith("target "):
            continue  # the statement, whose parts are uses
        items = completion.completions(snapshot, snapshot.spec, use.span.end)
        edits = [each.text_edit for each in items if each.label == written]
        starts = [(snapshot.lines.offsets(each.range)[0], each.new_text) for each in edits]
        assert any(text.startswith(new.rstrip(), start) for start, new in starts), use
    assert len(uses) > 30


@pytest.mark.parametrize(("name", "text"), BOTH)
def test_a_key_is_chosen_with_its_sign_once(tmp_path: Path, name: str, text: str) -> None:
    """A path in quotes is closed by whoever opened them, and the sign stands behind that."""
    sign = " : " if name.endswith(".shard") else ": "
    snapshot = snapshot_of(tmp_path, name, text)
    at = text.index("**/wi/kernel")
    for opened, closed, ending in (("", "", sign), ('"', '"', "")):
        line = f"{text[: text.rindex(chr(10), 0, at) + 1]}  {opened}"
        other = snapshot_of(tmp_path, name, line + closed + text[text.index("\n", at) :])
        items = completion.completions(other, snapshot.spec, len(line))
        paths = [each.text_edit.new_text for each in items if "odd/bias" in each.label]
        assert paths
        assert all(each.endswith(f"odd/bias{ending}") or opened == "" for each in paths)
        assert all(each.endswith(ending) and each.count(":") == bool(ending) for each in paths)


def test_a_message_has_the_number_of_a_warning() -> None:
    """`MessageType.Warning` of `window/showMessage`."""
    assert ["Error", "Warning", "Info", "Log"].index("Warning") + 1 == features._WARNING


WORDS = st.text("ab", min_size=1, max_size=2)
DATA = st.recursive(
    WORDS | st.integers(0, 9),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.dictionaries(WORDS, inner, min_size=1, max_size=3)
    ),
    max_leaves=8,
)


def _blocks(node: yaml.Node) -> Iterator[tuple[int, int]]:
    """Yield the first and the last line of each entry below a node of YAML."""
    for entry in node.value if isinstance(node, yaml.CollectionNode) else ():
        key, value = entry if isinstance(entry, tuple) else (entry, entry)
        inner = [*_blocks(value)]
        yield key.start_mark.line, max((last for _, last in inner), default=value.start_mark.line)
        yield from inner


@given(st.dictionaries(WORDS, DATA, min_size=1, max_size=3), st.booleans())
def test_a_text_folds_by_the_entries_that_a_reader_of_yaml_finds(
    data: dict[str, object], has_gaps: bool
) -> None:
    """Of entries that begin at one line the longest; blank lines and comments end nothing."""
    text = yaml.safe_dump(data, sort_keys=False)
    text = text.replace("\n", "\n\n# more\n") if has_gaps else text
    expected: dict[int, int] = {}
    for first, last in _blocks(yaml.compose(text)):
        expected[first] = max(last, expected.get(first, 0))
    found = navigation._indented(Lines(text))
    folded = sorted((first, last) for first, last in found if last > first)
    assert folded == sorted((first, last) for first, last in expected.items() if last > first)
