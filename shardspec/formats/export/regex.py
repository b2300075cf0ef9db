"""A Python module with a list of (regex, PartitionSpec), for tools that place arrays by path.

One regex for each group of arrays, anchored, and no two of them match one path: so the order does
not matter, and `re.fullmatch` and `re.search` find the same one.
"""

from __future__ import annotations

from shardspec.formats.export.by_path import groups, line_end
from shardspec.formats.export.exported import Request, Written, source_name
from shardspec.formats.export.flax import axes_literal
from shardspec.formats.export.losses import OVERRIDES, PARAMS, losses
from shardspec.ir.grouping import counted
from shardspec.ir.partition import PartitionSpec


def write(request: Request) -> Written:
    """Return the layouts of the plan's arrays, exact for these and for no others."""
    end = line_end(request.plan)
    lines = [
        f"    ({raw(f'^{group.regex}{end}')}, {spec_literal(group.partition)}),"
        for group in groups(request.plan)
    ]
    text = "\n".join((*_head(request), "RULES = [", *lines, "]")) + "\n"
    return text, tuple(losses(request, "a list of regexes", PARAMS, OVERRIDES))


def raw(regex: str) -> str:
    r"""Return a regex as a Python literal, raw where that is the same.

    >>> print(raw(r"^a\.b$"))
    r"^a\.b$"
    """
    is_plain = regex.isprintable() and '"' not in regex and not regex.endswith("\\")
    return f'r"{regex}"' if is_plain else repr(regex)


def spec_literal(partition: PartitionSpec) -> str:
    """Return `P("data", None)`."""
    return f"P({', '.join(axes_literal(dim) for dim in partition.dims)})"


def _head(request: Request) -> tuple[str, ...]:
    count = counted(len(request.plan.params), "array")
    return (
        f'"""Layouts of {count}, exported by shardspec from {source_name(request.spec)}.',
        "",
        "The first regex that matches the whole path wins, and none matches any other array.",
        '"""',
        "",
        "from jax.sharding import PartitionSpec as P",
        "",
        f"# {request.target_title}",
    )
