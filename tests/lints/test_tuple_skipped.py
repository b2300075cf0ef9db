from __future__ import annotations

import re

import pytest

from shardspec.lints.checks import tuple_skipped
from tests.lints.findings_of import findings_of, found_by

HEAD = "mesh: {fsdp: 8, expert: 4, tensor: 2}\narrays: {w: 'f32[expert=8 embed=64 mlp=98304]'}\n"


@pytest.mark.parametrize(
    ("rules", "part"),
    [
        ("[expert -> expert, 'embed -> (fsdp, expert)']", "fsdp"),
        ("[expert -> expert, 'embed -> (fsdp, expert) | fsdp']", None),
        ("[expert -> expert, 'embed -> (fsdp, expert) | tensor']", "fsdp"),
        ("[expert -> expert, 'embed -> (fsdp, expert) | none']", None),
        ("[expert -> expert, 'embed -> (fsdp, tensor, expert)']", "(fsdp, tensor)"),
        ("['expert -> (expert, tensor)', 'embed -> (fsdp, tensor)']", "fsdp"),
        ("['embed -> (fsdp, expert)', expert -> expert]", None),
        ("[expert -> expert, 'embed -> (fsdp, expert)', mlp -> fsdp]", None),  # no gain
        ("[expert -> expert, 'embed -> expert | (fsdp, expert)']", None),  # SHD214
    ],
)
def test_which(rules: str, part: str | None) -> None:
    found = found_by(tuple_skipped, f"{HEAD}rules: {rules}")
    assert [each.message.split("`")[-2] for each in found] == ([part] if part else [])


def test_what_saves_little_is_not_told() -> None:
    rules = "rules: [expert -> expert, 'embed -> (fsdp, expert) | tensor']"
    assert found_by(tuple_skipped, HEAD.replace("98304", "96") + rules) == []
    assert found_by(tuple_skipped, HEAD.replace("98304", "87382") + rules) != []  # 16 MiB
    assert found_by(tuple_skipped, HEAD.replace("98304", "87381") + rules) == []


def test_what_jax_refuses_of_nnx_is_told_whatever_it_saves() -> None:
    rules = "rules: [expert -> expert, 'embed -> (fsdp, expert)']"
    (found,) = found_by(tuple_skipped, HEAD.replace("98304", "96") + rules)
    assert found.notes[-1] == "Flax NNX gives both the same mesh axis: JAX refuses that"


def test_what_does_not_divide_is_not_offered() -> None:
    text = HEAD.replace("embed=64", "embed=12")
    assert (
        found_by(tuple_skipped, f"{text}rules: [expert -> expert, 'embed -> (fsdp, expert)']") == []
    )


def test_the_bytes_and_the_fix_are_true() -> None:
    rules = "rules: [expert -> expert, 'embed -> (fsdp, expert)']"
    (found,) = found_by(tuple_skipped, f"{HEAD}{rules}")
    whole = 2 * 64 * 98304 * 4
    saved = re.search(r"([\d.]+) MiB per device more", found.notes[0])
    assert saved
    assert float(saved[1]) == (whole - whole // 8) / 1024**2
    assert found.fix is not None
    (edit,) = found.fix.edits
    text = edit.span.source.text
    fixed = text[: edit.span.start] + edit.text + text[edit.span.end :]
    assert "'embed -> (fsdp, expert) | fsdp'" in fixed
    assert found_by(tuple_skipped, fixed) == []


MOE = """\
mesh: {data: 4, expert: 8}
axes: {batch: BATCH}
rules:
  - expert -> expert
  - batch -> RULE
  - embed -> none
arrays: {moe/wi: 'bf16[expert=8 embed=1024]'}
activations:
  dispatched: expert batch _ embed
  tokens: batch _ embed
  other: batch embed
"""


def _moe(rule: str, batch: str = "64") -> list[tuple[str, str]]:
    found = findings_of(MOE.replace("RULE", rule).replace("BATCH", batch))
    return [(d.code.name, " ".join(d.notes)) for d in found]


@pytest.mark.parametrize("batch", ["64", "null"])
def test_a_batch_that_is_whole_among_experts(batch: str) -> None:
    expected = [("tuple-skipped", "activation `dispatched`: `batch` could be split further")]
    assert _moe("(data, expert)", batch) == expected


@pytest.mark.parametrize(
    ("rule", "batch"),
    [
        ("(data, expert) | data", "64"),
        ("(data, expert) | none", "64"),
        ("data", "64"),
        ("(expert, data) | data", "64"),
    ],
)
def test_a_batch_that_has_what_is_free_or_says_none(rule: str, batch: str) -> None:
    assert _moe(rule, batch) == []


def test_what_is_free_has_to_divide() -> None:
    assert "tuple-skipped" not in dict(_moe("(data, expert)", "6"))


def test_dimensions_that_arrays_have_stay_whole_in_activations_unsaid() -> None:
    text = """\
mesh: {fsdp: 4, tensor: 2}
axes: {batch: 64, embed: 1024}
rules:
  - batch -> fsdp
  - embed -> (fsdp, tensor)
arrays: {w: 'bf16[embed]'}
activations: {x: batch embed}
"""
    assert [d.code.name for d in findings_of(text)] == []


def test_a_batch_that_loses_to_what_stands_behind_it_is_one_finding() -> None:
    text = """\
mesh: {data: 2, fsdp: 4}
axes: {batch: 64, embed: 1024}
rules:
  - embed -> fsdp
  - batch -> (data, fsdp)
arrays: {w: 'bf16[embed]'}
activations: {x: batch embed, y: batch}
"""
    assert [d.code.name for d in findings_of(text)] == ["whole-batch"]


def test_a_spec_for_use_from_code_is_judged_by_the_names_of_its_batch() -> None:
    text = MOE.replace("arrays: {moe/wi: 'bf16[expert=8 embed=1024]'}\n", "")
    found = findings_of(text.replace("RULE", "(data, expert)").replace("BATCH", "64"))
    assert [d.code.name for d in found] == ["tuple-skipped"]
    assert findings_of(text.replace("RULE", "(data, expert) | data").replace("BATCH", "64")) == ()
