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
    "load",
    "loads",
]
__version__ = PACKAGE

#: Where a public name lives, which is loaded when it is first asked for.
_HOMES = {
    "ActivationSharding": "shardspec.ir.plan",
    "Accumulation": "shardspec.jax_backend.state",
    "Alike": "shardspec.ir.plan",
    "Amount": "shardspec.analysis.step_memory",
    "Asker": "shardspec.analysis.traffic",
    "Attempt": "shardspec.ir.plan",
    "AxisProof": "shardspec.programs.proof",
    "AxisTime": "shardspec.analysis.step_time",
    "Batch": "shardspec.jax_backend.batch",
    "Calibration": "shardspec.ir.calibration",
    "Carried": "shardspec.ir.step",
    "Cause": "shardspec.ir.step",
    "Collective": "shardspec.ir.step",
    "CollectiveKind": "shardspec.ir.step",
    "CompiledMemory": "shardspec.programs.memory",
    "Cost": "shardspec.report.cost",
    "Curve": "shardspec.ir.calibration",
    "DataLayout": "shardspec.jax_backend.batch",
    "Diagnostic": "shardspec.diagnostics",
    "DimSharding": "shardspec.ir.plan",
    "Drawing": "shardspec.report.drawing",
    "Figure": "shardspec.analysis.memory",
    "Held": "shardspec.analysis.memory",
    "HeldValue": "shardspec.programs.memory",
    "Label": "shardspec.diagnostics",
    "LockWarning": "shardspec.lock.lock_file",
    "Memory": "shardspec.analysis.memory",
    "Mesh": "shardspec.ir.spec",
    "Moved": "shardspec.jax_backend.moving",
    "Param": "shardspec.ir.spec",
    "ParamSharding": "shardspec.ir.plan",
    "PartitionSpec": "shardspec.ir.spec",
    "Place": "shardspec.ir.step",
    "Plan": "shardspec.report.plan",
    "Proof": "shardspec.programs.proof",
    "Resolver": "shardspec.jax_backend.resolver",
    "Scale": "shardspec.analysis.step_time",
    "Search": "shardspec.report.search",
    "SearchRow": "shardspec.search.ranking",
    "Severity": "shardspec.diagnostics",
    "ShardspecError": "shardspec.diagnostics",
    "Span": "shardspec.diagnostics",
    "Spec": "shardspec.public",
    "StateSharding": "shardspec.resolve.state",
    "Step": "shardspec.ir.step",
    "StepArgument": "shardspec.ir.step",
    "StepArray": "shardspec.ir.step",
    "StepMemory": "shardspec.analysis.step_memory",
    "StepOp": "shardspec.ir.step",
    "StepTensor": "shardspec.ir.step",
    "StepTime": "shardspec.analysis.step_time",
    "Target": "shardspec.ir.spec",
    "TrafficRow": "shardspec.analysis.traffic",
    "load": "shardspec.public",
    "loads": "shardspec.public",
}


if not TYPE_CHECKING:  # a type checker that sees it takes every name for a public one

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first asked for."""
        if name not in _HOMES:
            raise AttributeError(f"module 'shardspec' has no attribute '{name}'")
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
