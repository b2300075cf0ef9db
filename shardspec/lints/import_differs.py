"""The imported spec splits an array otherwise than the tool that it was imported from.

`shardspec import FORMAT FILE --against ARRAYS` asks both: the compiled spec, and the rules as the
other tool reads them. Arrays that differ alike are one finding, with both answers and the reason.
Either the language has no word for what the file says (then SHD601 says so too), or the other tool
refuses the array, which shardspec reports when it checks the spec.

Bad:
    # mlp/wi is bf16[heads mlp]: NNX gives both dimensions `model`, and JAX refuses that
    RULES = [("heads", "model"), ("mlp", "model")]

Good:
    # the same, where one of the two has a mesh axis of its own
    RULES = [("heads", "data"), ("mlp", "model")]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import IMPORT_DIFFERS as CODE

__all__ = ["CODE"]
