"""The file format, shape only: the one module that knows pydantic.

A YAML file and a DSL file both become one `Document`. Expressions stay strings here;
`document_to_layer` parses them. Descriptions feed `shardspec schema` and `shardspec explain FIELD`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError, PydanticKnownError

from shardspec.language.reading import parts_text


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", defer_build=True)


def _integer_as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _number_as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _parts_as_text(value: Any) -> Any:
    """Return a mesh axis that is several as an expression: `(kv_tp = 4, q_tp = 2)`."""
    plain = isinstance(value, dict) and all(
        isinstance(size, str | int) and not isinstance(size, bool) for size in value.values()
    )
    if not plain:
        return _integer_as_text(value)
    return parts_text(value)


def _devices_as_text(value: Any) -> Any:
    """Return a list of devices as an expression: `0 1 3 2`."""
    plain = isinstance(value, list) and all(
        isinstance(each, str | int) and not isinstance(each, bool) for each in value
    )
    return " ".join(map(str, value)) if plain else _integer_as_text(value)


def _one_as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _size_as_axis(value: Any) -> Any:
    if value is None:
        return {}
    return value if isinstance(value, dict) else {"size": value}


def _text_as_rule(value: Any) -> Any:
    return {"rule": value} if isinstance(value, str) else value


def _names_as_activation(value: Any) -> Any:
    return value if isinstance(value, dict) else {"axes": value}


def _names(value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        text = " ".join(value)
        raise PydanticCustomError("names", f"names are one string here: write `{text}`")
    return value


def _nothing() -> dict[str, Any]:
    """Return no entries; a function, since pydantic reads the signature of `dict` for 1 ms."""
    return {}


def _no_items() -> list[Any]:
    return []


def _key(description: str, default: Any = None) -> Any:
    """Return a key of an entry that may be left out."""
    return Field(default, description=description)


def _entries(description: str) -> Any:
    """Return a section of entries by name."""
    return Field(default_factory=_nothing, description=description)


def _items(description: str) -> Any:
    """Return a section that is a list."""
    return Field(default_factory=_no_items, description=description)


def _unit_as_text(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and value < 1:
        raise PydanticKnownError("greater_than_equal", {"ge": 1})
    return _integer_as_text(value)


def _read(by: Callable[[Any], Any], given: Any) -> BeforeValidator:
    """Return what reads the other forms that a value may have, which are those of `given`."""
    return BeforeValidator(by, json_schema_input_type=given)


Positive = Annotated[int, Field(ge=1)]
Expression = Annotated[str, _read(_integer_as_text, int | str)]
Size = Annotated[str, _read(_parts_as_text, int | str | dict[str, int | str])]
Devices = Annotated[str, _read(_devices_as_text, int | str | list[int | str])]
Bound = Annotated[str, _read(_number_as_text, str)]
Texts = Annotated[list[str], _read(_one_as_list, str | list[str])]
Names = Annotated[str, _read(_names, str)]
Unit = Annotated[str, _read(_unit_as_text, Positive | str)]
Level = Literal["allow", "warn", "error"]
Memory = Literal["device", "pinned_host", "unpinned_host"]


class AxisEntry(_Model):
    """A logical axis: a model's name for a dimension."""

    size: Expression | None = _key(
        "How long the axis is: numbers and axes, added, taken off and multiplied: `4096`, `heads"
        " * kv`, `inner + 2 * groups * state`."
    )
    unit: Unit = _key(
        "Elements that must stay together on a device, such as one head: a number, or an axis:"
        " `headdim`.",
        "1",
    )
    parts: dict[str, Expression] | None = _key(
        "Parts of a fused axis, in order, with their sizes: `{q: heads * kv, k: kv}`. The axis is"
        " as long as all of them, and no shard may hold pieces of two."
    )
    interleaved: bool = _key(
        "Whether parts are laid out group by group, so that every shard has its share of each.",
        default=False,
    )
    min_shard: Positive = _key(
        "Elements below which a shard is not worth having: fewer is a finding.", 1
    )
    doc: str = _key("What the axis is, for people.", "")


class TargetEntry(_Model):
    """One machine, and the mesh on it."""

    hardware: Expression | None = _key(
        "Catalogue entry and size: `tpu v4 4x8x8`, `2 * tpu v6e 8x8`, `4 * h100`, `8 cpu`, or an"
        " accelerator type such as `v4-512`; `{1..8} * tpu v5e 16x16` is a target for each count"
        " of slices; `tpu v4 4x8x8 by hardware.local.yaml` is as fast as `shardspec calibrate`"
        " has measured."
    )
    mesh: dict[str, Size] = Field(
        description="Mesh axes, major to minor, with sizes: `8`, `tp` (a name of `let`), `rest`,"
        " `submesh 4x2x2x1`, `auto 16`, `over x y4` (directions of the machine); `@ dcn` for an"
        " axis between slices or nodes; last the type, where it is not `auto`: `8 explicit`, `8"
        " manual`. One may be several: `{kv_tp: fit kv_heads, attn_dp: rest}`; rules that name it"
        " mean all of them.",
    )
    devices: Devices | None = _key(
        "Which device stands where, row by row of the mesh, by the numbers that JAX gives them:"
        " `0 1 3 2`, `0..3 7..4`. Every one is listed once. Left out, the order is worked out"
        " from the sizes."
    )


class RuleEntry(_Model):
    """An axis rule with a place."""

    rule: str = Field(description="`embed -> model | data`: alternatives are tried left to right.")
    at: str | None = _key(
        "Where the rule stands among inherited ones: `start`, `end`, `before AXIS`, `after AXIS`."
        " Left out, it takes the place of the parent's rules for its axis."
    )


class _Matching(_Model):
    """What an entry for some arrays says of them."""

    path: str | None = _key("A glob over whole paths.")
    match: str | None = _key("A Python regex that must match the whole path.")
    optional: bool = _key(
        "Whether some models have no such arrays; else it must match.", default=False
    )


class OverrideEntry(_Matching):
    """Names, or the partition itself, for arrays of code that is not yours."""

    axes: Names | None = _key("Logical axes, one per dimension: `embed mlp`.")
    spec: str | None = _key(
        "Mesh axes, one entry per dimension: `(none, model)`. Rules are not asked. Behind them"
        " the mesh axes of sums: `(data, none) unreduced model`."
    )
    memory: Memory | None = _key("Where these arrays lie, as in `memory`.")
    because: str = _key("Why, for whoever reads this next.", "")


class ActivationEntry(_Model):
    """A named constraint, by names or by the partition itself."""

    axes: Names | None = _key("Logical axes, one per dimension: `batch embed`.")
    spec: str | None = _key(
        "Mesh axes, one entry per dimension, and those of sums: `(data, none) unreduced model`."
        " Rules are not asked."
    )
    memory: Literal["device", "pinned_host"] | None = _key(
        "Where `constrain` moves it; left out, it stays where it is made."
    )
    at: str | None = _key(
        "Where in code `constrained` puts it: `model.py:Block.__call__`, or a named scope"
        " `**/mlp`; behind it `result[1]`, `argument x` or `line 23`."
    )


class PolicyEntry(_Model):
    """Choices that change the answer."""

    indivisible: Literal["next", "keep", "pad"] = _key(
        "A rule whose mesh axes do not divide the dimension: `next` tries the next alternative,"
        " `keep` fires it as Flax does and lets JAX refuse, `pad` pads the logical axis in every"
        " array to a size that they divide.",
        "next",
    )
    order: Literal["t5x", "ring"] = _key(
        "How a mesh axis counts the chips of a torus: `t5x` row by row, as T5X does; `ring` along"
        " a ring in which neighbours touch.",
        "t5x",
    )
    whole_below: Bound | None = _key(
        "Arrays of fewer bytes stay whole, and no rule is asked about them: `1 MiB`."
    )


class StateEntry(_Model):
    """What stands beside every parameter while training."""

    optimizer: Literal["same", "zero1", "zero2"] = _key(
        "`same` lays optimizer state out as its parameter; `zero1` splits it further over the"
        " mesh axes `over`, along the first dimension that they divide; `zero2` gradients as"
        " well.",
        "same",
    )
    over: str | None = _key(
        "Mesh axes for `zero1` and `zero2`: `data` or `(replica, data)`. Left out, those of the"
        " first rule for `batch`."
    )
    moments: Annotated[int, Field(ge=0)] = _key(
        "Arrays of a parameter's size that the optimizer keeps (Adam: 2), for memory.", 2
    )
    dtype: str = _key("The dtype of those.", "f32")


class CoverageEntry(_Model):
    """How much may stay replicated."""

    max_replicated_bytes: Bound | None = _key(
        "What every device may hold whole: a share of the bytes of all arrays, such as `2%`, or a"
        " size, such as `64 MiB`."
    )


class StepEntry(_Model):
    """What a step computes, by names: for `cost` and `search` without code."""

    extends: str | None = _key(
        "A bundled step (`decoder`), or a file, whose `step` this one goes by."
    )
    mode: Literal["train", "serve"] | None = _key(
        "`train`: forward, backward and update; `serve`: forward alone."
    )
    tokens: Expression | None = _key(
        "Tokens of a step on all devices, `4M`; else `batch` times `length`."
    )
    microbatches: Positive | None = _key("Parts that a batch goes through in, one after another.")
    remat: Texts | None = _key(
        "What the backward pass computes again: `none`, `full`, `dots` (all but products),"
        " `stages` (of a pipeline), or the results that are kept."
    )
    dtype: str | None = _key("The dtype of results and products: `bf16`.")
    attention: Literal["flash", "einsum"] | None = _key(
        "Whether `flash(...)` is a kernel, or the products with their scores."
    )
    gradients: Literal["bf16", "f32"] | None = _key(
        "The dtype that gradients are summed in over devices; else that of products, and over"
        " microbatches f32."
    )
    pipeline: str | None = _key(
        "How stages take turns, where a mesh axis splits the layers: `1f1b` (where nothing is"
        " said), `interleaved(2)`, `zero-bubble`; `gpipe` is one program with a buffer, in which"
        " every microbatch goes on by one stage a turn."
    )
    gather: Literal["layer", "microbatch", "step"] | None = _key(
        "How long weights that are sharded over the batch's mesh axes stay gathered: for their"
        " `layer`, so that the backward pass gathers them again; for a `microbatch`; for the"
        " `step`."
    )
    reduce: Literal["microbatch", "step"] | None = _key(
        "Whether gradients are reduced over devices in each `microbatch`, or once a `step`, added"
        " up before. Left out: once under ZeRO-1 and in a pipeline, else as XLA does it."
    )
    experts: Expression | None = _key(
        "How tokens go to experts: `top 2 capacity 1.25` are two of them, each with room for 1.25"
        " times its even share of a sequence; `top 2 dropless` sorts them, and with `balance 1.3"
        " p99 2` the busiest takes 1.3 even shares on average, and 2 in one step of a hundred."
    )
    program: list[str] | None = _key(
        'Lines in order: `residual, "**/query/kernel" -> query`. A pattern runs once for each'
        " array and layer."
    )


class ReplicateEntry(_Matching):
    """Arrays that are meant to be replicated on every device."""

    because: str = Field(description="Why, for whoever reads this next.")


Axis = Annotated[AxisEntry, _read(_size_as_axis, int | str | AxisEntry | None)]
Rule = Annotated[RuleEntry, _read(_text_as_rule, str | RuleEntry)]
Activation = Annotated[ActivationEntry, _read(_names_as_activation, str | ActivationEntry)]


class Document(_Model):
    """How every array of a model is laid out on every machine it will run on."""

    shardspec: int = _key("Version of the language: 1.", 1)
    doc: str = _key("One line on what this spec is for.", "")
    extends: Texts = _items(
        "Presets by name, or files by relative path, merged left to right: `[fsdp, ./base.yaml]`."
    )
    let: dict[str, Expression] = _entries(
        "Names for numbers: `tp: 8`, `dp: 2 * tp`. They stand in mesh sizes (`tensor: tp`), in"
        " sizes of axes and arrays (`heads: 8 * tp`) and in each other."
    )
    axes: dict[str, Axis] = _entries(
        "Logical axes, what the model calls its dimensions, and their sizes: `{embed: 4096}`."
    )
    hardware: Expression | None = _key(
        "The machine of the only target, where `targets` is left out."
    )
    mesh: dict[str, Size] | None = _key("The mesh of the only target, where `targets` is left out.")
    devices: Devices | None = _key(
        "Which device stands where in the mesh of the only target, as in `targets`: `0 1 3 2`,"
        " `0..3 7..4`."
    )
    targets: dict[str, TargetEntry] = _entries(
        "Machines by name, each with its mesh: `pod: {hardware: tpu v5e 4x4, mesh: {data: rest}}`."
    )
    rules: list[Rule] = _items(
        "Axis rules, tried top to bottom: order is priority. `* -> fsdp` is for arrays that"
        " nothing names."
    )
    drop: Texts = _items("Logical axes whose inherited rules are removed.")
    params: dict[str, Names] = _entries(
        'Logical axes by path, for arrays that carry none: `"**/wi": embed mlp`. The path is a'
        " glob, or `re:` and a regex; behind `optional:` for a part that some models lack. The"
        " first match wins."
    )
    overrides: list[OverrideEntry] = _items(
        "A list of names or partitions that win over everything else:"
        ' `- {path: "**/wo", axes: mlp embed}`, or `- {path: "**/wo", spec: "(model, none)"}`.'
        " The first match wins."
    )
    derive: dict[str, str] = _entries(
        'Arrays that follow another array, by path: `"**/lora_a": from **/kernel dims 0 _` has the'
        " first dimension of the kernel beside it, and one of its own. `from **/kernel = a[embed] @"
        " b` is both sides of a LoRA, by what is summed over."
    )
    scan: dict[str, str] = _entries(
        "Stacked axes by path: `{layers/**: layers@0}` puts the axis `layers` at position 0."
    )
    memory: dict[str, Memory] = _entries(
        "Memory kinds by path: `{opt_state/**: pinned_host}`; or `device`, `unpinned_host`."
        " Optimizer state is called `opt_state/...`. The first match wins."
    )
    training: dict[str, Literal["trained", "frozen"]] = _entries(
        'Which arrays are trained, by path: `"**/kernel": frozen` have no gradient and no optimizer'
        " state. The first match wins; what none matches is `trained`."
    )
    activations: dict[str, Activation] = _entries(
        "Constraints that code uses by name: `{hidden: batch mlp}`. The key is a name, a glob, or"
        " `re:` and a regex. The name itself comes first, then the first pattern that matches."
    )
    arrays: dict[str, str] = _entries(
        'Arrays by path, with ranges: `"a/{0..3}": bf16[embed mlp]` or `bf16[10240, 4096]`.'
    )
    caches: dict[str, str] = _entries(
        "Key-value caches by path, with ranges:"
        ' `"{0..3}/key": bf16[batch cache_length kv_heads kv]`. Memory counts them apart.'
    )
    manifest: Texts = _items(
        "Files that list arrays, relative to this one, or names of bundled ones."
    )
    policy: PolicyEntry = Field(
        default_factory=lambda: PolicyEntry.model_construct(),
        description="Choices that change the answer: `{indivisible: next}`.",
    )
    state: StateEntry | None = _key(
        "Optimizer state and gradients in training, and their layout: `{optimizer: zero1}`."
    )
    coverage: CoverageEntry | None = _key(
        "How much may be replicated on every device: `{max_replicated_bytes: 2%}`."
    )
    replicate: list[ReplicateEntry] = _items(
        "A list of arrays that are meant to be replicated, each with the reason:"
        ' `- {path: "**/norm/**", because: tiny}`.'
    )
    step: StepEntry | None = _key(
        "What a step computes: `{extends: decoder}`. `cost` uses it where there is no code."
    )
    lints: dict[str, Level] = _entries(
        "Severity of findings, by name, by code or by the start of codes: `{SHD3: allow}`."
    )
    phases: dict[str, dict[str, Any]] = _entries(
        "Other layouts of the same arrays, by name: `decode: {rules: [batch -> data]}`. Each is a"
        " small document that is merged over this one."
    )


#: The entries of a section, where they are no plain values.
ENTRIES: dict[str | int, type[BaseModel]] = {
    "axes": AxisEntry,
    "targets": TargetEntry,
    "rules": RuleEntry,
    "overrides": OverrideEntry,
    "activations": ActivationEntry,
    "policy": PolicyEntry,
    "state": StateEntry,
    "coverage": CoverageEntry,
    "replicate": ReplicateEntry,
    "step": StepEntry,
}
