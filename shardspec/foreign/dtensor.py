"""Plans of PyTorch's `parallelize_module`: dictionaries from modules to styles of DTensor.

`{"attention.wq": ColwiseParallel(), "attention.wo": RowwiseParallel()}` may be anywhere in a file:
in a call, in a loop over layers, or built entry by entry. Keys are relative to the module that the
plan is given with, which the arrays tell. The styles are those of a plan of transformers, but an
embedding takes them by its own dimensions: rows are its vocabulary. Names that stand for a style,
such as torchtitan's `colwise_parallel`, are known by what they are called. What prepares inputs and
outputs splits no parameter.
Source: PyTorch 2.9, `torch.distributed.tensor.parallel.style` and `.api.parallelize_module`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import partial

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.foreign import formats, hf
from shardspec.foreign.formats import Options, bad, lost
from shardspec.foreign.hf_models import PlanEntry, TpPlan, names_any
from shardspec.foreign.python_text import Module, Places, parse_python
from shardspec.foreign.values import Node

TOOL = "PyTorch"
answer = hf.answer
_FORM = 'a plan: {"attention.wq": ColwiseParallel(), "attention.wo": RowwiseParallel()}'
_BY_HAND = "state its arrays in `overrides:`"
#: What a style is called, also where a name of the file stands for it -> that of transformers.
_STYLES = (
    (re.compile(r"prepare", re.IGNORECASE), ""),
    (re.compile(r"colwise", re.IGNORECASE), "colwise"),
    (re.compile(r"rowwise", re.IGNORECASE), "rowwise"),
    (re.compile(r"sequence_?parallel", re.IGNORECASE), "sequence_parallel"),
    (re.compile(r"no_?parallel|replicate_?parallel", re.IGNORECASE), "replicate"),
)
_EMBEDDING = re.compile(r"(?:.*\.)?(?:\w*embed\w*|wte|wpe)")


def read(sources: Sequence[SourceFile], options: Options) -> formats.Outcome:
    """Return the spec that says what the plans of some files do."""
    plans: list[TpPlan] = []
    faults: list[Diagnostic] = []
    for source in sources:
        found = parse_python(source, partial(_plans, source))
        if isinstance(found, Diagnostic):
            return None, (found,)
        if not found:
            return None, (bad(f"`{source.name}` has no plan", source.whole, help=_FORM),)
        plans += [plan for plan, _ in found]
        faults += [fault for _, wrong in found for fault in wrong]
    if options.params is not None:
        plans = [plan for plan in plans if names_any(plan, options.params)] or plans
    return hf.imported(tuple(plans), tuple(faults), options, TOOL, "Plans of `parallelize_module`")


Plan = tuple[TpPlan, tuple[Diagnostic, ...]]


def _plans(source: SourceFile, tree: ast.Module) -> list[Plan]:
    """Return the plans of a file, each with what it says that is not carried over."""
    values = Module(Places(source)).read(tree)
    plans = (each for each in _pairs(values, tree) if any(_style(value) for _, value in each))
    return list(map(_plan, plans))


def _pairs(values: Module, tree: ast.Module) -> Iterator[Sequence[tuple[Node, Node]]]:
    """Yield the entries of each dictionary, and each that is added to one."""
    for each in ast.walk(tree):
        if isinstance(each, ast.Dict):
            pairs = (pair for pair in zip(each.keys, each.values, strict=True) if pair[0])
            yield [(values.value(key), values.value(item)) for key, item in pairs if key]
        elif isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Subscript):
            yield [(values.value(each.targets[0].slice), values.value(each.value))]


def _style(value: Node) -> str | None:
    """Return the style of transformers that a value is, "" for none; None where it is another."""
    if value.kind not in ("call", "name"):
        return None
    return next((name for known, name in _STYLES if known.search(value.last_name)), None)


def _plan(pairs: Sequence[tuple[Node, Node]]) -> Plan:
    entries: list[PlanEntry] = []
    unread: list[tuple[str, str]] = []
    faults: list[Diagnostic] = []
    for key, value in pairs:
        style = _style(value)
        if key.kind != "text":
            what = "the name of a module is worked out when the file runs"
            faults.append(lost(what, key.span, help=_BY_HAND))
        elif style is None:
            reason = f"the style of `{key.text}` is code"
            unread.append((key.text, reason))
            faults.append(lost(reason, value.span, help=_BY_HAND))
        elif style:
            if style in ("colwise", "rowwise") and _EMBEDDING.fullmatch(key.text):
                style = f"embedding_{style}"
            entries.append(PlanEntry(key.text, style, key.span))
    return TpPlan(tuple(entries), "whole", unread=tuple(unread)), tuple(faults)
