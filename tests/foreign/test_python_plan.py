"""The plain Python module: without shardspec, it gives what `Resolver` gives."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shardspec import pipeline
from shardspec.foreign.formats import Request
from shardspec.foreign.python_plan import write
from shardspec.ir.plan import ShardingPlan
from shardspec.jax_backend.target_devices import devices_by_coordinate
from shardspec.topology.placement import Placement, place

SPEC = """\
{machine}
rules: [mlp -> model, embed -> data]
activations: {{residual: batch embed}}
axes: {{batch: 8}}
params: {{"*/wi": embed mlp, scale: embed}}
arrays:
  "layers_{{0..2}}/wi": f32[16, 16]
  scale: f32[16]
  step: f32[]
lints: {{axis-without-rule: allow, unused-mesh-axis: allow}}
"""
MACHINES = {
    "bare": "mesh: {data: 2, model: 4}",
    "cpu": "hardware: 8 cpu\nmesh: {data: 2, model: 4 explicit}",
    "nodes": "hardware: 2 * 4 h100\nmesh: {model: 2 @ dcn, data: 4}",
}
SHOW = """
import json, runpy, sys
space = runpy.run_path(sys.argv[1])
assert "shardspec" not in sys.modules
mesh = space["mesh"]()
shown = {path: [str(s.spec), s.mesh == mesh] for path, s in space["shardings"](mesh).items()}
types = [str(t) for t in mesh.axis_types]
print(json.dumps([[d.id for d in mesh.devices.flat], dict(mesh.shape), types, shown]))
"""


def plan_of(text: str) -> ShardingPlan:
    spec, found = pipeline.load_text(text, "spec.yaml")
    assert spec is not None, found
    return pipeline.compile_plans(spec)[0]


def module(plan: ShardingPlan) -> tuple[str, dict[str, Any]]:
    text, found = write(Request(plan))
    assert text is not None, found
    assert found == ()
    space: dict[str, Any] = {}
    exec(text, space)
    return text, space


@pytest.mark.parametrize("machine", ["bare", "cpu"])
def test_the_module_gives_what_resolver_gives(machine: str, tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    from shardspec import Resolver

    text = SPEC.format(machine=MACHINES[machine])
    (tmp_path / "spec.yaml").write_text(text)
    (tmp_path / "layouts.py").write_text(module(plan_of(text))[0])
    done = subprocess.run(
        [sys.executable, "-c", SHOW, "layouts.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ids, shape, types, shown = json.loads(done.stdout)
    resolver = Resolver(tmp_path / "spec.yaml")
    assert ids == [device.id for device in resolver.mesh.devices.flat]
    assert shape == dict(resolver.mesh.shape)
    assert types == [str(each) for each in resolver.mesh.axis_types]
    shapes = {f"layers_{n}": {"wi": jax.ShapeDtypeStruct((16, 16), "float32")} for n in range(3)}
    tree = {
        **shapes,
        "scale": jax.ShapeDtypeStruct((16,), "float32"),
        "step": jax.ShapeDtypeStruct((), "float32"),
    }
    theirs = resolver.shardings(tree)
    flat = jax.tree_util.tree_flatten_with_path(theirs)[0]
    assert len(flat) == len(shown)
    space = module(plan_of(text))[1]
    ours = space["shardings"](resolver.mesh)
    for path, sharding in flat:
        name = "/".join(key.key for key in path)
        rank = {"scale": 1, "step": 0}.get(name, 2)
        assert sharding.is_equivalent_to(ours[name], rank)
        assert shown[name] == [str(ours[name].spec), True]


def tpu(slices: int, extents: tuple[int, int, int], cores: int) -> list[Any]:
    """Return devices of slices that start at odd places, in no order."""
    found = [
        SimpleNamespace(
            id=number,
            process_index=0,
            slice_index=7 + 3 * s,
            coords=(x + 1, y, z + 2),
            core_on_chip=core,
            platform="tpu",
        )
        for number, (s, x, y, z, core) in enumerate(
            itertools.product(range(slices), *map(range, extents), range(cores))
        )
    ]
    random.Random(0).shuffle(found)
    return found


@pytest.mark.parametrize(
    ("hardware", "mesh", "devices"),
    [
        ("tpu v4 2x2x4", "{data: rest, model: submesh 2x2x1x1}", tpu(1, (2, 2, 4), 1)),
        ("tpu v3 4x4", "{data: rest, model: submesh 2x1x1x2}", tpu(1, (4, 4, 1), 2)),
        ("2 * tpu v5e 2x4", "{data: 2 @ dcn, model: rest}", tpu(2, (2, 4, 1), 1)),
        ("tpu v5e 2x4", "{data: 2, model: rest}", tpu(1, (4, 2, 1), 1)),
    ],
)
def test_tpu_devices_stand_by_coordinate(hardware: str, mesh: str, devices: list[Any]) -> None:
    plan = plan_of(SPEC.format(machine=f"hardware: {hardware}\nmesh: {mesh}"))
    ordered = module(plan)[1]["ordered"](devices)
    assert plan.target.hardware is not None
    found = devices_by_coordinate(devices, plan.target.hardware)
    placement = place(plan.target)
    assert found is not None
    assert isinstance(placement, Placement)
    assert [d.id for d in ordered] == [found[each].id for each in placement.coordinates()]


def test_other_devices_stand_node_by_node() -> None:
    devices: list[Any] = [
        SimpleNamespace(
            id=n, process_index=n // 2, slice_index=1 - n // 4, platform="gpu", device_kind="h100"
        )
        for n in range(8)
    ]
    plan = plan_of(SPEC.format(machine=MACHINES["nodes"]))
    ordered = module(plan)[1]["ordered"](devices[::-1])
    assert plan.target.hardware is not None
    found = devices_by_coordinate(devices, plan.target.hardware)
    placement = place(plan.target)
    assert found is not None
    assert isinstance(placement, Placement)
    assert [d.id for d in ordered] == [found[each].id for each in placement.coordinates()]


def test_devices_of_another_machine_are_refused() -> None:
    plan = plan_of(SPEC.format(machine="hardware: tpu v5e 2x4\nmesh: {data: 2, model: rest}"))
    with pytest.raises(ValueError, match="the devices are no tpu v5e 2x4"):
        module(plan)[1]["ordered"](tpu(1, (1, 8, 1), 1))


def test_a_mesh_needs_the_right_number_of_devices() -> None:
    space = module(plan_of(SPEC.format(machine=MACHINES["bare"])))[1]
    with pytest.raises(ValueError, match="3 devices for the mesh"):
        space["mesh"]([1, 2, 3])


def test_memories_and_sums_stand_in_the_module() -> None:
    spec, faults = pipeline.load_text(
        "mesh: {data: 2 explicit, model: 4 explicit}\nrules: [a -> data]\n"
        'memory: {w: pinned_host}\narrays: {w: "f32[a=4]", x: "f32[a=4]"}\n'
        'overrides: [{path: x, spec: "(none) unreduced (data, model)"}]\n'
        "activations: {s: {axes: a, memory: pinned_host}}\n"
    )
    assert spec is not None, faults
    text, found = write(Request(pipeline.compile_plans(spec)[0]))
    assert text is not None
    assert found == ()
    space: dict[str, Any] = {}
    exec(text, space)
    assert space["ACTIVATION_MEMORY"] == {"s": "pinned_host"}
    assert set(space["SPECS"]["x"].unreduced) == {"data", "model"}
    placed = space["shardings"](space["mesh"]())
    assert {path: each.memory_kind for path, each in placed.items()} == {
        "w": "pinned_host",
        "x": "device",
    }
