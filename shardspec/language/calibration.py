"""A calibration on disk: what `shardspec calibrate` writes, and the catalogue has of each chip.

It is data, and small: tables of numbers by size, with their date and how they were found. Whatever
such a file holds, reading it takes a time and a memory that are bounded, and runs nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from typing import Any

from shardspec.diagnostics import Diagnostic, Excerpt, SourceFile, Span, codes, point
from shardspec.diagnostics.words import counted, grouped, listed
from shardspec.ir.calibration import Calibration, Curve, MatmulTable, Sizes, Spread
from shardspec.ir.spec import DTYPE_BITS, Chip
from shardspec.ir.step import CollectiveKind
from shardspec.language.meshes import TargetDecl
from shardspec.language.yaml_text.printer import print_scalar
from shardspec.language.yaml_text.reader import read_yaml_value
from shardspec.versions import CALIBRATION


def calibrated_chip(chip: Chip, found: Calibration) -> Chip:
    """Return a chip with what was found of it in place of the catalogue's.

    Figures that were neither stated nor measured stay: a peak of the catalogue, the links.
    """
    stated = dict[str, Any](found.figures)
    if found.title:
        stated |= {"title": found.title, "device_kinds": (found.device_kind,)}
    if found.figures and not found.matmuls and chip.estimates is not None:
        found = replace(found, matmuls=chip.estimates().matmuls)
    chip = replace(chip, measured=found, **stated)
    devices, hbm = chip.devices_per_chip, found.hbm_bytes_per_s
    peaks = [per_s for _, per_s in found.flops_per_s]
    shares = [share for table in found.matmuls for share in table.shares]
    return replace(
        chip,
        bf16_flops_per_s=max(peaks) * devices if peaks else chip.bf16_flops_per_s,
        hbm_bytes_per_s=chip.hbm_bytes_per_s if hbm is None else hbm.median * devices,
        matmul_efficiency=chip.matmul_efficiency or max(shares, default=None),
    )


#: The key that says what a file is, with its version.
HEAD = "shardspec-calibration"
#: Points of a table along one size, and tables: more are refused.
_MOST_POINTS = 64
_MOST_TABLES = 16
_LARGEST = 2**40
_FASTEST = 1e21
_MOST_CHARACTERS = 1 << 20
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_WORDS = ("chip", "device_kind", "date", "how")
#: What only some have: those of another chip, and measured ones.
_MAY_SAY = ("title", "machine", "mesh")
#: What a file may say of a chip in place of the catalogue's figures; those that are whole numbers.
_COUNTS = ("hbm_bytes", "usable_hbm_bytes", "links")
_FIGURES = (
    *_COUNTS,
    *("bf16_flops_per_s", "int8_ops_per_s", "fp8_flops_per_s", "hbm_bytes_per_s"),
    *("link_bytes_per_s", "network_bytes_per_s", "host_bytes_per_s", "matmul_efficiency"),
)
#: Collectives, and what is measured of each, at most.
_MOST_CURVES = 256


class CalibrationError(ValueError):
    """What is wrong with a calibration.

    Attributes:
      route: the keys that lead to it.
    """

    def __init__(self, message: str, *route: str) -> None:
        """Keep the keys."""
        super().__init__(message)
        self.route = route


def calibration_of(data: object) -> Calibration:
    """Return the calibration that a file holds.

    Raises:
      CalibrationError: it holds none.
    """
    if not isinstance(data, dict) or HEAD not in data:
        raise CalibrationError(f"it does not say `{HEAD}: {CALIBRATION}`")
    if data[HEAD] != CALIBRATION:
        told = f"it is of another version: this shardspec reads {CALIBRATION}"
        raise CalibrationError(told, HEAD)
    figures = ("flops_per_s", "hbm_bytes_per_s", "collectives", "exposed", "matmul")
    _refuse_others(data, (HEAD, *_WORDS, *_MAY_SAY, "versions", "figures", *figures))
    words = {key: _text(data, key) for key in _WORDS}
    for key in _WORDS:
        if not words[key].strip():
            raise CalibrationError(f"`{key}` is empty", key)
    words |= {key: _text(data, key) for key in _MAY_SAY if key in data}
    if not _DATE.fullmatch(words["date"]):
        raise CalibrationError(f"`{words['date'][:20]}` is no date, as 2026-11-22 is", "date")
    versions = _table(data, "versions")
    named = tuple((str(key), _text(versions, key, "versions")) for key in versions)
    tables = _table(data, "matmul")
    if len(tables) > _MOST_TABLES:
        raise CalibrationError(f"it has {len(tables)} tables; {_MOST_TABLES} may be", "matmul")
    return Calibration(
        **words,
        versions=named,
        matmuls=tuple(_matmuls(str(dtype), _table(tables, dtype, "matmul")) for dtype in tables),
        flops_per_s=tuple(_peaks(_table(data, "flops_per_s"))),
        hbm_bytes_per_s=_spread(data, "hbm_bytes_per_s") if "hbm_bytes_per_s" in data else None,
        curves=tuple(_curves(_table(data, "collectives"))),
        exposed=_spread(data, "exposed") if "exposed" in data else None,
        figures=tuple(_stated(_table(data, "figures"))),
    )


def _stated(data: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield figures of a chip."""
    _refuse_others(data, _FIGURES, "figures")
    for key in data:
        value = _positive(_text(data, key, "figures"), "figures", key)
        if key == "matmul_efficiency" and value > 1:
            raise CalibrationError("a share is more than 0 and at most 1", "figures", key)
        if key in _COUNTS and value % 1:
            raise CalibrationError("it is a whole number", "figures", key)
        yield key, int(value) if key in _COUNTS else value


def _peaks(data: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for dtype in data:
        if dtype not in DTYPE_BITS:
            raise CalibrationError(f"`{str(dtype)[:20]}` is no dtype, as bf16 is", "flops_per_s")
        yield dtype, _positive(_text(data, dtype, "flops_per_s"), "flops_per_s", dtype)


def _spread(data: Mapping[str, Any], key: str, *route: str) -> Spread:
    return _spread_of(_text(data, key, *route).split(), *route, key)


def _spread_of(words: Sequence[str], *route: str) -> Spread:
    """Return a median with its range."""
    if len(words) not in (3, 4):
        told = "three numbers are wanted: median, low, high; or with a count, four"
        raise CalibrationError(told, *route)
    median, low, high, *count = (_positive(word, *route) for word in words)
    if not low <= median <= high:
        raise CalibrationError("a median lies between low and high", *route)
    return Spread(median, low, high, *map(int, count))


def _curves(data: Mapping[str, Any]) -> Iterator[Curve]:
    count = 0
    for axes in data:
        kinds = _table(data, axes, "collectives")
        for kind in kinds:
            route = ("collectives", axes, kind)
            count += 1
            if kind not in set(CollectiveKind) or count > _MOST_CURVES:
                raise CalibrationError(f"`{str(kind)[:40]}` is no collective", *route)
            lines = _text(kinds, kind, *route[:2]).split("\n")
            rows = [line.split() for line in lines if line.strip()]
            if not rows or len(rows) > _MOST_POINTS:
                told = f"it has {len(rows)} lines; 1 to {_MOST_POINTS} may be"
                raise CalibrationError(told, *route)
            payloads = _ascending("bytes", [row[0] for row in rows], *route)
            seconds = tuple(_spread_of(row[1:], *route) for row in rows)
            yield Curve(kind, tuple(str(axes).split("+")), payloads, seconds)


def _matmuls(dtype: str, data: Mapping[str, Any]) -> MatmulTable:
    route = ("matmul", dtype)
    if dtype not in DTYPE_BITS:
        raise CalibrationError(f"`{dtype[:20]}` is no dtype, as bf16 is", *route)
    _refuse_others(data, ("m", "k", "n", "share", "spread", "operations"), *route)
    m, k, n = (_sizes(data, name, *route) for name in ("m", "k", "n"))
    shares = tuple(_number(word, *route, "share") for word in _text(data, "share", *route).split())
    wanted = len(m) * len(k) * len(n)
    if len(shares) != wanted:
        numbers = counted(len(shares), "number")
        told = f"{numbers} for {len(m)} x {len(k)} x {len(n)} sizes, {wanted}"
        raise CalibrationError(told, *route, "share")
    if not all(0 < share <= 1 for share in shares):
        raise CalibrationError("a share is more than 0 and at most 1", *route, "share")
    spread = _number(_text(data, "spread", *route), *route, "spread") if "spread" in data else 0.0
    ran = _number(_text(data, "operations", *route), *route) if "operations" in data else 0.0
    return MatmulTable(dtype, m, k, n, shares, max(0.0, spread), max(0, int(ran)))


def _sizes(data: Mapping[str, Any], key: str, *route: str) -> Sizes:
    """Return sizes in ascending order."""
    words = _text(data, key, *route).split()
    if not words or len(words) > _MOST_POINTS:
        told = f"it has {len(words)} sizes; 1 to {_MOST_POINTS} may be"
        raise CalibrationError(told, *route, key)
    return _ascending("sizes", words, *route, key)


def _ascending(what: str, words: Sequence[str], *route: str) -> Sizes:
    sizes = tuple(_number(word, *route) for word in words)
    is_ascending = all(low < high for low, high in pairwise(sizes))
    if not is_ascending or not all(1 <= each <= _LARGEST and each % 1 == 0 for each in sizes):
        told = f"{what} have to be integers from 1 to {_LARGEST}, in ascending order"
        raise CalibrationError(told, *route)
    return tuple(map(int, sizes))


def _number(word: str, *route: str) -> float:
    try:
        found = float(word[:40])
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise CalibrationError(f"`{word[:20]}` is no number", *route)
    return found


def _positive(word: str, *route: str) -> float:
    found = _number(word, *route)
    if not 0 < found < _FASTEST:
        raise CalibrationError(f"`{word[:20]}` is out of range", *route)
    return found


def _text(data: Mapping[str, Any], key: str, *route: str) -> str:
    """Return a text; a number or a date that YAML has read is one, too."""
    if key not in data:
        raise CalibrationError(f"`{key}` is missing", *route)
    found = data[key]
    if isinstance(found, dict | list | bool) or found is None:
        raise CalibrationError(f"`{key}` should be text", *route, key)
    return str(found)


def _table(data: Mapping[str, Any], key: str, *route: str) -> dict[str, Any]:
    found = data.get(key, {})
    if not isinstance(found, dict):
        raise CalibrationError(f"`{key}` should have keys", *route, key)
    return found


def _refuse_others(data: Mapping[str, Any], known: Iterable[str], *route: str) -> None:
    for key in data:
        if key not in known:
            known = listed(f"`{each}`" for each in known)
            told = f"`{str(key)[:40]}` means nothing here; keys are {known}"
            raise CalibrationError(told, *route, str(key))


# writing


def calibration_text(made: Calibration) -> str:
    """Return a calibration as its file holds it.

    Invariants:
      round trip: read again it is the same, shares to three digits.
    """
    return "\n".join(_lines(made)) + "\n"


def _lines(made: Calibration) -> Iterator[str]:
    yield f"{HEAD}: {CALIBRATION}"
    for key in (*_WORDS, *(key for key in _MAY_SAY if getattr(made, key))):
        yield f"{key}: {print_scalar(getattr(made, key))}"
    if made.figures:
        yield "figures:"
        yield from (f"  {name}: {value!r}" for name, value in made.figures)
    if made.versions:
        versions = ((name, print_scalar(each, in_flow=True)) for name, each in made.versions)
        yield f"versions: {{{', '.join(map(': '.join, versions))}}}"
    yield from _measured_lines(made)
    if made.matmuls:
        yield "# Matmuls [m, k] x [k, n]: the share that they reach of what is the longer of their"
        yield "# FLOPs at the peak and their bytes to and from memory. Blocks of m, lines of k."
        yield "matmul:"
    for table in made.matmuls:
        yield f"  {table.dtype}:"
        for name in ("m", "k", "n"):
            yield f"    {name}: {' '.join(map(str, getattr(table, name)))}"
        if table.spread:
            yield f"    spread: {table.spread:.3g}"
        if table.operations:
            yield f"    operations: {table.operations}"
        yield "    share: |-"
        yield from _share_lines(table)


def _share_lines(table: MatmulTable) -> Iterator[str]:
    """Yield the shares, a line for each k, an empty line before each m but the first."""
    row = len(table.n)
    for number in range(len(table.m) * len(table.k)):
        if number and number % len(table.k) == 0:
            yield ""
        shares = table.shares[number * row : (number + 1) * row]
        yield "      " + " ".join(f"{share:.3g}".removeprefix("0") for share in shares)


def _measured_lines(made: Calibration) -> Iterator[str]:
    if made.flops_per_s:
        told = ", ".join(f"{dtype}: {per_s:.4g}" for dtype, per_s in made.flops_per_s)
        yield f"flops_per_s: {{{told}}}"
    if made.hbm_bytes_per_s is not None:
        yield f"hbm_bytes_per_s: {_figures(made.hbm_bytes_per_s)}  # median, low, high"
    if made.exposed is not None:
        yield f"exposed: {_figures(made.exposed)}  # of collectives: median, low, high, operations"
    if made.curves:
        yield "# By mesh axes: bytes on one device, and seconds that they take: median, low, high;"
        yield "# of a run also the number of operations."
        yield "collectives:"
    for axes, curves in grouped(made.curves, lambda curve: curve.mesh_axes).items():
        yield f"  {print_scalar('+'.join(axes))}:"
        for curve in curves:
            yield f"    {curve.kind}: |-"
            for payload, seconds in zip(curve.payloads, curve.seconds, strict=True):
                yield f"      {payload} {_figures(seconds)}"


def _figures(spread: Spread) -> str:
    count = f" {spread.operations}" if spread.operations else ""
    return " ".join(f"{each:.4g}" for each in spread[:3]) + count


# in a spec


def calibrated(
    targets: Iterable[TargetDecl],
    read: Callable[[Excerpt], SourceFile | Diagnostic],
    faults: list[Diagnostic],
) -> tuple[TargetDecl, ...]:
    """Return targets with what the files behind `by` say of their chips.

    A file that is of another chip counts for nothing, which is said.

    Args:
      read: returns the text of a file that a spec names.
      faults: takes what is wrong.
    """
    known: dict[str, Calibration | Diagnostic] = {}
    found = []
    for target in targets:
        machine, by = target.mesh.hardware, target.by
        if by is not None and machine is not None:
            is_new = by.text not in known
            made = known[by.text] = _read_at(by, read) if is_new else known[by.text]
            if isinstance(made, Diagnostic):
                faults += [made] if is_new else []
            elif made.chip == machine.chip.name and (
                made.title or made.device_kind in machine.chip.device_kinds
            ):
                faults += _stale(made, by) if is_new else ()
                machine = replace(machine, chip=calibrated_chip(machine.chip, made))
                target = target._replace(mesh=target.mesh._replace(hardware=machine))
            else:
                faults.append(_foreign(made, machine.chip, by))
        found.append(target)
    return tuple(found)


def _read_at(
    named: Excerpt, read: Callable[[Excerpt], SourceFile | Diagnostic]
) -> Calibration | Diagnostic:
    source = read(named)
    if isinstance(source, Diagnostic):
        return _bad(f"the calibration cannot be read: {source.message}", named.span, source.help)
    if len(source.text) > _MOST_CHARACTERS:
        told = f"`{named.text}` has {len(source.text):,} characters; a calibration has thousands"
        return _bad(told, named.span)
    value = read_yaml_value(source)
    if value.source_map is None or value.faults:
        fault = next(iter(value.faults), None)
        why = "it is no YAML" if fault is None else fault.message
        help = None if fault is None else fault.help
        return _bad(f"`{named.text}` is no calibration: {why}", named.span, help)
    try:
        return calibration_of(value.root)
    except CalibrationError as error:
        inside = ".".join(error.route)
        where = f" at `{inside}`" if inside and not source.is_outside else ""
        return _bad(f"`{named.text}` is no calibration{where}: {error}", named.span)


def _bad(message: str, span: Span, help: str | None = None) -> Diagnostic:
    made = "make one: `shardspec calibrate SPEC -o hardware.local.yaml`"
    return point(codes.BAD_CALIBRATION, message, span, help=help or made)


def _foreign(made: Calibration, chip: Chip, named: Excerpt) -> Diagnostic:
    one = made.device_kind if made.chip == chip.name else made.chip
    other = listed(chip.device_kinds) if made.chip == chip.name else chip.name
    message = f"`{named.text}` is of {one[:40]}, and the machine is of {other}: it does not count"
    help = f"measure {chip.title}, or take `by {named.text}` out"
    return point(codes.FOREIGN_CALIBRATION, message, named.span, help=help)


def _stale(made: Calibration, named: Excerpt) -> Iterator[Diagnostic]:
    """Yield that versions of what was measured are others than those that are installed here."""
    others = []
    for package, then in made.versions:
        with suppress(PackageNotFoundError, ValueError):
            now = version(package)
            others += [] if now == then else [f"{package} {then[:20]}, here {now}"]
    if others:
        message = f"`{named.text}` of {made.date} was made with {', '.join(others)}"
        help = "make it anew: `shardspec calibrate SPEC`"
        yield point(codes.STALE_CALIBRATION, message, named.span, help=help)
