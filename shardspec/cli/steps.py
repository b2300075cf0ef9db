"""`--step` and `--measured`: the one way in for the code and the runs of a step."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self, TypeVar

import click

from shardspec import pipeline
from shardspec.analysis.cost import Cost, cost_of
from shardspec.analysis.spec_step import evenly, stated_cost
from shardspec.analysis.step_time import Scale
from shardspec.arrays.listing import is_entry_point
from shardspec.cli import options
from shardspec.cli.request import Request, has_errors, project_setting
from shardspec.cli.streams import FINDINGS, fail, progress, show, unbroken, width_of
from shardspec.diagnostics import ShardspecError
from shardspec.diagnostics.lines import fitted
from shardspec.diagnostics.words import seconds_text, three_figures
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Mesh, Spec
from shardspec.ir.step import Step, StepArgument

if TYPE_CHECKING:
    from shardspec.analysis.comparison import Comparison
    from shardspec.jax_backend.resolver import Resolver
    from shardspec.jax_backend.step.trace import Call
    from shardspec.jax_backend.xla.compiling import Compile
    from shardspec.jax_backend.xla.verifying import Lowered
    from shardspec.programs.captures import Capture
    from shardspec.programs.proof import Proof
    from shardspec.programs.reading import ReadProgram


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
    spec: Spec,
    target: str,
    request: Request,
    work: Callable[[Resolver, Call, Tell], Made],
    *,
    is_here: bool = False,
    done: str = "traced",
) -> Made:
    """Return what is worked out of a step; exit where its code, or the spec under it, has faults.

    Args:
      work: gets a resolver of the target, which need not be here, and what the step is called
        with.
      is_here: whether the resolver is to have the devices that are here.
      done: what was done with it, which is said with the time that it took.
    """
    name, folder = None, ""
    if request.step_name is not None:
        name, folder = step_and_folder(request)
        request.remark(f"{name}: importing it, which runs its code")
    elif request.arrays is not None:  # the lines of the spec read these
        spec = replace(spec, params=request.params(spec))
    started = time.monotonic()
    found = None
    try:
        with progress(is_quiet=request.is_quiet) as tell:
            tell("loading jax")
            with unbroken():
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
    request.remark(f"{name or spec.source.name}: {done} in {time.monotonic() - started:.1f} s")
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


def step_and_folder(request: Request) -> tuple[str, str]:
    """Return the name of what makes the step, and the folder where its module is looked for."""
    name, folder = request.step_name or "", os.getcwd()
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
        found = pipeline.without_axes_of_code(plan, found)
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


# `--basis`: what a step costs by the highest authority that answers, the compiler first.
#
# The compiler starts while the code is still traced. Where it has no answer, the model's figures
# stand, marked `~`, with the reason.


def _basis(wait_s: float) -> tuple[click.Option, ...]:
    """Return `--basis` and `--wait`: where figures of a step come from."""
    return (
        options.choice_option(
            "--basis",
            of=("auto", "compiler", "model"),
            envvar="SHARDSPEC_BASIS",
            show_envvar=True,
            help="Whose figures of a step: those of the target's compiler, which needs no chips,"
            " the model's, or with `auto` the compiler's of --step where it answers in time.",
        ),
        options.seconds_option("--wait", wait_s, "How long `--basis auto` waits for the compiler."),
    )


#: For verbs that show the figures of a step, and say whose they are.
BASIS = _basis(30.0)
#: For verbs whose exit code hangs on them: it must not hang on the speed of this machine.
BASIS_OF_A_GATE = _basis(600.0)


def traced_step(plan: ShardingPlan, request: Request) -> Step:
    """Return the step that `--step` names, traced for the target of a plan; exit on its faults."""
    (cost,) = step_costs((plan,), replace(request, basis="model"))
    assert cost.step is not None, "a traced step is one"
    return cost.step


def step_costs(
    plans: Iterable[ShardingPlan],
    request: Request,
    *,
    shown: Callable[[Cost], None] = lambda cost: None,
) -> tuple[Cost, ...]:
    """Return what the step that `--step` names costs under each plan that has a mesh.

    The code runs for one target after the other; compilers work meanwhile, as many at once as
    `most_at_once` says. Where one has no answer, it exits under `--basis compiler`; else the cost
    is the model's, and says why.

    Args:
      shown: gets what the model says as soon as it is known, where a compiler is still at work.
    """
    sound = tuple(plan for plan in plans if plan.target.is_sound)
    asked = [_Pending(plan, request) for plan in sound]
    most = 1
    if request.basis != "model":
        from shardspec.jax_backend.xla.compiling import most_at_once

        most = most_at_once()
    with contextlib.ExitStack() as stack:
        for at, each in enumerate(asked):
            if at >= most:
                asked[at - most].settle()
            stack.enter_context(each)
            each.trace()
            if not each.is_settled:
                shown(each.cost)
        return tuple(each.settle() for each in asked)


def report_modelled(costs: Iterable[Cost], request: Request) -> None:
    """Say for which targets the model judges a step, because their compiler has no answer."""
    for cost in costs:
        hardware = cost.target.hardware
        if cost.why_modelled and hardware is not None and hardware.chip.platform != "cpu":
            request.undone(f"{cost.target.name}: judged by the model: {cost.why_modelled}")


class _Pending:
    """What a step costs on one target, while its compiler is at work."""

    cost: Cost
    arguments: tuple[StepArgument, ...] = ()

    def __init__(self, plan: ShardingPlan, request: Request) -> None:
        self.plan, self.request = plan, request
        self.why: str | None = None
        self.compile: Compile | None = None
        self.other: Compile | None = None

    def __enter__(self) -> _Pending:
        """Start the compiler, if one is asked."""
        if self.request.basis == "model":
            return self
        from shardspec.jax_backend.xla.compiling import Compile, Compiling, other_libtpu

        is_patient = self.request.basis == "compiler"
        how = Compiling() if is_patient else Compiling(self.request.wait_s)
        try:
            order = self.plan.spec.policy.order
            self.compile = Compile(self.plan.target, how, order).__enter__()
        except ShardspecError as error:
            self._give_up(error)
        if self.compile is not None and (folder := other_libtpu(self.plan.target)):
            how = replace(how, libtpu=folder)
            with self._without_other():
                self.other = Compile(self.plan.target, how, order).__enter__()
        return self

    @contextlib.contextmanager
    def _without_other(self) -> Iterator[None]:
        """Go on where the other version of the compiler has no answer, and say why."""
        try:
            yield
        except ShardspecError as error:
            self.request.remark(error.diagnostics[0].message)
            if self.other is not None:
                self.other.__exit__()
                self.other = None

    def __exit__(self, *error: object) -> None:
        """End the compilers, if they are at work."""
        for each in filter(None, (self.compile, self.other)):
            each.__exit__()
        self.compile = self.other = None

    @property
    def is_settled(self) -> bool:
        """Say whether the cost is there as it will be."""
        return self.compile is None

    def trace(self) -> None:
        """Have the model's cost, and hand the module to the compiler."""

        def traced(resolver: Resolver, call: Call, tell: Tell) -> Lowered:
            from shardspec.jax_backend.xla.verifying import lowered

            return lowered(resolver, call)

        spec, name = self.plan.spec, self.request.step_name
        step, module = with_step(spec, self.plan.target.name, self.request, traced)
        self.arguments = step.arguments
        if name is None:
            self.cost = stated_cost(evenly(self.plan), tokens=self.request.tokens)
        else:
            from shardspec.jax_backend.cure.remembered import remembered

            step = replace(step, cure=remembered(module, self.plan), called=name)
            self.cost = cost_of(self.plan, step, tokens=self.request.tokens)
        if self.compile is not None:
            self._try(lambda compile: compile.give(module))
        if self.other is not None:
            with self._without_other():
                self.other.give(module)

    def settle(self) -> Cost:
        """Return the cost by the highest authority that answers, once it is there."""
        if self.compile is not None:
            self._try(self._by_compiler)
        return self.cost if self.why is None else replace(self.cost, why_modelled=self.why)

    def _by_compiler(self, compile: Compile) -> None:
        from shardspec.jax_backend.xla.verifying import cost_by

        with progress(is_quiet=self.request.is_quiet) as tell:
            made = compile.result(lambda stage: tell(f"{self.plan.target.name}: {stage}"))
            found = cost_by(self.cost, made, self.arguments)
            if self.other is not None:
                with self._without_other():
                    other = cost_by(self.cost, self.other.result(), self.arguments)
                    found = replace(found, other=other)
            self.cost = found
        self.__exit__()

    def _try(self, work: Callable[[Compile], None]) -> None:
        assert self.compile is not None, "nobody asks without one"
        try:
            work(self.compile)
        except ShardspecError as error:
            self.__exit__()
            self._give_up(error)

    def _give_up(self, error: ShardspecError) -> None:
        """Note why there is no program; exit where nothing else is asked for."""
        if self.request.basis == "compiler":
            self.request.refuse(error.diagnostics)
        from shardspec.jax_backend.xla.compiling import MORE_TIME

        first = error.diagnostics[0]
        is_late = first.help == MORE_TIME
        self.why = first.message + ("; `--basis compiler` waits for it" if is_late else "")


# Proofs of a step, one for each target: the code is traced here while compilers are at work.


_TOLERANCE = re.compile(r"(?P<number>\d{1,3}(?:\.\d{1,6})?)\s*(?P<percent>%?)")


def _tolerance(ctx: click.Context, param: click.Parameter, text: str) -> float:
    """Return the share that `10%` or `0.1` is."""
    found = _TOLERANCE.fullmatch(text.strip())
    share = -1.0 if found is None else float(found["number"]) / (100 if found["percent"] else 1)
    if not 0 <= share <= 1:
        fail(f"--tolerance {text} is no share", "as in `--tolerance 10%`, `--tolerance 0.1`")
    return share


#: How a step is compiled, and what is proof, for verbs that have it compiled.
PROOF = (
    options.option(
        "--tolerance",
        default="10%",
        show_default=True,
        metavar="SHARE",
        callback=_tolerance,
        help="How much of the compiled bytes may differ from the prediction.",
    ),
    options.seconds_option("--timeout", 600.0, "For each compile.", least=0.1),
    options.flag("--no-cache", "Compile again, without the cache of compiled programs."),
)


class Pending:
    """The proof of a step on one target, while its compiler is at work."""

    def __init__(
        self,
        plan: ShardingPlan,
        request: Request,
        how: Mapping[str, Any] = MappingProxyType({}),
        *,
        is_here: bool = False,
    ) -> None:
        """Take what is proved.

        Args:
          plan: on the target.
          how: it is compiled beside what the request says, as `Compiling` takes it.
          is_here: compile for the devices that are here, at once.
        """
        self._plan, self._request, self._how, self._is_here = plan, request, how, is_here
        self._settle: Callable[[Tell], Proof]
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Start the compiler, then trace the step and hand it over; exit on faults."""
        with self._request.refusing(), contextlib.ExitStack() as stack:
            self._begin(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        """End the compiler, if it is at work."""
        self._stack.close()

    def _begin(self, stack: contextlib.ExitStack) -> None:
        from shardspec.jax_backend.xla.compiling import Compile, Compiling

        plan, request, tolerance = self._plan, self._request, self._request.tolerance
        how = Compiling(request.timeout_s, is_cached=not request.no_cache, **self._how)
        alone, order = replace(how, flags=""), plan.spec.policy.order
        compile = None if self._is_here else stack.enter_context(Compile(plan.target, alone, order))
        is_stated = request.step_name is None
        cost = stated_cost(evenly(plan)) if is_stated else None

        def traced(resolver: Resolver, call: Call, tell: Tell) -> Callable[[Tell], Proof]:
            from shardspec.jax_backend.stated import unlike
            from shardspec.jax_backend.xla.verifying import given, verify_step

            if compile is None:
                found = verify_step(
                    resolver,
                    call,
                    cost=cost,
                    tolerance=tolerance,
                    is_here=True,
                    how=how,
                    tell=tell,
                )
                return lambda tell: found
            tell("tracing")
            notes = unlike(plan) if is_stated else ()
            asked = given(compile, resolver, call, cost=cost, notes=notes)
            return lambda tell: asked.proof(how, tolerance, tell)

        spec, target = plan.spec, plan.target.name
        self._settle = with_step(spec, target, request, traced, is_here=self._is_here)

    def proof(self) -> Proof:
        """Return the proof once the program is there; exit where there is none."""
        request, name = self._request, self._plan.target.name
        with self._stack, request.refusing(), progress(is_quiet=request.is_quiet) as tell:
            return self._settle(lambda stage: tell(f"{name}: {stage}"))


def each_proof(pending: Iterable[Callable[[], Pending]]) -> Generator[Proof | SystemExit]:
    """Yield the proof of each, in order, or how it ended without one."""
    from shardspec.jax_backend.xla.compiling import most_at_once

    waiting: deque[Pending | SystemExit] = deque()
    with contextlib.ExitStack() as stack:
        for begin in pending:
            if len(waiting) >= most_at_once():
                yield _ended(waiting.popleft())
            try:
                waiting.append(stack.enter_context(begin()))
            except SystemExit as end:
                waiting.append(end)
        while waiting:
            yield _ended(waiting.popleft())


def _ended(each: Pending | SystemExit) -> Proof | SystemExit:
    if isinstance(each, SystemExit):
        return each
    try:
        return each.proof()
    except SystemExit as end:
        return end


def print_proof(proof: Proof, *, err: bool = False) -> None:
    """Print a prediction beside the program."""
    from shardspec.programs.proof import proof_lines

    show(fitted(proof_lines(proof), width_of(2 if err else 1)), err=err)


# `--measured`: one step that somebody timed, or a run that was captured, to compare with.


_TIME = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,12})?)\s*(?P<unit>us|ms|s|min|)")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "min": 60.0}
#: A step that takes so many times as long as predicted, or so much less, is likely another one.
_FAR = 3.0
#: What a run is, where one cannot be read.
RUNS = "name an `.xplane.pb`, a folder of `jax.profiler.trace`, or a `trace.json.gz`"
_WAY_OUT = "leave --measured out, or name a target whose speeds are known"


class Measured(NamedTuple):
    """A step of the spec as it is, without `--set`, and how long it took.

    Attributes:
      target: where; None for the target that the prediction is for.
      run: a file or a folder of a captured run; empty where only a time is known.
    """

    target: str | None
    seconds: float
    run: str = ""


def _measured(ctx: click.Context, param: click.Parameter, text: str | None) -> Measured | None:
    """Return what `2.1s`, `350ms`, `pod=2.1s`, `RUN` or `pod=RUN` says."""
    if text is None:
        return None
    target, is_named, path = text.partition("=")
    if os.path.exists(text):
        return Measured(None, 0.0, text)
    if is_named and os.path.exists(path):
        return Measured(target, 0.0, path)
    seconds = seconds_in(path if is_named and target else text)
    if not seconds:
        help = "as in `--measured 2.1s`, `--measured pod=350ms`, `--measured runs/monday`"
        fail(f"--measured {text} is no time of a step, and no file or folder", help)
    return Measured(target if is_named else None, seconds)


def seconds_in(text: str) -> float:
    """Return the seconds of `2.1s`, `350ms`; 0 of what is no time."""
    found = _TIME.fullmatch(text.strip())
    return 0.0 if found is None else float(found["number"]) * _UNITS[found["unit"]]


def measured_option(help: str, metavar: str = "[TARGET=]TIME|RUN") -> click.Option:
    """Return `--measured`, as a verb takes it."""
    return options.option("--measured", metavar=metavar, callback=_measured, help=help)


MEASURED = measured_option(
    "What a step of the spec as it is, without --set, took: `2.1s`, `pod=350ms`. Predictions"
    " are scaled by it. Or a run that `jax.profiler.trace` captured, a folder or a file: `cost`"
    " compares it with the prediction.",
)


def scale_of(measured: Measured, base: Cost, request: Request) -> Scale:
    """Return what a measured step took over its prediction; exit where none is predicted.

    Args:
      base: the cost of the step that was measured.
    """
    seconds = seconds_of(measured)
    try:
        scale = base.scale(seconds)
    except ValueError as error:
        fail(str(error), _WAY_OUT)
    if not 1 / _FAR < scale.share < _FAR:
        times = f"{three_figures(scale.share)} times what is predicted"
        request.remark(f"--measured: {seconds_text(seconds)} is {times}; is it this step?")
    return scale


def as_it_is(measured: Measured, request: Request, target: str) -> Request:
    """Return the request for the step that was measured: without --set, on its target."""
    return replace(request, target=measured.target or target, settings={})


def held_to(
    measured: Measured, found: Cost, request: Request, cost_at: Callable[[Request], Cost]
) -> Cost:
    """Return a cost whose times are scaled by what a measured step took over its prediction.

    Args:
      found: the cost that is asked for.
      cost_at: works out the cost of the step that was measured.
    """
    if found.step is None:
        fail("--measured times a step, and there is none", "name one: `--step MODULE:FUNCTION`")
    at = as_it_is(measured, request, found.target.name)
    is_same = at.target == found.target.name and not request.settings
    base = found if is_same else cost_at(at)
    scale_of(measured, base, request)
    try:
        return found.measured(measured.seconds, base)
    except ValueError as error:
        fail(str(error), _WAY_OUT)


# a captured run


def comparison(run: str, found: Cost, request: Request) -> Comparison:
    """Return a captured run beside the prediction of its step; exit where it cannot be read.

    The program is that which the capture carries, else the one that `verify` would prove.
    """
    from shardspec.programs.captures import capture_of
    from shardspec.programs.measured import compared

    if found.step is None:
        fail("a run is compared by its step, and none is named", "name it: `--step train:step`")
    cost = found.predicted or found
    try:
        with request.refusing():
            capture = capture_of(run)
            with progress(is_quiet=request.is_quiet) as tell:
                tell("reading the programs of the run")
                module, program = program_of_run(capture, cost.target.mesh, cost.step)
            if program is not None:
                return compared(capture, module, program, cost)
            has_compiler = request.basis != "model" and request.step_name is not None
            made = _program(found, request) if has_compiler else None
            return compared(capture, module, made, cost, is_own=False)
    except ValueError as error:
        refuse_run(run, error)


def refuse_run(run: str, error: ValueError) -> NoReturn:
    """Exit, since a run cannot be read, or is not of what it is compared with."""
    from shardspec.programs.captures import CaptureError

    fail(str(error) if isinstance(error, CaptureError) else f"{run}: {error}", RUNS)


def program_of_run(
    capture: Capture, mesh: Mesh, step: Step | None = None
) -> tuple[str, ReadProgram | None]:
    """Return the module that the step of a run is, and the program of it that the run carries.

    Raises:
      ShardspecError: XLA cannot read it.
      ValueError: it is for another mesh.
    """
    from shardspec.jax_backend.xla.compiling import texts_of
    from shardspec.programs.measured import module_of, program_in, programs_of

    module = module_of(capture)
    texts = texts_of(programs_of(capture, module))
    return module, program_in(capture, module, texts.values(), mesh, step)


def _program(found: Cost, request: Request) -> ReadProgram | None:
    """Return the program that the compiler of the target makes; None where it makes none."""
    hardware = found.target.hardware
    is_here = hardware is not None and hardware.chip.platform == "cpu"
    asked = replace(request, timeout_s=request.wait_s, tolerance=1.0)
    try:
        with Pending(found.plan, asked, is_here=is_here) as each:
            return each.proof().program
    except SystemExit:
        return None


def is_run(name: str) -> bool:
    """Say whether a name is that of a captured run: a file of its forms, or a folder with some."""
    from shardspec.programs.captures import has_capture

    return has_capture(name)


def seconds_of(measured: Measured) -> float:
    """Return how long a step took: as stated, or in a captured run."""
    from shardspec.programs.captures import COMPUTES, capture_of, steps_of
    from shardspec.programs.measured import module_of

    if not measured.run:
        return measured.seconds
    try:
        capture = capture_of(measured.run)
        return steps_of(capture, module_of(capture), lambda op: COMPUTES).seconds
    except ValueError as error:
        refuse_run(measured.run, error)
