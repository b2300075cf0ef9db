from __future__ import annotations

import pytest

from shardspec import pipeline
from shardspec.ir.plan import ShardingPlan
from shardspec.report.explain_line import explain_line, nothing_there

SPEC = """\
shardspec: 1
# a comment
mesh: {data: 2, fsdp: 4}
rules:
  - embed -> fsdp
params:
  "own/**": embed mlp
  "**/wi/kernel": embed mlp
  "**/wi/*": embed mlp
  "nowhere/**": embed
scan:
  "scanned/**": layers@0
  "own/*": layers@0
overrides:
  - path: "a/*/bias"
    axes: embed
  - path: "a/wi/*"
    axes: _
activations:
  residual: embed _
state: {optimizer: zero1, over: (data)}
coverage: {max_replicated_bytes: 2.5%}
replicate:
  - {path: "own/*/k", because: read by all}
  - {path: "scanned/**", because: tiny}
  - {path: "gone", because: who knows}

arrays:
  "own/{0..3}/k": bf16[embed=64 mlp=128]
  "layers_{0..3}/wi/kernel": bf16[64, 128]
  "scanned/wi/kernel": bf16[12, 64, 128]
  "a/wi/bias": f32[64]
"""


@pytest.fixture
def plan() -> ShardingPlan:
    spec, diagnostics = pipeline.load_text(SPEC, "spec.yaml")
    assert spec is not None, diagnostics
    return pipeline.compile_plans(spec)[0]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ('"own/**"', ["  matches 4 arrays, first own/0/k", "    4 carry their own names"]),
        ("state:", ["state: optimizer zero1 over data, 2 x f32"]),
        ("coverage:", ["coverage: every device may hold 2.5 % of the bytes of all arrays whole"]),
        ("own/*/k", ["  matches 4 arrays, first own/0/k", "    4 are split by rules"]),
        ('scanned/**", because', ["  matches 1 array, scanned/wi/kernel"]),
        ('path: "gone', ["  matches none of 10 arrays"]),
        ('"**/wi/kernel"', ["  names 5 arrays, first layers_0/wi/kernel"]),
        (
            '"**/wi/*"',
            [
                "  matches 6 arrays, first layers_0/wi/kernel",
                '    5 are taken by params "**/wi/kernel" (spec.yaml:8), which comes first',
                '    1 is taken by override "a/*/bias" (spec.yaml:15), which comes first',
            ],
        ),
        ('"nowhere/**"', ["  matches none of 10 arrays"]),
        (
            '"a/wi/*"',
            ['    1 is taken by override "a/*/bias" (spec.yaml:15), which comes first'],
        ),
        ('"scanned/**"', ["  adds to the names of 1 array, scanned/wi/kernel"]),
        ('"own/*": layers', ["  matches none of 10 arrays"]),
        ("residual", ["activation residual   ->   P('fsdp', None)"]),
        ('"own/{0..3}/k"', ["4 arrays"]),
    ],
)
def test_a_line_says_what_it_does(plan: ShardingPlan, part: str, said: list[str]) -> None:
    line = next(n for n, text in enumerate(SPEC.splitlines(), 1) if part in text)
    lines = list(explain_line("./spec.yaml", line, plan))
    assert set(said) <= set(lines), lines


def test_alike_arrays_of_a_line_are_one(plan: ShardingPlan) -> None:
    line = SPEC.splitlines().index('  "own/{0..3}/k": bf16[embed=64 mlp=128]') + 1
    lines = list(explain_line("spec.yaml", line, plan))
    assert lines[1].startswith("  own/{0..3}/k x4   bf16[64, 128]   fsdp, -")


@pytest.mark.parametrize(
    ("file", "line", "said"),
    [
        ("spec.yaml", 1, "line 1 of spec.yaml holds nothing in force"),
        ("spec.yaml", 2, "line 2 of spec.yaml is a comment"),
        ("spec.yaml", 27, "line 27 of spec.yaml is empty"),
        ("spec.yaml", 99, "spec.yaml has 32 lines, no line 99"),
        ("spec.yaml", 0, "spec.yaml has 32 lines, no line 0"),
        ("other.yaml", 1, "the spec reads no file other.yaml"),
    ],
)
def test_a_line_that_holds_nothing(plan: ShardingPlan, file: str, line: int, said: str) -> None:
    assert not list(explain_line(file, line, plan))
    message, hint = nothing_there(file, line, plan)
    assert message.startswith(said)
    assert file == "spec.yaml" or hint is not None


def test_every_line_of_a_file_says_something_or_why_not(plan: ShardingPlan) -> None:
    count = len(SPEC.splitlines())
    for line in range(-1, count + 3):
        said = list(explain_line("spec.yaml", line, plan))
        why, _ = nothing_there("spec.yaml", line, plan)
        assert ("no line" in why) == (not 1 <= line <= count)
        if said:
            assert why.startswith(f"line {line} of spec.yaml holds nothing")


def test_an_axis_of_interleaved_parts_has_its_unit_and_its_groups() -> None:
    text = (
        "axes:\n  qkv: {parts: {q: 64, k: 32}, unit: 8, interleaved: true}\n"
        "mesh: {x: 2}\nrules: [qkv -> x]\narrays: {a: 'f32[qkv]'}\n"
    )
    spec, _ = pipeline.load_text(text, "spec.yaml")
    assert spec is not None
    lines = list(explain_line("spec.yaml", 2, pipeline.compile_plans(spec)[0]))
    assert lines[:2] == [
        "axis `qkv` = 96, unit 8",
        "  parts q 64, k 32, interleaved in groups of 24 (q 16, k 8)",
    ]


@pytest.mark.parametrize(
    "section",
    [
        'params: {"optional:**/moe": x}',
        'scan: {"optional:moe/**": layers@0}',
        'memory: {"optional:moe/**": pinned_host}',
        'training: {"optional:moe/**": frozen}',
        "replicate: [{path: moe, optional: true, because: tiny}]",
        "overrides: [{path: moe, optional: true, axes: x}]",
    ],
)
def test_an_optional_pattern_says_that_it_matches_nothing_here(section: str) -> None:
    text = f"mesh: {{x: 2}}\nrules: [a -> x]\n{section}\narrays: {{b: 'f32[8]'}}\n"
    spec, _ = pipeline.load_text(text, "spec.yaml")
    assert spec is not None
    lines = list(explain_line("spec.yaml", 3, pipeline.compile_plans(spec)[0]))
    assert "  optional: matches no array here" in lines


SCANNED = """\
shardspec: 1
mesh: {data: 2, fsdp: 4}
rules: [embed -> fsdp]
params:
  "{lay,exact,first}/**": embed mlp
scan:
  "first/**": layers@0
  "**": layers@0
overrides:
  - {path: "stated/**", spec: "(fsdp, none)"}
arrays:
  "lay/{0..2}": f32[4, 64, 128]
  "first/{0..1}": f32[4, 64, 128]
  "exact/{0..3}": f32[64, 128]
  "bare/{0..4}": f32[64, 128]
  "own/{0..5}": f32[embed=64 mlp=128]
  "stated/{0..6}": f32[64, 128]
"""
WHY = {
    "by an earlier entry": 2,
    "with as many names as dimensions without it": 4,
    "without names, which it could add to": 5,
    "with names of their own": 6,
    "with a spec that an override states": 7,
}


def test_a_scan_says_of_every_array_that_it_matches_why_it_adds_no_name() -> None:
    spec, _ = pipeline.load_text(SCANNED, "spec.yaml")
    assert spec is not None
    plan = pipeline.compile_plans(spec)[0]
    line = SCANNED.splitlines().index('  "**": layers@0') + 1
    lines = list(explain_line("spec.yaml", line, plan))
    assert any(each.startswith("  adds to the names of 3 arrays") for each in lines)
    counts = {why: [each for each in lines if why in each] for why in WHY}
    assert {why: int(found[0].split()[0]) for why, found in counts.items()} == WHY
    assert 3 + sum(WHY.values()) == len(plan.arrays)


STEP = """\
shardspec: 1
axes: {batch: 8, embed: 64, mlp: 128}
mesh: {data: 2}
rules: [batch -> data]
params: {"layers_*/up": embed mlp, "layers_*/down": mlp embed}
arrays: {"layers_{0..2}/up": "f32[64, 128]", "layers_{0..2}/down": "f32[128, 64]"}
activations: {residual: batch embed}
step:
  mode: serve
  program:
    - residual, "layers_*/up" -> hidden
    - hidden, "layers_*/down" -> residual
"""


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("mode: serve", ["step: serve, 2 lines"]),
        (
            "-> hidden",
            ['step residual, "layers_*/up" -> hidden', "  reads 3 arrays, first layers_0/up"],
        ),
        ("-> residual", ["  reads 3 arrays, first layers_0/down"]),
    ],
)
def test_a_line_of_a_step_says_which_arrays_it_reads(part: str, said: list[str]) -> None:
    spec, _ = pipeline.load_text(STEP, "spec.yaml")
    assert spec is not None
    line = next(n for n, text in enumerate(STEP.splitlines(), 1) if part in text)
    lines = list(
        explain_line("spec.yaml", line - (part == "mode: serve"), pipeline.compile_plans(spec)[0])
    )
    assert set(said) <= set(lines), lines
