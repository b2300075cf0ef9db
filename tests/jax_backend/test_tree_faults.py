"""What is wrong with a live tree, and what only seems to be."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from shardspec.diagnostics import ShardspecError
from shardspec.jax_backend.resolver import Resolver
from shardspec.public import loads

TEXT = """
shardspec: 1
mesh: {data: 2, model: 4}
rules:
  - batch -> data
  - mlp -> model
  - RULE -> none
params: {"**/kernel": _ mlp}
lints: {below-tile: allow}
"""


def resolver(rule: str = "length") -> Resolver:
    return Resolver(loads(TEXT.replace("RULE", rule)))


def layer() -> dict[str, Any]:
    return {"mlp": {"kernel": jnp.ones((8, 16))}}


def test_rules_for_what_only_code_names_are_no_findings() -> None:
    """`batch` and `length` are given to activations, by `constrain`."""
    assert resolver().findings(layer()) == ()


def test_a_rule_much_like_a_name_of_the_arrays_is_a_slip() -> None:
    (found,) = resolver("mpl").findings(layer())
    assert found.code.id == "SHD230"
    assert (found.help or "").startswith("did you mean `mlp`?")


def test_an_error_does_not_bring_such_rules_along() -> None:
    with pytest.raises(ShardspecError) as caught:
        resolver().shardings({"bias": jnp.ones(16)})
    assert not {"SHD202", "SHD230"} & {found.code.id for found in caught.value.diagnostics}


def test_check_tells_what_nothing_names_wherever_it_lies() -> None:
    """Whole is where such an array is planned to be, and so it would pass."""
    found = resolver()
    whole = jax.device_put(jnp.ones(16), found.sharding("_", (16,)))
    said = found.verify_placement(found.put(layer()) | {"bias": whole})
    assert [each.code.id for each in said] == ["SHD205"]
    with pytest.raises(ShardspecError, match="nothing names the dimensions of `bias`"):
        found.verify_placement({"bias": whole}, strict=True)
    moved = found.verify_placement({"bias": jnp.ones(16)})
    assert [each.code.id for each in moved] == ["SHD205", "SHD901"]


def test_a_finding_prints_with_its_notes_and_its_way_out() -> None:
    (found,) = resolver().verify_placement(layer())
    lines = str(found).splitlines()
    assert lines[0] == (
        "error[SHD901]: `mlp/kernel` is on one device, uncommitted: nothing has placed it"
    )
    assert lines[1].startswith("  = note: mlp/kernel f32[8, 16]: planned P(None, 'model')")
    assert lines[-1].startswith("  = help: `resolver.put(tree)` moves them")


def test_a_finding_prints_its_place() -> None:
    (found,) = resolver("mpl").findings(layer())
    line = "<string>:7:5: warning[SHD230]: nothing has the logical axis `mpl` of this rule"
    assert str(found).startswith(f"{line}\n")


def test_no_finding_of_another_kind_lets_an_array_at_fault_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is hidden, since another finding says it as well, is raised all the same."""
    from shardspec.lints import follow_on

    monkeypatch.setattr(follow_on, "_is_said", lambda each, _: each.code.id == "SHD205")
    found = Resolver(loads(TEXT.replace("RULE", "length").replace("**/kernel", "**/kernels")))
    with pytest.raises(ShardspecError):
        found.shardings({"mlp": {"kernel": jnp.ones((8, 16))}})


def test_a_tree_without_names_is_told_of_like() -> None:
    with pytest.raises(ShardspecError) as caught:
        resolver().shardings({"bias": jnp.ones(16)})
    (found,) = (each for each in caught.value.diagnostics if each.code.id == "SHD205")
    assert "like=BOXED" in (found.help or "")


SIZES = [
    ("mlp: 18", "SHD301"),
    ("mlp: {size: 16, unit: 8}", "SHD312"),
    ("mlp: {parts: {gate: 6, up: 10}}", "SHD313"),
]


@pytest.mark.parametrize(("axis", "code"), SIZES)
def test_a_dimension_that_ends_whole_unasked_is_raised_wherever_it_comes_in(
    axis: str, code: str
) -> None:
    """`model` = 4 divides none of them, in whole units and parts."""
    found = Resolver(loads(f"axes: {{{axis}}}\n{TEXT.replace('RULE', 'length')}"))
    size = 18 if code == "SHD301" else 16
    kernel = jax.ShapeDtypeStruct((8, size), "float32")
    for lay in (
        lambda: found.shardings({"kernel": kernel}),
        lambda: found.sharding("_ mlp", kernel.shape),
        lambda: jax.eval_shape(lambda x: found.constrain(x, "_ mlp"), kernel),
    ):
        with pytest.raises(ShardspecError) as caught:
            lay()
        assert [each.code.id for each in caught.value.diagnostics] == [code]
