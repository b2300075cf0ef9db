"""Two and four real processes, four devices each: the same places, the same numbers, one spec.

Sums of floats depend on their order. What holds, and is tested: all processes hold the same bits;
so does one process of as many devices, if its collectives go over Gloo too; and without Gloo it
does where no sum has more than two terms, that is where every mesh axis has size two.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("jax")
pytest.importorskip("optax")

from tests.jax_backend.many import run

#: Places parameters in two ways, trains three steps, and reports the bits of all of it.
_TRAIN = '''
import hashlib
import jax.numpy as jnp
import numpy as np
import optax
import shardspec
from jax.experimental import multihost_utils

(mesh,) = arguments
resolver = shardspec.Resolver(shardspec.loads(f"""
shardspec: 1
mesh: {mesh}
axes: {{batch: 32}}
rules:
  - batch -> data
  - mlp -> model
  - embed -> data
params:
  wi: embed mlp
  wo: mlp embed
state: {{optimizer: zero1}}
"""))
random = np.random.default_rng(0)
whole = {
    "wi": random.normal(scale=0.1, size=(16, 64)).astype(np.float32),
    "wo": random.normal(scale=0.1, size=(64, 16)).astype(np.float32),
}
examples = random.normal(size=(32, 8, 16)).astype(np.float32)
tx = optax.adam(1e-2)
state = jax.eval_shape(tx.init, whole)
places, state_places = resolver.shardings(whole), resolver.state_shardings(state, whole)


def init(key):
    make = lambda key, like: jax.random.normal(key, like.shape)
    return jax.tree.map(make, dict(zip(whole, jax.random.split(key))), whole)


made = jax.jit(init, out_shardings=places)(jax.random.key(0))
params = resolver.put(whole)
for name, array in whole.items():
    assert params[name].sharding == made[name].sharding == places[name]
    for shard in params[name].addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), array[shard.index])
opt_state = jax.jit(tx.init, out_shardings=state_places)(params)

batch = resolver.batch("batch _ _")
x = batch.put(examples[batch.local_slice(examples.shape)])
assert x.shape == examples.shape
assert x.sharding == batch.sharding(x)


def step(params, opt_state, x):
    def loss(params):
        return jnp.mean((jax.nn.relu(x @ params["wi"]) @ params["wo"] - x) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    updates, opt_state = tx.update(gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, value


step = jax.jit(step, out_shardings=(places, state_places, None))
losses = []
for _ in range(3):
    params, opt_state, value = step(params, opt_state, x)
    losses.append(float(value))
gathered = multihost_utils.process_allgather([params, opt_state, made], tiled=True)
assert not np.array_equal(gathered[0]["wi"], whole["wi"])
leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(gathered)]
report([[hashlib.sha256(leaf.tobytes()).hexdigest() for leaf in leaves], losses])
'''

_TWO = "{data: 2, model: 4}"
_PAIRS = "{data: 2, model: 2, idle: 2}"
_FOUR = "{data: 4, model: 4}"


@pytest.mark.parametrize(
    ("count", "mesh"),
    [
        (2, _TWO),
        pytest.param(2, _PAIRS, marks=pytest.mark.nightly),
        pytest.param(4, _FOUR, marks=pytest.mark.nightly),
    ],
)
def test_processes_agree_bit_for_bit_with_one(count: int, mesh: str) -> None:
    several = run(_TRAIN, count, mesh)
    assert several == [several[0]] * count
    assert run(_TRAIN, 1, mesh, devices=4 * count) == several[:1]


def test_sums_of_two_are_the_same_without_gloo() -> None:
    assert run(_TRAIN, 1, _PAIRS, devices=8, gloo=False) == run(_TRAIN, 1, _PAIRS, devices=8)


def test_longer_sums_are_close_without_gloo() -> None:
    (_, expected), (_, found) = (
        run(_TRAIN, 1, _TWO, devices=8, gloo=gloo)[0] for gloo in (True, False)
    )
    assert found == pytest.approx(expected, rel=1e-5)


# refusal

#: Makes a resolver of the file that stands at the number of the process, and tells how that went.
_MAKE = """
import shardspec

paths = arguments[0]
try:
    found = shardspec.Resolver(paths[process], agree_within_s=arguments[1])
    assert int(jax.device_count()) == 8
    report(repr(found))
except shardspec.ShardspecError as error:
    report([diagnostic.code.id for diagnostic in error.diagnostics] + [str(error)])
"""

_SPEC = """\
shardspec: 1
mesh: {data: 2, model: 4}
rules:
  - batch -> data
  - mlp -> model
"""


def hosts(folder: Path, *texts: dict[str, str]) -> list[str]:
    """Return the path of `spec.yaml` on each host, every one with files of its own."""
    paths = []
    for number, files in enumerate(texts):
        host = folder / f"host{number}"
        host.mkdir()
        for name, text in files.items():
            (host / name).write_text(text, encoding="utf-8")
        paths.append(str(host / "spec.yaml"))
    return paths


def test_the_same_spec_in_two_places_is_the_same(tmp_path: Path) -> None:
    paths = hosts(tmp_path, {"spec.yaml": _SPEC}, {"spec.yaml": _SPEC.replace("\n", "\r\n")})
    first, second = run(_MAKE, 2, paths, 60)
    assert first.endswith("target default: data=2 model=4)")
    assert second.endswith("target default: data=2 model=4)")


def test_another_spec_is_refused_by_every_process(tmp_path: Path) -> None:
    other = _SPEC.replace("data: 2, model: 4", "data: 4, model: 2")
    paths = hosts(tmp_path, {"spec.yaml": _SPEC}, {"spec.yaml": other})
    first, second = run(_MAKE, 2, paths, 60)
    assert first == second
    code, text = first
    assert code == "SHD902"
    assert re.search(r"`[0-9a-f]{12}` on process 0, `[0-9a-f]{12}` on process 1", text), text
    assert re.search(r"`spec.yaml`: sha256:\w+ on process 0, sha256:\w+ on process 1", text), text
    assert "the mesh" not in text


def test_the_file_that_differs_is_named(tmp_path: Path) -> None:
    spec = _SPEC.replace("mesh:", "extends: ./rules.yaml\nmesh:").replace("  - mlp -> model\n", "")
    rules = "shardspec: 1\nrules:\n  - mlp -> model\n"
    stale = rules.replace("model", "data")
    paths = hosts(
        tmp_path,
        {"spec.yaml": spec, "rules.yaml": rules},
        {"spec.yaml": spec, "rules.yaml": stale},
        {"spec.yaml": spec, "rules.yaml": rules},
        {"spec.yaml": spec, "rules.yaml": rules},
    )
    found = run(_MAKE, 4, paths, 60, devices=2)
    assert found == [found[0]] * 4
    assert "on processes 0, 2, 3" in found[0][1]
    assert "note: `rules.yaml`: sha256:" in found[0][1]
    assert "`spec.yaml`" not in found[0][1]


def test_a_spec_that_does_not_load_is_told_to_the_others(tmp_path: Path) -> None:
    broken = _SPEC.replace("-> model", "-> modle")
    paths = hosts(tmp_path, {"spec.yaml": _SPEC}, {"spec.yaml": broken})
    first, second = run(_MAKE, 2, paths, 60)
    assert first[0] == "SHD902"
    assert "process 1 has no plan" in first[1]
    assert "process 1: SHD201: unknown mesh axis `modle`" in first[1]
    assert second[0] == "SHD201"


def test_a_spec_that_loads_nowhere_is_told_as_it_is(tmp_path: Path) -> None:
    paths = hosts(tmp_path, {}, {})
    first, second = run(_MAKE, 2, paths, 60)
    assert first[0] == second[0] == "SHD001"


_LATE = """
import time
from pathlib import Path
import shardspec

spec, gave_up = shardspec.loads(arguments[0]), Path(arguments[1])
jax.devices()  # JAX itself waits here for all processes
if process == 1:
    while not gave_up.exists():
        time.sleep(0.1)
try:
    text = repr(shardspec.Resolver(spec, agree_within_s=[1, 60][process]))
except shardspec.ShardspecError as error:
    text = str(error)
gave_up.touch()
report(text)
"""


def test_a_process_that_does_not_come_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    first, second = run(_LATE, 2, _SPEC, str(tmp_path / "gave up"))
    assert "error[SHD902]: process 0 waited 1 s for the others to plan" in first
    assert "agree_within_s=None" in first
    assert second == "Resolver(<string>, target default: data=2 model=4)"


def test_one_process_alone_if_it_says_so() -> None:
    program = """
import shardspec
spec = shardspec.loads(arguments[0])
jax.devices()
report(repr(shardspec.Resolver(spec, agree_within_s=None)) if process == 0 else "")
"""
    text, _ = run(program, 2, _SPEC)
    assert text == "Resolver(<string>, target default: data=2 model=4)"


def test_devices_of_one_process_are_its_own_affair() -> None:
    program = """
import shardspec

mesh = ["{data: 4}", "{data: 2, model: 2}"][process]
spec = shardspec.loads(f"{{shardspec: 1, mesh: {mesh}}}")
report(repr(shardspec.Resolver(spec, devices=jax.local_devices(), agree_within_s=60)))
"""
    first, second = run(program, 2)
    assert first.endswith("data=4)")
    assert second.endswith("data=2 model=2)")


def test_the_page_runs() -> None:
    page = Path(__file__).parents[2] / "docs" / "processes.md"
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    program = next(body for language, body in blocks if language == "python")
    printed = next(body for language, body in blocks if language == "text")
    assert "jax.distributed.initialize()\n" in program
    program = program.replace("jax.distributed.initialize()\n", "")
    heard = "said = []\nprinted = lambda *what: said.append(' '.join(map(str, what)))\n"
    program = program.replace("print(", "printed(")
    first, second = run(f"{heard}{program}report(said)\n", 2)
    assert first == printed.splitlines()
    assert second == ["1 feeds (slice(32, 64, None),)", *first[1:]]
