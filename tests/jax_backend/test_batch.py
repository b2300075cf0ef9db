from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardspec
from shardspec.diagnostics import ShardspecError
from shardspec.jax_backend.batch import Batch, _merged, length
from shardspec.jax_backend.resolver import Resolver
from tests.jax_backend.many import run

TEXT = """\
shardspec: 1
mesh: {data: 4, model: 2}
axes: {batch: 64}
rules:
  - batch -> data
  - mlp -> model
  - length -> none
"""


def resolver(text: str = TEXT) -> Resolver:
    return Resolver(shardspec.loads(text, "spec.yaml"))


def batch(names: Any = "batch length", text: str = TEXT) -> Batch:
    return resolver(text).batch(names)


# shardings


def test_the_sharding_of_a_batch() -> None:
    found = resolver()
    expected = NamedSharding(found.mesh, P("data", None))
    assert found.batch("batch length").sharding() == expected
    assert found.batch("batch length").sharding((8, 3)) == expected
    assert found.batch("batch length").sharding(np.ones((8, 3))) == expected


def test_the_shardings_of_a_tree() -> None:
    names = {"tokens": "batch length", "weights": "batch", "seed": ""}
    specs = {"tokens": P("data", None), "weights": P("data"), "seed": P()}
    found = batch(names)
    shapes = {"tokens": (8, 3), "weights": np.ones(8), "seed": ()}
    assert jax.tree.map(lambda s: s.spec, found.sharding()) == specs
    assert jax.tree.map(lambda s: s.spec, found.sharding(shapes)) == specs
    below = batch().sharding({"a": (8, 3), "b": [np.ones((8, 5))]})
    assert jax.tree.map(lambda s: s.spec, below) == {"a": P("data", None), "b": [P("data", None)]}


def test_a_global_batch_that_does_not_divide() -> None:
    for call in (
        lambda: batch().sharding((66, 3)),
        lambda: batch().local_rows((66, 3)),
        lambda: batch().put(np.ones((66, 3), np.float32)),
        lambda: batch().put({"x": np.ones((66, 3))}, global_batch=66),
    ):
        with pytest.raises(ShardspecError) as error:
            call()
        assert [found.code.id for found in error.value.diagnostics] == ["SHD301"]
        assert "`batch` = 66 does not divide over `data` = 4" in str(error.value)
        assert "batch = 64 or 68 would divide" in str(error.value)


def test_a_fallback_of_the_rule_counts() -> None:
    text = TEXT.replace("batch -> data", "batch -> data | none")
    assert batch(text=text).sharding((66, 3)).spec == P(None, None)
    assert batch(text=text).put(np.ones((66, 3))).sharding.spec == P(None, None)


# put, in one process


def test_put_makes_global_arrays() -> None:
    local = {"x": np.arange(24.0).reshape(8, 3), "rest": [np.zeros((8, 4), np.int32), None, "s", 3]}
    found = batch().put(local, global_batch=8)
    assert jax.tree.structure(found) == jax.tree.structure(local)
    assert found["x"].sharding == batch().sharding((8, 3))
    np.testing.assert_array_equal(found["x"], local["x"])
    assert found["rest"][0].sharding.spec == P("data", None)
    assert found["rest"][0].dtype == np.int32
    assert found["rest"][1:] == [None, "s", 3]


def test_put_keeps_the_types_of_axes() -> None:
    text = TEXT.replace("{data: 4, model: 2}", "{data: 4 explicit, model: 2}")
    found = batch(text=text).put(np.ones((8, 3), np.float32))
    explicit, auto = jax.sharding.AxisType.Explicit, jax.sharding.AxisType.Auto
    assert found.sharding.mesh.axis_types == (explicit, auto)
    assert jax.typeof(found).sharding.spec == P("data", None)


def message(call: Any) -> str:
    with pytest.raises(ShardspecError) as error:
        call()
    (found,) = error.value.diagnostics
    assert found.code.id == "SHD302"
    return f"{found.message}; {found.help}"


def test_put_refuses_another_share() -> None:
    said = message(lambda: batch().put({"x": np.ones((8, 3), np.float32)}, global_batch=16))
    assert "`x` f32[8, 3] has `batch` = 8, and process 0 of 1 feeds 16 of 16" in said
    assert "`global_batch=8` if each process has 8" in said
    said = message(lambda: batch().put(np.ones((8, 3), np.float32), global_shape=(8, 6)))
    assert "the array f32[8, 3] has `length` = 3, and process 0 of 1 feeds 6 of 6" in said
    said = message(lambda: batch("batch _").put(np.ones((8, 3), np.int32), global_shape=(8, 6)))
    assert "the array s32[8, 3] has dim 1 = 3" in said


def test_put_refuses_arrays_of_several_batches() -> None:
    local = {"x": np.ones((8, 3), np.float32), "w": np.ones(4, np.float32)}
    said = message(lambda: batch({"x": "batch length", "w": "batch"}).put(local))
    assert "`x` f32[8, 3] is part of a batch of 8, and `w` f32[4] of one of 4" in said


def test_put_refuses_wrong_names() -> None:
    with pytest.raises(ShardspecError, match=r"names 2 dimensions, .*\[8\] has 1"):
        batch().put({"w": np.ones(8)})
    with pytest.raises(ShardspecError, match="unknown logical axis `batc`"):
        batch("batc length").put(np.ones((8, 3)))


def test_what_does_not_go_together() -> None:
    with pytest.raises(TypeError, match="not both"):
        batch().put(np.ones((8, 3)), global_batch=8, global_shape=(8, 3))
    with pytest.raises(TypeError, match="one array"):
        batch({"x": "batch length"}).local_rows((8, 3))


# rows


def test_one_process_feeds_everything() -> None:
    assert batch().local_rows((8, 3)) == ((range(8),), (range(3),))
    assert batch().local_slice((8, 3)) == (slice(0, 8), slice(0, 3))
    assert batch("").local_rows(()) == ()


def test_a_process_without_devices_feeds_nothing() -> None:
    with pytest.raises(ValueError, match="process 7 has no device in the mesh"):
        batch().local_rows((8, 3), process=7)


@given(st.sets(st.integers(0, 30)), st.integers(1, 3))
def test_runs_are_what_was_merged(starts: set[int], size: int) -> None:
    runs = _merged({(start * size, (start + 1) * size) for start in starts})
    indices = [index for run in runs for index in run]
    assert indices == [start * size + at for start in sorted(starts) for at in range(size)]
    assert length(runs) == len(indices)
    assert all(one.stop < two.start for one, two in pairwise(runs))


# layout


def test_layout_of_one_process() -> None:
    found = vars(batch().layout())
    expected = {
        "batch_size": 64,
        "shard_id": 0,
        "num_shards": 1,
        "is_first_host_in_replica_set": True,
    }
    assert found == expected
    assert vars(batch({"x": "_ batch"}).layout(8)) == expected | {"batch_size": 8}
    unstated = TEXT.replace("axes: {batch: 64}\n", "")
    assert vars(batch(text=unstated).layout()) == expected | {"batch_size": 4}
    whole = TEXT.replace("batch -> data", "batch -> none")
    assert vars(batch(text=whole).layout()) == expected
    assert vars(batch("_ _").layout()) == expected | {"batch_size": None}
    with pytest.raises(ValueError, match="must be divisible"):
        batch().layout(6)


# several processes

#: Feeds rows of a batch that everyone can make, and reports what came of it.
_FEED = '''
import numpy as np
import shardspec
from jax.experimental import multihost_utils

mesh, rule, names = arguments
resolver = shardspec.Resolver(shardspec.loads(f"""
shardspec: 1
mesh: {mesh}
rules: ["{rule}", "length -> seq"]
lints: {{unknown-mesh-axis: allow}}
"""))
batch = resolver.batch(names)
whole = np.arange(24 * 4).reshape(24, 4)
runs = batch.local_rows(whole.shape)
rows, columns = ([index for run in each for index in run] for each in runs)
answer = {"rows": [[run.start, run.stop] for run in runs[0]]}

share = whole[np.ix_(rows, columns)]
given = batch.put({"x": share}, global_shape=whole.shape)["x"]
assert given.sharding == batch.sharding(whole)
np.testing.assert_array_equal(multihost_utils.process_allgather(given, tiled=True), whole)

given = batch.put(whole[rows], global_batch=24)
np.testing.assert_array_equal(multihost_utils.process_allgather(given, tiled=True), whole)
if len(rows) < 24:
    try:
        batch.put(whole, global_batch=24)
    except shardspec.ShardspecError as error:
        answer["refused"] = error.diagnostics[0].message
else:
    assert batch.put(whole, global_batch=24).shape == (24, 4)

counted = batch.put(whole[rows])
answer["counted"] = counted.shape[0]
try:
    answer["slice"] = [each.start for each in batch.local_slice(whole.shape)]
except ValueError as error:
    answer["slice"] = str(error)
try:
    answer["layout"] = list(vars(batch.layout(24)).values())
except ValueError as error:
    answer["layout"] = str(error)
report(answer)
'''


def feed(count: int, mesh: str, rule: str, names: str = "batch _", devices: int = 4) -> list[Any]:
    return run(_FEED, count, mesh, rule, names, devices=devices)


def test_each_process_feeds_its_rows() -> None:
    first, second = feed(2, "{data: 2, model: 4}", "batch -> data")
    assert first["rows"] == [[0, 12]]
    assert second["rows"] == [[12, 24]]
    assert first["counted"] == second["counted"] == 24
    assert second["slice"] == [12, 0]
    assert first["layout"] == [24, 0, 2, True]
    assert second["layout"] == [24, 1, 2, True]
    assert first["refused"] == (
        "the array s32[24, 4] has `batch` = 24, and process 0 of 2 feeds 12 of 24"
    )


def test_processes_of_one_replica_feed_the_same_rows() -> None:
    found = feed(4, "{data: 2, model: 8}", "batch -> data")
    assert [each["rows"] for each in found] == [[[0, 12]]] * 2 + [[[12, 24]]] * 2
    assert [each["layout"] for each in found] == [
        [24, 0, 2, True],
        [24, 0, 2, False],
        [24, 1, 2, True],
        [24, 1, 2, False],
    ]
    assert {each["counted"] for each in found} == {24}


def test_rows_that_are_not_neighbours() -> None:
    first, second = feed(2, "{outer: 2, inner: 4}", "batch -> (inner, outer)")
    assert first["rows"] == [[0, 3], [6, 9], [12, 15], [18, 21]]
    assert second["rows"] == [[3, 6], [9, 12], [15, 18], [21, 24]]
    assert first["counted"] == 24
    assert first["slice"] == (
        "the process feeds 4 pieces of dim 0 of [24, 4], 0:3, 6:9, 12:15, 18:21:"
        " no slice, so ask local_rows()"
    )


def test_rows_that_two_processes_feed() -> None:
    first, second = feed(2, "{data: 3, model: 2}", "batch -> data", devices=3)
    assert first["rows"] == [[0, 16]]
    assert second["rows"] == [[8, 24]]
    assert first["counted"] == 24
    assert "contiguous subcube" in first["layout"]


def test_shares_of_further_dimensions() -> None:
    first, second = feed(2, "{seq: 2, data: 4}", "batch -> data", "batch length")
    assert first["rows"] == second["rows"] == [[0, 24]]
    assert second["slice"] == [0, 2]
    assert second["layout"] == [24, 0, 1, False]


@pytest.mark.parametrize(("rows", "offered"), [(5, False), (16, True), (24, True), (12, False)])
def test_a_wrong_share_is_offered_a_batch_that_divides(rows: int, *, offered: bool) -> None:
    text = "mesh: {data: 8}\naxes: {batch: 16}\nrules: [batch -> data]\n"
    batch = shardspec.Resolver(shardspec.loads(text)).batch("batch _")
    with pytest.raises(shardspec.ShardspecError) as raised:
        batch.put(np.ones((rows, 3), np.float32), global_batch=8)
    help = raised.value.diagnostics[0].help or ""
    assert (f"`global_batch={rows}`" in help) == offered
    if offered:
        assert batch.put(np.ones((rows, 3), np.float32), global_batch=rows).shape == (rows, 3)
