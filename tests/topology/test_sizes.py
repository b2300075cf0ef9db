from __future__ import annotations

import pytest

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic
from shardspec.ir.spec import Target


def target(mesh: str, hardware: str | None = None) -> tuple[Target, tuple[Diagnostic, ...]]:
    machine = f"hardware: {hardware}\n" if hardware else ""
    spec, diagnostics = pipeline.load_text(f"{machine}mesh: {mesh}", "s.yaml")
    assert spec is not None
    return spec.targets[0], diagnostics


@pytest.mark.parametrize(
    ("mesh", "hardware", "sizes"),
    [
        ("{data: 2, model: 4}", None, {"data": 2, "model": 4}),
        ("{data: rest, model: 2}", "8 cpu", {"data": 4, "model": 2}),
        ("{data: rest}", "tpu v5e 4x4", {"data": 16}),
        ("{data: rest, model: submesh 2x2x1x1}", "tpu v4 2x2x2", {"data": 2, "model": 4}),
        ("{data: rest, model: auto 4}", "tpu v4 2x2x2", {"data": 2, "model": 4}),
        ("{replica: 2 @ dcn, data: rest}", "2 * tpu v5p 2x2x2", {"replica": 2, "data": 8}),
        ("{data: rest @ dcn, model: 8}", "4 * h100", {"data": 4, "model": 8}),
        ("{a: rest, b: 8}", "8 cpu", {"a": 1, "b": 8}),
    ],
)
def test_sizes_are_solved(mesh: str, hardware: str | None, sizes: dict[str, int]) -> None:
    found, diagnostics = target(mesh, hardware)
    assert diagnostics == ()
    assert {axis.name: axis.size for axis in found.mesh.axes} == sizes
    assert found.is_sound


@pytest.mark.parametrize(
    ("mesh", "hardware", "code", "said"),
    [
        ("{data: 4, model: 8}", "tpu v5e 4x4", "mesh-product", "data=4 x model=8 = 32 is not 16"),
        ("{data: rest, model: 3}", "8 cpu", "mesh-product", "model=3 does not divide 8"),
        ("{r: 4 @ dcn, d: rest}", "2 * tpu v5p 2x2x2", "mesh-product", "there are 2 slices"),
        ("{r: 3 @ dcn, d: 8}", "3 * tpu v5p 2x2x2", None, ""),
        ("{a: rest, b: rest}", "8 cpu", "two-rest", "`a` and `b`"),
        ("{a: rest, b: rest}", None, "two-rest", "`a` and `b`"),
        ("{a: rest}", None, "unsolved-size", "needs hardware"),
        ("{a: submesh 2x2x1x1}", None, "unsolved-size", "needs hardware"),
        (
            "{a: rest, b: submesh 3x1x1x1}",
            "tpu v4 2x2x2",
            "submesh-tiling",
            "x: 3 does not divide 2",
        ),
        ("{a: rest, b: submesh 2x2}", "tpu v4 2x2x2", "submesh-tiling", "has 2 numbers"),
        ("{a: rest, b: submesh 2x1x1x1}", "8 cpu", "submesh-tiling", "none"),
        ("{a: 0}", None, "syntax", "at least one device"),
        ("{a: -1}", None, "syntax", "expected"),
        ("{a: 8}", "8 gpus", "unknown-hardware", "gpus"),
    ],
)
def test_what_does_not_work_out(
    mesh: str, hardware: str | None, code: str | None, said: str
) -> None:
    found, diagnostics = target(mesh, hardware)
    assert [d.code.name for d in diagnostics] == ([code] if code else [])
    assert found.is_sound == (code is None)
    for diagnostic in diagnostics:
        assert said in diagnostic.message
        assert diagnostic.help


def test_the_sizes_that_fit_do_fit() -> None:
    import re

    _, (diagnostic,) = target("{data: 4, model: 8}", "tpu v5e 4x4")
    for name, size in re.findall(r"`(\w+)` = (\d+)", diagnostic.help or ""):
        sizes = {"data": "4", "model": "8"} | {name: size}
        mesh = ", ".join(f"{axis}: {n}" for axis, n in sizes.items())
        assert target(f"{{{mesh}}}", "tpu v5e 4x4")[1] == ()


def test_a_mesh_with_a_fault_has_no_consequences() -> None:
    text = "mesh: {a: rest}\nrules: [x -> a]\narrays: {k: 'f32[x=1048576]'}"
    spec, diagnostics = pipeline.load_text(text, "s.yaml")
    assert spec is not None
    assert [d.code.name for d in diagnostics] == ["unsolved-size"]
    assert pipeline.findings(spec, pipeline.compile_plans(spec)).shown == ()


def test_axes_have_types() -> None:
    mesh = "{r: 2 manual @ dcn, data: rest, model: auto 4 explicit, s: submesh 2x1x1x1 auto}"
    found, diagnostics = target(mesh, "2 * tpu v4 2x2x2")
    assert diagnostics == ()
    assert [(axis.size, axis.network, axis.axis_type) for axis in found.mesh.axes] == [
        (2, "dcn", "manual"),
        (1, "ici", "auto"),
        (4, "ici", "explicit"),
        (2, "ici", "auto"),
    ]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("mesh: {data: 4}\ntargets:\n  a: {mesh: {data: 8}}\n  b: {mesh: {data: 2}}\n", "s.yaml"),
        ("targets:\n  a: {mesh: {data: 8}}\n  b: {mesh: {data: 2}}\nmesh: {data: 4}\n", "s.yaml"),
        ("mesh { data = 4 }\ntarget a { data = 8 }\ntarget b { data = 2 }\n", "s.shard"),
    ],
)
def test_a_mesh_beside_targets_is_refused_and_comes_last(text: str, name: str) -> None:
    spec, diagnostics = pipeline.load_text(text, name)
    assert spec is not None
    assert [(d.code.name, d.is_error) for d in diagnostics] == [("wrong-type", True)]
    assert [target.name for target in spec.targets] == ["a", "b", "default"]
    assert [target.is_sound for target in spec.targets] == [True, True, False]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("targets:\n  a: {mesh: {data: 8}}\n  laptop: {mesh: {data: 8}}\n", "s.yaml"),
        ("target a { data = 8 }\ntarget laptop { data = 8 }\n", "s.shard"),
        ("mesh: {data: 8}\ntargets: {}\n", "s.yaml"),
    ],
)
def test_its_way_out_is_no_fault(text: str, name: str) -> None:
    assert pipeline.load_text(text, name)[1] == ()
