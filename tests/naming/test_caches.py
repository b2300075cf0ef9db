"""Names for the dimensions of caches, by sizes."""

from __future__ import annotations

import pytest

from shardspec import pipeline
from shardspec.drafting.draft import Asked, Draft, draft
from shardspec.drafting.machines import hardware_of
from shardspec.ir.spec import Param, Params
from shardspec.naming.caches import named_caches
from shardspec.naming.guessing import guess


def _decoder(layers: int = 4, kv_heads: int = 8) -> Params:
    shapes = {
        "q_proj/kernel": (4096, 4096),
        "k_proj/kernel": (4096, 128 * kv_heads),
        "v_proj/kernel": (4096, 128 * kv_heads),
        "o_proj/kernel": (4096, 4096),
    }
    own = [
        Param(f"layers/{at}/attn/{name}", shape)
        for at in range(layers)
        for name, shape in shapes.items()
    ]
    own += [Param(f"layers/{at}/mlp/up/kernel", (4096, 14336)) for at in range(layers)]
    return (*own, Param("embed_tokens/embedding", (32000, 4096)))


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        ((4, 64, 2048, 8, 128), "layers batch cache_length kv_heads kv"),
        ((64, 4, 2048, 8, 128), "batch layers cache_length kv_heads kv"),
        ((4, 64, 8, 2048, 128), "layers batch kv_heads cache_length kv"),
        ((64, 2048, 8, 128), "batch cache_length kv_heads kv"),
        ((64, 64, 8, 128), "batch cache_length kv_heads kv"),
        ((64, 2048, 512), "batch cache_length _"),
        ((16384, 16, 8, 128), "pages page_size kv_heads kv"),
        ((4, 16384, 16, 8, 128), "layers pages page_size kv_heads kv"),
        ((2, 16384, 16, 8, 128), "_ pages page_size kv_heads kv"),
        ((4096, 16, 8, 128), "pages page_size kv_heads kv"),
        ((4096, 16, 1024), "pages page_size joined_kv_heads"),
        ((8, 16384, 16, 128), "kv_heads pages page_size kv"),
        ((16384, 16, 6, 128), "cache_length _ _ _"),
        ((2048, 8, 128), "cache_length _ _"),
        ((16, 2048, 8, 128), "_ cache_length kv_heads kv"),
        ((64, 2048, 16, 8, 128), "batch cache_length _ kv_heads kv"),
        ((16384, 16, 512), "cache_length _ _"),
        ((64,), "batch"),
        ((2048,), "_"),
    ],
)
def test_sizes_tell_what_the_dimensions_of_a_cache_are(shape: tuple[int, ...], names: str) -> None:
    params = _decoder()
    (found,) = named_caches((Param("k", shape),), params, guess(params).axes, {64, 1})
    assert " ".join(name or "_" for name in found.logical_axes or ()) == names


def test_a_cache_of_many_dimensions_of_one_size_has_each_name_once() -> None:
    params = _decoder(4, 4)
    (found,) = named_caches((Param("k", (4,) * 7),), params, guess(params).axes, {4})
    names = [name for name in found.logical_axes or () if name]
    assert len(names) == len({*names}) > 1


def test_a_step_with_caches_gets_weights_over_tensor_and_its_batch_over_data() -> None:
    machine = hardware_of("tpu v5e 4x4")
    assert machine is not None
    caches = tuple(Param(f"{at}/{n}", (64, 2048, 8, 128), "bf16") for at in range(4) for n in "kv")
    params = _decoder()
    found = draft(Asked(params, "serve:step", (machine,), (), None, True, caches, frozenset((64,))))
    assert isinstance(found, Draft)
    spec, faults = pipeline.load_text(found.text, "spec.yaml")
    assert spec is not None, faults
    assert not pipeline.check(spec, faults, params).shown
    (plan,) = pipeline.compile_plans(spec)
    assert str(plan.mesh.heading) == "data=2 tensor=8"
    splits = {each.param.path: [dim.mesh_axes for dim in each.dims] for each in plan.arrays}
    assert splits["0/k"] == [("data",), (), ("tensor",), ()]
    assert splits["layers/0/attn/k_proj/kernel"] == [(), ("tensor",)]
    assert "fsdp" not in found.text
    assert "one head 128 wide?" not in found.text, "a cache shows it"
    assert "what is in a step?" in found.text
    known = draft(Asked(params, "serve:step", (machine,), has_step=True))
    assert isinstance(known, Draft)
    assert "what is in a step?" not in known.text, "the step is code"


def test_the_pages_of_a_cache_go_over_data_and_are_counted() -> None:
    machine = hardware_of("tpu v5e 4x4")
    assert machine is not None
    caches = (Param("cache/k", (4, 16384, 16, 8, 128), "bf16"),)
    params = _decoder()
    found = draft(Asked(params, "serve:step", (machine,), (), None, True, caches, frozenset((64,))))
    assert isinstance(found, Draft)
    assert "pages: 16384  # pages of all requests together" in found.text
    assert "page_size: 16  # tokens of a page" in found.text
    spec, faults = pipeline.load_text(found.text, "spec.yaml")
    assert spec is not None, faults
    assert not pipeline.check(spec, faults, params).shown
    (plan,) = pipeline.compile_plans(spec)
    splits = {each.param.path: [dim.mesh_axes for dim in each.dims] for each in plan.arrays}
    assert splits["cache/k"] == [(), ("data",), (), ("tensor",), ()]


def test_one_head_of_keys_is_on_each_device_and_leaves_the_queries_split() -> None:
    machine = hardware_of("tpu v5e 4x4")
    assert machine is not None
    caches = (Param("k", (4, 64, 2048, 1, 128), "bf16"),)
    params = _decoder(4, 1)
    found = draft(Asked(params, "serve:step", (machine,), (), None, True, caches, frozenset((64,))))
    assert isinstance(found, Draft)
    spec, faults = pipeline.load_text(found.text, "spec.yaml")
    assert spec is not None, faults
    assert not [each for each in pipeline.check(spec, faults, params).shown if each.is_error]
    (plan,) = pipeline.compile_plans(spec)
    splits = {each.param.path: [dim.mesh_axes for dim in each.dims] for each in plan.arrays}
    assert splits["k"] == [(), ("data",), (), (), ()]
    assert splits["layers/0/attn/q_proj/kernel"] == [(), ("tensor",)]
