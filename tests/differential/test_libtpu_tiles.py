"""Our padding of tiles beside libtpu's own: the argument sizes of programs it compiles.

Needs the extra `tpu-aot`, and the environment that `test_libtpu` explains.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

import pytest

if sys.platform != "linux" or importlib.util.find_spec("libtpu") is None:
    pytest.skip("needs the extra tpu-aot: libtpu, on Linux", allow_module_level=True)

os.environ.update(
    TPU_SKIP_MDS_QUERY="1",
    ALLOW_MULTIPLE_LIBTPU_LOAD="1",
    TPU_WORKER_HOSTNAMES="localhost",
    TPU_ACCELERATOR_TYPE="v5e-8",
    TPU_WORKER_ID="0",
)

from shardspec.analysis.memory import tiled_bytes

_DTYPES = {"f32": "float32", "bf16": "bfloat16", "s8": "int8"}

_SHAPES = (
    *((4096, 64), (4096, 1), (4, 4096), (1, 4096), (12, 4096), (20, 4096), (4096, 16)),
    *((), (1000,), (1025,), (32128,)),
    *((100,), (4096,), (16,), (8, 64), (64, 16, 4), (4096, 200), (3, 3, 4, 64), (2, 5, 7, 9)),
)


def sharding_on(topology: str) -> Any:
    """Return the sharding of an array that all devices of a topology hold whole."""
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = topologies.get_topology_desc(topology, platform="tpu").devices
    return NamedSharding(Mesh(np.array(devices), ("x",)), PartitionSpec())


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("topology", ["v5e:2x2", "v5p:2x2x1"])
def test_padding_is_what_the_compiler_allots(topology: str, dtype: str) -> None:
    import jax
    import jax.numpy as jnp

    sharding = sharding_on(topology)
    arrays = [
        jax.ShapeDtypeStruct(shape, jnp.dtype(_DTYPES[dtype]), sharding=sharding)
        for shape in _SHAPES
    ]
    for shape, array in zip(_SHAPES, arrays, strict=True):
        compiled = jax.jit(lambda x: x + x, out_shardings=sharding).lower(array).compile()
        allotted = compiled.memory_analysis().argument_size_in_bytes
        assert tiled_bytes(shape, dtype) == allotted, shape
