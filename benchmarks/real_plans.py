"""What `import` and `check` say about sharding plans of transformers, keras-hub and MaxText.

    pip install torch transformers keras keras-hub   # in an environment of its own, with shardspec
    python benchmarks/real_plans.py collect --cache plans    # some minutes, once
    python benchmarks/real_plans.py collect --cache plans --tool maxtext --checkout maxtext
    python benchmarks/real_plans.py keep --cache plans > tests/data/real_plans/plans.json.xz
    python benchmarks/real_plans.py check
    python benchmarks/real_plans.py judge    # new findings get the rule's verdict: read each
    python benchmarks/real_plans.py check --cache plans --code SHD205 --verdict small
    python benchmarks/real_plans.py arrays gpt_oss.GptOssForCausalLM --cache plans > arrays.yaml

`collect` builds each model on the meta device at the sizes its configuration has by default, asks
transformers for the whole plan of the model, lets transformers itself apply it to a mesh of 8 (over
a process group that does nothing), and writes down names, shapes, and what was really split. For
keras-hub it asks Keras's own `LayoutMap` for every variable. Of MaxText it reads the shardings that
its own tests expect, and asks Flax for three models under each of its rule sets. `keep` writes one
model of each family into one file, which the tests read. `check` needs none of the libraries: it
imports each plan, checks the spec with the arrays of its model, and judges every line printed:

- useful: JAX would refuse an array that it is about, or its arrays are whole in the tool too and
  are large: 2 % of what a device holds;
- false: its arrays are split in the tool and it says they are whole; it says that sizes do not
  divide and they do; it says that an entry matches nothing and it does;
- small: true, and neither.

The rule reads the names in a finding and what the tool did, and nothing that shardspec worked out.
`missed` counts large arrays that the tool leaves whole and no finding names, and sizes that do not
divide and no finding names. What a plan itself names as whole (`replicate`) is not missed.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmarks import maxtext_plans

DEVICES = 8
#: What `keep` wrote.
KEPT = Path(__file__).parents[1] / "tests/data/real_plans/plans.json.xz"
LARGE_SHARE = 0.02
ITEM_BYTES = 2
VERDICTS = ("useful", "small", "false")
_QUOTED = re.compile(r"`([^`\s]+)`")


# What the tools do, written down once.


@dataclass(frozen=True)
class Model:
    """A model with its plan and what its own tool splits.

    Attributes:
      shapes: by path, joined by `/`.
      split: by path, the dimensions that are split and into how many; absent where none is.
      packed: arrays that no PartitionSpec can describe.
      plan: the entries as the tool has them; of MaxText the keys of its files, and the mesh.
      names: the logical axes that arrays carry themselves.
    """

    name: str
    tool: str
    shapes: Mapping[str, tuple[int, ...]]
    split: Mapping[str, tuple[tuple[int, int], ...]]
    packed: frozenset[str]
    plan: Mapping[str, Any]
    raises: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)

    def bytes(self, path: str) -> int:
        """Return how much an array is, of two bytes an element."""
        return math.prod(self.shapes[path]) * ITEM_BYTES

    def is_whole(self, path: str) -> bool:
        """Say whether the tool leaves an array whole."""
        return path not in self.split and path not in self.packed

    def is_uneven(self, path: str) -> bool:
        """Say whether JAX would refuse the split that the tool makes."""
        return any(self.shapes[path][dim] % ways for dim, ways in self.split.get(path, ()))

    def held(self, path: str) -> float:
        """Return the bytes of an array on one device."""
        ways = math.prod(ways for _, ways in self.split.get(path, ()))
        return self.bytes(path) / (DEVICES if path in self.packed else ways)

    @cached_property
    def dead(self) -> frozenset[str]:
        """Return the keys of the plan that name nothing, as the tool looks them up."""
        if self.tool == "maxtext":
            return frozenset()
        if self.tool == "keras":
            return frozenset(
                key for key in self.plan if not any(re.fullmatch(key, p) for p in self.shapes)
            )
        names = {part for path in self.shapes for part in accumulate(_generic(path), _dotted)}
        return frozenset(key for key in self.plan if key not in names)

    def says_whole(self, path: str) -> bool:
        """Say whether the plan names an array, and leaves it whole."""
        if self.tool == "maxtext":
            return self.is_whole(path)
        if self.tool == "keras" or not self.is_whole(path):
            return False
        name = ".".join(_generic(path))
        return name in self.plan or name.rpartition(".")[0] in self.plan

    @cached_property
    def large(self) -> float:
        """Return how many bytes are large: of what a device holds as the tool splits it."""
        return LARGE_SHARE * sum(map(self.held, self.shapes))

    @cached_property
    def groups(self) -> dict[str, list[str]]:
        """Return the paths by what they are called without their numbers, and by shape."""
        found: dict[str, list[str]] = defaultdict(list)
        for path, shape in self.shapes.items():
            found[f"{re.sub(r'[0-9]+', '#', path)} {list(shape)}"].append(path)
        return dict(found)

    def is_large(self, paths: Sequence[str]) -> bool:
        """Say whether arrays are large together."""
        return sum(self.bytes(path) for path in paths) >= self.large


def _generic(path: str) -> list[str]:
    """Return the parts of a name with `*` for numbers, as transformers looks it up."""
    return re.sub(r"\.\d+(\.|$)", r".*\1", path.replace("/", ".")).split(".")


def _dotted(name: str, part: str) -> str:
    return f"{name}.{part}"


def models(cache: Path) -> Iterator[Model]:
    """Yield the models that were collected: a folder of them, or one file that `keep` wrote."""
    for raw in raw_models(cache):
        split = {path: tuple(map(tuple, dims)) for path, dims in raw["split"].items()}
        shapes = {path: tuple(shape) for path, shape in raw["shapes"].items()}
        packed = frozenset(raw["packed"])
        names = {path: tuple(each) for path, each in raw.get("names", {}).items()}
        yield Model(
            raw["name"], raw["tool"], shapes, split, packed, raw["plan"], raw["raises"], names
        )


def raw_models(cache: Path) -> Iterator[dict[str, Any]]:
    """Yield models as they are written."""
    if cache.is_file():
        yield from json.loads(lzma.decompress(cache.read_bytes()))["models"]
        return
    for file in sorted(cache.glob("*.json")):
        yield json.loads(file.read_text(encoding="utf-8"))


def keep(options: argparse.Namespace) -> None:
    """Write one model of each family to stdout, compressed."""
    kept: dict[str, dict[str, Any]] = {}
    for raw in raw_models(options.cache):
        family = raw["name"] if raw["tool"] != "hf-tp-plan" else raw["name"].partition(".")[0]
        kept.setdefault(family, raw)
    text = json.dumps({"models": list(kept.values())}, separators=(",", ":"))
    sys.stdout.buffer.write(lzma.compress(text.encode(), preset=9))


# What shardspec says.


@dataclass(frozen=True)
class Judged:
    """A finding with its verdict, and the bytes of the arrays that it is about."""

    model: str
    code: str
    verdict: str
    size: int
    message: str
    paths: tuple[str, ...] = field(repr=False, default=())

    @property
    def key(self) -> str:
        """Return what tells it from other findings about the model."""
        return f"{self.code} {self.message}"


@dataclass(frozen=True)
class Result:
    """What one model gave.

    Attributes:
      imported: the findings of the import, by code.
      missed: groups of arrays that a finding should have named.
    """

    model: Model
    imported: Counter[str]
    is_proved: bool
    findings: tuple[Judged, ...]
    missed: tuple[str, ...]


def run(model: Model, folder: Path) -> Result:
    """Import the plan of a model and check the spec, by the commands that a user has."""
    arrays, spec = folder / "arrays.yaml", folder / "spec.yaml"
    arrays.write_text(manifest(model), encoding="utf-8")
    spec.unlink(missing_ok=True)
    files, mesh = plan_files(model, folder)
    command = ("import", model.tool, *files, "--mesh", mesh)
    code, _, said = shardspec(*command, "--against", str(arrays), "-o", str(spec))
    imported = Counter(re.findall(r"\[(SHD\d{3})\]", said))
    if not spec.exists():
        return Result(model, imported, False, (), ())
    check = ("check", str(spec), "--arrays", str(arrays), "--format", "json")
    _, out, _ = shardspec(*check)
    found = json.loads(out)["findings"]
    judged = tuple(_judged(model, each) for each in found)
    return Result(model, imported, code == 0, judged, tuple(_missed(model, found, imported)))


def plan_files(model: Model, folder: Path) -> tuple[list[str], str]:
    """Write the files of a plan; return their names, and the mesh that it is for."""
    if model.tool != "maxtext":
        plan = folder / "plan.json"
        plan.write_text(json.dumps({_PLANS[model.tool]: model.plan}, indent=1), encoding="utf-8")
        return [str(plan)], _MESHES[model.tool]
    for name, keys in model.plan["files"].items():
        (folder / name).write_text(json.dumps(keys, indent=1), encoding="utf-8")
    mesh = " ".join(f"{axis}={size}" for axis, size in model.plan["mesh"].items())
    return [str(folder / name) for name in model.plan["files"]], mesh


def manifest(model: Model) -> str:
    """Return the arrays of a model as `--against` and `--arrays` read them."""

    def dims(path: str, shape: tuple[int, ...]) -> str:
        names = model.names.get(path)
        if names is None:
            return ", ".join(map(str, shape))
        pairs = zip(names, shape, strict=True)
        return " ".join(f"{name or '_'}={size}" for name, size in pairs)

    return "".join(f"{path}: bf16[{dims(path, s)}]\n" for path, s in model.shapes.items())


def arrays(options: argparse.Namespace) -> None:
    """Print the arrays of one model."""
    print(next(manifest(m) for m in models(options.cache) if m.name == options.model), end="")


_PLANS = {"hf-tp-plan": "tp_plan", "keras": "layout"}
_MESHES = {"hf-tp-plan": f"tp={DEVICES}", "keras": f"batch=2 model={DEVICES}"}


def shardspec(*arguments: str) -> tuple[int, str, str]:
    """Run the command line in this process; return exit code and both streams."""
    from click.testing import CliRunner

    from shardspec.cli.main import cli

    result = CliRunner().invoke(cli, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def _judged(model: Model, finding: Mapping[str, Any]) -> Judged:
    paths = subject(model, finding)
    size = sum(model.bytes(path) for path in paths)
    verdict = _verdict(model, finding, paths)
    return Judged(model.name, finding["code"], verdict, size, finding["message"], paths)


def subject(model: Model, finding: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the arrays that a finding lists, or else names in its message or notes."""
    listed = [path for glob in finding["arrays"] for path in _expanded(model, glob)]
    if listed:
        return tuple(dict.fromkeys(listed))
    for text in (finding["message"], " ".join(finding["notes"])):
        paths = [path for name in _names(text) for path in _expanded(model, name)]
        several = re.findall(r"arrays, first ([\w./-]+)", text) if paths else ()
        paths += [each for path in several if path in model.shapes for each in _alike(model, path)]
        if paths:
            return tuple(dict.fromkeys(paths))
    return ()


def _names(text: str) -> Iterator[str]:
    yield from _QUOTED.findall(text)
    yield from re.findall(r"(?:arrays?, (?:first )?|largest )([\w./{},-]+)", text)


def _alike(model: Model, path: str) -> list[str]:
    """Return the arrays that a note means by "24 arrays, first PATH"."""
    leaf = path.rpartition("/")[2]
    whole = model.shapes[path]
    return [
        each
        for each, shape in model.shapes.items()
        if shape == whole and each.rpartition("/")[2] == leaf
    ]


def _expanded(model: Model, name: str) -> list[str]:
    from shardspec.diagnostics.words import expanded

    found = [path for path in expanded(name, 1 << 20) or () if path in model.shapes]
    if found or not re.search(r"[/.]", name):
        return found
    try:
        return [path for path in model.shapes if re.fullmatch(name, path)]
    except re.error:
        return []


_SAYS_WHOLE = ("SHD205", "SHD401", "SHD402", "SHD404")
_SAYS_UNEVEN = ("SHD301", "SHD302")
_SAYS_UNMATCHED = ("SHD204",)


def _verdict(model: Model, finding: Mapping[str, Any], paths: Sequence[str]) -> str:
    code = finding["code"]
    if code in _SAYS_UNMATCHED:
        said = re.sub(r"\[\./\]", ".", finding["message"]).replace(r"\d+", "*")
        return "small" if any(f"re:{key}" in said for key in model.dead) else "false"
    if any(model.is_uneven(path) for path in paths):
        return "useful"
    if code in _SAYS_UNEVEN and paths:
        return "false"
    if code in _SAYS_WHOLE and paths and not any(model.is_whole(path) for path in paths):
        return "false"
    whole = [path for path in paths if model.is_whole(path)]
    return "useful" if model.is_large(whole) else "small"


def _missed(
    model: Model, found: Sequence[Mapping[str, Any]], imported: Counter[str]
) -> Iterator[str]:
    """Yield the groups of arrays that are large and whole, or uneven, and that nothing names."""
    named = {path for finding in found for path in subject(model, finding)}
    for group, paths in model.groups.items():
        whole = [p for p in paths if model.is_whole(p) and not model.says_whole(p)]
        uneven = [path for path in paths if model.is_uneven(path)]
        if (whole and model.is_large(whole) and named.isdisjoint(whole)) or (
            uneven and named.isdisjoint(uneven)
        ):
            yield group


# The figures.


def report(results: Sequence[Result]) -> None:
    """Print the counts by code, with the bytes of the arrays that findings are about."""
    table: dict[str, Counter[str]] = defaultdict(Counter)
    sizes: Counter[str] = Counter()
    for each in (finding for result in results for finding in result.findings):
        table[each.code][each.verdict] += 1
        sizes[each.code] += each.size
    print(f"{len(results)} models, {sum(len(r.model.shapes) for r in results):,} arrays")
    print(f"{'code':8}{'printed':>9}" + "".join(f"{v:>9}" for v in VERDICTS) + f"{'GiB':>12}")
    total: Counter[str] = Counter()
    for code in sorted(table):
        total += table[code]
        _row(code, table[code], sizes[code])
    _row("all", total, sum(sizes.values()))
    print(f"missed   {sum(len(result.missed) for result in results)}")
    codes = sum((result.imported for result in results), Counter[str]())
    print("import   " + "  ".join(f"{code} {count}" for code, count in sorted(codes.items())))
    print(f"proved   {sum(result.is_proved for result in results)} models")


def _row(code: str, counts: Counter[str], size: int) -> None:
    verdicts = "".join(f"{counts[verdict]:>9}" for verdict in VERDICTS)
    print(f"{code:8}{sum(counts.values()):>9}{verdicts}{size / 2**30:>12.1f}")


VERDICTS_FILE = KEPT.with_name("verdicts.json")


def verdicts() -> dict[str, dict[str, list[str]]]:
    """Return the verdict and why, by model and by the code and message of a finding."""
    found: dict[str, dict[str, list[str]]] = json.loads(VERDICTS_FILE.read_text(encoding="utf-8"))
    return found


def judge(options: argparse.Namespace) -> None:
    """Write the verdict on each finding: the one there is, or else by the rule of this file."""
    known = verdicts() if VERDICTS_FILE.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        results = [run(model, Path(folder)) for model in models(options.cache)]
    told = {
        result.model.name: {
            each.key: known.get(result.model.name, {}).get(each.key) or _proposed(result, each)
            for each in result.findings
        }
        for result in results
        if result.findings
    }
    VERDICTS_FILE.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def _proposed(result: Result, finding: Judged) -> list[str]:
    """Return the verdict of the rule, with the figures that it goes by."""
    model = result.model
    held = sum(map(model.held, model.shapes))
    share = f"{finding.size / 2**20:,.0f} MiB, {finding.size / held:.1%} of what a device holds"
    why = {
        "useful": f"{model.tool} leaves these whole, too: {share}",
        "small": f"true, and little: {share}",
        "false": "the tool does otherwise",
    }[finding.verdict]
    return ["noise" if finding.verdict == "small" else finding.verdict, why]


def show(results: Sequence[Result], code: str | None, verdict: str | None) -> None:
    """Print the findings of a code or verdict, and what was missed."""
    for result in results:
        for each in result.findings:
            if code in (None, each.code) and verdict in (None, each.verdict):
                print(f"{each.model}: {each.verdict}: {each.code} {each.message[:150]}")
        if verdict in (None, "missed") and code is None:
            for group in result.missed:
                print(f"{result.model.name}: missed: {group}")


def check(options: argparse.Namespace) -> None:
    """Import and check every model that was collected."""
    chosen = [m for m in models(options.cache) if options.only is None or options.only in m.name]
    with tempfile.TemporaryDirectory() as folder:
        results = [run(model, Path(folder)) for model in chosen]
    if options.code or options.verdict or options.only:
        show(results, options.code, options.verdict)
    report(results)


# The tools themselves: needed by `collect` alone.


def collect(options: argparse.Namespace) -> None:
    """Ask both tools about every model that has a plan."""
    options.cache.mkdir(parents=True, exist_ok=True)
    if options.tool in (None, "keras"):
        for raw in keras_hub_models():
            _keep(options.cache, raw)
    if options.tool in (None, "hf-tp-plan"):
        for raw in transformers_models():
            _keep(options.cache, raw)
    if options.tool == "maxtext":
        for raw in maxtext_plans.models(options.checkout):
            _keep(options.cache, raw)


def _keep(cache: Path, raw: dict[str, Any]) -> None:
    print(f"{raw['name']}: {len(raw['shapes'])} arrays, {len(raw['split'])} split", flush=True)
    (cache / f"{raw['name']}.json").write_text(json.dumps(raw), encoding="utf-8")


def transformers_models() -> Iterator[dict[str, Any]]:
    """Yield the models of transformers that have a plan, at the sizes of their configurations."""
    import importlib
    import inspect

    import torch.distributed as dist
    import transformers.models as package
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from transformers import PreTrainedModel

    dist.init_process_group("fake", rank=0, world_size=DEVICES, store=FakeStore())
    mesh = init_device_mesh("cpu", (DEVICES,), mesh_dim_names=("tp",))
    for file in sorted(Path(next(iter(package.__path__))).glob("*/modeling_*.py")):
        texts = [each.read_text(encoding="utf-8") for each in file.parent.glob("*.py")]
        if not any("tp_plan" in text for text in texts):
            continue
        module = importlib.import_module(f"transformers.models.{file.parent.name}.{file.stem}")
        classes = [getattr(module, name) for name in getattr(module, "__all__", ())]
        classes = [c for c in classes if inspect.isclass(c) and issubclass(c, PreTrainedModel)]
        for model in _tops(classes):
            raw = _transformers_model(model, mesh, file.parent.name)
            if raw is not None:
                yield raw


def _tops(classes: Sequence[Any]) -> Iterator[Any]:
    """Yield, for each configuration, the model that has the most in it."""
    kinds = ("ForConditionalGeneration", "ForCausalLM", "Model")
    seen = set()
    for kind in kinds:
        for each in classes:
            config = getattr(each, "config_class", None)
            if each.__name__.endswith(kind) and isinstance(config, type) and config not in seen:
                seen.add(config)
                yield each


def _transformers_model(model: Any, mesh: Any, folder: str) -> dict[str, Any] | None:
    import torch

    try:
        with torch.device("meta"):
            made = model._from_config(model.config_class())
    except Exception as fault:  # a configuration that has no defaults, or a missing library
        print(f"{folder}.{model.__name__}: left out: {type(fault).__name__}", flush=True)
        return None
    plan = dict(made.tp_plan or {})
    if not plan:
        return None
    shapes = {name: list(each.shape) for name, each in made.named_parameters()}
    raises = _apply(made, plan, mesh)
    split, packed = {}, []
    for name, each in made.named_parameters():
        for placement in getattr(each, "placements", ()):
            if type(placement).__name__ == "Shard":
                split[_slashed(name)] = [(placement.dim % max(each.ndim, 1), DEVICES)]
            elif type(placement).__name__ == "_StridedShard":
                packed.append(_slashed(name))
    return {
        "name": f"{folder}.{model.__name__}",
        "tool": "hf-tp-plan",
        "shapes": {_slashed(name): shape for name, shape in shapes.items()},
        "split": split,
        "packed": packed,
        "plan": plan,
        "raises": raises,
        "sources": _sources(made),
    }


def _sources(made: Any) -> dict[str, Any]:
    """Return the class of a model, and the files that it and its parts are written in."""
    from transformers import PreTrainedModel

    parts = [part for _, part in made.named_modules() if isinstance(part, PreTrainedModel)]
    kinds = [kind for part in parts for kind in (type(part.config), type(part))]
    modules = dict.fromkeys(kind.__module__ for kind in kinds)
    return {"class": type(made).__name__, "modules": list(modules)}


def _apply(made: Any, plan: Mapping[str, str], mesh: Any) -> dict[str, str]:
    """Let transformers split the parameters of a model; return what it raises, by name."""
    from transformers.distributed.parallel_utils import ALL_PARALLEL_STYLES

    modules, parameters = dict(made.named_modules()), dict(made.named_parameters())
    raises = {}
    for name, style in made._expand_parallel_plan(dict(plan)).items():
        owner, _, leaf = name.rpartition(".")
        try:
            if name in parameters:
                ALL_PARALLEL_STYLES[style].shard_param(modules[owner], leaf, mesh)
            elif name in modules:
                ALL_PARALLEL_STYLES[style].install_forward(modules[name], mesh)
        except Exception as fault:
            raises[name] = f"{type(fault).__name__}: {fault}"
    return raises


def _slashed(name: str) -> str:
    return name.replace(".", "/")


#: Sizes of published models, by class of keras-hub and a name of our own.
KERAS_HUB: dict[tuple[str, str], dict[str, Any]] = {
    ("LlamaBackbone", "llama2_7b"): {
        "vocabulary_size": 32000, "num_layers": 32, "num_query_heads": 32,
        "num_key_value_heads": 32, "hidden_dim": 4096, "intermediate_dim": 11008,
    },
    ("QwenBackbone", "qwen2_7b"): {
        "vocabulary_size": 152064, "num_layers": 28, "num_query_heads": 28,
        "num_key_value_heads": 4, "hidden_dim": 3584, "intermediate_dim": 18944,
        "tie_word_embeddings": False,
    },
    ("QwenMoeBackbone", "qwen1.5_moe_2.7b"): {
        "vocabulary_size": 151936, "num_layers": 24, "num_query_heads": 16,
        "num_key_value_heads": 16, "hidden_dim": 2048, "intermediate_dim": 5632,
        "moe_intermediate_dim": 1408, "shared_expert_intermediate_dim": 5632, "num_experts": 60,
    },
    ("Qwen3MoeBackbone", "qwen3_moe_30b"): {
        "vocabulary_size": 151936, "num_layers": 48, "num_query_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "hidden_dim": 2048, "intermediate_dim": 6144,
        "moe_intermediate_dim": 768, "num_experts": 128, "top_k": 8,
    },
    ("LlamaBackbone", "llama2_13b"): {
        "vocabulary_size": 32000, "num_layers": 40, "num_query_heads": 40,
        "num_key_value_heads": 40, "hidden_dim": 5120, "intermediate_dim": 13824,
    },
    ("LlamaBackbone", "llama3_8b"): {
        "vocabulary_size": 128256, "num_layers": 32, "num_query_heads": 32,
        "num_key_value_heads": 8, "hidden_dim": 4096, "intermediate_dim": 14336,
    },
    ("QwenBackbone", "qwen2.5_0.5b"): {
        "vocabulary_size": 151936, "num_layers": 24, "num_query_heads": 14,
        "num_key_value_heads": 2, "hidden_dim": 896, "intermediate_dim": 4864,
        "tie_word_embeddings": True,
    },
    ("QwenBackbone", "qwen2.5_14b"): {
        "vocabulary_size": 152064, "num_layers": 48, "num_query_heads": 40,
        "num_key_value_heads": 8, "hidden_dim": 5120, "intermediate_dim": 13824,
        "tie_word_embeddings": False,
    },
    ("GemmaBackbone", "gemma_2b"): {
        "vocabulary_size": 256000, "num_layers": 18, "num_query_heads": 8,
        "num_key_value_heads": 1, "hidden_dim": 2048, "intermediate_dim": 32768, "head_dim": 256,
    },
    ("GemmaBackbone", "gemma2_27b"): {
        "vocabulary_size": 256000, "num_layers": 46, "num_query_heads": 32,
        "num_key_value_heads": 16, "hidden_dim": 4608, "intermediate_dim": 73728, "head_dim": 128,
        "use_post_ffw_norm": True, "use_post_attention_norm": True,
    },
    ("GemmaBackbone", "gemma_7b"): {
        "vocabulary_size": 256000, "num_layers": 28, "num_query_heads": 16,
        "num_key_value_heads": 16, "hidden_dim": 3072, "intermediate_dim": 49152, "head_dim": 256,
    },
    ("GemmaBackbone", "gemma2_9b"): {
        "vocabulary_size": 256000, "num_layers": 42, "num_query_heads": 16,
        "num_key_value_heads": 8, "hidden_dim": 3584, "intermediate_dim": 28672, "head_dim": 256,
        "use_post_ffw_norm": True, "use_post_attention_norm": True,
    },
}  # fmt: skip


def keras_hub_models() -> Iterator[dict[str, Any]]:
    """Yield the backbones of keras-hub that have a layout map, at the sizes of known models."""
    import os

    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    import keras_hub
    import torch

    devices = [f"cpu:{index}" for index in range(2 * DEVICES)]
    sizes_of = {"batch": 2, "model": DEVICES}
    mesh = keras.distribution.DeviceMesh((2, DEVICES), tuple(sizes_of), devices=devices)
    for (kind, name), sizes in KERAS_HUB.items():
        backbone = getattr(keras_hub.models, kind)
        with keras.device("meta"), torch.device("meta"):
            made = backbone(**sizes, dtype="bfloat16")
        layout = backbone.get_layout_map(mesh)
        split, raises = {}, {}
        for variable in made.variables:
            try:
                found = layout[variable.path]
            except ValueError as fault:
                raises[variable.path] = str(fault)
                continue
            axes = enumerate(found.axes if found is not None else ())
            split[variable.path] = [(dim, sizes_of[axis]) for dim, axis in axes if axis]
        yield {
            "name": f"keras_hub.{name}",
            "tool": "keras",
            "shapes": {variable.path: list(variable.shape) for variable in made.variables},
            "split": {path: dims for path, dims in split.items() if dims},
            "packed": [],
            "plan": {key: list(layout[key].axes) for key in layout},
            "raises": raises,
            "sources": {"class": kind, "modules": [backbone.__module__]},
        }


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(required=True)
    collecting = verbs.add_parser("collect", help="ask transformers and keras-hub, once")
    collecting.add_argument("--tool", choices=[*_PLANS, "maxtext"])
    collecting.add_argument("--checkout", type=Path, help="the repository of MaxText")
    collecting.set_defaults(run=collect)
    checking = verbs.add_parser("check", help="import and check what was collected")
    checking.add_argument("--code", help="show the findings of this code")
    checking.add_argument("--verdict", choices=(*VERDICTS, "missed"), help="show these")
    checking.add_argument("--only", help="models with this in their name")
    checking.set_defaults(run=check)
    printing = verbs.add_parser("arrays", help="print the arrays of a model, for --against")
    printing.add_argument("model")
    printing.set_defaults(run=arrays)
    judging = verbs.add_parser("judge", help="write a verdict for each new finding, to be read")
    judging.set_defaults(run=judge)
    keeping = verbs.add_parser("keep", help="write one model of each family to stdout, for tests")
    keeping.set_defaults(run=keep)
    for each in (collecting, checking, judging, printing, keeping):
        each.add_argument("--cache", type=Path, default=KEPT, help="what was collected")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
