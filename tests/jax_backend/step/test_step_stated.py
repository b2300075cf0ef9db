"""What `step:` of an example says against the traced step of the same model."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from shardspec import pipeline
from shardspec.analysis.spec_step import stated_step
from shardspec.ir.step import Step
from shardspec.jax_backend.resolver import Resolver
from shardspec.jax_backend.step.reading import step_of

EXAMPLES = Path(__file__).parents[3] / "specs" / "examples"
#: Tracing the large ones takes 10 to 20 s each.
LARGE = pytest.mark.nightly
#: The function of `steps/t5.py` has one of the two microbatches.
HALF = {"axes.batch": "1024", "step.microbatches": "1"}
#: What is too little to matter on any axes, in bytes and of all that a step sends: losses, maxima.
#: XLA of jaxlib 0.10.2 permutes 4 MiB of Mixtral's table, of 180 GiB, before it gathers the table.
LITTLE, LITTLE_SHARE = 1 << 20, 3e-5

CASES = [
    pytest.param("llama-3-8b-decode", "v5e-16", "decode:step", {}),
    pytest.param("vit-b-16", "v5e-8", "vit:train", {}),
    pytest.param("llama-3-70b-scanned", "v5p-1024", "llama:train", {}, marks=LARGE),
    pytest.param("mixtral-8x7b", "v5p-256", "mixtral:train", {}, marks=LARGE),
    pytest.param("t5-1.1-xxl", "v4-512", "t5:train", HALF, marks=LARGE),
]


def traced(spec: str, target: str, name: str, monkeypatch: pytest.MonkeyPatch) -> Step:
    """Return the step of a function of `specs/examples/steps`."""
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    module, _, function = name.partition(":")
    resolver = Resolver(str(EXAMPLES / f"{spec}.yaml"), target, devices="abstract")
    step, args = getattr(importlib.import_module(f"steps.{module}"), function)(resolver)
    return step_of(resolver, step, *args)


@pytest.mark.parametrize(("name", "target", "function", "settings"), CASES)
def test_both_agree(
    name: str,
    target: str,
    function: str,
    settings: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Within 1 % of FLOPs, and 10 % of wire bytes by mesh axis."""
    spec, faults = pipeline.load_path(str(EXAMPLES / f"{name}.yaml"), settings)
    assert spec is not None
    assert faults == ()
    chosen = [each for each in spec.targets if each.name == target]
    stated = stated_step(pipeline.compile_plans(spec, targets=chosen)[0])
    assert stated is not None
    of_code = traced(name, target, function, monkeypatch)
    assert stated.step.flops == pytest.approx(of_code.flops, rel=0.01)
    assert sends(stated.step) == pytest.approx(sends(of_code), rel=0.1)


def sends(step: Step) -> dict[tuple[str, ...], int]:
    """Return the wire bytes of a step by mesh axes, without what is too little to matter."""
    least = max(LITTLE, LITTLE_SHARE * sum(step.wire_bytes.values()))
    return {axes: sent for axes, sent in step.wire_bytes.items() if sent > least}
