"""Public measured training steps beside what `cost` predicts of them, and a baseline.

    python benchmarks/measured_steps.py                     # by hardware
    python benchmarks/measured_steps.py --rows FILE --json  # a prediction for each row of a file

A row becomes a spec with a `step:` (`benchmarks/models.py`), and its time is that of `cost`. It is
null where a row does not state its mesh, its batch or its length, or nobody has published the
dimensions of its model. The baseline is one MFU: the median of the rows of other models on the same
chip in the same precision; else on all others of its kind. Where `llm-analysis` is installed, it
stands beside them for the models that it can describe.

Left-out errors are those of `fit_constants.py`, which fits without the model, or the chip, of a
row; what is printed here is with the constants that `cost` has.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import shardspec  # noqa: E402
from benchmarks import models  # noqa: E402
from shardspec.analysis.spec_step import Stated, stated_step  # noqa: E402
from shardspec.analysis.step_time import step_time  # noqa: E402
from shardspec.ir.plan import ShardingPlan  # noqa: E402
from shardspec.ir.spec import Chip  # noqa: E402

Row = Mapping[str, Any]


class Measured(NamedTuple):
    """A row that says enough, compiled.

    Attributes:
      seconds: that were measured, by what the row says first: its step, tokens a second, FLOP/s,
        MFU; None where it has none of these.
      own_seconds: what its model's own FLOPs take at the peak for bf16.
    """

    row: Row
    model: models.Model
    plan: ShardingPlan
    stated: Stated
    seconds: float | None
    own_seconds: float

    @property
    def kind(self) -> tuple[str, bool]:
        """Return the chip, and whether matmuls are of 8-bit numbers."""
        words = str(self.row.get("precision", "bf16"))
        return self.chip.name, "8" in words

    @property
    def chip(self) -> Chip:
        """Return the chip."""
        hardware = self.plan.target.hardware
        assert hardware is not None, "a row is compiled for a machine"
        return hardware.chip

    @property
    def name(self) -> str:
        """Return the name of the model, however it is spelled."""
        return models.plain(str(self.row.get("model", "")))

    @property
    def is_large(self) -> bool:
        """Say whether it is a decoder of 4B or more, of which the model knows the parts.

        Kernels for many small experts are none of these: gpt-oss takes almost three times as long
        as what it computes.
        """
        is_sparse = any(each.active * 16 < each.experts for each in self.model.stacks)
        return self.model.parameters >= 3.9e9 and not self.model.targets and not is_sparse


def load(path: Path = models.DATA / "measured_steps.json") -> list[Row]:
    """Return the rows of a file; what is no mapping is an empty one."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SystemExit(f"{path} cannot be read as JSON: {error}") from None
    rows = data.get("rows") if isinstance(data, dict) else data
    if not isinstance(rows, list):
        raise SystemExit(f"{path} has no rows: a list, or a mapping with `rows`")
    return [row if isinstance(row, dict) else {} for row in rows]


def compiled(row: Row) -> Measured | None:
    """Return a row on its mesh; None where it does not say enough, or cannot be."""
    try:
        text, model, batch = models.spec_text(row), models.model_of(row), models.batch_of(row)
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError):
        return None  # a row of another form
    if text is None or model is None or batch is None:
        return None
    try:
        plan = shardspec.loads(text, levels={"SHD": "allow"}).compile()
    except shardspec.ShardspecError:
        return None  # no machine has that shape, or no mesh these sizes
    stated = stated_step(plan)
    if stated is None or step_time(plan, stated.step) is None or plan.target.hardware is None:
        return None
    peak = (plan.target.hardware.chip.bf16_flops_per_s or 1.0) * row["chips"]
    own = model.flops_per_sequence * batch
    return Measured(row, model, plan, stated, _measured(row, model, batch, peak), own / peak)


def _measured(row: Row, model: models.Model, batch: int, peak: float) -> float | None:
    """Return the seconds of a row's step, by the first of its figures that tells them."""
    own = model.flops_per_sequence * batch
    told: dict[str, Callable[[float], float]] = {
        "step_s": lambda seconds: seconds,
        "tokens_per_s_per_chip": lambda speed: batch * model.length / (speed * row["chips"]),
        "tokens_per_s": lambda speed: batch * model.length / speed,
        "sequences_per_s": lambda speed: batch / speed,
        "tflops_per_chip": lambda speed: own / (speed * 1e12 * row["chips"]),
        "mfu": lambda share: own / (share * peak),
    }
    for name, seconds in told.items():
        value = row.get(name)
        if isinstance(value, int | float) and value > 0:
            return seconds(value)
    return None


def predicted(found: Measured) -> float:
    """Return the seconds that `cost` says."""
    time = step_time(found.plan, found.stated.step)
    assert time is not None, "a compiled row has a time"
    return time.step_seconds


def baseline(
    found: Measured, known: Iterable[Measured], *, without_chip: bool = False
) -> float | None:
    """Return the seconds by the median MFU of other models on its chip, in its precision.

    Args:
      without_chip: by those on other chips of its kind.
    """
    others = [each for each in known if each.seconds and each.name != found.name]
    if without_chip:
        others = [each for each in others if each.chip.name != found.chip.name]
    here = [each for each in others if each.kind == found.kind]
    alike = [each for each in others if each.kind[1] == found.kind[1]]
    near = [each for each in alike if each.chip.platform == found.chip.platform]
    for group in (here, near, alike, others):
        if group:
            speeds = [each.own_seconds / each.seconds for each in group if each.seconds]
            return found.own_seconds / statistics.median(speeds)
    return None


def main(path: Path | None, is_json: bool) -> None:
    own = [compiled(row) for row in load()]
    known = [each for each in own if each is not None]
    rows = load(path) if path else load()
    found = [compiled(row) for row in rows] if path else own
    if is_json:
        print(json.dumps([_json(*pair, known) for pair in zip(rows, found, strict=True)], indent=1))
        return
    told = [each for each in found if each is not None]
    for line in _table(told, known):
        print(line)
    for row, each in zip(rows, found, strict=True):
        if each is None:
            print(f"left out: {row.get('id')} {row.get('model')}: {_lack(row)}")


def _json(row: Row, found: Measured | None, known: Sequence[Measured]) -> dict[str, Any]:
    return {
        "id": row.get("id"),
        "predicted_step_s": None if found is None else predicted(found),
        "baseline_step_s": None if found is None else baseline(found, known),
    }


def _lack(row: Row) -> str:
    """Return what a row lacks."""
    try:
        parts = {
            "no dimensions of its model, or no length": models.model_of(row),
            "no mesh, or none of its devices": models.machine_of(row),
            "no batch": models.batch_of(row),
        }
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError):
        return "of another form"
    return ", ".join(text for text, value in parts.items() if value is None) or "it cannot be"


def _table(found: Sequence[Measured], known: Sequence[Measured]) -> Iterator[str]:
    """Yield a line for each row by hardware, and the errors."""
    peer = _peer()
    for hardware in dict.fromkeys(each.chip.title for each in found):
        yield hardware
        for each in found:
            if each.chip.title == hardware:
                yield "  " + _line(each, known, peer)
    groups = {
        "TPU, decoders of 4B and more": [
            e for e in found if e.chip.platform == "tpu" and e.is_large
        ],
        "GPU, models of 1B and more": [
            e for e in found if e.chip.platform == "gpu" and e.model.parameters >= 1e9
        ],
        "all rows": list(found),
    }
    yield ""
    for name, group in groups.items():
        rows = [each for each in group if each.seconds]
        ours = [(each.seconds, predicted(each)) for each in rows]
        simple = [(each.seconds, baseline(each, known)) for each in rows]
        text = f"{name}: {len(rows)} rows, error {_error(ours)}, one MFU {_error(simple)}"
        theirs = [(each.seconds, peer(each)) for each in rows] if peer else []
        told = [pair for pair in theirs if pair[1] is not None]
        yield text + (f", llm-analysis {_error(told)} on {len(told)}" if told else "")


def _line(found: Measured, known: Sequence[Measured], peer: Peer | None) -> str:
    seconds, ours, simple = found.seconds, predicted(found), baseline(found, known)
    named, precision = found.row.get("model"), found.row.get("precision", "bf16")
    head = f"{found.row.get('id')!s:>4} {named!s:22} {precision!s:10}"
    text = f"{head} {found.row['chips']:5} chips  {ours:8.2f} s"
    if seconds is None:
        return text
    text += f"  measured {seconds:8.2f} s  {ours / seconds - 1:+5.0%}"
    text += f"  one MFU {simple / seconds - 1:+5.0%}" if simple else ""
    theirs = peer(found) if peer else None
    return text + (f"  llm-analysis {theirs / seconds - 1:+5.0%}" if theirs else "")


def _error(pairs: Sequence[tuple[float | None, float | None]]) -> str:
    errors = [abs(told / seconds - 1) for seconds, told in pairs if seconds and told]
    return f"{statistics.mean(errors):.1%}" if errors else "-"


# a peer


Peer = Callable[[Measured], float | None]


def _peer() -> Peer | None:
    """Return the step time by `llm-analysis`; None where it is not installed.

    It knows dense decoders whose MLP is a multiple of their width, on GPUs or on what is described
    as one, by the efficiency that is its default.
    """
    try:
        from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
        from llm_analysis.config import GPUConfig, ModelConfig, ParallelismConfig
    except ImportError:
        return None

    def seconds(found: Measured) -> float | None:
        chip, stacks = found.chip, found.model.stacks
        if found.model.targets or any(s.experts or s.kv_rank for s in stacks):
            return None
        first, sizes = stacks[0], {axis.name: axis.size for axis in found.plan.mesh.axes}
        tensor = sizes.get("tensor", 1) * sizes.get("model", 1)
        ways = found.plan.mesh.device_count // tensor
        per_device = 1e-12 / chip.devices_per_chip
        gpu = GPUConfig(
            name=chip.name,
            mem_per_GPU_in_GB=(chip.hbm_bytes or 0) / 1e9 / chip.devices_per_chip,
            hbm_bandwidth_in_GB_per_sec=(chip.hbm_bytes_per_s or 0) * per_device * 1e3,
            intra_node_bandwidth_in_GB_per_sec=2 * (chip.link_bytes_per_s or 0) * per_device * 1e3,
            intra_node_min_message_latency=8e-6,
            inter_node_bandwidth_in_GB_per_sec=(chip.network_bytes_per_s or 0) * 1e-9 / 4,
            peak_fp16_TFLOPS=(chip.bf16_flops_per_s or 0) * per_device,
            peak_i8_TFLOPS=(chip.int8_ops_per_s or chip.bf16_flops_per_s or 0) * per_device,
        )
        batch = models.batch_of(found.row) or 0
        parallel = ParallelismConfig(tp_size=tensor, pp_size=1, dp_size=ways)
        if batch < ways or batch % ways:
            return None
        try:
            model = ModelConfig(
                name=found.name,
                num_layers=sum(stack.count for stack in stacks),
                n_head=first.heads,
                hidden_dim=found.model.embed,
                vocab_size=found.model.vocab,
                max_seq_len=found.model.length,
                num_key_value_heads=first.kv_heads,
                ffn_embed_dim=first.mlp,
            )
            analysis = LLMAnalysis(model, gpu, parallelism_config=parallel)
            told = analysis.training(
                batch_size_per_gpu=batch // ways,
                gradient_accumulation_steps=1,
                seq_len=found.model.length,
                total_num_tokens=batch * found.model.length,
                activation_recomputation=ActivationRecomputation.FULL,
                ds_zero=DSZeRO.STAGE_3,
                mlp_gated_linear_units=first.gated,
            )
        except (AssertionError, ValueError, ZeroDivisionError, KeyError):
            return None
        return float(told["latency_per_iter"])

    return seconds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=Path, help="a file in the form of data/measured_steps.json")
    parser.add_argument("--json", action="store_true", help="a list of predictions")
    given = parser.parse_args()
    main(given.rows, given.json)
