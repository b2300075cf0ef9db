"""What a cost looks like: memory, time, and the table of what is sent, in any width."""

from __future__ import annotations

from dataclasses import replace

import pytest

import shardspec
from shardspec import pipeline
from shardspec.analysis import accuracy
from shardspec.analysis.comparison import BY, By
from shardspec.analysis.cost import Cost, cost_of
from shardspec.analysis.step_time import AxisTime, StepTime
from shardspec.diagnostics.lines import fitted
from shardspec.ir.spec import PartitionSpec
from shardspec.ir.step import (
    Carried,
    Cause,
    CauseKind,
    Collective,
    CollectiveKind,
    Place,
    Step,
    StepArgument,
    StepArray,
    StepTensor,
)
from shardspec.report.cost import Cost as Shown
from shardspec.report.cost import cost_lines

SPEC = """\
shardspec: 1
targets: {pod: {hardware: tpu v5p 4x4x4, mesh: {fsdp: 16, tensor: 4}}}
rules:
  - embed -> fsdp
  - mlp -> tensor
params:
  "**/wi": embed mlp
arrays:
  layers_{0..9}/mlp/wi: bf16[4096, 16384]
state: {optimizer: same, moments: 2}
"""
LINE = Place("model/decoder.py", 80)
TIME = StepTime(
    1.61,
    0.2,
    (AxisTime("fsdp", 0.41, 0.06), AxisTime("tensor", 0.25, 0.25), AxisTime("data", 0.0041, 0)),
    0.15,
    0.514,
)


def plan() -> shardspec.Plan:
    return shardspec.loads(SPEC, "spec.yaml").compile()


def array(name: str = "") -> StepArray:
    split = PartitionSpec((("fsdp",), ("tensor",)))
    return StepArray("bf16", (4096, 16384), split, (256, 4096), name)


def cause(mesh_axis: str) -> Cause:
    """Return what the rule of the spec asked for."""
    dims = plan().arrays[0].dims
    at = 0 if mesh_axis == "fsdp" else 1
    taken = dims[at].taken
    return Cause(mesh_axis, CauseKind.ARGUMENT, "layers_0/mlp/wi", at, attempt=taken)


def sent(
    carries: Carried, size: int, count: float, *because: Cause, forced: Cause | None = None
) -> Collective:
    axes = tuple(each.mesh_axis for each in because)
    kind = CollectiveKind.ALL_GATHER if carries.kind == "weight" else CollectiveKind.ALL_REDUCE
    return Collective(
        kind, axes, size, size, count, array(), LINE, "forward", carries, because, forced
    )


def cost(time: StepTime | None = TIME) -> Cost:
    """Return a cost with a bit of everything, of a step that nobody traced."""
    constraint = Cause("tensor", CauseKind.CONSTRAINT, place=Place("model/decoder.py", 82))
    collectives = (
        sent(Carried("activation", "residual"), 2**27, 80, cause("tensor")),
        *(
            sent(Carried("weight", f"layers_{number}/mlp/wi"), 2**25, 2, cause("fsdp"))
            for number in range(10)
        ),
        sent(
            Carried("einsum", "bte,ef->btf"),
            2**20,
            1,
            replace(cause("tensor"), kind=CauseKind.PROPAGATED),
            forced=constraint,
        ),
        sent(Carried(), 2**10, 1, Cause("fsdp", CauseKind.UNKNOWN)),
    )
    step = Step(
        "code",
        plan().mesh,
        collectives=collectives,
        tensors=(StepTensor(array("residual"), 2**21, 0, 5, LINE, "forward"),),
        arguments=(StepArgument("layers_0/mlp/wi", "parameter", array("layers_0/mlp/wi")),),
        end=9,
        place=Place("train.py", 88),
        notes=("the rounds of a loop at train.py:9 are not known, and counted once",),
    )
    found = cost_of(plan(), step, tokens=4_000_000)
    return replace(found, time=time)


def text(found: Cost, by: By = "op", width: int = 100, top: int = 10) -> str:
    return "\n".join(fitted(cost_lines(found, by, top=top), width))


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be learned of the model: what rows say changes with them."""
    monkeypatch.setattr(accuracy, "LEARNED", {})


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (1.5, "(4.00 to 6.00 MiB) of 95.7 GiB per device, fits, 95 % likely"),
        (30000.0, "(4.00 MiB to 117 GiB) of 95.7 GiB per device, may fit, 70 % likely"),
    ],
)
def test_how_well_it_is_known_is_printed(
    monkeypatch: pytest.MonkeyPatch, ratio: float, said: str
) -> None:
    found = accuracy.Rows(19, (1.0,) * 4 + (ratio,) * 3)
    known = {("tpu", "serve", off): found for off in ("memory", "sends")}
    monkeypatch.setattr(accuracy, "LEARNED", known)
    printed = " ".join(text(cost()).split())
    assert f"memory ~ 4.00 MiB {said}" in printed
    sends = "10.6 to 15.9 GiB" if ratio < 2 else "10.6 GiB to 311 TiB"
    assert f"sends ~ 10.6 GiB ({sends}) per device and step" in printed


def test_what_is_printed() -> None:
    assert (
        text(cost())
        == """\
spec.yaml   pod: TPU v5p 4x4x4, 64 chips   mesh fsdp=16 tensor=4   step at train.py:88

memory  ~ 4.00 MiB of 95.7 GiB per device, may fit   parameters = 2.00 MiB   temporaries ~ 2.00 MiB
        residual bf16[4096, 16384]  ~ 2.00 MiB  forward  model/decoder.py:80
time    ~ 1.92 s +- 15 %, bound by compute   compute ~ 1.61 s, 200 ms of it memory
    fsdp ~ 410 ms, 60.0 ms exposed   tensor ~ 250 ms, all exposed   data ~ 4.10 ms, hidden
    = 0 FLOP   MFU ~ 51 %   ~ 2.08 M tokens/s

sends   ~ 10.6 GiB per device and step, in 102 collectives
  all-reduce  tensor  10.0 GiB  x80  activation residual          model/decoder.py:80
      mlp -> tensor spec.yaml:5
  all-gather  fsdp     640 MiB  x20  weight layers_{0..9}/mlp/wi  model/decoder.py:80
      embed -> fsdp spec.yaml:4
  all-reduce  tensor  1.00 MiB   x1  bte,ef->btf                  model/decoder.py:80
      mlp -> tensor spec.yaml:5, propagated, forced by the constraint model/decoder.py:82
  all-reduce  fsdp    1.00 KiB   x1  unknown                      model/decoder.py:80
      unknown
note    the rounds of a loop at train.py:9 are not known, and counted once"""
    )


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_every_table_fits(by: By, width: int) -> None:
    found = text(cost(), by, width)
    assert max(map(len, found.splitlines())) <= width
    assert found.isascii()


def test_a_narrow_table_has_its_reasons_below() -> None:
    lines = text(cost(), width=90).splitlines()
    at = next(number for number, line in enumerate(lines) if "all-gather" in line)
    assert lines[at + 1] == "      embed -> fsdp spec.yaml:4"


def test_by_rule() -> None:
    assert text(cost(), "rule", width=160).partition("sends ")[2].splitlines()[1:-1] == [
        "  mlp -> tensor spec.yaml:5  10.0 GiB       94 %  x81  all-reduce  activation residual"
        " and 1 more",
        "  embed -> fsdp spec.yaml:4   640 MiB      5.9 %  x20  all-gather  weight"
        " layers_{0..9}/mlp/wi",
        "  unknown                    1.00 KiB  < 0.001 %   x1  all-reduce  unknown",
    ]


def test_what_came_by_way_of_operations_is_said() -> None:
    asked = sent(Carried("activation", "residual"), 2**20, 1000, cause("tensor"))
    came = replace(asked, because=(replace(cause("tensor"), kind=CauseKind.PROPAGATED),))
    found = cost()
    assert found.step is not None
    step = replace(found.step, collectives=(asked, replace(came, count=100)))
    said = text(replace(found, step=step), "rule", width=160)
    assert "in 1,100 collectives, by rule" in said
    assert "activation residual, 100 MiB of it propagated" in said
    step = replace(step, collectives=(replace(came, count=1),))
    assert "in 1 collective, by rule" in text(replace(found, step=step), "rule")


def test_the_rest_is_counted() -> None:
    assert "  and 2 rows more, ~ 1.00 MiB: --top 4 shows all" in text(cost(), top=2)


def test_arrays_alone() -> None:
    lines = cost_lines(cost(), arrays={"layers_3/mlp/wi"})
    sends = "\n".join(lines).partition("sends ")[2]
    assert sends.startswith("  ~ 64.0 MiB of ~ 10.6 GiB per device and step, in 2 collectives")
    assert "layers_3/mlp/wi" in sends
    assert "sends   nothing of ~ 10.6 GiB" in "\n".join(cost_lines(cost(), arrays={"none"}))


def test_without_speeds_the_flops_are_still_known() -> None:
    found = text(cost(None))
    assert "time    not known: the catalogue has no speeds of this target" in found
    assert "this target   = 0 FLOP" in found


def test_without_a_step_it_is_the_memory_of_state() -> None:
    found = text(cost_of(plan()))
    assert found.splitlines()[2:] == [
        "memory  = 120 MiB of 95.7 GiB per device, fits   parameters = 20.0 MiB   gradients = 20.0"
        " MiB",
        "    optimizer = 80.0 MiB",
    ]


def test_what_does_not_fit_is_loud() -> None:
    found = cost()
    held = replace(found.memory, hbm_bytes=2**20)
    assert "of 1.00 MiB per device, DOES NOT FIT" in text(replace(found, memory=held))


def test_in_python() -> None:
    shown = Shown.of(cost())
    assert str(shown) == text(cost())
    assert repr(shown) == "Cost(target pod, ~ 4.00 MiB, ~ 10.6 GiB sent by a device a step)"
    assert [row.name for row in shown.by("axis")] == ["tensor", "fsdp"]
    bare = Shown.of(cost_of(pipeline.compile_plans(plan().spec)[0]))
    assert repr(bare) == "Cost(target pod, = 120 MiB, no step)"
    assert bare.collectives == ()
