"""Which plans in files of transformers are meant: those named, those that fit, or all there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.formats.foreign.hf_classes import HfClasses, read_classes
from shardspec.formats.foreign.hf_models import fitting_models, whole_plan
from shardspec.formats.foreign.hf_plans import (
    FORM,
    Kind,
    TpPlan,
    TpPlans,
    located,
    plan_entries,
)
from shardspec.formats.foreign.imported import Options, ambiguous, bad, lost
from shardspec.formats.foreign.named_values import NamedValues, read_named_values
from shardspec.formats.foreign.node import Node
from shardspec.formats.foreign.tp_styles import generic, is_known
from shardspec.ir.param import Params

_KINDS: dict[str, Kind] = {"base_model_tp_plan": "base", "_tp_plan": "class", "tp_plan": "whole"}

Faults = tuple[Diagnostic, ...]
File = tuple[SourceFile, NamedValues]


def chosen_plans(
    sources: Sequence[SourceFile], options: Options
) -> tuple[tuple[TpPlan, ...], Faults]:
    """Return the plans that are named, or that fit the arrays, or all there are."""
    files: list[File] = []
    for source in sources:
        values = read_named_values(source)
        if isinstance(values, tuple):
            return (), values
        files.append((source, values))
    classes = read_classes(sources)
    names = options.names or ((options.name,) if options.name is not None else ())
    if names:
        return _named(files, classes, names, options.params)
    if options.params is not None:
        found = _fitting(classes, options.params)
        if found is not None:
            return found
    return _of_files(files, options.params)


def _named(
    files: Sequence[File],
    classes: HfClasses,
    names: Sequence[str],
    params: Params | None,
) -> tuple[tuple[TpPlan, ...], Faults]:
    """Return the plans of `--name NAME` or `--name NAME=MODULE`, one for each."""
    plans: list[TpPlan] = []
    faults: list[Diagnostic] = []
    for each in names:
        name, is_placed, root = each.partition("=")
        if classes.is_model(name) and classes.children_of(name):
            plan, wrong = whole_plan(classes, name, _own_paths(classes, name, params))
            plan = replace(plan, root=None)
        else:
            found = [
                plan for file in files for plan in _candidates(*file) if _is_called(plan, name)
            ]
            if not found:
                source = files[0][0]
                said = ", ".join(f"`{source.name}`" for source, _ in files)
                faults.append(bad(f"{said} has no plan of `{name}`", source.whole, help=FORM))
                continue
            plan, wrong = _readable(found[0])
        faults += wrong
        plans.append(replace(plan, root=_module(root)) if is_placed else plan)
    return tuple(plans), tuple(faults)


def _own_paths(classes: HfClasses, model: str, params: Params | None) -> frozenset[str] | None:
    """Return the names of the arrays where they are the model's own, without others in front."""
    paths = _generic_paths(params)
    modules = classes.children_of(model).keys()
    is_own = paths is not None and all(path.partition(".")[0] in modules for path in paths)
    return paths if is_own else None


def _module(root: str) -> str:
    """Return the module of `--name NAME=MODULE` with `*` for numbers; `.` is the model itself."""
    return generic(root).strip(".")


def _is_called(plan: _Candidate, name: str) -> bool:
    return name in (plan.name, plan.name.rpartition(".")[0])


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A value of a file that may be a plan."""

    name: str
    node: Node


def _candidates(source: SourceFile, values: NamedValues) -> Iterator[_Candidate]:
    """Yield the plans of a file; None stands for no plan."""
    if values.root is not None and _is_plan(values.root):
        yield _Candidate("", values.root)
        return
    named = values.named if values.root is None else _sections(values.root)
    for name, node in named:
        if name.rpartition(".")[2] in _KINDS and node.kind != "nothing":
            yield _Candidate(name, node)


def _readable(found: _Candidate) -> tuple[TpPlan, Faults]:
    entries, faults = plan_entries(found.node)
    kind = _KINDS.get(found.name.rpartition(".")[2], "base")
    is_whole = any(entry.key.startswith(("model.", "lm_head")) for entry in entries)
    return TpPlan(entries, "whole" if not found.name and is_whole else kind, found.name), faults


def _fitting(classes: HfClasses, params: Params) -> tuple[tuple[TpPlan, ...], Faults] | None:
    """Return the plan of the model whose modules are called as the arrays; None if none is."""
    paths = _generic_paths(params) or frozenset()
    found = [(name, *whole_plan(classes, name, paths)) for name in fitting_models(classes, paths)]
    found = [each for each in found if each[1].entries or each[1].unread or each[2]]
    if not found:
        return None
    best: dict[object, tuple[str, TpPlan, Faults]] = {}
    for name, plan, faults in found:
        plans = TpPlans((plan,), tuple(param.path for param in params))
        dead = {key for key, _ in plans.unmatched}
        alive = frozenset((e.key, e.style) for e in plan.entries if e.key not in dead)
        known = best.get((alive, plan.unread))
        if known is None or len(plan.entries) < len(known[1].entries):
            best[alive, plan.unread] = (name, plan, faults)
    if len(best) > 1:
        listed = ", ".join(f"`{name}`" for name, _, _ in best.values())
        first, second = list(best.values())[:2]
        span = (second[1].entries or first[1].entries)[0].span if second[1].entries else None
        message = f"{len(best)} models have modules called as the arrays are: {listed}"
        return (), (ambiguous(message, span, f"say which: --name {first[0]}"),)
    _, plan, faults = next(iter(best.values()))
    return (plan,), faults


def _generic_paths(params: Params | None) -> frozenset[str] | None:
    return None if params is None else frozenset(generic(param.path) for param in params)


def _of_files(files: Sequence[File], params: Params | None) -> tuple[tuple[TpPlan, ...], Faults]:
    """Return the plans of all files; several of one file only where arrays tell them apart."""
    plans: list[TpPlan] = []
    faults: list[Diagnostic] = []
    for source, values in files:
        found = list({each.node: each for each in _candidates(source, values)}.values())
        if not found:
            message = f"`{source.name}` has no tensor-parallel plan"
            return (), (bad(message, source.whole, help=FORM),)
        if len(found) > 1 and not _belong_together(found, values, params):
            listed = ", ".join(f"`{each.name}`" for each in found[:10])
            message = f"`{source.name}` has {len(found)} plans: {listed}"
            help = f"say which, each with --name: --name {found[0].name}"
            return (), (ambiguous(message, found[1].node.span, help),)
        for each in found:
            plan, wrong = _readable(each)
            faults += wrong
            if len(found) > 1 and params is not None and not _fits_anywhere(plan, params):
                if plan.entries:
                    message = f"`{plan.name}` names none of the arrays, and is left out"
                    faults.append(
                        lost(message, each.node.span, help=f"--name {plan.name} keeps it")
                    )
                continue
            plans.append(plan)
    return tuple(plans), tuple(faults)


def _belong_together(
    found: Sequence[_Candidate], values: NamedValues, params: Params | None
) -> bool:
    """Say whether several plans of a file are one model's: sections, or its class and base."""
    names = [each.name for each in found]
    return values.root is not None and (
        params is not None or sorted(names) == ["_tp_plan", "base_model_tp_plan"]
    )


def _fits_anywhere(plan: TpPlan, params: Params) -> bool:
    placed_plan, _ = located([plan], [param.path for param in params])
    plans = TpPlans(placed_plan, tuple(param.path for param in params))
    return len(plans.unmatched) < len(plan.entries)


def _sections(root: Node, prefix: str = "") -> list[tuple[str, Node]]:
    """Return what a configuration holds at its top and one level below, by dotted names."""
    found: list[tuple[str, Node]] = []
    for key, value in zip(root.keys, root.items, strict=False):
        found.append((prefix + key.text, value))
        if not prefix and value.kind == "mapping":
            found += _sections(value, f"{key.text}.")
    return found


def _is_plan(node: Node) -> bool:
    return (
        node.kind == "mapping"
        and bool(node.items)
        and all(key.kind == "text" for key in node.keys)
        and all(item.kind == "text" for item in node.items)
        and any(is_known(item.text) for item in node.items)
    )
