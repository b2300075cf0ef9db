"""The numbers that a first spec states are those of the spec, counted from its plan."""

from __future__ import annotations

import math
import re
from collections import Counter

import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardspec.diagnostics.words import binary_bytes
from shardspec.drafting.draft import Draft
from shardspec.drafting.machines import training_bytes
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Param, Params, axis_of
from shardspec.naming.guessing import Guess
from tests.drafting.test_draft import LLAMA, MODELS, drafted, loaded, taken

ODD = (*LLAMA, *(Param(f"odd/{name}", (77, 4096)) for name in ("one", "two")))
LORA = (
    *LLAMA,
    *(Param(f"layers_{at}/mlp/wi/kernel_lora_a", (4096, 8), "bf16") for at in range(4)),
    *(Param(f"layers_{at}/mlp/wi/kernel_lora_b", (8, 14336), "bf16") for at in range(4)),
)
EVERY = {name: params for name, (params, _) in MODELS.items()} | {"odd": ODD, "derived": LORA}


@pytest.fixture(params=EVERY)
def model(request: pytest.FixtureRequest) -> tuple[Params, Draft, ShardingPlan]:
    """Return a model, its first spec, and what comes of it."""
    params = EVERY[request.param]
    made = drafted(params, "2 * tpu v5e 4x4")
    return params, made, loaded(made, params)[1][0]


def test_an_axis_is_in_as_many_arrays_as_it_says(
    model: tuple[Params, Draft, ShardingPlan],
) -> None:
    params, made, plan = model
    own = {param.path for param in params if param.logical_axes}
    counts: Counter[str] = Counter()
    derived = _derived(made, params)
    for each in plan.arrays:
        if each.param.path not in derived:
            counts.update(axis_of(name) for name in each.logical_axes if name is not None)
    said = dict(re.findall(r"(?m)^  (\w+):.*?; in (\d+) arrays?(?:;.*)?$", made.text))
    assert said
    assert {name: int(many) for name, many in said.items()} == {n: counts[n] for n in said}
    assert not own or any("named by its arrays" in line for line in made.text.splitlines())


def test_a_pattern_names_as_many_arrays_as_it_says(
    model: tuple[Params, Draft, ShardingPlan],
) -> None:
    _, made, plan = model
    patterns = Counter(str(each.matched.pattern) for each in plan.arrays if each.matched)
    said = re.findall(r'(?m)^  "?([^"\s]+?)"?: .*# guess: .*; (\d+) arrays?(?:;.*)?$', made.text)
    assert said
    for pattern, many in said:
        assert patterns[pattern] == int(many), pattern


def test_remarks_count_arrays_and_their_bytes(model: tuple[Params, Draft, ShardingPlan]) -> None:
    params, made, _ = model
    groups = {
        "named": [e for e in made.guesses if e.names is not None and not e.is_own],
        "own": [e for e in made.guesses if e.is_own],
        "asked": [e for e in made.guesses if e.names is None],
    }
    count = {name: sum(len(e.params) for e in group) for name, group in groups.items()}
    size = {name: sum(param.bytes for param in _of(group)) for name, group in groups.items()}
    said = "\n".join(made.remarks)
    total = sum(size.values())
    assert f"guessed the dimensions of {count['named']} of {len(params)} arrays, " in said
    (share,) = re.findall(r"arrays, ([\d.]+) % of their bytes", said)
    assert float(share) == pytest.approx(100 * size["named"] / total, rel=0.25)
    assert re.findall(r"(\d+) arrays? with names of", said) == _unless_none(count["own"])
    assert re.findall(r"(\d+) arrays? not guessed", said) == _unless_none(count["asked"])
    if count["asked"]:
        (left,) = re.findall(r"not guessed, ([\d.]+) % of the bytes", said)
        assert float(left) == pytest.approx(100 * size["asked"] / total, rel=0.25)
    derived = re.findall(r"(\d+) arrays? by `derive/", said)
    assert derived == _unless_none(len(params) - sum(count.values()))
    assert sum(line.startswith("target ") for line in made.remarks) == 1


def test_the_head_of_a_spec_counts_all_arrays(model: tuple[Params, Draft, ShardingPlan]) -> None:
    params, made, _ = model
    total = sum(param.bytes for param in params)
    assert f'doc: "arrays.yaml: {len(params)} arrays, {binary_bytes(total)}"' in made.text


def test_a_question_counts_the_arrays_of_its_shape() -> None:
    other = Param("strange/thing", (530, 311, 710))
    made = drafted((*ODD, other))
    assert "dim_77: 77  # QUESTION: what is it? 77 is no axis; in 2 arrays" in made.text
    asked = re.findall(r"QUESTION: what are the dimensions of (.*?)\? (.*)", made.text)
    nowhere = "530 is no axis; 311 is no axis; 710 is no axis"
    assert asked == [(f"[530, 311, 710] (1 array, {binary_bytes(530 * 311 * 710 * 4)})", nowhere)]


@pytest.mark.parametrize("model", ["dense", "experts", "fused"])
def test_heads_times_their_width_are_the_arrays(model: str) -> None:
    """What query, key and value share is cut into heads without a rest."""
    params = EVERY[model]
    text = taken(drafted(params, "tpu v5e 4x4"), "yaml")
    spec, _ = loaded(drafted(params, "tpu v5e 4x4")._replace(text=text), params)
    sizes = {axis.name: axis.size for axis in spec.logical_axes}
    if "joined_qkv" in sizes:
        keys = 2 * sizes["kv_heads"] * sizes["kv"]
        assert sizes["joined_qkv"] == sizes["heads"] * sizes["kv"] + keys
        assert sizes["joined_kv"] == sizes["heads"] * sizes["kv"]
    for axis in spec.logical_axes:
        assert axis.unit is None or axis.size is None or axis.size % axis.unit == 0


def test_grouped_heads_of_one_array_are_told_from_those_of_queries() -> None:
    """Llama 3 8B: 32 heads and 8 of keys and values, 128 wide, in one array of 6,144."""
    params = (
        Param("embed/embedding", (128256, 4096), "bf16"),
        *(Param(f"h.{at}.attn.qkv_proj.weight", (4096, 6144)) for at in range(4)),
        *(Param(f"h.{at}.attn.o_proj.weight", (4096, 4096)) for at in range(4)),
    )
    spec, _ = loaded(drafted(params, "tpu v5e 4x4"), params)
    sizes = {axis.name: axis.size for axis in spec.logical_axes}
    assert (sizes["heads"], sizes["kv_heads"], sizes["kv"]) == (32, 8, 128)


def test_the_state_that_is_proposed_is_that_of_adam() -> None:
    text = taken(drafted(LLAMA, "tpu v5e 4x4"), "yaml")
    spec, _ = loaded(drafted(LLAMA, "tpu v5e 4x4")._replace(text=text), LLAMA)
    (adam, *_) = optax.adam(1e-3).init({"w": 0.0})
    copies = [name for name, value in adam._asdict().items() if isinstance(value, dict)]
    assert spec.state is not None
    assert spec.state.moments == len(copies)


@pytest.mark.parametrize("machines", [("tpu v5e 4x4",), ("3 * h100", "tpu v5e 4x4"), ("1 cpu",)])
def test_the_batch_that_is_proposed_divides_on_every_machine(machines: tuple[str, ...]) -> None:
    made = drafted(LLAMA, *machines)
    spec, plans = loaded(made._replace(text=taken(made, "yaml")), LLAMA)
    sizes = {axis.name: axis.size for axis in spec.logical_axes}
    assert sizes["batch"] is not None
    assert sizes["batch"] >= 64
    assert all(sizes["batch"] % plan.mesh.device_count == 0 for plan in plans)
    devices = math.lcm(*(plan.mesh.device_count for plan in plans))
    assert sizes["batch"] < 64 + devices


def _derived(made: Draft, params: Params) -> set[str]:
    known = {p.path for p in _of([*made.guesses])}
    return {p.path for p in params} - known


def _of(group: list[Guess]) -> list[Param]:
    return [p for e in group for p in e.params]


def _unless_none(count: int) -> list[str]:
    return [str(count)] if count else []


def test_training_takes_the_parameters_and_in_f32_a_gradient_and_what_adam_keeps() -> None:
    arrays = {"a": np.zeros((64, 8), np.float16), "b": np.zeros((3,), np.float32)}
    params = (Param("a", (64, 8), "f16"), Param("b", (3,), "f32"))
    (adam, *_) = optax.adam(1e-3).init({name: each.astype("f4") for name, each in arrays.items()})
    state = [each for tree in (adam.mu, adam.nu) for each in tree.values()]
    gradients = [each.astype("f4") for each in arrays.values()]
    whole = sum(int(each.nbytes) for each in (*arrays.values(), *state, *gradients))
    assert training_bytes(params) == whole


#: The width of a model, and of one head where no array tells it.
WIDTHS = st.sampled_from(((768, 64), (1024, 64), (2048, 128), (4096, 128)))


@given(WIDTHS, st.integers(2, 7), st.integers(1, 4))
@settings(max_examples=8)
def test_heads_of_one_array_are_counted_by_the_usual_width(
    model: tuple[int, int], groups: int, keys: int
) -> None:
    embed, width = model
    heads = groups * keys
    params = (
        Param("wte.weight", (5000, embed)),
        *(
            Param(f"h.{at}.attn.{name}.weight", shape)
            for at in range(2)
            for name, shape in (
                ("c_attn", (embed, (heads + 2 * keys) * width)),
                ("c_proj", (heads * width, embed)),
            )
        ),
    )
    spec, _ = loaded(drafted(params, "8 cpu"), params)
    sizes = {axis.name: axis.size for axis in spec.logical_axes}
    assert (sizes["heads"], sizes["kv_heads"], sizes["kv"]) == (heads, keys, width)


@given(WIDTHS, st.sampled_from((None, 48, 80, 96)), st.integers(1, 4))
@settings(max_examples=8)
def test_a_head_is_as_wide_as_its_norm_or_a_question(
    model: tuple[int, int], known: int | None, keys: int
) -> None:
    embed, usual = model
    width = known or usual
    shapes = {"query/kernel": (embed, 6 * keys * width), "key/kernel": (embed, keys * width)}
    shapes |= {"q_norm/scale": (width,)} if known else {}
    attention = [
        Param(f"layers_{at}/attn/{name}", shape)
        for at in range(2)
        for name, shape in shapes.items()
    ]
    params = (Param("embed/embedding", (5000, embed)), *attention)
    made = drafted(params, "8 cpu")
    spec, _ = loaded(made, params)
    units = {axis.unit for axis in spec.logical_axes if axis.name.startswith("joined_kv")}
    assert units == {width}
    assert (f"is one head {width} wide?" in made.text) == (known is None)
