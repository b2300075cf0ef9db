"""`--step`: the one way in for the code of a step, and what runs it for the verbs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from shardspec import pipeline
from shardspec.cli import options
from shardspec.cli.discovery import project_setting
from shardspec.cli.request import Request, has_errors
from shardspec.cli.streams import FINDINGS, fail, progress
from shardspec.diagnostics import ShardspecError, codes

if TYPE_CHECKING:
    from shardspec.ir.plan import ShardingPlan
    from shardspec.ir.spec import Spec
    from shardspec.jax_backend.entry_point import Call
    from shardspec.jax_backend.resolver import Resolver

Made = TypeVar("Made")
#: Called with what is being done.
Tell = Callable[[str], None]

#: What `--step` stands for without a value.
_OF_PROJECT = "[tool.shardspec] step"
_AS_IN = "as in `--step train:step`, where `def step(resolver): return train_step, (state, batch)`"

STEP = options.option(
    "--step",
    "step_name",
    metavar="MODULE:FUNCTION",
    is_flag=False,
    flag_value=_OF_PROJECT,
    help="Import this, which runs its code, and trace the step that it makes of a `Resolver`;"
    " alone, the one that `[tool.shardspec] step` of pyproject.toml names.",
)


def with_step(
    name: str | None,
    spec: Spec,
    target: str,
    request: Request,
    work: Callable[[Resolver, Call, Tell], Made],
    *,
    is_here: bool = False,
) -> Made:
    """Return what is worked out of a step; exit where its code, or the spec under it, has faults.

    Args:
      name: as `--step` gave it; None for the step that the spec states.
      work: gets a resolver of the target, which need not be here, and what the step is called
        with.
      is_here: whether the resolver is to have the devices that are here.
    """
    folder = ""
    if name is not None:
        name, folder = step_and_folder(name)
        request.remark(f"{name}: importing it, which runs its code")
    started = time.monotonic()
    found = None
    try:
        with progress(is_quiet=request.is_quiet) as tell:
            tell("loading jax")
            from shardspec.jax_backend.entry_point import questions_of
            from shardspec.jax_backend.on_target import on_target, start_on_cpu
            from shardspec.jax_backend.resolver import Resolver

            with contextlib.ExitStack() as stack:
                if not is_here:
                    start_on_cpu()
                    meant = pipeline.sound_target(pipeline.find_target(spec, target))
                    found = stack.enter_context(on_target(meant, spec, has_imports=True))
                resolver = Resolver(spec, target, agree_within_s=None)
                made = _worked(name, folder, resolver, work, tell)
        asked = () if found is None else pipeline.report(spec, questions_of(found)).shown
    except ShardspecError as error:
        asked = () if found is None else pipeline.report(spec, questions_of(found)).shown
        request.refuse((*asked, *error.diagnostics))
    request.report(asked)
    request.remark(f"{name or spec.source.name}: traced in {time.monotonic() - started:.1f} s")
    return made


def _worked(
    name: str | None,
    folder: str,
    resolver: Resolver,
    work: Callable[[Resolver, Call, Tell], Made],
    tell: Tell,
) -> Made:
    """Return what is worked out of the step of some code, or of the one that the spec states."""
    if name is None:
        from shardspec.jax_backend.stated import call_of_step

        return work(resolver, call_of_step(resolver), tell)
    from shardspec.jax_backend.entry_point import with_call

    return with_call(name, folder, resolver, tell, lambda call: work(resolver, call, tell))


def step_and_folder(name: str) -> tuple[str, str]:
    """Return the name of what makes the step, and the folder where its module is looked for."""
    from shardspec.arrays.reader import is_entry_point

    folder = os.getcwd()
    where = f"--step `{name}`"
    if name == _OF_PROJECT:
        found = project_setting("step", "train:step")
        if found is None:
            help = 'name one, `--step train:step`, or write `step = "train:step"` there'
            fail("no pyproject.toml here or above has `[tool.shardspec] step`", help)
        name, folder = found.value, str(found.folder)
        where = f"`{_OF_PROJECT}` in {found.shown}, `{name}`,"
    if not is_entry_point(name):
        fail(f"{where} is not MODULE:FUNCTION", _AS_IN)
    return name, folder


def plan_on_target(
    request: Request,
    undone: str,
    *,
    is_told: bool = True,
    has_code: bool = False,
    is_priced: bool = False,
) -> ShardingPlan:
    """Return the plan on the target that is meant; exit where it has errors.

    Args:
      undone: what is not done then, said behind the findings.
      is_told: whether findings that are no errors are said.
      has_code: whether code of the user runs, which may name axes that no array has.
      is_priced: whether the step that the spec states is priced, and what it leaves out is said
        with that.
    """
    plan, found = request.plan()
    if has_code:
        known = pipeline.with_axes_of_code(plan).axes_of_code
        lone = codes.AXIS_WITHOUT_ARRAY
        found = tuple(each for each in found if each.code is not lone or each.subject not in known)
    spec, chosen = plan.spec, plan.target
    request.require_sound(chosen, found)
    if is_told or has_errors(found):
        request.report(pipeline.without_uncounted(found) if is_priced else found)
    if has_errors(found):
        request.undone(f"{undone}: {spec.source.name} has errors")
        raise SystemExit(FINDINGS)
    count = len(spec.targets)
    if request.target is None and count > 1 and is_told:
        request.remark(f"target {chosen.name}; --target shows another of {count}")
    return plan
