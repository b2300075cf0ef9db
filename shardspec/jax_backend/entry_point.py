"""`package.module:function`: a name on the command line that runs a user's code.

The one way to do so, and it is taken only where the command line spells it out: a file cannot. What
stands for arrays is called without arguments under `jax.eval_shape`; what is no function is taken
as the tree itself. What stands for a step is called with the resolver, and gives the function to
trace and what to call that with. What the code prints goes to stderr: stdout is for the answer.

`StepArrays` are the parameters and caches of a step whose spec is still to be written.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import jax

from shardspec.diagnostics import Code, Diagnostic, Label, ShardspecError, Span, codes
from shardspec.diagnostics.words import near_or_known
from shardspec.ir.spec import Param, Params, StatePolicy, Target
from shardspec.jax_backend.constrain import unconstrained
from shardspec.jax_backend.equations import equations_of, is_transposed, summary
from shardspec.jax_backend.on_target import Here, on_target, start_on_cpu, tracing_for
from shardspec.jax_backend.resolver import Resolver
from shardspec.jax_backend.step.trace import CACHES, Call, program_of
from shardspec.jax_backend.target_devices import NO_VALUE
from shardspec.jax_backend.train_state import arrays_alone, contents_of
from shardspec.jax_backend.trees import argument_names, params_of
from shardspec.language.files import read_source
from shardspec.pipeline import for_step
from shardspec.programs.op_names import is_users

Made = TypeVar("Made")

_WRAP = "it is called without arguments: wrap what needs some, `def arrays(): return init(key)`"
_FORM = "as in `def step(resolver): return train_step, (state, batch)`"
#: How many lines of the user's code are shown of an exception: where it rose, and who called.
_MOST_FRAMES = 3
#: Of what an exception says, what is shown at most.
_LONGEST = 300
#: What JAX raises where Python asks for the value of a traced number, and the way out.
_OF_TRACERS = {
    *("TracerIntegerConversionError", "TracerBoolConversionError", "ConcretizationTypeError"),
    "TracerArrayConversionError",
}
#: What jaxlib calls where arrays are to be made on devices, which those of a target are not.
_ON_DEVICES = ("batched_device_put", "get_topology_for_devices", "(of the target)")
_SHAPES = (
    "no array can be made on the target's devices: give shapes, by `jax.eval_shape(init, key)`"
)
_VALUES = "a step is traced without its machine: read values where it runs, not where it is made"
_ASKED = "on the target the step may be another program: pass in the values that it queries"
_IDLE = (
    "trace it within `with nn.logical_axis_rules(RULES):`, which `shardspec export flax --lossy`"
    " writes, or call `shardspec.constrain`, which takes the rules of the spec"
)
_ORDERS = (
    "make the mesh by `resolver.mesh`; or state its order, `devices:` of the target, which"
    " `shardspec import layout` writes"
)
#: What JAX raises where one function has meshes with their devices in several orders; it fails to
#: say which ones where an argument is on a mesh without devices.
_MISMATCH = "DeviceAssignmentMismatchError"
_TRACED = "arguments are traced, numbers too: what has to be known goes in by `functools.partial`"


def call_entry_point(
    name: str, policy: StatePolicy | None = None, target: Target | None = None
) -> tuple[Params, tuple[Diagnostic, ...]]:
    """Return the arrays of the tree that `package.module:function` gives, or why there are none.

    The current folder is searched for modules first, as `python -m` does.

    Args:
      policy: of the spec that they are for: under ZeRO they are parameters alone.
      target: has the devices that code gets where it asks for some; None for those of this machine.
    """
    start_on_cpu()
    there = contextlib.nullcontext() if target is None else on_target(target, has_imports=True)
    try:
        with there, unconstrained():
            params = run_entry(
                name,
                codes.BAD_MANIFEST,
                os.getcwd(),
                lambda: _arrays(find_entry(name, codes.UNKNOWN_PRESET), policy),
            )
    except ShardspecError as error:
        return (), error.diagnostics
    if not params:
        help = "return a tree of arrays or `ShapeDtypeStruct`s"
        return (), (Diagnostic(codes.BAD_MANIFEST, f"`{name}` gives no arrays", help=help),)
    return params, ()


def with_call(
    name: str,
    folder: str,
    resolver: Resolver,
    tell: Callable[[str], None],
    work: Callable[[Call], Made],
    given: Mapping[str, int] | None = None,
) -> Made:
    """Return what is worked out of the step that `package.module:function` makes of a resolver.

    It gives `function, args` or `function, args, kwargs`. What its code raises becomes a finding,
    also while `work` runs it.

    Args:
      folder: is searched for modules first.
      tell: is called with what is done next, as it takes seconds.
      given: what else the function is called with, by name.

    Raises:
      ShardspecError: there is no such function, its code fails, or what it gives is no step.
    """
    found = tracing_for()

    def worked() -> Made:
        tell(f"importing {name}")
        if found is not None:
            found.machine.answered = 0  # what code asks from here on
        make = find_entry(name, codes.BAD_STEP)
        if not callable(make):
            _refuse(f"`{name}` is a `{type(make).__name__}`, and no function")
        tell(f"calling {name}")
        with resolver:
            call = _call_of(name, _made(name, partial(make, **(given or {})), resolver))
        tell(f"tracing {name}")
        return work(call)

    try:
        return run_entry(name, codes.BAD_STEP, folder, worked)
    except ShardspecError as error:
        raise ShardspecError(map(for_step, error.diagnostics)) from error


def questions_of(found: Here) -> Iterator[Diagnostic]:
    """Yield what code of a step asked for, and only its target could have answered."""
    for each in found.machine.questions:
        span = _line(each.file, each.line) if each.file else None
        labels = () if span is None else (Label(span, "asked here", primary=True),)
        message = f"a step for target `{found.target.name}` {each}"
        yield Diagnostic(codes.ASKS_THIS_MACHINE, message, labels, help=_ASKED)
    if found.idle:
        spans = [span for each in found.idle[:_MOST_FRAMES] if (span := _line(*each)) is not None]
        idle = tuple(Label(span, "does nothing", primary=not at) for at, span in enumerate(spans))
        yield Diagnostic(codes.IDLE_CONSTRAINT, summary(found.idle), idle, help=_IDLE)


def _made(name: str, make: Callable[..., Any], resolver: Resolver) -> Any:
    """Return what a function makes of a resolver; one in C leaves no frame of its own."""
    try:
        return make(resolver)
    except TypeError as error:
        trace = error.__traceback__
        if trace is not None and trace.tb_next is None:
            _refuse(f"`{name}` cannot be called with a resolver: {error}")
        raise


def _call_of(name: str, made: Any) -> Call:
    """Return what to trace and what to call it with, out of what a step is made to give."""
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        _refuse(f"`{name}` gives a `{type(made).__name__}`, not a function and its arguments")
    function, args, kwargs = made if len(made) == 3 else (*made, {})
    if not callable(function):
        _refuse(f"the first that `{name}` gives is a `{type(function).__name__}`, no function")
    if type(args) not in (tuple, list):
        what = f"the arguments that `{name}` gives are a `{type(args).__name__}`, not a tuple"
        _refuse(what, "one argument is a tuple, too: `return loss, (params,)`")
    if not isinstance(kwargs, dict) or not all(isinstance(key, str) for key in kwargs):
        _refuse(f"the keywords that `{name}` gives are no dict by name")
    return Call(function, args, kwargs)


def _refuse(message: str, help: str = _FORM) -> NoReturn:
    raise ShardspecError([Diagnostic(codes.BAD_STEP, message, help=help)])


def run_entry(name: str, code: Code, folder: str, work: Callable[[], Made]) -> Made:
    """Return what work that runs a user's code gives; what it raises becomes a finding."""
    with _searched_first(folder), _printing_to_stderr():
        try:
            return work()
        except ShardspecError as error:
            raise ShardspecError([_at_code(each, error) for each in error.diagnostics]) from error
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # also SystemExit, and what users derive from the root
            raise ShardspecError([_raised(name, error, code)]) from error


@contextlib.contextmanager
def _printing_to_stderr() -> Iterator[None]:
    """Send to stderr what is printed, by Python, by a library below it or by a child."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextlib.contextmanager
def _searched_first(folder: str) -> Iterator[None]:
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def find_entry(name: str, code: Code) -> Any:
    """Return what the name stands for.

    Raises:
      ShardspecError: there is no such thing.
    """
    module_name, _, route = name.partition(":")
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name != missing and not module_name.startswith(f"{missing}."):
            raise
        message = f"`{name}`: there is no module `{missing}`"
        help = "it is looked for in this folder, then where Python looks"
        if os.path.isfile(module_name):
            module = os.path.normpath(module_name).removesuffix(".py").replace(os.sep, ".")
            help = f"name the module, not its file: `{module}:{route}`"
        raise ShardspecError([Diagnostic(code, message, help=help)]) from None
    here = module_name
    for attribute in route.split("."):
        if not hasattr(found, attribute):
            public = [each for each in dir(found) if not each.startswith("_")]
            message = f"`{here}` has no `{attribute}`"
            help = near_or_known(attribute, public, "its functions")
            raise ShardspecError([Diagnostic(code, message, help=help)])
        found, here = getattr(found, attribute), f"{here}.{attribute}"
    return found


def _arrays(made: Any, policy: StatePolicy | None) -> Params:
    """Return the arrays of a tree, or of what a function returns."""
    if not callable(made):
        return arrays_alone(made, policy)
    kept: list[Params] = []

    def traced() -> None:
        kept.append(arrays_alone(made(), policy))

    jax.eval_shape(traced)
    return kept[0]


def _raised(name: str, error: BaseException, code: Code) -> Diagnostic:
    """Return the finding for an exception: at the user's line where it rose, with its callers."""
    first = _first_line(error)
    labels = tuple(_labels(error))
    kind = type(error).__name__
    message = f"`{name}` raised {kind}{first}"
    help = _TRACED if kind in _OF_TRACERS else None
    if tracing_for() is not None and any(each in first for each in _ON_DEVICES):
        help = _SHAPES
    if NO_VALUE in first:
        help = _VALUES
    if _MISMATCH in (type(error).__name__, type(error.__context__).__name__):
        message = f"`{name}` has meshes with their devices in different orders"
        help = _ORDERS
    elif isinstance(error, TypeError) and "argument" in first and not labels:
        help = _WRAP if code is codes.BAD_MANIFEST else _FORM
    elif code is codes.BAD_STEP and not labels and _is_our_fault(error):
        message = f"the step of `{name}` cannot be read: {kind}{first}"
        help = "this is a fault of shardspec, not of the step: please report it"
    return Diagnostic(code, message, labels, help=help)


def _at_code(found: Diagnostic, error: BaseException) -> Diagnostic:
    """Return a finding with the lines of the user's code that it came through."""
    known = {label.span for label in found.labels}
    more = [label for label in _labels(error) if label.span not in known]
    if found.labels:
        more = [replace(label, primary=False) for label in more]
    return replace(found, labels=(*found.labels, *more))


def _first_line(error: BaseException) -> str:
    """Return `: what an exception says`, of its first line; nothing where it says nothing."""
    try:
        first = str(error).strip().partition("\n")[0].rstrip(".")
    except Exception:
        return ""
    shown = first if len(first) <= _LONGEST else f"{first[:_LONGEST]}..."
    return f": {shown}" if shown else ""


def _is_our_fault(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    is_of_jax = any("JAX has removed" in each for each in getattr(error, "__notes__", ()))
    last = os.path.abspath(frames[-1].filename) if frames and not is_of_jax else ""
    return last.startswith(os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep)


def _labels(error: BaseException) -> Iterator[Label]:
    """Yield the last lines of the user's code that an exception came through, innermost first."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    lines = [(each.filename, each.lineno or 1) for each in frames if is_users(each.filename)]
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        lines.insert(0, (error.filename, error.lineno))
    spans = (_line(*line) for line in dict.fromkeys(lines))
    known = [span for span in spans if span is not None][:_MOST_FRAMES]
    for number, span in enumerate(known):
        yield Label(span, "called here" if number else "raised here", primary=not number)


def _line(path: str, number: int) -> Span | None:
    """Return the line of a source file, without its indentation."""
    shown = os.path.relpath(path)
    source = read_source(Path(path), name=path if shown.startswith("..") else shown)
    if isinstance(source, Diagnostic):
        return None
    lines = source.text.split("\n")
    if not 0 < number <= len(lines):
        return None
    start = sum(len(line) + 1 for line in lines[: number - 1])
    text = lines[number - 1].rstrip()
    return Span(source, start + len(text) - len(text.lstrip()), start + len(text))


#: The least rank of an array that is a cache because the step returns it anew: positions have less.
_LEAST_RANK = 3
#: Parts of arguments that are caches; `kv` is a projection, too.
_PARTS = CACHES - {"kv"}
#: How Flax begins the names of the arrays of a cache.
_CACHED = "cached_"
#: What random keys are made of, whose first size is no number of rows.
_KEY = "u32"
#: What tokens are.
_INTEGERS = ("s8", "u8", "s16", "u16", "s32", "s64")


class StepArrays(NamedTuple):
    """What a step is called with.

    Attributes:
      is_serving: whether the step reads caches, and computes no gradients.
      caches: those of such a step that are parts of arguments: arrays by themselves have no path.
      rows: how many rows the other arguments of such a step have.
      tokens: batch and length of the first argument that has integers by both; None where none has.
    """

    params: Params
    is_serving: bool = False
    caches: Params = ()
    rows: frozenset[int] = frozenset()
    tokens: tuple[int, ...] | None = None


def arrays_of(call: Call, resolver: Resolver) -> StepArrays:
    """Return the parameters that a step gets: those that it trains, else the largest tree.

    A step may train several models, each with its state, and a part of one: what is frozen of that
    has arrays in the same modules. Optimizer state, caches, and what is an array by itself are
    none; a cache that is one is called as its argument. A step serves if it gets caches, has no
    optimizer state and computes no gradients. A cache is called so, or the step returns it with new
    values.

    Raises:
      ShardspecError: there are no parameters.
    """
    names = argument_names(call.function, len(call.args), list(call.kwargs))
    found = [contents_of(tree) for tree in (*call.args, *call.kwargs.values())]
    back = None if any(e.held or e.states for e in found) else _returned(call, resolver)
    trees: list[Params] = []
    states: list[Param] = []
    caches: list[Param] = []
    for name, tree, each in zip(names, (*call.args, *call.kwargs.values()), found, strict=True):
        every = () if each.states else params_of(each.held.params if each.held else tree)
        own = [param for param in every if _is_cache(name, param, back)]
        caches += (param if param.path else replace(param, path=name) for param in own)
        states += params_of(tree) if each.states else ()
        trees.append(tuple(param for param in every if param not in own))
    named = sorted((t for t in trees if any(p.path for p in t)), key=_bytes, reverse=True)
    held = [tree for tree, each in zip(trees, found, strict=True) if each.held]
    # a tree that has the arrays of another one holds moments of these
    by_hand = [t for t in named if _is_trained(t, [p for o in trees if o is not t for p in o])][:1]
    trained = [t for t in named if t in held or _is_trained(t, states)]
    trained = trained or by_hand or named[:1]
    inside = {module for tree in trained for module in _modules(tree)}
    params = _together([*trained, *(t for t in named if not inside.isdisjoint(_modules(t)))])
    if not params:
        message = "the step is given no tree of parameters"
        help = "name the arrays themselves: `--arrays MODULE:FUNCTION`"
        raise ShardspecError((Diagnostic(codes.BAD_STEP, message, help=help),))
    known = {param.path: param.shape for param in params}
    data = (p for tree in trees for p in tree if p.rank == 2 and p.dtype in _INTEGERS)
    tokens = next((p.shape for p in data if known.get(p.path) != p.shape), None)
    caches = [each for each in caches if each.rank and known.get(each.path) != each.shape]
    # moments say that code trains which cannot be traced yet
    if back is None or not caches or (by_hand and not back):
        return StepArrays(params, tokens=tokens)
    by_path = {each.path: each for each in reversed(caches) if each.path not in known}
    caches = [*reversed(by_path.values())]
    others = (p for tree in trees if tree is not named[0] for p in tree if p.dtype != _KEY)
    rows = frozenset(param.shape[0] for param in others if param.rank)
    return StepArrays(params, True, tuple(caches), rows, tokens)


def _modules(params: Params) -> set[str]:
    """Return the modules that arrays are in; none of what is at the top."""
    return {each.path.rpartition("/")[0] for each in params} - {""}


def _together(trees: Sequence[Params]) -> Params:
    """Return the arrays of several models; of those with one path, that of the largest model."""
    every: dict[str, Param] = {}
    for tree in trees:
        for param in tree:
            every.setdefault(param.path, param)
    return tuple(every.values())


def _is_trained(params: Params, states: Sequence[Param]) -> bool:
    """Say whether optimizer state has an array for a parameter."""
    first = max(params, key=lambda each: each.bytes)
    end = f"/{first.path}"
    return any(each.shape == first.shape and each.path.endswith(end) for each in states)


def _bytes(params: Params) -> int:
    return sum(param.bytes or 0 for param in params)


def _is_cache(argument: str, param: Param, back: frozenset[object] | None) -> bool:
    """Say whether an array is called a cache, or comes back from the step with new values."""
    if argument in CACHES or back is None:
        return argument in CACHES
    parts = param.path.split("/")
    if not _PARTS.isdisjoint(parts) or parts[-1].startswith(_CACHED):
        return True
    path = f"{argument}/{param.path}".rstrip("/")
    return param.rank >= _LEAST_RANK and not back.isdisjoint(
        ((param.path, param.shape), (path, param.shape))
    )


def _returned(call: Call, resolver: Resolver) -> frozenset[object] | None:
    """Return the arguments that a step returns with new values; None where it has gradients."""
    try:
        program = program_of(resolver, call)
    except Exception:  # the code wants a spec that is still to be written: names have to do
        return frozenset()
    jaxpr = program.jaxpr.jaxpr
    if any(map(is_transposed, equations_of(jaxpr))):
        return None
    return frozenset(
        (program.given[at].path, program.given[at].shape)
        for result, at in program.passed_on
        if jaxpr.outvars[result] is not jaxpr.invars[at]
    )
