"""`shardspec lock`: what every device holds on every target, kept in git."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from shardspec.analysis.layout_diff import (
    Input,
    Layout,
    ProofLayout,
    ProvedBytes,
    inputs,
    layout_of,
    made_from,
)
from shardspec.cli import options, streams
from shardspec.cli.request import NO_ARRAYS, Request, for_each, has_errors, plans_and_findings
from shardspec.cli.steps import PROOF, STEP, Pending, each_proof, print_proof, step_and_folder
from shardspec.cli.streams import FINDINGS, FINE, echo, fail, show, write_file
from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.words import counted, listed
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Params, Spec
from shardspec.lock import lock_file

if TYPE_CHECKING:
    from shardspec.programs.proof import Proof


@options.verb(
    "lock",
    *options.SPECS,
    options.ARRAYS,
    *options.FINDINGS,
    options.flag("--check", "Write nothing; exit 1, with what moved, if stale."),
    options.flag(
        "--verify",
        "Have the real compiler compile `--step`, as `shardspec verify` does, and keep its figures"
        " in the lock.",
    ),
    options.TARGETS,
    STEP,
    *PROOF,
    *options.OUTPUT,
    example="shardspec lock spec.yaml",
    page="ci.md",
)
def command(
    request: Request,
    *,
    check: bool,
    verify: bool,
) -> None:
    """Write what every device holds on every target, one line for each group of arrays.

    The lock of `model/spec.yaml` is `model/spec.lock`. It is made for git: a review shows what a
    change of the spec, of a preset or of shardspec itself moves. With --verify the lock also stores
    what the real compiler found for a step, on all targets with TPUs or GPUs, or on those of
    --target; --check then reports when the code, the spec, jax or the compiler has changed since. A
    lock that is written again keeps its proofs.
    """
    if check and verify:
        fail("--check writes nothing, and --verify does", "run one after the other")
    if not verify and (request.step_name is not None or request.target_names):
        flag = "--step" if request.step_name is not None else "--target"
        fail(f"{flag} says what is compiled, and without --verify nothing is", "add `--verify`")
    files = request.spec_files()
    _require_own_locks(files)
    for_each(files, lambda file: _lock(file, request, check=check, verify=verify))


def _require_own_locks(files: Sequence[str]) -> None:
    """Fail where two specs have one lock, as `spec.yaml` and `spec.shard` beside each other."""
    taken: dict[str, str] = {}
    for file in files:
        other = taken.setdefault(lock_file.lock_path(file), file)
        if other != file:
            help = "lock one of them, or give it another name"
            fail(f"{other} and {file} have one lock, {lock_file.lock_path(file)}", help)


def _lock(file: str, request: Request, *, check: bool, verify: bool) -> int:
    """Write or check the lock of one spec; return the exit code."""
    path = request.output or (lock_file.lock_path(file) if file != "-" else "-")
    spec, diagnostics = request.load(file)
    params = request.params(spec)
    has_targets = any(each.targets for each in spec.in_phases)
    is_bare = not ((params and has_targets) or has_errors(diagnostics))
    if is_bare and file not in (request.named or [file]):
        why = f"it lists no arrays: {NO_ARRAYS}" if has_targets else "it has no target"
        request.undone(f"{file} is skipped: {why}")
        return FINE
    plans = _plans(spec, diagnostics, params, request)
    if not plans:
        request.undone(f"{path} is not {'compared' if check else 'written'}: the plan has errors")
        return FINDINGS
    if check:
        return _check(path, plans, request)
    if verify and request.step_name is None and plans[0].spec.step is None:
        help = "name one: `--verify --step train:step`, or state one: `step:` in the spec"
        fail("there is no step to compile", help)
    held = path if path != "-" or file == "-" else lock_file.lock_path(file)
    before = _held_lock(held, request)
    layout = _layout(plans, before)
    names = {each.name for each in layout.targets}
    kept = {} if before is None else lock_file.proofs_of(before)
    proofs = {name: proof for name, proof in kept.items() if name in names}
    if verify:
        made = _prove(layout, os.path.dirname(held), plans, request)
        if made is None:
            request.undone(f"{path} is not written: the step is not proved")
            return FINDINGS
        proofs |= made
    layout = lock_file.with_proofs(layout, proofs)
    for said, help in _old_proofs(layout, held):
        request.remark(f"{said}; {help}")
    _write(path, layout, is_forced=request.is_forced)
    return FINE


# proofs


def _held_lock(path: str, request: Request) -> Layout | None:
    """Return the lock at a path; None where there is none, or it cannot be read."""
    from shardspec.language.files import read_argument

    source = read_argument(path) if path != "-" and os.path.isfile(path) else None
    if source is None or isinstance(source, Diagnostic):
        return None
    locked = lock_file.read_lock(source)
    if isinstance(locked, Diagnostic):
        if "\nproof " in source.text:
            request.remark(f"{path} cannot be read; the proofs in it are left out")
        return None
    return locked


def _old_proofs(layout: Layout, path: str) -> Iterator[tuple[str, str]]:
    """Yield which proofs would be others today and why, and how to make them anew."""
    from shardspec.jax_backend.xla.cache import flags_here
    from shardspec.jax_backend.xla.compiling import installed

    found: dict[tuple[str, str], list[str]] = {}
    folder, flags = os.path.dirname(path), dict(flags_here())
    for name, proof in lock_file.proofs_of(layout).items():
        changed = "; ".join(lock_file.changes(proof, layout, folder, installed, flags))
        if changed:
            found.setdefault((proof.step, changed), []).append(name)
    for (step, changed), names in found.items():
        whose = "the proof of {} is" if len(names) == 1 else "the proofs of {} are"
        targets = " ".join(f"--target {shlex.quote(name)}" for name in names)
        named = "" if step == lock_file.STATED_STEP else f" --step {step}"
        anew = f"`shardspec lock --verify{named} {targets}` proves it anew"
        yield f"{whose.format(listed(names))} old: {changed}", anew


def _prove(
    layout: Layout, lock_folder: str, plans: Sequence[ShardingPlan], request: Request
) -> dict[str, ProofLayout] | None:
    """Return the proofs of the targets that are meant; None where one is not proved."""
    made, broken = {}, False
    proved = _proved_plans(plans, request)
    begun = (partial(Pending, plan, request) for plan in proved)
    with contextlib.closing(each_proof(begun)) as proofs:
        for plan, proof in zip(proved, proofs, strict=True):
            if isinstance(proof, SystemExit):
                raise proof
            if request.output != "-":
                print_proof(proof)
            broken = broken or bool(proof.faults)
            made[plan.name] = _kept(proof, layout, lock_folder, request)
    return None if broken else made


def _proved_plans(plans: Sequence[ShardingPlan], request: Request) -> list[ShardingPlan]:
    """Return the plans on the targets that are meant, in the order of the spec."""
    names, known = request.target_names, {plan.name: plan for plan in plans}
    unknown = [name for name in names if name not in known]
    if unknown:
        fail(f"there is no target `{unknown[0]}`", f"there are {listed(known)}")
    chosen = [plan for plan in plans if plan.name in names or not names]
    found = [plan for plan in chosen if names or lock_file.is_provable(plan.target)]
    for plan in chosen:
        if plan not in found:
            request.remark(f"{plan.name}: not compiled for, it names no TPUs or GPUs")
    if not found:
        fail("no target has TPUs or GPUs to compile for", "`hardware: tpu v5e 4x4` gives it some")
    return found


def _kept(proof: Proof, layout: Layout, lock_folder: str, request: Request) -> ProofLayout:
    """Return what a lock keeps of a proof."""
    from shardspec.jax_backend.xla.compiling import installed

    name, code = lock_file.STATED_STEP, tuple[Input, ...]()
    if request.step_name is not None:
        name, folder = step_and_folder(request)
        code = lock_file.code_inputs(folder, lock_folder)
    package, _, version = proof.compiler.partition(" ")
    held, memory = proof.cost.memory, proof.memory
    return ProofLayout(
        name,
        made_from(layout),
        (("jax", installed("jax") or "unknown"), (package, version)),
        code,
        tuple(ProvedBytes(row.mesh_axes, row.predicted, row.compiled) for row in proof.rows),
        ProvedBytes((), held.total.bytes, None if memory is None else memory.bytes),
        held.hbm_bytes,
        proof.flags,
    )


# the file


def _plans(
    spec: Spec, diagnostics: Sequence[Diagnostic], params: Params, request: Request
) -> tuple[ShardingPlan, ...]:
    """Return the plans of a spec on all its targets; none, after a report, if it has errors."""
    request.choose_target(spec.in_phases[0], diagnostics)
    plans, found = plans_and_findings(spec, diagnostics, params)
    request.report(found)
    if has_errors(found):
        return ()
    if not params:
        fail(f"{spec.source.name} lists no arrays to lock", NO_ARRAYS)
    return plans


def _write(path: str, layout: Layout, *, is_forced: bool) -> None:
    text = lock_file.lock_text(layout)
    write_file(path, text, "lock", is_forced=is_forced)
    if path != "-" and not streams.is_dry_run():
        arrays = counted(len(layout.targets[0].arrays), "array")
        proofs = sum(each.proof is not None for each in layout.targets)
        proved = f", {counted(proofs, 'proof')}" if proofs else ""
        targets = counted(len(layout.targets), "target")
        echo(f"{path}: {arrays} on {targets}{proved}, {len(text):,} bytes")


def _check(path: str, plans: Sequence[ShardingPlan], request: Request) -> int:
    """Say what moved since the lock was written; return the exit code."""
    if path == "-" or not os.path.exists(path):
        request.error(f"there is no {path}", f"`{_command(plans[0], request)}` writes it")
        return FINDINGS
    (source,) = request.sources([path])
    locked = lock_file.read_lock(source)
    if isinstance(locked, Diagnostic):
        request.report([locked])
        return FINDINGS
    layout = _layout(plans, locked)
    layout = lock_file.with_proofs(layout, lock_file.proofs_of(locked))
    old = list(_old_proofs(layout, path))
    for said, help in old:
        request.error(said, help)
    if source.text.replace("\r\n", "\n") == lock_file.lock_text(layout):
        proved = [each.name for each in layout.targets if each.proof is not None and not old]
        told = f", and so is the proof on {listed(proved)}" if proved else ""
        echo(f"The layout in {path} is up to date{told}.")
        return FINDINGS if old else FINE
    from shardspec.analysis.layout_diff import diff_layouts, reasons_of
    from shardspec.lock.diff_forms import diff_lines

    moved = list(diff_lines(diff_layouts(locked, layout, why_after=reasons_of(plans))))
    show(moved or _other_lines(source.text, lock_file.lock_text(layout)))
    help = f"if the change is intended, `{_command(plans[0], request)}` updates the lock"
    request.error(f"{path} is stale", help)
    return FINDINGS


def _layout(plans: Sequence[ShardingPlan], locked: Layout | None) -> Layout:
    """Return the layout of plans, as a lock names the files that are as they were."""
    spec = plans[0].spec
    held = () if locked is None else locked.inputs
    return replace(layout_of(spec, plans), inputs=inputs(spec, locked=held))


#: Lines of a lock that are shown where no array moved.
_MOST_LINES = 8


def _other_lines(old: str, new: str) -> Iterator[str]:
    """Yield what is another in a lock that splits the arrays as before."""
    before, after = old.splitlines(), new.splitlines()
    gone, come = (dict.fromkeys(lines) for lines in (before, after))
    found = [f"- {line}" for line in gone if line not in come]
    found += [f"+ {line}" for line in come if line not in gone]
    lines = [line for line in found if not line[2:].startswith("input ")]
    named = (line[2:].split(" = ")[0] for line in found if line[2:].startswith("input "))
    files = dict.fromkeys(each.removeprefix("input ") for each in named)
    yield f"no array moved, but {listed(files) or 'its text'} changed"
    yield from (f"  {line}" for line in lines[:_MOST_LINES])
    if len(lines) > _MOST_LINES:
        yield f"  and {len(lines) - _MOST_LINES} more lines of the lock"


def _command(plan: ShardingPlan, request: Request) -> str:
    """Return the command that writes the lock of a spec, with the options that are given now."""
    given = (("--arrays", request.arrays), ("-o", request.output))
    options = [word for flag, value in given if value for word in (flag, value)]
    return shlex.join(["shardspec", "lock", plan.spec.source.name, *options])
