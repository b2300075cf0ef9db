"""A file has two readings, they give different answers, and only its author knows which is meant.

The same list of rules goes to Flax Linen and to Flax NNX, and they read it differently: Linen takes
the first rule whose mesh axes are free, NNX the last one of a name. A list of regexes may be meant
for `re.search` or for `re.fullmatch`. Where the readings agree, none has to be chosen.

Bad:
    # rules.py, for `shardspec import flax rules.py`
    RULES = [("embed", "model"), ("embed", "data")]

Good:
    # rules.py, for `shardspec import flax rules.py --semantics linen`
    RULES = [("embed", "model"), ("embed", "data")]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import AMBIGUOUS_READING as CODE

__all__ = ["CODE"]
