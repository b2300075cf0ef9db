"""Mistakes that sharding tools meet late or in silence, each caught here before any device.

The rows are those of MaxText's users (its rule files and meshes at e591f30cbb, what each mistake
prints was run there), and those of the T5X guide. A row says what must stand in the finding: the
array or activation, the axis, the rule, and a way out.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from shardspec import pipeline
from shardspec.diagnostics.render import render

ARRAYS = """
arrays:
  layers_0/mlp/wi/kernel: bf16[embed mlp]
  layers_0/attention/query/kernel: bf16[embed heads]
activations:
  residual: batch length embed
"""
AXES = "axes: {batch: 64, length: 128, embed: 4096, mlp: 16384, heads: 32}\n"
RULES = """
rules:
  - batch -> fsdp
  - mlp -> tensor
  - heads -> tensor
  - embed -> fsdp
  - length -> none
"""
MESH = "hardware: v5p-128\nmesh: {fsdp: rest, tensor: 8}\n"
SOUND = f"{MESH}{AXES}{RULES}{ARRAYS}"


class Row(NamedTuple):
    """A mistake: what of the sound spec is written otherwise, and what is said of it.

    Attributes:
      place: text that the culprit's label marks.
      says: what else stands in the finding.
    """

    old: str
    new: str
    code: str
    place: str
    says: tuple[str, ...]
    help: str


ROWS = {
    "rule points to an unknown mesh axis, used by a parameter": Row(
        "mlp -> tensor",
        "mlp -> tensr",
        "SHD201",
        "tensr",
        ("layers_0/mlp/wi/kernel", "fsdp, tensor"),
        "did you mean `tensor`?",
    ),
    "the same, used only by an activation": Row(
        "length -> none",
        "length -> tensor_transpose",
        "SHD201",
        "tensor_transpose",
        ("activation `residual`",),
        "a mesh axis (`fsdp`, `tensor`) or `none`",
    ),
    "typo in a logical name of a rule": Row(
        "mlp -> tensor",
        "mpl -> tensor",
        "SHD202",
        "mpl",
        ("no array and no `axes` entry has it",),
        "did you mean `mlp`?",
    ),
    "typo in a logical name of an array": Row(
        "bf16[embed mlp]",
        "bf16[embed=4096 mpl=16384]",
        "SHD202",
        "mpl",
        ("unknown logical axis `mpl`", "no rule and no `axes` entry has it"),
        "did you mean `mlp`?",
    ),
    "logical name with no rule": Row(
        "  - mlp -> tensor\n",
        "",
        "SHD203",
        "mlp: 16384",
        ("no rule names `mlp`", "layers_0/mlp/wi/kernel"),
        "`mlp -> none`",
    ),
    "dimension not divisible": Row(
        "heads: 32",
        "heads: 20",
        "SHD301",
        "tensor",
        ("`heads` = 20", "`tensor` = 8", "layers_0/attention/query/kernel"),
        "heads = 16 or 24 would divide",
    ),
    "the same axis twice in a rule": Row(
        "mlp -> tensor",
        "mlp -> (tensor, tensor)",
        "SHD002",
        "tensor",
        ("mesh axis `tensor` is given twice",),
        "once",
    ),
    "a rule of three elements": Row(
        "- mlp -> tensor",
        "- [mlp, tensor, fsdp]",
        "SHD004",
        "[mlp, tensor, fsdp]",
        ("this should be a rule in text",),
        "axis rules",
    ),
    "unknown axis in the mesh": Row(
        "tensor: 8}",
        "tensor: 4, foo: 2}",
        "SHD110",
        "2",
        ("`foo` = 2", "2 copies of everything"),
        "`mlp -> (tensor, foo) | tensor` would split",
    ),
    "product of the mesh wrong": Row(
        "fsdp: rest, tensor: 8",
        "fsdp: 4, tensor: 8",
        "SHD102",
        "mesh",
        ("fsdp=4 x tensor=8 = 32", "64 devices"),
        "fsdp",
    ),
    "the rest cannot be filled": Row(
        "tensor: 8}", "tensor: 24}", "SHD102", "mesh", ("64", "24"), "tensor"
    ),
    "two rests": Row("tensor: 8}", "tensor: rest}", "SHD103", "rest", ("`fsdp`",), "number"),
    "submesh that does not fit the torus": Row(
        "tensor: 8}", "tensor: submesh 8x1x1x1}", "SHD105", "submesh 8x1x1x1", ("tensor",), "2x2x2"
    ),
    "bad topology": Row("v5p-128", "v5p-100", "SHD101", "v5p-100", ("v5p",), "v5p-"),
    "unknown hardware": Row("v5p-128", "v5q-128", "SHD101", "v5q-128", (), "v5"),
    "preset misspelt": Row(
        "hardware: v5p",
        "extends: [fsdp-tenosr]\nhardware: v5p",
        "SHD008",
        "fsdp-tenosr",
        (),
        "did you mean `fsdp-tensor`?",
    ),
    "logical name twice in one array": Row(
        "bf16[embed mlp]",
        "bf16[embed embed]",
        "SHD209",
        "layers_0/mlp/wi/kernel",
        ("`embed` names more than one dimension",),
        "another name, with its own rule",
    ),
    "size-one axis that wins a rule": Row(
        "tensor: 8}", "tensor: 1}", "SHD107", "1", ("`mlp -> tensor`", "layers_0/mlp"), "larger"
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_it_is_caught(name: str) -> None:
    row = ROWS[name]
    assert row.old in SOUND
    spec, faults = pipeline.load_text(SOUND.replace(row.old, row.new, 1), "spec.yaml")
    found = (
        faults
        if spec is None
        else pipeline.checked(spec, faults, pipeline.compile_plans(spec)).shown
    )
    mine = [diagnostic for diagnostic in found if diagnostic.code.id == row.code]
    assert mine, [f"{d.code.id} {d.message}" for d in found]
    diagnostic = mine[0]
    text = render(diagnostic)
    assert diagnostic.primary is not None
    assert diagnostic.primary.span.text.strip("\"'") == row.place
    for part in row.says:
        assert part in text
    assert row.help in (diagnostic.help or "")


def test_the_sound_spec_has_no_findings() -> None:
    spec, faults = pipeline.load_text(SOUND, "spec.yaml")
    assert spec is not None
    assert pipeline.checked(spec, faults, pipeline.compile_plans(spec)).shown == ()


def test_a_mesh_that_jax_finds_no_place_for_has_one() -> None:
    """`tensor: 8` on a 4x4x4 torus: `mesh_utils` of JAX finds no assignment, and names an index."""
    spec, _ = pipeline.load_text(SOUND, "spec.yaml")
    assert spec is not None
    from shardspec.topology.placement import Placement, place

    placement = place(spec.targets[0])
    assert isinstance(placement, Placement)
    assert placement.mesh.sizes == {"fsdp": 8, "tensor": 8}


def test_a_mesh_axis_is_unknown_on_no_target_or_on_all() -> None:
    text = f"targets:\n  a: {{mesh: {{fsdp: 8, tensor: 8}}}}\n  b: {{mesh: {{fsdp: 8}}}}\n{AXES}"
    for rule, count in (("mlp -> tensor", 0), ("mlp -> tenosr", 1)):
        rules = RULES.replace("mlp -> tensor", f"{rule} | none").replace("s -> tensor", "s -> none")
        spec, faults = pipeline.load_text(f"{text}{rules}{ARRAYS}", "spec.yaml")
        assert spec is not None
        found = pipeline.checked(spec, faults, pipeline.compile_plans(spec)).shown
        assert [d.code.id for d in found].count("SHD201") == count


def test_a_regex_with_one_digit_misses_layer_ten() -> None:
    text = f"{MESH}{AXES}{RULES}{ARRAYS}overrides:\n  - match: 'encoder/layer_\\d/wi'\n"
    text = text.replace("arrays:", "arrays:\n  'encoder/layer_{0..11}/wi': bf16[4096, 16384]")
    spec, faults = pipeline.load_text(f"{text}    axes: embed mlp\n", "spec.yaml")
    assert spec is not None
    found = pipeline.checked(spec, faults, pipeline.compile_plans(spec)).shown
    (digit,) = [diagnostic for diagnostic in found if diagnostic.code.id == "SHD216"]
    assert digit.primary is not None
    assert digit.primary.span.text == r"\d"
    assert "encoder/layer_10/wi" in render(digit)
    assert r"`encoder/layer_\d+/wi`" in (digit.help or "")


class Bug(NamedTuple):
    """A bug of a public project, rebuilt: the spec, and what is said of it at the default level."""

    spec: str
    code: str
    place: str
    says: tuple[str, ...]
    silenced: tuple[str, str]


LLAMA = """
arrays:
  embedding: bf16[vocab=128256 embed=4096]
  "layers_{0..31}/wi": bf16[embed=4096 mlp=14336]
  "layers_{0..31}/wo": bf16[mlp=14336 embed=4096]
"""
BUGS = {
    "openpi#112: FSDP is added, and the parameters stay pinned": Bug(
        "mesh: {fsdp: 8}\nrules:\n  - vocab -> none\n  - embed -> none\n  - mlp -> none\n" + LLAMA,
        "SHD410",
        "none",
        ("7.98 GiB of arrays, 100 % of what a device holds", "sharded over `fsdp`"),
        ("arrays:", 'replicate: [{path: "**", because: it fits}]\narrays:'),
    ),
    "sglang-jax#953: all of it falls back to whole by an override": Bug(
        "mesh: {fsdp: 8}\nrules: [embed -> fsdp]\n"
        "overrides:\n  - {match: '.*', spec: '(none, none)'}\n" + LLAMA,
        "SHD410",
        "(none, none)",
        ("7.98 GiB of arrays", "`fsdp`"),
        ("'(none, none)'", "'(none, none)', because: a test"),
    ),
    "rules dead behind `embed -> model`, in a spec without activations": Bug(
        "mesh: {model: 8}\nrules:\n  - embed -> model\n  - vocab -> model\n  - mlp -> model\n"
        + LLAMA,
        "SHD226",
        "model",
        (
            "`vocab` is replicated in `embedding`",
            "`mlp` is replicated in `layers_0/wi`",
            "896 MiB on every device",
        ),
        (
            "embed -> model\n  - vocab -> model\n  - mlp -> model",
            "vocab, mlp -> model\n  - embed -> none",
        ),
    ),
    "the same where NNX would split both": Bug(
        "mesh: {model: 8, data: 2}\nrules:\n  - embed -> model | data\n  - mlp -> model\n"
        "  - vocab -> model\n" + LLAMA,
        "SHD217",
        "model",
        ("shards nothing: `embed` always has `model` before it", "896 MiB on every device"),
        ("mlp -> model\n  - vocab -> model", "mlp -> model | none\n  - vocab -> model | none"),
    ),
    "maxtext#4205: two dimensions want one mesh axis, and NNX gives it to both": Bug(
        "mesh: {model: 8}\nrules:\n  - mlp -> model\n  - heads -> model\n  - embed -> none\n"
        "arrays:\n  a/out: bf16[heads=64 mlp=65536 embed=4096]\n  a/q: bf16[embed=4096 heads=64]\n",
        "SHD226",
        "model",
        (
            "`heads` is replicated in `a/out`: `mlp` has `model`",
            "Flax NNX gives both `model`",
            "4.00 GiB",
        ),
        ("heads -> model", "heads -> model | none"),
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_known_bug_is_told_at_the_default_level(name: str) -> None:
    bug = BUGS[name]
    spec, faults = pipeline.load_text(bug.spec, "spec.yaml")
    assert spec is not None
    found = pipeline.checked(spec, faults, pipeline.compile_plans(spec)).shown
    mine = [diagnostic for diagnostic in found if diagnostic.code.id == bug.code]
    assert mine, [f"{d.code.id} {d.message}" for d in found]
    text = "".join(map(render, mine))
    for part in bug.says:
        assert part in text
    assert mine[0].primary is not None
    assert mine[0].primary.span.text.strip("\"'") == bug.place
    assert bug.silenced[0] in bug.spec
    spec, faults = pipeline.load_text(bug.spec.replace(*bug.silenced), "spec.yaml")
    assert spec is not None
    left = pipeline.checked(spec, faults, pipeline.compile_plans(spec)).shown
    assert bug.code not in {diagnostic.code.id for diagnostic in left}


@pytest.mark.parametrize("name", BUGS)
def test_the_same_on_a_small_model_is_reported_only_where_jax_refuses(name: str) -> None:
    small = BUGS[name].spec
    for size in ("128256", "4096", "14336", "65536"):
        small = small.replace(f"={size}", "=64")
    spec, faults = pipeline.load_text(small, "spec.yaml")
    assert spec is not None
    found = pipeline.checked(spec, faults, pipeline.compile_plans(spec)).shown
    mine = [diagnostic for diagnostic in found if diagnostic.code.id == BUGS[name].code]
    assert all("JAX refuses that" in " ".join(diagnostic.notes) for diagnostic in mine)
    assert bool(mine) == ("is replicated in" in " ".join(BUGS[name].says))
