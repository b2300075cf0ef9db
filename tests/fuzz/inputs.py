"""Inputs that are nearly right: real files with pieces of them changed, and words to go with them."""

from __future__ import annotations

import json
import random
import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]

JUNK = (
    *("", "\x00", "\x1b[31m", "\x9b2J", "\u202e", "\ud800", "\ufeff", "é", "\u2028", "\r", "\t"),
    *("null", "true", "on", "~", "-1", "0", "1e9", "007", "999999999999999", "9" * 40, ".5"),
    *("{", "}", "[", "]", "(", ")", "|", "->", ":", ",", ";", "#", '"', "'", "\\", "@", "&a", "*a"),
    *(
        "rest",
        "none",
        "_",
        "submesh 4x2x2x1",
        "auto 16",
        "over x y2/2",
        "2 @ dcn",
        "submesh 0x0",
        "explicit",
    ),
    *("tpu v4 4x4x8", "8 cpu", "16 * h100", "1000000000000 cpu", "2 * tpu v5p 4x4x4", "v4-512"),
    *("**", "*", "?", "{0..9}", "{9..0}", "{0..99999999}", "{a,b}", "re:.*", "re:(", r"re:(a)\1"),
    *(
        "re:(?!a).*",
        r"re:\b\w+",
        "f32[]",
        "bf16[embed mlp]",
        "f32[" + "999999999999999, " * 9 + "2]",
    ),
    *(
        "embed -> data",
        "a, b -> (data, model) | none @ -3",
        "git:HEAD:a",
        "preset:t5x/2d",
        "t5x/2d",
    ),
    *("../spec.yaml", "/etc/passwd", "spec.yaml", "extends", "mesh", "rules", "arrays", "x" * 3000),
)
VALUES = (*JUNK, 0, -1, 2**63, 10**15, 1.5, True, None, [], {}, [[]], {"a": {"b": []}}, ["a -> b"])
SETTINGS = (
    *("mesh.model=8", "mesh.data=rest", "mesh.model=0", "mesh.modle=4", "axes.embed=100", "hardware=8 cpu"),
    *("targets.x.mesh.data=3", "rules.0=embed -> data", "state.zero=1", "mesh={}", "=", "a", "policy.uneven=error"),
    *("axes.embed=999999999999999", "hardware=tpu v4 9999x9999x9999", "mesh.model=999999999999999"),
)  # fmt: skip


@cache
def specs() -> tuple[str, ...]:
    """Return the YAML specs of the house: examples, presets, and the cases of the findings."""
    found = [path.read_text("utf-8") for path in sorted(ROOT.glob("specs/examples/*.yaml"))]
    found += [path.read_text("utf-8") for path in sorted(ROOT.glob("specs/presets/**/*.yaml"))]
    for path in sorted(ROOT.glob("tests/cases/*.md")):
        found += re.findall(r"```yaml[^\n]*\n(.*?)```", path.read_text("utf-8"), re.DOTALL)
    return tuple(text for text in found if len(text) < 6_000)


@cache
def dsl_specs() -> tuple[str, ...]:
    """Return the specs of the house in the DSL."""
    found = [path.read_text("utf-8") for path in sorted(ROOT.glob("specs/examples/*.shard"))]
    return tuple(text for text in found if len(text) < 6_000)


@cache
def manifests() -> tuple[str, ...]:
    """Return listings of arrays, in YAML and JSON."""
    arrays = {
        "a/layers_{0..3}/w": "bf16[embed=64 mlp=128]",
        "a/b": {"shape": [4, 8], "dtype": "f32"},
    }
    headed = {"shardspec-arrays": 1, "arrays": {"a/b": "f32[8, 4]"}}
    found = [path.read_text("utf-8") for path in sorted(ROOT.glob("specs/arrays/*.yaml"))]
    kept = [text for text in found if len(text) < 6_000]
    return (*kept, yaml.safe_dump(arrays), json.dumps(arrays), json.dumps(headed, indent=1))


FOREIGN: dict[str, str] = {
    "t5x-gin": (
        "from t5x import partitioning\nNAME = 4\npartitioning.PjitPartitioner:\n"
        "  num_partitions = %NAME\n  logical_axis_rules = [('embed', None), ('mlp', 'model')]\n"
        "  params_axes_names_override = [('encoder/.*/kernel', ('embed', 'mlp'))]\n"
    ),
    "flax": "rules = (('embed', 'data'), ('mlp', ('model', 'data')), ('a', None))\n",
    "nnx": "RULES = [('embed', 'data'), ('mlp', 'model')]\n",
    "maxtext": (
        "mesh_axes: ['data', 'fsdp', 'tensor']\ndata_sharding: [['data', 'fsdp']]\n"
        "logical_axis_rules: [['embed', ['fsdp']], ['mlp', 'tensor']]\nici_fsdp_parallelism: -1\n"
    ),
    "regex": "def rules():\n  return ((r'.*/kernel$', PS('data', 'model')), ('bias', P()), ('.*', P(None)))\n",
    "haliax": "trainer:\n  mesh:\n    axes: {data: -1, model: 2}\n    param_mapping: {embed: data}\n",
    "hf-tp-plan": '{"base_model_tp_plan": {"layers.*.self_attn.q_proj": "colwise", "norm": "rowwise"}}\n',
    "keras": (
        "layout_map = LayoutMap(mesh)\nlayout_map['dense.*kernel'] = (None, 'model')\n"
        "layout_map['conv2d/bias'] = ('model',)\n"
    ),
}  # fmt: skip

ARRAYS = "shardspec-arrays: 1\narrays:\n  decoder/layers_{0..1}/mlp/kernel: f32[embed=64 mlp=32]\n"


#: What the small steps, whose programs are kept, are placed by.
STEP_SPEC = """\
shardspec: 1
targets:
  pod: {hardware: tpu v5e 4x4, mesh: {fsdp: 8, tensor: 2}}
  typed: {hardware: 2 * h100, mesh: {fsdp: 8 @ dcn, tensor: 2}}
rules: [batch -> fsdp, mlp -> tensor, embed -> fsdp]
params: {"**/wi": embed mlp, "**/wo": mlp embed}
arrays: {mlp/wi: "f32[1024, 4096]", mlp/wo: "f32[4096, 1024]"}
activations: {residual: batch _ _, hidden: batch _ mlp}
"""


@cache
def step_spec(*, is_dsl: bool) -> str:
    """Return it in one of the two forms."""
    if not is_dsl:
        return STEP_SPEC
    from shardspec.diagnostics import SourceFile
    from shardspec.language.formatting import formatted

    text, _ = formatted(SourceFile("spec.yaml", STEP_SPEC), "dsl")
    assert text is not None
    return text


@cache
def programs() -> tuple[str, ...]:
    """Return final programs of compilers."""
    paths = sorted(ROOT.glob("tests/data/programs/*.txt"))
    return tuple(path.read_text("utf-8") for path in paths)


@cache
def assignment() -> str:
    """Return the memory of such a program."""
    return ROOT.joinpath("tests/data/assignments/plain-v5e.txt").read_text("utf-8")


def changed_program(chance: random.Random) -> str:
    """Return a program with pieces of it changed, or lines of several."""
    text = chance.choice(programs())
    if chance.random() < 0.2:
        lines = [line for each in programs() for line in chance.sample(each.splitlines(), 60)]
        return "HloModule m, num_partitions=16\nENTRY %m () -> f32[] {\n" + "\n".join(lines)
    for _ in range(chance.choice((0, 1, 3, 10))):
        text = chance.choice((_characters, _word, _lines, _numbers))(text, chance)
    return text


def _numbers(text: str, chance: random.Random) -> str:
    """Return a text in which one number is another everywhere."""
    numbers = re.findall(r"\d+", text)
    if not numbers:
        return text
    put = chance.choice(("0", "1", "7", "9" * 18, "9" * 400, "-1"))
    return re.sub(rf"\b{chance.choice(numbers)}\b", put, text)


def changed(text: str, chance: random.Random) -> str:
    """Return a text with one to four changes: of characters, words or lines, or of its data."""
    if chance.random() < 0.35:
        text = _structural(text, chance)
    for _ in range(chance.choice((0, 1, 1, 2, 4))):
        text = chance.choice((_characters, _characters, _word, _word, _lines, _cut))(text, chance)
    return text


def _characters(text: str, chance: random.Random) -> str:
    start = chance.randrange(len(text) + 1)
    end = min(len(text), start + chance.choice((0, 0, 1, 1, 2, 8)))
    put = (
        chance.choice(JUNK)
        if chance.random() < 0.7
        else chr(chance.choice((chance.randrange(128), chance.randrange(0xD7FF))))
    )
    return text[:start] + put + text[end:]


def _word(text: str, chance: random.Random) -> str:
    words = list(re.finditer(r"\w+|\S", text))
    if not words:
        return text
    word = chance.choice(words)
    put = chance.choice(words)[0] if chance.random() < 0.5 else str(chance.choice(JUNK))
    return text[: word.start()] + put + text[word.end() :]


def _lines(text: str, chance: random.Random) -> str:
    lines = text.splitlines(keepends=True) or [""]
    at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    match chance.randrange(5):
        case 0:
            del lines[at]
        case 1:
            lines[at:at] = [lines[other]]
        case 2:
            lines[at], lines[other] = lines[other], lines[at]
        case 3:
            lines[at] = chance.choice(("  ", " ", "\t")) + lines[at]
        case _:
            lines[at:at] = lines[other : other + 5] * chance.choice((1, 3, 40))
    return "".join(lines)


def _cut(text: str, chance: random.Random) -> str:
    at = chance.randrange(len(text) + 1)
    return text[:at] if chance.random() < 0.5 else text[at:]


def _structural(text: str, chance: random.Random) -> str:
    """Return a YAML or JSON text with one value of its data changed; another text as it is."""
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    if not isinstance(data, dict | list) or not data:
        return text
    inside: Any = data
    while True:
        keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
        key = chance.choice(keys)
        below = inside[key]
        if not isinstance(below, dict | list) or not below or chance.random() < 0.3:
            break
        inside = below
    match chance.randrange(4):
        case 0:
            del inside[key]
        case 1 if isinstance(inside, dict):
            inside[str(chance.choice(JUNK))] = inside.pop(key)
        case 2:
            inside[key] = (
                chance.choice((data, [below, below], {"a": below})) if below is not data else 1
            )
        case _:
            inside[key] = chance.choice(VALUES)
    try:
        return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
