from __future__ import annotations

import re
from pathlib import Path

from shardspec import pipeline
from shardspec.lints.registry import checks, codes
from tests.lints.findings_of import findings_of

SPEC = "mesh: {tensor: 16}\nrules: [a -> tensor]\narrays: {x: 'f32[a=8]'}\n"


def test_each_check_has_its_own_code() -> None:
    assert len(set(codes())) == len(set(checks()))


def test_the_guide_says_of_each_check_whether_activations_count() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "activations.md").read_text(encoding="utf-8")
    section = guide.partition("## What `check` says of activations")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| SHD")]
    told = re.findall(r"SHD\d{3}", " ".join(rows))
    assert len(told) == len(set(told))
    assert set(told) >= {code.id for code in codes()}


def test_levels() -> None:
    assert [d.is_error for d in findings_of(SPEC)] == [True]
    assert [d.is_error for d in findings_of(SPEC + "lints: {indivisible: warn}")] == [False]
    assert findings_of(SPEC + "lints: {SHD301: allow}") == ()


def test_no_target_and_no_array_are_no_trouble() -> None:
    assert findings_of("rules: [a -> tensor]") == ()
    assert findings_of("mesh: {tensor: 4}") == ()
    assert findings_of("arrays: {x: 'f32[]'}\nmesh: {a: 2}") == ()


def test_findings_do_not_depend_on_the_order_of_arrays() -> None:
    arrays = ["x: 'f32[a=8]'", "y: 'f32[3]'", "z: 'f32[b=7]'"]
    head = "mesh: {tensor: 16}\nrules: [a -> tensor, c -> tensro]\narrays: {"
    one = findings_of(head + ", ".join(arrays) + "}")
    two = findings_of(head + ", ".join(reversed(arrays)) + "}")
    assert {d.message for d in one} == {d.message for d in two}


def test_findings_are_in_reading_order() -> None:
    from shardspec.diagnostics.diagnostic import sort_key

    spec, _ = pipeline.load_text("mesh: {a: 3}\nrules: [x -> a, y -> b]\narrays: {k: 'f32[x=8]'}")
    assert spec is not None
    found = pipeline.findings(spec, pipeline.compile_plans(spec)).shown
    assert list(found) == sorted(found, key=sort_key)
