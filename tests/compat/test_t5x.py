"""The drop-in for T5X beyond its recorded answers: laws, faults and odd input."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

jax = pytest.importorskip("jax")
pytest.importorskip("flax")

from shardspec.compat import t5x  # noqa: E402
from shardspec.topology.assignment import Tiling, tile_slice  # noqa: E402
from shardspec.topology.machine import digit_offsets  # noqa: E402
from tests.differential.test_t5x_vectors import (  # noqa: E402
    StandInDevice,
    StandInTpu,
    machine,
    tpu_devices,
)

V3_8 = ([2, 2, 1, 2], [2, 2, 1, 2])
V3_32 = ([4, 4, 1, 2], [2, 2, 1, 2])
V4_128 = ([4, 4, 8, 1], [2, 2, 1, 1])


def _slice(shape: tuple[list[int], list[int]], kind: str = "TPU v3") -> list[StandInTpu]:
    return tpu_devices(kind, *shape)


def _mesh(shape: tuple[list[int], list[int]], submesh: tuple[int, ...], **options: Any) -> Any:
    devices = _slice(shape)
    local = [device for device in devices if device.process_index == 0]
    return t5x.get_mesh(submesh, devices, local, **options)


@st.composite
def _cases(draw: st.DrawFn) -> tuple[tuple[list[int], list[int]], tuple[int, ...], bool]:
    extents = [draw(st.sampled_from((2, 4, 6, 8))), draw(st.sampled_from((2, 4)))]
    extents += [draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from((1, 2)))]
    host = [2, 2, 1, extents[3]]
    tile = tuple(
        draw(st.sampled_from([size for size in range(1, extent + 1) if extent % size == 0]))
        for extent in extents
    )
    return (extents, host), tile, draw(st.booleans())


@given(_cases())
@settings(deadline=None, max_examples=100)
def test_the_mesh_is_the_topologys_own_tiling(
    case: tuple[tuple[list[int], list[int]], tuple[int, ...], bool],
) -> None:
    """`get_mesh` and `topology.tiling` are written apart, and agree on every slice."""
    (extents, host), tile, by_host = case
    tiling = tile_slice(extents, tile, host if by_host else None)
    if not isinstance(tiling, Tiling):
        with pytest.raises(AssertionError):
            _mesh((extents, host), tile, tile_by_host_if_needed=by_host)
        return
    mesh = _mesh((extents, host), tile, tile_by_host_if_needed=by_host)
    rows, columns = digit_offsets(tiling.data, 4), digit_offsets(tiling.model, 4)
    expected = [
        tuple(a + b for a, b in zip(row, column, strict=True))
        for row, column in itertools.product(rows, columns)
    ]
    assert [t5x.get_coords(device) for device in mesh.devices.flat] == expected
    assert mesh.devices.shape == (len(rows), len(columns))


@given(st.permutations(range(32)))
@settings(deadline=None, max_examples=20)
def test_the_order_of_the_list_does_not_matter(order: list[int]) -> None:
    devices = _slice(V3_32)
    local = [device for device in devices if device.process_index == 0]
    shuffled = [devices[index] for index in order]
    ours = t5x.get_mesh((2, 2, 1, 2), shuffled, local)
    assert (ours.devices == t5x.get_mesh((2, 2, 1, 2), devices, local).devices).all()


@pytest.mark.parametrize(
    ("shape", "submesh", "kind", "text"),
    [
        (V3_8, (2, 1, 1, 1), AssertionError, "(1, 2)"),
        (V3_8, (4, 2, 1, 2), AssertionError, "must be a factor of the corresponding dimension"),
        (V3_8, (2, 2), ValueError, "not enough values to unpack (expected 4, got 2)"),
        (V3_8, (2, 2, 1, 2, 1), ValueError, "too many values to unpack (expected 4)"),
        (V3_8, (0, 2, 1, 2), ZeroDivisionError, "by zero"),
        (([6, 6, 1, 2], [2, 2, 1, 2]), (3, 2, 1, 2), AssertionError, "to tile the mesh by hosts"),
        (V4_128, (2, 2, 1, 2), AssertionError, "global device mesh (4, 4, 8, 1)"),
        (V3_8, (-1, 1, 1, 1), ValueError, "can only specify one unknown dimension"),
    ],
)
def test_faults_have_t5xs_type_and_text(
    shape: tuple[list[int], list[int]], submesh: tuple[int, ...], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        _mesh(shape, submesh)


def test_without_host_tiling_three_by_two_works() -> None:
    mesh = _mesh(([6, 6, 1, 2], [2, 2, 1, 2]), (3, 2, 1, 2), tile_by_host_if_needed=False)
    assert mesh.devices.shape == (6, 12)


def test_a_hole_stays_none() -> None:
    devices = _slice(V3_8)
    mesh = t5x.get_mesh((1, 1, 1, 2), devices[:2] + devices[3:], devices)
    assert (mesh.devices == None).sum() == 1  # noqa: E711


def test_coordinates_of_other_lengths_disagree_as_in_t5x() -> None:
    flat = StandInTpu(0, 0, "tpu", "TPU v5 lite", coords=(1, 2), core_on_chip=0)  # type: ignore[arg-type]
    with machine([flat]):
        assert t5x.get_coords(flat) == (1, 2, 0)
        assert t5x.bounds_from_last_device(flat) == (1, 1)


def _gpus(hosts: int, local: int) -> list[StandInDevice]:
    return [
        StandInDevice(number, number // local, "gpu", "NVIDIA H100 80GB HBM3")
        for number in range(hosts * local)
    ]


@pytest.mark.parametrize(
    ("submesh", "shape"), [((1, 1, 1, 2), (4, 2)), ((1, 2, 1, 2), (2, 4)), ((1, 2), (4, 2))]
)
def test_gpus_take_submeshes_of_any_length(
    submesh: tuple[int, ...], shape: tuple[int, int]
) -> None:
    with machine(_gpus(1, 8)):
        assert t5x.default_mesh(1, submesh).devices.shape == shape


def test_a_submesh_that_gpus_cannot_shape() -> None:
    with machine(_gpus(1, 8)), pytest.raises(ValueError, match="cannot reshape array of size 8"):
        t5x.default_mesh(1, (1, 2, 3, 1))


@pytest.mark.parametrize(("partitions", "bad"), [(3, True), (16, False), (8, False)])
def test_gpu_partitions_fit_the_node(partitions: int, bad: bool) -> None:
    with machine(_gpus(4, 8)):
        if bad:
            with pytest.raises(AssertionError, match="number of partitions on GPU"):
                t5x.default_mesh(partitions)
        else:
            mesh = t5x.default_mesh(partitions)
            assert mesh.devices.shape == (32 // partitions, partitions)
            assert [device.id for device in mesh.devices[0]] == list(range(partitions))


def test_gpus_are_counted_by_id_in_whatever_order_they_are_listed() -> None:
    with machine(_gpus(2, 4)[::-1]):
        assert [device.id for device in t5x.default_mesh(2).devices.flat] == list(range(8))


def test_cpus_are_all_model_on_one_host() -> None:
    devices = [StandInDevice(number, number // 4, "cpu", "cpu") for number in range(8)]
    with machine(devices):
        assert t5x.default_mesh(2).devices.shape == (2, 4)


def test_no_default_lists_what_was_looked_for() -> None:
    with (
        machine(_slice(([4, 4, 4, 1], [2, 2, 1, 1]), "TPU v5p")),
        pytest.raises(ValueError, match="No default mesh") as caught,
    ):
        t5x.default_mesh(4)
    assert str(caught.value) == (
        "No default mesh for this configuration: specify "
        "config.model_parallel_submesh explicitly. \n"
        "Platform: tpu\nDevice kind: TPU v5p\nNum partitions: 4\nBounds: (4, 4, 4, 1)"
    )


def test_a_reversed_list_changes_the_default_as_in_t5x() -> None:
    devices = _slice(V4_128, "TPU v4")
    with machine(devices):
        straight = t5x.default_mesh(8)
    with machine(devices[::-1]):
        backwards = t5x.default_mesh(8)
    assert [d.coords for d in straight.devices[0]] == [(0, 0, z) for z in range(8)]
    assert {d.coords for d in backwards.devices[0]} == set(
        itertools.product(range(4), range(2), range(1))
    )


def test_a_submesh_beats_the_number() -> None:
    with machine(_slice(V3_8)):
        assert t5x.default_mesh(4, (2, 2, 1, 2)).devices.shape == (1, 8)
        assert t5x.default_mesh(4, (), ici_mesh_shape=(1, 2, 4)).devices.shape == (2, 4)


@pytest.mark.parametrize("dims", [(1, 0), (3, 1), ("1", 1), (None, 1)])
def test_other_dims_are_refused(dims: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="is not supported") as caught:
        t5x.standard_logical_axis_rules(*dims)
    assert str(caught.value) == (
        f"`activation_partitioning_dims` = {dims[0]} `parameter_partitioning_dims` = {dims[1]} "
        "is not supported."
    )


def test_dims_are_compared_by_value() -> None:
    assert t5x.standard_logical_axis_rules(1.0, True) == t5x.standard_logical_axis_rules()  # type: ignore[arg-type]
    generated = t5x.standard_logical_axis_rules(2, 2, (rule for rule in [("x", "data")]))
    assert generated[-1] == ("x", "data")


def test_the_list_is_new_each_time() -> None:
    t5x.standard_logical_axis_rules().clear()
    assert t5x.standard_logical_axis_rules()[0] == ("batch", "data")


def _variables() -> dict[str, Any]:
    import numpy as np
    from flax.linen.partitioning import AxisMetadata

    return {
        "params": {"mlp": {"wo": {"kernel": np.zeros((4, 6))}}},
        "params_axes": {"mlp": {"wo": {"kernel_axes": AxisMetadata(names=("embed", "mlp"))}}},
    }


@pytest.mark.parametrize(
    ("pattern", "names", "result"),
    [
        ("mlp/wo/kernel", ["a", "b"], ["a", "b"]),
        ("mlp.wo.kernel", ("a", None), ("a", None)),
        ("wo/kernel", ("a", "b"), ("embed", "mlp")),
        ("(?i)MLP/WO/KERNEL", ("a", "a"), ("a", "a")),
        ("mlp/wo/kernel", "ab", "ab"),
    ],
)
def test_overrides_match_whole_names_and_store_what_they_get(
    pattern: str, names: Any, result: Any
) -> None:
    variables = _variables()
    changed = t5x.override_params_axes_names(variables, [(pattern, names)])
    assert changed["params_axes"]["mlp"]["wo"]["kernel_axes"].names == result
    assert variables["params_axes"]["mlp"]["wo"]["kernel_axes"].names == ("embed", "mlp")


def test_an_empty_collection_is_filled() -> None:
    variables = {**_variables(), "params_axes": {}}
    changed = t5x.override_params_axes_names(variables, [(".*", ("a", "b"))])
    assert changed["params_axes"]["mlp"]["wo"]["kernel_axes"].names == ("a", "b")


def test_a_partitioner_needs_a_number_or_a_submesh() -> None:
    for unset in ({}, {"num_partitions": 0}, {"model_parallel_submesh": ()}):
        with pytest.raises(ValueError, match="At least one of `num_partitions`"):
            t5x.PjitPartitioner(**unset)


def test_several_slices_split_the_batch_over_replicas_too() -> None:
    partitioner = t5x.PjitPartitioner(1, ici_mesh_shape=(1, 4, 2), dcn_mesh_shape=(2, 1, 1))
    assert partitioner.data_partition_spec == jax.sharding.PartitionSpec(("replica", "data"))


def test_no_batch_rule_means_one_shard() -> None:
    with machine(_slice(V3_32), 2):
        partitioner = t5x.PjitPartitioner(2, logical_axis_rules=(("embed", "model"),))
        layout = partitioner.get_data_layout()
    assert vars(layout) == {
        "batch_size": None,
        "shard_id": 0,
        "num_shards": 1,
        "is_first_host_in_replica_set": False,
    }


def test_batches_divide_over_the_mesh() -> None:
    with machine(_slice(V3_32)):
        mesh = t5x.default_mesh(8)
        with pytest.raises(ValueError, match=r"Batch size \(6\) must be divisible") as caught:
            t5x.get_data_layout(mesh, 6, process_index=0)
        assert str(caught.value).endswith("corresponding data mesh size (4).")
        assert t5x.get_data_layout(mesh, 0, process_index=0).batch_size == 4


def test_shards_are_not_processes() -> None:
    mesh = _mesh(V3_32, (1, 1, 1, 2))
    ids = [t5x.get_data_layout(mesh, process_index=process).shard_id for process in range(4)]
    assert ids == [0, 2, 1, 3]


def test_chunks_lose_their_tail_as_in_t5x() -> None:
    chunker = t5x.LocalChunker(_mesh(V3_32, (4, 2, 1, 2)), 1)
    info = chunker.get_local_chunk_info((9, 7), ("data", None))
    assert info.slice == (slice(0, 4), slice(None))
    assert info.replica_id == 1
    with pytest.raises(NotImplementedError, match=r"dimension 0 is split over \('data', 'model'\)"):
        chunker.get_local_chunk_info((8,), (("data", "model"),))  # type: ignore[arg-type]
    with pytest.raises(KeyError):
        chunker.get_local_chunk_info((8,), ("fsdp",))


def test_a_host_apart_in_the_mesh_is_refused() -> None:
    mesh = _mesh(V3_32, (2, 4, 1, 1), tile_by_host_if_needed=False)
    with pytest.raises(ValueError, match="contiguous subcube"):
        [t5x.LocalChunker(mesh, process) for process in range(4)]
