"""What is read behind an error of syntax."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.diagnostics import SourceFile
from shardspec.language.yaml_text.reader import read_yaml

SPEC = """\
shardspec: 1
mesh: {data: 2, tensor: 4}
rules:
  - mlp -> tensor
  - embed -> data
params:
  "**/wi": embed mlp
  "**/wo": mlp embed
arrays:
  a/wi: f32[64, 128]
  a/wo: f32[128, 64]
"""
SLIPS = ["[", "{", '"', "*", ": ", "\n", "\t", "- ", "&a ", "}", ""]
LINES = SPEC.splitlines(keepends=True)


@pytest.mark.parametrize(
    ("right", "wrong", "lost"),
    [
        ("  - embed -> data", "  - [embed] -> data", "rules"),
        ("mesh: {data: 2, tensor: 4}", "mesh: {data: 2, tensor: 4", "mesh"),
        ('  "**/wi": embed mlp', "  **/wi: embed mlp", "params"),
        ("  a/wo: f32[128, 64]", "  a/wo: {f32: 1}[128, 64]", "arrays"),
        ("rules:", "rules", "rules"),
    ],
)
def test_one_slip_takes_one_entry_or_section(right: str, wrong: str, lost: str) -> None:
    assert right in SPEC
    reading, faults = read_yaml(SourceFile("s.yaml", SPEC.replace(right, wrong)))
    whole, none = read_yaml(SourceFile("s.yaml", SPEC))
    assert reading is not None
    assert whole is not None
    assert none == ()
    assert not reading.is_whole
    assert [fault.code.id for fault in faults] == ["SHD002"]
    assert [fault.section for fault in faults] == [lost]
    others = set(whole.data) - {lost}
    assert {key: reading.data[key] for key in others} == {key: whole.data[key] for key in others}


@given(st.data())
def test_whatever_is_cut_or_put_in(data: st.DataObject) -> None:
    """A reading that is not whole has a fault, spans lie in the text, and entries stay in place."""
    text = SPEC
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        more = data.draw(
            st.sampled_from(["[", "{", '"', "*", ": ", "\n", "\t", "- ", "&a ", "}", ""])
        )
        text = text[:at] + more + text[at + data.draw(st.integers(0, 3)) :]
    reading, faults = read_yaml(SourceFile("s.yaml", text))
    if reading is None or not reading.is_whole:
        assert faults
    for fault in faults:
        for label in fault.labels:
            assert 0 <= label.span.start <= label.span.end <= len(text)
    if reading is not None:
        for excerpt in reading.source_map.keys.values():
            if excerpt.start is not None:
                assert text.startswith(excerpt.text, excerpt.start)


@given(st.integers(2, 6))
def test_an_item_that_is_indented_deeper_is_an_item(deeper: int) -> None:
    index = LINES.index("  - embed -> data\n")
    text = "".join((*LINES[:index], " " * deeper, *LINES[index:]))
    reading, (fault,) = read_yaml(SourceFile("s.yaml", text))
    assert reading is not None
    assert reading.data["rules"] == ["mlp -> tensor", "embed -> data"]
    assert fault.primary is not None
    assert fault.primary.span.text == "- embed -> data"
    assert "column 3" in (fault.help or "")
