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
        for each in pipeline.checked(spec, faults, pipeline.compile_plans(spec, (named,))).shown
        if each.code.id == "SHD206"
    ]
    entry = re.search(r"`- (\{path: .*? axes: [^`]*\})`", found.help or "")
    assert entry, found.help
    assert "unless a layer reshapes" in (found.help or "")
    mended = text + f"overrides:\n  - {entry[1]}\n"
    spec, faults = pipeline.load_text(mended, "spec.yaml")
    assert spec is not None
    plans = pipeline.compile_plans(spec, (named,))
    assert "SHD206" not in [each.code.id for each in pipeline.checked(spec, faults, plans).shown]
    assert plans[0].arrays[0].partition_spec.dims == (("fsdp",), ("tensor",), ())


FAMILY = """\
overrides:
  - {match: 'language_model[./]layers[./]\\d+[./]q[./]weight', spec: "(tensor, none)"}
  - {match: 'language_model[./]layers[./]\\d+[./]k[./]weight', spec: "(tensor, none)"}
replicate:
  - {path: language_model.norm.weight, because: tiny}
arrays:
  "model.layers.{0..3}.{q,k}.weight": bf16[64, 64]
  model.norm.weight: bf16[64]
"""


def test_patterns_dead_for_one_reason_are_one_finding() -> None:
    (found,) = findings_of(HEAD + FAMILY, only="unmatched-pattern")
    assert found.message == (
        "3 patterns match none of 9 arrays (2 override, 1 replicate): the patterns begin with"
        " `language_model.`, and the paths with `model.`"
    )
    assert found.help == "write `model.` for `language_model.` in each pattern"
    assert [label.span.line - HEAD.count("\n") for label in found.labels] == [2, 3, 5]
    mended = FAMILY.replace("language_model", "model")
    assert findings_of(HEAD + mended, only="unmatched-pattern") == ()


@pytest.mark.parametrize(
    ("patterns", "why"),
    [
        (("wi/k", "wo/k"), "the paths begin with `mlp/`, and the patterns do not"),
        (("a/mlp/wi/k", "a/mlp/wo/k"), "the patterns begin with `a/`, and the paths do not"),
        (("**/moe/wi", "**/moe/wo"), "no path has the name `moe`"),
    ],
)
def test_the_reason_is_named_once(patterns: tuple[str, ...], why: str) -> None:
    entries = "".join(f'  "{each}": _ mlp\n' for each in patterns)
    arrays = 'arrays: {"mlp/{wi,wo}/k": "bf16[64, mlp=128]"}\n'
    (found,) = findings_of(f"{HEAD}params:\n{entries}{arrays}", only="unmatched-pattern")
    assert found.message.endswith(f"(2 params): {why}")
    silenced = entries.replace("_ mlp", "_ mlp  # shardspec: ignore[SHD204] kept", 1)
    (found,) = findings_of(f"{HEAD}params:\n{silenced}{arrays}", only="unmatched-pattern")
    assert patterns[1] in found.message


OPTIONAL = [
    'params: {"optional:**/moe/wi": mlp _, "optional:re:.*/moe/(wo)": mlp _}\n',
    'overrides: [{path: "**/moe/wi", axes: mlp _, optional: true}]\n',
    "replicate: [{match: '.*/moe/\\w+', optional: true, because: tiny}]\n",
    'scan: {"optional:**/moe/**": layers@0}\n',
    'memory: {"optional:**/moe/**": pinned_host}\n',
    'training: {"optional:**/moe/**": frozen}\n',
    'derive: {"optional:**/moe/lora_a": "from **/moe/kernel dims 0 _"}\n',
]


@pytest.mark.parametrize("section", OPTIONAL)
def test_an_optional_pattern_may_match_nothing(section: str) -> None:
    dense = 'arrays: {"layers/mlp/wi": "bf16[mlp=64, 128]"}\n'
    assert findings_of(HEAD + section + dense, only="unmatched-pattern") == ()
    needed = section.replace("optional: true, ", "").replace(", optional: true", "")
    needed = needed.replace("optional:", "")
    assert findings_of(HEAD + needed + dense, only="unmatched-pattern") != ()


@pytest.mark.parametrize("pattern", ["**/exprets/wi", "experts/wi", "layers/experts/*"])
def test_a_slip_in_an_optional_pattern_is_a_warning(pattern: str) -> None:
    arrays = 'arrays: {"layers/experts/wi": "bf16[mlp=64, 128]", "layers/experts/a/b": "f32[]"}\n'
    text = f'{HEAD}params: {{"optional:{pattern}": mlp _}}\n{arrays}'
    found = findings_of(text, only="unmatched-pattern")
    expected = [] if pattern.endswith("*") else ["warning"]
    assert [str(each.severity) for each in found] == expected
    assert all("experts/wi" in (each.help or "") for each in found)


def test_optional_patterns_that_are_all_misplaced_alike() -> None:
    optional = FAMILY.replace("spec:", "optional: true, spec:").replace(
        "because", "optional: true, because"
    )
    (found,) = findings_of(HEAD + optional, only="unmatched-pattern")
    assert (str(found.severity), found.message[:10]) == ("warning", "3 patterns")
