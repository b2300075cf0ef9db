from __future__ import annotations

import re
from pathlib import Path

import pytest

import shardspec
from shardspec import pipeline
from shardspec.analysis.coverage import LEAST_BYTES, PARTS, held_bytes, is_large
from shardspec.lints.registry import checks, step_checks
from shardspec.report.findings_doc import codes_by_size, findings_doc

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
    (sentence,) = re.findall(r"By it go (.*)\.\n", findings_doc())
    asking = [code.id for code in codes_by_size()]
    assert sentence == ", ".join(asking)
    modules = (*checks(), *step_checks())
    sources = {Path(str(module.__file__)).read_text(encoding="utf-8") for module in modules}
    asks = re.compile(r"is_large\w*\(|whole_layers\(|large_groups\(")
    measured = [text for text in sources if asks.search(text)]
    assert len(asking) == len(measured) >= 8
