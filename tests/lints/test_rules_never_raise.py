"""The findings on meshes and rules, over specs and arrays of every kind."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from shardspec.ir.spec import Override, PathRule, Pattern, Spec
from shardspec.lints.context import Context
from shardspec.lints.registry import checks, codes
from shardspec.resolve.resolver import resolve
from tests import strategies
from tests.lints.test_never_raises import SOURCE, SPAN, contexts

CODES = (
    *("SHD110", "SHD111", "SHD112", "SHD113"),
    *("SHD217", "SHD218", "SHD219", "SHD220", "SHD221", "SHD222", "SHD223"),
)
OURS = [module for code, module in zip(codes(), checks(), strict=True) if code.id in CODES]

patterns = st.builds(
    Pattern,
    st.sampled_from(("*", "**", "a{0,1}", "a[01]", "a(0|1)$", "a*", "a_?", "{a0,b}", ".*", "a\\d")),
    st.sampled_from(("glob", "regex")),
    st.just(SPAN),
)
names = st.lists(st.sampled_from((*strategies.LOGICAL, None)), max_size=3).map(tuple)
partitions = st.lists(
    st.lists(st.sampled_from(strategies.MESH), unique=True, max_size=2).map(tuple), max_size=3
).map(tuple)
path_rules = st.lists(st.builds(PathRule, patterns, names, st.just(SPAN)), max_size=3).map(tuple)
overrides = st.lists(
    st.builds(Override, patterns, names, span=st.just(SPAN))
    | st.builds(Override, patterns, partition=partitions, span=st.just(SPAN)),
    max_size=2,
).map(tuple)


@st.composite
def named_contexts(draw: st.DrawFn) -> Context:
    """A spec with patterns and priorities, over arrays with names of their own and without."""
    context = draw(contexts())
    spec: Spec = replace(
        context.spec,
        path_rules=draw(path_rules),
        overrides=draw(overrides),
        placed_rules=tuple(draw(st.permutations(context.spec.axis_rules))),
    )
    params = tuple(
        replace(param, logical_axes=draw(st.sampled_from((param.logical_axes, None))))
        for param in context.params
    )
    return Context(spec, tuple(resolve(spec, target, params) for target in spec.targets))


def test_all_are_registered() -> None:
    assert len(OURS) == len(CODES)


@given(named_contexts())
def test_findings_are_whole_and_in_one_order(context: Context) -> None:
    for module in OURS:
        found = list(module.check(context))
        assert found == list(module.check(context))
        for diagnostic in found:
            assert diagnostic.help
            assert "\n" not in diagnostic.message
            assert not diagnostic.message.endswith(".")
            assert sum(label.primary for label in diagnostic.labels) == bool(diagnostic.labels)
            assert all(label.span.source is SOURCE for label in diagnostic.labels)
            for edit in diagnostic.fix.edits if diagnostic.fix else ():
                assert 0 <= edit.span.start <= edit.span.end <= len(SOURCE.text)


def test_nothing_at_all_is_no_trouble() -> None:
    for module in OURS:
        assert list(module.check(Context(Spec(SOURCE), ()))) == []
