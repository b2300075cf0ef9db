"""What final programs send has a line, and what matters of it a name: kept ones of all chips."""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from benchmarks.final_programs import LINES, MACHINES, SAMPLED, SAMPLES, SMALL, SMALL_STEPS
from shardspec import pipeline
from shardspec.analysis.cost import cost_of
from shardspec.ir.step import CauseKind, Step
from shardspec.jax_backend.step.reading import step_of
from shardspec.programs.proof import with_causes
from shardspec.programs.reading import ReadProgram, read_program
from tests.models import small_steps

KEPT = [(name, chip) for name, chips in SAMPLED.items() for chip in chips]
#: The share of all bytes that may have no name.
LITTLE = 0.01
#: Of each program what the lines of its steps said when it was kept.
LINE_OF: Any = json.loads(LINES.read_text(encoding="utf-8"))
CODE = SMALL_STEPS.read_text(encoding="utf-8").splitlines()


def todays(name: str, text: str) -> str:
    """Return a kept program whose lines are those of the small steps today."""
    file = re.search(rf'^(\d+) ".*{SMALL_STEPS.name}"$', text, re.MULTILINE)
    assert file is not None
    now = {old: nearest(int(old), said) for old, said in LINE_OF[name].items()}
    row = re.compile(rf"(\bfile_name_id={file[1]} .*?\bline=)(\d+)")
    return row.sub(lambda found: f"{found[1]}{now[found[2]]}", text)


def nearest(number: int, said: str) -> int:
    """Return the line that says it today, nearest to where it was; 0 where none does."""
    if said not in CODE:
        return 0
    places = (at for off in count() for at in (number - off, number + off))
    return next(at for at in places if 0 < at <= len(CODE) and CODE[at - 1] == said)


@cache
def proved(name: str, chip: str) -> Step:
    """Return a kept program joined with what is predicted of its step today."""
    spec = small_steps.SPEC.replace(SMALL["small"], MACHINES[chip])
    resolver = small_steps.resolver(spec=spec)
    function, args = small_steps.PROGRAMS[name](resolver)
    step = step_of(resolver, function, *args)
    (plan,) = pipeline.compile_plans(resolver._arrays.spec, None, [resolver.target])
    text = Path(SAMPLES / f"{name}-{chip}.txt").read_text(encoding="utf-8")
    program = read_program(todays(f"{name}-{chip}", text), plan.mesh, step.arguments)
    assert isinstance(program, ReadProgram)
    return with_causes(program.step, cost_of(plan, step))


@pytest.mark.parametrize(("name", "chip"), KEPT)
def test_every_collective_has_a_line_and_what_matters_a_name(name: str, chip: str) -> None:
    step = proved(name, chip)
    whole = sum(each.wire_bytes for each in step.collectives)
    assert step.collectives
    assert all(each.place.is_known for each in step.collectives)
    nameless = [each for each in step.collectives if not each.carries.name]
    assert sum(each.wire_bytes for each in nameless) <= LITTLE * whole, nameless


@pytest.mark.parametrize(("name", "chip"), [each for each in KEPT if each[0] != "shard_mapped"])
def test_what_matters_has_a_cause(name: str, chip: str) -> None:
    step = proved(name, chip)
    whole = sum(each.wire_bytes for each in step.collectives)
    blind = [
        each
        for each in step.collectives
        if any(cause.kind is CauseKind.UNKNOWN for cause in each.because)
    ]
    assert sum(each.wire_bytes for each in blind) <= LITTLE * whole, blind
