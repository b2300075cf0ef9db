"""The quick way to the cost of a mesh gives what `cost` gives."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.analysis.cost import Cost, cost_of
from shardspec.analysis.spec_step import stated_step
from shardspec.ir.spec import Mesh, MeshAxis, Spec, Target
from shardspec.ir.step import wire_bytes
from shardspec.search.ranking import Choice, Evaluator, Question, Ranking, Wanted, asked
from shardspec.search.variants import Candidate, size_text

EXAMPLES = "specs/examples"
#: Two kinds of layers of their own, a norm that no line reads, state that ZeRO splits.
TEXT = """
axes: {batch: 48, length: 16, embed: 32, mlp: 96, layers: 6, vocab: 128}
hardware: tpu v5e 4x4
mesh: {data: 4, fsdp: 2, tensor: 2}
rules: ["batch -> (data, fsdp)", mlp -> tensor, vocab -> tensor, embed -> fsdp, length -> none]
params: {"**/up": embed mlp, "**/down": mlp embed, table: vocab embed, "{**/,last_}norm": embed}
arrays:
  "layers_{0..2}/up": f32[32, 96]
  "layers_{0..2}/down": f32[96, 32]
  "layers_{0..2}/norm": f32[32]
  "extra_{0,1}/up": f32[32, 96]
  "extra_{0,1}/down": f32[96, 32]
  table: f32[128, 32]
  last_norm: f32[32]
activations: {residual: batch length embed}
state: {optimizer: same}
step:
  microbatches: 1
  remat: full
  program:
    - gather(tokens[batch length], "table") -> residual
    - residual, "layers_*/up" -> hidden
    - hidden, "layers_*/down" -> residual
    - residual, "extra_*/up" -> hidden
    - hidden, "extra_*/down" -> residual
    - residual, "table" -> logits
"""
KEPT = st.sampled_from(["next", "keep"])
BATCH = st.sampled_from(["batch -> (data, fsdp)", "batch -> (fsdp, tensor)", "batch -> data"])
EMBED = st.sampled_from(["embed -> (data, fsdp)", "embed -> (data, tensor)", "embed -> fsdp"])
STATES = st.sampled_from(["same", "zero1", "zero2"])
HARDWARE, MESH = "hardware: tpu v5e 4x4", "mesh: {data: 4, fsdp: 2, tensor: 2}"
RULES = TEXT.splitlines()[4]
SLICES = ["2 * tpu v5p 2x2x2", "2 * tpu v6e 2x4", "4 * tpu v4 2x2x1"]
MACHINES = [*SLICES, "2 * h100", "4 * 4 h100", "tpu v5e 4x4", "tpu v7x 2x2x2"]
SIZES = [(a, b, 16 // a // b) for a in (1, 2, 4, 8, 16) for b in (1, 2, 4, 8, 16) if a * b <= 16]


def spec_of(text: str, **changes: str) -> Spec:
    named = {name.replace("__", "."): value for name, value in changes.items()}
    spec, faults = pipeline.load_text(text, settings=named)
    assert spec is not None
    assert faults == ()
    return spec


def on(target: Target, *sizes: int) -> Target:
    """Return a target with a mesh of other sizes."""
    pairs = zip(target.mesh.names, sizes, strict=True)
    return replace(target, mesh=Mesh(tuple(MeshAxis(name, size) for name, size in pairs)))


def whole_cost(spec: Spec, target: Target) -> Cost:
    """Return what `shardspec cost` works out."""
    (plan,) = pipeline.compile_plans(spec, None, [target])
    stated = stated_step(plan)
    assert stated is not None
    return cost_of(plan, stated.step, tokens=stated.tokens)


def assert_same(quick: Cost | None, whole: Cost) -> None:
    assert quick is not None
    assert quick.step is not None
    assert whole.step is not None
    assert quick.memory.parts == whole.memory.parts
    assert quick.memory.host == whole.memory.host
    assert (quick.tokens, quick.flops) == (whole.tokens, whole.flops)
    assert quick.step.notes == whole.step.notes
    found, wanted = wire_bytes(quick.step.collectives), wire_bytes(whole.step.collectives)
    assert found == pytest.approx(wanted, abs=len(whole.step.collectives))
    assert quick.time is not None
    assert whole.time is not None
    assert quick.time.bound == whole.time.bound
    assert quick.time.notes == whole.time.notes
    assert [axis.mesh_axis for axis in quick.time.axes] == [a.mesh_axis for a in whole.time.axes]
    for name in ("step_seconds", "compute_seconds", "hbm_seconds", "mfu"):
        assert getattr(quick.time, name) == pytest.approx(getattr(whole.time, name), rel=1e-9)


@given(
    st.sampled_from(SIZES),
    st.sampled_from(["t5x", "ring"]),
    st.sampled_from(["same", "zero1", "zero2"]),
    st.sampled_from(["none", "full", "dots"]),
    st.sampled_from(["1", "4"]),
)
@settings(max_examples=40)
def test_figures_are_those_of_cost(
    sizes: tuple[int, int, int], order: str, state: str, remat: str, microbatches: str
) -> None:
    changes = {"state__optimizer": state, "step__remat": remat, "step__microbatches": microbatches}
    spec = spec_of(TEXT, policy__order=order, **changes)
    target = on(spec.targets[0], *sizes)
    assert_same(Evaluator(spec, spec.params).cost(target), whole_cost(spec, target))


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("llama-3-8b-long", (4, 16, 2)),
        ("mixtral-8x7b", (16, 4, 2)),
        ("t5-1.0-11b", (64, 8)),
        ("gemma-2-9b", (2, 8)),
    ],
)
def test_figures_of_real_models_are_those_of_cost(name: str, sizes: tuple[int, ...]) -> None:
    spec, _ = pipeline.load_path(f"{EXAMPLES}/{name}.yaml")
    assert spec is not None
    evaluator = Evaluator(spec, spec.params)
    assert len(evaluator._kinds) < 40
    for order in ("t5x", "ring"):
        own = replace(spec, policy=replace(spec.policy, order=order))
        target = on(spec.targets[0], *sizes)
        assert_same(evaluator.cost(target, order), whole_cost(own, target))


@pytest.mark.parametrize("machine", MACHINES)
@given(data=st.data())
@settings(max_examples=4)
def test_rows_of_a_search_are_those_of_cost(machine: str, data: st.DataObject) -> None:
    """Each candidate costs what its mesh costs written out, whichever came before it.

    Of one size on several slices, the meshes that cross them along other axes are all asked.
    """
    draw = data.draw
    rules = draw(st.permutations([draw(BATCH), "mlp -> tensor", draw(EMBED), "vocab -> tensor"]))
    text = TEXT.replace(RULES, f"rules: {rules!r}")
    text = text.replace("batch: 48", f"batch: {draw(st.sampled_from([4, 12, 48, 100]))}")
    text = text.replace(HARDWARE, f"hardware: {machine}")
    text = text.replace("optimizer: same", f"optimizer: {draw(STATES)}")
    text = f"policy: {{indivisible: {draw(KEPT)}}}\n{text}"
    spec = spec_of(text)
    choice = Choice("mesh,order,remat=none|full,microbatches=1|4")
    question = asked(spec, spec.params, spec.targets[0], choice)
    assert isinstance(question, Question)
    every = list(question.candidates())
    crossings: dict[tuple[int, ...], dict[Hashable, int]] = {}
    for at, each in enumerate(every):
        networks = tuple(axis.network for axis in each.mesh.axes)
        crossings.setdefault(tuple(each.mesh.sizes.values()), {}).setdefault(networks, at)
    most = max(map(len, crossings.values()))
    crossed = [found.values() for found in crossings.values() if len(found) == most]
    places = draw(st.sets(st.integers(0, len(every) - 1), min_size=1, max_size=2))
    wanted = {*draw(st.sampled_from(crossed)), *places, *(at + 1 for at in places)}
    ranking = Ranking(spec.params, Wanted())
    for place in sorted(wanted & set(range(len(every)))):
        assert_row(ranking, every[place], text)


def assert_row(ranking: Ranking, candidate: Candidate, text: str) -> None:
    """Compare a row with `cost` of the spec with the mesh and the rest of it written out."""
    mesh = ", ".join(f"{axis.name}: {size_text(axis)}" for axis in candidate.mesh.axes)
    changes = {f"step.{word}": value for word, value in candidate.variant.changes}
    written = text.replace(MESH, f"mesh: {{{mesh}}}")
    spec, faults = pipeline.load_text(
        written, settings={"policy.order": candidate.order, **changes}
    )
    assert spec is not None, faults
    row, whole = ranking.row(candidate), whole_cost(spec, spec.targets[0])
    assert (row is None) == (whole.time is None)
    if row is not None and whole.time is not None:
        assert row.seconds == pytest.approx(whole.time.step_seconds, rel=1e-9)
        assert row.time.mfu == pytest.approx(whole.time.mfu, rel=1e-9)
        taken = {each.mesh_axis: each.seconds for each in whole.time.axes}
        assert {each.mesh_axis: each.seconds for each in row.time.axes} == pytest.approx(taken)
        assert row.time.notes == whole.time.notes
        assert row.memory == whole.memory.total


@pytest.mark.parametrize("machine", ["tpu v5e 4x4", "2 * h100"])
@pytest.mark.parametrize("state", ["same", "zero1"])
@pytest.mark.parametrize(
    ("over", "count"),
    [("gather,remat,reduce,microbatches=4", 3 * 3 * 3 * 2), ("rule=mlp|embed,remat", 4 * 4 * 3)],
)
def test_what_variants_share_changes_none_of_them(
    machine: str, state: str, over: str, count: int
) -> None:
    """Layouts, the forward pass and what operations take are those that each has on its own."""
    spec = spec_of(TEXT.replace(HARDWARE, f"hardware: {machine}"), state__optimizer=state)
    question = asked(spec, spec.params, spec.targets[0], Choice(over))
    assert isinstance(question, Question)
    ranking, every = Ranking(spec.params, Wanted()), list(question.candidates())
    assert len(every) == len({str(each) for each in every}) == count
    for each in every:
        quick = ranking._evaluator(each).cost(each.target)
        assert_same(quick, whole_cost(each.spec, each.target))


def test_arrays_that_differ_by_their_path_are_not_one() -> None:
    """State of some layers lies in host memory, which the path says."""
    spec = spec_of(TEXT + 'memory: {"opt_state/**/layers_0/**": pinned_host}\n')
    target = on(spec.targets[0], 2, 4, 2)
    evaluator = Evaluator(spec, spec.params)
    assert len(evaluator._kinds) == len(spec.params)
    assert_same(evaluator.cost(target), whole_cost(spec, target))


def test_a_program_with_faults_costs_nothing() -> None:
    spec = spec_of(TEXT.replace('residual, "table" -> logits', "nothing -> logits"))
    evaluator = Evaluator(spec, spec.params)
    assert evaluator.flow.faults
    assert evaluator.cost(spec.targets[0]) is None
