"""Which slices of a TPU generation exist, and which of them an accelerator type means.

libtpu accepts shapes that nobody can rent, so the table is the catalogue's own: the small
slices one by one, and above them every box of whole cubes, sizes in ascending order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from shardspec.assets import spec_path
from shardspec.diagnostics import Diagnostic, Excerpt, codes, point
from shardspec.diagnostics.diagnostic import excerpt_of
from shardspec.diagnostics.words import listed, nearest
from shardspec.ir.spec import Chip, Hardware, shape_text
from shardspec.language.grammar import expressions
from shardspec.language.grammar.syntax import HardwareExpr, SyntaxFault

if TYPE_CHECKING:
    from shardspec.ir.calibration import Calibration

Shape = tuple[int, ...]


class SliceShapes(NamedTuple):
    """The slice shapes of one generation, in chips.

    Attributes:
      listed: the slices that are given one by one.
      rank: dimensions of a slice.
      cube: edge of the cubes that larger slices are made of; None where there are none.
      most_chips: the largest slice made of cubes.
      one_host: slices that a single host of the same shape serves.
    """

    listed: tuple[Shape, ...]
    rank: int = 0
    cube: int | None = None
    most_chips: int = 0
    one_host: tuple[Shape, ...] = ()

    def has(self, shape: Shape) -> bool:
        """Say whether there is a slice of this shape."""
        return shape in self.listed or self._is_box(shape)

    def _is_box(self, shape: Shape) -> bool:
        cube, rank = self.cube, self.rank
        if cube is None or len(shape) != rank or math.prod(shape) > self.most_chips:
            return False
        return tuple(sorted(shape)) == shape and all(s > 0 and s % cube == 0 for s in shape)

    def every(self) -> Iterator[Shape]:
        """Yield every shape, the listed ones first."""
        yield from self.listed
        if self.cube is not None:
            yield from _boxes(self.cube, self.rank, self.most_chips)

    def of_size(self, chips: int) -> Shape | None:
        """Return the most compact slice of so many chips: the default topology of that size."""
        found = [shape for shape in self.every() if math.prod(shape) == chips]
        return min(found, key=lambda shape: (sum(shape), max(shape)), default=None)

    def near(self, shape: Shape, count: int = 4) -> tuple[Shape, ...]:
        """Return the shapes most like `shape`: the same number of chips first, then by size."""
        chips = max(1, math.prod(shape))

        def distance(other: Shape) -> tuple[float, int]:
            ratio = abs(math.log(math.prod(other) / chips))
            pairs = zip(sorted(shape), sorted(other), strict=False)
            return ratio, sum(abs(mine - its) for mine, its in pairs)

        return tuple(sorted(self.every(), key=distance)[:count])

    def sizes_near(self, chips: int, count: int = 4) -> tuple[int, ...]:
        """Return the numbers of chips of existing slices nearest to `chips`, ascending."""
        sizes = {math.prod(shape) for shape in self.every()}
        ranked = sorted(sizes, key=lambda size: abs(math.log(size / max(1, chips))))
        return tuple(sorted(ranked[:count]))


def _boxes(cube: int, rank: int, most: int, least: int = 1) -> Iterator[Shape]:
    """Yield every ascending shape of multiples of `cube` with at most `most` chips."""
    if rank == 0:
        yield ()
        return
    size = max(cube, least)
    while size**rank <= most:
        for rest in _boxes(cube, rank - 1, most // size, size):
            yield (size, *rest)
        size += cube


def parse_shape(text: object) -> Shape:
    """Return the sizes of `4x8x8`; a bare number is a shape of one dimension."""
    return tuple(int(size) for size in str(text).split("x"))


class CatalogueEntry(NamedTuple):
    """One kind of chip as the catalogue knows it.

    Attributes:
      names: what a spec may call it.
      prefixes: what accelerator types begin with: `v5litepod` of `v5litepod-64`.
      counts: what the number of an accelerator type counts.
      machines: machine type -> GPUs of one machine.
      domain: chips that NVLink, or another fabric, joins; 0 where there is a torus or nothing.
    """

    chip: Chip
    names: tuple[str, ...]
    shapes: SliceShapes
    prefixes: tuple[str, ...] = ()
    counts: Literal["cores", "chips"] | None = None
    machines: tuple[tuple[str, int], ...] = ()
    domain: int = 0


@cache
def hardware_names() -> Mapping[str, str]:
    """Return every name a spec may use for hardware, with the file that describes it."""
    return {str(name): str(file) for name, file in catalogue_data("names").items()}


@cache
def catalogue_entry(name: str) -> CatalogueEntry:
    """Return the entry with this file name: `tpu_v4`, `h100`."""
    data = catalogue_data(name)
    figures = {key: figure["value"] for key, figure in data["figures"].items()}
    accelerator_types = data.get("accelerator_types", {})
    shapes = data.get("shapes", {})
    return CatalogueEntry(
        chip=_chip(data, figures, name),
        names=tuple(data["names"]),
        shapes=SliceShapes(
            listed=tuple(parse_shape(shape) for shape in shapes.get("listed", ())),
            rank=figures["torus_rank"],
            cube=shapes.get("cube"),
            most_chips=shapes.get("most_chips", 0),
            one_host=tuple(parse_shape(shape) for shape in shapes.get("one_host", ())),
        ),
        prefixes=tuple(accelerator_types.get("prefixes", ())),
        counts=accelerator_types.get("counts"),
        machines=tuple(data.get("machines", {}).items()),
        domain=figures.get("domain", 0),
    )


def _chip(data: Mapping[str, Any], figures: Mapping[str, Any], name: str) -> Chip:
    """Return the chip of a file, whose keys are called as the fields are."""
    known = {each.name for each in fields(Chip)}
    stated = {key: value for key, value in {**data, **figures}.items() if key in known}
    for key, value in stated.items():
        if isinstance(value, list):
            stated[key] = tuple(value)
        elif key.endswith(("_per_s", "_hz")):
            stated[key] = float(value)
    has_estimates = spec_path("hardware", f"estimates/{name}") is not None
    wraps, compiler = data.get("wraps", {}), data.get("compiler", {})
    stated.setdefault("usable_hbm_bytes", compiler.get("device_memory_size"))
    stated |= {
        "wrap_size": wraps.get("axis_equals"),
        "wrap_multiple": wraps.get("all_multiples_of"),
        "compiler": tuple((key, str(value)) for key, value in compiler.items()),
        "estimates": partial(_estimates, name) if has_estimates else None,
    }
    return Chip(**stated)


@cache
def _estimates(name: str) -> Calibration:
    from shardspec.language.calibration import calibration_of

    return calibration_of(catalogue_data(f"estimates/{name}"))


@cache
def catalogue_data(name: str) -> dict[str, Any]:
    """Return the data of one catalogue file as it stands, sources included: `tpu_v4`, `names`."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    path = spec_path("hardware", name)
    assert path is not None, f"the catalogue has no file {name}.yaml"
    data: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    return data


_FORMS = (
    "forms: `tpu v4 4x8x8`, `2 * tpu v5p 4x4x8` (slices), `v4-512` (accelerator type), "
    "`4 * h100` (nodes), `2 * a3-highgpu-8g`, `8 cpu`"
)

_LONGEST_MEANT = 80


def with_count(text: str) -> str:
    """Return a machine as a spec writes it; of several nodes, with all GPUs: `4 * h100 (32 GPUs)`.

    >>> with_count("4 * h100"), with_count("tpu v5p 4x4x8")
    ('4 * h100 (32 GPUs)', 'tpu v5p 4x4x8')
    """
    parsed = expressions.parse_hardware(text)
    found = None if isinstance(parsed, SyntaxFault) else find_hardware(parsed, excerpt_of(text))
    return found.with_count if isinstance(found, Hardware) else text


def find_hardware(expr: HardwareExpr, excerpt: Excerpt) -> Hardware | Diagnostic:
    """Return the machine that `expr` names, or what is wrong with it.

    Args:
      excerpt: the text of the expression, for places.
    """
    found = _machine(_Stated(expr, excerpt))
    if expr.share is None or isinstance(found, Diagnostic):
        return found
    share = float(expr.share.text)
    if found.chip.platform == "gpu" and 0 < share <= 1:
        return replace(found, stated_share=share)
    message = f"`memory {expr.share.text}` is no share of a GPU's memory"
    if found.chip.platform != "gpu":
        message = f"`memory` is for GPUs, and {found.chip.title} is none"
    help = "as in `4 * h100 memory 0.9`: what XLA_PYTHON_CLIENT_MEM_FRACTION is where the step runs"
    span = excerpt.at(expr.share.start, expr.share.end)
    return point(codes.UNKNOWN_HARDWARE, message, span, help=help)


class _Stated(NamedTuple):
    """A machine as it is written, and where."""

    expr: HardwareExpr
    excerpt: Excerpt

    def fault(self, message: str, help: str, *, shape: bool = False) -> Diagnostic:
        """Return the finding, pointing at the chip's name, or at what follows it."""
        start, end = self.expr.chip.start, self.expr.chip.end
        if shape:
            start, end = min(end + 1, len(self.excerpt.text)), len(self.excerpt.text)
        return point(codes.UNKNOWN_HARDWARE, message, self.excerpt.at(start, end), help=help)


def _machine(stated: _Stated) -> Hardware | Diagnostic:
    expr = stated.expr
    name = expr.chip.text.lower()
    prefix, dash, number = name.rpartition("-")
    files = hardware_names()
    is_type = bool(dash) and number.isdecimal() and name not in files
    file = files.get(prefix if is_type else name)
    if file is None:
        return _unknown(stated, files)
    entry = catalogue_entry(file)
    if expr.platform is not None and expr.platform.lower() != entry.chip.platform:
        message = f"`{expr.chip.text}` is a {entry.chip.platform.upper()}, not a {expr.platform}"
        help = f"write `{entry.chip.platform} {expr.chip.text}`, or the name alone"
        return stated.fault(message, help)
    if expr.slices < 1 or (expr.count is not None and expr.count < 1):
        return stated.fault("a machine has at least one chip", _FORMS)
    if entry.chip.platform == "tpu":
        return _tpu(entry, stated, int(number) if is_type else None)
    if is_type or expr.topology:
        extra = f"-{number}" if is_type else f" {shape_text(expr.topology)}"
        message = f"`{entry.chip.name}` takes no `{extra.strip()}`: it has no torus"
        help = f"write a count: `4 * {entry.chip.name}`" if entry.domain else "write `8 cpu`"
        return stated.fault(message, help)
    if entry.chip.platform == "gpu":
        return _gpu(entry, stated)
    size = (expr.count or 1,)
    return Hardware(entry.chip, expr.slices, size, host_shape=size, span=stated.excerpt.span)


#: Slices of one generation that complete.
_MOST_SLICES = 12


def usual_machines() -> Iterator[tuple[str, CatalogueEntry]]:
    """Yield machines that there are, as a spec writes them, smaller slices first."""
    for file in dict.fromkeys(hardware_names().values()):
        entry = catalogue_entry(file)
        name = entry.names[0]
        texts = [name, f"2 * {name}"]
        if entry.chip.platform == "tpu":
            shapes = list(entry.shapes.every())[:_MOST_SLICES]
            texts = [f"tpu {name} {shape_text(shape)}" for shape in shapes]
        elif entry.chip.platform == "cpu":
            texts = [f"8 {name}"]
        yield from ((text, entry) for text in texts)


def chips_of_kind(device_kind: str) -> tuple[Chip, ...]:
    """Return the chips that JAX calls `device_kind`; reads the whole catalogue."""
    entries = (catalogue_entry(file) for file in dict.fromkeys(hardware_names().values()))
    return tuple(entry.chip for entry in entries if device_kind in entry.chip.device_kinds)


def _tpu(entry: CatalogueEntry, stated: _Stated, number: int | None) -> Hardware | Diagnostic:
    """Return slices of one TPU generation: by topology, by accelerator type, or by chips."""
    expr = stated.expr
    per, chips = _counted_per_chip(entry), expr.count
    if number is not None:
        chips = number // per if number % per == 0 else None
    shape = expr.topology
    if not shape:
        found = None if chips is None else entry.shapes.of_size(chips)
        if found is None:
            return _no_size(entry, stated, chips, number)
        shape = found
    if number is not None and chips != math.prod(shape):
        spelt, what = shape_text(shape), f"`{expr.chip.text}` is {_chips_text(entry, number)}"
        message = f"{what}, but `{spelt}` has {math.prod(shape)}"
        return stated.fault(message, f"leave out `{spelt}`, or the number")
    if not entry.shapes.has(shape):
        return _no_shape(entry, stated, shape)
    type_name = expr.chip.text if number is not None else None
    hosts = shape  # of one that a single host serves
    if shape not in entry.shapes.one_host:
        hosts = tuple(map(min, zip(entry.chip.host_shape, shape, strict=True)))
    return Hardware(entry.chip, expr.slices, shape, type_name, hosts, stated.excerpt.span)


def _counted_per_chip(entry: CatalogueEntry) -> int:
    """Return how many of what an accelerator type counts are one chip."""
    return entry.chip.cores_per_chip if entry.counts == "cores" else 1


def _gpu(entry: CatalogueEntry, stated: _Stated) -> Hardware | Diagnostic:
    """Return NVLink domains: `4 * h100`, `16 h100`, `2 * a3-highgpu-8g`."""
    expr, machines = stated.expr, dict(entry.machines)
    name, domain = expr.chip.text.lower(), entry.domain
    type_name = expr.chip.text if name in machines else None
    chips = (expr.count or domain) * expr.slices
    if name in machines:
        own = machines[name]
        chips = own * (expr.count or 1) * expr.slices
        domain = own if own < entry.chip.host_shape[0] else max(own, domain)
    if chips > domain and chips % domain:
        domains = f"{entry.chip.fabric} domains of {domain}"
        message = f"{chips} {entry.chip.title} do not fill whole {domains}"
        near = [chips // domain * domain, (chips // domain + 1) * domain]
        fits = " or ".join(f"`{count} {entry.chip.name}`" for count in near if count)
        help = f"up to {domain}, or a multiple of {domain}: {fits}"
        return stated.fault(message, help)
    nodes, size = (chips // domain, domain) if chips > domain else (1, chips)
    hosts = (min(size, max(entry.chip.host_shape[0], machines.get(name, 0))),)
    return Hardware(entry.chip, nodes, (size,), type_name, hosts, stated.excerpt.span)


def hardware_meant(text: str) -> tuple[str, ...]:
    """Return the machines that a text may mean which names one in another way; sound ones only.

    >>> hardware_meant("h100x16"), hardware_meant("8xh100"), hardware_meant("2x8 h100")
    (('16 h100',), ('8 h100',), ('2 * h100',))
    >>> hardware_meant("v5p 128"), hardware_meant("4x4 tpu v5e"), hardware_meant("8 cpus")
    (('128 v5p', 'v5p-128'), ('tpu v5e 4x4',), ('8 cpu',))
    >>> hardware_meant("tpu-v5p-32"), hardware_meant("v5p-32 x 2")
    (('v5p-32',), ('2 * v5p-32',))
    >>> hardware_meant("NVIDIA H100 80GB HBM3"), hardware_meant("8 NVIDIA A100-SXM4-80GB")
    ((), ('8 a100',))
    >>> hardware_meant("dgx h100"), hardware_meant("2 DGX-H100"), hardware_meant("dgx, 16 h100")
    (('8 h100',), ('2 * h100',), ('16 h100',))
    """
    found = _words_of(text)
    if found is None or found.odd:
        return ()
    domain = catalogue_entry(hardware_names()[found.chip]).domain
    nodes = None if _CHIP.search(text) or found.joined else _NODES.search(text)
    if domain and nodes is not None and found.numbers == tuple(filter(None, nodes.groups())):
        count = nodes[1] or "1"
        return (f"{domain} {found.chip}" if count == "1" else f"{count} * {found.chip}",)
    if not (found.numbers or found.joined):
        return ()
    spelt = _spellings(found.chip, found.joined, found.numbers, "*" in text)
    return tuple(each for each in spelt if _devices(each))


#: Words about GPUs that do not say which chip they are.
_PLAIN_WORDS = frozenset({"a", "by", "dgx", "hgx", "of", "on", "server", "with", "x"}) | {
    word + s for word in ("chip", "device", "gpu", "host", "machine", "node") for s in ("", "s")
}


#: A node of GPUs, or so many; and words for one of its GPUs.
_NODES = re.compile(r"\b(?:(\d{1,9}) ?[x*]? ?)?(?:dgx|hgx|host|machine|node|server)", re.IGNORECASE)
_CHIP = re.compile(r"\b(?:chip|device|gpu)", re.IGNORECASE)


class _Words(NamedTuple):
    """What a text says about a machine of one chip.

    Attributes:
      joined: the number joined to the chip: 32 of `v5p-32`.
      numbers: all others.
      odd: the first word that the catalogue does not have for this chip; "" for none.
    """

    chip: str
    joined: str
    numbers: tuple[str, ...]
    odd: str


def _words_of(text: str) -> _Words | None:
    """Return what a text says about a machine; None where it does not name one chip."""
    names = "|".join(map(re.escape, sorted(hardware_names(), key=len, reverse=True)))
    amount = r"(\d+)(?!\d*\s*gi?b\b)"  # of chips, not of memory
    other = rf"(?<![a-wyz\d]){amount}"  # nor of a version: `HBM3`, `SXM4`
    pattern = rf"({names})(?!\d)(?:s\b|[-_]{amount})?|{other}"
    text = text.lower()[:_LONGEST_MEANT]
    words = re.findall(pattern, text)
    chips = {(chip, joined) for chip, joined, _ in words if chip}
    if len(chips) != 1:
        return None
    chip, joined = chips.pop()
    rest = re.sub(r"(\d)\s*gi?b\b", r"\1gb", re.sub(pattern, " ", text))
    said = set(re.findall(r"[a-z]\w*|\d+gb", rest)) - _PLAIN_WORDS
    alike = [name for name in hardware_names() if name.startswith(chip)]
    chip = next((name for name in alike if not _odd_words(said, name)), chip)
    numbers = tuple(number for *_, number in words if number)
    return _Words(chip, joined, numbers, min(_odd_words(said, chip), default=""))


def _odd_words(said: Iterable[str], name: str) -> set[str]:
    """Return the words that another version of a GPU may have: `pcie`, and not `sxm`, `80gb`."""
    entry = catalogue_entry(hardware_names()[name])
    if entry.chip.platform != "gpu":
        return set()
    titles = " ".join((*entry.names, entry.chip.title, *entry.chip.device_kinds)).lower()
    known = set(re.findall(r"[a-z0-9]+", titles))
    return {each for each in said if not {each, each.rstrip("0123456789")} & known}


def _other_chip(text: str) -> str | None:
    """Return what to say of a text that names a chip, and something that the chip is not."""
    found = _words_of(text)
    if found is None or not found.odd:
        return None
    title = catalogue_entry(hardware_names()[found.chip]).chip.title
    return f"`{found.chip}` is {title}; the catalogue has no `{found.odd}` version of it"


def _spellings(chip: str, joined: str, others: Sequence[str], has_star: bool) -> list[str]:
    """Return how a machine may be spelt, by the chip and the numbers that somebody named.

    Args:
      joined: the number joined to the chip: 32 of `v5p-32`.
    """
    type_name = f"{chip}-{joined}"
    if joined and _devices(type_name) and len(others) < 2:
        return [f"{others[0]} * {type_name}" if others else type_name]
    numbers = [joined, *others] if joined else list(others)
    total = math.prod(map(int, numbers))
    if len(numbers) == 1:
        return [f"{total} * {chip}"] if has_star else [f"{total} {chip}", f"{chip}-{total}"]
    shapes = [f"tpu {chip} {'x'.join(numbers)}", f"{numbers[0]} * {chip}"]
    return [each for each in (*shapes, f"{total} {chip}") if _devices(each) == total][:1]


def machine_fault(fault: SyntaxFault, text: str) -> SyntaxFault:
    """Return the fault of a machine's text, with the machine that was meant where that is sure."""
    meant = hardware_meant(text)
    help = f"write {' or '.join(f'`{each}`' for each in meant)}" if meant else _other_chip(text)
    if help is None and (found := _words_of(text)) is not None:
        help = f"`{found.chip}` is in the catalogue; say how many: `8 {found.chip}`"
    return fault if help is None else fault._replace(help=help)


def _devices(text: str) -> int | None:
    """Return how many devices an expression of a machine is; None where it is none."""
    parsed = expressions.parse_hardware(text)
    if isinstance(parsed, SyntaxFault):
        return None
    found = find_hardware(parsed, excerpt_of(text))
    return None if isinstance(found, Diagnostic) else found.device_count


def _unknown(stated: _Stated, files: Iterable[str]) -> Diagnostic:
    expr, excerpt = stated
    message = f"the catalogue has no hardware `{expr.chip.text}`"
    if other := _other_chip(excerpt.text):
        return stated.fault(message, f"{other}; {_FORMS}")
    near = nearest(expr.chip.text.rpartition("-")[0] or expr.chip.text, files, count=3)
    near = near or nearest(expr.chip.text, files, count=3)
    near = hardware_meant(excerpt.text) or _of_platform(expr) or near
    help = f"did you mean {listed(near)}? {_FORMS}" if near else _FORMS
    return stated.fault(message, help)


def _of_platform(expr: HardwareExpr) -> tuple[str, ...]:
    """Return machines for a text that names no chip, but only what kind of chips: `8 gpu`."""
    kind = expr.chip.text.lower().removesuffix("s")
    if kind not in ("gpu", "tpu"):
        return ()
    chips = ("h100", "a100", "b200") if kind == "gpu" else ("v5e", "v5p", "v6e")
    count = f"{expr.count} " if expr.count else ""
    return tuple(each for chip in chips if _devices(each := f"{count}{chip}") is not None)


def _no_shape(entry: CatalogueEntry, stated: _Stated, shape: Shape) -> Diagnostic:
    rank, title, spelt = entry.chip.torus_rank, entry.chip.title, shape_text(shape)
    message = f"there is no {title} slice of {spelt} chips"
    if len(shape) != rank:
        message = f"{title} slices have {rank} dimensions, but `{spelt}` has {len(shape)}"
    turned = tuple(sorted(shape))
    if entry.shapes.has(turned):
        help = f"the same chips are written `{shape_text(turned)}`"
        return stated.fault(message, help, shape=True)
    near = listed(shape_text(other) for other in entry.shapes.near(shape))
    return stated.fault(message, f"slices near it: {near}", shape=True)


def _no_size(
    entry: CatalogueEntry, stated: _Stated, chips: int | None, number: int | None
) -> Diagnostic:
    name = entry.chip.name
    if chips is None and number is None:
        every = listed((shape_text(shape) for shape in entry.shapes.every()), 12)
        return stated.fault(f"`{name}` needs the topology of its slice", f"one of {every}")
    if number is None:
        message = f"there is no {entry.chip.title} slice of {chips} chips"
        near = listed(map(str, entry.shapes.sizes_near(chips or 1)))
        return stated.fault(message, f"sizes near it, in chips: {near}")
    message = f"there is no `{stated.expr.chip.text}`: {_chips_text(entry, number)}"
    per = _counted_per_chip(entry)
    sizes = entry.shapes.sizes_near(max(1, number // per))
    near = listed(f"{entry.prefixes[0]}-{size * per}" for size in sizes)
    return stated.fault(message, f"accelerator types near it: {near}")


def _chips_text(entry: CatalogueEntry, number: int) -> str:
    per = _counted_per_chip(entry)
    return f"{number} chips" if per == 1 else f"{number} cores, {number / per:g} chips"
