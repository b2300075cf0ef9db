"""Proofs in a lock: what the real compiler made of a step, and whether it would be made again.

A proof belongs to the files and arrays of the spec, to the code of the step, and to the versions of
jax and of the compiler. All of these are there as digests and versions, so that a machine without a
compiler, and without jax, can say which of them is another today. No code runs for it.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from shardspec.analysis.layouts import Input, Layout, ProofLayout, made_from, text_digest
from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.words import listed
from shardspec.ir.spec import Target
from shardspec.language.files import read_source

#: Returns the version of a package that is installed here, None where it is not.
Installed = Callable[[str], str | None]
#: Of packages that are installed into a project's folder: no code of the project.
_INSTALLED = frozenset(("site-packages", "dist-packages"))


def code_inputs(folder: str, lock_folder: str) -> tuple[Input, ...]:
    """Return the Python files below a folder that this process has imported, with their digests.

    Args:
      folder: where the module of the step was looked for.
      lock_folder: names are relative to it.
    """
    found = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and _is_of(file, folder):
            name = os.path.relpath(file, lock_folder or os.curdir).replace(os.sep, "/")
            digest = _digest(file)
            if digest is not None:
                found[name] = Input(name, digest)
    return tuple(found[name] for name in sorted(found))


def _is_of(file: str, folder: str) -> bool:
    """Say whether a file is code of the project in a folder: below it, and not installed."""
    path, top = os.path.realpath(file), os.path.realpath(folder)
    here = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    others = (here, os.path.realpath(sysconfig.get_path("stdlib")))
    is_below = path.startswith(os.path.join(top, ""))
    is_other = any(path.startswith(os.path.join(each, "")) for each in others)
    return is_below and not is_other and not _INSTALLED & set(Path(path).parts)


def _digest(file: str) -> str | None:
    """Return the digest of a text, None where it cannot be read."""
    source = read_source(Path(file))
    return None if isinstance(source, Diagnostic) else text_digest(source.text)


def with_proofs(layout: Layout, proofs: dict[str, ProofLayout]) -> Layout:
    """Return a layout that holds these proofs, by target, and no others."""
    targets = (replace(each, proof=proofs.get(each.name)) for each in layout.targets)
    return replace(layout, targets=tuple(targets))


def proofs_of(layout: Layout) -> dict[str, ProofLayout]:
    """Return the proofs that a layout holds, by target."""
    return {each.name: each.proof for each in layout.targets if each.proof is not None}


def changes(
    proof: ProofLayout,
    layout: Layout,
    lock_folder: str,
    installed: Installed,
    flags: Mapping[str, str],
) -> Iterator[str]:
    """Yield what of all that a proof belongs to is another today; nothing where it is as it was.

    What is not installed here is no other version: that is for the machine that proves.

    Args:
      flags: that compilers would have here, by the variable that they are in.
    """
    if proof.made_from != made_from(layout):
        yield "the spec or its arrays changed"
    today = {each.name: _digest(os.path.join(lock_folder, each.name)) for each in proof.code}
    gone = [each.name for each in proof.code if today[each.name] is None]
    changed = [each.name for each in proof.code if today[each.name] not in (None, each.digest)]
    if changed:
        yield f"{listed(changed)} changed"
    if gone:
        yield f"{listed(gone)} cannot be read"
    for name, version in proof.made_by:
        now = installed(name)
        if now not in (None, version):
            yield f"{name} was {version} and is {now}"
    had = {name: value for name, value in proof.flags if name.isupper()}
    for name in sorted(had.keys() | flags.keys()):
        was, now = had.get(name, "not set"), flags.get(name, "not set")
        if was != now:
            yield f"{name} was {was} and is {now}"


def is_provable(target: Target) -> bool:
    """Say whether there may be a compiler for the machine of a target."""
    hardware = target.hardware
    return hardware is not None and hardware.chip.platform in ("tpu", "gpu")
