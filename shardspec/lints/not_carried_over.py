"""A file of another tool says something that a spec cannot say, or the other way round.

`shardspec import` and `shardspec export` carry over what both languages can say. What one of them
cannot is left out, and said: the line, and what it would have done. Where the answer for some array
depends on it, `import --against ARRAYS` shows that too (SHD602).

Bad:
    # rules.py, for `shardspec import flax rules.py`
    RULES = [("embed", "data"), ("heads", PartitionSpec.UNCONSTRAINED)]

Good:
    # rules.py: what only the compiler can choose is left to activations
    RULES = [("embed", "data"), ("heads", None)]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import NOT_CARRIED_OVER as CODE

__all__ = ["CODE"]
