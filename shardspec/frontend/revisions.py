"""A file as it was at a revision of its git repository: `git:REV:PATH`.

PATH starts from this folder (`./spec.yaml`, as git has it). What a spec extends is read from the
same revision, since relative names start from the folder of the spec that says them.

Git obeys the configuration of the folder it runs in, and that folder may be a stranger's: a cloned
repository can hold a bare one, whose `config` names commands to run. So a revision is asked for
on the command line and never by a file, and git runs with everything off that could start another
program: no transports (older gits ignore `GIT_NO_LAZY_FETCH`), no hooks, no file system monitor, no
repository but one with a `.git`, no `GIT_*` of the environment.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import subprocess

from shardspec.diagnostics import Diagnostic, Excerpt
from shardspec.diagnostics.codes import GIT_IN_A_FILE, UNREADABLE
from shardspec.diagnostics.diagnostic import point

PREFIX = "git:"

_OTHER_PATH = "if it had another name there, say it: `git:REV:./old.yaml`"
_PATIENCE_S = 60

#: What beats the configuration of a repository.
_SETTINGS = (
    "safe.bareRepository=explicit",
    "core.fsmonitor=false",
    f"core.hooksPath={os.devnull}",
    "core.pager=cat",
    "core.sshCommand=false",
    "core.askPass=false",
    "core.alternateRefsCommand=true",
    "credential.helper=",
    "diff.external=",
    "protocol.allow=never",
)

#: In place of every `GIT_*`; messages in English, since one of them is recognised.
_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}


def is_revision(name: str) -> bool:
    """Say whether a name of the command line is `git:REV:PATH`."""
    return name.startswith(PREFIX)


def beside(name: str, relative: str) -> str:
    """Return the name of `relative`, seen from the folder of a file, at the same revision.

    >>> beside("git:a/b:./spec.yaml", "base.yaml"), beside("git:v1:x/y.yaml", "../z.yaml")
    ('git:a/b:./base.yaml', 'git:v1:z.yaml')
    """
    revision, path = _parts(name)
    found = posixpath.normpath(posixpath.join(posixpath.dirname(path), relative))
    if path.startswith(("./", "../")) and not found.startswith("../"):
        found = f"./{found}"
    return f"{PREFIX}{revision}:{found}"


def git_in_a_file(entry: Excerpt) -> Diagnostic:
    """Return the finding for a revision that a file asks for."""
    message = f"`{entry.text}`: a file cannot ask for a revision, which runs git"
    help = "keep a copy beside the spec and name that: `./base.yaml`"
    return point(GIT_IN_A_FILE, message, entry.span, help=help)


def read_revision(name: str, most_bytes: int) -> bytes | Diagnostic:
    """Return the bytes of `git:REV:PATH`, or why there are none.

    Args:
      most_bytes: larger files are refused unread.
    """
    revision, path = _parts(name)
    if not revision or not path:
        return _refuse(f"`{name}` names no file", "as in `git:main:./spec.yaml`")
    if _is_in_bare_repository():
        help = "`git:REV` needs a repository with a `.git` folder"
        return _refuse("git is not run: this folder holds the insides of a repository", help)
    size = _git("cat-file", "-s", f"{revision}:{path}")
    if isinstance(size, Diagnostic):
        return size
    if not size.strip().isdigit() or int(size) > most_bytes:
        return _refuse(f"`{name}` is no file, or a very large one", "is it a spec or manifest?")
    return _git("cat-file", "blob", f"{revision}:{path}")


def _parts(name: str) -> tuple[str, str]:
    revision, _, path = name.removeprefix(PREFIX).partition(":")
    return revision, path


def _is_in_bare_repository() -> bool:
    """Say whether git, which looks for a repository upwards, would meet one without a `.git`."""
    folder = os.getcwd()
    while True:
        inside = [os.path.join(folder, name) for name in ("HEAD", "objects", "commondir", ".git")]
        head, objects, common, dot_git = map(os.path.lexists, inside)
        if head and (objects or common):
            return True
        above = os.path.dirname(folder)
        if above == folder or (dot_git and _is_repository(inside[-1])):
            return False
        folder = above


def _is_repository(dot_git: str) -> bool:
    return os.path.isfile(dot_git) or os.path.lexists(os.path.join(dot_git, "HEAD"))


def _git(*arguments: str) -> bytes | Diagnostic:
    if arguments[-1].startswith("-"):
        return _refuse(f"`{arguments[-1]}` is no revision")
    program = _program()
    if program is None:
        return _refuse("there is no git on this machine", "`git:REV` needs git, in a repository")
    settings = [part for setting in _SETTINGS for part in ("-c", setting)]
    try:
        done = subprocess.run(
            [program, "--no-pager", "--no-replace-objects", *settings, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_PATIENCE_S,
            env=_environment(),
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as fault:
        return _refuse(f"git cannot be run: {fault}", "`git:REV` needs git, in a repository")
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
        message = f"git has no `{arguments[-1]}`: {said[-1].removeprefix('fatal: ')}"
        is_other_path = "but not in" in message
        return _refuse(message, _OTHER_PATH if is_other_path else None)
    return done.stdout


def _program() -> str | None:
    """Return the git of `PATH`, its folders without a root left out: one may be a stranger's."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return shutil.which("git", path=os.pathsep.join(filter(os.path.isabs, folders)))


def _environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    return kept | _ENVIRONMENT


def _refuse(message: str, way_out: str | None = None) -> Diagnostic:
    return Diagnostic(UNREADABLE, message, help=way_out)
