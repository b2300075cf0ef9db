"""What SHD301 and SHD312 offer is applied, and the finding goes away."""

from __future__ import annotations

import pytest

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic
from shardspec.ir.plan import ShardingPlan
from tests.lints.findings_of import findings_of

KV = """\
mesh: {{data: 2, {mesh}}}
axes: {{kv_heads: {{size: 8, unit: 1}}, joined_kv: {{size: 512, unit: 64}}, mlp: 64}}
rules:
  - {axis} -> tensor
  - mlp -> {all}
arrays:
  k: bf16[{axis} _=128]
  wi: bf16[mlp _=128]
"""


def kv(axis: str, mesh: str = "tensor: 16", everything: str = "tensor") -> str:
    return KV.format(axis=axis, mesh=mesh, all=everything)


def only(text: str) -> Diagnostic:
    (found,) = findings_of(text)
    return found


def plan_of(text: str) -> ShardingPlan:
    spec, _ = pipeline.load_text(text)
    assert spec is not None
    return pipeline.compile_plans(spec)[0]


@pytest.mark.parametrize("axis", ["kv_heads", "joined_kv"])
def test_two_mesh_axes_hold_each_head_twice(axis: str) -> None:
    note = only(kv(axis)).notes[-1]
    assert "give each device one of them, with 2 copies of each" in note
    parts = "tensor: {tensor_part: 8, tensor_copy: 2}"
    assert f"`{parts}` and `{axis} -> tensor_part`" in note
    split = kv(axis, parts).replace(f"{axis} -> tensor", f"{axis} -> tensor_part")
    assert findings_of(split) == ()
    plan = plan_of(split)
    assert plan["k"].shard_count == 8
    assert plan["wi"].shard_count == plan_of(kv(axis))["wi"].shard_count == 16


def test_copies_get_rows_of_their_own() -> None:
    """Without it, both copies hold all rows of a cache, and a step compute the same for them."""
    text = kv("kv_heads").replace("rules:\n", "rules:\n  - batch -> data\n")
    text += "caches: {'c/{0..3}': 'bf16[batch=64 _=512 kv_heads _=128]'}\n"
    (found,) = findings_of(text, only="indivisible")
    entry = '{rule: "batch -> (data, tensor_copy)? | none", at: end}'
    assert f"`{entry}`, in place of the rule for `batch`, gives" in found.notes[-1]
    split = text.replace("tensor: 16", "tensor: {tensor_part: 8, tensor_copy: 2}")
    split = split.replace("kv_heads -> tensor", "kv_heads -> tensor_part")
    assert plan_of(split)["c/0"].shard_count == 16
    split = split.replace("- batch -> data", f"- {entry}")
    assert findings_of(split) == ()
    assert plan_of(split)["c/0"].shard_count == 32
    assert plan_of(split)["wi"].shard_count == 16


@pytest.mark.parametrize("axis", ["kv_heads", "joined_kv"])
def test_the_sizes_of_the_mesh_axis_work(axis: str) -> None:
    assert "`tensor` in {1, 2, 4, 8}" in (only(kv(axis)).help or "")
    for size in (2, 4, 8):
        assert findings_of(kv(axis, f"tensor: {size}")) == ()


@pytest.mark.parametrize(
    ("rules", "said", "meant"),
    [
        ("[a -> t]", "a -> t | none", "[a -> t | none]"),
        ("['a -> (d, t)']", "a -> (d, t) | none", "['a -> (d, t) | none']"),
    ],
)
def test_none_is_offered_and_made(rules: str, said: str, meant: str) -> None:
    text = "mesh: {d: 4, t: 8}\nrules: RULES\narrays: {k: 'f32[a=12 b=4]', l: 'f32[b=4]'}\n"
    text += "axes: {b: 4}\nlints: {axis-without-rule: allow, unused-mesh-axis: allow}"
    (found,) = findings_of(text.replace("RULES", rules), only="indivisible")
    assert f"`{said}`" in (found.help or "")
    assert edited(text.replace("RULES", rules), found) == text.replace("RULES", meant)
    assert findings_of(text.replace("RULES", meant), only="indivisible") == ()


def edited(text: str, found: Diagnostic) -> str:
    """Return the source with the fix of a finding applied."""
    assert found.fix is not None
    assert not found.fix.is_sure
    for edit in sorted(found.fix.edits, key=lambda edit: -edit.span.start):
        text = text[: edit.span.start] + edit.text + text[edit.span.end :]
    return text


def test_none_goes_behind_the_last_alternative() -> None:
    text = "mesh: {d: 8, t: 8}\nrules: [a -> t | d @ 3]\narrays: {k: 'f32[a=12]'}"
    (found,) = findings_of(text, only="indivisible")
    fixed = edited(text, found)
    assert "a -> t | d | none @ 3" in fixed
    assert findings_of(fixed, only="indivisible") == ()
    assert findings_of(fixed, only="dead-rule") == ()


def test_no_fix_where_there_is_no_plain_place_for_it() -> None:
    text = "mesh: {t: 8}\npolicy: {indivisible: keep}\nrules: [a -> t]\narrays: {k: 'f32[a=12]'}"
    assert only(text).fix is None
    text = "mesh: {t: 8}\noverrides: [{path: k, spec: (t)}]\narrays: {k: 'f32[12]'}"
    assert only(text).fix is None
    text = 'mesh: {t: 8}\nrules: ["a \\u002d> t"]\narrays: {k: "f32[a=12]"}'
    assert only(text).fix is None


PADDED = "mesh: {{t: 8}}\nrules: [a -> t]\narrays: {{'l_{{0..3}}/k': 'f32[a={size} _=256]'}}\n"


PADS = "`policy: {indivisible: pad}` pads it so in every array"


def test_the_policy_to_pad_does_what_its_note_says() -> None:
    text = "mesh: {t: 8}\naxes: {a: 1020}\nrules: [a -> t]\narrays: {k: 'f32[a _=256]'}\n"
    assert PADS in only(text).notes
    left = findings_of(text + "policy: {indivisible: pad}\n")
    assert all(each.code.id != "SHD301" for each in left)
    assert plan_of(text + "policy: {indivisible: pad}\n")["k"].param.shape == (1024, 256)


def test_what_would_be_padded_by_half_has_no_such_note() -> None:
    assert PADS not in only(kv("kv_heads")).notes


def test_the_padded_size_and_its_waste() -> None:
    notes = only(PADDED.format(size=1020)).notes
    assert "padded to 1024 (+0.4 %) it divides, for 2.00 KiB of padding per device in all" in notes
    whole, padded = plan_of(PADDED.format(size=1020)), plan_of(PADDED.format(size=1024))
    assert padded.per_device_bytes - whole.per_device_bytes // 8 == 4 * 4 * 256 * 4 // 8 == 2048
    assert findings_of(PADDED.format(size=1024)) == ()


def test_padding_under_keep_is_the_same() -> None:
    keep = "policy: {indivisible: keep}\n"
    of_next = only(PADDED.format(size=1020)).notes
    of_keep = only(PADDED.format(size=1020) + keep).notes
    assert [n for n in of_keep if "padded" in n] == [n for n in of_next if "padded" in n]


def test_padding_by_more_than_half_is_no_offer() -> None:
    assert not [n for n in only(PADDED.format(size=9)).notes if "padded" in n]
    assert [n for n in only(PADDED.format(size=11)).notes if "padded to 16" in n]


TARGETS = """\
targets: {x: {mesh: {t: 2}}, y: {mesh: {t: 4}}, z: {mesh: {t: 8}}}
rules: [a -> t]
arrays: {k: 'f32[a=SIZE]'}
"""


@pytest.mark.parametrize(
    ("size", "notes"),
    [
        (12, ["divides on `x`, `y`; only `z` is affected"]),
        (14, ["divides on `x`", "divides on `x`"]),
        (13, []),
    ],
)
def test_where_else_it_divides(size: int, notes: list[str]) -> None:
    found = findings_of(TARGETS.replace("SIZE", str(size)), only="indivisible")
    said = [note for each in found for note in each.notes if note.startswith("divides")]
    assert said == notes


def test_targets_that_fail_alike_and_one_that_does_not() -> None:
    text = TARGETS.replace("SIZE", "12").replace("y: {mesh: {t: 4}}", "y: {mesh: {t: 8}}")
    (found,) = findings_of(text, only="indivisible")
    assert "divides on `x`; only `y`, `z` are affected" in found.notes
    assert found.target is None


@pytest.mark.parametrize(
    ("size", "unit", "ways", "share"),
    [
        (512, 64, 16, "half a unit"),
        (512, 64, 32, "0.25 of a unit"),
        (768, 64, 8, "1.5 units"),
        (2304, 2304, 8, "0.125 of a unit"),  # query, key and value side by side
    ],
)
def test_the_share_of_a_unit(size: int, unit: int, ways: int, share: str) -> None:
    text = f"mesh: {{t: {ways}}}\naxes: {{a: {{size: {size}, unit: {unit}}}}}\n"
    found = only(text + "rules: [a -> t]\narrays: {k: 'f32[a]'}")
    assert found.code.name == "cut-unit"
    assert f"is {size // ways}, {share} of {unit}" in found.message


def test_an_axis_of_parts_has_no_size_of_its_own_to_choose() -> None:
    text = (
        "mesh: {tensor: 5}\naxes: {qkv: {parts: {q: 64, k: 32}, unit: 8}}\n"
        "rules: [qkv -> tensor]\narrays: {a: 'bf16[qkv _=64]'}\n"
    )
    (found,) = findings_of(text, only="indivisible")
    assert (found.help or "").startswith("`parts` of 80 or 120 in all may divide; or ")
    assert not any(note.startswith("padded") for note in found.notes)
