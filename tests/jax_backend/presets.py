"""Every preset as one would use it: the mesh it wants, and what it is for.

The table is written by hand, from what each preset says it does.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from shardspec import assets, pipeline
from shardspec.ir.spec import Spec

#: A row is: preset; what a spec extends; mesh; partition of an activation `[batch length embed]`,
#: of a matrix `[layers embed mlp]`, and of experts `[layers expert embed mlp]`; of the bytes of all
#: parameters, the most that one device may hold; the collectives without which it cannot be.
_TABLE = """
data-parallel      | data-parallel         | data=8                    | data - -        | - - -                 | - - - -                 | 1.00 | all-reduce
zero3              | zero3                 | data=8                    | data - -        | - data -              | - - data -              | 0.15 | all-gather all-reduce
megatron           | megatron              | data=2 model=4            | data - -        | - - model             | - - - model             | 0.30 | all-reduce
optimus            | optimus               | data=2 model=4            | data - model    | - - model             | - - - model             | 0.30 | all-gather all-reduce
gshard             | gshard                | data=2 model=4            | data - model    | - data model          | - - data model          | 0.15 | all-gather all-reduce
t5x/1d             | t5x/1d                | data=2 model=4            | data - -        | - - model             | - - - model             | 0.30 | all-reduce
t5x/activations-2d | t5x/activations-2d    | data=2 model=4            | data - model    | - - model             | - - - model             | 0.30 | all-gather all-reduce
t5x/parameters-2d  | t5x/parameters-2d     | data=2 model=4            | data - -        | - data model          | - - data model          | 0.15 | all-gather all-reduce
t5x/2d             | t5x/2d                | data=2 model=4            | data - model    | - data model          | - - data model          | 0.15 | all-gather all-reduce
t5x/guide-example  | t5x/guide-example     | data=2 model=4            | data - model    | - model -             | - - model -             | 0.30 | all-reduce
fsdp               | fsdp                  | fsdp=8                    | fsdp - -        | - fsdp -              | - - fsdp -              | 0.15 | all-gather all-reduce
fsdp-tensor        | fsdp-tensor           | fsdp=4 tensor=2           | fsdp - -        | - fsdp tensor         | - - fsdp tensor         | 0.15 | all-gather all-reduce
sequence           | fsdp-tensor, sequence | fsdp=4 tensor=2           | fsdp tensor -   | - fsdp tensor         | - - fsdp tensor         | 0.15 | all-gather all-reduce
expert             | fsdp-tensor, expert   | fsdp=2 expert=2 tensor=2  | fsdp+expert - - | - fsdp+expert tensor  | - expert fsdp tensor    | 0.15 | all-gather all-reduce
context            | fsdp-tensor, context  | fsdp=2 context=2 tensor=2 | fsdp context -  | - fsdp+context tensor | - - fsdp+context tensor | 0.15 | all-gather all-reduce
pipeline           | fsdp-tensor, pipeline | stage=2 fsdp=2 tensor=2   | fsdp - -        | stage fsdp tensor     | stage - fsdp tensor     | 0.15 | collective-permute all-gather all-reduce
"""  # noqa: E501

#: What a model adds to a preset that says nothing about batches.
_RULES = {"t5x/guide-example": ("batch -> data",)}

Partition = tuple[str | tuple[str, ...] | None, ...]


@dataclass(frozen=True)
class Strategy:
    """A preset in use on eight devices."""

    preset: str
    extends: str
    mesh: dict[str, int]
    residual: Partition
    matrix: Partition
    experts: Partition
    share: float
    collectives: frozenset[str]

    @property
    def is_pipeline(self) -> bool:
        """Say whether each layer is a stage."""
        return "stage" in self.mesh


def _strategy(row: str) -> Strategy:
    preset, extends, mesh, residual, matrix, experts, share, collectives = map(
        str.strip, row.split("|")
    )
    sizes = {name: int(size) for name, size in (entry.split("=") for entry in mesh.split())}
    parts = (_partition(text) for text in (residual, matrix, experts))
    return Strategy(preset, extends, sizes, *parts, float(share), frozenset(collectives.split()))


def _partition(text: str) -> Partition:
    """Return the partition that a cell spells: `fsdp+expert - tensor`."""
    return tuple(
        None if entry == "-" else tuple(entry.split("+")) if "+" in entry else entry
        for entry in text.split()
    )


STRATEGIES = {found.preset: found for found in map(_strategy, _TABLE.strip().splitlines())}


def in_turn(linen: ModuleType, nnx: ModuleType, usual: Container[str] = STRATEGIES) -> Any:
    """Return the decorator that gives a test each preset, with one framework or the other in turn.

    The nightly run takes all presets with both.
    """
    cases = [
        pytest.param(
            model,
            preset,
            id=f"{preset}-{name}",
            marks=[pytest.mark.nightly] * (preset not in usual or (at + turn) % 2),
        )
        for at, preset in enumerate(STRATEGIES)
        for turn, (name, model) in enumerate((("linen", linen), ("nnx", nnx)))
    ]
    return pytest.mark.parametrize(("model", "preset"), cases)


def example_text(name: str) -> str:
    """Return an example spec."""
    path = assets.spec_path("examples", name)
    assert path is not None
    return path.read_text("utf-8")


def spec_of(strategy: Strategy, example: str) -> Spec:
    """Return a preset on its mesh for the model of an example, whose axes it takes over.

    Names that the preset has no rule for are whole.
    """
    head = f"shardspec: 1\nextends: [{strategy.extends}]\n"
    own = _RULES.get(strategy.preset, ())
    known = {rule.logical_axis for rule in loaded(head).axis_rules} | {
        rule.split()[0] for rule in own
    }
    sizes = {axis.name: axis.size for axis in loaded(example_text(example)).logical_axes}
    rules = (*own, *(f"{name} -> none" for name in sizes if name not in known))
    axes = ", ".join(f"{name}: {size}" for name, size in sizes.items())
    mesh = ", ".join(f"{name}: {size}" for name, size in strategy.mesh.items())
    return loaded(f"{head}axes: {{{axes}}}\nmesh: {{{mesh}}}\nrules: [{', '.join(rules)}]\n")


def loaded(text: str) -> Spec:
    """Return the spec of a text that has no faults."""
    spec, diagnostics = pipeline.load_text(text)
    assert diagnostics == ()
    assert spec is not None
    return spec
