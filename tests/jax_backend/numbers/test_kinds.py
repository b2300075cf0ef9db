"""Kinds of steps beyond the language model of `test_same`: experts, rings, chunks, U-Nets."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import shardspec
from shardspec.jax_backend.numbers.comparing import Asked
from shardspec.jax_backend.numbers.same import StepCode, same_numbers
from shardspec.programs.numbers import Numbers

SPEC = """\
shardspec: 1
axes: {batch: 64}
targets:
  pod: {hardware: tpu v5e 2x4, mesh: {part: rest}}
rules: [batch -> part]
"""
HEAD = """\
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

f32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)


def over_parts(resolver, function, *specs, out=P("part")):
    return jax.shard_map(
        function, mesh=resolver.mesh, in_specs=specs, out_specs=out, check_vma=False
    )
"""
#: All tokens go to all experts, by two exchanges.
EXPERTS = """

EXPERTS, EMBED = 8, 16


def step(resolver):
    def moe(weights, x):
        n, own = lax.axis_size("part"), EXPERTS // lax.axis_size("part")
        gates = jax.nn.softmax(x[:, :EXPERTS])
        sent = jnp.einsum("te,td->etd", gates, x).reshape(n, own, *x.shape)
        got = lax.all_to_all(sent, "part", 0, 0)
        got = got.swapaxes(0, 1).reshape(own, -1, EMBED)  # got
        out = jnp.tanh(jnp.einsum("etd,edf->etf", got, weights))
        out = out.reshape(own, n, *x.shape).swapaxes(0, 1)  # back
        return lax.all_to_all(out, "part", 0, 0).reshape(EXPERTS, *x.shape).sum(0)

    return over_parts(resolver, moe, P("part"), P("part")), (f32(8, EMBED, EMBED), f32(64, EMBED))
"""
#: Causal linear attention by a ring of sums.
RING = """

def step(resolver):
    def ring(q, k):
        n, me = lax.axis_size("part"), lax.axis_index("part")
        rows = me * len(q) + jnp.arange(len(q))

        def body(at, carry):
            k, out = carry
            columns = (me - at) % n * len(k) + jnp.arange(len(k))
            out += jnp.where(rows[:, None] >= columns, q @ k.T, 0.0).sum(-1)
            return lax.ppermute(k, "part", [(j, (j + 1) % n) for j in range(n)]), out  # send

        return lax.fori_loop(0, n, body, (k, jnp.zeros(len(q))))[1]

    return over_parts(resolver, ring, P("part"), P("part")), (f32(64, 8), f32(64, 8))
"""
#: An expert takes the tokens of each device as far as its capacity goes.
CAPACITY = """

EXPERTS, FACTOR = 4, 1.0


def step(resolver):
    def moe(weights, x):
        expert = jax.nn.one_hot(jnp.argmax(x[:, :EXPERTS], -1), EXPERTS)
        capacity = int(FACTOR * x.shape[0] / EXPERTS)
        slot = (jnp.cumsum(expert, 0) - 1) * expert
        keep = expert * (slot < capacity)
        return jnp.tanh(jnp.einsum("te,td,edf->tf", keep, x, weights))

    return over_parts(resolver, moe, P(), P("part")), (f32(EXPERTS, 8, 8), f32(64, 8))
"""
#: Sorted tokens take the places that are left in a table; what does not fit goes behind its end.
PLACES = """

EXPERTS, TOKENS = 4, 128


def places_for(tokens):
    return max(2, -(-tokens // EXPERTS))


def step(resolver):
    def moe(weights, x):
        expert = jnp.argmax(x[:, :EXPERTS], -1)
        order = jnp.argsort(expert)
        counts = jnp.bincount(expert, length=EXPERTS)
        starts = jnp.cumsum(counts) - counts
        place = jnp.arange(len(x)) - starts[expert[order]]
        room = places_for(len(x))
        table = jnp.zeros((EXPERTS, room, x.shape[1]))
        table = table.at[expert[order], place].set(x[order], mode="drop")
        out = jnp.tanh(jnp.einsum("esd,edf->esf", table, weights))
        back = out.at[expert[order], place].get(mode="fill", fill_value=0.0)
        return jnp.zeros_like(x).at[order].set(back)

    return over_parts(resolver, moe, P(), P("part")), (f32(EXPERTS, 8, 8), f32(TOKENS, 8))
"""
#: A method counts the places; where the tokens of an expert begin is looked up in what is sorted.
SORTED = """

class Config:
    experts, factor = 8, 1.125

    def capacity(self, tokens):
        return -(-int(tokens * self.factor) // self.experts)


def step(resolver):
    def moe(weights, x):
        expert = jnp.argmax(x[:, :8], -1)
        order = jnp.argsort(expert)
        x, expert, room = x[order], expert[order], Config().capacity(len(x))
        place = jnp.arange(len(x)) - jnp.searchsorted(expert, jnp.arange(8))[expert]
        slot = jnp.where(place < room, expert * room + place, 8 * room)
        table = jnp.zeros((8 * room + 1, 16)).at[slot].set(x)[:-1].reshape(8, room, 16)
        out = jnp.tanh(jnp.einsum("esd,edf->esf", table, weights)).reshape(-1, 16)
        got = jnp.where((place < room)[:, None], out[jnp.minimum(slot, 8 * room - 1)], 0)
        return jnp.zeros_like(x).at[order].set(got)

    return over_parts(resolver, moe, P(), P("part")), (f32(8, 16, 16), f32(512, 16))
"""
#: Each expert chooses among the tokens of each device.
CHOICE = """

EXPERTS = 8


def step(resolver):
    def moe(weights, x):
        gates = jax.nn.softmax(x[:, :EXPERTS])
        count = 2 * len(x) // EXPERTS
        gate, chosen = lax.top_k(gates.T, count)
        out = jnp.einsum("esd,edf->esf", x[chosen], weights) * gate[..., None]
        return jnp.zeros_like(x).at[chosen.reshape(-1)].add(out.reshape(-1, 16))

    return over_parts(resolver, moe, P(), P("part")), (f32(EXPERTS, 16, 16), f32(512, 16))
"""
CUT = CHOICE.replace(
    "gate, chosen = lax.top_k(gates.T, count)", "chosen = jnp.argsort(gates.T)[:, :count]"
)
CUT = CUT.replace(" * gate[..., None]", "")
#: Rows of microbatches are other ones on each mesh; their sum is the same.
MICRO = """


def step(resolver):
    def train(weight, x):
        def one(total, rows):
            grad = jax.grad(lambda w: jnp.square(jnp.tanh(rows @ w)).sum())(weight)
            return total + lax.psum(grad, "part"), None

        total, _ = lax.scan(one, jnp.zeros_like(weight), x.reshape(4, -1, 8))
        return total  # sum

    return over_parts(resolver, train, P(), P("part"), out=P()), (f32(8, 8), f32(64, 8))
"""
#: One step of gradient descent, whose rate is too small to be seen in float32.
DESCENT = """


def step(resolver):
    def train(weight, x):
        grad = jax.grad(lambda w: jnp.square(jnp.tanh(x @ w)).mean())(weight)
        return weight - 1e-5 * lax.pmean(grad, "part")

    train = over_parts(resolver, train, P(), P("part"), out=P())
    return jax.jit(train, donate_argnums=0), (f32(8, 8), f32(64, 8))
"""
#: Random numbers of a narrow type are made from bits of that type.
NARROW = """


def step(resolver):
    def noisy(key, x):
        noise = jax.random.normal(key, x.shape, jnp.bfloat16)
        return x + resolver.constrain(noise, "batch _").astype(jnp.float32)

    key = jax.eval_shape(lambda: jax.random.key(0))
    return noisy, (key, f32(64, 8))
"""
#: A scan over chunks of the part of each device.
CHUNKS = """

LENGTH, CHUNK, EMBED = 65536, 256, 2048


def step(resolver):
    def sums(x):
        chunks = x.reshape(len(x) // CHUNK, CHUNK, EMBED)
        return lax.map(lambda each: jnp.cumsum(each, 0), chunks).reshape(x.shape)

    return over_parts(resolver, sums, P("part")), (f32(LENGTH, EMBED),)
"""
#: The code makes its arrays, one of which has a multiple of a size that is written.
MULTIPLES = """

BATCH, WIDTH, GROUPS = 65536, 128, 32


def step(resolver):
    def forward(params, x):
        groups = x.reshape(len(x), GROUPS, -1)
        x = (groups / jnp.abs(groups).mean(-1, keepdims=True)).reshape(x.shape)
        hidden = (x @ params["up"]).reshape(len(x), 4, WIDTH)
        return x + hidden.sum(1) @ params["down"]

    params = {"up": f32(WIDTH, 4 * WIDTH), "down": f32(WIDTH, WIDTH)}
    return over_parts(resolver, forward, P(), P("part")), (params, f32(BATCH, WIDTH))
"""
#: A pipeline: each device has some of the layers, and hands microbatches on.
PIPELINE = """

LAYERS, MICRO = 8, 8


def step(resolver):
    def pipeline(params, x):
        n, me = lax.axis_size("part"), lax.axis_index("part")

        def tick(carry, t):
            state, outs = carry
            new = x[jnp.minimum(t, MICRO - 1)]  # input
            begun = jnp.where(me == 0, new, state)  # begun
            y = lax.scan(lambda x, w: (jnp.tanh(x @ w), None), begun, params)[0]  # layers
            at = t - (n - 1)  # at
            done = outs.at[jnp.maximum(at, 0)].set(y)  # done
            outs = jnp.where((me == n - 1) & (at >= 0), done, outs)  # kept
            state = lax.ppermute(y, "part", [(j, (j + 1) % n) for j in range(n)])  # send
            return (state, outs), None

        ticks = jnp.arange(MICRO + n - 1)
        outs = lax.scan(tick, (jnp.zeros_like(x[0]), jnp.zeros_like(x)), ticks)[0][1]  # loop
        return lax.psum(jnp.where(me == n - 1, outs, 0.0), "part")  # last

    def train(params, x):
        run = over_parts(resolver, pipeline, P("part"), P(), out=P())
        return params - jax.grad(lambda params: jnp.square(run(params, x)).mean())(params)

    return train, (f32(LAYERS, 16, 16), f32(MICRO, 4, 16))
"""
#: Rules of `jax.custom_vjp`: sums of a row and a column, and a mean over all devices.
RULES = """


def ruled(forward, kept, backward):
    function = jax.custom_vjp(forward)
    function.defvjp(lambda *args: (forward(*args), kept(*args)), backward)
    return function


def back_of_copy(_, g):
    return (lax.psum(g, "part"),)  # copy


def back_of_sum(_, g):
    return (g,)  # sum


def back_of_dense(kept, g):
    x, w = kept
    w_grad = lax.pmean(x.T @ g, "part")  # dense
    return g @ w.T, w_grad  # returned


copy = ruled(lambda x: x, lambda x: None, back_of_copy)
summed = ruled(lambda x: lax.psum(x, "part"), lambda x: None, back_of_sum)
dense = ruled(lambda x, w: x @ w, lambda x, w: (x, w), back_of_dense)


def step(resolver):
    def loss(params, x, z):
        hidden = jnp.tanh(copy(z @ params["in"]) @ params["up"])
        out = summed(hidden @ params["down"])
        return jnp.square(out).mean() + jnp.square(jnp.tanh(dense(x, params["rows"]))).mean()

    def train(params, x, z):
        return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params, x, z))  # update

    places = {"in": P(), "up": P(None, "part"), "down": P("part"), "rows": P()}
    run = over_parts(resolver, train, places, P("part"), P(), out=places)
    params = {"in": f32(8, 8), "up": f32(8, 16), "down": f32(16, 8), "rows": f32(8, 8)}
    return run, (params, f32(64, 8), f32(4, 8))
"""
#: Each device has the loss of its own rows; gradients are averaged at the end.
MEANS = """

@jax.custom_vjp
def entered(x):
    return x


entered.defvjp(lambda x: (x, None), lambda _, g: (g,))  # rule


def step(resolver):
    def train(params, x):
        def loss(params):
            hidden = jnp.tanh(x @ params["in"])  # hidden
            return jnp.square(jnp.tanh(entered(hidden) @ params["out"])).mean()

        grads = jax.tree.map(lambda g: lax.pmean(g, "part"), jax.grad(loss)(params))
        return jax.tree.map(lambda p, g: p - g, params, grads)

    run = over_parts(resolver, train, P(), P("part"), out=P())
    return run, ({"in": f32(8, 16), "out": f32(16, 8)}, f32(64, 8))
"""
#: Rows of a table are asked of the device that has them.
LOOKUP = """

def step(resolver):
    def rows_of(table, ids):
        n, rows = lax.axis_size("part"), len(table)
        owner = ids // rows  # owner
        asked = jnp.where(owner[None] == jnp.arange(n)[:, None], ids[None], -1)
        asked = lax.all_to_all(asked, "part", 0, 0)
        local = jnp.clip(asked - lax.axis_index("part") * rows, 0, rows - 1)
        found = jnp.where((asked >= 0)[..., None], table[local], 0)
        return lax.all_to_all(found, "part", 0, 0).sum(0)

    ids = jax.ShapeDtypeStruct((64,), jnp.int32)
    return over_parts(resolver, rows_of, P("part"), P("part")), (f32(32, 8), ids)
"""
#: The best of a vocabulary that is split, which a key draws one of.
BEST = """

def step(resolver):
    def best(x, table):
        top, tokens = lax.top_k(x @ table.T, 4)
        tokens = tokens + lax.axis_index("part") * len(table)  # tokens
        top, tokens = (lax.all_gather(a, "part", axis=1, tiled=True) for a in (top, tokens))
        top, at = lax.top_k(top, 4)
        return top, jnp.take_along_axis(tokens, at, 1)

    both = over_parts(resolver, best, P(), P("part"), out=P())

    def drawn(x, table, key):
        top, tokens = both(x, table)
        return jnp.take_along_axis(tokens, jax.random.categorical(key, top)[:, None], 1)  # drawn

    return drawn, (f32(16, 8), f32(32, 8), jax.eval_shape(lambda: jax.random.key(0)))
"""
#: Causal attention around a ring without a loop of JAX, whose positions count over all parts.
TURNS = """

def step(resolver):
    def attend(x):
        n, me, own = lax.axis_size("part"), lax.axis_index("part"), x.shape[0]
        at = me * own + jnp.arange(own)  # at
        waves = jnp.sin(at[:, None] * jnp.linspace(0.1, 1, x.shape[1]))
        x, total, norm = x + waves, 0.0, 0.0
        others = x
        for turn in range(n):
            there = (me - turn) % n * own + jnp.arange(own)
            weights = jnp.exp(jnp.tanh(x @ others.T)) * (at[:, None] >= there)
            total, norm = total + weights @ others, norm + weights.sum(1)
            others = lax.ppermute(others, "part", [(j, (j + 1) % n) for j in range(n)])  # send
        return total / norm[:, None]

    return over_parts(resolver, attend, P("part")), (f32(64, 16),)
"""
#: Each device adds up what its own experts give.
OWN_EXPERTS = """

def step(resolver):
    def experts(weights, x):
        chosen, out = jnp.argmax(x[:, :8], -1), jnp.zeros_like(x)
        first = lax.axis_index("part") * len(weights)  # first
        for at, weight in enumerate(weights):
            out += jnp.tanh(x @ weight) * (chosen == first + at)[:, None]
        return lax.psum(out, "part")  # sum

    return over_parts(resolver, experts, P("part"), P(), out=P()), (f32(8, 16, 16), f32(64, 16))
"""
#: One token is put into a cache whose places are split.
CACHE = """

def step(resolver):
    def put(cache, x, at):
        rows = len(cache)
        here = jnp.where(at // rows == lax.axis_index("part"), at % rows, rows)
        return cache.at[here].set(x, mode="drop")  # put

    places = jax.ShapeDtypeStruct((), jnp.int32)
    return over_parts(resolver, put, P("part"), P(), P()), (f32(64, 16), f32(16), places)
"""
#: A mean that takes the size of a mesh axis.
SIZED = """

def step(resolver):
    def mean(x):
        return lax.psum(jnp.tanh(x).mean(), "part") / lax.axis_size("part")

    return over_parts(resolver, mean, P("part"), out=P()), (f32(64, 8),)
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Return what compares a step, with places of it changed."""
    monkeypatch.chdir(tmp_path)

    def compared(text: str, *changes: tuple[str, str], spec: str = SPEC) -> tuple[Numbers, str]:
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "spec.yaml").write_text(spec)
        (tmp_path / "kinds_step.py").write_text(HEAD + text)
        ir = shardspec.load("spec.yaml").ir
        code = StepCode("kinds_step:step", str(tmp_path), ir, ir.targets[0])
        numbers = same_numbers(code, Asked(), lambda stage: None)
        line = numbers.first.place.line if numbers.first else 0
        return numbers, (HEAD + text).split("\n")[line - 1]

    return compared


@pytest.mark.parametrize(
    "text",
    [
        EXPERTS,
        RING,
        CHUNKS,
        MULTIPLES,
        MICRO,
        DESCENT,
        NARROW,
        RULES,
        PIPELINE,
        MEANS,
        LOOKUP,
        BEST,
        TURNS,
        OWN_EXPERTS,
        CACHE,
    ],
)
def test_a_right_step_is_the_same(text: str, run) -> None:
    numbers, _ = run(text)
    assert numbers.verdict == "same", str(numbers)


@pytest.mark.parametrize(
    ("text", "change", "line"),
    [
        (EXPERTS, ("got.swapaxes(0, 1).", "got."), "# got"),
        (EXPERTS, ("own, n, *x.shape).swapaxes(0, 1)", "n, own, *x.shape)"), "(out, "),
        (RING, ("(j, (j + 1) % n)", "(j, (j - 1) % n)"), "# send"),
        (PIPELINE, ("jnp.minimum(t, ", "jnp.minimum(t + n - 1, "), "# input"),
        (PIPELINE, ("me == 0, new", "me >= 0, new"), "# begun"),
        (PIPELINE, ("at = t - (n - 1)", "at = t"), "# done"),
        (PIPELINE, ("(me == n - 1) & ", "(me == 0) & "), "# kept"),
        (PIPELINE, ("(j, (j + 1) % n)", "(j, (j - 1) % n)"), "# send"),
        (PIPELINE, ("MICRO + n - 1)", "MICRO)"), "# loop"),
        (PIPELINE, ("me == n - 1, outs", "me == 0, outs"), "# last"),
        (RULES, ('(lax.psum(g, "part"),)  # copy', "(g,)  # copy"), "# copy"),
        (RULES, ("(g,)  # sum", '(lax.psum(g, "part"),)  # sum'), "# sum"),
        (RULES, ('lax.pmean(x.T @ g, "part")', "x.T @ g"), "# returned"),
        (RULES, ("lax.pmean(x.T", "lax.psum(x.T"), "# dense"),
        (MEANS, ("(g,))", '(lax.psum(g, "part"),))'), "# rule"),
        (MEANS, ("(x @", '((x + lax.axis_index("part")) @'), "# hidden"),
        (LOOKUP, ("ids // rows", "ids % n"), "asked = lax"),
        (BEST, ("* len(table)", "* 4"), "all_gather(a"),
        (TURNS, ("at = me * own + ", "at = "), "# at"),
        (TURNS, ("(j, (j + 1) % n)", "(j, (j - 1) % n)"), "# send"),
        (OWN_EXPERTS, ('lax.axis_index("part") * len(weights)', "0"), "# sum"),
        (CACHE, ('at // rows == lax.axis_index("part")', "at >= 0"), "# put"),
        (MICRO, ("return total  #", 'return lax.psum(total, "part")  #'), "# sum"),
    ],
)
def test_what_is_exchanged_wrong_is_named(text: str, change: tuple, line: str, run) -> None:
    numbers, found = run(text, change)
    assert (numbers.verdict, numbers.axes) == ("different", (("part",),))
    assert line in found, (found, numbers.first)
    assert "already the same" not in str(numbers.first) or "psum" in change[1], numbers.first


@pytest.mark.parametrize("mesh", ["{part: 2, other: 8}", "{part: 4, other: 4}"])
def test_the_size_of_another_axis_is_a_fault(mesh: str, run) -> None:
    """Axes of one size would hide it."""
    spec = SPEC.replace("v5e 2x4", "v5e 4x4").replace("{part: rest}", mesh)
    split = SIZED.replace('P("part"), out', 'P("part", "other"), out').replace(
        "jnp.tanh(x).mean()", 'lax.pmean(jnp.tanh(x).mean(), "other")'
    )
    assert run(split, spec=spec)[0].verdict == "same"
    wrong = split.replace('axis_size("part")', 'axis_size("other")')
    assert run(wrong, spec=spec)[0].verdict == "different"


def test_the_line_of_an_index_is_named_beside_what_it_puts_elsewhere(run) -> None:
    numbers, _ = run(PIPELINE, ("at = t - (n - 1)", "at = t - (n - 1) // 2"))
    line = (HEAD + PIPELINE).split("\n").index("            at = t - (n - 1)  # at") + 1
    assert f"by an index of kinds_step.py:{line}" in str(numbers.first)


@pytest.mark.parametrize(
    ("text", "line"),
    [(CAPACITY, 23), (PLACES, 21), (SORTED, 21), (CHOICE, 23), (CUT, 23)],
    ids=["counted", "places", "sorted", "chosen", "cut"],
)
def test_a_capacity_of_each_device_is_no_fault(text: str, line: int, run) -> None:
    """With room for all tokens the step is that of one device: only what is dropped differs."""
    numbers, _ = run(text)
    assert (numbers.verdict, numbers.differences) == ("same", ())
    assert numbers.capacities == (f"kinds_step.py:{line}",)
    assert f"capacity kinds_step.py:{line} " in str(numbers)


#: As in `CAPACITY`; the module states the number, or a function is compiled before.
STATED = CAPACITY.replace("EXPERTS, FACTOR = 4, 1.0", "EXPERTS, ROOM = 4, 16 // 2").replace(
    "int(FACTOR * x.shape[0] / EXPERTS)", "ROOM"
)
COMPILED = CAPACITY.replace("    def moe(", "    @jax.jit\n    def moe(")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        *((CAPACITY, 23), (PLACES, 21), (SORTED, 21), (CHOICE, 23), (CUT, 23)),
        *((STATED, 17), (COMPILED, 24)),
    ],
    ids=["counted", "places", "sorted", "chosen", "cut", "stated", "compiled"],
)
def test_a_function_of_this_process_has_room_as_the_command_gives_it(
    text: str, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "live_step.py").write_text(HEAD + text)
    monkeypatch.delitem(sys.modules, "live_step", raising=False)
    step = importlib.import_module("live_step").step
    code = step.__code__
    resolver = shardspec.Resolver("spec.yaml", devices="abstract")
    numbers = resolver.same_numbers(step)
    assert numbers.verdict == "same", str(numbers)
    assert numbers.capacities == (f"live_step.py:{line}",)
    assert step.__code__ is code
    monkeypatch.delitem(sys.modules, "live_step")


def test_a_fault_in_a_step_with_places_is_found(run) -> None:
    change = ("order].set(back)", 'order].set(back * (1 + lax.axis_index("part")))')
    numbers, _ = run(PLACES, change)
    assert (numbers.verdict, numbers.axes) == ("different", (("part",),))


def test_a_fault_that_float32_hides_is_found(run) -> None:
    numbers, _ = run(DESCENT, ("lax.pmean(", "lax.psum("))
    assert (numbers.verdict, numbers.width, numbers.axes) == ("different", "float64", (("part",),))


@pytest.mark.parametrize(
    ("text", "place"), [(CAPACITY, "slot < capacity)"), (SORTED, "x[order]"), (CHOICE, "gates.T")]
)
def test_a_fault_beside_drops_is_found(text: str, place: str, run) -> None:
    numbers, _ = run(text, (place, f'{place} * (1 + lax.axis_index("part"))'))
    assert (numbers.verdict, numbers.axes) == ("different", (("part",),))
    assert numbers.capacities


#: A width that code multiplies by a number of its own, in as many sizes as the spec states.
MULTIPLIED = """

WIDTH, LAYERS = 64, 12


def step(resolver):
    def loss(params, x):
        for each in params:
            x = x * each["scale"] + jnp.tanh(x @ each["up"] + each["bias"]) @ each["down"]
        return (x**2).mean()

    up, down, bias = f32(WIDTH, 4 * WIDTH), f32(4 * WIDTH, WIDTH), f32(4 * WIDTH)
    each = {"up": up, "down": down, "bias": bias, "scale": f32(WIDTH)}
    return jax.grad(loss), ([each] * LAYERS, f32(8192, WIDTH))
"""
OF_MULTIPLIED = (
    SPEC.replace("{batch: 64}", "{batch: 8192, embed: 64, mlp: 256, layers_norm: 64}")
    .replace("rules: [batch -> part]", 'rules: [mlp -> part, "embed, layers_norm -> none"]')
    .rstrip()
    + """
params:
  "*/up": embed mlp
  "*/down": mlp embed
  "*/bias": mlp
  "*/scale": layers_norm
"""
)


def test_a_size_that_code_multiplies_is_made_small_once(run) -> None:
    """The spec states the product; a small one is the size that another argument had."""
    numbers, _ = run(MULTIPLIED, spec=OF_MULTIPLIED)
    assert numbers.verdict == "same", str(numbers)
    assert dict(numbers.sizes)[64] == 16


#: Keys that are taken one by one, as many as there happen to be layers.
KEYS = """

WIDTH, LAYERS = 512, 8


def step(resolver):
    def loss(weights, x, key):
        keys = iter(jax.random.split(key, 8))
        for weight in weights["layers"]:
            x = jnp.tanh(x @ weight)
        for _ in "dropped":
            x = x + jax.random.normal(next(keys), (1, WIDTH))
        return (x**2).mean()

    key = jax.eval_shape(lambda: jax.random.key(0))
    weights = {"layers": [f32(WIDTH, WIDTH)] * LAYERS}
    return jax.grad(loss), (weights, f32(4096, WIDTH), key)
"""


def test_a_number_that_is_also_one_of_layers_stays_where_code_needs_it(run) -> None:
    spec = SPEC.replace("{batch: 64}", "{batch: 4096, width: 512}")
    spec = spec.replace("rules: [batch -> part]", "rules: [batch -> part, width -> part]")
    numbers, _ = run(KEYS, spec=spec + 'params: {"layers/*": width _}\n')
    assert numbers.verdict == "same", str(numbers)


#: The norm of shards that a device gathers for its products: nothing is passed on, no pipeline.
SHARDS = """

def step(resolver):
    def local(weights, x):
        full = [lax.all_gather(each, "part", axis=0, tiled=True) for each in weights]

        def loss(full):
            y = x
            for each in full:
                y = y + jnp.tanh(y @ each)
            return (y**2).mean()

        grads = [lax.psum_scatter(each, "part", tiled=True) / 2 for each in jax.grad(loss)(full)]
        norms = [lax.psum((each**2).sum(), "part") for each in grads]  # norms
        return [each / jnp.sqrt(norm) for each, norm in zip(grads, norms)]

    parts = P("part")
    return over_parts(resolver, local, parts, parts), ([f32(32, 32)] * 3, f32(32, 32))
"""


def test_nothing_is_a_pipeline_that_sends_nothing_on(run) -> None:
    wrong = 'lax.psum((each**2).sum(), "part")', "(each**2).sum()"
    numbers, _ = run(SHARDS, wrong)
    assert numbers.verdict == "different"
    assert "pipeline" not in str(numbers.first)


#: What is left of two sums in other orders, which is all rounding, and no input has any.
LEFT = """

def step(resolver):
    def left(ids):
        values = 1.1 + jnp.cos(ids.astype(jnp.float32))
        own = lax.fori_loop(0, len(values), lambda at, sum: sum + values[at], 0.0)
        parts = lax.psum(own, "part")
        complete = lax.all_gather(values, "part", tiled=True).sum()
        return 1 + 30 * (parts - complete) / complete

    ids = jax.ShapeDtypeStruct((65536,), jnp.int32)
    return over_parts(resolver, left, P("part"), out=P()), (ids,)
"""


def test_rounding_that_grows_is_no_difference(run) -> None:
    """float64 tells it from a fault, which stays."""
    numbers, _ = run(LEFT)
    assert (numbers.verdict, numbers.width) == ("same", "float64")
    wrong = "tiled=True).sum()", 'tiled=True).sum() * (1 + 1e-5 * lax.axis_size("part"))'
    assert run(LEFT, wrong)[0].verdict == "different"
