"""What `manifest:` of a spec names, when it is no bundled manifest: a path beside the spec.

A function (`package.module:function`) is refused here. To check a spec that came from somewhere
else must stay safe, so only the person at the command line may ask for code to be run.
"""

from __future__ import annotations

from shardspec.diagnostics import Diagnostic, Excerpt
from shardspec.diagnostics.codes import UNKNOWN_PRESET, UNREADABLE
from shardspec.diagnostics.diagnostic import point
from shardspec.frontend.boundary import Boundary, veiled
from shardspec.frontend.manifests.arrays import Arrays, Outcome, refused
from shardspec.frontend.manifests.kinds import KINDS, PICKLES
from shardspec.frontend.manifests.reader import entry_point_refused, read_arrays, spells_entry_point

_SUFFIXES = (*(suffix for kind in KINDS for suffix in kind.suffixes), *PICKLES, "/")
_PREFIXES = ("./", "../", "/")


def names_path(name: str) -> bool:
    """Say whether an entry of `manifest:` is a path or a function, not a bundled name.

    >>> names_path("./run"), names_path("model.safetensors"), names_path("gpt2")
    (True, True, False)
    """
    return name.endswith(_SUFFIXES) or name.startswith(_PREFIXES) or spells_entry_point(name)


def read_named(name: str, path: str, excerpt: Excerpt, boundary: Boundary) -> Outcome:
    """Return the arrays of an entry of `manifest:`; a file outside the project is not quoted.

    Args:
      name: the entry as it is written.
      path: where that is, seen from this folder.
      excerpt: the entry in the spec; what has no place of its own is shown there.
    """
    if spells_entry_point(name):
        return refused(_here(entry_point_refused(name), excerpt))
    arrays, faults = read_arrays(path, excerpt.span, boundary)
    if faults and not boundary.holds(path):
        arrays, faults = Arrays(), tuple(veiled(faults, f"shardspec manifest {path}"))
    return arrays, tuple(_here(fault, excerpt) for fault in faults)


def _here(fault: Diagnostic, excerpt: Excerpt) -> Diagnostic:
    """Return a fault with a place; a file that is not there is the entry's fault."""
    if fault.code is UNREADABLE:
        return point(UNKNOWN_PRESET, fault.message, excerpt.span, "named here", help=fault.help)
    if fault.labels:
        return fault
    rest = {"notes": fault.notes, "help": fault.help}
    return point(fault.code, fault.message, excerpt.span, "named here", **rest)
