"""SHD223 by default: separate rules of one name whose answers differ, and no way of saying so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic
from shardspec.ir.spec import PartitionSpec

AXES = {"data": 2, "fsdp": 4, "tensor": 2, "one": 1}
HEAD = "shardspec: 1\nmesh: {data: 2, fsdp: 4, tensor: 2, one: 1}\n"
ARRAYS = """\
arrays:
  a/kernel: bf16[embed=64 mlp=128]
  a/scale: bf16[embed=64]
  b/kernel: bf16[mlp=128 heads=64]
"""

rights = st.lists(st.sampled_from(sorted(AXES)), min_size=1, max_size=2, unique=True)
rules = st.lists(st.tuples(st.sampled_from(("embed", "mlp", "heads")), rights), max_size=6)


def _rules(pairs: list[tuple[str, list[str]]]) -> str:
    listed = [f"  - {name} -> ({', '.join(right)})\n" for name, right in pairs]
    return f"rules:\n{''.join(listed)}" if listed else ""


def _found(text: str) -> tuple[dict[str, PartitionSpec], list[Diagnostic]]:
    spec, faults = pipeline.load_text(text, "spec.yaml")
    assert spec is not None, faults
    plans = pipeline.compile_plans(spec)
    found = pipeline.checked(spec, faults, plans).shown
    placed = {each.param.path: each.partition_spec for plan in plans for each in plan.arrays}
    return placed, [each for each in found if each.code.id == "SHD223"]


@given(rules)
def test_a_fallback_that_the_help_writes_changes_no_answer_and_ends_the_finding(
    pairs: list[tuple[str, list[str]]],
) -> None:
    text = f"{HEAD}{_rules(pairs)}{ARRAYS}"
    placed, found = _found(text)
    for each in found:
        help = each.help or ""
        _, is_fallback, rest = help.partition("for a fallback, write one rule: `")
        if not is_fallback:
            assert "lints: {nnx-differs: allow}" in help
            continue
        rule = rest.partition("`")[0]
        axis = rule.partition(" ")[0]
        own = [at for at, (name, _) in enumerate(pairs) if name == axis]
        lines = [f"  - {name} -> ({', '.join(right)})\n" for name, right in pairs]
        kept = [line for at, line in enumerate(lines) if at not in own[1:]]
        kept[own[0]] = f"  - {rule}\n"
        then, left = _found(f"{HEAD}rules:\n{''.join(kept)}{ARRAYS}")
        assert then == placed
        assert not any(f"`{axis}` has" in other.message for other in left)


@given(rules)
def test_rules_of_different_names_are_no_two_answers(pairs: list[tuple[str, list[str]]]) -> None:
    once = list(dict(pairs).items())
    assert not _found(f"{HEAD}{_rules(once)}{ARRAYS}")[1]


@pytest.mark.parametrize(
    "spec",
    [
        "rules:\n  - mlp -> tensor\n  - embed -> tensor | fsdp\n",
        "extends: t5x/2d\nrules:\n  - heads -> fsdp\n",
        "extends: fsdp\nrules:\n  - embed -> tensor\n",
        "rules:\n  - embed -> (fsdp, one)\n  - embed -> fsdp\n",
        "lints: {nnx-differs: allow}\nrules:\n  - embed -> fsdp\n  - embed -> tensor\n",
    ],
    ids=["alternatives", "preset", "own rule before a preset's", "size 1", "allowed"],
)
def test_what_is_stated_is_silent(spec: str) -> None:
    head = HEAD.replace("tensor: 2", "tensor: 2, model: 2")
    assert not _found(f"{head}{spec}{ARRAYS}")[1]


def test_a_rule_that_can_never_fire_is_reported_once() -> None:
    """SHD214 reports it."""
    assert not _found(f"{HEAD}rules:\n  - embed -> fsdp\n  - embed -> (fsdp, one)\n{ARRAYS}")[1]


def test_a_mesh_axis_of_size_one_counts_where_jax_refuses_it_twice() -> None:
    text = "rules:\n  - mlp -> (tensor, one)\n  - embed -> (fsdp, one)\n  - embed -> fsdp\n"
    assert not _found(f"{HEAD}{text}{ARRAYS}")[1]
    text = "rules:\n  - mlp -> (tensor, one)\n  - embed -> fsdp\n  - embed -> (one, data)\n"
    (found,) = _found(f"{HEAD}{text}{ARRAYS}")[1]
    assert "JAX refuses NNX's: it has `one` twice" in found.notes[0]
