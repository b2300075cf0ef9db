"""A step is traced as on its target, whatever it asks and by whatever name."""

from __future__ import annotations

import inspect
import itertools
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from click.testing import CliRunner
from jax import default_backend, device_count, devices, local_devices, process_count
from jax.sharding import NamedSharding, PartitionSpec

from shardspec import Resolver, loads
from shardspec.cli.main import cli
from shardspec.jax_backend.on_target import on_target
from shardspec.jax_backend.step.trace import Call, traced
from shardspec.jax_backend.target_devices import machine_for

SPEC = """
shardspec: 1
targets:
  tpu: {hardware: tpu v5e 2x4, mesh: {data: 2, model: 4}}
  gpu: {hardware: 2 * h100, mesh: {data: 4, model: 4}}
  same: {hardware: tpu v5e 2x4, mesh: {data: 4, model: 2}}
  any: {mesh: {data: 2, model: 2}}
rules: ["batch -> data", "mlp -> model", "embed -> none"]
params: {"**/wi": "_ mlp", "**/wo": "mlp _"}
"""


def resolver(target: str = "tpu") -> Any:
    return Resolver(loads(SPEC), target, devices="abstract")


class Held:
    """Names that no module has."""

    count = staticmethod(jax.device_count)


def answers() -> list[Any]:
    kinds = [each.device_kind for each in (*devices()[:1], *jax.local_devices()[:1])]
    counts = (jax.device_count(), device_count(), len(devices()), Held.count())
    processes = (process_count(), jax.process_count(), len(jax.process_indices()))
    backends = {default_backend(), jax.default_backend(), jax.extend.backend.get_backend().platform}
    return [kinds, counts, processes, len(local_devices()), jax.process_index(), backends]


@pytest.mark.parametrize(
    ("target", "kind", "count", "processes", "platform"),
    [
        ("tpu", "TPU v5 lite", 8, 1, "tpu"),
        ("gpu", "NVIDIA H100 80GB HBM3", 16, 2, "gpu"),
        ("any", "cpu", 4, 1, "cpu"),
    ],
)
def test_every_name_answers_for_the_target_and_in_this_thread_alone(
    target: str, kind: str, count: int, processes: int, platform: str
) -> None:
    import jax.extend.backend

    before, names = answers(), (jax.devices, jax.local_devices, process_count)
    elsewhere: list[Any] = []
    with pytest.raises(KeyError), on_target(resolver(target).target):  # noqa: PT012
        found = answers()
        assert found == [
            [kind] * 2,
            (count,) * 4,
            (processes,) * 3,
            count // processes,
            0,
            {platform},
        ]
        other = threading.Thread(target=lambda: elsewhere.append(answers()))
        other.start()
        other.join()
        assert jax.devices("cpu")[0].platform == "cpu"
        if platform != "gpu":
            with pytest.raises(RuntimeError, match="Unknown backend"):
                jax.devices("gpu")
        for function in (jax.local_devices, jax.process_count):
            function.cache_clear()
        assert float(jnp.ones(2).sum()) == 2, "arrays are made here"
        raise KeyError
    assert elsewhere == [before]
    assert answers() == before
    assert names == (jax.devices, local_devices, jax.process_count)


def test_a_default_device_that_code_sets_is_taken_back() -> None:
    with on_target(resolver().target):
        jax.config.update("jax_default_device", jax.devices()[0])
    assert jax.config.jax_default_device is None
    assert float(jnp.ones(2).sum()) == 2


def lowered(function: Callable[..., Any], target: str = "tpu") -> tuple[str, tuple[str, ...]]:
    struct = jax.ShapeDtypeStruct
    params = {"wi": struct((16, 32), "float32"), "wo": struct((32, 16), "float32")}
    found = traced(resolver(target), Call(function, (params, struct((8, 16), "float32"))))
    return str(found.module), found.notes


def plain(params: Any, x: Any) -> Any:
    mesh = resolver().mesh
    h = jax.lax.with_sharding_constraint(x @ params["wi"], _named(mesh))
    return (h @ params["wo"]) * 2


def _named(mesh: Any) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec("data", "model"))


def shard(x: Any) -> Any:
    """Constrain as Tunix does."""
    from jax._src.mesh import thread_resources

    mesh = thread_resources.env.physical_mesh
    if mesh.empty or jax.devices()[0].platform == "cpu":
        return x
    return jax.lax.with_sharding_constraint(x, _named(mesh))


def of_new_context(x: Any) -> Any:
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec("data", "model"))


def of_own_mesh(x: Any) -> Any:
    shape = (jax.device_count() // 4, 4)
    auto = (jax.sharding.AxisType.Auto,) * 2
    return jax.lax.with_sharding_constraint(
        x, _named(jax.make_mesh(shape, ("data", "model"), axis_types=auto))
    )


@pytest.mark.parametrize("constrain", [shard, of_new_context, of_own_mesh])
def test_a_step_that_asks_is_the_same_program_as_on_the_target(constrain: Any) -> None:
    def plain(params: Any, x: Any) -> Any:
        h = constrain(x @ params["wi"])
        return (h @ params["wo"]) * (2 if default_backend() == "tpu" else 3)

    found, notes = lowered(plain)
    assert notes == ()
    assert found == lowered(globals()["plain"])[0]


def test_verify_proves_the_program_of_the_target() -> None:
    pytest.importorskip("libtpu")

    def step(params: Any, x: Any) -> Any:
        return (shard(x @ params["wi"]) @ params["wo"]).sum()

    struct = jax.ShapeDtypeStruct
    params = {"wi": struct((512, 2048), "bfloat16"), "wo": struct((2048, 512), "bfloat16")}
    found = resolver().verify(jax.grad(step), params, struct((1024, 512), "bfloat16"))
    assert not found.faults, str(found)
    assert found.cost.step is not None
    assert found.cost.step.notes == ()


def test_what_was_traced_for_one_target_is_not_taken_for_another() -> None:
    @jax.jit
    def inner(x: Any) -> Any:
        return x * device_count()

    def step(params: Any, x: Any) -> Any:
        return inner(x @ params["wi"])

    wanted = {"tpu": "8.0", "gpu": "16.0", "any": "4.0"}
    for target, number in (*wanted.items(), *wanted.items()):
        assert f"dense<{number[0]}.{'6' if len(number) == 4 else '0'}" in lowered(step, target)[0]


def test_names_that_are_no_mesh_axes_are_traced_without_a_mesh() -> None:
    nn = pytest.importorskip("flax.linen")
    wi, wo = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((16, 32), (32, 16)))
    params = {"wi": nn.Partitioned(wi, names=("embed", "mlp")), "wo": wo}

    def step(params: Any, x: Any) -> Any:
        return x @ params["wi"].unbox()

    struct = jax.ShapeDtypeStruct((8, 16), "float32")
    spec = loads(SPEC.replace('"**/wi": "_ mlp", ', ""))
    found = traced(Resolver(spec, "tpu", devices="abstract"), Call(step, (params, struct)))
    (note,) = found.notes
    assert note.startswith("traced without a mesh in context: under the target's, it raises ")


def test_where_jax_cannot_be_told_that_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardspec.jax_backend.on_target._ours", lambda: ())
    (note,) = lowered(lambda params, x: x @ params["wi"])[1]
    assert f"asks `jax.devices() of jax {jax.__version__}`, which only the target could" in note


def test_what_only_a_device_knows_is_reported_with_its_line() -> None:
    def step(params: Any, x: Any) -> Any:
        assert devices()[0].memory_stats() is None
        assert not hasattr(devices()[0], "no_such_thing")
        return x @ params["wi"]

    line = inspect.getsourcelines(step)[1] + 1
    (note,) = lowered(step)[1]
    assert f"test_on_target.py:{line} asks `device.memory_stats`" in note


def test_what_a_thread_of_the_step_asks_is_reported_with_its_line() -> None:
    def asking() -> list[str]:
        found: list[str] = []
        started = threading.Thread(target=lambda: found.append(jax.devices()[0].platform))
        started.start()
        started.join()
        return found

    def step(params: Any, x: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:  # no line of ours is in its thread
            asked = [*asking(), pool.submit(default_backend).result()]
        return x @ params["wi"] if asked else x

    line = inspect.getsourcelines(asking)[1] + 2
    first, second = lowered(step)[1]
    assert f"test_on_target.py:{line} asks `jax.devices() in another thread`" in first
    assert second.startswith("the step asks `jax.default_backend() in another thread`")


def test_a_thread_that_was_there_before_is_no_concern_of_the_step() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()

        def step(params: Any, x: Any) -> Any:
            return x @ params["wi"] if pool.submit(default_backend).result() else x

        assert lowered(step)[1] == ()


@pytest.mark.parametrize("target", ["tpu", "gpu"])
def test_what_devices_say_of_themselves_is_that_of_the_target(target: str) -> None:
    from jax.extend import backend

    with on_target(resolver(target).target):
        assert backend.get_default_device() is jax.devices()[0]
        assert set(backend.backends()) == {"cpu", {"gpu": "cuda"}.get(target, target)}
        last = jax.devices()[-1]
        assert last.local_hardware_id == 7
        assert last.host_id == last.process_index
        if target == "gpu":
            assert (last.compute_capability, last.core_count) == ("9.0", 132)
        else:
            assert last.num_cores == 1


def test_a_mesh_of_the_step_may_have_another_order_of_devices() -> None:
    with on_target(resolver().target):
        here = Resolver(loads(SPEC), "tpu")
        turned = jax.sharding.Mesh(here.mesh.devices[::-1], here.mesh.axis_names)

        def step(params: Any, x: Any) -> Any:
            return jax.lax.with_sharding_constraint(x @ params["wi"], _named(turned))

        struct = jax.ShapeDtypeStruct
        params = {"wi": struct((16, 32), "float32")}
        found = traced(here, Call(step, (params, struct((8, 16), "float32"))))
        (note,) = found.notes
        assert note.startswith("the step makes a mesh with another order of devices")
        assert '[{"data"}, {"model"}]' in str(found.module)


TRAIN = """
import jax
import jax.numpy as jnp
from jax import device_count as how_many
import shardspec

resolver = shardspec.Resolver("spec.yaml")
DEVICES = how_many()
KIND = jax.devices()[0].device_kind
jax.set_mesh(resolver.mesh)

def loss(params, x):
    y = resolver.constrain(x @ params["wi"], "batch mlp")
    print(KIND, DEVICES, y.shape, resolver)
    return y.sum()

def step(given):
    assert given == resolver
    s = jax.ShapeDtypeStruct
    return loss, ({"wi": s((16, 32), jnp.float32)}, s((8, 16), jnp.float32))

def puts(given):
    params = jax.device_put({"wi": jnp.ones((16, 32))}, given.sharding("_ mlp"))
    return loss, (params, jax.ShapeDtypeStruct((8, 16), jnp.float32))

def reads(given):
    params = jax.device_put({"wi": jnp.ones((16, 32))}, given.sharding("_ mlp"))
    return loss, (params, float(params["wi"].sum()))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "asking_train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("asking_train", None)


def test_a_resolver_that_a_module_makes_at_import_has_the_target_asked_for(folder: Path) -> None:
    wanted = {"tpu": "TPU v5 lite 8", "same": "TPU v5 lite 8", "gpu": "NVIDIA H100 80GB HBM3 16"}
    for target, kind in wanted.items():
        call = ["cost", "spec.yaml", "--step", "asking_train:step", "-t", target]
        result = CliRunner().invoke(cli, call)
        assert result.exit_code == 0, result.output
        assert f"{kind} (8, 32) Resolver(spec.yaml, target {target}" in result.stderr
    assert jax.sharding.get_abstract_mesh().empty


def test_a_resolver_of_a_module_has_what_the_command_line_sets(folder: Path) -> None:
    call = [
        "cost",
        "--step",
        "asking_train:step",
        "-t",
        "same",
        "--set",
        "targets.same.mesh.data=2",
    ]
    result = CliRunner().invoke(cli, [*call, "--set", "targets.same.mesh.model=4"])
    assert result.exit_code == 0, result.output
    assert "target same: data=2 model=4" in result.stderr


def test_what_is_asked_is_reported_where_the_step_fails_for_it(folder: Path) -> None:
    (folder / "asking_train.py").write_text(
        "import jax\ndef step(given):\n    return jax.devices()[0].memory_stats()['bytes_limit']\n"
    )
    result = CliRunner().invoke(
        cli, ["cost", "spec.yaml", "--step", "asking_train:step", "-t", "tpu"]
    )
    assert result.exit_code == 2
    assert "asks `device.memory_stats`" in result.stderr
    assert "raised TypeError" in result.stderr


def test_arrays_that_are_put_on_the_target_have_no_values(folder: Path) -> None:
    call = ["cost", "spec.yaml", "-t", "tpu", "--step"]
    result = CliRunner().invoke(cli, [*call, "asking_train:puts"])
    assert result.exit_code == 0, result.stderr
    assert "parameters" in result.stdout
    result = CliRunner().invoke(cli, [*call, "asking_train:reads"])
    assert result.exit_code == 2
    assert "asking_train.py:28" in result.stderr
    assert "float32[] has no values: it is on the target" in result.stderr
    assert "read values where it runs" in result.stderr


def test_what_a_module_asked_at_its_import_is_reported_with_its_line(folder: Path) -> None:
    (folder / "asking_train.py").write_text(
        textwrap.dedent("""\
        import jax
        from jax import local_devices as mine
        COUNT = jax.device_count()
        class Settings:
            local = len(mine())
        import jax as j
        def block(x, size=j.process_count()):
            return x
        MESH = jax.make_mesh((1,), ("x",), devices=jax.devices("cpu")[:1])
        def step(params, x):
            return x * jax.device_count() * COUNT
        """)
    )
    sys.path.insert(0, str(folder))
    try:
        import asking_train  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(folder))
    places = [note.partition(" ")[0] for note in lowered(asking_train.step)[1]]
    assert places == [f"asking_train.py:{line}" for line in (3, 5, 7)]


@pytest.mark.parametrize(
    "hardware", ["tpu v5e 4x8", "tpu v5p 2x2x4", "tpu v7x 2x2x2", "2 * tpu v6e 4x4", "3 * h100"]
)
def test_devices_are_those_of_the_machine(hardware: str) -> None:
    (target,) = loads(f"shardspec: 1\nhardware: {hardware}\nmesh: {{all: rest}}\n").ir.targets
    machine = machine_for(target)
    found = machine.devices()
    assert target.hardware is not None
    assert len(found) == target.hardware.device_count
    ids = [device.id for device in found]
    assert ids == sorted(set(ids))
    if machine.platform == "tpu":
        places = [(d.slice_index, *reversed(d.coords), d.core_on_chip) for d in found]
        assert places == sorted(set(places)), "x is fastest, the cores of a chip are together"
    by_process = [
        len(list(group)) for _, group in itertools.groupby(sorted(d.process_index for d in found))
    ]
    assert len(set(by_process)) == 1
    assert len(by_process) == machine.process_count()
    assert Resolver(
        loads(f"shardspec: 1\nhardware: {hardware}\nmesh: {{all: rest}}\n"), devices=found
    )


def test_jax_may_ask_its_backend_while_it_lowers_a_kernel() -> None:
    from jax._src.interpreters import mlir

    own = resolver()
    with on_target(own.target, own._arrays.spec) as here:
        backend = here.machine
        assert backend.runtime_type == ""
        asked = {"backend": backend, "__name__": mlir.__name__}
        exec(compile("backend.platform_version", mlir.__file__, "exec"), asked)
        assert here.machine.questions == []
        assert backend.platform_version == ""
        assert [each.file for each in here.machine.questions] == [__file__]


def test_a_sharding_may_name_any_memory_of_a_target() -> None:
    """What is in host memory is traced, too."""
    made = machine_for(loads("hardware: tpu v5e 2x2\nmesh: {x: 4}\n").ir.targets[0]).devices()
    mesh = jax.make_mesh((4,), ("x",), devices=made)
    for memory in made[0].addressable_memories():
        found = NamedSharding(mesh, PartitionSpec("x"), memory_kind=memory.kind)
        assert found.memory_kind == memory.kind
