"""A format has no way at all to say what a plan is, so there is nothing to write.

Hugging Face's `tp_plan` is about one mesh axis: of a plan over several, `--axis NAME` says which
is meant, and the others are left out (SHD601). A dictionary of names, as Haliax has, gives a name
the same mesh axes in every array; what a contest decides array by array has no place in it.

Bad:
    # shardspec export hf-tp-plan spec.yaml
    mesh: {data: 4, model: 2}
    rules: ["embed -> data", "mlp -> model"]

Good:
    # shardspec export hf-tp-plan spec.yaml --axis model
    mesh: {data: 4, model: 2}
    rules: ["embed -> data", "mlp -> model"]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import CANNOT_HOLD as CODE

__all__ = ["CODE"]
