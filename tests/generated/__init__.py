"""Random steps that nobody wrote by hand, and what the compilers make of them.

A recipe is a small frozen record of choices; from it follow a spec, a JAX step and a target, with
no other chance in it. `python -m tests.generated` draws recipes from a seed, predicts and compiles
each, and prints how far the predictions are off, by class; `--shrink N` finds the smallest recipe
that still shows each of the N worst errors. `benchmarks/data/generated_steps.json` keeps the rows.

The fields of a row:

- `recipe`: its text, from which `--recipe TEXT` makes the same case again; `seed`: that drew it.
- `platform`: `tpu` or `gpu`; `mode`: `train` or `serve`; `hardware`, `tags`.
- `predicted_bytes`, `compiled_bytes`: what one device sends in a step; `by_axis`: both, by the mesh
  axes, `[predicted, compiled]`; `difference`: the sum of the differences by axes, over all
  compiled bytes, None where the compiler sends nothing.
- `predicted_memory`, `compiled_memory`, `limit`: bytes on one device, and what a program may have.
- `predicted_fits`, `compiled_fits`: None where it is not known.
- `unknown`: what the prediction cannot count; `unknown_compiled`: what the program's reader
  cannot.
- `reshards`: how many collectives of the prediction only make an array lie otherwise.
- `flops`: of one device, of the prediction; `flops_compiled`: of the program.
- `broken`: invariants of `Step` that either step does not keep.
- `error`: why there is no such row, and then the figures are None; `fault`: whose: `refused`
  (a `ShardspecError` with its code, or a compiler that refuses), `room` (a worker may not have the
  memory that the compiler needs), `generator` (JAX cannot trace it),
  `crash` (shardspec raised something else), `late` or `died` (its process was ended).
- `seconds`: of the whole row; `compiler`: its name and version.
"""
