"""T5X's partitioning functions under their own names, answered by our own stages.

Signatures, results and faults are T5X's, so `from shardspec.compat import t5x as partitioning`
replaces its import. Source: google-research/t5x, partitioning.py and utils.py. Train states
are T5X's own: the partitioner takes whatever has their `as_logical_axes`, `state_dict` and
`restore_state`.
"""

from typing import Any

from jax.sharding import PartitionSpec

from shardspec.compat.t5x.meshes import (
    HardwareMesh,
    bounds_from_last_device,
    default_mesh,
    get_coords,
    get_cpu_mesh,
    get_gpu_mesh,
    get_mesh,
    global_mesh_defined,
)
from shardspec.compat.t5x.partitioner import PjitPartitioner, PjittedFnWithContext
from shardspec.compat.t5x.rules import (
    LogicalAxisRules,
    override_params_axes_names,
    standard_logical_axis_rules,
    update_logical_axis_rules,
)
from shardspec.jax_backend.batch import DataLayout, LocalChunker, LocalChunkInfo, get_data_layout

__all__ = [
    "DataLayout",
    "HardwareMesh",
    "LocalChunkInfo",
    "LocalChunker",
    "LogicalAxisRules",
    "PartitionSpec",
    "PjitPartitioner",
    "PjittedFnWithContext",
    "bounds_from_last_device",
    "default_mesh",
    "get_coords",
    "get_cpu_mesh",
    "get_data_layout",
    "get_gpu_mesh",
    "get_mesh",
    "global_mesh_defined",
    "override_params_axes_names",
    "standard_logical_axis_rules",
    "update_logical_axis_rules",
]

_TRAIN_STATES = ("FlaxOptimTrainState", "InferenceState")


def __getattr__(name: str) -> Any:
    """Say where T5X keeps what has no sharding in it."""
    hint = "; import it from `t5x.train_state`" if name in _TRAIN_STATES else ""
    raise AttributeError(f"module 'shardspec.compat.t5x' has no attribute '{name}'{hint}")
