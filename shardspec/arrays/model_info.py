"""T5X's `model-info.txt`: a line for each parameter, written when training starts.

A line gives name, size, shape and the PartitionSpec; a shape has logical axes where the model
states them: `(vocab=32128, embed=4096)`. The optimizer's state stands after the total and is
left out: it is no parameter. The file has no dtypes; T5X keeps parameters in float32.
Source: google-research/t5x, t5x/utils.py, `log_model_info`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from shardspec.arrays.reading import LARGEST_SIZE, MOST_DIMS, Outcome, damaged, refused
from shardspec.diagnostics import Diagnostic, SourceFile, Span, parted
from shardspec.ir.spec import Arrays, Param, Params, PartitionSpec

_LINE = re.compile(
    r"Variable +(?P<name>\S+) +(?:None|size +(?P<size>\d{1,18}) +shape +\((?P<shape>[^)]*)\)"
    r"(?: +partition spec +(?P<spec>.*))?) *"
)
_TOTAL = re.compile(r"Total number of parameters: (\d{1,18}) *")
_DIM = re.compile(r"(?:(?P<axis>[^\s=,]+)=)?(?P<size>\d{1,15})")
_SPEC = re.compile(r"(?:PartitionSpec|P)?\((?P<dims>.*)\)")
_ENTRY = re.compile(r"\s*(?:None|'(?P<axis>[^']+)'|\((?P<axes>[^()]*)\))\s*(?:,|$)")
_AXIS = re.compile(r"'([^']+)'")

_DTYPE = "f32"

Line = tuple[Param, PartitionSpec | None]


def read(source: SourceFile) -> Outcome:
    """Return the parameters of a `model-info.txt`."""
    lines, faults = parted(_lines(source))
    params = tuple(param for param, _ in lines)
    faults = faults or tuple(_miscounted(params, source))
    if faults:
        return refused(*faults)
    partitions = ((param.path, partition) for param, partition in lines if partition is not None)
    return Arrays(params, tuple(partitions), (source,)), ()


def _lines(source: SourceFile) -> Iterator[Line | Diagnostic]:
    """Yield the parameters of the lines up to the total."""
    for text, span in source.lines():
        line = text.rstrip("\r")
        if _TOTAL.fullmatch(line):
            return
        found = _line(line, span) if line.strip() else None
        if found is not None:
            yield found


def _line(text: str, span: Span) -> Line | Diagnostic | None:
    match = _LINE.fullmatch(text)
    if match is None:
        return damaged("this is no line of T5X's `model-info.txt`", span)
    if match["shape"] is None:
        return None
    parts = match["shape"].rstrip(", ").split(",") if match["shape"].strip() else []
    dims = [_DIM.fullmatch(part.strip()) for part in parts]
    if None in dims or len(dims) > MOST_DIMS:
        return damaged(f"`{match['name']}` has no shape of sizes", span)
    shape = tuple(int(dim["size"]) for dim in dims if dim)
    if max(shape, default=0) >= LARGEST_SIZE or math.prod(shape) != int(match["size"]):
        count = f"{int(match['size']):,} elements"
        return damaged(f"`{match['name']}` has {count}, and its shape another number", span)
    names = tuple(None if dim["axis"] == "None" else dim["axis"] for dim in dims if dim)
    at = span.start + match.start("name")
    place = Span(span.source, at, at + len(match["name"]))
    param = Param(match["name"], shape, _DTYPE, names if any(names) else None, place)
    return param, _partition(match["spec"] or "", len(shape))


def _partition(text: str, rank: int) -> PartitionSpec | None:
    """Return a PartitionSpec as T5X prints it: a tuple, a `PartitionSpec`, or None."""
    found = _SPEC.fullmatch(text.strip())
    if found is None:
        return None
    dims, at, inside = [], 0, found["dims"]
    while at < len(inside.rstrip()):
        entry = _ENTRY.match(inside, at)
        if entry is None or entry.end() == at:
            return None
        axes = (entry["axis"],) if entry["axis"] else tuple(_AXIS.findall(entry["axes"] or ""))
        dims.append(axes)
        at = entry.end()
    if len(dims) > rank:
        return None
    return PartitionSpec(tuple(dims) + ((),) * (rank - len(dims)))


def _miscounted(params: Params, source: SourceFile) -> Iterator[Diagnostic]:
    """Yield why the total is not that of the lines: some are missing."""
    counted = sum(param.element_count for param in params)
    total = re.search(rf"^{_TOTAL.pattern}\r?$", source.text, re.MULTILINE)
    if total is None:
        message = f"`{source.name}` has no total after its parameters"
        yield damaged(
            message, source.whole, "the file may be cut off: T5X writes the total after them"
        )
    elif int(total[1]) != counted:
        span = Span(source, total.start(1), total.end(1))
        said = f"and the total says {int(total[1]):,}"
        yield damaged(f"the parameters above have {counted:,} elements, {said}", span)
