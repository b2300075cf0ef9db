"""The bytes in a finding are what a device holds, on the target where that is most."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import cost
from tests.lints.findings_of import findings_of

SPEC = """\
targets:
  small: {{mesh: {{data: 2, model: 2}}}}
  large: {{mesh: {{data: 4, model: 16}}}}
  one: {{mesh: {{data: 1}}}}
axes: {{embed: 4096, vocab: 32768, mlp: 8192}}
rules: [{rules}]
arrays:
  embedding: bf16[vocab embed]
  "layers_{{0..3}}/wi": bf16[embed mlp]
"""


def context_of(rules: str) -> Context:
    spec, _ = pipeline.load_text(SPEC.format(rules=rules), "s.yaml")
    assert spec is not None
    return Context(spec, pipeline.compile_plans(spec))


def test_it_is_the_target_that_holds_most() -> None:
    found = cost(context_of("'vocab, mlp -> model'"), ["embedding", "layers_0/wi"])
    assert found is not None
    assert found.plan.target.name == "small"
    assert found.bytes == (32768 * 4096 + 4096 * 8192) * 2 // 2
    assert not found.is_whole
    assert (found.axis, found.then) == ("data", found.bytes // 2)


def test_one_device_has_to_hold_everything() -> None:
    spec, _ = pipeline.load_text("mesh: {a: 1}\narrays: {w: 'f32[1024]'}")
    assert spec is not None
    assert cost(Context(spec, pipeline.compile_plans(spec)), ["w"]) is None


@given(st.sets(st.sampled_from(["embedding", *(f"layers_{i}/wi" for i in range(4))])))
def test_it_is_the_sum_of_the_shards(paths: set[str]) -> None:
    context = context_of("vocab -> model")
    found = cost(context, sorted(paths))
    sums = [sum(plan[path].per_device_bytes for path in paths) for plan in context.plans[:2]]
    assert (found.bytes if found else 0) == max(sums, default=0)
    if found is not None:
        assert found.is_whole == ("embedding" not in paths)
        assert found.then <= found.bytes <= found.held


@pytest.mark.parametrize(
    ("old", "new", "code", "size"),
    [
        ("vocab, mlp -> model", "vocab, mlp -> modle", "SHD201", "256 MiB"),
        ("vocab, mlp -> model", "vocab -> model", "SHD203", "128 MiB"),
        ("bf16[vocab embed]", "bf16[vcoab=32768 embed]", "SHD202", "128 MiB"),
        ("bf16[vocab embed]", "bf16[32768, 4096]", "SHD205", "256 MiB"),
        ("arrays:", "params: {'embeding': vocab embed}\narrays:", "SHD204", "256 MiB"),
        ("arrays:", "overrides: [{path: embedding, axes: vocab}]\narrays:", "SHD206", "256 MiB"),
    ],
)
def test_each_says_the_bytes(old: str, new: str, code: str, size: str) -> None:
    text = SPEC.format(rules="'embed -> data', 'vocab, mlp -> model'")
    if code == "SHD204":
        text = text.replace("bf16[vocab embed]", "bf16[32768, 4096]")
    assert old in text
    found = [d for d in findings_of(text.replace(old, new, 1)) if d.code.id == code]
    assert found
    assert any(size in note for each in found for note in each.notes), found[0].notes
    assert found[0].bytes
    assert found[0].arrays


def test_shares_are_of_all_that_a_device_holds() -> None:
    """What `replicate:` allows is held, too: no share is above the whole."""
    text = (
        "mesh: {model: 4}\naxes: {vocab: 32768, embed: 4096}\nrules: [embed -> none]\n"
        "arrays: {a: 'bf16[vocab embed]'}\nreplicate: [{path: a, because: tied}]\n"
    )
    (found,) = findings_of(text, only="axis-without-rule")
    assert "256 MiB on every device, 100 % of all it holds" in found.notes[0]
