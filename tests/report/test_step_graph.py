"""A step as a graph: each arrow is a value that one operation makes and another reads."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from shardspec import Resolver, pipeline
from shardspec.analysis.comparison import timed_of
from shardspec.analysis.cost import Cost
from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.codes import RESHARDED_TWICE
from shardspec.ir.step import Place
from shardspec.jax_backend.on_target import on_target
from shardspec.report.html import tag
from shardspec.report.step_pictures import Node, drawn_step, graph_piece, is_at, nodes_of
from tests.report.test_page import NASTY
from tests.report.test_trace import cost_of_example

#: A residual around an MLP, whose hidden layer is gathered against all rules.
SPEC = """\
shardspec: 1
axes: {batch: 256, embed: 4096, mlp: 16384}
targets: {pod: {hardware: tpu v5e 8x8, mesh: {fsdp: 16, tensor: 4}}}
rules: [batch -> fsdp, mlp -> tensor, embed -> fsdp]
params: {up: embed mlp, down: mlp embed, out: embed mlp}
activations: {hidden: batch _, residual: batch embed}
"""


def traced(of: Callable[[Any], Callable[[Any, Any], Any]]) -> Cost:
    """Return the cost of a function of weights and a batch, on a machine that is not here."""
    spec, _ = pipeline.load_text(SPEC)
    assert spec is not None
    with on_target(pipeline.sound_target(pipeline.find_target(spec, "pod")), spec):
        resolver: Any = Resolver(spec, "pod", agree_within_s=None)
        shapes = {"up": (4096, 16384), "down": (16384, 4096), "out": (4096, 16384)}
        params = {name: jax.ShapeDtypeStruct(shape, jnp.bfloat16) for name, shape in shapes.items()}
        x = jax.ShapeDtypeStruct((256, 4096), jnp.bfloat16)
        cost: Cost = resolver.cost(jax.jit(of(resolver)), params, x)
        return cost


def residual(resolver: Any) -> Callable[[Any, Any], Any]:
    def step(params: Any, x: Any) -> Any:
        hidden = jax.nn.relu(x @ params["up"])
        hidden = resolver.constrain(hidden, activation="hidden")
        x = x + hidden @ params["down"]
        return x @ params["out"]

    return step


def scanned(resolver: Any) -> Callable[[Any, Any], Any]:
    def step(params: Any, x: Any) -> Any:
        def layer(x: Any, _: None) -> tuple[Any, None]:
            return jnp.tanh(x @ params["down"]) @ params["out"], None

        x, _ = jax.lax.scan(layer, x @ params["up"], length=4)
        return x @ params["down"]

    return step


def graph(cost: Cost) -> list[Node]:
    drawn = drawn_step(cost)
    assert drawn is not None
    return nodes_of(drawn)


def titled(nodes: list[Node], word: str) -> Node:
    (found,) = [node for node in nodes if node.ops and word in node.title]
    return found


def leads(nodes: list[Node], one: Node, other: Node) -> list[list[Node]]:
    """Return the ways between two rows that go over what is sent alone."""
    ways = []
    for reader in (nodes[at] for at in one.readers):
        if reader is other:
            ways.append([])
        elif reader.sent:
            ways += [[reader, *way] for way in leads(nodes, reader, other)]
    return ways


def test_what_a_traced_step_computes_flows_on() -> None:
    nodes = graph(traced(residual))
    up, down, out = (titled(nodes, f" {name}") for name in ("up", "down", "out"))
    assert leads(nodes, up, down)
    assert leads(nodes, down, out)
    assert not leads(nodes, up, out)  # the sum with the residual comes from `down`
    assert nodes.index(up) < nodes.index(down) < nodes.index(out)
    weights = [node for node in nodes if node.sent and "weight up" in node.title]
    assert [node for each in weights for node in map(nodes.__getitem__, each.readers)] == [up]


def test_a_loop_passes_on_what_it_computes() -> None:
    step = traced(scanned).step
    assert step is not None
    before, first, second, after = sorted(step.ops, key=lambda op: op.at)
    assert (before.reads, first.reads, second.reads) == ((), (before.at,), (first.at,))
    assert after.reads == (second.at,)


@pytest.mark.parametrize("name", ["gemma-2-9b", "llama-3-8b-decode", "mixtral-8x7b", "vit-b-16"])
def test_a_stated_step_is_one_piece_and_its_rows_sum_to_it(name: str) -> None:
    cost = cost_of_example(name)
    nodes = graph(cost)
    shown = sum(row.shown for _, row in timed_of(cost) if row.place.is_known)
    assert sum(node.seconds for node in nodes) == pytest.approx(shown)
    reached, border = {0}, [0]
    ways = {at: set(node.readers) for at, node in enumerate(nodes)}
    for at, node in enumerate(nodes):
        for reader in node.readers:
            ways[reader].add(at)
    while border:
        new = ways[border.pop()] - reached
        reached |= new
        border += new
    computes = {at for at, node in enumerate(nodes) if node.ops}
    assert computes <= reached | {at for at in computes if not ways[at]}
    assert len(computes & reached) > 0.9 * len(computes)


def test_every_arrow_is_drawn_once_between_the_points_of_its_rows() -> None:
    drawn = drawn_step(cost_of_example("gemma-2-9b"))
    assert drawn is not None
    nodes = nodes_of(drawn)
    root = ET.fromstring(tag("div", graph_piece(drawn)))
    rows = [each for each in root.iter("div") if each.get("class") == "node"]
    assert len(rows) == len(nodes)
    ends = set()
    for path in root.iter("path"):
        if path.get("class", "").startswith("flow"):
            one, other = int(path.attrib["data-from"]), int(path.attrib["data-to"])
            places = [float(y) for y in re.findall(r"88 ([\d.]+)", path.attrib["d"])]
            assert places == [one + 0.5, other + 0.5]
            ends.add((one, other))
    assert ends == {(at, to) for at, node in enumerate(nodes) for to in node.readers}


def test_a_finding_is_at_the_line_that_it_names_and_at_no_other() -> None:
    found = Diagnostic(RESHARDED_TWICE, "an array is resharded at src/model.py:71, and again")
    assert is_at(found, "src/model.py:71")
    for other in ("model.py:71", "src/model.py:7", "src/model.py:711", "model.py:710"):
        assert not is_at(found, other)
    drawn = drawn_step(traced(residual))
    assert drawn is not None
    nodes = nodes_of(drawn)
    up = titled(nodes, " up")
    found = Diagnostic(RESHARDED_TWICE, f"an array is resharded at {up.where[0]}")
    root = ET.fromstring(tag("div", graph_piece(drawn, [found])))
    rows = [each for each in root.iter("div") if each.get("class") == "node"]
    marked = [at for at, row in enumerate(rows) if row.find(".//span[@title]") is not None]
    assert marked == [nodes.index(up)]


def test_names_are_text() -> None:
    cost = cost_of_example("llama-3-8b-lora")
    assert cost.step is not None
    place = Place(NASTY, 1)
    named = replace(cost.step.ops[0].result, name=NASTY)
    ops = tuple(replace(op, operands=(named,), result=named, place=place) for op in cost.step.ops)
    sent = [
        replace(each, place=place, carries=replace(each.carries, name=NASTY))
        for each in cost.step.collectives
    ]
    step = replace(cost.step, ops=ops, collectives=tuple(sent))
    drawn = drawn_step(replace(cost, step=step))
    assert drawn is not None
    piece = graph_piece(drawn)
    assert "<img" not in piece
    assert "\u202e" not in piece
    ET.fromstring(tag("div", piece))
