"""A file as it was at a revision of its git repository: `git:REV:PATH`.

PATH starts from this folder (`./spec.yaml`, as git has it). What a spec extends is read from the
same revision, since relative names start from the folder of the spec that says them.
"""

from __future__ import annotations

import subprocess

from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.codes import UNREADABLE

PREFIX = "git:"

_OTHER_PATH = "if it had another name there, say it: `git:REV:./old.yaml`"


def read_revision(name: str, most_bytes: int) -> bytes | Diagnostic:
    """Return the bytes of `git:REV:PATH`, or why there are none.

    Args:
      most_bytes: larger files are refused unread.
    """
    revision, _, path = name.removeprefix(PREFIX).partition(":")
    if not revision or not path:
        return _refuse(f"`{name}` names no file", "as in `git:main:./spec.yaml`")
    size = _git("cat-file", "-s", f"{revision}:{path}")
    if isinstance(size, Diagnostic):
        return size
    if not size.strip().isdigit() or int(size) > most_bytes:
        return _refuse(f"`{name}` is no file, or a very large one", "is it a spec or manifest?")
    return _git("cat-file", "blob", f"{revision}:{path}")


def _git(*arguments: str) -> bytes | Diagnostic:
    if any(argument.startswith("-") for argument in arguments[-1:]):
        return _refuse(f"`{arguments[-1]}` is no revision")
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, check=False, timeout=60)
    except (OSError, ValueError, subprocess.TimeoutExpired) as fault:
        return _refuse(f"git cannot be run: {fault}", "`git:REV` needs git, in a repository")
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
        message = f"git has no `{arguments[-1]}`: {said[-1].removeprefix('fatal: ')}"
        is_other_path = "but not in" in message
        return _refuse(message, _OTHER_PATH if is_other_path else None)
    return done.stdout


def _refuse(message: str, way_out: str | None = None) -> Diagnostic:
    return Diagnostic(UNREADABLE, message, help=way_out)
