"""An exported file would make another tool split an array otherwise than the plan does.

`shardspec export` reads back what it writes, by the other tool's own semantics, and compares the
answers array by array. Flax, T5X and MaxText take a rule even where its mesh axes do not divide the
dimension, know no units, and refuse mesh axes that a machine lacks. Nothing is written then;
`--resolved` writes the rules that count on one target, and `--lossy` writes the file all the same.

Bad:
    # kv_heads is 6: our rule is passed over, and Flax takes it
    mesh: {data: 4, model: 4}
    rules: ["kv_heads -> model", "embed -> model"]

Good:
    # the same answer for whoever reads the rules
    mesh: {data: 4, model: 4}
    rules: ["kv_heads -> none", "embed -> model"]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import EXPORT_DIFFERS as CODE

__all__ = ["CODE"]
