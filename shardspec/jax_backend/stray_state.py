"""State that belongs to no parameter, and that every device would hold whole without a word.

Either it is not the state of these parameters, or an optimizer keeps what has no dimensions of
theirs, as `optax.flatten` does with one vector of all moments. Counters and keys are small.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from shardspec.analysis.coverage import allowed_paths
from shardspec.analysis.large import is_large
from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.codes import REPLICATED_LARGE, UNNAMED_ARRAY
from shardspec.ir.grouping import counted
from shardspec.ir.plan import ParamSharding
from shardspec.ir.units import binary_bytes
from shardspec.resolve.state import Relation, StateSharding
from shardspec.resolve.state_plan import StatePlan

#: What a tree may hold beside state that belongs to a parameter.
_OF_NOTHING = {Relation.UNOWNED, Relation.SCALAR, Relation.PARAMETER}

_HELP = "name its dimensions in `params:`, by the path of the state, or allow it under `replicate:`"


def may_be_stray(answers: Iterable[StateSharding]) -> bool:
    """Say whether nothing of a state belongs to a parameter, and something might."""
    relations = {answer.relation for answer in answers}
    return Relation.UNOWNED in relations and relations <= _OF_NOTHING


def findings(plan: StatePlan, params: Sequence[ParamSharding]) -> Iterator[Diagnostic]:
    """Yield an error where no state is of these parameters, else a warning for what is large.

    Args:
      params: the parameters, or samples of them.
    """
    lost = [found for found in plan.arrays if found.relation is Relation.UNOWNED]
    allowed = allowed_paths(plan.spec, (found.path for found in lost))
    lost = [found for found in lost if found.path not in allowed]
    if not lost or plan.mesh.device_count == 1:
        return
    lost.sort(key=_bytes, reverse=True)
    most = max((owner.param.element_count for owner in params if owner.param.rank), default=0)
    if most and may_be_stray(plan.arrays) and lost[0].sharding.param.element_count >= most:
        yield _of_others(lost, params)
        return
    held = sum(map(_bytes, plan.arrays))
    large = [found for found in lost if is_large(_bytes(found), held)]
    if large:
        message = f"{_arrays(large)} of no parameter, and whole on every device"
        note = f"{binary_bytes(sum(map(_bytes, large)))} on each"
        yield Diagnostic(REPLICATED_LARGE, message, notes=(note,), help=_HELP)


def _of_others(lost: Sequence[StateSharding], params: Sequence[ParamSharding]) -> Diagnostic:
    owner = next(owner for owner in params if owner.param.rank).param
    size = binary_bytes(sum(map(_bytes, lost)))
    return Diagnostic(
        UNNAMED_ARRAY,
        f"nothing in the state belongs to a parameter: {_arrays(lost)} whole on every device",
        notes=(
            f"{size} on each",
            f"one of the parameters that were given: `{owner.path}` {owner}",
        ),
        help=f"pass the parameters that the state was made for; or {_HELP}",
    )


def _arrays(lost: Sequence[StateSharding]) -> str:
    """Return the first of the arrays and the number of the others, with a verb."""
    first = f"`{lost[0].path}` {lost[0].sharding.param}"
    return f"{first} and {counted(len(lost) - 1, 'more array')} are" if lost[1:] else f"{first} is"


def _bytes(found: StateSharding) -> int:
    return found.per_device_bytes
