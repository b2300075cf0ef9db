"""One input of the fuzzer: the files of a folder and the command line, both from a number."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import NamedTuple

from tests.fuzz import inputs
from tests.fuzz.laws import broken_law, changed_files, half_written, run, written_over

LOCK = (
    "lock 1, language 1\ninput spec.yaml = sha256:0123456789abcdef0123456789abcdef\n"
    "arrays = sha256:0123456789abcdef0123456789abcdef\n\ntarget default on 8 cpu\nmesh data = 4\n"
    "mesh model = 2 @ dcn explicit : x 4, ring\ndevices t5x = sha256:0123456789abcdef0123456789abcdef\n"
    "activation residual : [batch _ embed=8] = (data, none, none)\n"
    "proof train:step = sha256:0123456789abcdef0123456789abcdef\nproof by jax 0.10.2, libtpu 0.0.52\n"
    "proof code train.py = sha256:0123456789abcdef0123456789abcdef\n"
    "proof sends data + model = 12, predicted 11\nproof holds = 99, predicted 98, of 1000\n"
    "layers_{0..11}/wi : bf16[embed=8 mlp=16] = (data, (model, data))\n"
)  # fmt: skip
PYPROJECT = '[tool.shardspec]\nspec = "spec.yaml"\n[tool.shardspec.lints]\nSHD4 = "warn"\nignore = ["dead-rule"]\n'


class Trial(NamedTuple):
    """Files and a command line."""

    files: dict[str, str]
    arguments: list[str]
    stdin: str = ""


def trial(seed: int, number: int) -> Trial:
    """Return one input; equal numbers give equal inputs."""
    chance = random.Random(f"{seed}/{number}")
    is_dsl = chance.random() < 0.4
    name = "spec.shard" if is_dsl else "spec.yaml"
    seeds = inputs.dsl_specs() if is_dsl else inputs.specs()
    text = inputs.changed(chance.choice(seeds), chance)
    files = {name: text}
    if chance.random() < 0.08:
        files["pyproject.toml"] = inputs.changed(PYPROJECT, chance)
    verb = chance.choice(tuple(_VERBS))
    arguments = _VERBS[verb](name, files, chance)
    if verb in _WRITING and chance.random() < 0.1:
        arguments = _onto_a_file(arguments, files, chance)
    stdin = ""
    if chance.random() < 0.03 and name in arguments:
        arguments, stdin = ["-" if each == name else each for each in arguments], text
    return Trial(files, [verb.rstrip("2"), *arguments], stdin)


def _some(chance: random.Random, *options: list[str]) -> list[str]:
    return [word for option in options if chance.random() < 0.25 for word in option]


def _settings(chance: random.Random) -> list[str]:
    given = chance.choice(inputs.SETTINGS)
    if chance.random() < 0.4:
        given = inputs.changed(given, chance)
    return ["--set", given.replace("\x00", "")]


def _check(name: str, files: dict[str, str], chance: random.Random) -> list[str]:
    form = chance.choice(("full", "concise", "json", "github", "sarif"))
    return [
        *(name, "--format", form),
        *_some(chance, ["--pedantic"], ["--fix"], ["--fix", "--unsafe-fixes"], ["--diff"], _settings(chance)),
    ]  # fmt: skip


def _compile(name: str, files: dict[str, str], chance: random.Random) -> list[str]:
    more = _some(
        chance, _settings(chance), ["--list-targets"], ["-o", "out.json"], ["--format", "json"]
    )
    return [
        name,
        *more,
        *_some(chance, ["--only", _pattern(chance)], ["--arrays", _arrays(files, chance)]),
    ]


def _explain(name: str, files: dict[str, str], chance: random.Random) -> list[str]:
    lines = files[name].count("\n") + 2
    subject = chance.choice(
        ("**", "decoder/**", f"{name}:{chance.randrange(lines)}", "axis:data", "axis:model", "SHD201", _pattern(chance))
    )  # fmt: skip
    more = _some(
        chance,
        ["--draw"],
        ["--porcelain"],
        _settings(chance),
        ["--why-not", f"{_pattern(chance)}:0=data"],
    )
    return [subject, "--spec", name, *more]


STEP = "tests.fuzz.steps:step"


def _cost(name: str, files: dict[str, str], chance: random.Random) -> list[str]:
    by = chance.choice(("op", "axis", "line", "rule", "array", "op", "axis", "line", "rule", "x"))
    return [
        *(name, "--format", chance.choice(("text", "json")), "--by", by),
        *_step(name, files, chance),
        *_some(chance, _settings(chance), ["-o", "out.json"], ["--top", "3"], ["--only", _pattern(chance)]),
        *_some(chance, ["--tokens", chance.choice(("4M", "4M", "7", "0", "9" * 30))]),
    ]  # fmt: skip


def _verify(name: str, files: dict[str, str], chance: random.Random) -> list[str]:
    files["program.txt"] = inputs.changed_program(chance)
    files["assignment.txt"] = inputs.changed(inputs.assignment(), chance)
    form = chance.choice(("text", "json", "md"))
    return [
        *(name, "--format", form, *_step(name, files, chance)),
        *_some(chance, ["--whole"], ["-o", f"out.{form}"], ["--no-cache"]),
        *(_settings(chance) if chance.random() < 0.1 else []),
        *_some(chance, ["-t", "pod", "-t", "typed"], ["--tolerance", chance.choice(("100%", "0", "3%", "x"))]),
    ]  # fmt: skip


def _step(name: str, files: dict[str, str], chance: random.Random) -> list[str]:
    """Return `--step`, mostly for a spec that a step goes with."""
    if chance.random() < 0.05:
        return []
    if chance.random() < 0.8:
        text = inputs.step_spec(is_dsl=not name.endswith(".yaml"))
        files[name] = inputs.changed(text, chance) if chance.random() < 0.5 else text
    return ["--step", STEP]


def _fmt(name: str, files: dict[str, str], chance: random.Random) -> list[str]:
    more = chance.choice(
        (
            [],
            ["--check"],
            ["--diff"],
            ["--to", "yaml"],
            ["--to", "dsl"],
            ["--to", "dsl", "-o", "out.shard"],
        )
    )
    return [name, *more]


def _mesh(name: str, files: dict[str, str], chance: random.Random) -> list[str]:
    form = chance.choice(("text", "json", "svg"))
    return [
        name,
        "--format",
        form,
        *_some(chance, _settings(chance), ["--compare"], ["--order", "ring"]),
    ]


def _lock(name: str, files: dict[str, str], chance: random.Random) -> list[str]:
    files["spec.lock"] = inputs.changed(LOCK, chance)
    return [name, *chance.choice(([], ["--check"], ["--check"], ["-o", "-"]))]


def _diff(name: str, files: dict[str, str], chance: random.Random) -> list[str]:
    other = f"other{Path(name).suffix}"
    files[other] = inputs.changed(files[name], chance)
    if chance.random() < 0.3:
        files[other := "spec.lock"] = inputs.changed(LOCK, chance)
    form = chance.choice(("text", "md", "json"))
    return [
        name,
        other,
        "--format",
        form,
        *_some(chance, ["--fail-on", chance.choice(("memory+5%", "memory", "x", "moved", "-1"))]),
    ]


def _manifest(name: str, files: dict[str, str], chance: random.Random) -> list[str]:
    return [
        _arrays(files, chance),
        "--format",
        chance.choice(("yaml", "json")),
        *_some(chance, ["-o", "out.txt"]),
    ]


def _init(name: str, files: dict[str, str], chance: random.Random) -> list[str]:
    return [
        *("--arrays", _arrays(files, chance)),
        *_some(chance, ["--hardware", chance.choice(("8 cpu", "tpu v5e 4x4", "4 * h100", "x"))]),
        *_some(chance, ["--like", chance.choice(("fsdp-tensor", "t5x/2d", "expert", "x"))]),
        *_some(chance, ["-o", chance.choice(("out.yaml", "out.shard", "-"))]),
    ]


def _import(name: str, files: dict[str, str], chance: random.Random) -> list[str]:
    kind = chance.choice(tuple(inputs.FOREIGN))
    suffix = {"t5x-gin": "gin", "maxtext": "yml", "haliax": "yaml", "hf-tp-plan": "json"}.get(
        kind, "py"
    )
    files.clear()
    files[f"foreign.{suffix}"] = inputs.changed(inputs.FOREIGN[kind], chance)
    files["arrays.yaml"] = inputs.ARRAYS
    more = _some(
        chance, ["--mesh", "data=4,model=2"], ["--against", "arrays.yaml"], ["-o", "out.yaml"]
    )
    return [
        kind,
        f"foreign.{suffix}",
        *more,
        *_some(
            chance,
            ["--hardware", "8 cpu"],
            ["--mesh", str(chance.choice(inputs.JUNK)).replace("\x00", "")],
        ),
    ]


def _export(name: str, files: dict[str, str], chance: random.Random) -> list[str]:
    kind = chance.choice(
        ("t5x-gin", "flax", "nnx", "maxtext", "regex", "haliax", "hf-tp-plan", "keras", "hlo")
    )
    return [
        kind,
        name,
        *_some(chance, ["--resolved"], ["--lossy"], ["-o", "out.txt"], _settings(chance)),
    ]


def _schema(name: str, files: dict[str, str], chance: random.Random) -> list[str]:
    return _some(chance, ["-o", "out.json"], ["x"])


def _arrays(files: dict[str, str], chance: random.Random) -> str:
    text = inputs.changed(chance.choice(inputs.manifests()), chance)
    name = "arrays.json" if text.startswith("{") else "arrays.yaml"
    files[name] = text
    return name


def _pattern(chance: random.Random) -> str:
    made = "".join(
        chance.choices(
            ("a", "/", "*", "**", "{0..3}", "{a,b}", "?", "kernel", "\\", "é", "re:", "(", "\x1b"),
            k=5,
        )
    )
    return f"x{made}"


_VERBS = {
    "check": _check, "check2": _check, "compile": _compile, "explain": _explain, "fmt": _fmt, "mesh": _mesh,
    "cost": _cost, "verify": _verify, "lock": _lock, "diff": _diff, "manifest": _manifest, "import": _import, "import2": _import,
    "export": _export, "schema": _schema, "init": _init,
}  # fmt: skip


_WRITING = _VERBS.keys() - {"check", "check2", "explain", "diff"}


def _onto_a_file(arguments: list[str], files: dict[str, str], chance: random.Random) -> list[str]:
    """Return a command line that writes over one of the files."""
    read = [name for name in sorted(files) if name in (*arguments, "spec.yaml", "spec.shard")]
    victim = ["-o", chance.choice(("", "./")) + chance.choice(read or ["out.json"])]
    if "-o" not in arguments:
        return [*arguments, *victim]
    at = arguments.index("-o")
    return [*arguments[:at], *victim, *arguments[at + 2 :]]


#: Characters that a file is stretched by, and four times as many; how much longer that may take.
STRETCH, GROWTH = 6_000, 8.0
#: Of the processor: what takes less than this is not judged.
FLOOR_SECONDS = 1.5


def growth_broken_by(each: Trial, key: str, folder: Path) -> str | None:
    """Return how the time of a run grows where one unit of a file is repeated; None if evenly."""
    chance = random.Random(key)
    if not each.files:
        return None
    name = chance.choice(sorted(each.files))
    text = each.files[name]
    at = chance.randrange(len(text) + 1)
    line = text[text.rfind("\n", 0, at) + 1 : (text.find("\n", at) + 1) or len(text)]
    unit = chance.choice((line, text[at : at + chance.randrange(1, 9)], chance.choice(inputs.JUNK)))
    if not 0 < len(unit) <= STRETCH // 20:
        unit = chance.choice(("\n", " ", "a", "- ", "{", "# x\n", "a: b\n", "'"))

    def seconds(characters: int) -> tuple[float, str | None]:
        made = text[:at] + unit * (characters // len(unit)) + text[at:]
        _fill(folder, {**each.files, name: made})
        started = time.process_time()
        found = run(each.arguments, each.stdin)
        return time.process_time() - started, found.trouble or None

    (short, trouble), (long, more) = seconds(STRETCH), seconds(4 * STRETCH)
    if trouble or more or long < FLOOR_SECONDS or long < GROWTH * short:
        told = trouble or more
    else:
        short, long = max(short, seconds(STRETCH)[0]), min(long, seconds(4 * STRETCH)[0])
        is_slow = long > FLOOR_SECONDS and long > GROWTH * short
        told = f"{short:.1f} s, and four times as much {long:.1f} s" if is_slow else None
    return f"{name}[{at}] + {unit!r} * n: {told}" if told else None


def _fill(folder: Path, files: dict[str, str]) -> dict[str, bytes]:
    """Return what a folder holds now: these files alone."""
    for old in folder.iterdir():
        if old.is_file():
            old.unlink()
    data = {name: text.encode("utf-8", "surrogatepass") for name, text in files.items()}
    for name, each in data.items():
        (folder / name).write_bytes(each)
    return data


def _lists(each: Trial) -> set[str]:
    """Return the lists of arrays that `manifest` did not read: it may put another in their place."""
    if each.arguments[0] != "manifest":
        return set()
    lists = {name for name, text in each.files.items() if text.startswith("shardspec-arrays:")}
    return lists - set(each.arguments)


def law_broken_by(each: Trial, folder: Path) -> tuple[str | None, object]:
    """Return which law one input breaks, with its exit code; the folder holds its files alone."""
    before = _fill(folder, each.files)
    found = run(each.arguments, each.stdin)
    changed = changed_files(before, folder)
    broken = (
        broken_law(each.arguments, found)
        or half_written(each.arguments, found.code, changed, folder)
        or written_over(each.arguments, changed & before.keys() - _lists(each))
    )
    return broken, found.code
