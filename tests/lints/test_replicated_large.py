"""SHD401 is true by itself; what else is shown of the same arrays decides whether it is said."""

from __future__ import annotations

import pytest

from shardspec.lints.checks import replicated_large
from tests.lints.findings_of import findings_of, found_by

JOINED = "joined: {parts: {q: 3072, k: 29696}}"
HEAD = f"mesh: {{data: 8, model: 3}}\naxes: {{vocab: 32768, embed: 4096, {JOINED}}}\n"
EMBEDDING = "arrays: {embedding: 'bf16[vocab embed]'}\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"rules: [embed -> none]\n{EMBEDDING}", "SHD203"),
        (f"rules: [embed -> none, vocba -> data]\n{EMBEDDING}", "SHD202"),
        ("rules: [vocab -> data]\narrays: {embedding: 'bf16[32768, 4096]'}\n", "SHD205"),
        (f"rules: [embed -> none, vocab -> dta]\n{EMBEDDING}", "SHD201"),
        (f"rules: [embed -> none, vocab -> model]\n{EMBEDDING}", "SHD301"),
        ("rules: [embed -> none, joined -> data]\narrays: {a: 'bf16[joined embed]'}\n", "SHD313"),
        (
            "rules: [vocab -> data]\noverrides: [{path: embedding, axes: vocab}]\n"
            "arrays: {embedding: 'bf16[32768, 4096]'}\n",
            "SHD206",
        ),
    ],
)
def test_it_speaks_where_the_reason_is_not_shown(text: str, why: str) -> None:
    shown = {found.code.id for found in findings_of(HEAD + text)}
    assert why in shown
    assert "SHD401" not in shown
    silenced = findings_of(f"{HEAD}{text}lints: {{{why}: allow, SHD1: allow, SHD2: allow}}\n")
    (found,) = silenced
    assert found.code.id == "SHD401"
    assert found.bytes == 256 << 20
    assert found.notes[0] == "1 array, 256 MiB per device, 100 % of the model"


def test_each_dimension_says_why_it_is_whole() -> None:
    text = HEAD + "rules: [vocab -> model, embed -> dta]\n" + EMBEDDING
    (found,) = found_by(replicated_large, text)
    assert found.notes[1:] == (
        "dim 0 (vocab=32768): `model` = 3 does not divide it",
        "dim 1 (embed=4096): `dta` is on no target",
    )


@pytest.mark.parametrize(
    ("axis", "why"),
    [
        (JOINED, "would cut parts"),
        ("joined: {size: 32768, unit: 16384}", "would cut a unit of 16384"),
    ],
)
def test_what_divides_and_would_cut_says_so(axis: str, why: str) -> None:
    text = (
        HEAD.replace(JOINED, axis) + "rules: [joined -> data]\narrays: {a: 'bf16[joined _=4096]'}\n"
    )
    (found,) = found_by(replicated_large, text)
    assert found.notes[1] == f"dim 0 (joined=32768): `data` = 8 {why}"


def test_names_that_would_make_it_fit_hide_no_overflow_once_allowed() -> None:
    text = """\
hardware: tpu v5e 2x2
mesh: {model: 4}
rules: [mlp -> model, embed -> none]
arrays: {"l_{0..63}/k": "bf16[8192, 32768]"}
"""
    kinds = [found.code.id for found in findings_of(text)]
    assert "SHD205" in kinds
    assert "SHD403" not in kinds
    allowed = [found.code.id for found in findings_of(text + "lints: {unnamed-array: allow}\n")]
    assert "SHD403" in allowed


DERIVED = """\
mesh: {tensor: 4}
axes: {embed: 4096, mlp: 16384, rank: 65536}
rules: [mlp -> tensor, embed -> none]
derive: {"**/lora_a": from **/kernel dims 0 _}
arrays:
  w/kernel: bf16[embed mlp]
  w/lora_a: f32[4096, 65536]
"""


def test_a_derived_array_has_the_ways_out_of_its_parent() -> None:
    (found,) = found_by(replicated_large, DERIVED)
    assert found.notes[1:] == (
        "dim 0 (embed=4096): dim 0 of `w/kernel` is replicated",
        "dim 1 (_=65536) is not a dimension of `w/kernel`",
    )
    assert found.help == (
        "it is sharded like `w/kernel`: split dim 0 of it over mesh axes of this target (tensor);"
        " or write an axis that rules place for `_` in `dims`; or say that this is intended:"
        " `replicate:` with a reason"
    )


@pytest.mark.parametrize(
    "followed",
    [
        DERIVED.replace("mlp -> tensor, embed -> none", "embed -> tensor, mlp -> none"),
        DERIVED.replace("dims 0 _", "dims 0 rank").replace("[mlp ->", "[rank -> tensor, mlp ->"),
        DERIVED + 'replicate: [{path: "**/lora_a", because: small}]\n',
    ],
)
def test_each_of_them_works(followed: str) -> None:
    assert not found_by(replicated_large, followed)


def test_a_name_in_dims_is_asked_for_a_rule() -> None:
    (found,) = found_by(replicated_large, DERIVED.replace("dims 0 _", "dims 0 rank"))
    assert "or give `rank` a rule that fits; or" in (found.help or "")
