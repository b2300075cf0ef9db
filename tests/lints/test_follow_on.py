"""One slip is one finding: what only follows from it is not said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, Severity
from shardspec.diagnostics.codes import ALL
from shardspec.lints.follow_on import without_follow_ons

YAML = """\
shardspec: 1
axes: {batch: 64, embed: 4096, mlp: 16384}
targets:
  pod: {hardware: tpu v5p 2x2x4, mesh: {fsdp: rest, tensor: 8}}
rules:
  - batch -> fsdp
  - mlp -> tensor
  - embed -> fsdp
params:
  "**/wi": embed mlp
  "**/wo": mlp embed
activations:
  residual: batch _ embed
arrays:
  "layers_{0..31}/wi": bf16[embed mlp]
  "layers_{0..31}/wo": bf16[16384, 4096]
"""

DSL = """\
shardspec 1
axis embed = 4096
axis mlp = 16384
target pod on tpu v5p 2x2x4 {
  fsdp = rest
  tensor = 8
}
rules {
  mlp -> tensor
  embed -> fsdp
}
arrays {
  layers_{0..31}/wi : bf16[embed mlp]
}
"""


def codes(text: str, name: str = "s.yaml") -> list[str]:
    spec, faults = pipeline.load_text(text, name)
    assert spec is not None
    found = pipeline.checked(spec, faults, pipeline.compile_plans(spec)).shown
    return [diagnostic.code.id for diagnostic in found]


def test_the_specs_are_sound() -> None:
    assert codes(YAML) == []
    assert codes(DSL, "s.shard") == []


@pytest.mark.parametrize(
    ("right", "wrong", "found"),
    [
        ("mlp -> tensor", "mlp -> [tensor]", ["SHD002"]),
        ("mlp -> tensor", "mlp => tensor", ["SHD002"]),
        ("- mlp -> tensor", "-mlp -> tensor", ["SHD002"]),
        ("- batch -> fsdp", "- [batch, fsdp]", ["SHD004"]),
        ("rules:", "rule:", ["SHD003"]),
        ('"**/wo": mlp embed', '"**/wo": [mlp, embed]', ["SHD004"]),
        ("hardware: tpu", "hardwre: tpu", ["SHD003"]),
        ("embed: 4096", "embed: 4k", ["SHD002"]),
        ("bf16[16384, 4096]", "bflt16[16384, 4096]", ["SHD002"]),
    ],
)
def test_one_slip_is_one_finding(right: str, wrong: str, found: list[str]) -> None:
    assert right in YAML
    assert codes(YAML.replace(right, wrong)) == found


@pytest.mark.parametrize(
    ("right", "wrong", "count"),
    [("axis embed =", "axis embed :", 1), (" = rest", ": rest", 1), ("mlp ->", "mlp", 1)],
)
def test_in_the_dsl(right: str, wrong: str, count: int) -> None:
    assert right in DSL
    assert codes(DSL.replace(right, wrong), "s.shard") == ["SHD002"] * count


@pytest.mark.parametrize(
    ("edits", "found"),
    [
        ({"batch -> fsdp": "batch => fsdp", "mlp -> tensor": "mpl -> tensor"}, "SHD202"),
        ({"batch -> fsdp": "batch => fsdp", "  - mlp -> tensor\n": ""}, "SHD203"),
        ({"mlp: 16384": "mlp: 16k", "batch -> fsdp": "batch -> fdsp"}, "SHD201"),
        ({'"**/wo": mlp embed': '"**/wo": [mlp]', '"**/wi"': '"**/wx"'}, "SHD204"),
    ],
)
def test_another_mistake_is_told_in_the_same_run(edits: dict[str, str], found: str) -> None:
    text = YAML
    for right, wrong in edits.items():
        assert right in text
        text = text.replace(right, wrong)
    assert found in codes(text)


@pytest.mark.parametrize(
    "rules",
    [
        "[embed -> fsdp, batch => fsdp]  # and mlp",
        "\n  - embed -> fsdp\n  - batch => fsdp  # mlp comes later",
        "[embed -> fsdp, {batch: 3}, mlp => fsdp]",
    ],
)
def test_a_name_is_lost_with_its_entry_and_not_with_its_line(rules: str) -> None:
    text = YAML.replace("rules:\n", f"rules: {rules}\nother:\n")
    text = text[: text.index("other:")] + text[text.index("params:") :]
    assert ("SHD203" in codes(text)) == ("mlp =>" not in rules)


def test_what_outranks_a_finding_is_a_finding() -> None:
    ids = {code.id for code in ALL}
    assert all(ids >= set(code.outrankers) for code in ALL)


def test_what_is_known_of_a_finding_stands_in_its_row() -> None:
    source = Path("shardspec/lints/follow_on.py").read_text(encoding="utf-8")
    assert not re.search(r"SHD\d|codes\.[A-Z]", source)


def test_what_is_not_heard_hides_nothing() -> None:
    text = YAML.replace("mlp -> tensor", "mlp -> tenosr")
    assert codes(text) == ["SHD201"]
    assert codes(text + "lints: {SHD201: allow}\n") == []


def test_a_mesh_of_another_target_is_still_looked_at() -> None:
    other = "  big: {hardware: tpu v5p 2x2x4, mesh: {fsdp: 3, tensor: 8}}\n"
    text = YAML.replace("rules:", other + "rules:").replace("fsdp: rest", "fsdp: -1")
    assert codes(text) == ["SHD002", "SHD102"]


@pytest.mark.parametrize(
    "rules",
    [
        "[mlp, tensor]",
        '"mlp -> tensor"',
        "{mlp: tensor}",
        "[[mlp, tensor], [embed, fsdp]]",
        "[mlp: tensor, embed: fsdp]",
        "[mlp -> tensor",
        "",
    ],
)
def test_rules_that_cannot_be_read_are_not_missed_axis_by_axis(rules: str) -> None:
    axes = "axes: {embed: 64, mlp: 128, a: 4, b: 4, c: 4, d: 4, e: 4}"
    text = (
        f"mesh: {{fsdp: 2, tensor: 4}}\n{axes}\nrules: {rules}\narrays: {{w: 'f32[a b c d e]'}}\n"
    )
    assert set(codes(text)) <= {"SHD002", "SHD004"}


def test_one_rule_of_two_that_cannot_be_read_leaves_the_others_missed() -> None:
    text = "mesh: {fsdp: 2, tensor: 4}\naxes: {embed: 64, mlp: 128, a: 4}\n"
    text += "rules: [mlp -> tensor, [embed, fsdp]]\narrays: {w: 'f32[embed mlp a]'}\n"
    assert codes(text) == ["SHD203", "SHD004"]


def made(code: str, *arrays: str, level: Severity | None = None) -> Diagnostic:
    by_id = {each.id: each for each in ALL}
    return Diagnostic(by_id[code], code, level=level, arrays=arrays)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["SHD202", "SHD203", "SHD205", "SHD301", "SHD401", "SHD404", "SHD410"]),
            st.sets(st.sampled_from("abc"), min_size=1),
            st.sampled_from([Severity.WARNING, Severity.ERROR]),
        ),
        max_size=6,
    )
)
def test_what_is_not_shown_hides_nothing(rows: list[tuple[str, set[str], Severity]]) -> None:
    """Each finding that is left out has its arrays told of by what is shown, as loud as it."""
    found = tuple(made(code, *sorted(arrays), level=level) for code, arrays, level in rows)
    shown = without_follow_ons(found)
    assert set(shown) <= set(found)
    for each in found:
        if each not in shown:
            told = {path for s in shown if s.is_error >= each.is_error for path in s.arrays}
            assert told >= set(each.arrays)


def test_a_finding_that_is_hidden_hides_no_other() -> None:
    whole = made("SHD401", "a", "b"), made("SHD202", "a"), made("SHD404", "b")
    assert [each.code.id for each in without_follow_ons(whole)] == ["SHD202", "SHD401"]


STEP = """\
mesh: {data: 4, model: 2}
axes: {batch: 64, embed: 4096, mlp: 16384}
rules:
  - batch -> data
  - mlp -> model
  - embed -> none
params:
  wi: embed mlp
  wo: mlp embed
activations:
  x: batch embed
arrays:
  wi: bf16[embed mlp]
  wo: bf16[mlp embed]
step:
  program:
    - x, "wi" -> h[batch mlp]
    - h, "wo" -> y[batch embed]
    - y, "wi" -> z[batch mlp]
    - z, "wo" -> q[batch embed]
"""


def test_the_step_is_sound() -> None:
    assert codes(STEP) == []


@pytest.mark.parametrize(
    ("right", "wrong", "found"),
    [
        ('x, "wi" -> h', 'x, "wi" h', ["SHD002"]),
        ('x, "wi"', 'x, "wj"', ["SHD240"]),
        ('x, "wi"', 'xx, "wi"', ["SHD240"]),
        ('x, "wi"', 'x, "wi"[mlp embed]', ["SHD240"]),
        ("h[batch mlp]", "h[batch heads]", ["SHD240"]),
        ('y, "wi" -> z[batch mlp]', 'yy, "wi" -> z[batch mlp]', ["SHD240"]),
        ("x: batch embed", "x: batch [embed", ["SHD002"]),
        ("wo: bf16[", "wo: bf16(", ["SHD002"]),
        ("step:", "step:\n  remat: z", []),
        (
            'step:\n  program:\n    - x, "wi"',
            'step:\n  remat: h\n  program:\n    - x, "wj"',
            ["SHD240"],
        ),
        ("step:", "stepp:", ["SHD003"]),
        ("axes: {batch: 64", "axes: {batch: {siez: 64}", ["SHD003"]),
        ("axes: {", "axes: nothing #", ["SHD004"]),
    ],
)
def test_one_slip_in_a_step_is_one_finding(right: str, wrong: str, found: list[str]) -> None:
    assert right in STEP
    assert codes(STEP.replace(right, wrong)) == found


@pytest.mark.parametrize(
    ("edits", "found"),
    [
        ({'x, "wi"': 'x, "wj"', 'y, "wi"': 'y, "wk"'}, ["SHD240", "SHD240"]),
        ({'x, "wi" -> h': 'x, "wi" h', 'y, "wi"': 'y, "wk"'}, ["SHD002", "SHD240"]),
    ],
)
def test_two_slips_in_a_step_are_two(edits: dict[str, str], found: list[str]) -> None:
    text = STEP
    for right, wrong in edits.items():
        text = text.replace(right, wrong)
    assert sorted(codes(text)) == found
