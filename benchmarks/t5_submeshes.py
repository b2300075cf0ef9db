"""Measured throughputs of T5X on TPU v4 by submesh, beside what `cost` predicts of the same specs.

    python benchmarks/t5_submeshes.py            # the table, and how well it is ordered
    python benchmarks/t5_submeshes.py --json     # a prediction for each row

11B is the T5 1.0 11B of the examples with its step; weights and activations lie by T5X's defaults,
`t5x/1d`, and nothing is computed twice: with that, 576 sequences without microbatches are near
what fits, and 640 ran out of memory. Gradients are summed in f32, as T5X's parameters are. A
microbatch that the data axis does not divide is filled up, as XLA does.

68B has no published sizes. Stated here: a decoder alone, embedding 8,192, 64 heads of 128, a gated
MLP of 32,768, 64 layers, vocabulary 32,128, sequences twice as long as the table says, all of them
counted. Its step states its norms, too, whose results are 8,192 wide and whole on every device:
libtpu keeps them for the backward pass. (The T5 example does not; its embedding is 1,024.)

Beside it stand two simpler models of the same step. One knows only how large the axes of a mesh
are; the other is a textbook: all FLOPs at half of the peak, rings over one link.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import shardspec  # noqa: E402
from shardspec.analysis.cost import Cost, cost_of  # noqa: E402
from shardspec.analysis.spec_step import stated_step  # noqa: E402

DATA = ROOT / "benchmarks" / "data" / "t5_submeshes.json"
_11B = f"""shardspec: 1
extends: ["{ROOT}/specs/examples/t5-1.0-11b.yaml", t5x/1d]
axes: {{batch: BATCH, length: LENGTH}}
"""
_68B = """shardspec: 1
extends: [t5x/1d]
axes:
  batch: BATCH
  length: LENGTH
  vocab: 32128
  embed: 8192
  mlp: 32768
  heads: 64
  kv: 128
  joined_kv: {size: heads * kv, unit: 128}
params:
  token_embedder/embedding: vocab embed
  decoder/logits_dense/kernel: embed vocab
  "**/self_attention/{query,key,value}/kernel": embed joined_kv
  "**/self_attention/out/kernel": joined_kv embed
  "**/mlp/wi_{0,1}/kernel": embed mlp
  "**/mlp/wo/kernel": mlp embed
arrays:
  token_embedder/embedding: f32[32128, 8192]
  decoder/logits_dense/kernel: f32[8192, 32128]
  "decoder/layers_{0..63}/self_attention/{query,key,value}/kernel": f32[8192, 8192]
  "decoder/layers_{0..63}/self_attention/out/kernel": f32[8192, 8192]
  "decoder/layers_{0..63}/mlp/wi_{0,1}/kernel": f32[8192, 32768]
  "decoder/layers_{0..63}/mlp/wo/kernel": f32[32768, 8192]
activations:
  residual: batch length embed
  query: batch length heads kv
  key: batch length heads kv
  value: batch length heads kv
  hidden: batch length mlp
  logits: batch length vocab
"""
_NORM = (
    "op(residual) -> {}[batch length embed], flops 4 * batch * length * embed"
    ' per "**/self_attention/query/kernel"'
)
_68B_PROGRAM = [
    'gather(tokens[batch length], "token_embedder/embedding") -> residual[batch length embed]',
    _NORM.format("attention_input"),
    *(
        f'attention_input, "**/self_attention/{name}/kernel" -> {name}'
        for name in ("query", "key", "value")
    ),
    "flash(query, key, value) -> context",
    'context, "**/self_attention/out/kernel" -> residual',
    _NORM.format("mlp_input"),
    'mlp_input, "**/mlp/wi_{0,1}/kernel" -> hidden',
    'hidden, "**/mlp/wo/kernel" -> residual',
    'residual, "decoder/logits_dense/kernel" -> logits',
]
_STEP = """policy: {indivisible: keep}
step: {EXTENDSmicrobatches: PARTS, remat: none, gradients: f32}
targets:
  slice:
    hardware: tpu v4 TOPOLOGY
    mesh: {data: rest, model: submesh SUBMESH}
"""


class Prediction(NamedTuple):
    """What three models say of a row, in tokens a second, and whether it fits."""

    tokens_per_s: float
    blind_tokens_per_s: float
    textbook_tokens_per_s: float
    fits: bool


def spec_text(row: Mapping[str, Any]) -> str:
    """Return the spec of a row: a model on a mesh, with its step."""
    is_11b = row["model"] == "11b"
    said = {
        "BATCH": row["gbs"],
        "LENGTH": row["length"] * (1 if is_11b else 2),
        "EXTENDS": "" if is_11b else f"program: {json.dumps(_68B_PROGRAM)}, ",
        "PARTS": max(1, row["microbatches"]),
        "TOPOLOGY": row["topology"],
        "SUBMESH": row["submesh"],
    }
    text = (_11B if is_11b else _68B) + _STEP
    for name, value in said.items():
        text = text.replace(name, str(value))
    return text


def cost_of_row(row: Mapping[str, Any]) -> Cost:
    """Return what `shardspec cost` works out for a row."""
    plan = shardspec.loads(spec_text(row), levels={"SHD": "allow"}).compile(target="slice")
    stated = stated_step(plan)
    assert stated is not None, "the spec of every row has a step"
    return cost_of(plan, stated.step, tokens=stated.tokens)


def predicted(row: Mapping[str, Any]) -> Prediction:
    """Return what is predicted of a row."""
    cost = cost_of_row(row)
    step, time, hardware = cost.step, cost.time, cost.target.hardware
    assert None not in (step, time, hardware), "v4 has its speeds in the catalogue"
    chip = hardware.chip
    sent = sum(each.wire_bytes_per_run * each.count for each in step.collectives)
    blind = time.compute_seconds + sent / (2 * chip.link_bytes_per_s)
    textbook = step.flops / (chip.bf16_flops_per_s / 2) + sent / chip.link_bytes_per_s
    tokens = cost.tokens or 0
    ours, blind, textbook = (tokens / each for each in (time.step_seconds, blind, textbook))
    return Prediction(ours, blind, textbook, bool(cost.memory.fits))


def in_order(pairs: Sequence[tuple[float, float]]) -> tuple[int, int]:
    """Return how many pairs of (predicted, measured) lie in the right order, and of how many."""
    both = list(itertools.combinations(pairs, 2))
    return sum((a[0] - b[0]) * (a[1] - b[1]) > 0 for a, b in both), len(both)


def main(is_json: bool) -> None:
    rows = json.loads(DATA.read_text(encoding="utf-8"))["rows"]
    found = [predicted(row) for row in rows]
    if is_json:
        names = ("model", "topology", "submesh", "gbs", "microbatches")
        out = [
            {name: row[name] for name in names}
            | {"predicted_tokens_per_s": each.tokens_per_s, "fits": each.fits}
            for row, each in zip(rows, found, strict=True)
        ]
        print(json.dumps(out, indent=1))
        return
    print(f"{'':4} {'submesh':8} {'batch':>6} {'parts':>5} {'measured':>9} {'predicted':>9}  fits")
    for row, each in zip(rows, found, strict=True):
        measured = f"{row['tokens_per_s']:,.0f}" if row["tokens_per_s"] else "-"
        head = f"{row['model']:4} {row['submesh']:8} {row['gbs']:6} {row['microbatches']:5}"
        verdict = {None: "", each.fits: "right"}.get(row["fits"], "WRONG")
        print(f"{head} {measured:>9} {each.tokens_per_s:9,.0f}  {each.fits!s:5} {verdict}")
    print(*_summary(rows, found), sep="\n")


def _summary(rows: Sequence[Mapping[str, Any]], found: Sequence[Prediction]) -> list[str]:
    both = list(zip(rows, found, strict=True))
    told = [each.fits == row["fits"] for row, each in both if row["fits"] is not None]
    lines = [f"fits or not: right on {sum(told)} of {len(told)} rows"]
    for model in ("11b", "68b"):
        timed = [(row, each) for row, each in both if row["model"] == model and row["tokens_per_s"]]
        counts = [
            in_order([(each[at], row["tokens_per_s"]) for row, each in timed]) for at in range(3)
        ]
        names = ("cost", "without topology", "textbook")
        text = ", ".join(f"{name} {right}" for name, (right, _) in zip(names, counts, strict=True))
        errors = sorted(abs(each[0] / row["tokens_per_s"] - 1) for row, each in timed)
        lines.append(f"{model}: pairs in order, of {counts[0][1]}: {text}")
        lines.append(
            f"{model}: error of the throughput: mean {sum(errors) / len(errors):.0%},"
            f" median {errors[len(errors) // 2]:.0%}"
        )
    alike = [
        (each.tokens_per_s, row["submesh"])
        for row, each in both
        if (row["model"], row["gbs"], row["microbatches"], row["fits"]) == ("11b", 896, 4, True)
    ]
    order = ", ".join(submesh for _, submesh in sorted(alike, reverse=True))
    return [*lines, f"896 sequences in 4 parts, the fastest first: {order}"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="a list of predictions")
    main(parser.parse_args().json)
