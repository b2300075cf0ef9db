"""Predictions beside proofs: the example steps on machines that are not here.

    python -m benchmarks.verified              # all of them, as the table of docs/verify.md
    python -m benchmarks.verified v5p h100     # those on these chips
    python -m benchmarks.verified --whole v5p  # Llama's, stopped early and let to their end

Needs libtpu (the extra `tpu-aot`), and for GPUs the plugin's folder in SHARDSPEC_GPU_COMPILER. Each
row is one `shardspec verify`; the time is that of processors in the compiler's own process, which
others on the machine do not change as much as that of a clock.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import shardspec
from shardspec.diagnostics import ShardspecError
from shardspec.diagnostics.words import binary_bytes
from shardspec.jax_backend.step.trace import Call
from shardspec.jax_backend.xla.compiling import Compiling
from shardspec.jax_backend.xla.verifying import verify_step
from shardspec.programs.proof import Proof

EXAMPLES = Path(__file__).parent.parent / "specs" / "examples"


@dataclass(frozen=True)
class Row:
    """A step of the examples on a machine."""

    example: str
    step: str
    hardware: str
    mesh: str


ROWS = (
    Row("t5-1.1-xxl", "t5:train", "tpu v4 4x8x8", "data: rest, model: submesh 4x2x2x1"),
    Row("t5-1.1-xxl", "t5:train", "tpu v5e 16x16", "data: rest, model: 16"),
    Row("t5-1.1-xxl", "t5:train", "tpu v5p 4x4x8", "data: rest, model: 8"),
    Row("t5-1.1-xxl", "t5:train", "tpu v6e 16x16", "data: rest, model: 8"),
    Row("t5-1.1-xxl", "t5:train", "tpu v7x 4x4x4", "data: rest, model: 8"),
    Row("t5-1.1-xxl", "t5:train", "16 * h100", "data: 16 @ dcn, model: 8"),
    Row("t5-1.1-xxl", "t5:train", "16 * h200", "data: 16 @ dcn, model: 8"),
    Row("t5-1.1-xxl", "t5:train", "16 * a100", "data: 16 @ dcn, model: 8"),
    Row("t5-1.1-xxl", "t5:train", "8 * b200", "data: 8 @ dcn, model: 8"),
    Row("llama-3-70b-scanned", "llama:train", "tpu v4 8x8x16", "fsdp: rest, tensor: 8"),
    Row("llama-3-70b-scanned", "llama:train", "tpu v5e 16x16", "fsdp: rest, tensor: 8"),
    Row("llama-3-70b-scanned", "llama:train", "tpu v5p 8x8x8", "fsdp: rest, tensor: 4"),
    Row("llama-3-70b-scanned", "llama:train", "tpu v6e 16x16", "fsdp: rest, tensor: 4"),
    Row("llama-3-70b-scanned", "llama:train", "tpu v7x 8x8x8", "fsdp: rest, tensor: 8"),
    Row("llama-3-70b-scanned", "llama:train", "128 * h100", "fsdp: 128 @ dcn, tensor: 8"),
    Row("llama-3-70b-scanned", "llama:train", "64 * h200", "fsdp: 64 @ dcn, tensor: 8"),
    Row("llama-3-70b-scanned", "llama:train", "128 * a100", "fsdp: 128 @ dcn, tensor: 8"),
    Row("llama-3-70b-scanned", "llama:train", "64 * b200", "fsdp: 64 @ dcn, tensor: 8"),
    Row("mixtral-8x7b", "mixtral:train", "tpu v4 4x8x8", "fsdp: rest, expert: 8, tensor: 2"),
    Row("mixtral-8x7b", "mixtral:train", "tpu v5e 16x16", "fsdp: rest, expert: 8, tensor: 2"),
    Row("mixtral-8x7b", "mixtral:train", "tpu v5p 4x4x8", "fsdp: rest, expert: 8, tensor: 2"),
    Row("mixtral-8x7b", "mixtral:train", "tpu v6e 16x16", "fsdp: rest, expert: 8"),
    Row("mixtral-8x7b", "mixtral:train", "tpu v7x 4x4x8", "fsdp: rest, expert: 8"),
    Row("mixtral-8x7b", "mixtral:train", "64 * h100", "fsdp: 64 @ dcn, expert: 8"),
    Row("mixtral-8x7b", "mixtral:train", "64 * h200", "fsdp: 64 @ dcn, expert: 8"),
    Row("mixtral-8x7b", "mixtral:train", "64 * a100", "fsdp: 64 @ dcn, expert: 8"),
    Row("mixtral-8x7b", "mixtral:train", "32 * b200", "fsdp: 32 @ dcn, expert: 8"),
    Row("vit-b-16", "vit:train", "tpu v5e 4x8", "data: rest"),
    Row("vit-b-16", "vit:train", "4 * a100", "data: 32"),
    Row("llama-3-8b-decode", "decode:step", "tpu v4 2x2x2", "model: 8"),
    Row("llama-3-8b-decode", "decode:step", "tpu v5e 4x4", "data: rest, model: 8"),
    Row("llama-3-8b-decode", "decode:step", "tpu v5p 2x2x2", "model: 8"),
    Row("llama-3-8b-decode", "decode:step", "tpu v6e 2x4", "model: 8"),
    Row("llama-3-8b-decode", "decode:step", "tpu v7x 2x2x1", "model: 8"),
    Row("llama-3-8b-decode", "decode:step", "h100", "model: 8"),
    Row("llama-3-8b-decode", "decode:step", "h200", "model: 8"),
    Row("llama-3-8b-decode", "decode:step", "a100", "model: 8"),
    Row("llama-3-8b-decode", "decode:step", "b200", "model: 8"),
)


def proof(row: Row, *, is_whole: bool = False) -> tuple[Proof, float]:
    """Return the proof of one row, and the seconds of processors that the compiler took."""
    text = (
        f"shardspec: 1\nextends: [{EXAMPLES / row.example}.yaml]\n"
        f"targets: {{machine: {{hardware: {row.hardware}, mesh: {{{row.mesh}}}}}}}\n"
    )
    resolver = shardspec.Resolver(shardspec.loads(text), "machine", devices="abstract")
    module, function = row.step.split(":")
    call = getattr(import_module(f"specs.examples.steps.{module}"), function)(resolver)
    how = Compiling(1800.0, is_whole=is_whole, is_cached=False)
    before = _seconds_of_children()
    found = verify_step(resolver, Call(*call), how=how)
    return found, _seconds_of_children() - before


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cells(row: Row) -> Iterator[str]:
    """Yield the cells of one row of the table."""
    yield f"{row.example}, `{row.step}`"
    yield row.hardware
    try:
        found, seconds = proof(row)
    except ShardspecError as error:
        yield from ("", "", error.diagnostics[0].message, "")
        return
    predicted = sum(axis.predicted for axis in found.rows)
    yield f"{binary_bytes(predicted)} / {binary_bytes(found.compiled_bytes)}"
    yield f"{found.difference * 100:.2f} %"
    _remark(row, found)
    held = found.cost.memory.total.bytes
    compiled = "not known" if found.memory is None else binary_bytes(found.memory.bytes)
    room = "" if found.fits is not False else ", does not fit"
    yield f"{binary_bytes(held)} / {compiled}{room}"
    yield f"{seconds:.0f} s"


def _remark(row: Row, found: Proof) -> None:
    """Say on stderr what of a program has no line of the code, or no array and no einsum."""
    sent, whole = found.step.collectives, found.compiled_bytes
    lost = sum(not each.place.is_known for each in sent)
    groups: dict[tuple[str, str], int] = {}
    for each in sent:
        if not each.carries.name:
            key = (each.kind.value, str(each.place))
            groups[key] = groups.get(key, 0) + each.wire_bytes
    nameless = [key for key, size in groups.items() if size > whole / 100]
    if lost or nameless:
        said = f"{lost} of {len(sent)} collectives have no line, {nameless} carry over 1 % unnamed"
        print(f"{row.example} on {row.hardware}: {said}", file=sys.stderr)


def shares(chips: list[str]) -> None:
    """Print what a compile of Llama takes that is stopped early, and one that is let to its end."""
    for row in ROWS:
        if row.step == "llama:train" and any(chip in row.hardware for chip in chips):
            (_, early), (_, whole) = proof(row), proof(row, is_whole=True)
            print(f"{row.hardware}: {early:.1f} s of {whole:.1f} s, {early / whole * 100:.1f} %")


def main(chips: list[str]) -> None:
    """Print the table, a row as soon as it is there."""
    if chips[:1] == ["--whole"]:
        shares(chips[1:])
        return
    print("| step | machine | sent, predicted / compiled | differs | memory | compile |")
    print("|---|---|---:|---:|---:|---:|")
    for row in ROWS:
        if not chips or any(chip in row.hardware for chip in chips):
            print(f"| {' | '.join(cells(row))} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
