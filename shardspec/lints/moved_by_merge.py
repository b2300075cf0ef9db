"""A tool moves the rules that a file replaces to the end of its list, and that changes answers.

MaxText merges a model's `logical_axis_rules` into those of `base.yml` by name: it takes the old
rules of a name out, and appends the new ones at the end. Order is priority, so the replaced name
now loses every contest that it used to win. `--merge maxtext` imports the list as MaxText has it in
the end; `--merge in-place` puts the new rules where the old ones stood.

Bad:
    # model.yml, over a base that says heads -> tensor, then embed -> fsdp
    logical_axis_rules: [[heads, fsdp]]

Good:
    # model.yml, with the whole list in its order
    override_logical_axis_rules: true
    logical_axis_rules: [[heads, fsdp], [embed, fsdp]]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import MOVED_BY_MERGE as CODE

__all__ = ["CODE"]
