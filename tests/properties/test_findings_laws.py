"""The laws of findings: they never raise, point into their source, and stand in one order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, Severity, sort_key
from shardspec.diagnostics.render import render, render_concise
from shardspec.ir.spec import Activation, Override, Param, PathRule, Pattern, ScanRule, Spec
from shardspec.lints.context import Context
from shardspec.lints.registry import checks, run
from shardspec.report.findings_forms import findings_text
from tests.mutations.census import draws, mistakes
from tests.mutations.mutators.registry import MUTATORS
from tests.mutations.subjects import Subject, load, subjects
from tests.mutations.text import Mistake, apply
from tests.strategies import params, specs

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(filter(Path.is_file, (ROOT / "specs" / "examples").iterdir()))


def everything(spec: Spec, faults: tuple[Diagnostic, ...]) -> tuple[Diagnostic, ...]:
    """Return all that the readers and the checks have to say, pedantic findings too."""
    return (*faults, *run(Context(spec, pipeline.compile_plans(spec))))


def check_places(found: tuple[Diagnostic, ...]) -> None:
    """Assert that labels lie in their sources, and that a finding prints."""
    for diagnostic in found:
        primary = sum(label.primary for label in diagnostic.labels)
        assert primary == (1 if diagnostic.labels else 0), diagnostic
        for label in diagnostic.labels:
            span = label.span
            assert 0 <= span.start <= span.end <= len(span.source.text), diagnostic
        for edit in diagnostic.fix.edits if diagnostic.fix else ():
            assert 0 <= edit.span.start <= edit.span.end <= len(edit.span.source.text), diagnostic
        assert "\n" not in diagnostic.message
        assert diagnostic.message.isprintable() or "\\x" in render_concise(diagnostic)
    for diagnostic in found[:20]:
        assert diagnostic.code.id in render(diagnostic)
    assert len(json.loads(findings_text(found))["findings"]) == len(found)


# never raises


@st.composite
def several_mistakes(draw: st.DrawFn) -> tuple[Subject, str]:
    """Return a subject with one to four mistakes of any kind, none upon another."""
    subject, first = draw(draws(draw(st.sampled_from(MUTATORS))))
    chosen = list(first.changes)
    for _ in range(draw(st.integers(0, 3))):
        mutator = draw(st.sampled_from(MUTATORS))
        found = next((each for one, each in mistakes(mutator) if one is subject), ())
        if found:
            mistake: Mistake = draw(st.sampled_from(found))
            apart = all(
                new.end < old.start or old.end < new.start
                for new in mistake.changes
                for old in chosen
            )
            chosen += mistake.changes if apart else ()
    return subject, apply(subject.text, chosen)[0]


@settings(max_examples=60)
@given(several_mistakes())
def test_a_report_of_what_another_shows_shows_the_same(drawn: tuple[Subject, str]) -> None:
    subject, text = drawn
    spec, faults = pipeline.load_text(text, subject.name)
    assume(spec is not None)
    assert spec is not None
    told = pipeline.checked(spec, faults, pipeline.compile_plans(spec))
    assert pipeline.report(spec, told.shown).shown == told.shown
    assert told.errors == tuple(each for each in told.shown if each.is_error)
    assert {each.code for each in told.shown} <= {each.code for each in told.loud}


@settings(max_examples=60)
@given(several_mistakes())
def test_mistakes_never_raise_and_point_into_their_source(drawn: tuple[Subject, str]) -> None:
    subject, text = drawn
    spec, faults = load(subject.name, text, subject.folder)
    if spec is None:
        assert any(fault.is_error for fault in faults)
        check_places(faults)
    else:
        check_places(everything(spec, faults))


patterns = st.builds(
    Pattern,
    st.sampled_from(
        ("**", "a*", "a0", "a{0..3}", "*/x", "b", "a.*", r"a\d", r"a\d+", "(a|b)0", "(")
    ),
    st.sampled_from(("glob", "regex")),
)
axis_names = st.sampled_from(("batch", "embed", "mlp", "heads", "odd", None))
names = st.lists(axis_names, max_size=3).map(tuple)


@st.composite
def specs_without_places(draw: st.DrawFn) -> tuple[Spec, tuple[Param, ...]]:
    """Return a spec made in Python, whose parts have no spans, and arrays."""
    spec = draw(specs())
    arrays = tuple(
        replace(
            param, path=f"a{index}", logical_axes=draw(st.sampled_from((param.logical_axes, None)))
        )
        for index, param in enumerate(draw(st.lists(params(), max_size=4)))
    )
    partitions = st.lists(
        st.sampled_from(((), ("data",), ("fsdp", "tensor"), ("stage",))), max_size=3
    ).map(tuple)
    overrides = st.one_of(
        st.builds(Override, patterns, names),
        st.builds(Override, patterns, st.none(), partitions),
    )
    scans = st.builds(ScanRule, patterns, st.just((("layers", 0),)))
    activations = st.builds(Activation, st.sampled_from(("x", "y")), names)
    return (
        replace(
            spec,
            path_rules=tuple(draw(st.lists(st.builds(PathRule, patterns, names), max_size=3))),
            overrides=tuple(draw(st.lists(overrides, max_size=2))),
            scans=tuple(draw(st.lists(scans, max_size=1))),
            activations=tuple(draw(st.lists(activations, max_size=3))),
            logical_axes=tuple(
                replace(axis, size=draw(st.sampled_from((None, 0, 1, 8, 97))))
                for axis in spec.logical_axes
            ),
        ),
        arrays,
    )


@given(specs_without_places())
def test_specs_without_places_never_raise(drawn: tuple[Spec, tuple[Param, ...]]) -> None:
    spec, arrays = drawn
    check_places(tuple(run(Context(spec, pipeline.compile_plans(spec, arrays)))))


@given(specs_without_places())
def test_a_spec_without_arrays_or_targets_never_raises(
    drawn: tuple[Spec, tuple[Param, ...]],
) -> None:
    spec, arrays = drawn
    bare = replace(spec, targets=())
    check_places(tuple(run(Context(bare, pipeline.compile_plans(bare, arrays)))))
    check_places(tuple(run(Context(spec, pipeline.compile_plans(spec, ())))))


# one order


@settings(max_examples=30)
@given(several_mistakes())
def test_findings_stand_in_reading_order_each_once(drawn: tuple[Subject, str]) -> None:
    subject, text = drawn
    spec, _ = load(subject.name, text, subject.folder)
    assume(spec is not None)
    assert spec is not None
    found = pipeline.findings(spec, pipeline.compile_plans(spec)).shown
    assert list(found) == sorted(found, key=sort_key)
    assert len(set(found)) == len(found)
    assert all(d.severity is not Severity.ALLOW for d in found)


def test_checks_do_not_depend_on_each_other() -> None:
    """Every check alone, on one text full of mistakes, finds what it finds among the others."""
    spec, _ = pipeline.load_text(FAULTY, "spec.yaml")
    assert spec is not None
    context = Context(spec, pipeline.compile_plans(spec))
    alone = [d for module in reversed(checks()) for d in module.check(context)]
    assert sorted(alone, key=sort_key) == sorted(run(context), key=sort_key)
    assert len({d.code for d in alone}) > 8


FAULTY = """\
axes: {embed: 64, mlp: 130, heads: 8, nothing: 3, joined: {size: 100, unit: 7}}
targets:
  v5e-64: {hardware: tpu v5e 4x4, mesh: {data: rest, tensor: 4, idle: 2}}
  b: {mesh: {data: 4, tensor: 1, tenosr: 2}}
rules:
  - embed -> data
  - mlp -> tensor | (data, tensor)
  - heads, kv, hedas, odd -> tensor | wrong
  - batch -> data
params:
  "re:layers_\\\\d/wi": embed mlp
  "**/wi": mlp embed
  "**/wo": mlp
  "*/nowhere": embed
overrides:
  - {path: "layers_3/wi", axes: embed embed}
activations: {residual: batch length embed}
arrays:
  "layers_{0..11}/wi": bf16[64, 130]
  "layers_{0..1}/wo": bf16[130, 64]
  lonely: f32[4096, 4096]
"""


@pytest.mark.parametrize("arguments", [(), ("--format", "json")])
def test_output_is_the_same_whatever_the_hash_seed(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "spec.yaml").write_text(FAULTY, encoding="utf-8")
    (tmp_path / "fine.yaml").write_text(
        EXAMPLES[1].read_text("utf-8").replace("../", f"{ROOT}/specs/")
    )
    outputs = set()
    for seed in ("0", "1", "4242"):
        process = subprocess.run(
            [sys.executable, "-m", "shardspec", "check", "spec.yaml", "fine.yaml", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            check=False,
        )
        assert process.returncode == 1, process.stderr
        outputs.add(process.stdout)
    assert len(outputs) == 1
    assert "SHD204" in outputs.pop()


# and the reverse


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_has_no_finding(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    spec, faults = pipeline.load_path(str(path.relative_to(ROOT)))
    assert spec is not None
    assert (*faults, *pipeline.findings(spec, pipeline.compile_plans(spec)).shown) == ()


def test_subjects_of_mutations_have_no_finding() -> None:
    """But two: with the rules of data parallelism written out, arrays are pinned by their own."""
    spoken = [(s.name, d.code.id) for s in subjects() for d in s.found if not d.code.is_pedantic]
    assert spoken == [(f"unfolded-{name}.yaml", "SHD410") for name in ("gpt2", "vit-b-16")]
