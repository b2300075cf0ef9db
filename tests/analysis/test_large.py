from __future__ import annotations

import re
from pathlib import Path

import pytest

import shardspec
from docs.site.findings import codes_by_size, findings_doc
from shardspec import pipeline
from shardspec.analysis.coverage import LEAST_BYTES, PARTS, held_bytes, is_large
from shardspec.diagnostics import Code, codes
from shardspec.lints.registry import checks, step_checks

PACKAGE = Path(shardspec.__file__).parent


@pytest.mark.parametrize("held", [0, 1, LEAST_BYTES, PARTS * LEAST_BYTES, 10**15])
def test_both_bounds_count(held: int) -> None:
    least = max(LEAST_BYTES, -(-held // PARTS))
    assert is_large(least, held)
    assert not is_large(least - 1, held)


def test_a_device_holds_its_shards_of_all_parameters() -> None:
    text = "mesh: {data: 4}\nrules: [embed -> data]\narrays: {a: 'f32[embed=8 _=4]', b: 'f32[16]'}"
    spec, _ = pipeline.load_text(text)
    assert spec is not None
    (plan,) = pipeline.compile_plans(spec)
    assert held_bytes(plan) == plan.per_device_bytes == 8 * 4 + 16 * 4


def test_what_is_meant_to_be_whole_hides_nothing() -> None:
    text = (
        "mesh: {data: 4}\nrules: [embed -> data]\nparams: {e: _, a: embed _, b: _}\n"
        "arrays: {a: 'f32[8, 4]', b: 'f32[16]', e: 'f32[4096]'}\n"
        "replicate: [{path: e, because: packed}]"
    )
    spec, _ = pipeline.load_text(text)
    assert spec is not None
    (plan,) = pipeline.compile_plans(spec)
    assert held_bytes(plan) == 8 * 4 + 16 * 4


def test_no_check_has_a_threshold_of_its_own() -> None:
    """A size in binary units beside `is_large` would be a second measure."""
    own = re.compile(r"<<\s*[23]0|1024\s*\*\*|_LEAST_BYTES\b|\b_SHARE\b")
    modules = [*(PACKAGE / "lints").rglob("*.py"), *(PACKAGE / "jax_backend").glob("*.py")]
    assert [path.name for path in modules if own.search(path.read_text(encoding="utf-8"))] == []


def test_the_page_of_findings_lists_those_that_ask() -> None:
    (sentence,) = re.findall(r"It applies to (.*)\.\n", findings_doc())
    asking = [code.id for code in codes_by_size()]
    assert sentence == ", ".join(asking)
    asks, measured = re.compile(r"is_large\w*\(|whole_layers\(|large_groups\("), set()
    for module in (*checks(), *step_checks()):
        text = Path(str(module.__file__)).read_text(encoding="utf-8")
        named = re.findall(r"codes\.([A-Z_]+)\b", text)
        own = {found.id for name in named if isinstance(found := getattr(codes, name), Code)}
        assert bool(asks.search(text)) == bool(own & set(asking)), module.__name__
        measured |= own if asks.search(text) else set()
    assert set(asking) <= measured
    assert len(asking) >= 8
