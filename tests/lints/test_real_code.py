"""Findings of steps as people write them: help is followed as it says, and sound code has none."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen as nn
from flax import nnx
from flax.training.train_state import TrainState
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardspec
from shardspec import pipeline
from shardspec.analysis.cost import Cost, cost_of
from shardspec.analysis.spec_step import stated_step
from shardspec.diagnostics import Diagnostic
from shardspec.ir.spec import Param
from shardspec.jax_backend.step.reading import step_of
from tests.lints.step_examples import cost as cost_of_example
from tests.lints.step_examples import findings as findings_of_example
from tests.test_docs import example

SPEC = """\
shardspec: 1
hardware: tpu v5p 4x4x4
mesh: {data: 4, fsdp: 8, tensor: 2}
rules:
  - batch -> (data, fsdp)
  - heads, mlp, vocab -> tensor
  - embed -> fsdp
  - layers, kv, microbatch -> none
params:
  table: vocab embed
  head: embed vocab
  layers/{q,k,v}: layers embed heads kv
  layers/o: layers heads kv embed
  layers/wi: layers embed mlp
  layers/wo: layers mlp embed
"""
DATA = SPEC.replace("batch -> (data, fsdp)", "batch -> data")
REPLICATED = (
    DATA.replace("{data: 4, fsdp: 8, tensor: 2}", "{data: 32, tensor: 2}")
    .replace("  - embed -> fsdp\n", "")
    .replace("layers, kv,", "layers, kv, embed,")
)
LAYERS, EMBED, HEADS, KV, MLP, VOCAB = 4, 2048, 16, 128, 8192, 32768
Tree = Any
Build = Callable[[Any], tuple[Any, tuple[Any, ...]]]


def struct(*shape: int, dtype: Any = jnp.bfloat16, **more: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, **more)


def weights() -> Tree:
    wide = (LAYERS, EMBED, HEADS, KV)
    layers = dict.fromkeys("qkv", wide) | {"o": (LAYERS, HEADS, KV, EMBED)}
    layers |= {"wi": (LAYERS, EMBED, MLP), "wo": (LAYERS, MLP, EMBED)}
    return {
        "table": struct(VOCAB, EMBED),
        "head": struct(EMBED, VOCAB),
        "layers": {name: struct(*shape) for name, shape in layers.items()},
    }


def as_it_is(x: Any) -> Any:
    return x


def layer(p: Tree, x: Any, at_work: Any = as_it_is) -> Any:
    h = at_work(x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6))
    q, k, v = (jnp.einsum("bte,ehd->bthd", h, p[name]) for name in "qkv")
    weights = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k), -1)
    x = x + jnp.einsum("bthd,hde->bte", jnp.einsum("bhts,bshd->bthd", weights, v), p["o"])
    return x + jax.nn.gelu(at_work(x) @ p["wi"]) @ p["wo"]


def loss(p: Tree, tokens: Any, between: Any = as_it_is, at_work: Any = as_it_is) -> Any:
    x = between(p["table"][tokens])
    turn = jax.checkpoint(lambda x, lp: (between(layer(lp, x, at_work)), None))
    x, _ = jax.lax.scan(turn, x, p["layers"])
    logits = (at_work(x) @ p["head"]).astype(jnp.float32)
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], -1))


def sgd(p: Tree, grads: Tree) -> Tree:
    return jax.tree.map(lambda w, g: w - 0.01 * g, p, grads)


def train(r: Any, of_loss: Any = loss, rows: int = 64) -> Any:
    step = lambda p, tokens: sgd(p, jax.grad(of_loss)(p, tokens))  # noqa: E731
    jitted = jax.jit(step, donate_argnums=0, out_shardings=r.shardings(weights()))
    return jitted, (weights(), struct(rows, 1024, dtype=jnp.int32))


def constrained(r: Any) -> Any:
    return lambda x: r.constrain(x, "batch _ _")


def told(text: str, build: Build) -> tuple[Cost, dict[str, Diagnostic]]:
    """Return the cost of a step, and the findings of it by code."""
    r = shardspec.Resolver(
        shardspec.loads(text, "spec.yaml"), devices="abstract", agree_within_s=None
    )
    function, args = build(r)
    step = step_of(r, function, *args)
    spec, _ = pipeline.load_text(text, "spec.yaml")
    assert spec is not None
    params = tuple(
        Param(each.path, each.array.shape, each.array.dtype)
        for each in step.arguments
        if each.role == "parameter"
    )
    cost = cost_of(pipeline.compile_plans(spec, params)[0], step)
    found = [each for each in pipeline.step_findings([cost]) if each.code.id >= "SHD513"]
    assert len({each.code.id for each in found}) == len(found), "each is shown once"
    return cost, {each.code.id: each for each in found}


def seconds(cost: Cost) -> float:
    assert cost.time is not None
    return cost.time.step_seconds


def sent(cost: Cost) -> int:
    assert cost.step is not None
    return sum(cost.step.wire_bytes.values())


@pytest.mark.parametrize("id", ["SHD513", "SHD514", "SHD515", "SHD516", "SHD517", "SHD518"])
def test_the_good_example_of_a_page_costs_no_more_than_the_bad(id: str) -> None:
    code = next(each for each in shardspec.diagnostics.codes.ALL if each.id == id)
    bad, good = (example(code, heading) for heading in ("Bad", "Good"))
    assert [each.code.id for each in findings_of_example(bad)] == [id]
    assert findings_of_example(good) == ()
    assert seconds(cost_of_example(good)) <= seconds(cost_of_example(bad))


# SHD513


@pytest.mark.parametrize("text", [DATA, SPEC], ids=["no-rule", "no-constraint"])
def test_examples_that_are_constrained_as_help_says_make_weights_travel(text: str) -> None:
    before, found = told(text, train)
    help = found["SHD513"].help or ""
    rule = re.search(r"write `(batch -> .+?)` in place of `(batch -> \w+)`", help)
    assert (rule is None) == (text is SPEC), help
    fixed = text.replace(rule[2], rule[1]) if rule else text
    said = re.search(r'read: `shardspec.constrain\(x, "(.*?)"\)`', help)
    assert said, help

    def mended(r: Any) -> Any:
        return train(r, partial(loss, at_work=lambda x: r.constrain(x, said[1])))

    after, left = told(fixed, mended)
    assert "SHD513" not in left
    assert sent(after) < sent(before)
    assert seconds(after) < seconds(before)


def test_layers_with_weights_of_their_own_count_each() -> None:
    """What weights of a line send is that of all layers, as what is summed there is."""
    text = DATA.replace("layers/", "layers/*/").replace(": layers ", ": ")

    def figures(layers: int) -> tuple[float, float]:
        own = {name: struct(*each.shape[1:]) for name, each in weights()["layers"].items()}
        tree = weights() | {"layers": [own] * layers}

        def unrolled(p: Tree, tokens: Any) -> Any:
            x = p["table"][tokens]
            for each in p["layers"]:
                x = layer(each, x)
            return jnp.mean(x * x)

        def build(r: Any) -> Any:
            step = jax.jit(lambda p, x: sgd(p, jax.grad(unrolled)(p, x)), donate_argnums=0)
            return step, (tree, struct(64, 1024, dtype=jnp.int32))

        _, found = told(text, build)
        now, then = re.findall(r"([\d.]+) ([KMG]iB)", found["SHD513"].message)
        units = {"KiB": 1, "MiB": 2**10, "GiB": 2**20}
        return float(now[0]) * units[now[1]], float(then[0]) * units[then[1]]

    few, many = figures(2), figures(8)
    assert many[1] / many[0] == pytest.approx(few[1] / few[0], rel=0.2)


def test_repeated_work_over_the_same_axis_is_not_told_as_well() -> None:
    r = shardspec.Resolver(shardspec.loads(DATA, "spec.yaml"), devices="abstract")
    function, args = train(r)
    spec, _ = pipeline.load_text(DATA, "spec.yaml")
    assert spec is not None
    params = [Param(path, (1,), "f32") for path in ("head",)]
    cost = cost_of(pipeline.compile_plans(spec, tuple(params))[0], step_of(r, function, *args))
    assert [each.code.id for each in pipeline.step_findings([cost])] == ["SHD513"]


def _decode(r: Any, rows: int = 8) -> Any:
    """Few tokens and large weights: weights stay, and activations travel, for good reason."""

    def step(p: Tree, x: Any) -> Any:
        return jax.lax.scan(lambda x, lp: (layer(lp, x), None), x, p["layers"])[0]

    return jax.jit(step), (weights(), struct(rows, 1, EMBED))


def _megatron(r: Any) -> Any:
    return train(r, partial(loss, between=constrained(r)))


FSDP_ONLY = (
    SPEC.replace("{data: 4, fsdp: 8, tensor: 2}", "{fsdp: 64}")
    .replace("(data, fsdp)", "fsdp")
    .replace("vocab -> tensor", "vocab -> none")
)
TENSOR_ONLY = DATA.replace("{data: 4, fsdp: 8, tensor: 2}", "{data: 4, tensor: 16}").replace(
    "embed -> fsdp", "embed -> none"
)
NO_DATA = TENSOR_ONLY.replace("data: 4, ", "").replace("4x4x4", "2x2x4")
NO_DATA = NO_DATA.replace("batch -> data", "batch -> none")
EMBED_ON_TENSOR = TENSOR_ONLY.replace("embed -> none", "embed -> tensor").replace(
    "heads, mlp, vocab -> tensor", "heads, mlp, vocab -> none"
)


@pytest.mark.parametrize(
    ("text", "build"),
    [
        pytest.param(SPEC, _megatron, id="fsdp and tensor, constrained"),
        pytest.param(FSDP_ONLY, _megatron, id="fsdp alone"),
        pytest.param(TENSOR_ONLY, _megatron, id="tensor parallelism"),
        pytest.param(EMBED_ON_TENSOR, _megatron, id="embed over tensor, which is meant"),
        pytest.param(DATA, _decode, id="decode, weights stay"),
        pytest.param(SPEC, partial(_decode, rows=1), id="a batch of one"),
        pytest.param(
            DATA.replace("batch -> data", "batch -> data | none"),
            lambda r: train(r, rows=6),
            id="a batch that nothing divides",
        ),
    ],
)
def test_sums_of_activations_that_are_meant(text: str, build: Build) -> None:
    assert not told(text, build)[1]


STATED = (
    DATA
    + """\
axes: {batch: 64, length: 2048, vocab: 32768, embed: 4096, heads: 32, kv: 128, mlp: 16384}
arrays:
  table: bf16[32768, 4096]
  head: bf16[4096, 32768]
  layers/{q,k,v}: bf16[4, 4096, 32, 128]
  layers/o: bf16[4, 32, 128, 4096]
  layers/wi: bf16[4, 4096, 16384]
  layers/wo: bf16[4, 16384, 4096]
activations:
  residual: batch length embed
  tokens: batch length
  "{query,key,value,context}": batch length heads kv
  hidden: batch length mlp
step:
  program:
    - gather(tokens, "table") -> residual
    - residual, "layers/q" -> query[batch length heads kv]
    - residual, "layers/k" -> key[batch length heads kv]
    - residual, "layers/v" -> value[batch length heads kv]
    - flash(query, key, value) -> context[batch length heads kv]
    - context, "layers/o" -> residual
    - residual, "layers/wi" -> hidden
    - hidden, "layers/wo" -> residual
    - residual, "head" -> logits[batch length vocab]
"""
)


def stated(text: str) -> tuple[Cost, list[Diagnostic]]:
    spec, _ = pipeline.load_text(text, "spec.yaml")
    assert spec is not None
    (plan,) = pipeline.compile_plans(spec)
    made = stated_step(plan)
    assert made is not None
    cost = cost_of(plan, made.step, tokens=made.tokens)
    return cost, [each for each in pipeline.step_findings([cost]) if each.code.id >= "SHD503"]


def test_a_rule_that_is_widened_as_help_says_makes_weights_of_a_stated_step_travel() -> None:
    before, (found,) = stated(STATED)
    assert found.code.id == "SHD513"
    rule = re.match(r"write `(.+?)` in place of `(.+?)`, above `embed -> fsdp`:", found.help or "")
    assert rule
    after, left = stated(STATED.replace(rule[2], rule[1]))
    assert not left
    assert sent(after) < sent(before)
    assert seconds(after) < seconds(before)


def linen(r: Any, *, is_cast: bool = False) -> Any:
    """A train step as in the examples of Flax Linen."""

    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens: Any) -> Any:
            x = constrained(r)(nn.Embed(VOCAB, EMBED, dtype=jnp.bfloat16, name="table")(tokens))
            for at in range(2):
                h = nn.RMSNorm(dtype=jnp.bfloat16, name=f"norm_{at}")(x)
                h = nn.Dense(MLP, use_bias=False, dtype=jnp.bfloat16, name=f"wi_{at}")(h)
                dense = nn.Dense(EMBED, use_bias=False, dtype=jnp.bfloat16, name=f"wo_{at}")
                x = constrained(r)(x + dense(nn.silu(h)))
            return nn.Dense(VOCAB, use_bias=False, dtype=jnp.bfloat16, name="head")(x)

    model = Model()
    tokens = struct(256, 1024, dtype=jnp.int32)

    def init() -> Any:
        p = model.init(jax.random.key(0), jnp.zeros((64, 8), jnp.int32))["params"]
        return TrainState.create(apply_fn=model.apply, params=p, tx=optax.adamw(1e-3))

    def step(state: Any, tokens: Any) -> Any:
        def of(p: Tree) -> Any:
            logits = state.apply_fn({"params": p}, tokens).astype(jnp.float32)
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()

        value, grads = jax.value_and_grad(of)(state.params)
        state = state.apply_gradients(grads=grads)
        if is_cast:
            narrow = jax.tree.map(lambda w: w.astype(jnp.bfloat16), state.params)
            state = state.replace(params=narrow)
        return state, {"loss": value}

    return jax.jit(step, donate_argnums=0), (jax.eval_shape(init), tokens)


def of_nnx(r: Any, *, is_cast: bool = False) -> Any:
    """A train step as in the examples of Flax NNX, which changes the model in place."""

    class Model(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.table = nnx.Embed(VOCAB, EMBED, dtype=jnp.bfloat16, rngs=rngs)
            self.wi_0 = nnx.Linear(EMBED, MLP, use_bias=False, dtype=jnp.bfloat16, rngs=rngs)
            self.wo_0 = nnx.Linear(MLP, EMBED, use_bias=False, dtype=jnp.bfloat16, rngs=rngs)
            self.head = nnx.Linear(EMBED, VOCAB, use_bias=False, dtype=jnp.bfloat16, rngs=rngs)

        def __call__(self, tokens: Any) -> Any:
            x = constrained(r)(self.table(tokens))
            return self.head(constrained(r)(x + self.wo_0(nnx.silu(self.wi_0(x)))))

    def made() -> Any:
        model = Model(nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)

    def step(model: Any, optimizer: Any, tokens: Any) -> Any:
        def of(model: Any) -> Any:
            logits = model(tokens).astype(jnp.float32)
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()

        value, grads = nnx.value_and_grad(of)(model)
        optimizer.update(model, grads)
        if is_cast:
            model.head.kernel.set_value(model.head.kernel.get_value().astype(jnp.bfloat16))
        return value

    return nnx.jit(step), (*nnx.eval_shape(made), struct(256, 1024, dtype=jnp.int32))


FLAX = """\
shardspec: 1
hardware: tpu v5p 4x4x4
mesh: {data: 8, fsdp: 8}
rules:
  - batch -> (data, fsdp)
  - embed -> fsdp
  - mlp, vocab -> none
params:
  "table/embedding": vocab embed
  "wi_*/kernel": embed mlp
  "wo_*/kernel": mlp embed
  "head/kernel": embed vocab
  "norm_*/scale": embed
"""


@pytest.mark.parametrize(
    ("build", "code"),
    [
        pytest.param(linen, "SHD513", id="linen"),
        # XLA gathers the weights, and each device of `fsdp` computes whole products.
        pytest.param(of_nnx, "SHD507", id="of_nnx"),
    ],
)
def test_steps_of_flax(build: Callable[..., Any], code: str) -> None:
    cost, found = told(FLAX, build)
    assert not found
    unsplit = FLAX.replace("batch -> (data, fsdp)", "batch -> data")
    before, _ = told(unsplit, build)
    found_before = {each.code.id: each for each in pipeline.step_findings([before])}
    assert code in found_before
    assert "`fsdp`" in found_before[code].message
    assert seconds(cost) < seconds(before)
    _, found = told(FLAX, partial(build, is_cast=True))
    assert re.match("cast (it|them) back to f32 before", found["SHD517"].help or "")


# SHD514

EXPERTS = """\
shardspec: 1
hardware: tpu v5p 4x4x4
mesh: {data: 4, expert: 8, tensor: 2}
rules:
  - batch -> (data, expert)
  - tokens -> data
  - expert -> expert
  - mlp -> tensor
  - layers, embed -> none
params:
  layers/router: layers embed _
  layers/{up,gate}: layers expert embed mlp
  layers/down: layers expert mlp embed
"""


def experts(p: Tree, x: Any, at_work: Any, hidden: Any) -> Any:
    """A mixture of experts as GShard dispatches it, to one expert each."""
    count = p["router"].shape[-1]
    gates = jax.nn.softmax((x @ p["router"]).astype(jnp.float32))
    top = jax.nn.one_hot(jnp.argmax(gates, -1), count)
    place = (jnp.cumsum(top, 1) * top).astype(jnp.int32) - 1
    slots = jax.nn.one_hot(place, 2 * x.shape[1] // count, dtype=x.dtype)
    slots = slots * top.astype(x.dtype)[..., None]
    given = at_work(jnp.einsum("gsxc,gse->xgce", slots, x))
    up = jnp.einsum("xgce,xef->xgcf", given, p["up"])
    made = hidden(at_work(jax.nn.silu(up) * jnp.einsum("xgce,xef->xgcf", given, p["gate"])))
    made = at_work(jnp.einsum("xgcf,xfe->xgce", made, p["down"]))
    return x + jnp.einsum("gsxc,xgce->gse", slots, made)


def mixture(r: Any, at_work: Any = as_it_is, hidden: Any = as_it_is, rows: int = 64) -> Any:
    wide = (2, 64, EMBED, MLP)
    p = {"router": struct(2, EMBED, 64), "up": struct(*wide), "gate": struct(*wide)}
    p |= {"down": struct(2, 64, MLP, EMBED)}

    def step(p: Tree, x: Any) -> Any:
        turn = lambda x, lp: (constrained(r)(experts(lp, x, at_work, hidden)), None)  # noqa: E731
        return jax.lax.scan(turn, x, p["layers"])[0]

    return jax.jit(step), ({"layers": p}, struct(rows, 2048, EMBED))


def _kept(r: Any) -> Any:
    """Keep what experts make where the batch lies."""
    return mixture(r, hidden=lambda x: r.constrain(x, "_ batch _ mlp"))


def test_tokens_that_are_constrained_as_help_says_travel() -> None:
    before, found = told(EXPERTS, _kept)
    help = found["SHD514"].help or ""
    names = re.findall(r'`shardspec.constrain\(x, "(.*?)"\)`', help)
    assert names, help

    def mended(r: Any) -> Any:
        return mixture(r, lambda x: r.constrain(x, names[0]), lambda x: r.constrain(x, names[-1]))

    after, left = told(EXPERTS, mended)
    assert "SHD514" not in left
    assert sent(after) < sent(before)
    assert seconds(after) < seconds(before)


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(mixture, id="no constraint"),
        pytest.param(
            lambda r: mixture(r, lambda x: r.constrain(x, "expert tokens _ _")), id="dispatched"
        ),
        pytest.param(
            lambda r: mixture(
                r,
                lambda x: r.constrain(
                    x if x.shape[-1] == MLP else r.constrain(x, "_ batch _ _"), "expert tokens _ _"
                ),
            ),
            id="dispatched in two steps",
        ),
        pytest.param(
            lambda r: mixture(r, hidden=lambda x: r.constrain(x, "expert tokens _ mlp")),
            id="hidden alone",
        ),
    ],
)
def test_tokens_that_travel(build: Build) -> None:
    assert not told(EXPERTS, build)[1]


def test_small_experts_are_gathered_for_many_tokens() -> None:
    assert not told(FSDP_ONLY, _megatron)[1], "a gather of FSDP is no gather of experts"


# SHD515 and SHD516


def torn(r: Any, x: Any, parts: int) -> Any:
    return x.reshape(parts, x.shape[0] // parts, *x.shape[1:])


def turned(r: Any, x: Any, parts: int) -> Any:
    return x.reshape(x.shape[0] // parts, parts, *x.shape[1:]).swapaxes(0, 1)


def accumulated(r: Any, cut: Any = turned, of: Any = None, parts: int = 8) -> Any:
    """Gradients of microbatches are added up in a scan."""
    of = of or (lambda g, total: g)

    def step(p: Tree, tokens: Any) -> Any:
        def one(total: Tree, t: Any) -> Any:
            grads = jax.grad(loss)(p, t, constrained(r))
            return jax.tree.map(jnp.add, total, of(grads, total)), None

        zeros = jax.tree.map(jnp.zeros_like, p)
        return sgd(p, jax.lax.scan(one, zeros, cut(r, tokens, parts))[0])

    return jax.jit(step, donate_argnums=0), (weights(), struct(256, 1024, dtype=jnp.int32))


def _under_shard_map(r: Any) -> Any:
    """The loop as help says."""

    def accumulate(p: Tree, tokens: Any) -> Any:
        def one(total: Tree, t: Any) -> Any:
            grads = jax.grad(loss)(p, t, constrained(r))
            return jax.tree.map(jnp.add, total, grads), None

        zeros = jax.tree.map(jnp.zeros_like, p)
        return jax.lax.pmean(jax.lax.scan(one, zeros, turned(r, tokens, 8))[0], "data")

    def step(p: Tree, tokens: Any) -> Any:
        run = jax.shard_map(
            accumulate,
            mesh=r.mesh,
            in_specs=(P(), P("data")),
            axis_names={"data"},
            out_specs=P(),
            check_vma=False,
        )
        return sgd(p, run(p, tokens))

    return jax.jit(step, donate_argnums=0), (weights(), struct(256, 1024, dtype=jnp.int32))


def _of_each_replica(r: Any) -> Any:
    """The loop as help says where replicas are FSDP: parts of the total have a dimension."""
    ways = r.mesh.shape["data"]

    def step(p: Tree, tokens: Any) -> Any:
        def one(total: Tree, t: Any) -> Any:
            own = lambda x: r.constrain(x, "rows _ _", mapped="replica")  # noqa: E731
            grads = jax.vmap(lambda t: jax.grad(loss)(p, t, own))(t)
            return jax.tree.map(jnp.add, total, grads), None

        zeros = jax.tree.map(lambda w: jnp.zeros((ways, *w.shape), w.dtype), p)
        rounds = tokens.reshape(ways, -1, 8, tokens.shape[-1]).transpose(2, 0, 1, 3)
        total, _ = jax.lax.scan(one, zeros, rounds)
        return sgd(p, jax.tree.map(lambda g: g.mean(0), total))

    return jax.jit(step, donate_argnums=0), (weights(), struct(256, 1024, dtype=jnp.int32))


#: Sixteen replicas, each of them FSDP over two devices.
REPLICAS = SPEC.replace("{data: 4, fsdp: 8", "{data: 16, fsdp: 2").replace(
    "rules:\n", "rules:\n  - replica -> data\n  - rows -> fsdp\n"
)


@pytest.mark.parametrize(
    ("text", "build", "words"),
    [
        pytest.param(
            REPLICATED,
            _under_shard_map,
            ["shard_map(..., axis_names={'data'}, check_vma=False)", "pmean(total, 'data')"],
            id="replicated",
        ),
        pytest.param(
            REPLICAS,
            _of_each_replica,
            ["a first dimension of 16 that is P('data')", "`jax.vmap`, with `fsdp` and not `data`"],
            id="replicas of fsdp",
        ),
    ],
)
def test_gradients_that_are_summed_behind_the_loop_as_help_says(
    text: str, build: Build, words: list[str]
) -> None:
    before, found = told(text, accumulated)
    assert "in every round" in found["SHD515"].message
    for word in words:
        assert word in (found["SHD515"].help or "")
    after, left = told(text, build)
    assert "SHD515" not in left
    over_data = [cost.step.wire_bytes["data",] for cost in (before, after) if cost.step]
    assert over_data[1] < over_data[0]
    assert seconds(after) < seconds(before)


def test_sums_of_a_few_replicas_of_fsdp_are_not_worth_a_dimension() -> None:
    assert "SHD515" not in told(SPEC, accumulated)[1]


def test_a_mean_in_each_microbatch_is_scaled_and_summed_all_the_same() -> None:
    scaled = lambda g, _: jax.tree.map(lambda g: g / 8, g)  # noqa: E731
    assert "SHD515" in told(REPLICATED, partial(accumulated, of=scaled))[1]


def test_a_sum_that_is_written_in_the_loop_is_taken_out() -> None:
    def written(r: Any, *, is_inside: bool) -> Any:
        def accumulate(w: Any, x: Any) -> Any:
            def one(total: Any, x: Any) -> Any:
                grad = jax.grad(lambda w: jnp.mean((x @ w).astype(jnp.float32) ** 2))(w)
                return total + (jax.lax.pmean(grad, "data") if is_inside else grad), None

            total = jax.lax.scan(one, jnp.zeros_like(w), x)[0]
            return total if is_inside else jax.lax.pmean(total, "data")

        def step(p: Tree, x: Any) -> Any:
            run = jax.shard_map(accumulate, mesh=r.mesh, in_specs=(P(), P(None, "data")),
                                axis_names={"data"}, out_specs=P(), check_vma=False)  # fmt: skip
            return {"head": p["head"] - run(p["head"], x)}

        x = struct(8, 4096, EMBED, sharding=NamedSharding(r.mesh, P(None, "data")))
        return jax.jit(step), ({"head": struct(EMBED, VOCAB)}, x)

    before, found = told(REPLICATED, partial(written, is_inside=True))
    assert "out of the loop" in (found["SHD515"].help or "")
    after, left = told(REPLICATED, partial(written, is_inside=False))
    assert not left
    assert seconds(after) < seconds(before)


def one_microbatch(r: Any, *, is_apart: bool = False) -> Any:
    """A call for each microbatch, which adds to a total that the caller holds."""
    p = weights()

    def step(p: Tree, total: Tree, tokens: Any) -> Any:
        grads = jax.grad(loss)(p, tokens, constrained(r))
        return jax.tree.map(jnp.add, total, grads)

    def own(p: Tree, total: Tree, tokens: Any) -> Any:
        grads = jax.grad(loss)(p, tokens, constrained(r))
        return jax.tree.map(lambda t, g: t + g[None], total, grads)

    total = p
    if is_apart:
        apart = NamedSharding(r.mesh, P("data"))
        total = jax.tree.map(lambda w: struct(r.mesh.shape["data"], *w.shape, sharding=apart), p)
        step = jax.shard_map(
            own,
            mesh=r.mesh,
            in_specs=(P(), P("data"), P("data")),
            out_specs=P("data"),
            axis_names={"data"},
            check_vma=False,
        )
    return jax.jit(step, donate_argnums=1), (p, total, struct(64, 1024, dtype=jnp.int32))


def test_a_total_that_is_held_apart_as_help_says_is_summed_once() -> None:
    before, found = told(REPLICATED, one_microbatch)
    assert "each call sums" in found["SHD515"].message
    assert "a first dimension of 32 that is P('data')" in (found["SHD515"].help or "")
    after, left = told(REPLICATED, partial(one_microbatch, is_apart=True))
    assert "SHD515" not in left
    assert sent(after) < sent(before)
    assert seconds(after) < seconds(before)


def _clipped(grads: Tree, total: Tree) -> Tree:
    return optax.clip_by_global_norm(1.0).update(grads, optax.EmptyState())[0]


def _by_size_of_total(grads: Tree, total: Tree) -> Tree:
    return jax.tree.map(lambda g, t: g * (jnp.max(jnp.abs(t)) < 100).astype(g.dtype), grads, total)


@pytest.mark.parametrize(
    ("text", "build"),
    [
        pytest.param(REPLICATED, partial(accumulated, of=_clipped), id="clipped in each round"),
        pytest.param(REPLICATED, partial(accumulated, of=_by_size_of_total), id="total is read"),
        pytest.param(
            REPLICATED, lambda r: train(r, partial(loss, between=constrained(r))), id="no loop"
        ),
        pytest.param(FSDP_ONLY, partial(accumulated, parts=4), id="fsdp, scattered"),
        pytest.param(NO_DATA, accumulated,
                     id="no axis for data"),
    ],
)  # fmt: skip
def test_sums_that_each_round_needs(text: str, build: Build) -> None:
    assert "SHD515" not in told(text, build)[1]


IMAGES = REPLICATED.replace("table: vocab embed", "wi: embed mlp")


def images(r: Any, cut: Any) -> Any:
    """Microbatches of what is as large as an activation."""

    def step(p: Tree, x: Any) -> Any:
        def one(total: Any, x: Any) -> Any:
            of = lambda p: jnp.mean((constrained(r)(x) @ p["wi"]).astype(jnp.float32) ** 2)  # noqa: E731
            return jax.tree.map(jnp.add, total, jax.grad(of)(p)), None

        zeros = jax.tree.map(jnp.zeros_like, p)
        return sgd(p, jax.lax.scan(one, zeros, cut(r, x, 8))[0])

    return jax.jit(step, donate_argnums=0), ({"wi": struct(EMBED, MLP)}, struct(256, 1024, EMBED))


@pytest.mark.parametrize("mesh", ["{data: 32, tensor: 2}", "{data: 8, tensor: 8}"])
@pytest.mark.parametrize("is_constrained", [False, True])
def test_a_batch_that_is_cut_as_help_says_stays(mesh: str, is_constrained: bool) -> None:
    def cut(r: Any, x: Any, parts: int) -> Any:
        return r.constrain(torn(r, x, parts), "_ batch _ _") if is_constrained else torn(r, x, 8)

    text = IMAGES.replace("{data: 32, tensor: 2}", mesh)
    before, found = told(text, partial(images, cut=cut))
    said = re.search(
        r"\.reshape\((\d+), (\d+), \.\.\.\)\.swapaxes\(0, 1\)", found["SHD516"].help or ""
    )
    assert said
    rows, parts = map(int, said.groups())

    def as_said(r: Any, x: Any, _: int) -> Any:
        return x.reshape(rows, parts, *x.shape[1:]).swapaxes(0, 1)

    after, left = told(text, partial(images, cut=as_said))
    assert "SHD516" not in left
    assert sent(after) < sent(before)
    assert seconds(after) < seconds(before)


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(turned, id="rows first"),
        pytest.param(
            lambda r, x, n: r.constrain(turned(r, x, n), "_ batch _ _"), id="and constrained"
        ),
        pytest.param(lambda r, x, n: x[None], id="one part"),
        pytest.param(lambda r, x, n: turned(r, x, n)[:4], id="some of them"),
        pytest.param(
            lambda r, x, n: turned(r, x.reshape(-1, x.shape[-1]), n)[:, :, None], id="tokens"
        ),
        pytest.param(lambda r, x, n: jnp.stack([x, x + 1]), id="no cut"),
    ],
)
def test_batches_that_are_not_torn(cut: Any) -> None:
    assert "SHD516" not in told(IMAGES, partial(images, cut=cut))[1]


# SHD517


def optimized(
    r: Any,
    *,
    tx: Any = None,
    is_cast: bool = False,
    is_whole: bool = False,
    is_donated: bool = True,
) -> Any:
    tx = tx or optax.adamw(1e-3)
    p = weights()
    state = jax.eval_shape(tx.init, p)
    if is_whole:
        whole = NamedSharding(r.mesh, P())
        state = jax.tree.map(lambda a: struct(*a.shape, dtype=a.dtype, sharding=whole), state)

    def step(p: Tree, state: Any, tokens: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(p, tokens, constrained(r))
        updates, state = tx.update(grads, state, p)
        if is_cast:
            return jax.tree.map(lambda w, u: w + u.astype(jnp.float32), p, updates), state, value
        return optax.apply_updates(p, updates), state, value

    jitted = jax.jit(step, donate_argnums=(0, 1) if is_donated else ())
    return jitted, (p, state, struct(64, 1024, dtype=jnp.int32))


def test_parameters_that_are_cast_back_come_as_they_went() -> None:
    before, found = told(SPEC, partial(optimized, is_cast=True))
    assert found["SHD517"].help == "cast them back to bf16 before they are returned"
    assert any("donated" in note for note in found["SHD517"].notes)
    after, left = told(SPEC, optimized)
    assert not left
    sizes = [sum(each.before.bytes + each.after.bytes for each in cost.step.returned)
             for cost in (before, after) if cost.step]  # fmt: skip
    assert sizes[1] == 0 < sizes[0]


def test_state_that_is_placed_as_it_comes_back() -> None:
    before, found = told(SPEC, partial(optimized, is_whole=True))
    assert "from the beginning" in (found["SHD517"].help or "")
    after, left = told(SPEC, optimized)
    assert not left
    assert after.memory.total.bytes < before.memory.total.bytes


def test_a_result_that_is_stated_as_it_was_given() -> None:
    def stated_as(r: Any, *, is_whole: bool) -> Any:
        p = weights()
        whole = jax.tree.map(lambda _: NamedSharding(r.mesh, P()), p)
        function, args = train(r, partial(loss, between=constrained(r)))
        step = jax.jit(function, out_shardings=whole if is_whole else r.shardings(p))
        return step, args

    before, found = told(SPEC, partial(stated_as, is_whole=True))
    assert "let it come back as P('fsdp', 'tensor')" in (found["SHD517"].help or "")
    after, left = told(SPEC, partial(stated_as, is_whole=False))
    assert "SHD517" not in left
    assert sent(after) < sent(before)
    assert seconds(after) < seconds(before)


def counting(r: Any, count: Any, one: Any, rate: Any) -> Any:
    """State in one tree, with a counter and a rate in it."""

    def step(state: Tree, tokens: Any) -> Any:
        grads = jax.grad(loss)(state["params"], tokens, constrained(r))
        p = jax.tree.map(lambda w, g: w - g * state["rate"].astype(g.dtype), state["params"], grads)
        return {"params": p, "count": state["count"] + one, "rate": state["rate"] * 0.9}

    state = {"params": weights(), "count": count, "rate": rate}
    return jax.jit(step), (state, struct(64, 1024, dtype=jnp.int32))


RATE = struct(dtype=jnp.float32)
WHOLE = struct(dtype=jnp.int32)


@pytest.mark.parametrize(
    ("count", "one", "help"),
    [
        (0, 1, "jnp.asarray(0, 'int32')"),
        (struct(dtype=jnp.int32, weak_type=True), jnp.int32(1), "jnp.asarray(0, 'int32')"),
    ],
)
def test_a_counter_begins_with_a_type(count: Any, one: Any, help: str) -> None:
    _, found = told(SPEC, partial(counting, count=count, one=one, rate=RATE))
    assert help in (found["SHD517"].help or "")
    asked = eval(f"jax.eval_shape(lambda: {help})", {"jax": jax, "jnp": jnp})
    assert not told(SPEC, partial(counting, count=asked, one=one, rate=RATE))[1]


def test_jax_compiles_such_steps_twice() -> None:
    """What the finding says is what JAX does, on the devices that are here."""
    for first, times in ((jnp.asarray(0), 2), (jnp.asarray(0, "int32"), 1)):
        step = jax.jit(lambda count: count + jnp.int32(1))
        count = first
        for _ in range(3):
            count = step(count)
        assert step._cache_size() == times


def _gradients(r: Any) -> Any:
    step = jax.jit(lambda p, tokens: jax.value_and_grad(loss)(p, tokens, constrained(r)))
    return step, (weights(), struct(64, 1024, dtype=jnp.int32))


def _wider(r: Any) -> Any:
    step = jax.jit(lambda p: jax.tree.map(lambda w: jnp.mean(w.astype(jnp.float32)), p))
    return step, (weights(),)


def _activation(r: Any) -> Any:
    step = jax.jit(lambda p, x: x.astype(jnp.float32) + jnp.mean(p["head"].astype(jnp.float32)))
    return step, (weights(), struct(64, 1024, EMBED))


def _donated_activation(r: Any) -> Any:
    step = jax.jit(lambda p, x: (x @ p["head"] @ p["head"].T).astype(jnp.float32), donate_argnums=1)
    return step, (weights(), struct(64, 1024, EMBED))


def _donated_states(r: Any) -> Any:
    """State that the spec does not know, in a tree of its own."""
    state = {"position": struct(64, 1024, EMBED), "time": struct(64, dtype=jnp.float32)}
    step = jax.jit(
        lambda p, s: {"position": s["position"] * 2, "time": s["time"] + jnp.float32(1)},
        donate_argnums=1,
    )
    return step, (weights(), state)


def _stated(r: Any) -> Any:
    _, args = optimized(r)
    p = r.shardings(args[0])
    step = jax.jit(lambda p, x: jax.tree.map(lambda w: w * 2, p), out_shardings=p, donate_argnums=0)
    return step, (args[0], args[2])


def offloaded(r: Any, *, returned_to: str, given_in: str = "pinned_host") -> Any:
    """Moments that are kept in one memory between steps, and moved to the device in them."""
    p = weights()
    placed = jax.tree.map(lambda each: each.with_memory_kind(given_in), r.shardings(p))
    moments = jax.tree.map(lambda w, s: struct(*w.shape, sharding=s), p, placed)
    put = lambda tree, kind: jax.tree.map(  # noqa: E731
        lambda x, s: jax.device_put(x, s.with_memory_kind(kind)), tree, placed
    )

    def step(p: Tree, moments: Tree, tokens: Any) -> Any:
        grads = jax.grad(loss)(p, tokens, constrained(r))
        moments = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, put(moments, "device"), grads)
        return sgd(p, moments), put(moments, returned_to)

    return jax.jit(step, donate_argnums=(0, 1)), (p, moments, struct(64, 1024, dtype=jnp.int32))


def test_state_that_comes_back_in_another_memory() -> None:
    _, found = told(SPEC, partial(offloaded, returned_to="device"))
    assert "with_memory_kind('pinned_host')" in (found["SHD517"].help or "")
    assert any("bfloat16 in the host's memory, then bf16" in n for n in found["SHD517"].notes)
    _, found = told(SPEC, partial(offloaded, returned_to="pinned_host", given_in="device"))
    assert "with_memory_kind('device')" in (found["SHD517"].help or "")
    assert "SHD517" not in told(SPEC, partial(offloaded, returned_to="pinned_host"))[1]


@pytest.mark.parametrize(
    ("text", "build"),
    [
        pytest.param(SPEC, optimized, id="adamw"),
        pytest.param(SPEC, partial(optimized, is_donated=False), id="not donated"),
        pytest.param(SPEC, partial(optimized, tx=optax.MultiSteps(optax.adam(1e-3), 4)),
                     id="several steps"),
        pytest.param(SPEC, partial(optimized, tx=optax.adafactor(1e-3)), id="adafactor"),
        pytest.param(SPEC, _gradients, id="gradients are no parameters"),
        pytest.param(SPEC, _wider, id="means of parameters"),
        pytest.param(SPEC, _activation, id="an activation"),
        pytest.param(SPEC, _donated_activation, id="an activation that is donated"),
        pytest.param(SPEC, _donated_states, id="other state"),
        pytest.param(SPEC, _stated, id="stated shardings"),
        pytest.param(SPEC, partial(counting, count=WHOLE, one=1, rate=RATE), id="counter"),
    ],
)  # fmt: skip
def test_state_that_comes_back_as_it_went(text: str, build: Build) -> None:
    assert "SHD517" not in told(text, build)[1]


# SHD518

DECODE = SPEC.replace("heads, mlp", "heads, mlp").replace("embed -> fsdp", "embed -> none")


def decoding(r: Any, names: str = "", layers: int = 32, rows: int = 64, name: str = "cache") -> Any:
    """One token of a decoder with keys of all layers in one array."""
    shape = (layers, rows, 4096, HEADS, KV)
    placed = {"sharding": r.sharding(names, shape)} if names else {}

    def attend(p: Tree, tokens: Any, keys: Any) -> Any:
        x = p["table"][tokens]
        q = jnp.einsum("be,ehd->bhd", x, p["layers"]["q"][0])
        return jnp.einsum("bhd,lbshd->lbhs", q, keys)

    step: Any = attend
    if name == "cache":
        step = lambda p, tokens, cache: attend(p, tokens, cache)  # noqa: E731
    return jax.jit(step), (weights(), struct(rows, dtype=jnp.int32), struct(*shape, **placed))


def test_a_cache_that_is_placed_as_help_says_is_exact() -> None:
    before, found = told(DECODE, decoding)
    caches = before.memory.caches
    assert caches is not None
    assert (caches.mark, caches.basis) == ("~", "guess")
    said = re.search(
        r'sharding=resolver\.sharding\("(.*?)", \((.*?)\)\)', found["SHD518"].help or ""
    )
    assert said
    assert said[1] == "_ batch _ _ _"
    after, left = told(DECODE, partial(decoding, names=said[1]))
    assert "SHD518" not in left
    assert after.memory.caches is not None
    assert after.memory.caches.mark == "="
    assert sent(after) == sent(before), "the guess is of the layout that the help names"
    assert seconds(after) == seconds(before)


def test_the_entry_for_a_tuple_of_caches_matches_them_alone() -> None:
    """Each array has a number for a name: `*/*` would match weights, and arrays of other ranks."""

    def tupled(r: Any) -> Any:
        function, (p, tokens, keys) = decoding(r)
        cache = ((keys, struct(64, 4096, dtype=jnp.int32)),) * 2
        step = lambda p, tokens, cache: function(p, tokens, cache[0][0] + cache[1][0])  # noqa: E731
        return step, (p, tokens, cache)

    _, found = told(DECODE, tupled)
    said = re.search(r'`("optional:(.*?)": .*?)` in `params:`', found["SHD518"].help or "")
    assert said
    assert said[2] == "cache/{0,1}/0"
    text = DECODE.replace("params:\n", f"params:\n  {said[1]}\n")
    cost, left = told(text, tupled)
    assert not {"SHD518", "SHD206", "SHD215"} & {*left}
    assert cost.memory.caches is not None
    assert cost.memory.caches.mark == "="


def test_names_are_those_that_xla_would_choose() -> None:
    """Four layers do not divide: nothing is taken for the batch, and XLA follows what reads it."""
    _, found = told(DECODE, partial(decoding, layers=3))
    assert '"_ batch _ heads _"' in (found["SHD518"].help or "")


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(partial(decoding, names="_ batch _ heads _"), id="placed by the caller"),
        pytest.param(lambda r: train(r), id="tokens"),
        pytest.param(_activation, id="one array that is no cache"),
        pytest.param(lambda r: _with_mask(r, struct(64, 1024, dtype=jnp.bool_)), id="a mask"),
        pytest.param(lambda r: _with_mask(r, struct(1024, 16)), id="a small table"),
        pytest.param(lambda r: _with_mask(r, struct(dtype=jnp.int32)), id="a number"),
    ],
)
def test_arguments_whose_placing_is_no_guess(build: Build) -> None:
    assert "SHD518" not in told(DECODE, build)[1]


def _with_mask(r: Any, mask: Any) -> Any:
    def step(p: Tree, tokens: Any, mask: Any) -> Any:
        return loss(p, tokens, constrained(r)) + jnp.sum(mask.astype(jnp.float32))

    return jax.jit(step), (weights(), struct(64, 1024, dtype=jnp.int32), mask)


def test_a_cache_with_names_in_the_spec_is_exact() -> None:
    text = DECODE.replace("  table:", "  k: layers batch _ heads kv\n  table:")

    def named(r: Any) -> Any:
        function, (p, tokens, keys) = decoding(r)
        step = lambda p, tokens, cache: function(p, tokens, cache["k"])  # noqa: E731
        return jax.jit(step), (p, tokens, {"k": keys})

    cost, found = told(text, named)
    assert "SHD518" not in found
    assert cost.memory.caches is not None
    assert cost.memory.caches.mark == "="
