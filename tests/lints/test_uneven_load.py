from __future__ import annotations

import itertools

import pytest
from hypothesis import given

from shardspec.ir.spec import Param, Policy, Spec, array_bytes
from shardspec.lints.checks.uneven_load import last_bytes
from shardspec.resolve.resolver import resolve
from tests import strategies
from tests.lints.findings_of import findings_of

TEXT = """\
mesh: {{tensor: 8}}
policy: {{indivisible: {policy}}}
lints: {{indivisible: {level}}}
rules: [mlp -> tensor]
arrays: {{k: 'bf16[_=64 mlp={size}]'}}
"""


@pytest.mark.parametrize(
    ("size", "policy", "level", "count"),
    [
        (9, "keep", "allow", 1),
        (9, "keep", "warn", 1),
        (9, "keep", "error", 0),
        (9, "next", "allow", 0),
        (16, "keep", "allow", 0),
        (1023, "keep", "allow", 0),
        (57, "keep", "allow", 1),
    ],
)
def test_which(size: int, policy: str, level: str, count: int) -> None:
    text = TEXT.format(size=size, policy=policy, level=level)
    assert len(findings_of(text, only="uneven-load")) == count


def test_who_holds_what() -> None:
    (found,) = findings_of(TEXT.format(size=9, policy="keep", level="allow"))
    assert found.message.endswith("holds 256 B, the last 0 B")
    assert "9 over 8 is 2 in each of the first 4, and nothing in the last 3" in found.notes[0]
    assert found.help is not None
    for size in (8, 16):
        assert str(size) in found.help
        assert findings_of(TEXT.format(size=size, policy="keep", level="allow")) == ()


@given(strategies.specs(), strategies.params())
def test_the_first_device_holds_most_and_the_last_least(spec: Spec, param: Param) -> None:
    keep = Policy(indivisible="keep")
    spec = Spec(spec.source, spec.logical_axes, spec.axis_rules, policy=keep, targets=spec.targets)
    plan = resolve(spec, spec.targets[0], (param,))
    (group,) = plan.alike
    shards = []
    for at in itertools.product(*(range(dim.ways) for dim in group.dims)):
        ranges = [
            len(range(dim.size or 0)[i * (dim.shard_size or 0) :][: dim.shard_size])
            for i, dim in zip(at, group.dims, strict=True)
        ]
        shards.append(array_bytes(tuple(ranges), param.dtype))
    assert max(shards) == group.shard_bytes
    assert min(shards) == last_bytes(group)
