"""Which layout is better: public measurements that compare some, beside the order that `cost` has.

    python benchmarks/layouts.py             # sheet by sheet
    python benchmarks/layouts.py --rows      # every row with its prediction

`data/layouts.json` has sheets of rows that ran one model on one machine, each with its source. A
row becomes a spec as a user might write it: stacked layers over `stage`, heads and MLP over
`tensor`, the batch over `data`. Printed are the pairs of rows in their order (two within 2 % of
each other are none), whether the measured best is among the predicted first three, the rows that
ran and are said not to fit, and what devices held over what is predicted. Beside it the order of a
rule of thumb: fewer ways of tensor, then fewer stages, then smaller microbatches.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import shardspec  # noqa: E402
from shardspec.analysis.spec_step import stated_cost  # noqa: E402
from shardspec.analysis.step_memory import StepMemory  # noqa: E402
from tests.generated.table import learned  # noqa: E402

DATA = Path(__file__).resolve().parent / "data" / "layouts.json"
#: Rows closer than this, as a share, are as fast as each other.
SAME = 0.02
#: What Megatron keeps where it makes the scores of attention again, and nothing else.
_SELECTIVE = ["query", "key", "value", "context", "hidden", "residual"]
_GIB = 1 << 30


class Row(NamedTuple):
    """A row beside its prediction.

    Attributes:
      seconds: measured, of a step; None where it ran out of memory.
      held: the bytes that a device held.
      made: of what it held, that which is neither an argument nor a gradient, over the floor.
      rule: what the rule of thumb sorts by.
    """

    told: Mapping[str, Any]
    seconds: float | None
    predicted: float
    held: float | None
    predicted_held: int
    fits: bool | None
    made: float | None
    rule: tuple[int, int, int]
    batch: int

    @property
    def pace(self) -> float | None:
        """Return the measured seconds of a sequence."""
        return None if self.seconds is None else self.seconds / self.batch

    @property
    def predicted_pace(self) -> float:
        """Return the predicted ones."""
        return self.predicted / self.batch


def spec_text(sheet: Mapping[str, Any], row: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """Return the spec of a row."""
    dp, tp, pp, micro = (row[key] for key in ("dp", "tp", "pp", "micro"))
    heads = model["heads"]
    kv, kv_heads = model.get("head_dim", model["embed"] // heads), model.get("kv_heads", heads)
    gates = ("gate", "up") if model.get("gated") else ("up",)
    dtype = "bf16"
    arrays = {
        "embedder/embedding": f"{dtype}[vocab embed]",
        "layers/attention/query/kernel": f"{dtype}[layers embed heads kv]",
        "layers/attention/{key,value}/kernel": f"{dtype}[layers embed kv_heads kv]",
        "layers/attention/out/kernel": f"{dtype}[layers heads kv embed]",
        **{f"layers/mlp/{name}/kernel": f"{dtype}[layers embed mlp]" for name in gates},
        "layers/mlp/down/kernel": f"{dtype}[layers mlp embed]",
    }
    if not model["tied"]:
        arrays["logits/kernel"] = f"{dtype}[embed vocab]"
    mesh = {"stage": pp, "data": dp, "tensor": tp}
    rules = ["batch -> data", "layers -> stage", "heads, kv_heads, mlp, vocab -> tensor"]
    rules += ["embed -> data" if row.get("shard") == "fsdp" else "embed -> none"]
    rules += ["length -> tensor" if row.get("sp") else "length -> none", "kv -> none"]
    remat = row["remat"] if row.get("remat") != "scores" else _SELECTIVE
    step: dict[str, Any] = {"extends": "decoder-tied" if model["tied"] else "decoder"}
    step |= {"microbatches": _batch(sheet, row) // (dp * micro), "remat": remat}
    step |= {"attention": model.get("attention", "flash"), "dtype": row.get("dtype", "bf16")}
    if "gradients" in row:
        step["gradients"] = row["gradients"]
    if pp > 1:
        chunks = f"({row['chunks']})" if "chunks" in row else ""
        step["pipeline"] = f"{row['schedule']}{chunks}"
    per_node = min(8, sheet["devices"])
    nodes = sheet["devices"] // per_node
    machine = f"{nodes} * {sheet['hardware']}" if nodes > 1 else f"{per_node} {sheet['hardware']}"
    sizes = {name: model[name] for name in ("length", "vocab", "embed", "mlp", "heads", "layers")}
    own = f" by {sheet['network']}" if "network" in sheet else ""
    head = {
        "shardspec": 1,
        "axes": {"batch": _batch(sheet, row), **sizes, "kv": kv, "kv_heads": kv_heads},
        "targets": {"measured": {"hardware": f"{machine} memory 0.95{own}", "mesh": mesh}},
        "rules": rules,
        "policy": {"indivisible": "keep"},
        "state": {"optimizer": row["state"], "moments": 3, "dtype": "f32", "over": "data"},
        "arrays": arrays,
        "activations": {
            "tokens": "batch length",
            "residual": "batch length embed",
            "query": "batch length heads kv",
            "key": "batch length kv_heads kv",
            "value": "batch length kv_heads kv",
            "hidden": "batch length mlp",
            "logits": "batch length vocab",
        },
        "step": step,
    }
    return json.dumps(head)


def _batch(sheet: Mapping[str, Any], row: Mapping[str, Any]) -> int:
    """Return the sequences of a step, which some sheets have by their parts."""
    return int(sheet["batch"] or row["dp"] * row["micro"] * row["parts"])


def rows_of(sheet: Mapping[str, Any], models: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a sheet beside their predictions."""
    found = []
    for own in sheet["rows"]:
        row, model = {**sheet["common"], **own}, models[sheet["model"]]
        text = spec_text(sheet, row, model)
        plan = shardspec.loads(text, levels={"SHD": "allow"}).compile()
        cost = stated_cost(plan)
        assert cost.time is not None, "every row has a time"
        held = own.get("held_gib")
        found.append(
            Row(
                own,
                _seconds(sheet, row, model),
                cost.time.step_seconds,
                None if held is None else held * _GIB,
                cost.memory.total.bytes,
                cost.memory.fits,
                None if held is None else _made(cost.memory, held * _GIB),
                (row["tp"], row["pp"], row["micro"]),
                _batch(sheet, row),
            )
        )
    return found


def _made(memory: StepMemory, held: float) -> float:
    parts = {name: part.bytes for name, part in memory.parts.items()}
    floor = parts["activations"] + parts["temporaries"]
    known = sum(parts.values()) - floor - parts.get("unstated", 0)
    return (held - known) / floor


def _seconds(
    sheet: Mapping[str, Any], row: Mapping[str, Any], model: Mapping[str, Any]
) -> float | None:
    if row.get("oom"):
        return None
    if "step_s" in row:
        return float(row["step_s"])
    tokens = _batch(sheet, row) * model["length"]
    speed = row.get("tokens_per_s_per_device") or (
        row["sequences_per_s_per_device"] * model["length"]
    )
    return float(tokens / (speed * sheet["devices"]))


def pairs(rows: list[Row]) -> Iterator[tuple[bool, bool]]:
    """Yield whether a pair is in its order, by the prediction and by the rule of thumb."""
    ran = [row for row in rows if row.pace is not None]
    for one, other in itertools.combinations(ran, 2):
        assert one.pace, "it ran"
        assert other.pace, "it ran"
        if abs(one.pace / other.pace - 1) > SAME:
            is_less = one.pace < other.pace
            ours = one.predicted_pace < other.predicted_pace
            yield ours == is_less, (one.rule < other.rule) == is_less


def main(is_long: bool) -> None:
    data = json.loads(DATA.read_text(encoding="utf-8"))
    right = ruled = count = firsts = 0
    ratios, ooms, caught, false, shares, made = [], 0, 0, 0, [], []
    for sheet in data["sheets"]:
        rows = rows_of(sheet, data["models"])
        own = list(pairs(rows))
        ran = [row for row in rows if row.seconds is not None]
        best = min(ran, key=lambda row: row.pace or 0, default=None)
        is_first = best in sorted(ran, key=lambda row: row.predicted_pace)[:3]
        right, count = right + sum(ours for ours, _ in own), count + len(own)
        ruled, firsts = ruled + sum(rule for _, rule in own), firsts + is_first
        ratios += [row.predicted / row.seconds for row in ran if row.seconds]
        shares += [row.held / row.predicted_held for row in ran if row.held]
        made += [row.made for row in ran if row.made]
        ooms += len(rows) - len(ran)
        caught += sum(row.fits is False for row in rows if row.seconds is None)
        false += sum(row.fits is False for row in ran)
        order = f"{sum(ours for ours, _ in own)} of {len(own)} pairs"
        print(f"{sheet['name']:40} {order}, rule {sum(rule for _, rule in own)}")
        for row in rows if is_long else ():
            held = f"{row.held / _GIB:6.1f}" if row.held else "     -"
            print(
                f"    {row.seconds or 0:8.2f} s {row.predicted:8.2f} s   {held} GiB"
                f" {row.predicted_held / _GIB:6.1f} GiB {row.fits!s:6} {row.told}"
            )
    off = statistics.mean(abs(ratio - 1) for ratio in ratios)
    print(f"pairs in order {right} of {count}, by the rule of thumb {ruled}")
    print(f"the best is in the first three on {firsts} of {len(data['sheets'])} sheets")
    print(f"mean error of the time {off:.1%}; predicted over measured {_range(ratios)}")
    print(f"out of memory: {caught} of {ooms} caught; {false} that ran are said not to fit")
    print(f"held over predicted {_range(shares)}, of {len(shares)}")
    print(f"held over the floor of what a step makes: {learned(made)}")


def _range(ratios: list[float]) -> str:
    found = sorted(ratios)
    return f"{found[0]:.2f} to {found[-1]:.2f}, median {statistics.median(found):.2f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", action="store_true", help="every row")
    main(parser.parse_args().rows)
