"""The words that begin a statement of the DSL."""

from __future__ import annotations

#: Statements that hold entries in braces and nothing before them.
SECTIONS = ("rules", "params", "scan", "arrays", "activations", "activation")

#: Statements in which `{` always opens a block.
BLOCKS = frozenset({"rules", "params", "arrays", "activations", "target", "mesh"})

#: Every word that begins a statement.
KEYWORDS = BLOCKS | {
    "shardspec",
    "doc",
    "extends",
    "axis",
    "hardware",
    "drop",
    "override",
    "scan",
    "activation",
    "manifest",
    "policy",
    "lint",
    "state",
    "coverage",
    "replicate",
}

#: What people write who know the keys of the YAML file.
OTHER_WORDS = {
    "axes": "axis",
    "targets": "target",
    "overrides": "override",
    "lints": "lint",
    "extend": "extends",
    "rule": "rules",
    "param": "params",
    "array": "arrays",
    "version": "shardspec",
    "replicated": "replicate",
}
