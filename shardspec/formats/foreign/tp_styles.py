"""The styles of Hugging Face's tensor-parallel plans, and which parameters a key is about.

Source: transformers 5.23.0, `transformers.distributed.tensor_parallel` (styles) and
`.parallel_utils` (`replace_layer_number_by_wildcard`, `_get_parameter_plan`); names of styles that
only 4.x has, from `transformers.integrations.tensor_parallel` at 0017fdb.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from shardspec.diagnostics import Span
from shardspec.formats.foreign.imported import NoAnswer
from shardspec.formats.foreign.rules import Dims

COLUMN = frozenset(("colwise", "colwise_rep", "colwise_gather_output", "local_colwise"))
ROW = frozenset(("rowwise", "rowwise_rep", "rowwise_split_input", "local_rowwise"))
PACKED = frozenset(("packed_colwise", "packed_rowwise", "local_packed_colwise",
                    "local_packed_rowwise"))  # fmt: skip
FIRST = frozenset(("embedding_rowwise", "grouped_gemm"))
WHOLE = frozenset((
    "replicate", "sequence_parallel", "gather", "local", "isolated", "all_reduce",
    "replicated_with_grad_allreduce", "mla_kv_a_proj", "moe_tp_experts", "moe_identity_expert",
    "local_params", "ep_router", "ep_dispatch_experts",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """One key of a plan with its style.

    Attributes:
      is_added: whether transformers adds it, and the plan does not say it.
    """

    key: str
    style: str
    span: Span | None = field(default=None, compare=False, repr=False)
    is_added: bool = False


def is_known(style: str) -> bool:
    """Say whether transformers has a style of this name."""
    known = (COLUMN, ROW, PACKED, FIRST, WHOLE, ("embedding_colwise",))
    return any(style in styles for styles in known)


def partition(style: str, leaf: str, rank: int, axis: str) -> Dims | NoAnswer:
    """Return how a style splits a parameter.

    Args:
      leaf: the last part of its name, such as `weight`.
    """
    whole: Dims = ((),) * rank
    if style in WHOLE or rank == 0:
        return whole
    if style in COLUMN:
        dim = max(rank - 2, 0)
    elif style in ROW:
        if leaf == "bias":
            return whole
        dim = rank - 1
    elif style in FIRST:
        dim = 0
    elif style == "embedding_colwise" and rank > 1:
        dim = 1
    elif style in PACKED:
        reason = f"`{style}` splits each of two packed halves, and no PartitionSpec says that"
        return NoAnswer(reason, refuses=False)
    else:
        return NoAnswer(f"`{style}` is no style it knows (ValueError)")
    return (*whole[:dim], (axis,), *whole[dim + 1 :])


def generic(path: str) -> str:
    """Return a name with `*` for layer numbers, as transformers looks it up.

    >>> generic("model/layers/3/mlp/up_proj/weight")
    'model.layers.*.mlp.up_proj.weight'
    """
    dotted = path.replace("/", ".")
    return re.sub(r"\.\d+(\.|$)", lambda found: ".*" + found.group(1), dotted)


def key_regex(key: str, leaf: str = "", *, anywhere: bool = True) -> str:
    r"""Return the regex of a key, or of a parameter of the module it names.

    Args:
      anywhere: whether other modules may stand before it.

    >>> key_regex("layers.*.mlp.up_proj", "weight")
    '(?:.+[./])?layers[./]\\d+[./]mlp[./]up_proj[./]weight'
    """
    parts = [*key.split("."), *([leaf] if leaf else [])]
    texts = (r"\d+" if part == "*" else re.escape(part) for part in parts)
    return ("(?:.+[./])?" if anywhere else "") + "[./]".join(texts)
