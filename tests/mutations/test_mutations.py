"""Mistakes are caught: a few of each kind, the same each time, each kind to its floor.

`python -m tests.mutations` runs many more, and prints docs/mutations.md's table.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from shardspec.diagnostics import Severity, ShardspecError
from shardspec.jax_backend.constrain import ActivationResolver
from shardspec.resolve.resolver import array_resolver
from tests.mutations.census import count, mistakes
from tests.mutations.judging import Verdict, judge
from tests.mutations.mutators import documents
from tests.mutations.mutators.registry import MUTATORS, Mutator, title
from tests.mutations.subjects import AGAIN, Subject, load, subjects
from tests.mutations.text import Change, Mistake, apply

#: Mistakes of each kind; all of them together take some twenty seconds.
EXAMPLES = 6

#: Kinds of which few make a plan worse, and so more are made.
RARELY_WORSE = {
    "typo_in_axes": 60,
    "rules_swapped": 130,
    "priority_given": 40,
    "place_wrong": 47,
    "array_sizes_swapped": 20,
    "two_stars_for_one": 20,
}

#: The share of the mistakes that make a plan worse which is caught, where it is not all of them:
#: what is left is another layout that someone may want. docs/mutations.md tells which, and why.
FLOORS: dict[str, float] = {
    "another_name": 0.94,
    "underscore": 0.87,
    "other_mesh_axis": 0.70,
    "tuple_member_lost": 0.75,
    "alternatives_turned": 0.88,
    "alternative_lost": 0.33,
    "rules_swapped": 0.60,  # 14 MiB of a device of T5 11B: not large; attention-DP
    "priority_given": 0.90,  # the same of attention-DP: its axis splits another dimension then
    "place_wrong": 0.60,
    "mesh_axis_renamed": 0.97,
    "mesh_product_wrong": 0.91,
    "mesh_does_not_divide": 0.56,
    "dcn_moved": 0.95,
    "mesh_axis_dropped": 0.89,
    "mesh_sizes_swapped": 0.48,
    "hardware_size_wrong": 0.96,
    "axis_size_off_by_one": 0.94,
    "unit_wrong": 0.96,
    "another_preset": 0.92,
    "preset_dropped": 0.94,
    "activation_renamed": 0.0,
}

#: No plan gets worse by these, and a finding is reported all the same.
SPOKEN_OF = {"rule_twice", "version_wrong"}

#: The same or an equally good layout, or none that differs.
HARMLESS = {
    "tuple_turned",
    "none_lost",
    "dcn_dropped",
    "axis_product_wrong",
    "unit_removed",
    "kept_when_indivisible",
    "finding_allowed",
}

by_mutator = pytest.mark.parametrize("mutator", MUTATORS, ids=lambda mutator: mutator.__name__)


@by_mutator
def test_mistakes_are_caught(mutator: Mutator) -> None:
    name = mutator.__name__
    result = count(mutator, RARELY_WORSE.get(name, EXAMPLES))
    missed = [f"{v.subject}: {v.mistake.what}: {', '.join(v.worse)}" for v in result.missed]
    floor = FLOORS.get(name, 1.0)
    allowed = 0 if floor == 1.0 else 1 + math.ceil((1 - floor) * len(result.worse))
    assert len(missed) <= allowed, missed
    assert result.worse or name in HARMLESS | SPOKEN_OF
    if name in SPOKEN_OF:
        assert all(verdict.is_caught for verdict in result.verdicts)


def test_a_renamed_activation_is_found_by_the_code_that_asks_for_it() -> None:
    """The spec alone cannot tell: it does not know what the model calls its activations."""
    subject, found = mistakes(documents.activation_renamed)[0]
    text, _ = apply(subject.text, found[0].changes)
    spec, _ = load(subject.name, text, subject.folder)
    assert spec is not None
    resolver = ActivationResolver(array_resolver(spec, spec.targets[0]))
    old = next(
        iter({a.name for a in subject.spec.activations} - {a.name for a in spec.activations})
    )
    with pytest.raises(ShardspecError) as raised:
        resolver.named(old)
    assert [d.code.id for d in raised.value.diagnostics] == ["SHD213"]
    assert "did you mean" in (raised.value.diagnostics[0].help or "")


def test_floors_are_of_mutators() -> None:
    names = {mutator.__name__ for mutator in MUTATORS}
    assert set(FLOORS) | set(RARELY_WORSE) | SPOKEN_OF | HARMLESS <= names
    assert len(names) == len(MUTATORS) >= 25


@by_mutator
def test_a_mutator_has_places_and_changes_text(mutator: Mutator) -> None:
    found = mistakes(mutator)
    assert found
    for subject, of_subject in found:
        for mistake in of_subject[:5]:
            changed, _ = apply(subject.text, mistake.changes)
            assert changed != subject.text
            assert title(mutator)


def named(name: str) -> Subject:
    return next(subject for subject in subjects() if subject.name == name)


def verdict_on(old: str, new: str, name: str = "gemma-2-9b.yaml") -> Verdict:
    subject = named(name)
    start = subject.text.index(old)
    return judge(subject, Mistake("a test", (Change(start, start + len(old), new),)))


def test_no_change_is_no_mistake() -> None:
    verdict = verdict_on("RMS norms", "RMS norm")
    assert (verdict.worse, verdict.is_change, verdict.found) == ((), False, ())


def test_a_better_plan_is_a_change_and_not_worse() -> None:
    verdict = verdict_on("mesh: {fsdp: rest, tensor: 2}", "mesh: {fsdp: rest, tensor: 4}")
    assert verdict.is_change


def test_a_split_array_that_is_whole_is_worse() -> None:
    verdict = verdict_on("down_proj.weight: embed mlp", "down_proj.weight: _ _")
    assert "a split array is whole" in verdict.worse
    assert verdict.is_caught
    assert verdict.names_line


def test_what_cannot_be_read_is_worse_and_told() -> None:
    verdict = verdict_on("axes:", "axes: [")
    assert verdict.worse == ("cannot be read",)
    assert verdict.is_caught


def test_a_lost_activation_is_worse_and_not_told_here() -> None:
    verdict = verdict_on("  hidden: batch", "  hiden: batch")
    assert verdict.worse == ("an activation is lost",)
    assert not verdict.is_caught


def test_lines_are_those_of_the_changed_text() -> None:
    text = "a\nb\nc\nd\n"
    assert apply(text, (Change(2, 3, "x\ny"),)) == ("a\nx\ny\nc\nd\n", frozenset({2, 3}))
    assert apply(text, (Change(2, 4, ""),)) == ("a\nc\nd\n", frozenset())
    assert apply(text, (Change(0, 1, ""), Change(6, 7, "z"))) == ("\nb\nc\nz\n", frozenset({1, 4}))


def test_the_table_is_about_these_mutators() -> None:
    file = Path(__file__).parents[2] / "docs" / "mutations.md"
    rows = re.findall(r"^\| (.+?) \| \d+ \|", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [*(title(mutator) for mutator in MUTATORS), "**all**"]


def test_subjects_are_examples_and_more() -> None:
    names = {subject.name for subject in subjects()}
    examples = Path(__file__).parents[2] / "specs" / "examples"
    files = [path for path in examples.iterdir() if path.is_file()]
    assert {path.name for path in files if path.stem not in AGAIN} < names
    assert {path.stem for path in files} >= AGAIN
    assert all(d.severity is Severity.WARNING for s in subjects() for d in s.found)
