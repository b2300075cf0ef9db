from __future__ import annotations

import re

import pytest

from shardspec import pipeline
from shardspec.ir.spec import Param
from tests.lints.findings_of import findings_of, marked

HEAD = "mesh: {x: 2}\nrules: [a -> x, b -> none]\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("params: {'**': a}\narrays: {k: 'f32[8]'}", []),
        ("params: {k: a, j: a}\narrays: {k: 'f32[8]'}", ["unmatched-pattern"]),
        ("params: {'**': a, k: a}\narrays: {k: 'f32[8]'}", ["hidden-pattern"]),
        ("params: {k: a, '**': a}\narrays: {k: 'f32[8]', j: 'f32[8]'}", []),
        ("scan: {'l/**': a@0}\narrays: {k: 'f32[a=8]'}", ["unmatched-pattern"]),
        ("replicate: [{path: j, because: x}]\narrays: {k: 'f32[b=8]'}", ["unmatched-pattern"]),
        ("replicate: [{path: k, because: x}]\narrays: {k: 'f32[b=8]'}", []),
        (
            "replicate: [{path: '*', because: x}, {path: k, because: y}]\narrays: {k: 'f32[b=8]'}",
            ["hidden-pattern"],
        ),
        (
            "replicate: [{match: 'l_\\d', because: x}]\narrays: {'l_{0..11}': 'f32[b=8]'}",
            ["single-digit"],
        ),
        ("params: {k: a}\narrays: {k: 'f32[8]', j: 'f32[8]'}", ["unnamed-array"]),
        ("params: {k: a}\narrays: {k: 'f32[8]', 'l_{0..9}/j': 'f32[8]'}", ["unnamed-array"]),
        ("params: {k: a}\narrays: {k: 'f32[8]', j: 'f32[]'}", []),
        ("params: {'**': a}\narrays: {k: 'f32[8, 8]', j: 'f32[8, 8]'}", ["rank-mismatch"]),
        ("params: {'**': a}\nscan: {k: b@0}\narrays: {k: 'f32[2, 8]'}", []),
        ("overrides: [{path: k, 'spec': '(x, none)'}]\narrays: {k: 'f32[8]'}", ["rank-mismatch"]),
        ("params: {'**': a a}\narrays: {k: 'f32[8, 8]'}", ["repeated-axis"]),
        ("axes: {a: 4}\nparams: {'**': a}\narrays: {k: 'f32[8]'}", ["size-mismatch"]),
        ("params: {'re:(?=k).*': a}\narrays: {k: 'f32[8]'}", ["slow-regex"]),
        ("params: {'re:(k+)+': a}\narrays: {k: 'f32[8]'}", []),
        ("axes: {c: 4}\narrays: {k: 'f32[c]'}", ["axis-without-rule"]),
        ("axes: {c: 4}\narrays: {k: 'f32[a=2]'}", []),
    ],
)
def test_which(text: str, expected: list[str]) -> None:
    found = findings_of(
        HEAD + text + "\nlints: {unknown-logical-axis: allow, axis-without-array: allow}"
    )
    assert [d.code.name for d in found] == expected


def test_the_nearest_path_is_offered() -> None:
    text = "params: {'**': a, 'dec/wj': a}\narrays: {dec/wi: 'f32[8]'}"
    (found,) = findings_of(HEAD + text, only="unmatched-pattern")
    assert found.help == "the nearest path is `dec/wi`"


def test_layers_are_one_finding_with_their_bytes() -> None:
    (found,) = findings_of(HEAD + "arrays: {'l_{0..9}/j': 'f32[256]'}", only="unnamed-array")
    assert "l_{0..9}/j" in found.message
    assert "10 arrays" in found.notes[0]
    assert "10.0 KiB" in found.notes[0]


def test_names_in_the_wrong_order_are_seen_by_size() -> None:
    text = "axes: {a: 4, b: 6}\nparams: {k: b a}\narrays: {k: 'f32[4, 6]'}"
    (found,) = findings_of(HEAD + text)
    assert found.help == "by size, the names are `a b`"
    assert marked(found)[0] == "k: b a"


def test_the_help_for_stacked_layers_works() -> None:
    text = "params: {'l/k': a b}\narrays: {l/k: 'f32[3, 8, 8]'}"
    (found,) = findings_of(HEAD + text)
    assert '"l/**": layers@0' in (found.help or "")
    fixed = (
        text + "\nscan: {'l/**': layers@0}\naxes: {layers: 3}\nlints: {axis-without-rule: allow}"
    )
    assert findings_of(HEAD + fixed) == ()


def test_layers_from_a_manifest_are_one_finding() -> None:
    """Each array of a manifest has a line of its own; the layers are told together all the same."""
    lines = "".join(f"  l_{layer}/j: 'f32[256]'\n" for layer in range(4))
    (found,) = findings_of(f"{HEAD}arrays:\n{lines}", only="unnamed-array")
    assert "`l_{0..3}/j`" in found.message
    assert "4 arrays" in found.notes[0]


def test_help_for_a_kernel_that_its_layer_reshapes_can_be_followed() -> None:
    """Flax's DenseGeneral names a kernel before it reshapes it: two names, three dimensions."""
    text = (
        "mesh: {fsdp: 2, tensor: 2}\n"
        "axes: {embed: 512, heads: 8, kv: 64, joined_kv: 512, mlp: 2048}\n"
        "rules: [heads -> tensor, embed -> fsdp, kv -> none, mlp -> tensor, joined_kv -> tensor]\n"
    )
    named = Param("layers_0/attention/query/kernel", (512, 8, 64), "f32", ("embed", "joined_kv"))
    spec, faults = pipeline.load_text(text, "spec.yaml")
    assert spec is not None
    (found,) = [
        each
        for each in pipeline.checked(spec, faults, pipeline.compile_plans(spec, (named,)))
        if each.code.id == "SHD206"
    ]
    entry = re.search(r"`- (\{path: .*? axes: [^`]*\})`", found.help or "")
    assert entry, found.help
    assert "unless a layer reshapes" in (found.help or "")
    mended = text + f"overrides:\n  - {entry[1]}\n"
    spec, faults = pipeline.load_text(mended, "spec.yaml")
    assert spec is not None
    plans = pipeline.compile_plans(spec, (named,))
    assert "SHD206" not in [each.code.id for each in pipeline.checked(spec, faults, plans)]
    assert plans[0].arrays[0].partition_spec.dims == (("fsdp",), ("tensor",), ())
