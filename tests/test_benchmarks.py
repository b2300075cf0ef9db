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
    {**ROWS[5], "id": "k", "global_batch": None, "tokens_per_step": "4M"},
]


def test_rows_that_say_too_little_are_null(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"rows": [*BAD, ROWS[5]]}), encoding="utf-8")
    measured_steps.main(path, is_json=True)
    told = json.loads(capsys.readouterr().out)
    assert [set(each) for each in told] == [{"id", "predicted_step_s", "baseline_step_s"}] * 14
    assert [each["id"] for each in told] == [None, None, *"abcdefghijk", 5]
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
