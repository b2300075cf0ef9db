"""SHD410: what `none` pins is said with its bytes, unless a reason stands beside it."""

from __future__ import annotations

import re

import pytest

from tests.lints.findings_of import findings_of

NAME = "pinned-large"
TEXT = """\
mesh: {fsdp: 8}
axes: {vocab: 32768, embed: 4096, mlp: 16384, norm: 4096}
rules: [vocab -> none, embed -> none, mlp -> none, norm -> none]
arrays:
  embedding: bf16[vocab embed]
  "layers_{0..3}/wi": bf16[embed mlp]
  "layers_{0..3}/scale": bf16[norm]
"""


def test_a_whole_model_is_one_finding_with_its_bytes() -> None:
    (found,) = findings_of(TEXT)
    assert found.code.name == NAME
    assert found.bytes == (32768 * 4096 + 4 * 4096 * 16384) * 2
    assert found.message.startswith(
        "768 MiB of arrays, 100 % of what a device holds, are replicated"
    )
    assert found.notes[0] == "512 MiB  layers_{0..3}/wi x4"


def test_the_ways_out_work() -> None:
    (found,) = findings_of(TEXT)
    entry = re.search(r"`(replicate: .*)`", found.help or "")
    assert entry
    silenced = findings_of(TEXT + entry[1].replace('"layers_{0..3}/wi"', '"**"'))
    assert silenced == ()
    assert (
        findings_of(TEXT.replace("vocab -> none, embed -> none", "vocab -> none, embed -> fsdp"))
        == ()
    )


@pytest.mark.parametrize(
    ("old", "new", "count"),
    [
        ("{fsdp: 8}", "{fsdp: 1}", 0),
        ("embed -> none", "embed -> tensor | none", 0),
        ("rules: [", "overrides: [{path: '*', axes: vocab embed}]\nrules: [", 1),
        ("norm -> none]", "norm -> none]\nreplicate: [{path: '**/wi', because: x}]", 1),
        ("norm -> none]", "norm -> none]\nreplicate: [{path: '**', because: x}]", 0),
        ("vocab: 32768, embed: 4096, mlp: 16384", "vocab: 64, embed: 64, mlp: 64", 0),
    ],
)
def test_which(old: str, new: str, count: int) -> None:
    assert old in TEXT
    text = TEXT.replace(old, new, 1)
    if "tensor" in new:
        text = text.replace(
            "mesh: {fsdp: 8}", "targets: {a: {mesh: {fsdp: 8}}, b: {mesh: {tensor: 8}}}"
        )
    assert len([d for d in findings_of(text, only=NAME) if d.target != "b"]) == count


@pytest.mark.parametrize(("because", "count"), [("", 1), (", because: a table of all", 0)])
def test_an_override_may_give_its_reason(because: str, count: int) -> None:
    """openpi#112: parameters pinned whole by hand, with FSDP beside them."""
    text = f"""\
mesh: {{fsdp: 8}}
rules: [embed -> fsdp]
overrides: [{{match: '.*', spec: '(none, none)'{because}}}]
arrays: {{"layers_{{0..9}}/w": 'bf16[embed=8192 _=8192]'}}
"""
    found = findings_of(text, only=NAME)
    assert len(found) == count
    assert all(each.bytes == 10 * 8192 * 8192 * 2 for each in found)


def test_a_preset_is_a_strategy_with_a_name() -> None:
    text = TEXT.replace("rules: [vocab -> none, embed -> none, mlp -> none, norm -> none]", "")
    assert findings_of("extends: data-parallel\n" + text.replace("fsdp", "data"), only=NAME) == ()
