"""JSON and YAML of other tools: what does not concern us does not stop the reading."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.foreign.values import Node, read_data


def read(text: str, *, strict: bool = False) -> tuple[Node, list[Diagnostic]]:
    notes: list[Diagnostic] = []
    found = read_data(SourceFile("a.yaml", text), notes, lambda route: strict)
    assert isinstance(found, Node), found
    return found, notes


def plain(node: Node) -> Any:
    """Return a node as PyYAML would have it, numbers and words as text."""
    if node.kind == "mapping":
        return {key.text: plain(value) for key, value in zip(node.keys, node.items, strict=True)}
    if node.is_list:
        return [plain(item) for item in node.items]
    return node.text


def test_a_value_under_a_tag_is_unreadable_and_no_fault() -> None:
    text = "data: !include a.yaml\nlist: !env [1]\nmap: !x {a: 1}\npair: [!y b, c]\n!z key: d\n"
    node, notes = read(text)
    assert notes == []
    kinds = {key.text: value.kind for key, value in zip(node.keys, node.items, strict=True)}
    assert kinds == {
        "data": "unreadable",
        "list": "unreadable",
        "map": "unreadable",
        "pair": "list",
        "key": "text",
    }
    data = node.get("data")
    pair = node.get("pair")
    assert data is not None
    assert pair is not None
    assert "`!include`" in data.text
    assert [item.kind for item in pair.items] == ["unreadable", "text"]


def test_a_whole_file_under_a_tag() -> None:
    assert read("!x {a: 1}")[0].kind == "unreadable"
    assert read("!!str a")[0].text == "a"


def test_of_keys_that_stand_twice_the_last_counts_and_is_said() -> None:
    node, (note,) = read("a: 1\nb: {c: 2, c: 3}\n")
    assert plain(node) == {"a": "1", "b": {"c": "3"}}
    assert (note.code.id, note.message) == ("SHD601", "the key `c` is given twice")


def test_keys_that_matter_stand_once() -> None:
    source = SourceFile("a.yaml", "a: 1\na: 2\n")
    for found in (read_data(source), read_data(source, [], lambda route: route == ("a",))):
        assert isinstance(found, tuple)
        assert [fault.code.id for fault in found] == ["SHD603"]


@pytest.mark.parametrize(
    "text",
    [
        "? [1, 2]\n: x\na: b\n",
        "when: 2020-01-01\nbig: 1e400\na: b\n",
        "on: yes\nno: off\na: b\n",
    ],
)
def test_keys_and_words_that_do_not_concern_us(text: str) -> None:
    node, notes = read(text)
    assert notes == []
    assert plain(node)["a"] == "b"


names = st.sampled_from(("a", "b", "c"))
flat = st.dictionaries(names, st.sampled_from(("x", "y")), max_size=3)


@given(flat, st.lists(flat, max_size=2), flat, st.booleans())
def test_merge_keys_are_joined_as_pyyaml_joins_them(
    base: Any, others: Any, own: Any, is_first: bool
) -> None:
    lines = [f"one: &one {base}", *(f"m{i}: &m{i} {each}" for i, each in enumerate(others))]
    merged = ["<<: [*one" + "".join(f", *m{i}" for i in range(len(others))) + "]"]
    entries = [f"{key}: {value}" for key, value in own.items()]
    inner = merged + entries if is_first else entries + merged
    text = "\n".join((*lines, "all: {" + ", ".join(inner) + "}")) + "\n"
    assert plain(read(text)[0]) == yaml.safe_load(text)


@given(st.text(alphabet="ab:<>{}[],!&* \n-\"'?|#0", max_size=60))
def test_any_text_is_a_value_or_faults(text: str) -> None:
    found = read_data(SourceFile("a.yaml", text), [], lambda route: False)
    assert isinstance(found, Node) or all(isinstance(each, Diagnostic) for each in found)
