"""Step files of the examples: each runs on the spec it names, and what it sends is explained."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

from shardspec import Resolver, load
from shardspec.ir.step import CauseKind, Step
from shardspec.jax_backend.step.reading import step_of

EXAMPLES = Path(__file__).parents[2] / "specs" / "examples"
COMMAND = re.compile(
    r"^shardspec cost (?:specs/examples/)?(\S+)\.yaml"
    r" --step (?:specs\.examples\.)?steps\.(\w+):(\w+)$",
    re.MULTILINE,
)
#: 48 layers, none of them scanned, take 20 s.
SLOW = {("t5-1.1-xxl", "t5", "train")}
COMMANDS = [
    found
    for path in sorted((EXAMPLES / "steps").glob("*.py"))
    for found in COMMAND.findall(path.read_text(encoding="utf-8"))
]


def step(spec: str, module: str, function: str) -> Step:
    loaded = load(EXAMPLES / f"{spec}.yaml")
    resolver = Resolver(loaded, target=loaded.targets[0], devices="abstract")
    found = getattr(importlib.import_module(f"steps.{module}"), function)
    return step_of(resolver, *_given(found(resolver)))


def _given(made: tuple[object, tuple[object, ...]]) -> tuple[object, ...]:
    function, arguments = made
    return (function, *arguments)


def test_every_step_file_says_how_it_is_run() -> None:
    files = {path.stem for path in (EXAMPLES / "steps").glob("*.py")}
    assert files == {module for _, module, _ in COMMANDS}


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(each, id=f"{each[1]}-{each[2]}", marks=[pytest.mark.nightly] * (each in SLOW))
        for each in COMMANDS
    ],
)
def test_what_it_sends_is_explained(
    command: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    sys.modules.pop("steps", None)
    found = step(*command)
    sent = sum(each.wire_bytes for each in found.collectives)
    explained = [
        each
        for each in found.collectives
        if each.carries.name
        and all(because.kind is not CauseKind.UNKNOWN and because.span for because in each.because)
    ]
    assert found.flops
    assert sum(each.wire_bytes for each in explained) >= 0.95 * sent > 0
    assert all(each.place.is_known for each in found.collectives)
    assert {argument.role for argument in found.arguments} & {"parameter"}
    assert not [argument for argument in found.arguments if argument.role == "other"]
