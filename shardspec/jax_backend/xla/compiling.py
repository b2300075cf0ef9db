"""The real compiler's program for a machine that is not here, in seconds.

The step is lowered here, once; a child process gets the module and compiles it for the described
machine: libtpu knows every TPU slice, and XLA:GPU every GPU that is described to it. libtpu spends
nine tenths of its time on code, which nobody wants to run here, so the child is ended as soon as
the final program and the memory report lie whole in its folder. The user's code runs in this
process alone, and the module that is compiled is the one that the prediction was read from.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import Distribution, distributions
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Self

from shardspec.diagnostics import Diagnostic, ShardspecError, codes
from shardspec.diagnostics.diagnostic import printable
from shardspec.diagnostics.words import binary_bytes
from shardspec.ir.spec import Hardware, Target, shape_text
from shardspec.jax_backend.xla import cache
from shardspec.programs.hlo import with_chips
from shardspec.programs.memory import NO_ROOM, memory_of_assignment, memory_of_stats
from shardspec.topology.placement import Order, place

#: The way out of a compile that took too long.
MORE_TIME = "give it more time: `--timeout`"
#: Called with the stage that a compile is in.
Tell = Callable[[str], None]

#: What libtpu calls a chip, where it is not as the catalogue does.
_LIBTPU_NAMES = {"v7x": "tpu7x", "v4-nomegacore": "v4"}
#: libtpu shows two devices a chip of v4 unless it is told.
_MEGACORE = frozenset(("v4",))
#: What libtpu wants to know of the host, which has no TPU.
TPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5e-8",
    "TPU_WORKER_ID": "0",
}
#: Flags that the process gets without those of dumps, which would displace its own.
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
_POLL_S = 0.1
#: For how long nothing may be written to a dump that is taken as whole.
_QUIET_S = 0.3
#: How long a child that was told to end may take.
_GRACE_S = 5.0
#: Of this machine's memory, what the compiler's process may hold.
_MOST_SHARE = 0.75
#: Memory that a large compile holds.
_USUAL_BYTES = 6 * 2**30
#: Bytes that have to be free where the compiler writes; with less, what it writes is cut off.
_LEAST_FREE = 2**20
_PROGRAM = "*after_optimizations.txt"
#: The same, once there is code for it: operations say how long they take.
_WITH_ESTIMATES = "*after_codegen.txt"
_ASSIGNMENT = "*after_optimizations-buffer-assignment.txt"
_LIVES = "*after_optimizations-live-range.txt"
#: Written after the others, so that they are whole once it is.
_REPORT = "*after_optimizations-memory-usage-report.txt"


@dataclass(frozen=True, slots=True)
class Compiling:
    """How a step is compiled.

    Attributes:
      timeout_s: seconds that one compile may take.
      is_whole: let the compiler generate code, too.
      is_cached: take what was compiled of the same before, and keep what is compiled now.
      flags: of the compiler, beside those of the environment.
      most_bytes: of memory that its process may hold; None for three quarters of this machine's.
      libtpu: the folder of another libtpu than the one that is installed.
    """

    timeout_s: float = 600.0
    is_whole: bool = False
    is_cached: bool = True
    flags: str = ""
    most_bytes: int | None = None
    libtpu: str = ""


class Process:
    """A process with a folder of its own, which gets ready while the step is still traced.

    Leaving the `with` block ends it and removes its folder, whatever it was doing.
    """

    def __init__(self, job: dict[str, Any], how: Compiling) -> None:
        """Note what the process is asked, and what it may take."""
        self._job, self._how = job, how
        self._flags: dict[str, str] = {}
        self._library: dict[str, str] = {}
        self._module, self._since = b"", time.monotonic()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Start the process."""
        with _in_folder():
            self._start()
        return self

    def __exit__(self, *error: object) -> None:
        """End the process, and remove its folder."""
        self._stack.close()

    def _start(self) -> None:
        name = tempfile.TemporaryDirectory(prefix="shardspec-compile-", ignore_cleanup_errors=True)
        self._folder = Path(self._stack.enter_context(name))
        (self._folder / "dump").mkdir()
        (self._folder / "job.json").write_text(json.dumps(self._job), encoding="utf-8")
        self._child = self._stack.enter_context(child_in(self._folder, self._flags))

    def _hand_over(self) -> None:
        """Write the module, which the process takes as whole once it is there."""
        part = self._folder / "module.part"
        part.write_bytes(self._module)
        part.rename(self._folder / "module.mlirbc")

    def _end(self, tell: Tell = lambda stage: None) -> End:
        """Wait for the process, as long as it may take from the time it got the module."""
        until = self._since + self._how.timeout_s
        return _watched(self._child, self._folder, until, self._how, tell)


class Compile(Process):
    """A compile for a machine that is not here, in a process of its own.

    The process starts at once; `give` hands it the module, and `result` waits for the program.

        with Compile(target, how) as compile:
            compile.give(module)
            made = compile.result()

    Raises:
      ShardspecError: there is no compiler for the target here, or no room to work in.
    """

    def __init__(self, target: Target, how: Compiling, order: Order = "t5x") -> None:
        """Describe the machine.

        Args:
          order: that of the resolver, by which devices stand on the mesh.
        """
        hardware = _hardware(target)
        self._compiler = compiler_of(hardware)
        super().__init__(_job(target, hardware, order), how)
        packages = ("jax", "jaxlib", *_PACKAGES[hardware.chip.platform][0])
        found = [_distribution(each) for each in packages]
        if how.libtpu:
            other = _in(how.libtpu)
            found[-1], self._compiler = other, f"libtpu {other.version}"
            self._library = {_LIBRARY: str(other.locate_file(_LIBTPU))}
        self._flags = self._variable(how.flags)
        around = cache.surroundings((*TPU_ENVIRONMENT, *_GIVEN), found)
        self._around = {**self._job, "around": around, "flags": how.flags.split()}
        self._key = ""
        self._found: cache.Compiled | None = None

    def _variable(self, flags: str) -> dict[str, str]:
        """Return flags by the variable that the compiler takes them from."""
        own = {_FLAGS_IN[self._job["platform"]]: flags} if flags else {}
        return own | self._library

    def give(self, module: bytes) -> None:
        """Hand over the bytecode of StableHLO, lowered for the platform of the target.

        What was compiled of the same before is taken, and the process ended.
        """
        self._module, self._since = module, time.monotonic()
        key = cache.key_of(module, self._around, self._compiler, is_whole=self._how.is_whole)
        self._key = key if self._how.is_cached else ""
        self._found = cache.kept(key) if self._key else None
        if self._found is not None:
            self._stack.close()
            return
        with _in_folder():
            self._hand_over()

    def result(self, tell: Tell = lambda stage: None) -> cache.Compiled:
        """Return the program, once it is there.

        Args:
          tell: hears of each stage.

        Raises:
          ShardspecError: the compiler refuses the program or the machine, or was not done in time.
        """
        if self._found is None:
            with _in_folder():
                self._found = self._made(self._how.flags, tell)
            if self._key:
                cache.keep(self._key, self._found)
        return self._found

    def _made(self, flags: str, tell: Tell) -> cache.Compiled:
        """Return what the compiler makes of the module; where Triton is in the way, without it."""
        try:
            return self._watch(tell)
        except ShardspecError as error:
            if _NO_TILES not in error.diagnostics[0].message or _NO_TRITON in flags:
                raise
            why = error.diagnostics[0].message.partition(", metadata=")[0]
        tell(f"compiling again, {_NO_TRITON}")
        self._stack.close()
        self._flags = self._variable(f"{flags} {_NO_TRITON}".strip())
        self._start()
        self._since = time.monotonic()
        self._hand_over()
        made = self._watch(tell)
        note = f"compiled with {_NO_TRITON}: {why}"
        told = (*made.flags, (cache.FALLBACK, _NO_TRITON))
        return replace(made, warnings=(note, *made.warnings), flags=told)

    def _watch(self, tell: Tell) -> cache.Compiled:
        """Return what the process makes of the module."""
        folder, how, compiler = self._folder, self._how, self._compiler
        end = self._end(tell)
        crashed = end.status is not None and end.status < 0
        text = "" if end.why in ("late", "full", "large") else _final(folder, how.is_whole)
        if not text or (crashed and (how.is_whole or not _is_written(folder))):
            raise ShardspecError((no_answer(folder, end, compiler, self._job["hardware"], how),))
        seconds = time.monotonic() - self._since
        made = _answer(folder, text, compiler, seconds, how.is_whole)
        date, held = time.strftime("%Y-%m-%d"), end.held_bytes
        return replace(made, date=date, flags=cache.flags_here(), held_bytes=held)


def most_at_once(bytes_each: int = _USUAL_BYTES) -> int:
    """Return how many compiles, or others, this machine has processors and memory for."""
    return max(1, min(os.cpu_count() or 1, _machine_bytes() // bytes_each))


@contextlib.contextmanager
def _in_folder() -> Iterator[None]:
    """Say in a finding that the folder of a compile cannot be written."""
    try:
        yield
    except OSError as error:
        raise ShardspecError((no_room(error),)) from error


def compiled(
    module: bytes,
    target: Target,
    how: Compiling,
    *,
    order: Order = "t5x",
    tell: Tell = lambda stage: None,
) -> cache.Compiled:
    """Return what the compiler of a target's chips makes of a lowered module; see `Compile`."""
    with Compile(target, how, order) as compile:
        compile.give(module)
        return compile.result(tell)


#: What XLA:GPU says where its Triton kernels have no tiles for the sizes of a matmul, and the way
#: around it: cuBLAS, which sends the same and holds within a few percent the same.
_NO_TILES = "Couldn't find output tile sizes"
_NO_TRITON = "--xla_gpu_enable_triton_gemm=false"


def _hardware(target: Target) -> Hardware:
    hardware = target.hardware
    if hardware is None or hardware.chip.platform == "cpu":
        machine = "names no hardware" if hardware is None else f"is {hardware}"
        message = f"target `{target.name}` {machine}: there is no machine to describe to a compiler"
        help = (
            "name a target with TPUs or GPUs, or compile for the devices that are here:"
            " `--backend here`"
        )
        raise ShardspecError((Diagnostic(codes.NOT_COMPILED, message, help=help),))
    return hardware


def compiler_of(hardware: Hardware) -> str:
    """Return the name and version of the compiler for a chip."""
    platform = hardware.chip.platform
    if platform == "gpu" and not hardware.chip.compiler:
        message = f"XLA cannot compile for {hardware.chip.title} where there is none"
        help = "`--basis model` predicts a step; a target of `h100` has its program compiled"
        raise ShardspecError((Diagnostic(codes.NOT_COMPILED, message, help=help),))
    (package, *_), extra = _PACKAGES[platform]
    found = installed(package)
    if found is not None and (platform == "tpu" or found == installed("jax")):
        return f"{package} {found}"
    help = f"pip install 'shardspec[{extra}]'; no {platform.upper()} is needed"
    if platform == "gpu":
        help += (
            ". Where a plugin without a GPU is in the way of JAX, install it into a folder of its"
            f" own, `pip install --no-deps --target FOLDER {package} jax-cuda12-pjrt` in the"
            f" version of jax, and set {GPU_COMPILER}=FOLDER"
        )
    message = f"the compiler for {hardware.chip.title} is not installed: `{package}`"
    if found is not None:
        message = f"`{package}` is {found}, and jax is {installed('jax')}: they go together"
    raise ShardspecError((Diagnostic(codes.NOT_COMPILED, message, help=help),))


def installed(package: str) -> str | None:
    """Return the version of a package that is here, the folder of the GPU compiler included."""
    found = _distribution(package)
    return None if found is None else found.version


def compiler_lines() -> Iterator[str]:
    """Yield the compilers of machines that are not here, with their versions, or how to get them.

    What is installed is read off its metadata: no jax is loaded.
    """
    for platform, ((package, *_), extra) in _PACKAGES.items():
        found = installed(package)
        absent = f"not installed: pip install 'shardspec[{extra}]'"
        yield f"compiler for {platform.upper()}: {f'{package} {found}' if found else absent}"


def _distribution(package: str) -> Distribution | None:
    where = [*_folders(), *sys.path]
    return next(iter(distributions(name=package, path=where)), None)


def other_libtpu(target: Target) -> str:
    """Return the folder of another libtpu that is to compile for a target, too, or nothing."""
    return os.environ.get(OTHER_LIBTPU, "") if target.is_tpu else ""


def _in(folder: str) -> Distribution:
    """Return the libtpu that a folder holds.

    Raises:
      ShardspecError: it holds none.
    """
    found = next(iter(distributions(name="libtpu", path=[os.path.abspath(folder)])), None)
    if found is None:
        message = f"{OTHER_LIBTPU}: there is no libtpu in `{folder}`"
        help = f"pip install --no-deps --target {folder} libtpu==0.0.51"
        raise ShardspecError((Diagnostic(codes.NOT_COMPILED, message, help=help),))
    return found


#: Names a folder that holds another libtpu, whose programs are shown beside those of the first.
OTHER_LIBTPU = "SHARDSPEC_OTHER_LIBTPU"
#: What tells JAX which libtpu to load, and where a folder has it.
_LIBRARY, _LIBTPU = "TPU_LIBRARY_PATH", "libtpu/libtpu.so"
#: By platform, the packages of a compiler, the first of which has its version, and its extra.
_PACKAGES = {
    "tpu": (("libtpu",), "tpu-aot"),
    "gpu": (("jax-cuda12-plugin", "jax-cuda12-pjrt"), "gpu-aot"),
}
#: By what JAX calls a platform, the variable that its compiler takes flags from.
_FLAGS_IN = {"tpu": "LIBTPU_INIT_ARGS", "cuda": "XLA_FLAGS"}
#: What else the compiler's process gets from us.
_GIVEN = ("JAX_PLATFORMS", "PYTHONPATH")
#: Names a folder that only the child has on its path.
GPU_COMPILER = "SHARDSPEC_GPU_COMPILER"


def _folders() -> list[str]:
    """Return the folder of the GPU compiler, where one is named."""
    folder = os.environ.get(GPU_COMPILER)
    return [os.path.abspath(folder)] if folder else []


# the job


def _job(target: Target, hardware: Hardware, order: Order) -> dict[str, Any]:
    """Return what the child is told beside the module."""
    placement = place(target, order)
    if isinstance(placement, Diagnostic):
        raise ShardspecError((placement,))
    places = [list(each) for each in placement.coordinates()]
    return {**described(hardware), "hardware": hardware.machine, "order": places}


def described(hardware: Hardware) -> dict[str, Any]:
    """Return a machine in the compiler's words: its topology's name, and what goes with it."""
    chip = hardware.chip
    shape = shape_text(hardware.topology)
    if chip.platform == "gpu":
        name = f"1x{hardware.slice_count}x{hardware.topology[0]}"
        told = {"topology": name, "target_config": _target_config(dict(chip.compiler))}
        return {"platform": "cuda", "topology": name, "described": told}
    options: dict[str, Any] = {}
    if hardware.slice_count > 1:
        options["num_slices"] = hardware.slice_count
    if chip.name in _MEGACORE:
        options["chip_config_name"] = "megacore"
    if math.prod(hardware.topology) == 1:  # libtpu of jax 0.10.0 takes four chips for a host's
        options["chips_per_host_bounds"] = [1, 1, 1]
    name = f"{_LIBTPU_NAMES.get(chip.name, chip.name)}:{shape}"
    return {"platform": "tpu", "topology": name, "described": options}


def _target_config(properties: dict[str, str]) -> str:
    """Return a GPU as XLA's text format of a target."""
    major, _, minor = properties["cuda_compute_capability"].partition(".")
    told = {key: value for key, value in properties.items() if key in _TOLD_AS_THEY_ARE}
    device = " ".join(f"{key}: {value}" for key, value in {**_ANY_GPU, **told}.items())
    capability = f"cuda_compute_capability {{ major: {major} minor: {minor} }}"
    description = json.dumps(properties["device_description_str"])
    return (
        f'gpu_device_info {{ {device} {capability} }} platform_name: "CUDA"'
        f" {_DNN} device_description_str: {description}"
    )


_TOLD_AS_THEY_ARE = frozenset(
    (
        *("core_count", "fpus_per_core", "clock_rate_ghz", "l2_cache_size", "memory_bandwidth"),
        *("device_memory_size", "shared_memory_per_core", "shared_memory_per_block_optin"),
    )
)
#: What all GPUs of the catalogue have alike.
#: Source: CUDA programming guide, technical specifications by compute capability, 8.0 to 10.0.
_ANY_GPU = {
    "threads_per_block_limit": 1024,
    "threads_per_warp": 32,
    "shared_memory_per_block": 49152,
    "threads_per_core_limit": 2048,
    "block_dim_limit_x": 2147483647,
    "block_dim_limit_y": 65535,
    "block_dim_limit_z": 65535,
    "registers_per_core_limit": 65536,
    "registers_per_block_limit": 65536,
}
_DNN = "dnn_version_info { major: 9 minor: 1 patch: 0 }"


# the child

_CHILD = ("-P", "-m", "shardspec.jax_backend.xla.child")


@contextlib.contextmanager
def child_in(
    folder: Path, flags: Mapping[str, str] = MappingProxyType({})
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the compile in a process of its own, which has ended when this is left.

    Args:
      flags: go behind those of the environment, by variable.
    """
    command = [sys.executable, *_CHILD, str(folder), str(os.getpid())]
    with (folder / "log.txt").open("wb") as log:
        child = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(flags),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def started(module: str, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
    """Start a module of ours as a process that is asked on stdin and answers on stdout.

    Args:
      arguments: before the number of this process, which it ends with.
      variables: of its environment, beside `environment`.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments, str(os.getpid())],
        env={**environment(), **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def environment(flags: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Return the environment of a process that partitions or compiles."""
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join((root, *_folders(), *filter(None, (os.environ.get("PYTHONPATH"),))))
    own = {**dict.fromkeys(_FLAGS, ""), **dict(cache.flags_here())}
    more = {name: f"{own[name]} {flags.get(name, '')}".strip() for name in _FLAGS}
    given = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
    others = {name: value for name, value in flags.items() if name not in _FLAGS}
    return {**os.environ, **TPU_ENVIRONMENT, **given, **more, **others}


class End(NamedTuple):
    """Why nobody waits for a compile any longer.

    Attributes:
      why: its dumps are whole, it ended by itself, its time is over, the disk is full, it holds
        more memory than it may.
      status: of the process, where it ended by itself; of a signal the negative number.
      held_bytes: the most memory that the process was seen to hold; 0 where that is not known.
    """

    why: Literal["whole", "ended", "late", "full", "large"]
    status: int | None = None
    held_bytes: int = 0


def _watched(
    child: subprocess.Popen[bytes], folder: Path, until: float, how: Compiling, tell: Tell
) -> End:
    """Wait until the child has ended, its dumps are whole, or it cannot go on; say which."""
    told, held, most = 0, 0, how.most_bytes or _MOST_SHARE * _machine_bytes()
    while True:
        held = max(held, _held_bytes(child.pid))
        if held > most:
            return End("large", None, held)
        status = child.poll()
        stages = text_of(folder / "stage.txt").split("\n")[:-1]
        for stage in stages[told:]:
            tell(stage)
        told = len(stages)
        if _free_bytes(folder) < _LEAST_FREE:
            return End("full", status)
        if status is not None:
            return End("ended", status, held)
        if not how.is_whole and _dumps_are_whole(folder):
            return End("whole", None, held)
        if time.monotonic() > until:
            return End("late")
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_POLL_S)


def _held_bytes(process: int) -> int:
    """Return the memory that a process holds; 0 where the system does not say, or it has ended."""
    try:
        pages = Path("/proc", str(process), "statm").read_text("ascii").split()
        return int(pages[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _machine_bytes() -> int:
    """Return the memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _is_written(folder: Path) -> bool:
    """Say whether the compiler has written all that it dumps before it generates code."""
    return any((folder / "dump").glob(_REPORT)) or (folder / "final.txt").exists()


def _dumps_are_whole(folder: Path) -> bool:
    reports = list((folder / "dump").glob(_REPORT))
    programs = list((folder / "dump").glob(_PROGRAM))
    if not reports or not programs:
        return False
    quiet = time.time() - max(path.stat().st_mtime for path in (*programs, *reports)) > _QUIET_S
    return quiet and _is_program(text_of(_largest(programs)))


def _is_program(text: str) -> bool:
    """Say whether a program was written to its end."""
    return text.rstrip().endswith("}")


def _largest(paths: list[Path]) -> Path:
    """Return the dump of the step: beside it may be those of small programs of the compiler's."""
    return max(paths, key=lambda path: path.stat().st_size)


# the answer


def _text_of_largest(folder: Path, pattern: str) -> str:
    found = list((folder / "dump").glob(pattern))
    return text_of(_largest(found)) if found else ""


def _final(folder: Path, is_whole: bool) -> str:
    """Return the final program, with estimates where there is code; nothing where it is cut off.

    It says which chip is where in the mesh.
    """
    dumps = folder / "dump"
    programs = list(dumps.glob(_WITH_ESTIMATES)) if is_whole else []
    programs = programs or [*dumps.glob(_PROGRAM), *folder.glob("final.txt")]
    text = text_of(_largest(programs)) if programs else ""
    chips = json.loads(text_of(folder / "chips.json") or "[]")
    return with_chips(text, chips) if _is_program(text) else ""


def _answer(
    folder: Path, text: str, compiler: str, seconds: float, is_whole: bool
) -> cache.Compiled:
    assignment, lives = (_text_of_largest(folder, each) for each in (_ASSIGNMENT, _LIVES))
    memory = memory_of_assignment(assignment, lives)
    stats = json.loads(text_of(folder / "memory.json") or "null")
    if memory is None and stats is not None:
        memory = memory_of_stats(stats)
    error = _error(folder)
    refusal = error["text"] if error else ""
    if not is_whole and NO_ROOM not in refusal:
        refusal = ""  # it is of the generated code, which is not wanted here
    warnings = warnings_in(text_of(folder / "log.txt"))
    return cache.Compiled(text, memory, compiler, seconds, is_whole, refusal, warnings)


def warnings_in(log: str) -> tuple[str, ...]:
    """Return what XLA warns of in its log: arrays that it makes whole to lay them out anew."""
    found = (
        f"XLA could not move {each.group(3)} from {each.group(1)} to {each.group(2)} but by making"
        " it replicated on every device (full rematerialization)"
        for each in islice(_REMATERIALIZED.finditer(log), _MOST_WARNINGS)
    )
    return tuple(dict.fromkeys(found))


_MOST_WARNINGS = 5
_REMATERIALIZED = re.compile(
    r"Involuntary full rematerialization\. The compiler (?:was not able to|cannot) go from sharding"
    r" (\{.{1,200}?\}) to (\{.{1,200}?\}) (?:efficiently|without doing a full rematerialization)"
    r".{0,80}?HLO operation[:\s]+%?([\w.\-]{1,80})"
)


def no_answer(
    folder: Path,
    end: End,
    compiler: str,
    hardware: str,
    how: Compiling,
    what: str = "the step",
) -> Diagnostic:
    """Return why there is no program: the compiler's own words, its end, the disk, or the time."""
    if end.why == "full":
        return no_room(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)))
    if end.why == "late":
        message = f"no program for {hardware} after {how.timeout_s:g} s"
        return Diagnostic(codes.NOT_COMPILED, message, help=MORE_TIME)
    if end.why == "large":
        held, whole = binary_bytes(end.held_bytes), binary_bytes(_machine_bytes())
        message = f"{compiler} was ended: it held {held} of this machine's {whole}"
        return Diagnostic(codes.NOT_COMPILED, message, help=_WAYS_OUT[signal.SIGKILL])
    error = _error(folder)
    if error is not None:
        first = error["text"].strip().partition("\n")[0][:_LONGEST]
        message = f"the compiler refuses {what} for {hardware}: {first}"
        return Diagnostic(codes.NOT_COMPILED, message)
    words = _last_words(text_of(folder / "log.txt"))
    said = f": {words}" if words else ""
    status = end.status or 0
    if status >= 0:
        message = f"{compiler} ended with {status} and without a program{said}"
        return Diagnostic(codes.NOT_COMPILED, message)
    held, is_memory = "", -status == signal.SIGKILL or bool(_NO_MEMORY.search(words))
    if end.held_bytes and is_memory:
        whole = binary_bytes(_machine_bytes())
        held = f", holding {binary_bytes(end.held_bytes)} of this machine's {whole}"
    message = f"{compiler} crashed, by {_signal(-status)}{held}{said}"
    number = signal.SIGKILL if is_memory else -status
    return Diagnostic(codes.NOT_COMPILED, message, help=_WAYS_OUT.get(number, _A_FAULT_OF_ITS_OWN))


_A_FAULT_OF_ITS_OWN = (
    "this is a fault of the compiler: another version of it, or another mesh, may go through"
)
_WAYS_OUT: dict[int, str] = {
    signal.SIGKILL: "the system ended it, most likely for lack of memory: compile fewer devices of"
    " the same mesh shape (a smaller `hardware`), one `--phase`, one `--target` at a time, or on a"
    " machine with more memory",
    signal.SIGTERM: "something ended it: run it again",
}


def _signal(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_words(log: str) -> str:
    """Return why a process says that it ends: its last fatal line, or its last line at all."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    fatal = [line for line in lines if _FATAL.search(line)]
    return printable((fatal or lines or [""])[-1])[:_LONGEST]


#: What programs say where the system gives them no more memory.
_NO_MEMORY = re.compile(r"bad_alloc|MemoryError|[Oo]ut of memory|Cannot allocate memory")
#: How compilers begin the line that says why they end.
_FATAL = re.compile(r"^F\d{4} |Check failed|^\*\*\* |bad_alloc|Fatal Python error|\bFATAL\b")


def no_room(error: OSError) -> Diagnostic:
    """Return that the folder of the compile cannot be written."""
    folder = tempfile.gettempdir()
    reason = (error.strerror or str(error)).lower()
    return Diagnostic(
        codes.NOT_COMPILED,
        f"the compiler cannot work in {folder}: {reason}",
        help="make room there, or name another folder: `TMPDIR=FOLDER`",
    )


#: Characters of a compiler's message that are passed on.
_LONGEST = 400


def _error(folder: Path) -> dict[str, str] | None:
    text = text_of(folder / "error.json")
    found: dict[str, str] | None = json.loads(text) if text else None
    return found


def text_of(path: Path) -> str:
    """Return what a file holds; nothing where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


# The programs that a capture carries, as text.
#
# A capture may be a stranger's, and XLA ends a process that gives it a damaged program. So a
# process of its own reads them, with a time and a memory that are bounded.


#: Two minutes. The process ends by itself.
_BRIEFLY = Compiling(timeout_s=120.0, is_whole=True)


class _Printing(Process):
    """Prints serialized programs, one behind the other."""

    def texts(self, protos: bytes) -> list[str]:
        """Return the text of each program.

        Raises:
          ShardspecError: they cannot be read.
        """
        self._module, self._since = protos, time.monotonic()
        try:
            self._hand_over()
            end = self._end()
            text = text_of(self._folder / "final.txt")
        except OSError as error:
            raise ShardspecError((no_room(error),)) from error
        if not text:
            reader, what = f"jaxlib {installed('jaxlib')}", "a program of the capture"
            fault = no_answer(self._folder, end, reader, "its devices", self._how, what)
            raise ShardspecError((fault,))
        found: list[str] = json.loads(text)
        return found


def texts_of(programs: Mapping[str, bytes]) -> dict[str, str]:
    """Return programs as text, by their names.

    Raises:
      ShardspecError: they cannot be read.
    """
    if not programs:
        return {}
    sizes = [len(each) for each in programs.values()]
    with _Printing({"programs": sizes}, _BRIEFLY) as printing:
        texts = printing.texts(b"".join(programs.values()))
    return dict(zip(programs, texts, strict=True))
