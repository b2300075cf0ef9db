"""Specs for tests of the language server, and a look at one without a server."""

from __future__ import annotations

import os
from pathlib import Path

from shardspec.lsp.snapshot import Snapshot

SPEC = """\
shardspec: 1
let: {tp: 4}
axes: {embed: 64, mlp: 4 * embed, heads: {size: 8, unit: 2}}
targets:
  pod: {hardware: tpu v4 4x4x4, mesh: {data: rest, model: tp}}
  laptop: {hardware: 8 cpu, mesh: {data: rest, model: 2}}
rules:
  - embed -> data
  - {rule: "mlp -> (data, model) | model", at: end}
  - heads -> model
params:
  "**/wi/kernel": embed mlp
overrides:
  - {path: odd/kernel, spec: "(none, model)", because: measured}
  - {path: odd/bias, axes: in:mlp}
activations: {hidden: mlp embed}
arrays:
  "layers_{0..3}/wi/kernel": bf16[64, 256]
  odd/kernel: bf16[64, 256]
  odd/bias: bf16[256]
lints: {repeated-axis: allow}
phases:
  decode: {rules: [mlp -> model]}
"""
DSL = """\
shardspec 1
let tp = 4
axis embed = 64
axis mlp = 4 * embed
axis heads = 8 unit 2
target pod on tpu v4 4x4x4 { data = rest; model = tp }
target laptop on 8 cpu { data = rest; model = 2 }
rules {
  embed -> data
  mlp -> (data, model) | model at end
  heads -> model
}
params {
  **/wi/kernel : embed mlp
}
override odd/kernel = (none, model) because "measured"
override odd/bias : in:mlp
activation hidden : mlp embed
arrays {
  layers_{0..3}/wi/kernel : bf16[64, 256]
  odd/kernel : bf16[64, 256]
  odd/bias : bf16[256]
}
lint repeated-axis allow
phase decode {
  rules { mlp -> model }
}
"""
BOTH = [("spec.yaml", SPEC), ("spec.shard", DSL)]


def snapshot_of(folder: Path, name: str, text: str, **others: str) -> Snapshot:
    """Return what there is to know of a text that is open in a folder."""
    path = os.path.realpath(folder / name)
    texts = {os.path.realpath(folder / other): held for other, held in others.items()}
    return Snapshot(Path(path).as_uri(), 1, path, {**texts, path: text})


def marked(text: str) -> tuple[str, int]:
    """Return a text without its `‸`, and where that stood."""
    offset = text.index("‸")
    return text.replace("‸", ""), offset
