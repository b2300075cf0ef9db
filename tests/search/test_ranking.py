"""What a search finds: laws that every search keeps to."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardspec
from shardspec import pipeline
from shardspec.report.search import _seen, checked, phrase
from shardspec.search.ranking import (
    By,
    Choice,
    Evaluator,
    Found,
    Question,
    Ranking,
    Share,
    Wanted,
    asked,
    is_tie,
    pareto,
    parts_changed,
    search,
)
from shardspec.search.variants import Candidate, Freedom, Refusal, parse_over, variants
from tests.analysis.test_step_stages import TRAIN
from tests.search.specs import TEXT, question, spec_of
from tests.search.test_evaluate import assert_same, whole_cost

SPEC = spec_of()
_ROWS = search(question(SPEC, freedom=Freedom(order=False))).rows


@pytest.fixture(scope="module")
def found() -> Found:
    return search(question(SPEC))


def test_the_best_is_no_slower_than_any_candidate(found: Found) -> None:
    best = found.rows[0]
    evaluator = Evaluator(SPEC, SPEC.params)
    seen = 0
    for candidate in found.question.candidates():
        cost = evaluator.cost(candidate.target, candidate.order)
        assert cost is not None
        assert cost.time is not None
        assert best.seconds <= cost.time.step_seconds or cost.memory.fits is False
        seen += 1
    assert seen == found.ranking.seen


def test_each_row_is_what_cost_says(found: Found) -> None:
    for row in found.rows[:6]:
        spec = row.candidate.spec
        whole = whole_cost(spec, spec.targets[0])
        assert_same(found.cost(row), whole)
        assert whole.time is not None
        assert row.seconds == pytest.approx(whole.time.step_seconds, rel=1e-9)
        assert row.memory == whole.memory.total
        assert row.tokens_per_s == pytest.approx(whole.tokens_per_s, rel=1e-9)


def test_rows_are_in_order_and_stand_for_their_placements(found: Found) -> None:
    seconds = [row.seconds for row in found.rows if row.fits is not False]
    assert seconds == sorted(seconds)
    assert sum(row.placements for row in found.rows) == found.ranking.seen
    assert len({tuple(row.candidate.mesh.sizes.values()) for row in found.rows}) == len(found.rows)


def test_a_search_is_the_same_each_time(found: Found) -> None:
    again = search(question(SPEC))
    assert [str(row.candidate) for row in again.rows] == [str(row.candidate) for row in found.rows]


def test_changes_are_the_difference(found: Found) -> None:
    assert found.today is not None
    for row in found.rows:
        more = sum(each.more for each in parts_changed(found.today, row))
        assert more == pytest.approx(row.seconds - found.today.seconds, abs=1e-12)
        sent = found.sends(row)
        assert all(each.before != each.after for each in sent)
        if row.candidate == found.today.candidate:
            assert sent == ()


@given(st.permutations(range(8)))
@settings(max_examples=20)
def test_nothing_on_the_front_is_beaten(order: list[int]) -> None:
    chosen = [_ROWS[at] for at in order]
    front = pareto(chosen)
    points = [(row.seconds, row.memory.bytes, row.chips) for row in front]
    for point in points:
        for other in points:
            assert point == other or any(a < b for a, b in zip(point, other, strict=True))
    for row in chosen:
        mine = (row.seconds, row.memory.bytes, row.chips)
        assert any(all(a <= b for a, b in zip(point, mine, strict=True)) for point in points)


def test_ties_are_within_what_is_known() -> None:
    first = _ROWS[0]
    near = replace(first.time, compute_seconds=first.time.compute_seconds + first.seconds * 0.05)
    far = replace(first.time, compute_seconds=first.time.compute_seconds + first.seconds * 0.2)
    assert is_tie(first, replace(first, time=near))
    assert is_tie(replace(first, time=near), first)
    assert not is_tie(first, replace(first, time=far))


def test_constraints_hold() -> None:
    kept = search(question(SPEC, freedom=Freedom(keep={"tensor": (2, 4)})))
    assert {row.candidate.mesh.sizes["tensor"] for row in kept.rows} == {2, 4}
    wide = search(question(SPEC, wanted=Wanted(per_device_batch=8)))
    assert wide.rows
    assert wide.ranking.refused
    assert all(row.share is not None and row.share.sequences >= 8 for row in wide.rows)
    assert search(question(SPEC, wanted=Wanted(max_chips=8))).rows == ()


def test_rows_of_few_sequences_are_refused_and_no_others() -> None:
    def meshes(least: int | None) -> set[str]:
        found = search(question(SPEC, wanted=Wanted(per_device_batch=least)))
        return {str(row.candidate.mesh.sizes) for row in found.rows}

    every = search(question(SPEC)).rows
    sequences = {row.share.sequences for row in every if row.share is not None}
    assert len(sequences) > 2
    for least in sequences:
        wide = {
            str(row.candidate.mesh.sizes)
            for row in every
            if row.share is not None and row.share.sequences >= least
        }
        assert meshes(int(least)) == wide


def test_what_does_not_fit_comes_last_or_not_at_all() -> None:
    text = TEXT.replace("embed: 512", "embed: 65536").replace("512", "65536")
    text = text.replace("mlp: 2048", "mlp: 262144").replace("2048", "262144")
    spec = spec_of(text)
    found = search(question(spec))
    assert found.rows
    assert all(row.fits is False for row in found.rows)
    memory = [row.memory.bytes for row in found.rows]
    assert memory == sorted(memory)
    assert search(question(spec, wanted=Wanted(fits=True))).rows == ()


def test_fewer_candidates_than_there_are_is_said() -> None:
    found = search(question(SPEC, most=3))
    assert found.left
    assert found.ranking.seen == 3
    assert not search(question(SPEC)).left


def test_an_interrupt_keeps_what_is_known() -> None:
    def stop(number: int) -> None:
        if number == 5:
            raise KeyboardInterrupt

    found = search(question(SPEC), stop)
    assert found.is_stopped
    assert found.rows
    assert found.ranking.seen == 5


@pytest.mark.parametrize(
    ("over", "count"),
    [
        ("mesh", 1),
        ("remat", 3),
        ("state", 3),
        ("microbatches=1|2", 2),
        ("remat=full|dots,state=same|zero1", 4),
        ("rules=preset:fsdp", 2),
    ],
)
def test_variants_are_all_combinations(over: str, count: int) -> None:
    words = parse_over(over)
    assert not isinstance(words, Refusal)
    found = variants(SPEC, words)
    assert not isinstance(found, Refusal)
    assert len(found) == count
    assert found[0].changes == ()
    assert found[0].spec == SPEC
    assert len({str(each) for each in found}) == count


def test_a_variant_costs_what_its_spec_does() -> None:
    words = parse_over("remat=dots,state=zero1,microbatches=2")
    assert not isinstance(words, Refusal)
    made = variants(SPEC, words)
    assert not isinstance(made, Refusal)
    written = TEXT.replace("remat: full", "remat: dots\n  microbatches: 2")
    written = written.replace("optimizer: same", "optimizer: zero1")
    theirs = spec_of(written)
    last = made[-1].spec
    assert (last.step, last.state) == (theirs.step, theirs.state)
    plans = pipeline.compile_plans(theirs)
    assert plans
    cost = Evaluator(last, last.params).cost(theirs.targets[0])
    assert_same(cost, whole_cost(theirs, theirs.targets[0]))


def test_padding_costs_what_the_spec_does() -> None:
    """On each mesh the sizes are those that `policy: {indivisible: pad}` gives it."""
    text = TEXT.replace("vocab: 4096", "vocab: 4099").replace("table: f32[4096", "table: f32[4099")
    spec, _ = pipeline.load_text(text)
    assert spec is not None
    words = parse_over("indivisible")
    assert not isinstance(words, Refusal)
    made = variants(spec, words)
    assert not isinstance(made, Refusal)
    assert [each.changes for each in made] == [(), (("indivisible", "pad"),)]
    ranking = Ranking(spec.params, Wanted())
    for tensor, fsdp in ((4, 2), (8, 2), (2, 4)):
        sizes = f"data: rest, fsdp: {fsdp}, tensor: {tensor}"
        target = spec_of(TEXT.replace("data: rest, fsdp: 2, tensor: 4", sizes)).targets[0]
        row = ranking.row(Candidate(target, "t5x", made[1]))
        theirs = replace(made[1].spec, targets=(target,))
        (plan,) = pipeline.compile_plans(theirs, spec.params)
        padded = plan["table"].param.shape[0]
        assert padded % tensor == 0
        assert 4099 < padded < 4099 + tensor
        written = text.replace("4099", f"{padded}").replace("data: rest, fsdp: 2, tensor: 4", sizes)
        cost = whole_cost(spec_of(written), target)
        assert row is not None
        assert row.memory == cost.memory.total
        assert cost.time is not None
        assert row.time.step_seconds == pytest.approx(cost.time.step_seconds)


@pytest.mark.parametrize(
    "over",
    [
        "",
        "meshes",
        "mesh=2",
        "rules",
        "rules=preset:none",
        "microbatches=0",
        "state=zero9",
        "indivisible=keep",
    ],
)
def test_what_cannot_be_chosen_is_refused_with_a_way_out(over: str) -> None:
    words = parse_over(over)
    found = words if isinstance(words, Refusal) else variants(SPEC, words)
    assert isinstance(found, Refusal)
    assert found.message
    assert found.help


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TEXT[: TEXT.index("step:")], "does not say what a step computes"),
        (TEXT.replace('"**/up" -> hidden', "nothing -> hidden"), "`step:` cannot be read"),
    ],
)
def test_a_spec_that_says_too_little_is_refused(text: str, said: str) -> None:
    spec = spec_of(text.replace("nothing -> hidden", '"**/up" -> hidden'))
    if "nothing" in text:
        loaded, _ = pipeline.load_text(text)
        assert loaded is not None
        spec = loaded
    refusal = question(spec).refusal()
    assert refusal is not None
    assert said in refusal.message
    assert refusal.help


def test_python_finds_what_the_command_line_does() -> None:
    found = shardspec.loads(TEXT).search(keep={"tensor": [2, 4]}, over="mesh", top=2)
    assert found.best is not None
    assert found.today is not None
    assert found.best.candidate.mesh.sizes["tensor"] in (2, 4)
    assert str(found).splitlines()[0].startswith("<string>   slice: TPU v5e 4x4, 16 chips")
    assert repr(found).startswith("Search(")
    with pytest.raises(ValueError, match="cannot be chosen"):
        shardspec.loads(TEXT).search(over="shape")
    with pytest.raises(shardspec.ShardspecError):
        shardspec.loads(TEXT).search(target="nowhere")


def test_python_scales_by_a_measured_step() -> None:
    spec = shardspec.loads(TEXT)
    before = spec.search(top=2)
    assert before.today is not None
    after = spec.search(top=2, measured=2 * before.today.seconds)
    for one, other in zip(before.rows, after.rows, strict=True):
        assert other.candidate == one.candidate
        assert other.seconds == pytest.approx(2 * one.seconds)
    assert "all times are x 2" in str(after)
    elsewhere = spec.search(target="two", measured={"slice": 2 * before.today.seconds})
    plain = spec.search(target="two")
    assert elsewhere.rows[0].seconds == pytest.approx(2 * plain.rows[0].seconds)
    for wrong in (0, -1.0, float("nan"), {}, {"slice": 1.0, "two": 1.0}):
        with pytest.raises(ValueError, match=r"seconds|one step"):
            spec.search(measured=wrong)
    with pytest.raises(shardspec.ShardspecError):
        spec.search(measured={"nowhere": 1.0})


def test_a_microbatch_that_does_not_divide_is_passed_over() -> None:
    """Sixty-four sequences in 32 microbatches are two at a time: for four devices too few."""
    found = shardspec.loads(TEXT).search(over="mesh,microbatches=1|32", top=60)
    assert found.passed["SHD314"]
    for each in found.shown:
        row = each.row
        parts = dict(row.candidate.variant.changes).get("microbatches", "1")
        sizes = row.candidate.mesh.sizes
        assert 64 // int(parts) % (sizes["data"] * sizes["fsdp"]) == 0
    assert found.faults == ()
    text = TEXT.replace("remat: full", "microbatches: 32")
    today = shardspec.loads(text, levels={"SHD3": "allow"}).search(over="mesh")
    assert today.faults == ()
    today = shardspec.loads(text).search(over="mesh")
    assert today.faults == ("SHD314",)
    assert "today's mesh has errors itself, and so may rows: SHD314" in str(today)


def test_sequences_that_several_devices_compute_are_told() -> None:
    """Where replication is meant, a mesh that does not divide the batch is slow, and says so."""
    text = TEXT.replace("batch -> (data, fsdp)", "batch -> (data, fsdp) | data | none")
    text = text.replace("batch: 64", "batch: 6")
    found = shardspec.loads(text).search(over="mesh", keep={"tensor": [1, 2]}, top=60)
    copies = {row.candidate.mesh_text: row.share for row in found.rows}
    for row in found.rows:
        sizes = row.candidate.mesh.sizes
        whole = sizes["data"] * sizes["fsdp"]
        ways = max(each for each in (1, sizes["data"], whole) if 6 % each == 0)
        assert row.share == Share(6 / ways, whole // ways), copies
    assert "16 devices compute the same sequences" in str(found)


def test_axes_of_other_targets_are_known() -> None:
    """`replica` is an axis of `two` alone: that today's mesh of `slice` lacks it is no error."""
    text = TEXT.replace("batch -> (data, fsdp)", "batch -> (replica, data, fsdp)")
    spec = spec_of(text.replace("data: 2 @ dcn", "replica: 2 @ dcn"))
    assert shardspec.loads(text.replace("data: 2 @ dcn", "replica: 2 @ dcn")).findings() == ()
    assert checked(search(question(spec))).faults == ()


def test_memory_without_state_is_told() -> None:
    table = checked(search(question(spec_of(TEXT.replace("state: {optimizer: same}", "")))))
    assert "memory is without optimizer state" in str(table)
    assert "without optimizer state" not in str(checked(search(question(SPEC))))


def test_rows_are_ranked_by_expected_throughput() -> None:
    """A row that is a little faster and may not fit comes behind one that surely fits."""
    sure, fast = replace(_ROWS[0], fits_probability=0.97), replace(_ROWS[0], fits_probability=0.6)
    fast = replace(fast, time=replace(fast.time, compute_seconds=fast.time.compute_seconds * 0.9))
    assert fast.seconds < sure.seconds
    assert fast.expected_pace > sure.expected_pace
    plain = replace(sure, fits_probability=None)
    assert plain.expected_pace == plain.pace


PIPELINE = """
shardspec: 1
axes: {batch: 64, length: 128, embed: 256, mlp: 1024, layers: 8}
hardware: tpu v5p 2x2x2
mesh: {stage: 2, data: 2, tensor: 2}
rules: [batch -> data, layers -> stage, mlp -> tensor, "embed, length -> none"]
params: {"**/up": embed mlp, "**/down": mlp embed}
scan: {layers/**: layers@0}
arrays: {layers/up: "f32[8, 256, 1024]", layers/down: "f32[8, 1024, 256]"}
activations: {residual: batch length embed}
step: {program: ['residual, "layers/up" -> hidden', 'hidden, "layers/down" -> residual']}
"""


def test_schedules_and_stages_are_searched() -> None:
    spec, faults = pipeline.load_text(PIPELINE)
    assert spec is not None
    assert not faults
    found = shardspec.loads(PIPELINE).search(over="schedule,stages,microbatches=4|8")
    rows = found.found.rows
    assert {row.candidate.mesh.sizes["tensor"] for row in rows} == {2}
    assert {row.candidate.mesh.sizes["stage"] for row in rows} == {1, 2, 4}
    schedules = {str(row.candidate.spec.step.pipeline) for row in rows if row.candidate.spec.step}
    assert schedules == {"None", "1f1b", "interleaved(2)", "zero-bubble"}
    deep = [row for row in rows if row.candidate.mesh.sizes["stage"] == 4]
    waits = {str(row.candidate.variant): row.time.waits_seconds for row in deep}
    assert waits["microbatches=8 schedule=zero-bubble"] < waits["microbatches=8 schedule=1f1b"]
    assert waits["microbatches=8 schedule=1f1b"] < waits["microbatches=4 schedule=1f1b"]
    refused = variants(SPEC, {"schedule": ()})
    assert isinstance(refused, Refusal)


def test_the_text_of_a_candidate_is_its_mesh_when_a_spec_has_it(found: Found) -> None:
    for row in found.rows:
        candidate = row.candidate
        parts = re.findall(r"(\w+)=(.*?)(?= \w+=|$)", candidate.mesh_text)
        assert [name for name, _ in parts] == list(candidate.mesh.names)
        mesh = ", ".join(f"{name}: {size}" for name, size in parts)
        text = re.sub(r"mesh: \{data: rest, .*?\}", f"mesh: {{{mesh}}}", TEXT)
        assert spec_of(text).targets[0].mesh.sizes == candidate.mesh.sizes


def test_money_and_tokens_of_a_row_go_by_its_time(found: Found) -> None:
    for row in found.rows:
        assert row.tokens_per_s is not None
        assert row.tokens_per_s * row.seconds == pytest.approx(row.tokens)
        assert row.pace * (row.tokens or 1) == pytest.approx(row.seconds)
        assert row.dollars_per_step is None
        priced = replace(row, dollars_per_hour=36.0)
        assert priced.dollars_per_step == pytest.approx(36.0 * row.seconds / (60 * 60), rel=1e-12)
        assert replace(row, fits_probability=0.5).expected_pace == pytest.approx(2 * row.pace)
        assert sum(row.parts.values()) == pytest.approx(row.seconds)
        assert row.chips == 16


COUNTS = {
    "too_large": "not fit",
    "refused": "have too few sequences",
    "misplaced": "cannot lie on their machine",
    "unlinked": "no speed is known",
}


@given(st.fixed_dictionaries({name: st.sampled_from((0, 1, 7, 1234)) for name in COUNTS}))
@settings(max_examples=20)
def test_a_search_says_what_became_of_every_candidate(counts: dict[str, int]) -> None:
    """Each count that is not zero has its sentence, and no other has one."""
    found = search(question(SPEC, freedom=Freedom(order=False)))
    for name, count in counts.items():
        setattr(found.ranking, name, count)
    said = _seen(found, 3).split("; ")
    assert said[0] == f"{found.ranking.seen} candidates"
    assert f"3 of {len(found.rows)} rows shown" in said
    for name, words in COUNTS.items():
        sentences = [each for each in said if words in each]
        assert len(sentences) == (counts[name] > 0)
        assert all(f"{counts[name]:,}" in each for each in sentences)


@pytest.mark.parametrize(
    ("text", "message", "way_out"),
    [
        (re.sub(r"(?s)step:.*", "", TEXT), "what a step computes", "step"),
        (TEXT.replace("hardware: tpu v5e 4x4", ""), "mesh without a machine", "hardware:"),
        (re.sub(r"(?s)arrays:.*?activ", "activ", TEXT), "lists no arrays", "manifest:"),
    ],
)
def test_a_refusal_says_what_is_wrong_and_then_a_way_out(
    text: str, message: str, way_out: str
) -> None:
    spec, _ = pipeline.load_text(text)
    assert spec is not None
    machine = SPEC.targets[0].hardware
    assert machine is not None
    asked = replace(question(SPEC), spec=spec, params=spec.params, target=spec.targets[0])
    refusal = asked.refusal()
    assert refusal is not None
    assert message in refusal.message
    assert way_out in refusal.help


def test_the_phrase_of_a_row_has_the_sign_of_what_changes(found: Found) -> None:
    assert found.today is not None
    for row in found.rows:
        said = phrase(found.today, row)
        if row.candidate == found.today.candidate:
            assert said == "this is today's"
            continue
        more = {each.name: each.more for each in parts_changed(found.today, row)}
        for sign, name in re.findall(r"([+-])[\d.]+ [^ ]+ (\w+)", said):
            assert (more[name] > 0) == (sign == "+"), said
        sizes = re.findall(r"([+-])[\d.]+ [KMG]?i?B", said)
        grown = row.memory.bytes - found.today.memory.bytes
        assert all((sign == "+") == (grown > 0) for sign in sizes)


SERVED = """
axes:
  {batch: 64, length: 1, layers: 4, cache_length: 4096, embed: 1024, heads: 8, kv_heads: 8, kv: 128}
hardware: tpu v5e 2x4
mesh: {data: 2, tensor: 4}
rules:
  - batch -> data
  - heads, kv_heads -> tensor
  - embed, length, cache_length, layers, kv -> none
params:
  query: layers embed heads kv
  "{key,value}": layers embed kv_heads kv
  out: layers heads kv embed
arrays:
  "{query,key,value}": bf16[4, 1024, 8, 128]
  out: bf16[4, 8, 128, 1024]
caches: {"cache/{key,value}": "bf16[layers batch cache_length kv_heads kv]"}
activations: {residual: batch length embed, query: batch length heads kv}
step: {extends: decode}
"""


def served(by: By, wanted: Wanted | None = None) -> Found:
    spec = spec_of(SERVED)
    choice = Choice("batch=16|64|128", by=by)
    found = asked(spec, spec.params, spec.targets[0], choice, wanted)
    assert isinstance(found, Question)
    return search(found)


def test_a_step_that_serves_is_ranked_by_latency_tokens_or_dollars_of_a_token() -> None:
    prices = Wanted(prices={"v5e": 1.2})
    by_time, by_latency, by_cost = (
        served(by, prices).rows for by in get_args(By) if by != "memory"
    )
    tokens = [row.tokens_per_s or 0 for row in by_time]
    assert tokens == sorted(tokens, reverse=True)
    assert [row.seconds for row in by_latency] == sorted(row.seconds for row in by_latency)
    dollars = [row.dollars_per_token or 0 for row in by_cost]
    assert dollars == sorted(dollars)
    assert by_time[0].tokens == 128
    assert by_latency[0].tokens == 16


def test_a_step_may_take_no_longer_than_the_latency() -> None:
    every = served("time").rows
    bound = sorted(row.seconds for row in every)[1]
    found = served("time", Wanted(latency=bound))
    assert {row.seconds for row in found.rows} == {s.seconds for s in every if s.seconds <= bound}
    assert found.ranking.too_slow == len(every) - 2
    assert found.rows[0].tokens == max(row.tokens or 0 for row in found.rows)


def test_caches_have_as_many_sequences_as_the_batch() -> None:
    size = {row.tokens: row.memory.bytes for row in served("time").rows}
    cache = 2 * 4 * 4096 * 2 * 128 * 2 // 2  # of two arrays on a device, for one sequence
    assert size[128] - size[64] == pytest.approx(64 * cache, rel=0.01)
    assert size[64] - size[16] == pytest.approx(48 * cache, rel=0.01)


def test_what_does_not_fit_is_said_of_a_schedule() -> None:
    text = TRAIN.replace("mesh:", "hardware: tpu v5p 2x2x2\nmesh:")
    text = text.replace("embed: 32, mlp: 64", "embed: 32768, mlp: 131072")
    text = text.replace("[8, 32, 64]", "[8, 32768, 131072]").replace(
        "[8, 64, 32]", "[8, 131072, 32768]"
    )
    spec = spec_of(text.replace("[32, 128]", "[32768, 128]"))
    found = asked(spec, spec.params, spec.targets[0], Choice("schedule=1f1b|zero-bubble"))
    assert isinstance(found, Question)
    lines = [line for line in str(checked(search(found))).splitlines() if "DOES NOT FIT" in line]
    assert any("DOES NOT FIT (1f1b, stage" in line for line in lines), lines
    assert any("DOES NOT FIT (zero-bubble, stage" in line for line in lines), lines


@pytest.mark.parametrize(
    ("name", "over"),
    [
        ("", "mesh,state,remat=none|dots|logits,microbatches=1|4,gather=step,reduce=step"),
        ("", "roles=sequence|fsdp,remat=none,indivisible,dtype"),
        ("", "mesh,rules=preset:fsdp|preset:megatron,offload,remat,batch"),
        ("llama-3-70b-pipeline", "mesh,schedule=1f1b,remat=none|full,microbatches=8"),
        ("mixtral-8x7b", "mesh,remat,gather,microbatches=1|2"),
    ],
)
def test_a_row_is_the_same_whatever_was_looked_at_before(name: str, over: str) -> None:
    """Variants share programs, layouts and arrays as far as none of these goes by what differs."""
    uneven = {"step.experts": "top 2 dropless balance 1.3 p99 2"} if "mixtral" in name else {}
    path = f"specs/examples/{name}.yaml"
    spec = pipeline.load_path(path, settings=uneven)[0] if name else SPEC
    assert spec is not None
    asks = asked(spec, spec.params, spec.targets[1] if name else spec.targets[0], Choice(over))
    assert isinstance(asks, Question), asks
    every = list(asks.candidates())
    ranking = Ranking(spec.params, Wanted())
    rows = [ranking.row(each) for each in every]
    assert None not in rows
    assert len(ranking._evaluators) > 4
    for at in range(0, len(every), 1 + len(every) // 40):
        assert rows[at] == Ranking(spec.params, Wanted()).row(every[at]), every[at]
