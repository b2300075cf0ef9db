from __future__ import annotations

from pathlib import Path

import pytest

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic

TEXT = """
axes: {kv: 64}
targets:
  laptop: {mesh: {data: 2, model: 2}}
  large: {hardware: 8 cpu, mesh: {data: rest, model: 4, expert: 2}}
rules: [embed -> model]
params: {"**/wi": embed mlp}
activations: {logits: batch vocab}
arrays: {a/wi: "f32[8, 8]"}
"""


def faults(settings: dict[str, str], text: str = TEXT) -> tuple[Diagnostic, ...]:
    return pipeline.load_text(text, "s.yaml", settings)[1]


@pytest.mark.parametrize(
    ("name", "help"),
    [
        ("axes.embd", "did you mean `embed`?"),
        ("axes.zzz", "axes: "),
        ("mesh.modle", "did you mean `model`?"),
        ("mesh.newaxis", "known here: `data`, `model`, `expert`"),
        ("targets.lptop.mesh.data", "did you mean `laptop`?"),
        ("targets.laptop.mesh.modle", "did you mean `model`?"),
        ("targets.laptop.hardwre", "did you mean `hardware`?"),
        ("params.**/wo", "did you mean `**/wi`?"),
        ("activations.logit", "did you mean `logits`?"),
        ("scan.x", "a setting changes what stands there"),
        ("axs.embed", "did you mean `axes`?"),
        ("polcy.order", "did you mean `policy`?"),
        ("policy.ordr", "did you mean `order`?"),
    ],
)
def test_a_name_that_is_new_is_a_fault(name: str, help: str) -> None:
    (found,) = faults({name: "2"})
    assert found.code.name == "unknown-key"
    assert (found.help or "").startswith(help)
    assert found.primary is not None
    assert found.primary.span.source.name == "--set"


@pytest.mark.parametrize(
    "settings",
    [
        {"axes.embed": "8"},
        {"axes.mlp": "8"},
        {"axes.batch.unit": "1"},
        {"mesh.model": "1"},
        {"targets.laptop.hardware": "4 cpu"},
        {"policy.indivisible": "keep"},
        {"axes.kv.min_shard": "2"},
        {"mesh.model": "2 explicit"},
        {"state.optimizer": "zero1"},
        {"lints.SHD3": "allow"},
        {"activations.logits": "batch"},
        {"params.**/wi": "embed _"},
        {"doc": "x"},
    ],
)
def test_what_is_there_may_change(settings: dict[str, str]) -> None:
    found = faults({"mesh.expert": "1"} | settings)
    assert [fault.code.name for fault in found] in ([], ["mesh-product"])


def test_an_axis_that_is_a_size_gets_fields() -> None:
    text = "axes: {a: 4, b}\nrules: ['a, b -> x']"
    settings = {"axes.a.unit": "2", "axes.b.min_shard": "8"}
    spec, diagnostics = pipeline.load_text(text, "s.yaml", settings)
    assert spec is not None
    assert diagnostics == ()
    assert [(a.size, a.unit, a.min_shard) for a in spec.logical_axes] == [(4, 2, 1), (None, 1, 8)]


def test_a_size_keeps_its_place_beside_a_setting() -> None:
    (found,) = faults({"axes.a.unit": "2"}, "axes: {a: 4 ** 2}")
    assert found.primary is not None
    assert str(found.primary.span) == "s.yaml:1:14"


def test_a_product_names_axes_too() -> None:
    assert faults({"axes.heads": "8"}, "axes: {joined: heads * kv, kv: 64}") == ()


def test_an_axis_goes_to_the_targets_that_have_it() -> None:
    spec, _ = pipeline.load_text(TEXT, "s.yaml", {"mesh.expert": "1"})
    assert spec is not None
    assert [list(target.mesh.sizes) for target in spec.targets] == [
        ["data", "model"],
        ["data", "model", "expert"],
    ]


def test_a_spec_without_a_mesh_may_get_one() -> None:
    assert faults({"mesh.data": "2"}, "rules: [a -> data]") == ()


def test_an_inherited_mesh_is_out_of_reach(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("mesh: {model: 2}\naxes: {embed: 4}", encoding="utf-8")
    child = tmp_path / "child.yaml"
    child.write_text("extends: ./base.yaml", encoding="utf-8")
    _, (found,) = pipeline.load_path(str(child), {"mesh.model": "4"})
    assert "inherits `default`" in found.message
    assert pipeline.load_path(str(child), {"axes.embed": "8"})[1] == ()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"mesh.x": "3"}, "hardware: 8 cpu\nmesh: {x: 8}"),
        ({"policy.order": "snake"}, "mesh: {x: 8}"),
        ({"axes.a": "b * 2"}, "axes: {a: {size: 4}}"),
        ({"rules.0": "a -> -> b"}, "rules: [{rule: a -> x, at: end}]"),
        ({"extends": "t5x/2z"}, "extends: [t5x/2d]"),
        ({"mesh": "5"}, "mesh: {x: 8}"),
        ({"mesh.x": "8 explict"}, "mesh: {x: 8}"),
        ({"replicate.0.because": "x"}, "mesh: {x: 8}"),
        ({"coverage.max_replicated_bytes": "64"}, "mesh: {x: 8}"),
        ({"axes.a.min_shard": "0"}, "axes: {a: 4}"),
        ({"axes.a.size": "b * 2"}, "axes: {a: {size: 4}}"),
        ({"targets.a.hardware": "8 cup"}, "targets: {a: {mesh: {x: 8}}}"),
    ],
)
def test_faults_never_point_into_the_file(settings: dict[str, str], text: str) -> None:
    (found,) = faults(settings, text)
    assert found.primary is not None
    assert found.primary.span.source.name == "--set"


@pytest.mark.parametrize(("name", "text"), [("m\udcffsh.x", "4"), ("mesh.data", "\udcff")])
def test_bytes_that_are_no_text_are_refused(name: str, text: str) -> None:
    """A shell hands on bytes that are no UTF-8 as halves of surrogate pairs."""
    assert [fault.message for fault in faults({name: text})] == ["`--set` is not UTF-8"]
