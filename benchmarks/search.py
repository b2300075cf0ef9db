"""How long `shardspec search` takes for a thousand candidates of models of about 100 arrays.

Twelve layers with arrays of their own, and models of the examples; on machines and with
choices that give a thousand candidates or more. The last lines are those that take longest: four
mesh axes on 4,096 chips, and steps of many lines on GPUs, where few candidates share a layout. Run
from the root: `python benchmarks/search.py`. It prints CPU seconds of one process, those of a
thousand candidates, and how many evaluations of a step there were: placements of the same sizes
share one.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path

from shardspec import pipeline
from shardspec.search.ranking import Choice, Question, Wanted, asked, search

EXAMPLES = Path(__file__).parent.parent / "specs" / "examples"
#: Twelve layers of eight arrays, and what is around them: 98 arrays.
MODEL = """
shardspec: 1
axes: {batch: 1024, length: 2048, embed: 4096, mlp: 16384, heads: 32, kv: 128, vocab: 32768}
hardware: tpu v5p 8x8x8
mesh: {data: 2, fsdp: 64, tensor: 4}
rules:
  - batch -> (data, fsdp)
  - "mlp, heads, vocab -> tensor"
  - embed -> fsdp
  - length -> none
  - kv -> none
params:
  "**/{query,key,value}": embed heads kv
  "**/out": heads kv embed
  "**/{gate,up}": embed mlp
  "**/down": mlp embed
  "**/norm": embed
  "{table,logits}": vocab embed
arrays:
  "layers_{0..11}/{query,key,value}": f32[4096, 32, 128]
  "layers_{0..11}/out": f32[32, 128, 4096]
  "layers_{0..11}/{gate,up}": f32[4096, 16384]
  "layers_{0..11}/down": f32[16384, 4096]
  "layers_{0..11}/norm": f32[4096]
  "{table,logits}": f32[32768, 4096]
activations: {residual: batch length embed, hidden: batch length mlp}
state: {optimizer: same}
step:
  remat: full
  microbatches: 2
  program:
    - gather(tokens[batch length], "table") -> residual
    - residual, "**/query" -> query
    - residual, "**/key" -> key
    - residual, "**/value" -> value
    - flash(query, key, value) -> context
    - context, "**/out" -> residual
    - residual, "**/{gate,up}" -> hidden
    - hidden, "**/down" -> residual
    - residual, "logits" -> logits[batch length vocab]
"""


#: The same on four axes of 4,096 chips.
LARGE = (
    MODEL.replace("8x8x8", "16x16x16")
    .replace("data: 2, fsdp: 64", "data: 16, fsdp: 64, sequence: 1")
    .replace("length -> none", "length -> sequence")
)
ROLES = "roles=data|fsdp|tensor"


def main() -> None:
    """Print a line for each search."""
    gc.disable()  # as the command line does
    for name, text, over, *machines in (
        ("98 arrays", MODEL, "mesh,order"),
        ("98 arrays", MODEL, "mesh,order,remat,microbatches=1|2|4"),
        ("llama-3-70b-scanned", None, "mesh,order,remat,microbatches"),
        ("mixtral-8x7b", None, "mesh,order,remat=none|full"),
        ("t5-1.0-11b", None, "mesh,order,microbatches"),
        ("98 arrays", LARGE, "mesh,order"),
        ("llama-3-70b-pipeline", None, "mesh,schedule,microbatches=8|16|32,remat", "128 * h100"),
        ("llama-3-8b-lora", None, f"{ROLES},remat,microbatches=1|2|4", "32 * h100"),
        ("t5-1.1-xxl", None, f"{ROLES},remat,microbatches=1|2|4", "32 * h100"),
        ("vit-b-16", None, f"{ROLES},remat,batch,indivisible", "16 * h100"),
    ):
        if text is None:
            spec, _ = pipeline.load_path(str(EXAMPLES / f"{name}.yaml"))
        else:
            spec, _ = pipeline.load_text(text)
        assert spec is not None
        choice = Choice(over, machines=machines)
        question = asked(spec, spec.params, spec.targets[0], choice, Wanted())
        assert isinstance(question, Question), question
        began = time.process_time()
        found = search(question)
        took = time.process_time() - began
        seen, arrays = found.ranking.seen, len(spec.params)
        print(
            f"{name:<20} {arrays:>4} arrays  {over:<36} {seen:>6,} candidates"
            f"  {len(found.rows):>5,} steps  {took:6.2f} s  {1000 * took / seen:6.2f} s a thousand"
        )


if __name__ == "__main__":
    main()
