"""The findings on shapes and memory, over specs and arrays of every kind."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from shardspec.diagnostics import SourceFile, Span
from shardspec.ir.spec import (
    Activation,
    AxisRule,
    CoverageGate,
    Hardware,
    LogicalAxis,
    Param,
    Pattern,
    Replicate,
    Target,
)
from shardspec.language.catalogue import catalogue_entry
from shardspec.lints.context import Context
from shardspec.lints.registry import checks, codes
from shardspec.resolve.resolver import resolve
from tests import strategies
from tests.analysis.test_memory import states

CODES = (
    *("SHD301", "SHD303", "SHD304", "SHD312"),
    *("SHD401", "SHD402", "SHD403", "SHD404", "SHD405", "SHD406", "SHD501"),
)
SOURCE = SourceFile("spec.yaml", "some text to point at")
SPAN = Span(SOURCE, 5, 9)

gates = st.none() | st.builds(
    CoverageGate, st.sampled_from((None, 0.0, 0.02)), st.sampled_from((None, 0, 64)), st.just(SPAN)
)
entries = st.lists(
    st.builds(
        Replicate,
        st.builds(Pattern, st.sampled_from(("*", "a0", "a{0,1}", "b")), span=st.just(SPAN)),
        st.just("small"),
    ),
    max_size=2,
).map(tuple)
activations = st.lists(
    st.builds(
        Activation,
        st.sampled_from(("x", "y")),
        st.lists(st.sampled_from(strategies.LOGICAL), max_size=3).map(tuple),
        st.just(SPAN),
    ),
    max_size=2,
).map(tuple)


@st.composite
def contexts(draw: st.DrawFn) -> Context:
    """A spec with everything that these findings read, large arrays among the odd ones."""
    given_spec = draw(strategies.specs())
    spec = replace(
        given_spec,
        source=SOURCE,
        logical_axes=tuple(
            LogicalAxis(
                axis.name, draw(st.none() | strategies.dim_sizes), axis.unit, min_shard=least
            )
            for axis in given_spec.logical_axes
            for least in (draw(st.sampled_from((1, 3, 64))),)
        ),
        axis_rules=tuple(
            AxisRule(rule.logical_axis, rule.mesh_axes, rule.priority, SPAN)
            for rule in given_spec.axis_rules
        ),
        targets=tuple(map(on_chips, given_spec.targets)),
        activations=draw(activations),
        state=draw(states),
        coverage=draw(gates),
        replicate=draw(entries),
    )
    drawn = draw(st.lists(strategies.params(), max_size=4))
    times = draw(st.sampled_from((1, 1 << 10, 1 << 40)))
    params = tuple(
        Param(f"a{at}", tuple(size * times for size in each.shape), each.dtype, each.logical_axes)
        for at, each in enumerate(drawn)
    )
    return Context(spec, tuple(resolve(spec, target, params) for target in spec.targets))


def on_chips(target: Target) -> Target:
    """Return the target on as many TPU chips as its mesh has devices."""
    chip = catalogue_entry("tpu_v5e").chip
    hardware = Hardware(chip, 1, (1, target.mesh.device_count), span=SPAN)
    return replace(target, hardware=hardware)


OURS = [module for code, module in zip(codes(), checks(), strict=True) if code.id in CODES]


def test_all_are_registered() -> None:
    assert len(OURS) == len(CODES)


@given(contexts())
def test_findings_are_whole_and_in_one_order(context: Context) -> None:
    targets = {plan.target.name for plan in context.plans}
    for module in OURS:
        found = list(module.check(context))
        assert found == list(module.check(context))
        for diagnostic in found:
            assert diagnostic.help
            assert "\n" not in diagnostic.message
            assert sum(label.primary for label in diagnostic.labels) <= 1
            assert all(label.span.source is SOURCE for label in diagnostic.labels)
            assert diagnostic.target is None or diagnostic.target in targets
