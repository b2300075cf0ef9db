"""The processes of one run use different specs, or one of them has no plan.

Every process makes its own plan from its own files. Where one of them reads another text (a stale
checkout on one host, a file saved between two starts), it lays arrays out for collectives that the
others never join, and the run hangs or computes nonsense. So all processes compare digests when
they make their `Resolver`, and each of them reports which process reads another text and which file
it is. The digest covers the text of all files that were read, the spec after changes in Python, the
target, its mesh, the order of the devices, and the version of shardspec.

Bad:
    # process 1 read this, and process 0 the spec below
    shardspec: 1
    mesh: {data: 2, model: 4}
    rules:
      - batch -> data
      - mlp -> model

Good:
    # every process read this
    shardspec: 1
    mesh: {data: 4, model: 2}
    rules:
      - batch -> data
      - mlp -> model
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, codes
from shardspec.diagnostics.words import by_key

#: The fact that stands alone where a process has no plan: why.
FAILED = "failed"

#: Facts that follow from others: told only where nothing else differs.
CONSEQUENCES = ("the spec with its changes", "the mesh", "the order of the devices")


class View(NamedTuple):
    """What one process plans by.

    Attributes:
      facts: names, such as that of a file, and what stands there, such as its digest.
    """

    process: int
    facts: tuple[tuple[str, str], ...]

    @property
    def digest(self) -> str:
        """Return a short digest of all facts."""
        return hashlib.sha256(repr(self.facts).encode()).hexdigest()[:12]

    @property
    def failure(self) -> str | None:
        """Return why this process has no plan, None where it has one."""
        return dict(self.facts).get(FAILED)


def finding(views: Sequence[View]) -> Diagnostic:
    """Return the diagnostic for processes whose facts are not all the same."""
    failed = [view for view in views if view.failure is not None]
    if failed:
        return _failure(failed)
    groups = by_key((view.digest, view.process) for view in views)
    by_digest = ", ".join(f"`{digest}` on {_processes(at)}" for digest, at in groups.items())
    return Diagnostic(
        codes.PROCESSES_DIFFER,
        f"the processes of this run plan by different specs: {by_digest}",
        notes=tuple(_differences(views)),
        help="start every process with the same files and the same version of shardspec",
    )


def _failure(failed: Sequence[View]) -> Diagnostic:
    reasons = by_key((view.failure or "", view.process) for view in failed)
    has = "has" if len(failed) == 1 else "have"
    return Diagnostic(
        codes.PROCESSES_DIFFER,
        f"{_processes([view.process for view in failed])} {has} no plan, so none can continue",
        notes=tuple(f"{_processes(at)}: {reason}" for reason, at in reasons.items()),
        help="give every process the spec that this one has",
    )


def _differences(views: Sequence[View]) -> Iterator[str]:
    """Yield what differs, causes alone where there are any."""
    known = [dict(view.facts) for view in views]
    names = dict.fromkeys(name for facts in known for name in facts)
    differing = [name for name in names if len({facts.get(name) for facts in known}) > 1]
    causes = [name for name in differing if name not in CONSEQUENCES]
    for name in causes or differing:
        having = [view for view in views if name in dict(view.facts)]
        groups = by_key((dict(view.facts)[name], view.process) for view in having)
        if len(having) < len(views) and len(groups) == 1:
            yield f"{name} is read on {_processes([view.process for view in having])} only"
            continue
        yield f"{name}: " + ", ".join(f"{what} on {_processes(at)}" for what, at in groups.items())


def _processes(numbers: Sequence[int]) -> str:
    """Return "process 1", or "processes 0, 2, 3", cut after a few."""
    if len(numbers) == 1:
        return f"process {numbers[0]}"
    shown = ", ".join(map(str, numbers[:8]))
    rest = len(numbers) - 8
    return f"processes {shown} and {rest} more" if rest > 0 else f"processes {shown}"
