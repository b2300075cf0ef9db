"""A step is traced as on its target: code that asks where it runs is answered for that.

JAX answers such questions from the backend of this machine. Within `on_target` they are answered
for the target, in the thread that traces and nowhere else: `jax.devices()`, `default_backend()`,
the counts of devices and processes, and the mesh in context, by whatever name they were imported.
JAX itself still gets this machine, since arrays that code makes are made here.

What cannot be answered so is reported with its line: what only a device that is there knows, what
a module asked when it was imported, before all this, and what a thread asks that the code started.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax._src import config

from shardspec.ir.spec import Spec, Target
from shardspec.jax_backend import target_devices
from shardspec.jax_backend.equations import AXES_CONTEXT, DEVICE_CONTEXT, Caller
from shardspec.jax_backend.target_devices import Question, TargetMachine, instead, machine_for
from shardspec.programs.op_names import is_library, is_users
from shardspec.python_syntax import parsed
from shardspec.topology.placement import Order

#: Functions of JAX that ask where they run for the code that calls them, and not for themselves.
_FOR_USERS = frozenset(
    (
        *("make_mesh", "create_device_mesh", "create_hybrid_device_mesh", "_gamma_grad"),
        *("get_device_kind", "get_num_device_cores"),  # of `pltpu.get_tpu_info`
        *("check_compute_capability", "is_cuda_compute_capability_equal"),
        "get_backend",  # of what JAX lowers, for a callback: the target has that of the devices
    )
)
#: Modules of JAX that ask for themselves.
_OF_JAX = ("jax._src.", "jax.interpreters.", "jaxlib.")
#: What is asked, by its name in `jax`.
_ASKS = frozenset(
    (
        *("devices", "local_devices", "default_backend", "device_count", "local_device_count"),
        *("process_count", "process_index", "process_indices", "make_mesh"),
    )
)
_ALIASES = {"cuda": "gpu", "rocm": "gpu"}
#: What JAX lists a backend as, where that is not its platform.
_LISTED = {"gpu": "cuda"}


class Here(NamedTuple):
    """What the code of a step is traced for.

    Attributes:
      idle: the lines of code whose constraints of Flax do nothing.
      spec: as it was asked for, with what the command line sets; None where nobody said.
      modules: those that were there before, and asked this machine.
      threads: those that were there before.
    """

    target: Target
    machine: TargetMachine
    idle: list[Caller]
    spec: Spec | None = None
    modules: frozenset[str] = frozenset()
    threads: frozenset[threading.Thread] = frozenset()

    def asked_for(self, own: Spec, name: str, phase: str | None) -> tuple[Spec, str]:
        """Return the spec and the target for a `Resolver` that code makes for itself.

        Of the same file it has what was asked for, `--set` and all; of another one, the target of
        the same name. A target that the code names stays.

        Args:
          own: what the code has loaded.
          name: of the target, or `auto`.
          phase: that the code names.
        """
        asked = self.spec
        is_same = asked is not None and _file(asked) == _file(own) is not None
        if asked is not None and is_same and phase in (None, asked.phase):
            own = asked
        is_known = any(each.name == self.target.name for each in own.targets)
        return own, self.target.name if name == "auto" and is_known else name

    def imported(self) -> Iterator[tuple[str, Any]]:
        """Yield the user's modules that were imported for this target, none that is installed."""
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None) or ""
            if name not in self.modules and is_users(file):
                yield name, module


def _file(spec: Spec) -> str | None:
    """Return the file of a spec; None where it is text."""
    name = spec.source.name
    return os.path.realpath(name) if os.path.isfile(name) else None


class _Local(threading.local):
    here: Here | None = None


@dataclass
class _Threads:
    """What threads trace for, and which modules asked for the last target."""

    lock: threading.Lock
    asked: tuple[tuple[str, Any], ...] = ()
    tracing: tuple[Here, ...] = ()

    def started_by(self) -> Iterator[Here]:
        """Yield what was traced for when this thread started."""
        thread = threading.current_thread()
        yield from (each for each in self.tracing if thread not in each.threads)


_local = _Local()
_threads = _Threads(threading.Lock())
#: A part of the key by which JAX keeps what it traced: code may go another way for another target.
_context: Any = getattr(jax, "make_user_context", lambda default: None)(None)


def tracing_for() -> Here | None:
    """Return what this thread traces for; None outside of `on_target`."""
    return _local.here


def start_on_cpu() -> None:
    """Start JAX on CPUs where nobody chose: no accelerator is needed, or taken from a run.

    Code that asks finds configuration and environment as the user left them.
    """
    if not getattr(jax.config, "jax_platforms", None):
        jax.config.update("jax_platforms", "cpu")
        jax.devices()
        jax.config.update("jax_platforms", None)


@contextlib.contextmanager
def on_target(
    target: Target, spec: Spec | None = None, *, has_imports: bool = False
) -> Iterator[Here]:
    """Answer for a target where code of this thread asks where it runs.

    Args:
      spec: what a `Resolver` of the same file has, that code makes for itself.
      has_imports: whether modules are imported for this target; where code asks for it, they are
        imported anew for the next.
    """
    outer = _local.here
    if outer is not None and outer.target == target:
        yield outer
        return
    if has_imports:
        for name, module in _threads.asked:
            if sys.modules.get(name) is module:
                del sys.modules[name]
        _threads.asked = ()
    threads = frozenset((threading.current_thread(), *threading.enumerate()))
    found = Here(target, machine_for(target), [], spec, frozenset(sys.modules), threads)
    with contextlib.ExitStack() as stack:
        if _context is not None:
            stack.enter_context(_context(("shardspec", target)))
        for setting in (AXES_CONTEXT, DEVICE_CONTEXT):
            if setting is not None:  # what `jax.set_mesh` sets, and code does not take back
                stack.callback(setting.set_local, setting.get_local())
        default = getattr(config, "default_device", None)
        if default is not None:  # what `jax.config.update` sets to a device of the target
            stack.callback(default.set_global, default.get_global())
        stack.enter_context(_asked_by_name(found))
        _local.here = found
        try:
            _prove(found)
            yield found
        finally:
            _local.here = outer
            if has_imports and found.machine.answered:
                _threads.asked = (*_threads.asked, *found.imported())


def _prove(found: Here) -> None:
    """Report where this JAX goes another way to its answers."""
    is_so = jax.default_backend() == found.machine.platform
    if not (is_so and jax.device_count() == jax.process_count() * jax.local_device_count()):
        found.machine.ask(f"jax.devices() of jax {jax.__version__}")
    found.machine.answered = 0


# what JAX asks


@contextlib.contextmanager
def _asked_by_name(found: Here) -> Iterator[None]:
    """Put our answers where JAX's backends are asked for, in every module that has them by name."""
    with _threads.lock:
        _threads.tracing += (found,)
        if len(_threads.tracing) == 1:
            _rebind({id(old): new for old, new in _ours()})
    try:
        yield
    finally:
        with _threads.lock:
            _threads.tracing = tuple(each for each in _threads.tracing if each is not found)
            if not _threads.tracing:
                _rebind({id(new): old for old, new in _ours()})


def _rebind(wanted: dict[int, Any]) -> None:
    """Put functions in the place of others, by the identity of those, in every module."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict):
            for name, value in list(names.items()):
                if id(value) in wanted:
                    names[name] = wanted[id(value)]


#: JAX's functions that all of its answers come from, with their arguments: the first asks the
#: backend, the others keep what it said.
_ARGUMENTS = {
    "get_backend": ("platform",),
    "local_devices": ("process_index", "backend", "host_id"),
    "process_count": ("backend",),
    "backends": (),
}
#: What passes a question on outside of the module that has those.
_PASSED_ON = frozenset(("get_default_device",))


@functools.cache
def _ours() -> tuple[tuple[Any, Any], ...]:
    """Return JAX's functions and ours for them; none where this JAX has them elsewhere."""
    try:
        from jax._src import xla_bridge
    except ImportError:
        return ()
    known = [(name, getattr(xla_bridge, name, None)) for name in _ARGUMENTS]
    asked = tuple((each, _instead(name, each)) for name, each in known if each is not None)
    return asked + instead(lambda: _local.here is not None)


def _instead(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that answers for the target where code of this thread asks."""

    def of_here(*args: Any, **kwargs: Any) -> Any:
        kept, _local.here = _local.here, None  # what it asks in turn is of this machine, too
        try:
            return original(*args, **kwargs)
        finally:
            _local.here = kept

    @functools.wraps(original)
    def asked(*args: Any, **kwargs: Any) -> Any:
        found = _local.here
        asker = _asker(sys._getframe(1))
        if asker is None:
            return of_here(*args, **kwargs)
        if found is None:
            for each in _threads.started_by():
                each.machine.ask(f"jax.{asker}() in another thread")
            return of_here(*args, **kwargs)
        found.machine.answered += 1
        return _answer(name, of_here, found.machine, args, kwargs)

    for each in ("cache_clear", "cache_info"):
        if hasattr(original, each):
            setattr(asked, each, getattr(original, each))
    return asked


def _asker(frame: Any) -> str | None:
    """Return the name by which code other than JAX's own asks; None where JAX asks for itself.

    What JAX has for code to ask passes the question on.
    """
    name = str(frame.f_code.co_name)
    while frame is not None and (_is_bridge(frame) or frame.f_code.co_name in _PASSED_ON):
        name, frame = frame.f_code.co_name, frame.f_back
    if frame is None:
        return name
    if frame.f_globals is globals() and frame.f_code.co_name == "of_here":
        return None
    is_jax = str(frame.f_globals.get("__name__")).startswith(_OF_JAX)
    return name if not is_jax or frame.f_code.co_name in _FOR_USERS else None


def _is_bridge(frame: Any) -> bool:
    return bool(frame.f_globals.get("__name__") == "jax._src.xla_bridge")


def _answer(
    name: str, of_here: Callable[..., Any], machine: TargetMachine, args: Any, kwargs: Any
) -> Any:
    """Return what the target would answer; CPUs are those of this host, as there are everywhere."""
    given = dict(zip(_ARGUMENTS[name], args, strict=False)) | kwargs
    platform = given.get("platform", given.get("backend"))
    is_named = isinstance(platform, str)
    if platform is not None and (not is_named or platform == "cpu" != machine.platform):
        return machine if platform is machine else of_here(*args, **kwargs)
    if is_named and _ALIASES.get(platform, platform) != machine.platform:
        known = list(dict.fromkeys((machine.platform, "cpu")))
        raise RuntimeError(f"Unknown backend {platform}. Available backends are {known}")
    if name == "get_backend":
        return machine
    if name == "process_count":
        return machine.process_count()
    if name == "backends":
        own = {_LISTED.get(machine.platform, machine.platform): machine}
        return own if machine.platform == "cpu" else own | {"cpu": of_here()["cpu"]}
    process = given.get("process_index", given.get("host_id")) or 0
    if not 0 <= process < machine.process_count():
        raise ValueError(f"Unknown process_index {process}")
    return [device for device in machine.devices() if device.process_index == process]


# the mesh in context


@contextlib.contextmanager
def mesh_in_context(mesh: Any, order: Order) -> Iterator[Any]:
    """Make a mesh that of the context, as a training loop does, where code has set none itself.

    Yields that abstract mesh, which knows the devices of the target; None where none is set.

    Args:
      mesh: of the target, abstract or of its devices.
      order: that of the spec, by which devices stand on it.
    """
    found = tracing_for()
    around: Any = jax.sharding.get_abstract_mesh()
    if found is None or not around.empty or _legacy_mesh() is not None:
        yield None
        return
    is_whole = target_devices.has_target_devices(mesh)
    whole = (
        mesh
        if is_whole
        else target_devices.device_mesh(found.target, found.machine.devices(), order=order)
    )
    with contextlib.ExitStack() as stack:
        if hasattr(whole, "__enter__"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                stack.enter_context(whole)
        stack.enter_context(jax.sharding.use_abstract_mesh(whole.abstract_mesh))
        yield whole.abstract_mesh


def _legacy_mesh() -> Any:
    """Return the mesh of `with mesh:` around us, None where there is none."""
    try:
        from jax._src.mesh import thread_resources
    except (ImportError, AttributeError):
        return None
    mesh = thread_resources.env.physical_mesh
    return None if mesh.empty else mesh


# what was asked before


def asked_at_import(function: Callable[..., Any], found: Here) -> Iterator[Question]:
    """Yield what the modules that a function is made of asked this machine as they were imported.

    Those are its own and, from there, what their globals come from.
    """

    def is_wanted(name: str, file: str) -> bool:
        return name in found.modules and file.endswith(".py") and not is_library(file)

    first = getattr(inspect.unwrap(function), "__module__", "")
    for file in files_behind(first, is_wanted):
        yield from _asked_in(file)


def files_behind(first: str, is_wanted: Callable[[str, str], bool]) -> Iterator[str]:
    """Yield the files of a module, and of those that its names come from.

    Args:
      is_wanted: whether a module of this name, in this file, is read.
    """
    waiting, seen = [first], set[str]()
    while waiting and len(seen) < _MOST_MODULES:
        name = waiting.pop()
        module = sys.modules.get(name) if name not in seen else None
        seen.add(name)
        file = getattr(module, "__file__", None) or ""
        if not is_wanted(name, file):
            continue
        yield file
        for value in list(vars(module).values()):
            with contextlib.suppress(Exception):  # any object may stand in a module
                owner = value.__name__ if inspect.ismodule(value) else value.__module__
                waiting += [owner] if isinstance(owner, str) else []


_MOST_MODULES = 1000
_MOST_CHARACTERS = 1_000_000


@functools.lru_cache(maxsize=1024)
def _asked_in(file: str) -> tuple[Question, ...]:
    """Return the calls of a module, outside of functions, that ask where it runs."""
    try:
        with open(file, encoding="utf-8") as source:
            text = source.read(_MOST_CHARACTERS)
        tree = parsed(text) if any(name in text for name in _ASKS) else ast.Module([], [])
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return ()
    waiting: list[ast.AST] = [tree]
    named: dict[str | None, str] = {"jax": "jax"}
    found = []
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            named |= {each.asname: "jax" for each in node.names if each.name == "jax"}
        elif isinstance(node, ast.ImportFrom) and node.module == "jax":
            named |= {each.asname or each.name: f"jax.{each.name}" for each in node.names}
        elif isinstance(node, ast.Call):
            what = _dotted(node.func, named)
            is_mesh = what == "jax.make_mesh"
            is_told = any(each.arg == "devices" for each in node.keywords) if is_mesh else node.args
            if what[4:] in _ASKS and not is_told:
                found.append(Question(file, node.lineno, f"{what}() when it is imported"))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += (node.args, *node.decorator_list)  # what its call does comes later
        elif not isinstance(node, ast.Lambda):
            waiting.extend(reversed(list(ast.iter_child_nodes(node))))
    return tuple(found)


def _dotted(node: ast.AST, named: dict[str | None, str]) -> str:
    """Return `jax.devices` for an expression that names it, nothing for others."""
    if isinstance(node, ast.Name):
        return named.get(node.id, "")
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        owner = named.get(node.value.id, "")
        return f"{owner}.{node.attr}" if owner == "jax" else ""
    return ""
