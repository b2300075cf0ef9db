"""What `import shardspec` offers: load a spec, compile it, read the plan."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, ShardspecError, codes
from shardspec.diagnostics.codes import level_table
from shardspec.diagnostics.words import counted
from shardspec.ir import spec as ir_spec
from shardspec.ir.spec import Param, Params
from shardspec.report.plan import Plan
from shardspec.versions import renamed

if TYPE_CHECKING:
    from shardspec.report.search import Search
    from shardspec.search.ranking import By, Question


def load(path: str | os.PathLike[str], *, levels: Mapping[str, str] | None = None) -> Spec:
    """Return the spec in a YAML or DSL file.

    Findings are as loud as for `shardspec check`: as the project's pyproject.toml says, then the
    spec's `lints:`, then `levels`.

    Args:
      levels: `allow`, `warn` or `error` by the name of a finding, its code or the start of codes:
        `{"indivisible": "warn"}`.

    Raises:
      ShardspecError: the file cannot be read or is wrong; holds every fault at once.
      ValueError: `levels` names what is no finding or no level.
    """
    name = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(name, str):
        raise TypeError(f"a path is a string or a `Path`, not a `{type(name).__name__}`")
    if "\n" in name:
        raise _mixed_up("`load` takes the path of a spec, and this is its text", "loads(text)")
    return _opened(*pipeline.load_path(name, asked=level_table(levels)))


def loads(text: str, name: str = "<string>", *, levels: Mapping[str, str] | None = None) -> Spec:
    """Return the spec in `text`; a `name` that ends in `.shard` says that it is the DSL.

    Args:
      levels: as for `load`; the project is that of the current folder.

    Raises:
      ShardspecError: the text is wrong; holds every fault at once.
      ValueError: `levels` names what is no finding or no level.
    """
    given: tuple[tuple[str, Any], ...] = (("text", text), ("name", name))
    for what, value in given:
        if not isinstance(value, str):
            help = ": levels go by name, `levels=`" if isinstance(value, Mapping) else ""
            raise TypeError(f"`{what}` is a string, not a `{type(value).__name__}`{help}")
    if "\n" not in text and text.endswith((".yaml", ".yml", ".shard")):
        raise _mixed_up("`loads` takes the text of a spec, and this is a path", "load(path)")
    return _opened(*pipeline.load_text(text, name, asked=level_table(levels)))


def _mixed_up(message: str, call: str) -> ShardspecError:
    return ShardspecError([Diagnostic(codes.UNREADABLE, message, help=f"`shardspec.{call}`")])


def _opened(loaded: ir_spec.Spec | None, faults: tuple[Diagnostic, ...]) -> Spec:
    found = faults if loaded is None else pipeline.report(loaded, faults).shown
    if loaded is None or any(diagnostic.is_error for diagnostic in found):
        raise ShardspecError(found)
    return Spec(loaded, faults)


@dataclass(frozen=True, slots=True)
class Spec:
    """A loaded spec.

    Attributes:
      ir: the lowered form that every stage reads.
      faults: what loading found, before it is decided how loud it is.
    """

    ir: ir_spec.Spec = field(repr=False)
    faults: tuple[Diagnostic, ...] = field(default=(), repr=False)

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the names of the targets."""
        return tuple(target.name for target in self.ir.targets)

    @property
    def phases(self) -> tuple[str, ...]:
        """Return the names of the phases."""
        return tuple(phase.phase for phase in self.ir.phases)

    def compile(
        self, arrays: Any = None, target: str | None = None, phase: str | None = None
    ) -> Plan:
        """Return the plan for one target.

        Args:
          arrays: a pytree of arrays or `ShapeDtypeStruct`s, the path of a manifest or a
            checkpoint, a sequence of `Param`, or None for the arrays that the spec itself lists.
          target: a name; None for the first. `auto` is for `Resolver`, which sees devices.
          phase: a name; None for the spec itself.

        Raises:
          ShardspecError: the plan has error-level findings.
        """
        if target is not None and not isinstance(target, str):
            raise TypeError(f"a target is named by a string, not by a `{type(target).__name__}`")
        spec = pipeline.find_phase(self.ir, phase)
        if isinstance(spec, Diagnostic):
            raise ShardspecError([spec])
        found = pipeline.sound_target(pipeline.find_target(spec, target))
        plans = pipeline.compile_plans(spec, self._params(arrays), [found])
        faults = pipeline.about(self.faults, found.name)
        diagnostics = pipeline.checked(spec, faults, plans, is_whole=False).shown
        if any(diagnostic.is_error for diagnostic in diagnostics):
            raise ShardspecError(diagnostics)
        plan = plans[0]
        return Plan(plan.spec, plan.target, plan.arrays, plan.activations, diagnostics)

    def search(
        self,
        arrays: Any = None,
        target: str | None = None,
        *,
        over: str = "mesh,order",
        keep: Mapping[str, int | Sequence[int]] | None = None,
        hardware: Sequence[str] = (),
        prices: Mapping[str, float] | None = None,
        fits: bool = False,
        max_chips: int | None = None,
        per_device_batch: float | None = None,
        latency: float | None = None,
        by: By = "time",
        measured: float | Mapping[str, float] | None = None,
        top: int = 10,
    ) -> Search:
        """Return the meshes that the model could have, ranked by what a step takes on them.

        Args:
          arrays: as for `compile`.
          target: whose mesh and machine are today's; None for the first.
          over: what is chosen, as `--over` of `shardspec search`: `mesh,order,remat=full|dots`;
            `roles` for other mesh axes, with the rules that shard over them.
          keep: sizes of mesh axes that stay: `{"tensor": 8}`, `{"tensor": [4, 8]}`.
          hardware: machines to look at, in place of the target's: `["tpu v5p 4x4x8"]`.
          prices: dollars of an hour of a chip, by its name.
          fits: whether what is certain not to fit is left out.
          max_chips: no machine of more.
          per_device_batch: sequences of a microbatch that each device has at least.
          latency: seconds that a step may take; of one that serves, a token's latency.
          by: what rows are ranked by, as `--by` of `shardspec search`.
          measured: seconds that a step of the spec as it is took on its target, or on another by
            its name, `{"pod": 2.1}`: all times are scaled by it.
          top: rows that are checked, and shown by `print`.

        Raises:
          ShardspecError: there is no such target, or its mesh has faults.
          ValueError: there is nothing to search: no `step:`, no machine, no such word; or no time
            is predicted where a step was measured.
        """
        from shardspec.report.search import checked
        from shardspec.search.ranking import Choice, Question, Wanted, asked, search

        found = pipeline.sound_target(pipeline.find_target(self.ir, target))
        params = self._params(arrays)
        kept = {
            name: (size,) if isinstance(size, int) else tuple(size)
            for name, size in (keep or {}).items()
        }
        question = asked(
            self.ir,
            self.ir.params if params is None else params,
            found,
            Choice(over, kept, hardware, by=by),
            Wanted(fits, max_chips, per_device_batch, prices or {}, latency=latency),
        )
        if not isinstance(question, Question):
            raise ValueError(f"{question.message}; {question.help}")
        if measured is not None:
            on = measured if isinstance(measured, Mapping) else {found.name: measured}
            question = self._held_to(question, on)
        return checked(search(question), top)

    def _held_to(self, question: Question, measured: Mapping[str, float]) -> Question:
        if len(measured) != 1:
            raise ValueError("`measured` is one step: its seconds, or {target: seconds}")
        from shardspec.search.ranking import held_to

        ((name, seconds),) = measured.items()
        target = pipeline.sound_target(pipeline.find_target(self.ir, name))
        (plan,) = pipeline.compile_plans(self.ir, question.params, [target])
        return held_to(question, plan, seconds)

    def __repr__(self) -> str:
        """Return `Spec(t5.yaml: 12 rules, 96 arrays, targets v4-8, laptop)`."""
        spec = self.ir
        counts = (counted(len(spec.axis_rules), "rule"), counted(len(spec.params), "array"))
        targets = f"targets {', '.join(self.targets)}" if spec.targets else "no target"
        phases = f", phases {', '.join(self.phases)}" if self.phases else ""
        return f"Spec({spec.source.name}: {', '.join(counts)}, {targets}{phases})"

    def findings(self, arrays: Any = None) -> tuple[Diagnostic, ...]:
        """Return all that `shardspec check` says, over all targets, without raising.

        Args:
          arrays: as for `compile`.
        """
        try:
            params = self.ir.params if arrays is None else self._params(arrays)
        except ShardspecError as error:
            return pipeline.report(self.ir, error.diagnostics).shown
        return pipeline.check(self.ir, self.faults, params or (), is_whole=arrays is None).shown

    def check(self, arrays: Any = None) -> tuple[Diagnostic, ...]:
        """Return what `findings` does, by the word of the version before."""
        renamed("spec.check(arrays)", "spec.findings(arrays)")
        return self.findings(arrays)

    def _params(self, arrays: Any) -> Params | None:
        if arrays is None:
            return None
        if isinstance(arrays, str | os.PathLike):
            return _manifest(os.fspath(arrays))
        if (
            isinstance(arrays, list | tuple)
            and arrays
            and all(isinstance(a, Param) for a in arrays)
        ):
            return tuple(arrays)
        from shardspec.jax_backend.train_state import arrays_alone
        from shardspec.jax_backend.trees import refuse_no_arrays

        refuse_no_arrays(arrays, "arrays")
        return arrays_alone(arrays, self.ir.state)


def _manifest(path: str) -> Params:
    arrays, diagnostics = pipeline.read_arrays(path)
    if diagnostics:
        raise ShardspecError(diagnostics)
    return arrays.params
