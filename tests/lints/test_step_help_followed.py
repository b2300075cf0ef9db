"""Constraints in help, written into steps of several kinds as they stand: each step is cheaper.

The steps are small ones of models that were tried: vision with a pooling head, experts, a recurrent
model under `jax.vmap`, decoding by pages.
"""

from __future__ import annotations

import re

import pytest

from shardspec import pipeline
from shardspec.analysis.cost import Cost
from shardspec.diagnostics import codes
from shardspec.ir.spec import PartitionSpec
from shardspec.lints.evidence.constraints import constraint
from tests.lints.step_examples import cost, findings
from tests.test_docs import example

_CALL = re.compile(r"`(shardspec\.constrain\(.*?\))`")


def _example(code: str, spec: str) -> str:
    return "".join(f"# {line}\n" for line in code.splitlines()) + spec


def _help(code: str, step: str, spec: str) -> str:
    found = [each for each in findings(_example(step, spec)) if each.code.id == code]
    assert found, [each.code.id for each in findings(_example(step, spec))]
    return found[0].help or ""


def _call(help: str) -> str:
    said = _CALL.search(help)
    assert said, help
    return said[1]


def _codes(step: str, spec: str) -> list[str]:
    return [each.code.id for each in findings(_example(step, spec))]


def _sent(found: Cost) -> int:
    assert found.step is not None
    return sum(found.step.wire_bytes.values())


def _followed(code: str, step: str, spec: str, line: str) -> str:
    """Return the step with the call of a finding's help in front of a line of it."""
    call = _call(_help(code, step, spec))
    value = call.partition("(")[2].partition(",")[0]
    pad = line[: len(line) - len(line.lstrip())]
    mended = step.replace(line, f"{pad}{value} = {call}\n{line}")
    assert mended != step
    assert code not in _codes(mended, spec)
    assert _sent(cost(_example(mended, spec))) < _sent(cost(_example(step, spec)))
    return call


FSDP = """\
shardspec: 1
hardware: tpu v5e 4x4
mesh: {fsdp: 4, expert: 4}
axes: {rows: 256, batch: 256, length: 512, embed: 1024, mlp: 4096}
rules: ["batch -> (fsdp, expert)", "embed -> fsdp", "length, mlp, norm -> none"]
params: {up: embed mlp, down: mlp embed, scale: norm}
arrays: {up: "bf16[1024, 4096]", down: "bf16[4096, 1024]", scale: "bf16[1024]"}
activations: {x: rows length embed}
lints: {SHD2: allow, SHD4: allow}
"""


def test_a_batch_is_sharded_as_its_rule_says_and_not_only_over_what_is_summed() -> None:
    step = "def step(params, x):\n    h = jnp.tanh(x @ params['up'])\n    return h @ params['down']"
    call = _followed("SHD513", step, FSDP, "    h = jnp.tanh(x @ params['up'])")
    assert call == 'shardspec.constrain(x, "batch _ _")'


def test_rows_that_each_device_holds_all_of_are_sharded_and_fit() -> None:
    """The work is shared, over what is summed; a smaller batch would leave it so."""
    spec = FSDP.replace("{rows: 256, batch: 256", "{rows: 16384, batch: 16384")
    step = "def step(params, x):\n    h = jnp.tanh(x @ params['up'])\n    return h @ params['down']"
    help = _help("SHD510", step, spec)
    assert "shard the batch of bf16[16384, 512, 4096], model.py:2, over `fsdp`, `expert`" in help
    line = "    h = jnp.tanh(x @ params['up'])"
    mended = step.replace(line, f"    x = shardspec.constrain(x, 'batch _ _')\n{line}")
    assert "SHD510" not in _codes(mended, spec)


def test_a_number_beside_the_batch_has_no_rows() -> None:
    spec = FSDP.replace("{rows: 256, batch: 256", "{rows: 16384, batch: 16384")
    step = (
        "rate = jax.ShapeDtypeStruct((), jnp.bfloat16)\n"
        "def step(params, x, rate):\n"
        "    h = jnp.tanh(x @ params['up'])\n"
        "    return rate * (h @ params['down'])"
    )
    assert "shard the batch of bf16[16384, 512, 4096]" in _help("SHD510", step, spec)


def test_inside_of_vmap_the_batch_is_named_apart() -> None:
    step = (
        "def one(params, x):\n"
        "    def block(x, _):\n"
        "        h = jnp.tanh(x @ params['up'])\n"
        "        return h @ params['down'], None\n"
        "    return jax.lax.scan(block, x, None, length=4)[0]\n"
        "def step(params, x):\n    return jax.vmap(one, (None, 0))(params, x)"
    )
    call = _followed("SHD513", step, FSDP, "        h = jnp.tanh(x @ params['up'])")
    assert call == 'shardspec.constrain(x, "_ _", mapped="batch")'


def test_work_that_rows_would_divide_is_done_on_rows() -> None:
    """The rule of the batch has the axis that repeats the work: nothing but rows is to be split."""
    spec = FSDP.replace("embed -> fsdp", "rows -> fsdp").replace("embed, mlp", "embed, mlp")
    spec = spec.replace("length, mlp, norm -> none", "embed, length, mlp, norm -> none")
    step = "def step(params, x):\n    hidden = x @ params['up']\n    return jnp.max(hidden, axis=2)"
    call = _call(_help("SHD507", step, spec))
    assert call == 'shardspec.constrain(x, "batch _ _")'
    mended = step.replace("x @ params['up']", call.replace("(x,", "(x @ params['up'],"))
    assert "SHD507" not in _codes(mended, spec)
    flops = [cost(_example(each, spec)).step.flops for each in (step, mended)]  # type: ignore[union-attr]
    assert flops[1] * 4 == flops[0]


def test_a_constraint_on_another_line_than_what_it_moves_is_found() -> None:
    spec = """\
shardspec: 1
mesh: {x: 4, y: 2}
axes: {heads: 64, length: 4096, embed: 4096}
rules: ["heads -> y", "rows -> (x, y)", "embed -> x", "length -> none"]
params: {w: heads length embed}
arrays: {w: "bf16[64, 4096, 4096]"}
activations: {x: heads length embed, turned: _ rows _}
lints: {SHD2: allow}
"""
    step = "def step(params, x):\n    x = x + params['w']\n    y = x\n" + (
        "    return resolver.constrain(y, activation='turned')"
    )
    call = _followed("SHD508", step, spec, "    y = x")
    assert call == 'shardspec.constrain(x, "heads embed _")'


def test_a_partition_that_no_rule_gives_is_written_with_its_mesh() -> None:
    spec, _ = pipeline.load_text(FSDP, "spec.yaml")
    assert spec is not None
    (plan,) = pipeline.compile_plans(spec)
    split = PartitionSpec((("expert",), (), ()))
    call = constraint(plan, (256, 512, 1024), split)
    sharding = "NamedSharding(resolver.mesh, P('expert', None, None))"
    assert call == f"`jax.lax.with_sharding_constraint(x, {sharding})`"
    step = f"def step(params, x):\n    x = {call.strip('`')}\n    return x @ params['up']"
    (op,) = cost(_example(step, FSDP)).step.ops  # type: ignore[union-attr]
    assert op.operands[0].split == split


def test_what_a_loop_gathers_stays_sharded_over_the_other_axes() -> None:
    spec = FSDP.replace("hardware: tpu v5e 4x4", "hardware: tpu v5e 2x4")
    spec = spec.replace("{fsdp: 4, expert: 4}", "{fsdp: 4, tensor: 2}")
    spec = spec.replace('"batch -> (fsdp, expert)"', "batch -> fsdp, mlp -> tensor")
    spec = spec.replace("length, mlp, norm", "turns, length, features, norm").replace(
        "rows: 256", "turns: 16, features: 1024"
    )
    spec = spec.replace("rows length embed", "turns batch length features")
    spec = spec.replace("length: 512", "length: 32")
    step = (
        "def step(params, x):\n    array = params['up']\n"
        "    one = lambda x: resolver.constrain(x @ array, 'batch _ mlp')\n"
        "    return jax.lax.map(one, x)"
    )
    line = "    one = lambda x: resolver.constrain(x @ array, 'batch _ mlp')"
    assert _followed("SHD509", step, spec, line) == 'shardspec.constrain(array, "_ mlp")'


CACHE = """\
shardspec: 1
hardware: 2 * tpu v5e 4x4
mesh: {data: 2 @ dcn, tensor: 16}
axes: {batch: 64, features: 1024}
rules: [batch -> data, mlp -> tensor, "features, layers -> none"]
params: {q: layers features mlp}
arrays: {q: "bf16[4, 1024, 4096]"}
activations: {x: batch features}
"""
DECODE = """\
cache = jax.ShapeDtypeStruct((4, 512, 16, 4096), jnp.bfloat16)
def step(params, x, cache):
    def layer(x, each):
        w, seen = each
        return x + jnp.einsum("be,em,psm->be", x, w, seen).astype(x.dtype), None
    return jax.lax.scan(layer, x, (params["q"], cache))[0]
"""


def test_what_a_guess_costs_is_reported_as_the_guess_alone() -> None:
    """Layers of the cache are taken for the batch, so each is gathered, over DCN, in a loop."""
    assert _codes(DECODE, CACHE) == ["SHD518"]
    silenced = CACHE + "lints: {guessed-placement: allow}\n"
    assert {"SHD506"} <= {*_codes(DECODE, silenced)} <= {"SHD506", "SHD509"}


def test_only_training_speaks_of_gradients() -> None:
    help = _help("SHD506", DECODE, CACHE + "lints: {guessed-placement: allow}\n")
    assert "gradients" not in help


def test_state_is_placed_by_the_names_in_help() -> None:
    spec = FSDP.replace("length, mlp, norm -> none", "length, mlp, norm, rows -> none")
    step = (
        "def step(params, x):\n"
        "    def loss(p):\n"
        "        return jnp.sum(jnp.tanh((x * p['scale']) @ p['up']) @ p['down'])\n"
        "    grads = jax.grad(loss)(params)\n"
        "    return jax.tree.map(lambda p, g: p - g, params, grads)"
    )
    help = _help("SHD517", step, spec)
    said = re.search(r"place it as (P\('fsdp'\)) from the beginning, by the names `(.*?)`", help)
    assert said, help
    mended = spec.replace("scale: norm", f"scale: {said[2]}")
    assert "SHD517" not in _codes(step, mended)


def test_a_parameter_that_is_multiplied_by_a_weight_is_no_activation() -> None:
    """The probe of a pooling head is a parameter, repeated for each example."""
    spec = FSDP.replace("params: {", "params: {probe: _ embed, ")
    spec = spec.replace("arrays: {", 'arrays: {probe: "bf16[1, 1024]", ')
    step = (
        "def step(params, x):\n"
        "    x = shardspec.constrain(x, 'batch _ _')\n"
        "    probe = jnp.tile(params['probe'][None], (x.shape[0], 1, 1))\n"
        "    query = probe @ params['up']\n"
        "    return jnp.einsum('bpm,blm->bl', query, x @ params['up'])"
    )
    assert "SHD513" not in _codes(step, spec)


def test_a_filter_jit_that_takes_no_shardings_is_replaced() -> None:
    """A constraint does not help: the layout of a result is chosen before."""
    spec = CACHE.replace("2 * tpu", "tpu").replace("2 @ dcn, tensor: 16", "4, tensor: 4")
    spec = spec.replace("rules: [", "rules: ['mlp, kv_heads -> tensor', ").replace(
        " mlp -> tensor, ", " "
    )
    step = """\
import equinox as eqx
shape = (32, 64, 2048, 4, 128)
place = resolver.sharding("_ batch _ kv_heads _", shape)
cache = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=place)
def decode(params, x, cache):
    return x @ params["q"][0], cache.at[:, :, 0].set(1)
step = eqx.filter_jit(decode, donate="all-except-first")
"""
    help = _help("SHD521", step, spec)
    assert "in place of `eqx.filter_jit`, which has no such argument, with `resolver." in help
    jitted = 'jax.jit(decode, donate_argnames="cache", out_shardings=(None, place))'
    assert "SHD521" not in _codes(step.replace(step[step.rindex("eqx.") : -1], jitted), spec)


#: For a page, what its help says as a regular expression, and what is written for it in the code of
#: its bad example: what stands there, and what takes its place, with `{0}` for what was said.
FOLLOWED = {
    "SHD503": (_CALL.pattern, r'resolver.constrain\((x @ .*?\]), "batch _"\)', r"{0}"),
    "SHD504": (_CALL.pattern, r'resolver.constrain\((x @ .*?\]), "batch _"\)', r"{0}"),
    "SHD505": (_CALL.pattern, r'resolver.constrain\((params\["w"\]), "features _"\)', r"{0}"),
    "SHD516": (r"`(\.reshape\(.*?\)\.swapaxes\(0, 1\))`", r"\.reshape\((8, 8192), 4096\)", r"{0}"),
    "SHD519": (r"`(jax\.lax\.psum\(x, 'data'\))`", r"0.1 \* (grad)", r"0.1 * {0}"),
    "SHD520": (r"remove the `(psum)` at model\.py:4", r'jax.lax.psum\((total), "data"\)', "total"),
    "SHD521": (r"`(resolver\..*?\))`", r'(names="cache")', r"\1, out_shardings=(None, {0})"),
}  # fmt: skip


@pytest.mark.parametrize("id", FOLLOWED)
def test_help_of_a_page_is_followed_on_its_bad_example(id: str) -> None:
    says, old, new = FOLLOWED[id]
    bad = example(next(each for each in codes.ALL if each.id == id), "Bad")
    help = next(each.help or "" for each in findings(bad) if each.code.id == id)
    said = re.search(says, help)
    assert said, help
    value = re.search(old, bad)
    assert value, bad
    written = said[1].replace("(x,", f"({value[1]},").replace("...", "4096")
    good = re.sub(old, lambda found: found.expand(new).format(written), bad)
    assert id not in [each.code.id for each in findings(good)], good
