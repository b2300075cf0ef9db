"""A declarative sharding-spec compiler for JAX: rules in, NamedShardings and reasons out.

Importing this loads neither jax nor numpy; `Resolver` loads jax when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shardspec.versions import PACKAGE

if TYPE_CHECKING:
    from shardspec.analysis.memory import Figure, Held, Memory
    from shardspec.analysis.step_memory import Amount, StepMemory
    from shardspec.analysis.step_time import AxisTime, Scale, StepTime
    from shardspec.analysis.traffic import Asker, TrafficRow
    from shardspec.diagnostics import Diagnostic, Label, Severity, ShardspecError, Span
    from shardspec.ir.calibration import Calibration, Curve
    from shardspec.ir.plan import ActivationSharding, Alike, Attempt, DimSharding, ParamSharding
    from shardspec.ir.spec import Mesh, Param, PartitionSpec, Target
    from shardspec.ir.step import (
        Carried,
        Cause,
        Collective,
        CollectiveKind,
        Place,
        Step,
        StepArgument,
        StepArray,
        StepOp,
        StepTensor,
        Unknown,
    )
    from shardspec.jax_backend.batch import Batch, DataLayout
    from shardspec.jax_backend.moving import Moved
    from shardspec.jax_backend.resolver import Resolver
    from shardspec.jax_backend.state import Accumulation
    from shardspec.lock.lock_file import LockWarning
    from shardspec.programs.memory import CompiledMemory, HeldValue
    from shardspec.programs.proof import AxisProof, Proof
    from shardspec.public import Spec, load, loads
    from shardspec.report.cost import Cost
    from shardspec.report.drawing import Drawing
    from shardspec.report.plan import Plan
    from shardspec.report.search import Search
    from shardspec.resolve.state import StateSharding
    from shardspec.search.ranking import SearchRow

__all__ = [
    "Accumulation",
    "ActivationSharding",
    "Alike",
    "Amount",
    "Asker",
    "Attempt",
    "AxisProof",
    "AxisTime",
    "Batch",
    "Calibration",
    "Carried",
    "Cause",
    "Collective",
    "CollectiveKind",
    "CompiledMemory",
    "Cost",
    "Curve",
    "DataLayout",
    "Diagnostic",
    "DimSharding",
    "Drawing",
    "Figure",
    "Held",
    "HeldValue",
    "Label",
    "LockWarning",
    "Memory",
    "Mesh",
    "Moved",
    "Param",
    "ParamSharding",
    "PartitionSpec",
    "Place",
    "Plan",
    "Proof",
    "Resolver",
    "Scale",
    "Search",
    "SearchRow",
    "Severity",
    "ShardspecError",
    "Span",
    "Spec",
    "StateSharding",
    "Step",
    "StepArgument",
    "StepArray",
    "StepMemory",
    "StepOp",
    "StepTensor",
    "StepTime",
    "Target",
    "TrafficRow",
    "Unknown",
    "load",
    "loads",
]
__version__ = PACKAGE

#: Where a public name lives, which is loaded when it is first asked for.
_MODULES = {
    "analysis.memory": "Figure Held Memory",
    "analysis.step_memory": "Amount StepMemory",
    "analysis.step_time": "AxisTime Scale StepTime",
    "analysis.traffic": "Asker TrafficRow",
    "diagnostics": "Diagnostic Label Severity ShardspecError Span",
    "ir.calibration": "Calibration Curve",
    "ir.plan": "ActivationSharding Alike Attempt DimSharding ParamSharding",
    "ir.spec": "Mesh Param PartitionSpec Target",
    "ir.step": "Carried Cause Collective CollectiveKind Place"
    " Step StepArgument StepArray StepOp StepTensor Unknown",
    "jax_backend.batch": "Batch DataLayout",
    "jax_backend.moving": "Moved",
    "jax_backend.resolver": "Resolver",
    "jax_backend.state": "Accumulation",
    "lock.lock_file": "LockWarning",
    "programs.memory": "CompiledMemory HeldValue",
    "programs.proof": "AxisProof Proof",
    "public": "Spec load loads",
    "report.cost": "Cost",
    "report.drawing": "Drawing",
    "report.plan": "Plan",
    "report.search": "Search",
    "resolve.state": "StateSharding",
    "search.ranking": "SearchRow",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


if not TYPE_CHECKING:  # a type checker that sees it takes every name for a public one

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first asked for."""
        if name not in _HOMES:
            raise AttributeError(f"module 'shardspec' has no attribute '{name}'")
        return getattr(import_module(f"shardspec.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
