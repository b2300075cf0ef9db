"""The names that arrays of unnamed dimensions get by their sizes, and the layouts of these."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardspec.cure.lines import Layout
from shardspec.jax_backend.cure.layouts import MOST_LAYOUTS, Namer
from shardspec.jax_backend.step.trace import Call, Layouts, traced
from tests.jax_backend.cure.small import resolver, struct, traced_of

SPEC = """\
shardspec: 1
axes: {batch: 32, length: 64, heads: 16, kv: 128, embed: 256, mlp: 1024, expert: 8}
targets:
  pod: {hardware: tpu v5e 2x4, mesh: {fsdp: 4, tensor: 2}}
rules: [batch -> fsdp, mlp -> tensor, embed -> fsdp, heads -> tensor, expert -> fsdp,
  length -> none, kv -> none]
params: {"**/wi": embed mlp}
lints: {SHD1: allow, SHD2: allow}
"""
SHAPES = st.lists(st.sampled_from((1, 4, 5, 8, 16, 32, 64, 128, 256, 1024)), min_size=1, max_size=4)


@cache
def namer(text: str = SPEC, *, has_weights: bool = True) -> Namer:
    own = resolver(text)
    given = traced_of(lambda p: p, {"wi": struct(256, 1024)}).arguments if has_weights else ()
    return Namer(Layouts(own), given)


def names(shape: tuple[int, ...], text: str = SPEC) -> list[str]:
    return [each.names for each in namer(text).layouts(shape)]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((32, 64, 256), ["batch length embed", "_ length embed"]),
        ((32, 64, 1024), ["batch length mlp", "batch length _", "_ length mlp"]),
        ((32, 64, 16, 128), ["batch length heads kv", "batch length _ kv", "_ length heads kv"]),
        ((32, 1, 256), ["batch _ embed", "_ _ embed"]),
        ((32, 64), ["batch length"]),
    ],
)
def test_names_are_by_size_the_batch_first(shape: tuple[int, ...], expected: list[str]) -> None:
    assert names(shape) == expected


def test_of_several_shapes_the_names_that_do_the_same_to_all() -> None:
    shapes = (32, 64, 256), (32, 64, 1024), (32, 64, 5)
    assert [each.names for each in namer().common(shapes)] == ["batch length _"]
    assert [each.names for each in namer().common(shapes[1:2])] == names(shapes[1])


def test_a_name_is_right_for_each_of_several_shapes() -> None:
    scores = (32, 16, 64, 64), (32, 16, 48, 48), (32, 16, 48, 64)
    assert namer().common(scores)[0].names == "batch heads _ _"
    gradients = (256, 1024), (1024, 256)
    found = namer().common(gradients, is_update=True)
    assert not found, "either dimension is `embed` in one of them alone"


def test_an_axis_of_several_sizes_names_dimensions_of_these_alone() -> None:
    """A student and its teacher have an `mlp` each; the length of a sequence is neither."""
    text = SPEC.replace("embed: 256, mlp: 1024, ", "")
    sizes = {"own": {"wi": struct(256, 1024)}, "teacher": {"wi": struct(512, 2048)}}
    own = resolver(text)
    two = Namer(Layouts(own), traced(own, Call(lambda p: p, (sizes,))).arguments)
    found = {shape: [each.names for each in two.layouts(shape)] for shape in SIZES}
    assert found[32, 64, 2048][0] == "batch length mlp"
    assert found[32, 64, 1024][0] == "batch length mlp"
    assert found[32, 64, 512] == ["batch length embed", "_ length embed"]
    assert not any("mlp" in each for each in found[32, 64, 384])


SIZES = [(32, 64, size) for size in (2048, 1024, 512, 384)]


def test_the_second_name_of_a_weight_names_no_activation() -> None:
    """A square weight has `embed` and `embed'`; a length of that size is neither."""
    own = resolver(SPEC.replace('"**/wi": embed mlp', '"**/wi": "embed embed\'"'))
    given = traced_of(lambda p: p, {"wi": struct(256, 256)}).arguments
    found = Namer(Layouts(own), given)
    assert not [e for e in found.layouts((32, 256, 256)) if "'" in e.names]


def test_a_preset_renames_no_dimension_whose_size_is_known() -> None:
    """Its `joined_kv -> tensor` is for weights that this model lacks; an own rule is meant."""
    whole = SPEC.replace("[batch -> fsdp, mlp -> tensor", "[batch -> fsdp, joined_kv -> tensor")
    preset = whole.replace("joined_kv -> tensor, ", "").replace(
        "axes:", "extends: fsdp-tensor\naxes:"
    )
    assert "batch joined_kv embed" in names((32, 64, 256), whole)
    assert names((32, 64, 256), preset)[0] == "batch length embed"
    assert names((32, 64, 256), preset) == ["batch length embed", "_ length embed"]
    assert "batch kv_heads embed" in names((32, 80, 256), preset), "nothing else is as long"


def test_what_an_optimizer_computes_has_no_rows_of_a_batch() -> None:
    shape = (16, 256, 1024)
    assert "batch _ mlp" in names(shape)
    own = [each.names for each in namer().common([shape], is_update=True)]
    assert own
    assert not any("batch" in each for each in own)


def test_scores_have_a_length_twice_and_a_name_once() -> None:
    assert namer().layouts((32, 16, 64, 64))[0] == Layout(
        "batch heads length _", (("fsdp",), ("tensor",), (), ())
    )


def test_of_two_dimensions_of_one_size_either_may_be_the_one() -> None:
    found = names((8, 256, 256))
    assert len(found) == len(set(found)) == 3
    splits = [each.split for each in namer().layouts((8, 256, 256))]
    assert splits == [(("fsdp",), (), ()), ((), ("fsdp",), ()), ((), (), ("fsdp",))]


def test_a_batch_that_is_joined_with_the_length() -> None:
    assert namer().layouts((2048, 256))[0] == Layout("batch embed", (("fsdp",), ()))


def test_a_batch_in_microbatches() -> None:
    found = namer(SPEC.replace("expert: 8}", "expert: 3}")).layouts((4, 8, 64, 256))
    assert ((), ("fsdp",), (), ()) in [each.split for each in found]
    assert "_ batch length embed" in [each.names for each in found]


def test_what_no_axis_divides_has_no_layout() -> None:
    assert names((5, 7, 9)) == []


def test_names_of_activations_come_first_as_they_are() -> None:
    stated = "activations: {scores: _ heads length length, hidden: batch length mlp}\nlints"
    text = SPEC.replace("lints", stated).replace("mlp: 1024", "mlp: 256")
    assert names((32, 16, 64, 64), text)[0] == "_ heads length length"
    assert names((32, 64, 256), text)[0] == "batch length mlp"
    assert names((32, 64, 256))[0] == "batch length embed"
    assert "batch length mlp" not in names((32, 64, 128), text), "its size is stated"


def test_a_dimension_that_could_be_others_is_not_named() -> None:
    alike = SPEC.replace("kv: 128", "kv: 64")
    found = namer(alike).layouts((32, 64, 256))
    assert found[0] == Layout("batch _ embed", (("fsdp",), (), ()))
    assert names((32, 64, 256))[0] == "batch length embed"


def test_a_length_that_is_as_long_as_the_batch_is_a_length() -> None:
    alike = SPEC.replace("length: 64", "length: 32").replace("length -> none", "length -> tensor")
    found = namer(alike).layouts((32, 32, 256))
    assert found[0] == Layout("batch length embed", (("fsdp",), ("tensor",), ()))


def test_the_last_dimension_is_one_of_weights_and_others_are_not() -> None:
    both = SPEC.replace("length: 64", "length: 256")
    assert names((32, 256, 256), both)[0] == "batch length embed"


def test_axes_whose_size_nothing_states_may_be_any_but_come_last() -> None:
    text = SPEC.replace("axes: {batch: 32, ", "axes: {")
    assert [each.split for each in namer(text).layouts((40, 64, 256))] == [
        ((), (), ("fsdp",)),
        (("fsdp",), (), ()),
        ((), ("fsdp",), ()),
    ]


def test_sizes_are_also_those_of_arrays() -> None:
    bare = SPEC.replace("embed: 256, mlp: 1024, ", "")
    assert names((32, 64, 1024), bare) == names((32, 64, 1024))


@given(SHAPES)
@settings(max_examples=60)
def test_layouts_are_those_of_their_names(shape: list[int]) -> None:
    found = namer().layouts(tuple(shape))
    assert len(found) <= MOST_LAYOUTS
    assert len({each.split for each in found}) == len(found)
    layouts = Layouts(resolver(SPEC))
    for each in found:
        dims = layouts.dims(each.names, tuple(shape))
        assert tuple(dim.mesh_axes for dim in dims) == each.split
        assert any(each.split)
        named = [name for name in each.names.split() if name != "_"]
        assert len(set(named)) == len(named)


@pytest.mark.parametrize(
    ("shape", "vmaps", "mapped"),
    [
        ((32, 64, 256), 0, ()),
        ((32, 64, 256), 1, (0,)),
        ((64, 32, 256), 1, (1,)),
        ((1024, 32, 64), 2, (1, 2)),
        ((32, 32, 256), 1, (0,)),
        ((8, 64, 256), 1, (0,)),  # a part of the batch
        ((64, 64, 256), 1, None),
        ((32, 64), 2, None),
    ],
)
def test_what_vmap_maps_has_the_rows_of_the_batch(
    shape: tuple[int, ...], vmaps: int, mapped: tuple[int, ...] | None
) -> None:
    assert namer().mapped(shape, vmaps) == mapped


def test_a_batch_that_no_axis_counts_is_as_long_as_the_data() -> None:
    """Otherwise any dimension may be the batch, the last one too."""
    text = SPEC.replace("batch: 32, ", "")
    made = traced_of(lambda p, x: (p, x), {"wi": struct(256, 1024)}, struct(32, 64, 640)).arguments
    found = Namer(Layouts(resolver(text)), made).layouts((32, 64, 640))
    assert [each.names for each in found] == ["batch length _"]
    bare = [each.names for each in namer(text).layouts((32, 64, 640))]
    assert "_ length batch" in bare


def test_an_argument_has_no_part_of_a_batch() -> None:
    """Four layers of a cache are no microbatches."""
    shape = (4, 64, 16, 128)
    found = namer().layouts(shape, rows=namer().counts(shape))
    assert found
    assert not any("batch" in each.names for each in found)
    assert namer().whole(shape).names == "_ _ _ _"
