"""What is said of a spec and its phases, together and once."""

from __future__ import annotations

import pytest

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic

BASE = """\
targets:
  pod: {mesh: {data: 4, tensor: 8}}
rules:
  - batch -> data
  - mlp -> tensor
  - embed -> none
params:
  "**/wi": embed mlp
arrays:
  wi: bf16[64, 128]
activations: {hidden: batch mlp}
"""


def check(phases: str, base: str = BASE, **how: str) -> tuple[Diagnostic, ...]:
    spec, faults = pipeline.load_text(f"{base}phases: {phases}\n", "s.yaml")
    assert spec is not None
    return pipeline.check(spec, faults, spec.params, **how).shown


def codes(found: tuple[Diagnostic, ...]) -> list[str]:
    return [each.code.id for each in found]


def test_what_all_phases_share_is_said_once() -> None:
    base = BASE.replace("tensor: 8", "tensor: 1")
    once = codes(check("{}", base))
    assert "SHD107" in once
    assert codes(check("{a: {}, b: {}}", base)) == once


def test_what_a_phase_alone_has_names_it() -> None:
    mesh = "mesh: {data: 2, tensor: 3}"
    found = check(f"{{a: {{}}, b: {{{mesh}}}, c: {{{mesh}}}}}")
    assert codes(found) == ["SHD301", "SHD301"]
    assert [each.notes[-1] for each in found] == ["in phase `b`", "in phase `c`"]


def test_what_has_other_numbers_in_a_phase_is_said_once() -> None:
    """Its share of memory is another where a phase places other arrays otherwise."""
    base = BASE.replace("arrays:\n", "arrays:\n  odd: bf16[64, 256]\n")
    (alone,) = check("{}", base)
    (found,) = check("{a: {rules: [mlp -> none]}, b: {rules: [mlp -> data]}}", base)
    assert found.code.id == "SHD205"
    assert found.notes == (*alone.notes, "also in phases `a`, `b`, with their own numbers")


def test_a_rule_that_a_phase_replaces_is_at_work_elsewhere() -> None:
    """`tensor` is idle in the phase, and `mlp -> tensor` is not of it."""
    found = check("{eval: {rules: [mlp -> data], drop: [batch], activations: {hidden: _ mlp}}}")
    assert codes(found) == []


def test_a_rule_that_a_phase_alone_needs_is_no_finding() -> None:
    base = BASE.replace("  - embed -> none\n", "  - embed -> none\n  - length -> tensor\n")
    assert codes(check("{}", base)) == ["SHD230"]
    found = check("{eval: {activations: {hidden: batch length}}}", base)
    assert codes(found) == []


def test_a_pattern_that_matches_nothing_in_any_phase_is_told() -> None:
    found = check("{eval: {params: {'**/wo': mlp embed}}}")
    assert codes(found) == ["SHD204"]
    assert found[0].notes[-1] == "in phase `eval`"


def test_one_target_of_one_phase() -> None:
    phases = "{b: {targets: {serve: {mesh: {tensor: 3}}}, rules: [batch -> none]}}"
    assert codes(check(phases, target="pod")) == []
    assert "SHD301" in codes(check(phases, target="serve"))
    (missing,) = check(phases, target="srve")
    assert missing.code.id == "SHD106"


def test_a_spec_may_have_targets_in_its_phases_alone() -> None:
    base = BASE.replace("targets:\n  pod: {mesh: {data: 4, tensor: 8}}\n", "")
    phases = "{train: {mesh: {data: 4, tensor: 8}}, serve: {mesh: {tensor: 3, data: 2}}}"
    found = check(phases, base)
    assert codes(found) == ["SHD301"]
    spec, _ = pipeline.load_text(f"{base}phases: {phases}\n")
    assert spec is not None
    assert [plan.name for plan in pipeline.plans_of_phases(spec)] == [
        "train@default",
        "serve@default",
    ]
    asked = pipeline.find_target(spec, None)
    assert isinstance(asked, Diagnostic)
    assert "--phase train" in str(asked.help)


@pytest.mark.parametrize(
    ("rules", "is_lost"),
    [
        ("[]", True),
        ("[batch -> none]", False),
        ("[batch -> tensor]", False),
        ("['batch -> data | tensor']", False),
        ("['batch -> (data, tensor)']", False),
        ("['batch -> data | none']", False),
    ],
)
def test_a_dimension_is_lost_until_the_phase_says_what_it_wants(rules: str, is_lost: bool) -> None:
    phase = f"{{mesh: {{tensor: 4}}, rules: {rules}, activations: {{hidden: batch embed}}}}"
    assert ("SHD232" in codes(check(f"{{decode: {phase}}}"))) is is_lost


def test_the_spec_itself_may_lack_what_a_phase_has() -> None:
    base = BASE.replace("batch -> data", "batch -> replica")
    (found,) = [
        each
        for each in check("{train: {mesh: {replica: 4, tensor: 8}}}", base)
        if each.code.id == "SHD232"
    ]
    assert found.message == "`batch` is replicated in the spec itself: no mesh there has `replica`"


def test_an_axis_that_no_phase_has_is_unknown() -> None:
    base = BASE.replace("batch -> data", "batch -> dta")
    assert "SHD201" in codes(check("{decode: {mesh: {tensor: 4}}}", base))
    assert "SHD232" not in codes(check("{decode: {mesh: {tensor: 4}}}", base))


def test_a_comment_silences_a_finding_in_a_phase() -> None:
    text = (
        f"{BASE}phases:\n  b:\n    mesh: {{data: 2, tensor: 3}}\n    rules:\n"
        "      # shardspec: ignore[SHD301] three chips left\n      - mlp -> tensor\n"
    )
    spec, faults = pipeline.load_text(text)
    assert spec is not None
    assert codes(pipeline.check(spec, faults, spec.params).shown) == []
