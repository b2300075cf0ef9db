"""What no line of `step:` reads: said wherever figures of the step are shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.analysis.step_flow import flow_of
from shardspec.analysis.step_layout import unread
from shardspec.cli.main import cli
from shardspec.diagnostics.words import template
from shardspec.ir.plan import ParamSharding
from shardspec.ir.spec import Spec

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "specs" / "examples"
CASE = (ROOT / "tests" / "cases" / "SHD243-renamed.md").read_text()
TEXT = CASE.partition("```yaml\n")[2].partition("```")[0]


def test_check_warns_and_verbs_that_price_a_step_fail(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(TEXT)

    def run(verb: str, *arguments: str) -> Result:
        return CliRunner().invoke(cli, [verb, str(file), *arguments])

    checked, priced, searched = run("check"), run("cost"), run("search", "--top", "2")
    assert (checked.exit_code, priced.exit_code, searched.exit_code) == (0, 1, 1)
    assert "warning[SHD243]" in checked.output
    assert "error[SHD243]" in priced.output
    assert "warning[SHD243]" not in priced.output
    assert "error[SHD243]" in searched.output
    assert "no row is the best" in searched.output
    data = json.loads(run("cost", "--format", "json").stdout)
    (found,) = data["unknown"]
    assert "widen" in json.dumps(found)
    assert data["memory"]["fits"] is not True


def test_it_cannot_be_silenced() -> None:
    text = TEXT.replace("# warning: 1 [SHD243]", "") + "lints: {unread-arrays: allow}\n"
    spec, faults = pipeline.load_text(text)
    assert spec is not None
    assert "unread-arrays" in str(faults[0])


MODELS = ("llama-3-8b", "mixtral-8x7b", "gemma-2-9b", "gpt2", "tiny-t5", "vit-b-16", "phi-4")


def model(name: str) -> tuple[Spec, tuple[ParamSharding, ...]]:
    spec, faults = pipeline.load_path(str(EXAMPLES / f"{name}.yaml"))
    assert spec is not None
    assert not faults
    (plan,) = pipeline.compile_plans(spec, targets=spec.targets[:1])
    return spec, plan.arrays


KNOWN = {name: model(name) for name in MODELS}


@given(st.sampled_from(MODELS), st.integers(0, 1 << 16), st.integers(0, 1 << 16))
@settings(max_examples=60, deadline=None)
def test_a_renamed_array_never_changes_figures_in_silence(name: str, which: int, part: int) -> None:
    """Whatever one component of all arrays of a kind is called: what is lost is told."""
    spec, arrays = KNOWN[name]
    matrices = [each for each in arrays if len(each.logical_axes) > 1]
    kinds = sorted({template(each.path) for each in matrices})
    kind = kinds[which % len(kinds)]
    mark = "/" if "/" in kind else "."
    parts = kind.split(mark)
    at = part % len(parts)

    def renamed(each: ParamSharding) -> ParamSharding:
        own = each.path.split(mark)
        if template(each.path) == kind and "#" not in parts[at]:
            own[at] = "qqz"
        return replace(each, param=replace(each.param, path=mark.join(own)))

    before, others = flow_of(spec, arrays), tuple(map(renamed, arrays))
    after = flow_of(spec, others)
    if [op.flops for op in before.ops] != [op.flops for op in after.ops]:
        left = unread(spec, after, others).bytes
        assert after.faults or left > unread(spec, before, arrays).bytes


@pytest.mark.parametrize("name", MODELS)
def test_the_examples_are_read_whole(name: str) -> None:
    spec, arrays = KNOWN[name]
    assert not unread(spec, flow_of(spec, arrays), arrays).is_much
