"""A proof of an import leaves arrays out, since what may split them was not read.

`shardspec import --against ARRAYS` compares each array with what the other tool does. A tool may
take its rules from several places: a model of transformers has the plan of its class, which is in
its modeling file, and those of the models inside it, each with a configuration of its own. Where
such a place was not read, nothing is known of its arrays: they are counted, and the exit code is 1.

Bad:
    # shardspec import hf-tp-plan configuration_llama.py --mesh tp=8 --against arrays.yaml
    # `lm_head` is split by a plan in modeling_llama.py

Good:
    # shardspec import hf-tp-plan configuration_llama.py modeling_llama.py --mesh tp=8
    #   --against arrays.yaml
"""

from __future__ import annotations

from shardspec.diagnostics.codes import NOT_COMPARED as CODE

__all__ = ["CODE"]
