"""Phases: merged over the spec as a child is, and read as documents of their own."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.diagnostics import SourceFile, render
from shardspec.ir.spec import Spec
from shardspec.language.phases import MOST_PHASES

BASE = """\
axes: {batch: 512, embed: 64, mlp: 128}
targets:
  pod: {mesh: {data: 4, tensor: 8}}
rules:
  - batch -> data
  - mlp -> tensor
  - embed -> data
arrays:
  wi: bf16[embed mlp]
  wo: bf16[mlp embed=64]
activations: {hidden: batch mlp}
"""


def loaded(text: str, name: str = "spec.yaml") -> tuple[Spec, tuple[str, ...]]:
    spec, faults = pipeline.load_text(text, name)
    assert spec is not None
    return spec, tuple(str(fault) for fault in faults)


def phase(text: str) -> Spec:
    spec, faults = loaded(f"{BASE}phases:\n  decode: {text}\n")
    assert faults == ()
    return spec.phases[0]


def answers(spec: Spec) -> list[tuple[str, str]]:
    return [
        (plan.target.name, f"{each.path} {each.partition_spec}")
        for plan in pipeline.compile_plans(spec)
        for each in plan.arrays
    ]


def test_a_phase_that_says_nothing_is_the_spec() -> None:
    spec, _ = loaded(BASE)
    empty = phase("{}")
    assert empty.phase == "decode"
    own = {"phase": "", "source": spec.source, "sources": spec.sources, "inherited_axes": ()}
    assert replace(empty, **own) == spec
    assert spec.phases == ()


def test_rules_stand_where_those_of_the_spec_stood() -> None:
    found = phase("{rules: [mlp -> none, kv -> tensor], drop: [embed]}")
    assert list(map(str, found.axis_rules)) == ["batch -> data", "mlp -> none", "kv -> tensor"]


def test_targets_of_a_phase_stand_alone() -> None:
    found = phase("{targets: {serve: {mesh: {tensor: 8}}}}")
    assert [target.name for target in found.targets] == ["serve"]
    assert found.own_mesh_axes == {"tensor"}
    assert found.mesh_axes_elsewhere == {"data"}
    assert [target.name for target in phase("{mesh: {tensor: 8}}").targets] == ["default"]


RULES = st.lists(
    st.sampled_from(
        ("batch -> tensor", "mlp -> data | tensor", "embed -> none", "kv -> data", "mlp -> none")
    ),
    max_size=3,
    unique=True,
)


@settings(max_examples=25)
@given(RULES, RULES, st.sets(st.sampled_from(("batch", "mlp", "embed")), max_size=2))
def test_a_phase_is_what_a_file_that_extends_the_spec_would_be(
    base: list[str], own: list[str], dropped: set[str]
) -> None:
    stated = "".join(f"  - {rule}\n" for rule in base) or "  []\n"
    parent = BASE.replace("  - batch -> data\n  - mlp -> tensor\n  - embed -> data\n", stated)
    known = {rule.partition(" ")[0] for rule in base}
    child = f"{{rules: {own}, drop: {sorted(dropped & known)}, axes: {{batch: 8}}}}".replace(
        "'", '"'
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "base.yaml").write_text(parent)
        file = Path(folder, "child.yaml")
        file.write_text(child.replace("{rules", "{extends: [./base.yaml], rules", 1))
        extending, _ = pipeline.load_path(str(file))
    assert extending is not None
    spec, _ = loaded(f"{parent}phases: {{decode: {child}}}\n")
    (found,) = spec.phases
    assert found.axis_rules == extending.axis_rules
    assert found.logical_axes == extending.logical_axes
    assert answers(found) == answers(extending)
    alone, _ = loaded(parent)
    assert answers(spec) == answers(alone), "a phase changes no answer of the spec"


def test_phases_of_what_is_extended_come_along(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        f"{BASE}phases:\n  decode: {{rules: [mlp -> none]}}\n  eval: {{}}\n"
    )
    file = tmp_path / "child.yaml"
    file.write_text(
        "extends: ./base.yaml\nrules: [embed -> none]\n"
        "phases:\n  decode: {rules: [batch -> none]}\n  score: {}\n"
    )
    spec, faults = pipeline.load_path(str(file))
    assert spec is not None
    assert faults == ()
    assert [each.phase for each in spec.phases] == ["decode", "eval", "score"]
    rules = list(map(str, spec.phases[0].axis_rules))
    assert rules == ["batch -> none", "mlp -> none", "embed -> none"]
    assert all(each.source is spec.source for each in spec.phases)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{decode: {arrays: {a: 'bf16[8]'}}}", "phase `decode` has `arrays`, which is the spec's"),
        ("{decode: {phases: {x: {}}}}", "phase `decode` has `phases`, which is the spec's"),
        ("{decode: {lints: {SHD4: allow}}}", "phase `decode` has `lints`, which is the spec's"),
        ("{decode: {ruls: []}}", "unknown key `ruls`"),
        ("{decode: {rules: [mlp -> ]}}", "expected a mesh axis"),
        ("{decode: null}", "`phases.decode`: this should be a mapping"),
        ("[decode]", "`phases`: this should be a mapping"),
        ("{a@b: {}}", "`a@b` is no name for a phase"),
        ("{pod: {}}", "a phase and a target are called `pod`"),
        ("{decode: {drop: [kv]}}", "`drop` names `kv`, which has no inherited rule"),
        ("{decode: {mesh: {tensor: 8}, targets: {a: {mesh: {b: 2}}}}}", "`mesh` is for a spec"),
    ],
)
def test_what_a_phase_cannot_say(text: str, said: str) -> None:
    spec, faults = pipeline.load_text(f"{BASE}phases: {text}\n", "spec.yaml")
    assert spec is not None
    (fault,) = faults
    assert said in fault.message
    assert fault.primary is not None
    assert fault.primary.span.source.text[: fault.primary.span.start].count("\n") >= 2
    assert render.render(fault)


def test_a_phase_in_a_phase_is_refused_in_the_dsl() -> None:
    text = "mesh { data = 2 }\nphase a {\n  phase b { rules { x -> data } }\n}\n"
    _, faults = loaded(text, "spec.shard")
    assert ["a phase stands in a phase" in fault for fault in faults] == [True]


def test_many_phases_are_refused() -> None:
    text = f"{BASE}phases:\n" + "".join(f"  p{n}: {{}}\n" for n in range(MOST_PHASES + 1))
    spec, faults = loaded(text)
    assert f"{MOST_PHASES + 1} phases; a spec has at most {MOST_PHASES}" in faults[0]
    assert spec.phases == ()


def test_a_resized_array_is_told_once_for_an_entry() -> None:
    text = f"{BASE}phases: {{a: {{axes: {{mlp: 64}}}}, b: {{axes: {{batch: 8}}}}}}\n"
    _, faults = loaded(text)
    said = [fault for fault in faults if "SHD306" in fault]
    assert len(said) == 2  # two entries, and phase `a` alone
    assert "`wi` is bf16[64, 128] in the spec and bf16[64, 64] in phase `a`" in said[0]


def test_places_in_a_phase_are_those_of_the_file() -> None:
    text = f"{BASE}phases:\n  decode:\n    rules:\n      - mlp -> none\n"
    spec, _ = loaded(text)
    rule = next(each for each in spec.phases[0].axis_rules if each.logical_axis == "mlp")
    assert rule.span is not None
    assert rule.span.place == "spec.yaml:15"
    assert rule.span.text == "none"
    assert rule.span.source == SourceFile("spec.yaml", text)
