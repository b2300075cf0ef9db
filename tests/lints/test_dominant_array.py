from __future__ import annotations

import pytest

from tests.lints.findings_of import findings_of

TEXT = """\
mesh: {{data: 8, model: 8}}
rules: ['vocab -> {vocab}', 'mlp -> {mlp}', embed -> none]
arrays:
  embedding: bf16[vocab={size} embed=4096]
  'l_{{0..7}}/k': bf16[embed=4096 mlp=16384]
"""


def text(vocab: str = "model", mlp: str = "(model, data)", size: int = 32768) -> str:
    return TEXT.format(vocab=vocab, mlp=mlp, size=size)


@pytest.mark.parametrize(
    ("vocab", "mlp", "size", "count"),
    [
        ("model", "(model, data)", 32768, 1),
        ("none", "(model, data)", 32768, 0),
        ("(model, data)", "(model, data)", 32768, 0),
        ("model", "model", 32768, 0),
        ("model", "(model, data)", 8, 0),
        ("model", "(model, data)", 1048576, 0),
    ],
)
def test_which(vocab: str, mlp: str, size: int, count: int) -> None:
    assert len(findings_of(text(vocab, mlp, size), only="dominant-array")) == count


def test_the_help_works() -> None:
    (found,) = findings_of(text())
    assert found.help == "split `vocab` over `data` as well: 4.00 MiB per device"
    assert findings_of(text(vocab="(model, data)")) == ()


def test_whole_on_purpose() -> None:
    unpinned = text(vocab="none") + "lints: {pinned-large: allow}\n"
    (found,) = findings_of(unpinned)
    assert "or say under `replicate:` that it should be replicated" in (found.help or "")
    assert "`data`, `model`" in found.notes[1]
    allow = "replicate: [{path: embedding, because: looked up everywhere}]"
    assert findings_of(text(vocab="none") + allow) == ()


def test_rules_that_pin_it_are_told_instead() -> None:
    (found,) = findings_of(text(vocab="none"))
    assert found.code.id == "SHD410"
    (silenced,) = findings_of(text(vocab="none") + "lints: {pinned-large: allow}\n")
    assert silenced.code.id == "SHD404"


def test_another_finding_for_being_whole_is_enough() -> None:
    odd = text().replace("bf16[vocab=32768", "bf16[_=32768")
    assert [d.code.name for d in findings_of(odd) if d.code.id.startswith("SHD4")] == [
        "replicated-large"
    ]


def test_nothing_to_offer_nothing_to_say() -> None:
    odd = text().replace("embedding: bf16[vocab=32768 embed=4096]", "e: bf16[_=32767 embed=4095]")
    assert findings_of(odd, only="dominant-array") == ()
