"""Patterns are few, and match what they are for and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardspec.ir.spec import Pattern
from shardspec.language.glob import expand
from shardspec.naming.patterns import exact, patterns_for
from shardspec.resolve.match import PathMatcher
from tests.naming.odd_arrays import paths


def texts(wanted: dict[str, str], *others: str) -> dict[str, str]:
    return {group.pattern: answer for group, answer in patterns_for(wanted, others)}


def test_layers_and_what_stands_before_go() -> None:
    wanted = {f"model.layers.{at}.mlp.up_proj.weight": "a" for at in range(32)}
    assert texts(wanted) == {"*.up_proj.weight": "a"}
    wanted = {f"decoder/layers_{at}/mlp/wi_{to}/kernel": "a" for at in (0, 1) for to in (0, 1)}
    assert texts(wanted) == {"**/wi_*/kernel": "a"}


def test_numbers_that_tell_answers_apart_stay() -> None:
    wanted = {f"b_{at}/Dense_{to}/kernel": "ab"[to] for at in range(12) for to in (0, 1)}
    assert texts(wanted) == {"**/Dense_0/kernel": "a", "**/Dense_1/kernel": "b"}
    wanted = {f"b.{at}.norm.w": "a" if at < 11 else "b" for at in range(12)}
    assert texts(wanted) == {"b.{0..10}.norm.w": "a", "b.11.norm.w": "b"}


def test_what_nothing_may_match_is_left_out() -> None:
    wanted = {"a/x/kernel": "a", "b/x/kernel": "a"}
    assert texts(wanted) == {"**/x/kernel": "a"}
    assert texts(wanted, "c/x/kernel") == {"{a,b}/x/kernel": "a"}


def test_a_star_that_takes_too_much_gives_way() -> None:
    """`*` of a dotted name reaches over dots: `layers.*.norm` is `layers.0.mixer.norm`, too."""
    wanted = {f"b.layers.{at}.norm.w": "a" for at in range(64)}
    wanted |= {f"b.layers.{at}.mixer.norm.w": "b" for at in range(64)}
    assert texts(wanted) == {"b.layers.{0..63}.norm.w": "a", "*.mixer.norm.w": "b"}


def test_a_name_that_looks_like_a_range_stands_alone() -> None:
    """`{model,\\{0..3\\}}` is no pattern: it was tried again without end."""
    wanted = {"model/weight": "a", "{0..3}/weight": "a", "1/weight": "a"}
    others = ("ln_1/weight",)
    assert set(texts(wanted, *others)) == {r"\{0..3\}/weight", "{model,1}/weight"}


@given(
    st.lists(paths, unique=True, max_size=12).flatmap(
        lambda found: st.tuples(
            *(st.tuples(st.just(path), st.sampled_from("abc-")) for path in found)
        )
    )
)
def test_the_first_match_is_right(pairs: tuple[tuple[str, str], ...]) -> None:
    """Invariants `right` and `none_else`, for any paths."""
    wanted = {path: answer for path, answer in pairs if answer != "-"}
    others = [path for path, answer in pairs if answer == "-"]
    found = patterns_for(wanted, others)
    matcher = PathMatcher(tuple(Pattern(group.pattern) for group, _ in found))
    for path, answer in wanted.items():
        at = matcher.first_match(path)
        assert at is not None
        assert found[at][1] == answer
    assert [path for path in others if matcher.first_match(path) is not None] == []
    assert sorted(path for group, _ in found for path in group.paths) == sorted(wanted)


@given(st.text("ab[]-0123{}.,*\\/", min_size=1, max_size=12))
def test_an_exact_pattern_is_for_its_path_alone(path: str) -> None:
    if "**" not in path:
        assert expand(exact(path)) == (path,)
