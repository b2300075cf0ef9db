"""JSON and YAML of other tools -> `Node`.

Words that YAML 1.1 reads otherwise are no faults here: the file is not ours. They stay text, and
whoever wants a boolean says which words are one.
"""

from __future__ import annotations

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.diagnostics.codes import BAD_FOREIGN_FILE, YAML_TRAP
from shardspec.formats.foreign.node import Node, group
from shardspec.frontend.reading import Data, Route, SourceMap
from shardspec.frontend.yaml_text.reader import read_yaml_value


def read_data(source: SourceFile) -> Node | tuple[Diagnostic, ...]:
    """Return the value that a JSON or YAML file holds, or why it holds none."""
    found = read_yaml_value(source)
    faults = tuple(fault for fault in found.faults if fault.code is not YAML_TRAP)
    if faults or found.source_map is None:
        return tuple(
            Diagnostic(BAD_FOREIGN_FILE, fault.message, fault.labels, fault.notes, fault.help)
            for fault in faults
        )
    return _node(found.root, (), found.source_map)


def _node(data: Data, route: Route, source_map: SourceMap) -> Node:
    span = source_map.value(route).span
    if isinstance(data, dict):
        keys = tuple(Node("text", source_map.key((*route, key)).span, key) for key in data)
        items = tuple(_node(value, (*route, key), source_map) for key, value in data.items())
        return group("mapping", span, items, keys=keys)
    if isinstance(data, list):
        inner = (_node(value, (*route, index), source_map) for index, value in enumerate(data))
        return group("list", span, tuple(inner))
    if data is None:
        return Node("nothing", span)
    if isinstance(data, str):
        return Node("text", span, data)
    return Node("boolean" if isinstance(data, bool) else "number", span, str(data), data)
