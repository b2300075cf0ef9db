"""The pages of `shardspec explain`: findings, fields of the language, what comes with shardspec."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from shardspec import assets
from shardspec.diagnostics import Code, Diagnostic, words
from shardspec.diagnostics.codes import ALL
from shardspec.diagnostics.diagnostic import excerpt_of
from shardspec.diagnostics.lines import columns
from shardspec.ir.calibration import Calibration, Curve, MatmulTable, Sizes
from shardspec.ir.spec import Hardware, shape_text
from shardspec.language import catalogue
from shardspec.language.grammar import expressions
from shardspec.language.grammar.syntax import SyntaxFault
from shardspec.language.loader import bundled_doc

_NUMBER = re.compile(r"\[?(?:shd[-_ ]?)?([0-9]{3})\]?", re.IGNORECASE)


def find_code(text: str) -> Code | None:
    """Return the finding that a person means: `SHD301`, `301`, `Cut_Unit`, `lint cut-unit`.

    >>> [find_code(text).name for text in ("shd312", "[SHD312]", "312", "Cut_Unit", "`cut-unit`")]
    ['cut-unit', 'cut-unit', 'cut-unit', 'cut-unit', 'cut-unit']
    >>> find_code("SHD999"), find_code("rules")
    (None, None)
    """
    text = re.sub(r"^(?:lints?|finding)[.: ]\s*", "", text.strip("` "))
    number = _NUMBER.fullmatch(text)
    name = re.sub(r"[_\s]+", "-", text.lower())
    wanted = f"SHD{number[1]}" if number else name
    return next((code for code in ALL if wanted in (code.id, code.name)), None)


def finding_page(code: Code) -> str:
    """Return the page with its heading."""
    from shardspec.lints.registry import page

    return f"{code.id}  {code.name}  ({level_text(code)})\n\n{page(code)}"


def level_text(code: Code) -> str:
    """Return how loud a finding is, in words."""
    if code.is_pedantic:
        return f"pedantic: a {code.severity} under --pedantic, or where `lints:` names it"
    return f"{code.severity} unless `lints:` says otherwise"


def code_lines(codes: Iterable[Code] = ALL) -> Iterator[str]:
    """Yield a line for each finding: code, name, how loud it is, and what it says."""
    cells = (
        (code.id, code.name, "pedantic" if code.is_pedantic else code.severity, code.summary)
        for code in codes
    )
    yield from columns(cells, indent=0, is_prose=True)


def field_page(name: str) -> tuple[str, ...]:
    """Return the page of `rules` or `policy.indivisible`; nothing for what is no field."""
    from shardspec.language import document

    outer, _, inner = name.partition(".")
    entries = document.ENTRIES
    field = document.Document.model_fields.get(outer)
    if field is None:
        return ()
    if inner:
        entry = entries[outer].model_fields.get(inner) if outer in entries else None
        return (f"{name}: {entry.description}",) if entry is not None else ()
    lines = [f"{name}: {field.description}"]
    if outer in entries:
        members = entries[outer].model_fields.items()
        lines += ["", *(f"  {key}: {member.description}" for key, member in members)]
    return tuple(lines)


# What comes with shardspec, to read: presets, the hardware catalogue, examples, and lists of each.
#
# A preset is shown as it stands, since its comments say why each rule is where it is; a machine
# with every figure beside its source; either is read off the file that a spec uses.


#: What stands before the name of a file that comes along -> its folder.
FILES: dict[str, assets.SpecKind] = {
    "preset": "presets",
    "step": "steps",
    "example": "examples",
    "arrays": "arrays",
}
#: Lines shown around one that is asked for.
_AROUND = 4

#: Of a figure's name, its end -> what it is divided by, and the unit then.
_UNITS = {
    "_flops_per_s": (1e12, "TFLOP/s"),
    "_ops_per_s": (1e12, "TOP/s"),
    "_bytes_per_s": (1e9, "GB/s"),
    "_hz": (1e9, "GHz"),
}

Page = Iterator[str] | str
"""The lines of a page; or, where there is no such thing, the nearest that there is."""


def list_lines(kind: str) -> Iterator[str]:
    """Yield a line for each thing of a kind, as `explain --list` takes it."""
    if kind == "findings":
        return code_lines()
    if kind == "hardware":
        entries = dict.fromkeys(catalogue.hardware_names().values())
        return columns(map(machine_cells, entries), indent=0, is_prose=True)
    shown = next(each for each in FILES.values() if each == kind)
    rows = ((name, bundled_doc(shown, name)) for name in assets.spec_names(shown))
    return columns(rows, indent=0, is_prose=True)


def page_of(subject: str) -> Page | None:
    """Return the page of what comes along; None for a word that means nothing of it.

    With or without what it is: `preset:fsdp` and `fsdp`, `hardware:v6e` and `v6e`; a line of a file
    as messages name it: `step:moe:13`.
    """
    kind, colon, name = subject.partition(":")
    if colon and kind == "hardware":
        return hardware_page(name)
    if colon and kind in FILES:
        return file_page(kind, name)
    known = kind_of(re.sub(r":[0-9]+$", "", subject))
    if known is not None:
        return file_page(known, subject)
    is_path = "/" in subject or ("." in subject and " " not in subject)
    found = None if is_path else hardware_page(subject)  # reads the whole catalogue
    return found if not isinstance(found, str) else None


def kind_of(name: str) -> str | None:
    """Return what a file that comes along is: `preset` for `fsdp`; None for other names."""
    return next((kind for kind, folder in FILES.items() if name in assets.spec_names(folder)), None)


def names() -> Iterator[str]:
    """Yield the name of everything that comes along, with what it is: `preset:fsdp`."""
    yield from (f"hardware:{name}" for name in catalogue.hardware_names())
    for kind, folder in FILES.items():
        yield from (f"{kind}:{name}" for name in assets.spec_names(folder))


def near_names(word: str) -> str | None:
    """Return "findings are called ...", for a word that is part of names or like one.

    Names of what comes along are proposed as well.

    >>> near_names("unmatched"), near_names("layers/0/wi"), near_names("fsdp-tensr")
    ('a finding is called `unmatched-pattern`', None, 'there is `preset:fsdp-tensor`')
    """
    prefix, _, bare = word.lower().rpartition(":")
    along = {each.partition(":")[2]: each for each in reversed([*names()])}
    cutoff = 0.8 if "/" in bare else 0.65
    near = words.nearest(bare, along, count=2, cutoff=cutoff) if prefix != "axis" else ()
    shown = [along[each] for each in near]
    if any(each.startswith("hardware:") for each in shown) and bare not in along:
        shown = [f"hardware:{each}" for each in catalogue.hardware_meant(bare)] or shown
    told = [f"there is {words.listed(shown)}"] if near else []
    name = re.sub(r"[_\s]+", "-", word.lower())
    if re.fullmatch(r"[a-z]{2}[a-z-]+", name):
        called = [code.name for code in ALL]
        within = [each for each in called if name in each]
        found = within or words.nearest(name, called, count=3, cutoff=0.7)
        are = "a finding is called" if len(found) == 1 else "findings are called"
        told[:0] = [f"{are} {words.listed(found, 4)}"] if found else []
    return "; ".join(told) or None


def file_page(kind: str, asked: str) -> Page:
    """Return a file as it stands, under its name, or the lines around one: `moe:13`."""
    name, colon, number = asked.rpartition(":")
    is_line = bool(colon) and number.isdecimal() and len(number) < 9
    name = name if is_line else asked
    folder = FILES[kind]
    path = assets.spec_path(folder, name)
    if path is None:
        return _near(name, folder, assets.spec_names(folder))
    lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    title = f"{kind}:{name}   {bundled_doc(folder, name)}"
    if not is_line:
        return iter((title, "", *lines))
    if not 1 <= int(number) <= len(lines):
        return f"{kind}:{name} has {words.counted(len(lines), 'line')}"
    start = max(int(number) - _AROUND, 1)
    around = enumerate(lines[start - 1 : int(number) + _AROUND - 1], start)
    numbered = (f"{'>' if at == int(number) else ' '} {at:>4} | {text}" for at, text in around)
    return iter((title, "", *numbered))


def hardware_page(text: str) -> Page:
    """Return what the catalogue knows of a chip, or of a machine: `v5p`, `tpu v5p 4x4x8`."""
    file = _chips().get(" ".join(text.lower().split()))
    if file is not None:
        return _chip_lines(file, None)
    machine = _machine(text)
    return machine if isinstance(machine, str) else _chip_lines(_file_of(machine), machine)


def _chips() -> dict[str, str]:
    """Return the file of each chip by all that it is called: names, its title, JAX's kinds."""
    called: dict[str, str] = {}
    for file in dict.fromkeys(catalogue.hardware_names().values()):
        chip = catalogue.catalogue_entry(file).chip
        for name in (file, chip.title, chip.title.partition(" (")[0], *chip.device_kinds):
            called.setdefault(name.lower(), file)
    return {**called, **catalogue.hardware_names()}


def _machine(text: str) -> Hardware | str:
    """Return the machine that a spec's `hardware:` would be; else what is wrong with it."""
    parsed = expressions.parse_hardware(text)
    if isinstance(parsed, SyntaxFault):
        return _near(text, "hardware", catalogue.hardware_names(), catalogue.hardware_meant(text))
    found = catalogue.find_hardware(parsed, excerpt_of(text))
    return (found.help or found.message) if isinstance(found, Diagnostic) else found


def _file_of(machine: Hardware) -> str:
    files = dict.fromkeys(catalogue.hardware_names().values())
    return next(each for each in files if catalogue.catalogue_entry(each).chip == machine.chip)


def _near(
    name: str, kind: str, names: Mapping[str, str] | tuple[str, ...], meant: Sequence[str] = ()
) -> str:
    near = meant or words.nearest(name, names, count=3)
    shown = f"did you mean {words.listed(near)}? " if near else ""
    return f"{shown}`shardspec explain --list {kind}` shows all"


def machine_cells(file: str) -> tuple[str, str]:
    """Return the name of a chip of the catalogue, and what it is in a line."""
    entry = catalogue.catalogue_entry(file)
    chip = entry.chip
    hbm = f", {words.binary_bytes(chip.hbm_bytes)}" if chip.hbm_bytes else ""
    shape = f", torus of {chip.torus_rank} dimensions" if chip.torus_rank else ""
    domain = f", {chip.fabric} domains of {entry.domain}" if entry.domain else ""
    return entry.names[0], f"{chip.title}{hbm}{shape}{domain}"


def _chip_lines(file: str, machine: Hardware | None) -> Iterator[str]:
    entry = catalogue.catalogue_entry(file)
    data = catalogue.catalogue_data(file)
    yield f"hardware:{machine or entry.names[0]}   {entry.chip.title}"
    if machine is not None:
        yield ""
        yield from _slice_lines(machine)
    yield ""
    yield from columns(figure_rows(data["figures"]), indent=0, is_prose=True)
    yield ""
    if entry.chip.calibration is not None:
        yield from calibration_lines(entry.chip.calibration)
        yield ""
    yield from columns(name_rows(entry, data), indent=0, is_prose=True)


def _slice_lines(machine: Hardware) -> Iterator[str]:
    """Yield how many of everything a machine has, and how its chips are joined."""
    hosts = math.prod(machine.topology) // math.prod(machine.host_shape) * machine.slice_count
    chip = "GPU" if machine.chip.platform == "gpu" else "chip"
    counts = ((machine.chip_count, chip), (machine.device_count, "device"), (hosts, "host"))
    slices = words.counted(machine.slice_count, machine.slice_name)
    of_all = ", ".join(words.counted(*each) for each in counts)
    yield f"{slices} of {shape_text(machine.topology)}: {of_all}"
    if machine.chip.torus_rank:
        wraps = machine.chip.wraps(machine.topology)
        joined = [axis for axis, wrapped in zip("xyz", wraps, strict=False) if wrapped]
        yield f"ends joined along {words.listed(joined)}" if joined else "no dimension wraps around"


def figure_rows(figures: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield each figure of a chip: its key, its value in a unit that people read, its source."""
    for key, figure in figures.items():
        yield key, _figure_text(key, figure["value"]), figure["source"]


def _figure_text(key: str, value: Any) -> str:
    if isinstance(value, list):
        return shape_text(tuple(value))
    for end, (scale, unit) in _UNITS.items():
        if key.endswith(end):
            return f"{words.three_figures(float(value) / scale)} {unit}"
    return words.binary_bytes(value) if key.endswith("_bytes") else str(value)


def name_rows(
    entry: catalogue.CatalogueEntry, data: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield what a chip is called, by whom, and which slices of it there are."""
    yield "names", ", ".join(entry.names)
    if entry.prefixes:
        types = ", ".join(f"{prefix}-N" for prefix in entry.prefixes)
        yield "accelerator types", f"{types}, N in {entry.counts}"
    if entry.machines:
        machines = (f"{name} ({words.counted(chips, 'GPU')})" for name, chips in entry.machines)
        yield "machine types", ", ".join(machines)
    if entry.chip.device_kinds:
        yield "what JAX calls it", ", ".join(entry.chip.device_kinds)
    shapes = entry.shapes
    if shapes.listed:
        text = ", ".join(map(shape_text, shapes.listed))
        if shapes.cube:
            cube = shape_text((shapes.cube,) * shapes.rank)
            text += f", and boxes of {cube} cubes up to {shapes.most_chips:,} chips"
        yield "slices", text


# What is known of how fast a kind of chip is, as lines: from the catalogue, or found out here.


#: How many rows of the left operand are shown, and right ones of which sizes, as far as they go.
_SHOWN_M = 4
_SHOWN = ((4096, 4096), (4096, 256), (256, 4096))


def calibration_lines(made: Calibration) -> Iterator[str]:
    """Yield what a calibration holds, an excerpt of its tables, and what it was found by."""
    if made.matmuls:
        yield "matmuls [m, k] x [k, n] reach, of the longer of peak FLOPs and memory bandwidth:"
        shown = made.matmuls[0].m
        shown = shown[:: max(1, round(len(shown) / _SHOWN_M))]
        heads = tuple(f"m={m}" for m in shown)
        rows = [("", "k, n", *heads, "")]
        rows += (row for table in made.matmuls for row in _rows(table, shown))
        yield from columns(rows, right=range(2, 2 + len(heads)))
    hbm = made.hbm_bytes_per_s
    if hbm is not None:
        ends = f"{hbm.low / 1e9:.3g} to {hbm.high / 1e9:.3g}"
        yield f"memory, read and written   {hbm.median / 1e9:.3g} GB/s a device, {ends}"
    for dtype, per_s in made.flops_per_s:
        yield f"most in {dtype}   {words.flops_text(round(per_s))}/s a device"
    if made.exposed is not None:
        share = words.percent(made.exposed.median, 1)
        yield f"exposed   {share} of collectives{_counted(made.exposed.operations)}"
    if made.curves:
        yield "collectives, by mesh axes and bytes on one device:"
        yield from columns([_curve(each) for each in made.curves])
    yield f"found {made.date} by {made.how}"


def _counted(operations: int) -> str:
    return f", of {words.counted(operations, 'operation')}" if operations else ""


def _curve(curve: Curve) -> tuple[str, ...]:
    """Return the least and the most that was carried, with the range of the runs."""
    ends = dict.fromkeys((0, len(curve.payloads) - 1))
    told = (
        f"{words.binary_bytes(curve.payloads[at])} in {words.seconds_text(taken.median)}"
        f" ({words.seconds_text(taken.low)} to {words.seconds_text(taken.high)})"
        f"{_counted(taken.operations)}"
        for at, taken in ((at, curve.seconds[at]) for at in ends)
    )
    return "+".join(curve.mesh_axes), curve.kind, ", ".join(told)


def _rows(table: MatmulTable, shown: Sizes) -> Iterator[tuple[str, ...]]:
    spread = f", +- {words.percent(table.spread / 2, 1)}" if table.spread else ""
    told = f"of {words.counted(len(table.shares), 'size')}{spread}{_counted(table.operations)}"
    sizes = (
        (min(max(k, table.k[0]), table.k[-1]), min(max(n, table.n[0]), table.n[-1]))
        for k, n in _SHOWN
    )
    for number, (k, n) in enumerate(dict.fromkeys(sizes)):
        shares = (words.percent(table.share(m, k, n), 1) for m in shown)
        yield "" if number else table.dtype, f"{k}, {n}", *shares, "" if number else told
