"""Activations are part of every answer about an axis, a rule, or a dimension."""

from __future__ import annotations

from pathlib import Path

import pytest
from click import ClickException
from click.testing import CliRunner, Result

from shardspec import pipeline
from shardspec.cli.explain import command
from shardspec.diagnostics.codes import known
from shardspec.ir.plan import ShardingPlan
from shardspec.report.explain import why_not
from shardspec.report.explain_line import explain_line, explain_logical_axis, explain_mesh_axis

SPEC = """\
shardspec: 1
mesh: {data: 4, expert: 8}
axes: {batch: 64, length: 128}
rules:
  - expert -> expert
  - batch -> (data, expert)
  - batch -> data
  - embed -> none
  - heads -> expert
arrays:
  moe/wi: bf16[expert=8 embed=1024]
activations:
  dispatched: expert batch _ embed
  tokens: batch length embed
  logits: batch embed
"""


@pytest.fixture
def plan() -> ShardingPlan:
    spec, diagnostics = pipeline.load_text(SPEC, "s.yaml")
    assert spec is not None
    assert diagnostics == ()
    return pipeline.compile_plans(spec)[0]


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "s.yaml"
    path.write_text(SPEC, encoding="utf-8")
    return str(path)


def _explain(spec: str, *arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments, "--spec", spec], standalone_mode=False)


def test_a_mesh_axis_splits_activations(plan: ShardingPlan) -> None:
    assert list(explain_mesh_axis("data", plan)) == [
        "mesh axis data = 4   target default: mesh data=4 expert=8",
        "splits 0 % of 16.0 KiB of arrays",
        "does not split 100 %",
        "  moe/wi   16.0 KiB  expert, -",
        "splits 3 of 3 activations",
        "  dispatched  dim 1 (batch)",
        "  tokens      dim 0 (batch)",
        "  logits      dim 0 (batch)",
    ]


def test_a_mesh_axis_that_splits_none_says_so(plan: ShardingPlan) -> None:
    text = SPEC.replace("  - batch -> data\n", "").replace("(data, expert)", "none")
    loaded = pipeline.load_text(text, "s.yaml")[0]
    assert loaded is not None
    lines = list(explain_mesh_axis("data", pipeline.compile_plans(loaded)[0]))
    assert lines[4] == "splits none of 3 activations"
    assert lines[5] == "  dispatched  expert, -, -, -"


def test_a_logical_axis_has_activations(plan: ShardingPlan) -> None:
    assert list(explain_logical_axis("length", plan)) == [
        "logical axis length = 128",
        "1 activation",
        "  tokens  (data, expert), -, -",
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            6,
            [
                "rule `batch -> (data, expert)`",
                "  wins: activations `tokens`, `logits`",
                "  loses, busy: dim 0 (expert) has expert, s.yaml:5 comes first:"
                " activation `dispatched`",
            ],
        ),
        (
            7,
            [
                "rule `batch -> data`",
                "  wins: activation `dispatched`",
                "  not asked: an earlier rule had placed `batch` in 2 activations",
            ],
        ),
        (8, None),
        (
            9,
            ["rule `heads -> expert`", "  no array and no activation has the logical axis `heads`"],
        ),
    ],
)
def test_a_line_of_a_rule_says_what_it_does_to_activations(
    plan: ShardingPlan, line: int, said: list[str] | None
) -> None:
    lines = list(explain_line("s.yaml", line, plan))
    if said is None:
        assert lines[1].startswith("  wins: 1 array, moe/wi")
        assert lines[2] == "  wins: activations `dispatched`, `tokens`, `logits`"
    else:
        assert lines == said


def test_a_line_of_axes_names_the_activations(plan: ShardingPlan) -> None:
    assert "  used by activation `tokens`" in list(explain_line("s.yaml", 3, plan))


@pytest.mark.parametrize(
    ("name", "dim", "wanted", "said"),
    [
        ("dispatched", 1, ("data", "expert"), "busy: dim 0 (expert) has expert"),
        ("dispatched", 1, ("data",), "dispatched   dim 1 (batch=64) is on data"),
        ("dispatched", 2, ("data",), "help: name it in the activation `dispatched` (s.yaml:13)"),
        ("dispatched", 0, ("data",), "the activation would be P('data'"),
        ("tokens", 1, ("expert",), "in use by dim 0 (batch) of the same activation"),
        ("tokens", 1, ("data", "data"), "an activation uses a mesh axis at most once"),
    ],
)
def test_why_not_on_an_activation(
    plan: ShardingPlan, name: str, dim: int, wanted: tuple[str, ...], said: str
) -> None:
    sharding = next(each for each in plan.activations if each.activation.name == name)
    assert said in "\n".join(why_not(sharding, dim, wanted, plan))


def test_the_verb_takes_activations(spec: str) -> None:
    assert "is on data" in _explain(spec, "--why-not", "dispatched:1=data").output
    for number, name in (("dispatched:1", "dispatched:batch"), ("moe/wi:1", "moe/wi:embed")):
        answers = [_explain(spec, "--why-not", f"{each}=data").output for each in (number, name)]
        assert answers[0] == answers[1]
    for question, said in (
        ("dispatched:7=data", "(expert batch _ embed) has no dimension 7"),
        ("dispatched:mlp=data", "has no dimension `mlp`"),
        ("moe/wi:bath=data", "has no dimension `bath`"),
        ("dispathced:0=data", "did you mean `dispatched`?"),
        ("dispathced", "did you mean `dispatched`?"),
    ):
        why_not = ["--why-not"] if ":" in question else []
        result = _explain(spec, *why_not, question)
        fault = result.exception
        text = fault.format_message() if isinstance(fault, ClickException) else repr(fault)
        assert said in text
    assert "axis length" in _explain(spec, "axis:length").output


@pytest.mark.parametrize(
    ("start", "offered"),
    [
        ("d", ["dispatched"]),
        ("mo", ["moe/wi"]),
        ("axis:e", ["axis:expert", "axis:embed"]),
        ("axis:l", ["axis:length"]),
        ("zzz", []),
    ],
)
def test_completion_offers_arrays_activations_and_axes(
    spec: str, start: str, offered: list[str]
) -> None:
    from click.shell_completion import ShellComplete

    complete = ShellComplete(command, {}, "explain", "_X_COMPLETE")
    found = complete.get_completions(["--spec", spec], start)
    named = [each.value for each in found if each.type == "plain" and not known(each.value)]
    assert named == offered


def test_roles_of_an_axis_are_listed_with_it() -> None:
    spec, _ = pipeline.load_text(
        "mesh: {data: 2, model: 4}\naxes: {embed: 64, batch: 8}\n"
        "rules: [embed -> model, batch -> data, \"embed'' -> data\"]\n"
        'arrays: {wi: "f32[embed embed\']", wo: "f32[in:embed embed\'\']"}\n'
        "activations: {out: batch out:embed}\n",
        "s.yaml",
    )
    assert spec is not None
    (plan,) = pipeline.compile_plans(spec)
    lines = [" ".join(line.split()) for line in explain_logical_axis("embed", plan)]
    roles = [line for line in lines if line.startswith("role ")]
    assert roles == ["role embed'", "role embed''", "role in:embed", "role out:embed"]
    assert "embed'' -> data s.yaml:3" in lines
    assert lines[-1] == "out data, model"
    assert not any("role" in line for line in explain_logical_axis("batch", plan))
