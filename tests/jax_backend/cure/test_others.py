"""Meshes for a step of code: one trace for all places of a size, while there is time."""

from __future__ import annotations

import pytest

from shardspec import pipeline
from shardspec.cure.figures import Figures
from shardspec.cure.searching import deadline
from shardspec.cure.telling import Tried
from shardspec.diagnostics import Diagnostic, codes
from shardspec.ir.spec import shape_text
from shardspec.jax_backend.cure import curing as module
from shardspec.jax_backend.cure.again import Asked
from shardspec.jax_backend.cure.curing import Again
from shardspec.search.ranking import Choice, Question, asked
from shardspec.search.rewriting import rewritten
from shardspec.search.variants import Refusal

SPEC = """\
shardspec: 1
targets: {pod: {hardware: tpu v5e 4x4, mesh: {fsdp: 4, tensor: 4}}}
rules: [batch -> fsdp, mlp -> tensor]
"""
NOW = Again(Tried((), Figures(True, 1.0, (), 1.0)))


@pytest.fixture
def question() -> Question:
    spec, faults = pipeline.load_text(SPEC)
    assert spec is not None, faults
    found = asked(spec, (), spec.targets[0], Choice("mesh,order"), is_of_code=True)
    assert isinstance(found, Question)
    return found


def searched(
    question: Question, monkeypatch: pytest.MonkeyPatch, within_s: float
) -> tuple[module.Meshes, list[str]]:
    traced: list[str] = []

    def traced_again(given: Asked, timeout_s: float) -> tuple[Diagnostic, ...]:
        (target,) = given.spec.targets
        traced.append(shape_text(tuple(target.mesh.sizes.values())))
        return (Diagnostic(codes.BAD_STEP, f"no {traced[-1]} here"),)

    monkeypatch.setattr(module, "traced_again", traced_again)
    given = Asked(question.spec, "pod", "train:step", "", {})
    return module.meshes(question, given, NOW, deadline(within_s), lambda stage: None), traced


def test_one_trace_serves_all_places_of_the_same_sizes(
    question: Question, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, traced = searched(question, monkeypatch, 60)
    assert question.count > len(traced), "tiles and orders"
    assert sorted(traced) == ["16x1", "1x16", "2x8", "4x4", "8x2"]
    assert sorted(why for _, why in found.failed) == sorted(f"no {each} here" for each in traced)
    assert (found.found, found.late) == ((), 0)


def test_code_is_told_its_microbatches(question: Question, monkeypatch: pytest.MonkeyPatch) -> None:
    words = Choice("mesh,microbatches=2|8", {"tensor": (1, 4)})
    more = asked(question.spec, (), question.target, words, is_of_code=True)
    assert isinstance(more, Question)
    told = []

    def traced_again(given: Asked, timeout_s: float) -> tuple[Diagnostic, ...]:
        told.append((given.spec.targets[0].mesh.sizes["tensor"], dict(given.given)))
        return (Diagnostic(codes.BAD_STEP, "no"),)

    monkeypatch.setattr(module, "traced_again", traced_again)
    given = Asked(more.spec, "pod", "train:step", "", {})
    found = module.meshes(more, given, NOW, deadline(60), lambda stage: None)
    counts: tuple[dict[str, int], ...] = ({}, {"microbatches": 2}, {"microbatches": 8})
    expected = [(tensor, count) for tensor in (1, 4) for count in counts]
    assert sorted(told, key=str) == sorted(expected, key=str)
    assert ("fsdp=16 tensor=1 microbatches=8", "no") in found.failed


@pytest.mark.parametrize("values", ["", "=two", "=0"])
def test_microbatches_of_code_are_named(question: Question, values: str) -> None:
    words = Choice(f"microbatches{values}")
    refused = asked(question.spec, (), question.target, words, is_of_code=True)
    assert isinstance(refused, Refusal)
    assert "microbatches=1|4" in refused.help


def test_microbatches_of_code_are_not_written(question: Question) -> None:
    words = Choice("microbatches=2")
    more = asked(question.spec, (), question.target, words, is_of_code=True)
    assert isinstance(more, Question)
    *_, last = more.candidates()
    refused = rewritten(more.spec, more.target, last)
    assert isinstance(refused, Refusal)
    assert "does not write `microbatches`" in refused.message


def test_meshes_that_are_too_late_are_counted(
    question: Question, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, traced = searched(question, monkeypatch, -1)
    assert (found.late, found.failed, traced) == (5, (), [])
