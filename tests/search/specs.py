"""A small model with a step, for searches."""

from __future__ import annotations

from shardspec import pipeline
from shardspec.ir.spec import Spec
from shardspec.search.ranking import Question, Wanted
from shardspec.search.variants import Freedom, Variant

#: Two layers of an MLP; names, an activation and a comment that an edit must keep.
TEXT = """\
# the model of the tests
shardspec: 1
axes: {batch: 64, length: 128, embed: 512, mlp: 2048, vocab: 4096}
targets:
  slice:
    hardware: tpu v5e 4x4  # sixteen chips
    mesh: {data: rest, fsdp: 2, tensor: 4}  # today
  two:
    hardware: 2 * tpu v5p 2x2x4
    mesh: {data: 2 @ dcn, fsdp: rest, tensor: 4}
rules: ["batch -> (data, fsdp)", mlp -> tensor, vocab -> tensor, embed -> fsdp, length -> none]
params: {"**/up": embed mlp, "**/down": mlp embed, table: vocab embed}
arrays:
  "layers_{0,1}/up": f32[512, 2048]
  "layers_{0,1}/down": f32[2048, 512]
  table: f32[4096, 512]
activations: {residual: batch length embed}
state: {optimizer: same}
step:
  remat: full  # of each layer
  program:
    - gather(tokens[batch length], "table") -> residual
    - residual, "**/up" -> hidden
    - hidden, "**/down" -> residual
    - residual, "table" -> logits
"""


def spec_of(text: str = TEXT) -> Spec:
    spec, faults = pipeline.load_text(text)
    assert spec is not None
    assert not [fault for fault in faults if fault.is_error], faults
    return spec


def question(
    spec: Spec,
    *,
    target: int = 0,
    variants: tuple[Variant, ...] = (),
    freedom: Freedom | None = None,
    wanted: Wanted | None = None,
    most: int = 20_000,
) -> Question:
    chosen = spec.targets[target]
    assert chosen.hardware is not None
    return Question(
        spec,
        spec.params,
        chosen,
        (chosen.hardware,),
        variants or (Variant(spec),),
        freedom or Freedom(),
        wanted or Wanted(),
        most,
    )
