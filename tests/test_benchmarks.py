"""What the benchmarks on measured rows take in, and give back: never a figure of theirs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks import measured_steps, models, t5_submeshes
from benchmarks.measured_steps import compiled, load, predicted

ROWS = {row["id"]: row for row in load()}


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama2-70b", 69.0),
        ("llama3.1-405b", 405.9),
        ("gpt3-175b", 174.6),
        ("mixtral-8x7b", 46.7),
        ("gemma3-27b", 27.0),
        ("llama4-scout-17b-16e", 107.8),
        ("llama4-maverick", 400.7),
        ("deepseek-v3", 671.0),
        ("Qwen3-235B-A22B", 235.1),
        ("gpt-oss-120b", 116.8),
        ("t5-1.1-xxl", 11.1),
        ("gemma2-9b", 9.2),
    ],
)
def test_dimensions_give_the_published_totals(name: str, billions: float) -> None:
    model = models.model_of({"model": name, "seq": 2048})
    assert model is not None
    assert model.parameters == pytest.approx(billions * 1e9, rel=0.01)


@pytest.mark.parametrize("scale", [16, 32, 64, 128, 256, 512, 1024])
def test_models_of_maxtext_are_as_large_as_they_are_called(scale: int) -> None:
    row = {"seq": 2048, "model_dims": {"global_parameter_scale": scale}}
    model = models.model_of(row)
    assert model is not None
    assert model.parameters == pytest.approx(scale * 1e9, rel=0.03)


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("Llama 3.1 405B", "llama3.1-405b"),
        ("meta-llama/Llama-3.1-405B-Instruct", "llama3.1-405b"),
        ("llama3_1_405b", "llama3.1-405b"),
        ("meta-llama/Meta-Llama-3-8B", "llama3-8b"),
        ("Llama-2-7b-hf", "llama2-7b"),
        ("Llama 4 Scout", "llama4-17b-16e"),
        ("GPT-3 175B", "gpt3-175b"),
        ("GPT-3 126M", "gpt3-126m"),
        ("Mixtral-8x22B", "mixtral-8x22b"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b"),
        ("google/gemma-2-27b-it", "gemma2-27b"),
        ("gemma4-26b-a4b", "gemma4-26b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek3-671b"),
        ("Qwen/Qwen3-235B-A22B", "qwen3-235b-a22b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("T5 v1.1 XXL", "t5-1.1-xxl"),
        ("google/t5-v1_1-small", "t5-1.1-small"),
        ("axlearn fuji-70B", "fuji-70b v2"),
        ("GPT-2", "gpt2-small"),
        ("gpt2-355m", "gpt2-medium"),
        ("MaxText 22B", "gpt3-22b"),
    ],
)
def test_names_are_known_as_people_spell_them(name: str, same: str) -> None:
    found = models.dims_of({"model": name})
    assert found is not None
    assert found == models.dims_of({"model": same})


@pytest.mark.parametrize("name", ["gpt2-14b", "llama", "t5-11b", "maxtext-48b", "phi-4", "", "a/"])
def test_other_names_are_not(name: str) -> None:
    assert models.dims_of({"model": name}) is None


def test_a_machine_is_known_as_people_spell_it() -> None:
    own = {"chips": 256, "mesh": {"ici_fsdp": 256}}
    machines = [
        models.machine_of({**own, "hardware": name})
        for name in ("tpu v6e", "TPU v6e", "v6e", "v6e-256", "trillium")
    ]
    assert machines[0] is not None
    assert set(map(repr, machines)) == {repr(machines[0])}
    nodes = {"chips": 64, "mesh": {"dcn_fsdp": 8, "ici_fsdp": 8}}
    assert models.machine_of({**nodes, "hardware": "NVIDIA H100"}) == models.machine_of(
        {**nodes, "hardware": "gpu h100-80g x8"}
    )


def test_a_batch_of_each_device_is_enough() -> None:
    row = {**ROWS[5], "global_batch": None, "tokens_per_step": None}
    assert models.batch_of({**row, "per_device_batch": 0.5}) == ROWS[5]["chips"] // 2
    assert models.batch_of({**row, "per_device_batch": 0.001}) is None
    assert models.batch_of({**row, "per_device_batch": math.nan}) is None


def test_maxtext_by_its_name_is_its_default_model() -> None:
    """As it was at the commit that published the tables by size."""
    named, scaled = (
        models.model_of({"seq": 2048, **row})
        for row in ({"model": "MaxText 64B"}, {"model_dims": {"global_parameter_scale": 64}})
    )
    assert named == scaled
    assert named is not None
    (stack,) = named.stacks
    assert (named.embed, stack.count, stack.heads, stack.mlp) == (10240, 64, 32, 32768)


def test_dimensions_of_a_row_win() -> None:
    row = {"model": "llama2-7b", "seq": 2048, "model_dims": {"num_layers": 16, "ffn_dim": 4096}}
    found = models.dims_of(row)
    assert found is not None
    assert (found["layers"], found["mlp"], found["embed"]) == (16, 4096, 4096)


def test_every_model_that_is_known_says_from_where() -> None:
    data = json.loads((models.DATA / "model_dims.json").read_text(encoding="utf-8"))
    assert all(dims["source"] for dims in data["models"].values())
    assert all(row["source"].strip() for row in ROWS.values())


@pytest.mark.parametrize("row", [4, 18, 20, 23, 30, 42, 53, 105, 133, 143])
def test_rows_go_the_way_of_cost(row: int) -> None:
    found = compiled(ROWS[row])
    assert found is not None
    assert found.seconds is not None
    assert 0.5 < predicted(found) / found.seconds < 2
    assert found.plan.mesh.device_count == ROWS[row].get("devices", ROWS[row]["chips"])


def test_latent_attention_and_its_experts() -> None:
    row = {
        "model": "deepseek3-671b",
        "hardware": "tpu7x",
        "topology": "4x4x8",
        "chips": 128,
        "mesh": {"ici_fsdp": 256},
        "global_batch": 2048,
        "seq": 4096,
        "step_s": 30.0,
        "precision": "bf16",
        "remat": "custom",
    }
    found = compiled(row)
    assert found is not None
    own = found.model.flops_per_sequence * 2048
    assert found.stated.step.flops * 256 == pytest.approx(own * 4 / 3, rel=0.05)


BAD: list[Any] = [
    None,
    {},
    {"id": "a", "model": "nobody's"},
    {**ROWS[5], "id": "b", "mesh": None},
    {**ROWS[5], "id": "c", "mesh": {"ici_fsdp": 3}},
    {**ROWS[5], "id": "d", "mesh": {"ici_fsdp": -256}},
    {**ROWS[5], "id": "e", "chips": "many"},
    {**ROWS[5], "id": "f", "global_batch": 1 << 60},
    {**ROWS[5], "id": "g", "hardware": "abacus"},
    {**ROWS[5], "id": "h", "hardware": 7, "seq": [1]},
    {**ROWS[5], "id": "i", "model": "no", "model_dims": {"global_parameter_scale": 48}},
    {**ROWS[5], "id": "j", "model_dims": {"num_layers": "x", "hidden_dim": {}}, "model": "no"},
    {**ROWS[5], "id": "k", "global_batch": None, "per_device_batch": "4", "tokens_per_step": "4M"},
    {**ROWS[5], "id": "l", "hardware": "tpu v9"},
    {**ROWS[5], "id": "m", "hardware": "gpu z100 x8"},
    {**ROWS[5], "id": "n", "mesh": {"ici_fsdp": 128, "ici_pipeline": 2}},
    {**ROWS[5], "id": "o", "mesh": {"a b -> c": 256}},
    {**ROWS[5], "id": "p", "topology": "16 * {"},
    {**ROWS[5], "id": "q", "note": "grad accumulation 3"},
]


def test_rows_that_say_too_little_are_null(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"rows": [*BAD, ROWS[5]]}), encoding="utf-8")
    measured_steps.main(path, is_json=True)
    told = json.loads(capsys.readouterr().out)
    assert [set(each) for each in told] == [{"id", "predicted_step_s", "baseline_step_s"}] * 20
    assert [each["id"] for each in told] == [None, None, *"abcdefghijklmnopq", 5]
    assert all(each["predicted_step_s"] is None for each in told[:-1])
    assert told[-1]["predicted_step_s"] > 0 < told[-1]["baseline_step_s"]


def test_the_baseline_does_not_know_the_model() -> None:
    known = [found for found in map(compiled, (ROWS[38], ROWS[30], ROWS[53])) if found]
    own = measured_steps.baseline(known[0], known)
    changed = [known[0]._replace(seconds=1e9), *known[1:]]
    assert own == measured_steps.baseline(changed[0], changed) != known[0].seconds


@pytest.fixture(scope="module")
def submeshes() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(t5_submeshes.DATA.read_text(encoding="utf-8"))["rows"]
    return rows


def test_a_row_of_a_submesh(submeshes: list[dict[str, Any]]) -> None:
    of_11b = {(r["submesh"], r["gbs"]): r for r in submeshes if r["microbatches"] == 4}
    order = [
        t5_submeshes.predicted(of_11b[submesh, 896]).tokens_per_s
        for submesh in ("4x2x2x1", "2x4x2x1", "2x2x4x1")
    ]
    assert order == sorted(order, reverse=True)
    uneven = t5_submeshes.predicted(of_11b["4x2x2x1", 928])
    assert uneven.tokens_per_s < order[0]


def test_68b_is_as_large_as_it_is_called(submeshes: list[dict[str, Any]]) -> None:
    row = next(row for row in submeshes if row["model"] == "68b")
    plan = t5_submeshes.cost_of_row(row).plan
    assert sum(math.prod(each.param.shape) for each in plan.arrays) == pytest.approx(68e9, rel=0.02)


def test_pairs_in_order() -> None:
    assert t5_submeshes.in_order([(1, 1), (2, 2), (3, 2.5), (2.5, 3)]) == (5, 6)


def test_the_fit_finds_what_was_planted() -> None:
    np = pytest.importorskip("numpy")
    from benchmarks.fit_constants import NAMES, Parts, fitted

    draw = np.random.default_rng(0)
    planted = [1.2, 2.5, 6.0, 0.4]
    row = compiled(ROWS[5])
    assert row is not None
    rows = []
    for slopes in draw.uniform(0, 1, (30, 4)) * np.array([0.2, 0.1, 0.05, 0.3]):
        fixed = 1 - float(slopes @ planted)
        rows.append(Parts(row, fixed, tuple(map(float, slopes)), 0.5))
    assert len(NAMES) == 4
    assert fitted(rows) == pytest.approx(planted, rel=1e-6)
