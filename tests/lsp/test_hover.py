"""What a hover says, of every kind of name."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardspec.lsp.findings import diagnostics
from shardspec.lsp.hover import hover
from tests.lsp.texts import BOTH, SPEC, snapshot_of


@pytest.mark.parametrize(("name", "text"), BOTH)
@pytest.mark.parametrize(
    ("needle", "said"),
    [
        ("embed", ["embed = 64", "embed -> data", "layers_{0..3}/wi/kernel"]),
        ("heads ->", ["rule `heads -> model`", "no array and no activation", "heads = 8, unit 2"]),
        ("mlp ->", ["loses, busy: dim 0 (embed) has data", "on target pod"]),
        ("-> data", ["rule `embed -> data`", "wins: 4 arrays"]),
        ("model", ["4 on pod, 2 on laptop", "mesh axis model = 4", "splits"]),
        ("tp", ["let tp = 4"]),
        ("pod", ["TPU v4 4x4x4, 64 chips", "mesh data=16 model=4", "of 30.8 GiB per device"]),
        ("v4 4x4", ["275 TFLOP/s", "link_bytes_per_s", "Google Cloud documentation"]),
        ("**/wi", ["names 4 arrays", "layers_{0..3}/wi/kernel x4   bf16[64, 256]"]),
        ("odd/kernel", ["override", "odd/kernel   bf16[64, 256]   P(None, 'model')"]),
        ("bf16", ["bf16: 16 bits an element"]),
        ("hidden", ["activation hidden   ->   P('model', 'data')"]),
        ("repeated-axis", ["SHD", "repeated-axis"]),
        ("decode", ["phase decode on `pod`, `laptop`"]),
        ("rules", ["rules: Axis rules, tried top to bottom"]),
    ],
)
def test_hover(tmp_path: Path, name: str, text: str, needle: str, said: list[str]) -> None:
    snapshot = snapshot_of(tmp_path, name, text)
    found = hover(snapshot, text.index(needle))
    assert found is not None
    for each in said:
        assert each in found
    assert str(tmp_path) not in found


def test_a_finding_has_its_page(tmp_path: Path) -> None:
    text = SPEC.replace("embed -> data", "embed -> dtaa")
    found = hover(snapshot_of(tmp_path, "spec.yaml", text), text.index("dtaa"))
    assert found is not None
    assert "SHD201  unknown-mesh-axis" in found


def test_a_step_that_is_known_has_its_cost() -> None:
    path = Path(__file__).parents[2] / "specs/examples/t5-1.1-xxl.yaml"
    text = path.read_text(encoding="utf-8")
    snapshot = snapshot_of(path.parent, path.name, text)
    found = hover(snapshot, text.index("- batch ->") + 2)
    assert found is not None
    assert "this line sends ~" in found


def test_nothing_is_nothing(tmp_path: Path) -> None:
    assert hover(snapshot_of(tmp_path, "spec.yaml", f"# mesh\n{SPEC}"), 3) is None


def test_a_base_says_what_it_is_for(tmp_path: Path) -> None:
    text = "extends: t5x/2d\nmesh: {data: 2}\n"
    found = hover(snapshot_of(tmp_path, "spec.yaml", text), text.index("2d"))
    assert found is not None
    assert "preset:t5x/2d" in found
    assert "- batch -> data" in found


@pytest.mark.parametrize(("name", "text"), BOTH)
def test_a_rule_goes_up_to_its_last_character(tmp_path: Path, name: str, text: str) -> None:
    rule = "embed -> (data, model)"
    text = text.replace("embed -> data", rule)
    snapshot = snapshot_of(tmp_path, name, text)
    ends = text.index(rule) + len("embed "), text.index(rule) + len(rule)
    assert all(f"rule `{rule}`" in (hover(snapshot, at) or "") for at in ends)


def test_a_finding_names_its_other_places(tmp_path: Path) -> None:
    text = SPEC.replace("  - embed -> data", "  - embed -> data\n  - embed -> data")
    (shown,) = diagnostics(snapshot_of(tmp_path, "spec.yaml", text)).values()
    places = [each.location.range.start.line for each in shown[0].related_information or ()]
    lines = [at for at, line in enumerate(text.splitlines()) if line == "  - embed -> data"]
    assert sorted(places) == lines
