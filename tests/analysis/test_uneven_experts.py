"""Experts that are uneven: what most steps take, and one of a hundred."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from statistics import pvariance

import jsonschema
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from shardspec import assets, pipeline
from shardspec.analysis.cost import Cost
from shardspec.analysis.spec_step import evenly, stated_cost
from shardspec.cli.main import cli
from shardspec.diagnostics import SourceFile
from shardspec.ir.program import Balance
from shardspec.ir.spec import Spec
from shardspec.language.formatting import formatted
from shardspec.language.grammar.step_lines import parse_experts
from shardspec.language.grammar.syntax import SyntaxFault
from shardspec.search.ranking import Choice, Evaluator, Question, Wanted, asked, search

#: A layer of eight experts, two of them on each device; what is sent to them is in the way.
TEXT = """\
shardspec: 1
axes: {batch: 256, length: 2048, embed: 2048, mlp: 8192, router: 8, expert: 8, vocab: 8192}
hardware: tpu v5e 4x4
mesh: {fsdp: 4, expert: EXPERT}
rules:
  - expert -> expert @ -1
  - batch -> (fsdp, expert) | fsdp
  - embed -> (fsdp, expert) | fsdp
  - vocab, router, mlp, length -> none
params: {table: vocab embed, gate: embed router, wi_0: expert embed mlp, wo: expert mlp embed}
arrays:
  table: bf16[8192, 2048]
  gate: bf16[2048, 8]
  wi_0: bf16[8, 2048, 8192]
  wo: bf16[8, 8192, 2048]
activations: {residual: batch length embed, leaving: _ batch _ embed}
state: {optimizer: same}
step:
  experts: EXPERTS
  program:
    - gather(tokens[batch length], "table") -> residual[batch length embed]
    - residual, "gate" -> routing[batch length router]
    - dispatch(residual, routing) -> arrived[expert batch slot embed]
    - arrived, "wi_0" -> hidden[expert batch slot mlp]
    - hidden, "wo" -> made[expert batch slot embed]
    - combine(made, routing) -> residual
    - residual, "table" -> logits
"""


def spec_of(experts: str, expert: int = 4) -> Spec:
    text = TEXT.replace("EXPERTS", experts).replace("EXPERT}", f"{expert}}}")
    spec, faults = pipeline.load_text(text.replace("fsdp: 4", f"fsdp: {16 // expert}"))
    assert spec is not None
    assert not [each for each in faults if each.is_error], faults
    return spec


def cost_of(experts: str, expert: int = 4) -> Cost:
    (plan,) = pipeline.compile_plans(spec_of(experts, expert))
    cost = stated_cost(plan)
    assert cost.step is not None
    assert cost.time is not None
    return cost


def seconds(cost: Cost) -> float:
    assert cost.time is not None
    return cost.time.step_seconds


@pytest.mark.parametrize("expert", [1, 2, 4, 8])
def test_even_experts_are_even(expert: int) -> None:
    """A balance of 1 is what a spec without one says."""
    plain, even = (
        cost_of("top 2 dropless", expert),
        cost_of("top 2 dropless balance 1 p99 1", expert),
    )
    assert plain.uneven is None
    assert even.uneven is not None
    assert (seconds(plain), plain.memory) == (seconds(even), even.memory)


def test_a_device_with_all_experts_has_its_share() -> None:
    plain, skewed = cost_of("top 2 dropless", 1), cost_of("top 2 dropless balance 3 p99 6", 1)
    assert skewed.uneven is not None
    assert (skewed.uneven.expected.load, skewed.uneven.p99.load) == (1, 1)
    assert seconds(plain) == seconds(skewed)


def test_more_uneven_takes_longer_and_more_memory() -> None:
    costs = [cost_of(f"top 2 dropless balance {mean} p99 2.5", 8) for mean in (1, 1.25, 1.5, 2)]
    times = [seconds(cost) for cost in costs]
    assert times == sorted(set(times))
    assert len({cost.memory.total.bytes for cost in costs}) == 1  # that of the percentile
    rare = [cost_of(f"top 2 dropless balance 1.25 p99 {p99}", 8) for p99 in (1.25, 2, 4)]
    assert len({seconds(cost) for cost in rare}) == 1  # that is expected
    sizes = [cost.memory.total.bytes for cost in rare]
    assert sizes == sorted(set(sizes))


def test_both_loads_cost_what_a_step_of_that_load_does() -> None:
    """The percentile of one spec is what another expects, whose mean it is."""
    cost, at_p99 = (cost_of(f"top 2 dropless balance {each} p99 2") for each in (1.5, 2))
    assert cost.uneven is not None
    assert at_p99.uneven is not None
    assert cost.uneven.p99 == at_p99.uneven.expected
    assert cost.uneven.expected.seconds == seconds(cost)
    assert cost.uneven.p99.memory_bytes == cost.memory.total.bytes


def test_the_model_computes_as_much() -> None:
    """FLOPs of all devices do not go by who has them; the share of the peak does."""
    plain, skewed = cost_of("top 2 dropless", 8), cost_of("top 2 dropless balance 2 p99 3", 8)
    assert skewed.flops == pytest.approx(plain.flops, rel=1e-3)
    assert plain.mfu is not None
    assert skewed.mfu is not None
    assert skewed.mfu * seconds(skewed) == pytest.approx(plain.mfu * seconds(plain), rel=1e-3)


def test_what_is_compiled_is_even() -> None:
    (plan,) = pipeline.compile_plans(spec_of("top 2 dropless balance 2 p99 3"))
    even, plain = stated_cost(evenly(plan)), cost_of("top 2 dropless")
    assert even.uneven is None
    assert (seconds(even), even.memory) == (seconds(plain), plain.memory)


@given(st.lists(st.integers(1, 50), min_size=2, max_size=7), st.data())
def test_the_load_of_a_device_spreads_as_that_of_a_sample(
    loads: list[int], data: st.DataObject
) -> None:
    """Over all ways to choose the experts of a device, as their source says."""
    held = data.draw(st.integers(1, len(loads)))
    groups = [sum(each) / held for each in itertools.combinations(loads, held)]
    shrunk = Balance(2, 2).on(held, len(loads)).mean - 1
    assert math.isclose(pvariance(groups), shrunk**2 * pvariance(loads), abs_tol=1e-9)


@pytest.mark.parametrize("expert", [1, 2, 4, 8])
def test_a_row_of_a_search_is_that_of_cost(expert: int) -> None:
    spec = spec_of("top 2 dropless balance 1.5 p99 3")
    keep = {"expert": (expert,)}
    question = asked(spec, spec.params, spec.targets[0], Choice("mesh", keep), Wanted())
    assert isinstance(question, Question)
    found = search(question)
    assert found.rows
    for row in found.rows:
        cost = stated_cost(found.plan(row))
        assert row.seconds == pytest.approx(seconds(cost), rel=1e-9)
        assert row.memory == cost.memory.total
        assert row.fits == cost.memory.fits


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("top 2 capacity 1 balance 1.2 p99 2", "with a capacity every expert has the same slots"),
        ("top 2 balance 1.2 p99 2", "with a capacity every expert has the same slots"),
        ("top 2 dropless balance 2 p99 1.5", "p99 more"),
        ("top 2 dropless balance 0.5 p99 1", "at least its even share"),
        ("top 2 dropless balance 1.5", "does not say how tokens go to experts"),
    ],
)
def test_what_cannot_be_is_refused(text: str, said: str) -> None:
    fault = parse_experts(text)
    assert isinstance(fault, SyntaxFault)
    assert said in fault.message
    assert fault.help


def test_both_spellings_say_it() -> None:
    text = TEXT.replace("EXPERTS", "top 2 dropless balance 1.3 p99 2").replace("EXPERT}", "4}")
    dsl, faults = formatted(SourceFile("spec.yaml", text), "dsl")
    assert not faults
    assert dsl is not None
    assert "experts top 2 dropless balance 1.3 p99 2" in dsl
    read, _ = pipeline.load_text(dsl, "spec.shard")
    assert read is not None
    assert read.step is not None
    assert read.step.experts is not None
    assert read.step.experts.balance == Balance(1.3, 2)
    assert str(read.step.experts) == "top 2 dropless balance 1.3 p99 2"


def test_cost_shows_both(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    text = TEXT.replace("EXPERTS", "top 2 dropless balance 1.5 p99 2").replace("EXPERT}", "4}")
    path.write_text(text)
    shown = CliRunner().invoke(cli, ["cost", str(path)]).stdout
    told = " ".join(shown.split())
    assert "a device has 2 of 8 experts" in told
    assert " at p99" in told
    made = CliRunner().invoke(cli, ["cost", str(path), "--format", "json"]).stdout
    data = json.loads(made)
    schema = json.loads(assets.schema_path("cost").read_text("utf-8"))
    jsonschema.Draft7Validator(schema).validate(data)
    uneven = data["uneven"]
    assert uneven["expected"]["step_s"] == data["time"]["step_s"]
    assert uneven["p99"]["memory_bytes"] == data["memory"]["total"]["bytes"]
    assert uneven["expected"]["step_s"] < uneven["p99"]["step_s"]


@pytest.mark.parametrize("experts", ["top 2 dropless balance 1.25 p99 2.5", "top 2 dropless"])
def test_a_search_counts_uneven_experts_as_cost_does(experts: str) -> None:
    spec, whole = spec_of(experts), cost_of(experts)
    found = Evaluator(spec, spec.params).cost(spec.targets[0])
    assert found is not None
    assert seconds(found) == pytest.approx(seconds(whole), rel=1e-9)
    assert found.memory.total == whole.memory.total
    assert (found.uneven is None) == (whole.uneven is None) == ("balance" not in experts)
    if found.uneven is not None and whole.uneven is not None:
        assert found.uneven.expected.load == pytest.approx(whole.uneven.expected.load)
        assert found.uneven.p99.load == pytest.approx(whole.uneven.p99.load)
