"""How long a step takes."""

from __future__ import annotations

from dataclasses import dataclass

from shardspec.ir.spec import Target
from shardspec.ir.step import Step


@dataclass(frozen=True, slots=True)
class AxisTime:
    """What the collectives over one mesh axis take, in a step.

    Attributes:
      mesh_axis: several that go together are joined: `data+expert`.
      exposed_seconds: of it, what no computation hides.

    Invariants:
      exposed: exposed_seconds <= seconds.
    """

    mesh_axis: str
    seconds: float
    exposed_seconds: float


@dataclass(frozen=True, slots=True)
class StepTime:
    """How long a step takes, by a model of the machine, and of what.

    Attributes:
      compute_seconds: of operations, each as long as its FLOPs or its bytes take.
      hbm_seconds: of it, what the memory takes longer than the FLOPs.
      axes: of the collectives, by mesh axis, in the order of the program.
      bound: what most of the step is: `compute`, `memory`, or the name of a mesh axis.
      spread: how far a measured step may lie to either side, as a share.
      mfu: the share of the peak that the model's own FLOPs are.
    """

    step_seconds: float
    compute_seconds: float
    hbm_seconds: float
    axes: tuple[AxisTime, ...]
    bound: str
    spread: float
    mfu: float


def step_time(target: Target, step: Step) -> StepTime | None:
    """Return how long a step takes; None where the catalogue has no speeds of the machine."""
    del target, step
    return None
