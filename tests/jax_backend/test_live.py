"""Live arrays against the plan, and the plan against the lock."""

from __future__ import annotations

import copy
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from click.testing import CliRunner
from flax import linen as nn
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shardspec.cli.main import cli
from shardspec.diagnostics import Diagnostic, Severity, ShardspecError
from shardspec.ir.spec import MemoryKind
from shardspec.jax_backend.resolver import Resolver
from shardspec.lock.lock_file import LockWarning
from shardspec.public import loads
from tests.jax_backend.specs import make_spec
from tests.versions_of_jax import moves_to_host

NAMES = {"**/kernel": "embed mlp", "**/bias": "mlp"}


def resolver(**more: Any) -> Resolver:
    return Resolver(make_spec(params=NAMES, **more))


def layer() -> dict[str, Any]:
    return {"kernel": jnp.ones((8, 16)), "bias": jnp.ones(16)}


def layers() -> dict[str, Any]:
    return {f"layers_{number}": {"mlp": layer()} for number in range(12)}


def text(found: Diagnostic) -> str:
    return "\n".join((found.message, *found.notes, found.help or ""))


def only(found: tuple[Diagnostic, ...]) -> Diagnostic:
    (diagnostic,) = found
    assert diagnostic.code.id == "SHD901"
    return diagnostic


def test_what_lies_as_planned_is_fine() -> None:
    found = resolver()
    assert found.verify_placement(found.put(layers())) == ()
    shardings = found.shardings(jax.eval_shape(layers))
    assert found.verify_placement(jax.jit(layers, out_shardings=shardings)()) == ()


def test_equality_is_of_layouts_not_of_spellings() -> None:
    """Trailing Nones, another mesh object, other axis names and types: the same bytes."""
    found = resolver()
    devices = found.mesh.devices
    explicit = Mesh(devices, ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    renamed = Mesh(devices, ("a", "b"))
    for sharding in (
        NamedSharding(explicit, P("data", "model")),
        NamedSharding(renamed, P("a", "b")),
    ):
        assert found.verify_placement({"kernel": jax.device_put(np.ones((8, 16)), sharding)}) == ()
    split = Mesh(devices.reshape(2, 2, 2), ("data", "x", "y"))
    short = NamedSharding(split, P("data", ("x", "y")))
    assert found.verify_placement({"kernel": jax.device_put(np.ones((8, 16)), short)}) == ()


def test_uncommitted_arrays_are_one_finding_with_layers_taken_together() -> None:
    said = text(only(resolver().verify_placement(layers())))
    assert said.startswith("24 arrays are on one device, uncommitted: nothing has placed them")
    assert "layers_{0..11}/mlp/kernel x12 f32[8, 16]: planned P('data', 'model')" in said
    assert "found cpu:0, +448 B on a device each" in said
    assert "+5.81 KiB on the fullest device, in all" in said  # 12 * (448 + 48)
    assert "resolver.put(tree)" in said


def _elsewhere(found: Resolver) -> Any:
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
    return NamedSharding(mesh, P("x"))


CAUSES: dict[str, tuple[Any, str]] = {
    "split": (
        lambda r: NamedSharding(r.mesh, P()),
        "`kernel` is sharded differently from the plan\n"
        "kernel f32[8, 16]: planned P('data', 'model'), found P(None, None), +448 B on a device",
    ),
    "less": (
        lambda r: NamedSharding(r.mesh, P(("data", "model"))),
        "found P(('data', 'model'), None)\n",
    ),
    "one device": (
        lambda r: jax.devices()[3],
        "`kernel` is on one device\nkernel f32[8, 16]: planned P('data', 'model'), found cpu:3",
    ),
    "elsewhere": (
        _elsewhere,
        "`kernel` is on other devices than the mesh data=2 model=4\n"
        "kernel f32[8, 16]: planned P('data', 'model'), found P('x', None) on mesh x=4, +64 B",
    ),
    "order": (
        lambda r: NamedSharding(Mesh(r.mesh.devices[::-1], ("data", "model")), P("data", "model")),
        "`kernel` is on the devices of the mesh, in another order",
    ),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_says_what_was_planned_and_what_was_found(cause: str) -> None:
    place, wanted = CAUSES[cause]
    found = resolver()
    tree = {"kernel": jax.device_put(np.ones((8, 16), np.float32), place(found))}
    assert wanted in text(only(found.verify_placement(tree)))
    assert found.verify_placement(found.put(tree)) == ()


def test_host_arrays_numbers_and_scalars() -> None:
    found = resolver()
    tree = {"kernel": np.ones((8, 16), np.float32), "step": 3, "scale": np.float32(1)}
    assert text(only(found.verify_placement(tree))).startswith(
        "`kernel` is in host memory, on no device"
    )
    assert found.verify_placement({"count": jnp.zeros((), int), "key": jax.random.key(0)}) == ()
    placed = {"count": jax.device_put(0, jax.devices()[1])}
    assert "found cpu:1" in text(only(found.verify_placement(placed)))


def test_another_memory_is_a_finding_unless_it_is_meant() -> None:
    found, tree = resolver(), {"mlp": layer()}
    host = found.put(tree, memory_kind="pinned_host")
    assert host["mlp"]["kernel"].sharding.memory_kind == "pinned_host"
    said = text(only(found.verify_placement(host)))
    assert said.startswith("2 arrays are in another memory than planned")
    assert "planned P('data', 'model'), found its shards in `pinned_host`" in said
    assert found.verify_placement(host, memory_kinds=["pinned_host"]) == ()
    assert found.verify_placement(found.put(host)) == ()
    moments = optax.sgd(1.0, momentum=0.9).init(tree)
    offloaded = jax.tree.map(
        lambda array, place: jax.device_put(array, place.with_memory_kind("pinned_host")),
        moments,
        found.state_shardings(moments, tree),
    )
    params = found.put(tree)
    assert "0/trace/mlp" in text(only(found.verify_placement(params, offloaded)))
    assert found.verify_placement(params, offloaded, memory_kinds=["pinned_host"]) == ()
    with pytest.raises(ShardspecError, match=r"no memory `attic`\n.*`pinned_host`"):
        found.put(tree, memory_kind="attic")


OFFLOADED: dict[str, MemoryKind] = {"opt_state/**": "pinned_host", "mlp/bias": "pinned_host"}


@moves_to_host
def test_arrays_lie_in_the_memory_that_the_spec_says() -> None:
    found, tree = resolver(memory=OFFLOADED), {"mlp": layer()}
    placed = found.put(tree)
    kinds = jax.tree.map(lambda array: array.sharding.memory_kind, placed)
    assert kinds == {"mlp": {"kernel": "device", "bias": "pinned_host"}}
    assert jax.tree.map(lambda each: each.memory_kind, found.shardings(tree)) == kinds
    assert found.verify_placement(placed) == ()
    tx = optax.adam(1e-3)
    state = tx.init(tree)
    places = found.state_shardings(state, tree)
    assert {each.memory_kind for each in jax.tree.leaves(places)} == {"pinned_host"}
    made = jax.jit(tx.init, out_shardings=places)(placed)
    assert found.verify_placement(placed, made) == ()
    moved = jax.tree.map(lambda x: jax.device_put(x, x.sharding.with_memory_kind("device")), placed)
    said = text(only(found.verify_placement(moved)))
    assert said.startswith("`mlp/bias` is in another memory than planned")
    assert "planned P('model') in pinned_host, found its shards in `device`" in said
    assert found.verify_placement(moved, memory_kinds=["device"]) == ()
    struct = found.abstract(jax.eval_shape(lambda: tree))["mlp"]["bias"]
    assert struct.sharding.memory_kind == "pinned_host"


def test_state_is_called_so_wherever_it_stands() -> None:
    tree = {"mlp": layer()}
    state = optax.adam(1e-3).init(tree)
    held = {"params": tree, "opt_state": state, "step": jnp.zeros((), int)}
    cases: list[tuple[dict[str, MemoryKind], Any, Any, Any]] = [
        ({"opt_state/0/mu/**": "pinned_host"}, "pinned_host", None, None),
        ({"opt_state/**": "device", "**": "pinned_host"}, None, None, "pinned_host"),
        ({"mlp/bias": "pinned_host"}, "pinned_host", "pinned_host", "pinned_host"),
        ({"opt_state/**/nu/**/bias": "unpinned_host"}, None, "unpinned_host", None),
    ]
    for memory, first, second, bias in cases:
        found = resolver(memory=memory)
        plan, whole = found.state_plan(state, tree), found.plan(held)
        for above, each in (("", plan), ("opt_state/", whole)):
            assert each[f"{above}0/mu/mlp/bias"].memory_kind == first, memory
            assert each[f"{above}0/nu/mlp/bias"].memory_kind == second, memory
        assert whole["mlp/bias"].memory_kind == bias, memory
        for tree_of, shardings in (
            (plan, found.state_shardings(state, tree)),
            (whole, found.shardings(held)),
        ):
            kinds = [each.memory_kind for each in jax.tree.leaves(shardings)]
            assert kinds == [each.memory_kind or "device" for each in tree_of.arrays], memory


def test_partial_sums_of_the_plan_are_put_and_checked() -> None:
    found = Resolver(
        loads(
            "mesh: {data: 2 explicit, model: 4 explicit}\n"
            "rules: [mlp -> model]\n"
            'overrides: [{path: "**/kernel", spec: "(data, none) unreduced model"}]\n'
            'params: {"**/bias": mlp}\n'
        )
    )
    tree = {"a": {"kernel": jnp.arange(128.0).reshape(8, 16), "bias": jnp.ones(16)}}
    placed = found.put(tree)
    kernel = placed["a"]["kernel"]
    assert kernel.sharding.spec == P("data", None, unreduced={"model"})
    assert found.verify_placement(placed) == ()
    summed = jax.sharding.reshard(kernel, NamedSharding(found.mesh, P(None, None)))
    np.testing.assert_array_equal(np.asarray(summed), np.asarray(tree["a"]["kernel"]))
    said = text(only(found.verify_placement({"a": {**placed["a"], "kernel": summed}})))
    assert said.startswith("`a/kernel` is no partial sums over")
    assert "planned P('data', None, unreduced={'model'}), found no sums" in said
    plain = Resolver(make_spec(params=NAMES))
    back = plain.put({"kernel": kernel})["kernel"]
    assert plain.verify_placement({"kernel": back}) == ()
    np.testing.assert_array_equal(np.asarray(back), np.asarray(tree["a"]["kernel"]))


def test_sums_need_a_mesh_that_is_explicit() -> None:
    text = (
        "mesh: {data: 2, model: 4 explicit}\n"
        'overrides: [{path: "**/kernel", spec: "(none, none) unreduced model"}]\n'
    )
    with pytest.raises(ShardspecError, match="SHD116"):
        Resolver(loads(text))
    quiet = Resolver(loads(f"{text}lints: {{sums-not-explicit: allow}}\n"))
    with pytest.raises(ShardspecError, match="sums over `model`, where `data` is left"):
        quiet.shardings({"a": {"kernel": jnp.ones((8, 16))}})


def test_partial_sums_are_a_finding() -> None:
    found = resolver()
    mesh = Mesh(found.mesh.devices, ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        a = jax.device_put(np.ones((8, 16), np.float32), NamedSharding(mesh, P(None, "data")))
        b = jax.device_put(np.ones((16, 16), np.float32), NamedSharding(mesh, P("data", None)))
        out = P(None, None, unreduced={"data"})
        sums = jax.jit(lambda a, b: jnp.einsum("ij,jk->ik", a, b, out_sharding=out))(a, b)
        said = text(only(found.verify_placement({"kernel": sums})))
        assert said.startswith("`kernel` is not summed up")
        assert "found partial sums over data" in said
        planned = found.sharding("embed mlp", (8, 16)).spec
        assert found.verify_placement({"kernel": jax.sharding.reshard(sums, planned)}) == ()


def test_each_cause_is_a_finding_of_its_own() -> None:
    found = resolver()
    tree = found.put({"a": layer(), "b": layer()})
    tree["a"]["kernel"] = np.ones((8, 16))
    tree["b"]["bias"] = jnp.ones(16)
    tree["b"]["kernel"] = jax.device_put(np.ones((8, 16)), NamedSharding(found.mesh, P()))
    assert len(found.verify_placement(tree)) == 3


def test_strict_raises_what_is_an_error() -> None:
    found = resolver()
    with pytest.raises(ShardspecError, match="24 arrays are on one device"):
        found.verify_placement(layers(), strict=True)
    assert found.verify_placement(found.put(layers()), strict=True) == ()
    warned = resolver(lints={"sharding-differs": Severity.WARNING})
    assert [d.severity for d in warned.verify_placement(layers(), strict=True)] == [
        Severity.WARNING
    ]
    assert resolver(lints={"sharding-differs": Severity.ALLOW}).verify_placement(layers()) == ()


def test_optimizer_state() -> None:
    found = resolver()
    params = found.put(layers())
    tx = optax.adam(1e-3)
    shardings = found.state_shardings(jax.eval_shape(tx.init, params), params)
    placed = jax.jit(tx.init, out_shardings=shardings)(params)
    assert found.verify_placement(params, placed) == ()
    said = text(only(found.verify_placement(params, tx.init(layers()))))
    assert said.startswith("48 arrays are on one device, uncommitted")
    assert "0/mu/layers_{0..11}/mlp/kernel x12" in said


def test_a_train_state_is_checked_whole() -> None:
    from flax.training.train_state import TrainState

    found = resolver()
    state = TrainState.create(apply_fn=None, params=layers(), tx=optax.adam(1e-3))
    assert "72 arrays" in only(found.verify_placement(state)).message
    assert found.verify_placement(found.put(state)) == ()


def test_linen_boxes_and_nnx() -> None:
    found = Resolver(make_spec())
    boxed = {"w": nn.LogicallyPartitioned(jnp.ones((8, 16)), ("embed", "mlp"))}
    assert "`w` is on one device" in only(found.verify_placement(boxed)).message
    assert found.verify_placement(found.put(boxed)) == ()
    names = ("embed", "mlp")
    state = nnx.State({"w": nnx.Param(jnp.ones((8, 16)), out_sharding=names, eager_sharding=False)})
    assert "`w` is on one device" in only(found.verify_placement(state)).message
    assert found.verify_placement(found.put(state)) == ()


def test_abstract_arrays_lie_where_they_say() -> None:
    found = resolver()
    planned = found.sharding("embed mlp", (8, 16))
    abstract = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=planned)
    assert found.verify_placement({"kernel": abstract}) == ()
    whole = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=NamedSharding(found.mesh, P()))
    assert "sharded differently" in only(found.verify_placement({"kernel": whole})).message


def test_what_lies_nowhere_is_refused() -> None:
    found = resolver()
    with pytest.raises(ShardspecError, match="`kernel` is a ShapeDtypeStruct without a sharding"):
        found.verify_placement({"kernel": jax.ShapeDtypeStruct((8, 16), jnp.float32)})
    with pytest.raises(ShardspecError, match="`bias` is being traced"):
        jax.jit(lambda tree: (found.verify_placement(tree), tree)[1])(layer())


def test_many_groups_are_cut() -> None:
    found = resolver()
    tree = {name * 2: layer() for name in "abcdef"}
    notes = only(found.verify_placement(tree)).notes
    assert notes[8] == "and 4 more groups of arrays"
    assert notes[0].startswith("aa/bias f32[16]")


# the lock


SPEC = """\
shardspec: 1
targets:
  here: {hardware: 8 cpu, mesh: {data: 2, model: 4}}
rules:
  - embed -> data
  - mlp -> model
params: {"**/kernel": embed mlp, "**/bias": mlp}
arrays:
  layers_{0..3}/kernel: f32[8, 16]
  layers_{0..3}/bias: f32[16]
lints: {below-tile: allow}
"""


@pytest.fixture
def spec_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(SPEC)
    result = CliRunner().invoke(cli, ["lock", "spec.yaml"])
    assert result.exit_code == 0, result.output
    return Path("spec.yaml")


def model(count: int = 4) -> dict[str, Any]:
    return {f"layers_{number}": layer() for number in range(count)}


def test_a_fresh_lock_that_agrees_says_nothing(spec_file: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Resolver(spec_file)
    assert found.findings(model()) == ()
    assert found.findings({"layers_1": layer()}) == (), "a part of the model is no difference"
    assert found.verify_placement(found.put(model())) == ()


def test_arrays_that_the_lock_does_not_have(spec_file: Path) -> None:
    (said,) = Resolver(spec_file).findings(model(9))
    assert said.code.id == "SHD904"
    assert said.message == "10 arrays are not in `spec.lock`"
    assert said.notes == (
        "layers_{4..8}/bias x5: f32[16] P('model')",
        "layers_{4..8}/kernel x5: f32[8, 16] P('data', 'model')",
    )


def test_arrays_that_are_planned_otherwise(spec_file: Path) -> None:
    tree = model() | {"layers_2": {"kernel": jnp.ones((8, 32)), "bias": jnp.ones(16)}}
    found = Resolver(spec_file)
    (said,) = found.findings(tree)
    assert said.message == "`layers_2/kernel` is planned differently from `spec.lock`"
    assert said.notes == (
        "layers_2/kernel: locked f32[8, 16] P('data', 'model'), now f32[8, 32] P('data', 'model')",
    )
    assert [d.code.id for d in found.verify_placement(found.put(tree))] == ["SHD904"]
    with pytest.raises(ShardspecError, match="SHD904"):
        found.verify_placement(found.put(tree), strict=True)


@pytest.mark.parametrize(
    ("before", "after", "note"),
    [
        ("(model)", "(data)", "locked f32[16] P('data'), now f32[16] P('model')"),
        ("devices t5x = sha256:", "devices t5x = sha256:f", "in another order"),
        ("mesh data = 2", "mesh data = 4", "locked: data=4 model=4 on 8 cpu; now: data=2 model=4"),
        ("target here", "target there", "does not have the target `here`"),
    ],
)
def test_a_lock_made_by_another_shardspec(
    spec_file: Path, before: str, after: str, note: str
) -> None:
    lock = spec_file.with_suffix(".lock")
    text_ = lock.read_text()
    changed = text_.replace(before, after)
    assert changed != text_
    if "sha256:f" in after:
        start = changed.index(after) + len("devices t5x = sha256:")
        changed = changed[:start] + changed[start:][:32] + changed[start + 33 :]
    lock.write_text(changed)
    found = Resolver(spec_file).findings(model())
    assert found
    assert {d.code.id for d in found} == {"SHD904"}
    assert any(note in text(each) for each in found)


def test_a_stale_lock_is_a_warning_at_the_callers_line(spec_file: Path) -> None:
    spec_file.write_text(SPEC + "doc: more\n")
    with pytest.warns(LockWarning, match=r"`spec.lock` is stale: `spec.yaml` changed") as caught:
        found = Resolver(spec_file)
    assert os.path.samefile(caught[0].filename, __file__)
    assert found.findings(model(9)) == (), "what is stale is not compared"


def test_a_broken_lock_is_a_warning(spec_file: Path) -> None:
    spec_file.with_suffix(".lock").write_text("<<<<<<< HEAD\n")
    with pytest.warns(LockWarning, match="is no lock"):
        Resolver(spec_file)


def test_a_spec_can_silence_its_lock(spec_file: Path) -> None:
    spec_file.write_text(SPEC.replace("{below-tile", "{stale-lock: allow, below-tile"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Resolver(spec_file)


# what a resolver is


def test_copies_and_pickles() -> None:
    found = resolver()
    assert copy.deepcopy(found) is found
    assert copy.deepcopy({"r": found})["r"] is found
    with pytest.raises(TypeError, match="pickle the spec"):
        pickle.dumps(found)


def test_it_is_static_under_jit() -> None:
    found = resolver()
    apply = jax.jit(lambda r, x: r.constrain(x, "embed mlp"), static_argnums=0)
    assert apply(found, jnp.ones((8, 16))).sharding.spec == P("data", "model")


def test_visualize() -> None:
    found = resolver(activations={"residual": "batch length mlp"})
    drawn = found.visualize(layers())
    assert len(drawn.grids) == 2, "layers are drawn once"
    assert "layers_0/mlp/kernel   f32[8, 16]   P('data', 'model')" in str(drawn)
    assert "activation residual" in str(found.visualize("residual"))
    with pytest.raises(KeyError, match="did you mean `residual`"):
        found.visualize("residul")
