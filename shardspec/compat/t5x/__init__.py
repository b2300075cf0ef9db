"""T5X's partitioning functions under their own names, answered by our own stages.

Signatures, results and faults are T5X's, so `from shardspec.compat import t5x as partitioning`
replaces its import. Source: google-research/t5x, partitioning.py and utils.py.
"""

from shardspec.compat.t5x.axes_override import override_params_axes_names
from shardspec.compat.t5x.data_layout import (
    DataLayout,
    LocalChunker,
    LocalChunkInfo,
    get_data_layout,
)
from shardspec.compat.t5x.meshes import (
    bounds_from_last_device,
    default_mesh,
    get_coords,
    get_cpu_mesh,
    get_gpu_mesh,
    get_mesh,
)
from shardspec.compat.t5x.partitioner import PjitPartitioner
from shardspec.compat.t5x.rules import standard_logical_axis_rules

__all__ = [
    "DataLayout",
    "LocalChunkInfo",
    "LocalChunker",
    "PjitPartitioner",
    "bounds_from_last_device",
    "default_mesh",
    "get_coords",
    "get_cpu_mesh",
    "get_data_layout",
    "get_gpu_mesh",
    "get_mesh",
    "override_params_axes_names",
    "standard_logical_axis_rules",
]
