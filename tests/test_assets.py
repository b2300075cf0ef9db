"""Where bundled files are found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec import assets


def test_every_grammar_is_found_and_says_what_it_is_for() -> None:
    assert assets.grammar_path("axis_rule").is_file()
    for path in assets.grammar_path("*").parent.glob("*.lark"):
        assert path.read_text(encoding="utf-8").startswith("// ")


@pytest.mark.parametrize("kind", ["presets", "hardware", "arrays", "examples"])
def test_every_name_has_its_file(kind: assets.SpecKind) -> None:
    for name in assets.spec_names(kind):
        path = assets.spec_path(kind, name)
        assert path is not None
        assert path.name == name.rpartition("/")[2] + ".yaml"


def test_hardware_is_there() -> None:
    assert "h100" in assets.spec_names("hardware")


@pytest.mark.parametrize(
    "name",
    ["", "/", "../hardware/h100", "h100/..", "./h100", "/etc/passwd", "a\x00b", "h100.yaml",
     "a" * 9999, "..\\hardware\\h100", "x//h100", "h100/", "*"],
)  # fmt: skip
def test_a_name_that_is_none_finds_nothing(name: str) -> None:
    assert assets.spec_path("presets", name) is None
    assert assets.spec_path("hardware", name) is None


@given(st.text() | st.text(st.sampled_from("./\\ah1 0")))
def test_inside(name: str) -> None:
    path = assets.spec_path("hardware", name)
    folder = assets.data_folder() / "specs" / "hardware"
    assert path is None or path.resolve().is_relative_to(folder.resolve())
