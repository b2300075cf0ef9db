"""Differences are found, joined where they are alike, and explained by our own trace."""

from __future__ import annotations

import re

from shardspec import pipeline
from shardspec.foreign.formats import Answer, NoAnswer, placed
from shardspec.foreign.proof import differences, findings
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Mesh, MeshAxis, Param, PartitionSpec

MESH = Mesh((MeshAxis("data", 4), MeshAxis("model", 2)))
SPEC = """
mesh: {data: 4, model: 2}
rules: [embed -> data, mlp -> model, heads -> model]
"""


def plan(*params: Param, more: str = "") -> ShardingPlan:
    spec, faults = pipeline.load_text(SPEC + more)
    assert spec is not None
    assert faults == ()
    return pipeline.compile_plans(spec, params)[0]


def layers(count: int) -> tuple[Param, ...]:
    return tuple(Param(f"layers_{i}/wi", (8, 6), "f32", ("embed", "mlp")) for i in range(count))


def test_equal_answers_are_no_difference() -> None:
    answers = [PartitionSpec((("data",), ("model",)))] * 2
    assert differences(plan(*layers(2)), answers) == ()


def test_arrays_that_differ_alike_are_one_difference() -> None:
    answers: list[Answer] = [PartitionSpec(((), ("model",)))] * 3
    answers.append(NoAnswer("it raises"))
    found = differences(plan(*layers(4)), answers)
    assert [len(each.paths) for each in found] == [3, 1]
    assert found[0].paths == ("layers_0/wi", "layers_1/wi", "layers_2/wi")
    messages = [each.message for each in findings(found, "Flax")]
    assert messages == [
        "`layers_{0..2}/wi` x3: shardspec gives P('data', 'model'), Flax P(None, 'model')",
        "`layers_3/wi`: shardspec gives P('data', 'model'), Flax refuses",
    ]


def test_the_override_in_help_gives_the_other_answer() -> None:
    params = (*layers(12), Param("head", (8, 6), "f32", ("mlp", "embed")))
    answers: list[Answer] = [PartitionSpec((("model", "data"), ()))] * 13
    entries = []
    for each in findings(differences(plan(*params), answers), "Flax"):
        said = re.fullmatch(r"add `- (.*)` to `overrides:` of the imported spec", each.help or "")
        assert said
        entries.append(said[1])
    assert len(entries) == 2
    more = f"overrides: [{', '.join(entries)}]\n"
    assert differences(plan(*params, more=more), answers) == ()


def test_a_refusal_says_what_to_change_in_the_file() -> None:
    refused = placed((("data",), ("data",)), Param("layers_0/wi", (8, 6)), MESH)
    (found,) = findings(differences(plan(*layers(1)), [refused]), "Flax")
    assert (found.help or "").startswith("in the file, write another mesh axis, or None, for one")


def test_arrays_that_are_refused_for_one_reason_are_one_finding() -> None:
    params = (*layers(2), Param("embed", (8, 6), "f32", ("embed", "mlp")))
    answers: list[Answer] = [NoAnswer("it has no names"), NoAnswer("it is odd")]
    answers.append(NoAnswer("it has no names"))
    found = findings(differences(plan(*params), answers), "Flax")
    assert [each.message for each in found] == [
        "2 arrays: shardspec places them, Flax refuses",
        "`layers_1/wi`: shardspec gives P('data', 'model'), Flax refuses",
    ]
    assert found[0].notes == ("2 arrays, first layers_0/wi", "Flax: it has no names")


def test_reasons_are_those_of_the_trace() -> None:
    params = (
        Param("odd", (7, 6), "f32", ("embed", "mlp")),
        Param("both", (8, 6), "f32", ("mlp", "heads")),
    )
    answers: list[Answer] = [
        PartitionSpec((("data",), ("model",))),
        PartitionSpec(((), ("model",))),
    ]
    odd, both = differences(plan(*params), answers)
    assert odd.reasons == ("dim 0 `embed`: `embed -> data` does not fire: 7 is not divisible by 4",)
    assert both.reasons == (
        "dim 0 `mlp`: `mlp -> model` fires",
        "dim 1 `heads`: `heads -> model` is busy: dim 0 has it",
    )


def test_jax_refuses_what_cannot_be_placed() -> None:
    param = Param("a", (8, 6))
    assert placed((("data",),), param, MESH) == PartitionSpec((("data",), ()))
    for dims, reason in [
        (((), (), ()), "3 entries for 2 dimensions"),
        ((("tensor",),), "`tensor` of P('tensor') is not found in the mesh (data, model)"),
        ((("data",), ("data",)), "has `data` twice"),
        ((("data", "data"),), "has `data` twice"),
    ]:
        found = placed(dims, param, MESH)
        assert isinstance(found, NoAnswer)
        assert reason in found.reason
