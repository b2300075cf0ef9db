"""What arrays are called in the common families of models, and which dimensions such an array has.

One table, `specs/naming/roles.yaml`, is read from top to bottom; the first row whose words end the
path of an array decides. Paths are compared in one form: `/` between components, small letters,
words of CamelCase apart, so that `model.layers.3.self_attn.q_proj.weight` and
`MlpBlock_0/Dense_0/kernel` are `model/layers/3/self_attn/q_proj` and `mlp_block_0/dense_0`, with
`weight` and `kernel` as leaves. What GGUF, Megatron-Core and KerasHub say in the last component
alone is spelt as other libraries do: `ffn_gate_exps` is `ffn/experts/gate_proj`.

A row says what an array is for, not how a library stores it. `embed -> heads kv` is a linear map
from its inputs to its outputs: torch stores `[out, in]`, Flax `[in, out]`, either may keep heads
and head width apart or side by side (`JOINED`), stack layers or experts, and have a bias as long as
the outputs. `conv: channels -> embed` has dimensions of space as well. Any other row lists the
names in their order. `|` separates answers between which sizes decide; the first is the usual one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from shardspec.assets import data_of

#: Axes that libraries keep side by side in one dimension, as the presets call them.
JOINED: Mapping[tuple[str, ...], str] = {
    ("heads", "kv"): "joined_kv",
    ("kv_heads", "kv"): "joined_kv_heads",
}

#: Last components of paths that say which array of a module it is, and nothing of what it is for.
MATRICES = (
    *("weight", "kernel", "w", "embedding", "embeddings", "input_embedding"),
    *("qweight", "weight_v"),
)
VECTORS = ("bias", "b")
SCALES = ("scale", "offset", "gamma", "beta", "g", "mean", "var", "running_mean", "running_var")
#: Those of a module whose array they only wrap: NNX's variables, Haiku's parameters.
WRAPPERS = ("value", "raw_value")
#: Those of a map inside the module that is called after it: `q_proj.linear.weight`.
WRAPPED = ("linear", "lin", "conv", "convolution", "conv1d", "conv2d", "base_layer")
#: Leaves of arrays that hold outputs first: `[out, in]`.
OUTPUTS_FIRST = ("weight", "qweight", "weight_v")


class AxisKind(NamedTuple):
    """What is known of a logical axis beyond its name.

    Attributes:
      doc: what it is, as a spec says it.
      like: the axis by whose rules it goes where no rule names it; "" for `none`.
      halves: of an axis of two equal parts, what they are called.
    """

    doc: str
    like: str = ""
    halves: Sequence[str] = ()


class Role(NamedTuple):
    """One row: how paths end, and what dimensions such an array has.

    Attributes:
      what: what the array is for, as a comment says it.
      ends: a regular expression for the last components, without the leaf.
      names: its dimensions, as the module says.
      under: what has to stand somewhere before those.
      beside: what an array or module in the same module has to be called.
    """

    what: str
    ends: str
    names: str
    under: str = ""
    beside: str = ""


_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
#: A leaf that is part of a name, `in_proj_weight`, or one of several, `weight3`.
_LEAF = re.compile(r"((?!rel|dt_)[a-z]\w*?)_(weight|bias)|(weight|bias)\d+")
_INNER = re.compile(r"_proj$|^(?:[qkvo]|query|key|value)$")
_MOST_CHARACTERS = 2000
_TABLE = "specs/naming/roles.yaml"


class Place(NamedTuple):
    """A path, taken apart.

    Attributes:
      module: what the array belongs to, in the form of the table.
      leaf: which array of the module it is; "" where its own name says that.
    """

    module: str
    leaf: str


def place_of(path: str, *, is_boxed: bool = True) -> Place:
    """Return the module and leaf of a path.

    Args:
      is_boxed: whether a last `value` is what a box around an array has.

    >>> place_of("model.layers.3.self_attn.q_proj.weight")
    Place(module='model/layers/3/self_attn/q_proj', leaf='weight')
    >>> place_of("MlpBlock_0/Dense_0/kernel"), place_of("experts/w1")
    (Place(module='mlp_block_0/dense_0', leaf='kernel'), Place(module='experts/w1', leaf=''))
    >>> place_of("blk.0.ffn_gate_exps.weight").module, place_of("attn/in_proj_bias")
    ('blk/0/ffn/experts/gate_proj', Place(module='attn/in_proj', leaf='bias'))
    """
    plain = _WORDS.sub("_", path[-_MOST_CHARACTERS:].replace(".", "/")).lower()
    parts = [part.replace("__", "_") for part in plain.split("/") if part]
    if is_boxed and len(parts) > 1 and parts[-1] in WRAPPERS:
        parts.pop()
    if parts[-3:] == ["parametrizations", "weight", "original1"]:
        parts[-3:] = ["weight_v"]
    leaf = ""
    if len(parts) > 1 and parts[-1] in (*MATRICES, *VECTORS, *SCALES):
        leaf = parts.pop()
    elif parts and (found := _LEAF.fullmatch(parts[-1])):
        leaf = found[2] or found[3]
        parts[-1:] = [found[1]] if found[1] else []
    if len(parts) > 1 and parts[-1] in WRAPPED and _INNER.search(parts[-2]):
        parts.pop()
    for pattern, spelt in _spellings() if parts else ():
        parts[-1] = pattern.sub(spelt, parts[-1])
    return Place("/".join(parts), leaf)


@cache
def _spellings() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(left), right) for left, right in data_of(_TABLE)["spellings"])


@cache
def axes() -> Mapping[str, AxisKind]:
    """Return what is known of logical axes, by name."""
    return {name: AxisKind(**each) for name, each in data_of(_TABLE)["axes"].items()}


@cache
def roles() -> tuple[Role, ...]:
    """Return the rows, in order."""
    return tuple(Role(**each) for each in data_of(_TABLE)["roles"])


@cache
def _compiled() -> tuple[tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str], Role], ...]:
    return tuple(
        (
            re.compile(rf"(?:^|/)(?:{role.ends})$"),
            re.compile(role.under),
            re.compile(role.beside),
            role,
        )
        for role in roles()
    )


def roles_of(place: Place, beside: Collection[str] = ("",)) -> Iterator[Role]:
    """Yield the rows that an array may go by, the best first.

    Args:
      beside: the last components of the paths of what is in the same module.
    """
    for ends, under, near, role in _compiled():
        found = ends.search(place.module)
        if (
            found
            and under.search(place.module, 0, found.start() + 1)
            and any(map(near.fullmatch if role.beside else near.search, beside))
        ):
            yield role
