"""Arrays of any names and shapes, those of models among them."""

from __future__ import annotations

from hypothesis import strategies as st

from shardspec.ir.spec import Param, Params

_PARTS = (
    *("model", "encoder", "layers_0", "layers_1", "layers", "h", "0", "1", "31", "mlp", "attn"),
    *("q_proj", "query", "k", "wi", "wi_0", "up_proj", "down", "c_attn", "norm", "ln_1", "experts"),
    *("moe", "lm_head", "embed_tokens", "conv1", "mixer", "in_proj", "Dense_0", "pos_embed"),
)
_LEAVES = ("weight", "kernel", "bias", "scale", "embedding", "w", "")
_ODD = ("re:x", "a b", "it's", 'a"b', "x: y", "# no", "line\nbreak", "tab\t", "{0..3}", "a,b", "*")
_ODDER = ("?", "\\", "[0]", "é", "🙂", "-", "null", "~", " ", "a//b", "'", ">", "%", "&x", "!y")

_parts = (
    st.sampled_from(_PARTS) | st.sampled_from((*_ODD, *_ODDER)) | st.text(min_size=1, max_size=4)
)


def _joined(parts: list[str], leaf: str, mark: str) -> str:
    return mark.join([*parts, leaf] if leaf else parts)


paths = st.builds(
    _joined,
    st.lists(_parts, min_size=1, max_size=4),
    st.sampled_from(_LEAVES),
    st.sampled_from(("/", ".")),
).filter(lambda path: path.isprintable() or "\n" in path or "\t" in path)
_sizes = st.sampled_from((1, 2, 3, 8, 16, 64, 64, 64, 97, 128, 256, 1000, 0, 1 << 40))
_shapes = st.lists(_sizes, max_size=4).map(tuple)
_own = st.sampled_from((None, None, "embed", "embed'", "mlp", "kv", "norm", "batch", "mine"))


@st.composite
def _params(draw: st.DrawFn) -> Param:
    shape = draw(_shapes)
    own = None
    if shape and draw(st.integers(0, 5)) == 0:
        names = [draw(_own) for _ in shape]
        own = tuple(None if name in names[:at] else name for at, name in enumerate(names))
    return Param(draw(paths), shape, draw(st.sampled_from(("f32", "bf16"))), own)


arrays: st.SearchStrategy[Params] = st.lists(
    _params(),
    max_size=12,
    unique_by=lambda param: param.path,
).map(tuple)
