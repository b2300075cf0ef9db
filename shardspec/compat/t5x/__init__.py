"""T5X's partitioning functions under their own names, answered by our own stages.

Signatures, results and faults are T5X's, so `from shardspec.compat import t5x as partitioning`
replaces its import. Source: google-research/t5x, partitioning.py and utils.py. Train states
are T5X's own: the partitioner takes whatever has their `as_logical_axes`, `state_dict` and
`restore_state`.
"""

from typing import Any

from jax.sharding import PartitionSpec as PartitionSpec

from shardspec.compat.t5x.meshes import HardwareMesh as HardwareMesh
from shardspec.compat.t5x.meshes import bounds_from_last_device as bounds_from_last_device
from shardspec.compat.t5x.meshes import default_mesh as default_mesh
from shardspec.compat.t5x.meshes import get_coords as get_coords
from shardspec.compat.t5x.meshes import get_cpu_mesh as get_cpu_mesh
from shardspec.compat.t5x.meshes import get_gpu_mesh as get_gpu_mesh
from shardspec.compat.t5x.meshes import get_mesh as get_mesh
from shardspec.compat.t5x.meshes import global_mesh_defined as global_mesh_defined
from shardspec.compat.t5x.partitioner import PjitPartitioner as PjitPartitioner
from shardspec.compat.t5x.partitioner import PjittedFnWithContext as PjittedFnWithContext
from shardspec.compat.t5x.rules import LogicalAxisRules as LogicalAxisRules
from shardspec.compat.t5x.rules import override_params_axes_names as override_params_axes_names
from shardspec.compat.t5x.rules import standard_logical_axis_rules as standard_logical_axis_rules
from shardspec.compat.t5x.rules import update_logical_axis_rules as update_logical_axis_rules
from shardspec.jax_backend.batch import DataLayout as DataLayout
from shardspec.jax_backend.batch import LocalChunker as LocalChunker
from shardspec.jax_backend.batch import LocalChunkInfo as LocalChunkInfo
from shardspec.jax_backend.batch import get_data_layout as get_data_layout

_TRAIN_STATES = ("FlaxOptimTrainState", "InferenceState")


def __getattr__(name: str) -> Any:
    """Say where T5X keeps what has no sharding in it."""
    hint = "; import it from `t5x.train_state`" if name in _TRAIN_STATES else ""
    raise AttributeError(f"module 'shardspec.compat.t5x' has no attribute '{name}'{hint}")
