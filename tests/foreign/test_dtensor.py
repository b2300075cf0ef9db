"""Plans of `parallelize_module`, wherever they are in a file."""

from __future__ import annotations

from shardspec.diagnostics import SourceFile
from shardspec.foreign import dtensor
from shardspec.foreign.formats import Imported, NotRead, Options
from shardspec.ir.spec import Mesh, MeshAxis, Param, PartitionSpec

TITAN = """
def apply_tp(model, tp_mesh, loss_parallel, is_float8):
    parallelize_module(model, tp_mesh, {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(output_layouts=Shard(-1) if loss_parallel else Replicate()),
    })
    if is_float8:
        rowwise_parallel, colwise_parallel = Float8RowwiseParallel, Float8ColwiseParallel
    else:
        rowwise_parallel, colwise_parallel = RowwiseParallel, ColwiseParallel
    for block in model.layers.values():
        layer_plan = {
            "attention": PrepareModuleInput(input_layouts=(Shard(1), None)),
            "attention.wq": colwise_parallel(),
            "attention.wo": rowwise_parallel(output_layouts=Shard(1)),
            "moe.experts": ExpertParallel(),
        }
        layer_plan["feed_forward.w1"] = colwise_parallel()
        layer_plan.update({"feed_forward.w2": rowwise_parallel()})
        parallelize_module(module=block, parallelize_plan=layer_plan)
"""
LAYER = {
    "attention.wq.weight": ((64, 64), (("tp",), ())),
    "attention.wo.weight": ((64, 64), ((), ("tp",))),
    "attention.wq.bias": ((64,), (("tp",),)),
    "attention.wo.bias": ((64,), ((),)),
    "feed_forward.w1.weight": ((256, 64), (("tp",), ())),
    "feed_forward.w2.weight": ((64, 256), ((), ("tp",))),
    "attention_norm.weight": ((64,), ((),)),
}
WANTED = {
    "tok_embeddings.weight": ((512, 64), (("tp",), ())),
    "output.weight": ((512, 64), (("tp",), ())),
    "norm.weight": ((64,), ((),)),
    **{f"layers.{n}.{path}": each for n in range(2) for path, each in LAYER.items()},
}


def imported(text: str, *params: Param) -> tuple[Imported, list[str]]:
    options = Options(mesh=(("dp", "2"), ("tp", "8")), params=params or None)
    found, faults = dtensor.read([SourceFile("parallelize.py", text)], options)
    assert found is not None, faults
    return found, [fault.message for fault in faults]


def test_every_plan_of_a_file_where_the_arrays_say_it_belongs() -> None:
    params = tuple(Param(path, shape, "bf16") for path, (shape, _) in WANTED.items())
    experts = Param("layers.0.moe.experts.w1", (8, 64, 64), "bf16")
    found, faults = imported(TITAN, *params, experts)
    assert faults == ["the style of `moe.experts` is code"]
    mesh = Mesh((MeshAxis("dp", 2), MeshAxis("tp", 8)))
    *answers, unknown = dtensor.answer(found.reading, (*params, experts), mesh)
    assert answers == [PartitionSpec(dims) for _, dims in WANTED.values()]
    assert isinstance(unknown, NotRead)


def test_what_is_worked_out_is_said() -> None:
    text = "p({f'heads.{n}': ColwiseParallel(), 'out': RowwiseParallel() if x else None})"
    _, faults = imported(text)
    assert faults[:2] == [
        "the name of a module is worked out when the file runs",
        "the style of `out` is code",
    ]


def test_no_plan() -> None:
    found, faults = dtensor.read([SourceFile("a.py", "x = {'a': 1}")], Options())
    assert found is None
    assert faults[0].message == "`a.py` has no plan"
