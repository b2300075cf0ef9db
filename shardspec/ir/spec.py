"""A lowered spec: what a document means, after presets, priorities and placement; and its nouns.

Arrays and how each is split, the machine, the mesh on it, rules and targets, and the spec of them.

A path is the keys of an array from the root of its tree, `/`-joined, live or saved. The collection
`params` of a Linen variables dict adds no component, as in T5X, so one spec serves Linen, NNX and
plain trees. Other collections keep their name: `batch_stats/bn/mean`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import sub
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from shardspec.diagnostics import SourceFile, Span
from shardspec.diagnostics.codes import NOTHING_ASKED, Levels, LevelTable, LintLevel
from shardspec.diagnostics.words import counted
from shardspec.ir.program import CodePlace, StepSpec

if TYPE_CHECKING:
    import jax

    from shardspec.ir.calibration import Calibration


#: The one component that is dropped, at the root only.
PARAMS = "params"


def tree_path(components: Sequence[str]) -> str:
    """Return the path of the array under these keys.

    >>> tree_path(["params", "mlp", "kernel"]), tree_path(["batch_stats", "mean"])
    ('mlp/kernel', 'batch_stats/mean')
    """
    return rooted("/".join(components))


def rooted(path: str) -> str:
    """Return a path from the root of a tree without the collection that adds no component.

    >>> rooted("params/mlp/wi"), rooted("params")
    ('mlp/wi', 'params')
    """
    return path.removeprefix(f"{PARAMS}/")


class Sums(NamedTuple):
    """Mesh axes over which an array is a sum, which JAX knows of explicit axes alone.

    Attributes:
      unreduced: each part of the mesh axis holds a partial sum, and the array is their sum.
      reduced: the array has been summed up, or lies whole there; its gradient comes `unreduced`.
    """

    unreduced: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()

    @property
    def mesh_axes(self) -> tuple[str, ...]:
        """Return the mesh axes of both kinds."""
        return self.unreduced + self.reduced

    def on(self, mesh: Mesh) -> Sums:
        """Return what is left of them on a mesh, axes that stand in parts as these."""
        return Sums(*map(mesh.in_parts, self)).here(mesh.sizes)

    def here(self, mesh_axes: Container[str]) -> Sums:
        """Return what is left of them on a mesh of these axes."""
        return Sums(*(tuple(axis for axis in axes if axis in mesh_axes) for axes in self))

    def __str__(self) -> str:
        """Return ` unreduced model reduced (a, b)`, as it stands behind a partition."""
        kinds = self._asdict().items()
        return "".join(f" {kind} {target_text(axes)}" for kind, axes in kinds if axes)


NO_SUMS = Sums()


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """Mesh axes of each dimension, major to minor.

    `.to_jax()` is JAX's own. Equal to that where both mean the same: there, Nones at the end do not
    count, and `"x"` is `("x",)`. Hashes differ: as keys of a dict take one kind.

    Invariants:
      once: no mesh axis stands in two places.
    """

    dims: tuple[tuple[str, ...], ...] = ()
    sums: Sums = NO_SUMS

    @property
    def mesh_axes(self) -> tuple[str, ...]:
        """Return every mesh axis in use, in order of dimension."""
        return tuple(axis for dim in self.dims for axis in dim)

    @property
    def is_replicated(self) -> bool:
        """Say whether no dimension is split by any mesh axis, and no part holds its own sum."""
        return not any(self.dims) and not self.sums.unreduced

    def to_jax(self) -> jax.sharding.PartitionSpec:
        """Return it as JAX's `PartitionSpec`, of full rank; loads jax."""
        from jax.sharding import PartitionSpec as JaxSpec

        make: Any = JaxSpec
        entries = (dim[0] if len(dim) == 1 else dim or None for dim in self.dims)
        found: JaxSpec = make(*entries, **jax_sums(self.sums))
        return found

    def __eq__(self, other: object) -> bool:
        """Say whether `other` splits an array likewise, be it ours or JAX's."""
        if isinstance(other, PartitionSpec):
            return self.dims == other.dims and _alike(self.sums, other.sums)
        entries = _jax_entries(other)
        if entries is None:
            return NotImplemented
        found: Any = other
        theirs = (found.unreduced, found.reduced)
        return _shortened(self.dims) == _shortened(entries) and _alike(self.sums, theirs)

    def __hash__(self) -> int:
        """Return the hash of the dimensions."""
        return hash(self.dims)

    def __str__(self) -> str:
        """Return it as JAX prints it: `P('data', None, ('x', 'y'))`, `P(None, unreduced={'x'})`."""
        kinds = jax_sums(self.sums)
        more = [f"{kind}={{{', '.join(map(repr, sorted(axes)))}}}" for kind, axes in kinds.items()]
        return f"P({', '.join((*map(_entry, self.dims), *more))})"


def _jax_entries(spec: Any) -> tuple[Any, ...] | None:
    """Return the entries of a `PartitionSpec` of JAX as tuples; None for anything else.

    Where jax is not loaded, nothing is one.
    """
    kind = getattr(getattr(sys.modules.get("jax"), "sharding", None), "PartitionSpec", None)
    if kind is None or not isinstance(spec, kind):
        return None
    return tuple((each,) if isinstance(each, str) else each or () for each in jax_entries(spec))


def jax_entries(spec: Any, rank: int = 0) -> tuple[Any, ...]:
    """Return the entries of a `PartitionSpec` of JAX, which one with sums does not iterate over.

    Args:
      rank: how many dimensions the array has; those without an entry get None.
    """
    found: tuple[Any, ...] = spec.partitions if hasattr(spec, "partitions") else tuple(spec)
    return (*found, *(None,) * (rank - len(found)))


def jax_sums(sums: Sums) -> dict[str, frozenset[str]]:
    """Return what `jax.sharding.PartitionSpec` takes beside its entries."""
    return {kind: frozenset(axes) for kind, axes in sums._asdict().items() if axes}


def _alike(sums: Iterable[Iterable[str]], others: Iterable[Iterable[str]]) -> bool:
    """Say whether both are over the same mesh axes, in any order."""
    return [*map(set, sums)] == [*map(set, others)]


def _shortened(dims: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return dimensions without those at the end that nothing splits."""
    return dims[: max((at for at, dim in enumerate(dims, 1) if dim != ()), default=0)]


def _entry(dim: tuple[str, ...]) -> str:
    if not dim:
        return "None"
    return repr(dim[0]) if len(dim) == 1 else f"({', '.join(map(repr, dim))})"


Shape = tuple[int, ...]
LogicalAxes = tuple[str | None, ...]

#: What a machine counts in 64 bits with a sign, as XLA does: elements, devices, sizes.
MOST_ELEMENTS = 2**63 - 1

#: Bits of one element by the short name of its dtype. Source: the names' own widths.
DTYPE_BITS: dict[str, int] = {
    "bool": 8,
    **{f"{kind}{bits}": bits for kind in "su" for bits in (2, 4, 8, 16, 32, 64)},
    "bf16": 16,
    **{f"f{bits}": bits for bits in (16, 32, 64)},
    **{f"c{bits}": bits for bits in (64, 128)},
    **dict.fromkeys(("f8_e3m4", "f8_e4m3", "f8_e4m3fn", "f8_e4m3fnuz", "f8_e4m3b11fnuz"), 8),
    **dict.fromkeys(("f8_e5m2", "f8_e5m2fnuz", "f8_e8m0fnu"), 8),
    "f4_e2m1fn": 4,
    "key<fry>": 64,  # jax.random.key, by implementation
    **dict.fromkeys(("key<rbg>", "key<urbg>"), 128),
}

#: Long names (numpy, ml_dtypes, safetensors) to the short ones.
DTYPE_ALIASES: dict[str, str] = {
    "bfloat16": "bf16",
    **{f"float{bits}": f"f{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"s{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"i{bits}": f"s{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"uint{bits}": f"u{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"complex{bits}": f"c{bits}" for bits in (64, 128)},
    **{name.replace("f8_", "float8_"): name for name in DTYPE_BITS if name.startswith("f8_")},
    **{name.replace("f8_", "f8"): name for name in DTYPE_BITS if name.startswith("f8_")},
    "float4_e2m1fn": "f4_e2m1fn",
    "pred": "bool",
}


def dtype_name(name: str) -> str | None:
    """Return the short name of a dtype (`bfloat16` and `BF16` are `bf16`), None if unknown."""
    short = DTYPE_ALIASES.get(name.lower(), name.lower())
    return short if short in DTYPE_BITS else None


@lru_cache(maxsize=1 << 14)
def array_bytes(shape: Shape, dtype: str) -> int:
    """Return the bytes of an array, the last byte filled up."""
    return -(-math.prod(shape) * DTYPE_BITS.get(dtype, 32) // 8)


@dataclass(frozen=True, slots=True)
class Param:
    """One array of a model.

    Attributes:
      path: `/`-joined, as `tree_path` makes it.
      dtype: a key of `DTYPE_BITS`, or a name that is not known here (then 4 bytes).
      logical_axes: the names the array itself carries, one per dimension, None for a
        dimension without a name; None where it carries none at all.
      span: the manifest entry it came from.
      is_cache: whether it is no parameter but a cache that stands beside the model: `caches:`.
      padding: elements of each dimension that `policy: {indivisible: pad}` adds; `()` for none.
      is_named_beside: whether the names are in a collection beside the arrays, as `params_axes` of
        Linen: code that takes the arrays alone does not have them.
    """

    path: str
    shape: Shape
    dtype: str = "f32"
    logical_axes: LogicalAxes | None = None
    span: Span | None = field(default=None, compare=False, repr=False)
    is_cache: bool = False
    padding: Shape = ()
    is_named_beside: bool = field(default=False, compare=False, repr=False)

    @property
    def true_shape(self) -> Shape:
        """Return the shape without padding."""
        return tuple(map(sub, self.shape, self.padding or (0,) * self.rank))

    @property
    def rank(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    @property
    def element_count(self) -> int:
        """Return the number of elements of the whole array."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Return the bytes of the whole array."""
        return array_bytes(self.shape, self.dtype)

    def __str__(self) -> str:
        """Return `bf16[4096, 512]`."""
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


Params = tuple[Param, ...]


class Arrays(NamedTuple):
    """The arrays that a file lists or holds.

    Attributes:
      partitions: path and PartitionSpec of the arrays whose layout the file states (T5X, Orbax).
      sources: the texts among the files that were read; spans of `params` lie in them.
    """

    params: Params = ()
    partitions: tuple[tuple[str, PartitionSpec], ...] = ()
    sources: tuple[SourceFile, ...] = ()


Platform = Literal["tpu", "gpu", "cpu"]


@dataclass(frozen=True, slots=True)
class Chip:
    """One catalogue entry: what a kind of chip is and has. `specs/hardware/` holds the sources.

    Attributes:
      name: what a spec says: `v5e`, `h100`, `cpu`.
      title: what a person says: `TPU v5e`.
      device_kinds: the strings that JAX reports as `device_kind` for it.
      devices_per_chip: JAX devices a chip shows (2 on TPU v2, v3 and v7x).
      cores_per_chip: TensorCores of a TPU chip; with megacore (v4, v5p) two are one device.
      torus_rank: dimensions of the chip torus; 0 where there is none.
      host_shape: chips per host along each torus dimension; for GPUs, chips per node.
      hbm_bytes: memory of one chip; None where the host's own memory is used.
      bf16_flops_per_s: peak, dense, one chip.
      hbm_bytes_per_s: memory bandwidth of one chip.
      link_bytes_per_s: one link, one way (TPU: ICI; GPU: all NVLink of a chip).
      links: links of one chip.
      network_bytes_per_s: DCN or network bandwidth of one host, one way.
      host_bytes_per_s: between one chip and the memory of its host, each way.
      int8_ops_per_s: peak, dense, one chip.
      fp8_flops_per_s: peak, dense, one chip.
      fabric: what the links between the GPUs of a node are called.
      has_switch: whether a switch joins them; else each has a link to each other one.
      pair_bytes_per_s: the link between the devices of one chip, where it is stated.
      matmul_efficiency: the share of the peak that matmuls of models reach.
      clock_hz: cycles a second, in which TPU compilers estimate time; None of others.
      usable_hbm_bytes: of the memory of one chip, what the compiler hands out (TPU), or what its
        driver shows (GPU), where that is known.
      wrap_size: a torus dimension of this size wraps around by itself (v2, v3, v5e, v6e).
      wrap_multiple: all torus dimensions wrap once each is a multiple of this (v4, v5p, v7x).
      compiler: what XLA is told of a GPU that is not there, by the names that it has for it.
      measured: what was measured of chips of this kind, where a spec names that.
      estimates: returns what its compiler says of it; None where nobody asked one. It reads a
        file, which most questions need not.
    """

    name: str
    title: str
    platform: Platform
    device_kinds: tuple[str, ...]
    devices_per_chip: int
    torus_rank: int
    host_shape: tuple[int, ...]
    hbm_bytes: int | None = None
    bf16_flops_per_s: float | None = None
    hbm_bytes_per_s: float | None = None
    link_bytes_per_s: float | None = None
    links: int | None = None
    network_bytes_per_s: float | None = None
    host_bytes_per_s: float | None = None
    int8_ops_per_s: float | None = None
    fp8_flops_per_s: float | None = None
    pair_bytes_per_s: float | None = None
    matmul_efficiency: float | None = None
    clock_hz: float | None = None
    usable_hbm_bytes: int | None = None
    cores_per_chip: int = 1
    fabric: str = "NVLink"
    has_switch: bool = True
    wrap_size: int | None = None
    wrap_multiple: int | None = None
    compiler: tuple[tuple[str, str], ...] = ()
    measured: Calibration | None = field(default=None, repr=False)
    estimates: Callable[[], Calibration] | None = field(default=None, repr=False, compare=False)

    def speed_between(self, gpus: int) -> float | None:
        """Return the bytes/s of a GPU to all others of a group in its node, one way.

        Without a switch it has the links to these others, and no more of its links.
        """
        if self.link_bytes_per_s is None or self.has_switch:
            return self.link_bytes_per_s
        return self.link_bytes_per_s * (gpus - 1) / (self.links or 1)

    @property
    def calibration(self) -> Calibration | None:
        """Return what is known beyond the figures, by measurements or else by a compiler."""
        if self.measured is None and self.estimates is not None:
            return self.estimates()
        return self.measured

    def wraps(self, topology: tuple[int, ...]) -> tuple[bool, ...]:
        """Return, for each torus dimension of a slice, whether its ends are joined."""
        if self.wrap_multiple is not None:
            cubes = all(size % self.wrap_multiple == 0 for size in topology)
            return (cubes,) * len(topology)
        return tuple(size == self.wrap_size for size in topology)


@dataclass(frozen=True, slots=True)
class Hardware:
    """The machine of one target.

    Attributes:
      slice_count: TPU slices, or GPU nodes; 1 for CPU.
      topology: chips along each torus dimension of one slice; `(chips per node,)` for GPUs
        and `(devices,)` for CPU.
      accelerator_type: the marketing name the spec used (`v4-512`), if it did.
      host_shape: chips per host along each dimension of `topology`; the chip's own unless the
        slice is smaller than a host or has larger ones.
      stated_share: of the memory of a GPU, what JAX is told to allocate: `memory 0.9`.

    Invariants:
      counts: device_count = slice_count x product(topology) x devices_per_chip.
    """

    chip: Chip
    slice_count: int
    topology: tuple[int, ...]
    accelerator_type: str | None = None
    host_shape: tuple[int, ...] = ()
    span: Span | None = field(default=None, compare=False, repr=False)
    stated_share: float | None = None

    @property
    def chip_count(self) -> int:
        """Return the chips of all slices."""
        return self.slice_count * math.prod(self.topology)

    @property
    def device_count(self) -> int:
        """Return the JAX devices of all slices."""
        return self.chip_count * self.chip.devices_per_chip

    @property
    def devices_per_slice(self) -> int:
        """Return the JAX devices of one slice or node."""
        return self.device_count // self.slice_count

    @property
    def title(self) -> str:
        """Return `2 x TPU v5p 4x4x8, 256 chips` or `8 nodes of 8 NVIDIA H100 SXM, 64 GPUs`.

        Chips and GPUs are always counted, beside what a number in an accelerator type counts.
        """
        chip = self.chip
        if chip.platform == "cpu":
            return counted(self.device_count, "CPU device")
        said = f" ({self.accelerator_type})" if self.accelerator_type else ""
        devices = f", {self.device_count} devices" if chip.devices_per_chip > 1 else ""
        if chip.platform == "gpu":
            nodes = f"{counted(self.slice_count, self.slice_name)} of {self.topology[0]} "
            several = nodes if self.slice_count > 1 else ""
            return f"{several}{chip.title}{said}, {counted(self.chip_count, 'GPU')}{devices}"
        count = f"{self.slice_count} x " if self.slice_count > 1 else ""
        name = f"{count}{chip.title} {shape_text(self.topology)}{said}"
        return f"{name}, {counted(self.chip_count, 'chip')}{devices}"

    @property
    def slice_name(self) -> str:
        """Return what one of `slice_count` is: a slice, a node, an NVLink domain of many hosts."""
        if self.chip.platform != "gpu":
            return {"tpu": "slice"}.get(self.chip.platform, "machine")
        return "node" if self.host_shape == self.topology else f"{self.chip.fabric} domain"

    @property
    def with_count(self) -> str:
        """Return it as a spec writes it; of several nodes, with all GPUs: `4 * h100 (32 GPUs)`."""
        is_several = self.chip.platform == "gpu" and self.slice_count > 1
        return f"{self} ({counted(self.chip_count, 'GPU')})" if is_several else str(self)

    def __str__(self) -> str:
        """Return it as a spec writes it: `2 * tpu v5p 4x4x8`, `4 * h100 memory 0.9`, `8 cpu`."""
        return self.machine + (f" memory {self.stated_share:g}" if self.stated_share else "")

    @property
    def machine(self) -> str:
        """Return it without what software makes of it: `4 * h100`."""
        chip = self.chip
        if chip.platform == "tpu":
            return f"{_times(self.slice_count)}tpu {chip.name} {shape_text(self.topology)}"
        if chip.platform == "cpu":
            return f"{self.device_count} {chip.name}"
        usual = self.topology == chip.host_shape
        return f"{_times(self.slice_count)}{'' if usual else f'{self.topology[0]} '}{chip.name}"


def shape_text(shape: Iterable[int]) -> str:
    """Return `4x8x8`."""
    return "x".join(map(str, shape))


def _times(count: int) -> str:
    return "" if count == 1 else f"{count} * "


Network = Literal["ici", "dcn"]
AxisType = Literal["auto", "explicit", "manual"]


class Stretch(NamedTuple):
    """Devices along one direction of the machine, `y4/2`, as an order by hand states it.

    Attributes:
      direction: the physical axis: `x`, `node`.
      size: how many; None where it is all of them, and the machine is not known.
      step: from one to the next; 1 are neighbours.
    """

    direction: str
    size: int | None = None
    step: int = 1

    def __str__(self) -> str:
        """Return `y`, `y4` or `y4/2`."""
        every = "" if self.step == 1 else f"/{self.step}"
        return f"{self.direction}{'' if self.size is None else self.size}{every}"


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """One named axis of a mesh.

    Attributes:
      size: how many ways it splits; 1 shards nothing.
      network: `ici` inside a slice (GPUs: NVLink), `dcn` between slices (GPUs: the network).
      submesh: the (x, y, z, core) tile this axis runs over, where the spec asked for one.
      over: what it runs over, major to minor, where the spec says it (`over x y4`).
      auto: whether the spec left the choice of the tile to the compiler (`auto N`).
      axis_type: who shards along it: the compiler (`auto`), the types of the code (`explicit`),
        or code that sees its own shard (`manual`). JAX's `AxisType`.
      span: where the spec states the size.
    """

    name: str
    size: int
    network: Network = "ici"
    submesh: tuple[int, ...] | None = None
    auto: bool = False
    axis_type: AxisType = "auto"
    over: tuple[Stretch, ...] = ()
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Mesh:
    """Mesh axes, major to minor.

    Attributes:
      wholes: names that stand for several axes, `tensor` for `(kv_tp, attn_dp)`.

    Invariants:
      distinct: no two axes have the same name, and no whole has that of an axis.
    """

    axes: tuple[MeshAxis, ...] = ()
    wholes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    _sizes: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_sizes", {axis.name: axis.size for axis in self.axes})
        assert len(set(self.names)) == len(self.axes), f"a mesh axis is given twice in {self.names}"

    def in_parts(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the names with those of all its parts for each whole.

        >>> Mesh(wholes=(("tensor", ("kv_tp", "attn_dp")),)).in_parts(["data", "tensor"])
        ('data', 'kv_tp', 'attn_dp')
        """
        wholes = dict(self.wholes)
        return tuple(part for name in names for part in wholes.get(name, (name,)))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the axis names in mesh order."""
        return tuple(axis.name for axis in self.axes)

    @property
    def sizes(self) -> dict[str, int]:
        """Return the size of each axis by name, in mesh order."""
        return dict(self._sizes)

    @property
    def device_count(self) -> int:
        """Return the product of the sizes."""
        return math.prod(axis.size for axis in self.axes)

    def ways(self, names: Iterable[str]) -> int:
        """Return into how many shards these axes split; one that is not here splits nothing."""
        sizes = self._sizes
        return math.prod([sizes.get(name, 1) for name in names])

    def splitting(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return these axes without those of size 1; one that is not here stays."""
        return tuple(name for name in names if self._sizes.get(name) != 1)

    def __str__(self) -> str:
        """Return `data=16 model=16`."""
        return " ".join(f"{axis.name}={axis.size}" for axis in self.axes)

    @property
    def heading(self) -> str:
        """Return the mesh in short: `fsdp=8 tensor=4, 10 axes of size 1` where it has so many."""
        many = tuple(axis for axis in self.axes if axis.size != 1)
        ones = len(self.axes) - len(many)
        return f"{Mesh(many)}, {ones} axes of size 1" if many and ones > 3 else str(self)


def divisors(number: int, limit: int = 1 << 16) -> tuple[int, ...]:
    """Return the sizes that go into `number`, ascending, those up to `limit`.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    low = [d for d in range(1, min(math.isqrt(number), limit) + 1) if number % d == 0]
    high = [number // d for d in reversed(low) if d * d != number]
    return tuple(d for d in (*low, *high) if d <= limit)


Dialect = Literal["glob", "regex"]


class Parts(NamedTuple):
    """What a fused axis is made of: query, key and value in one array.

    Attributes:
      sizes: of the parts by name, in order.
      unit: elements of a part that must stay together.
      is_interleaved: whether they are laid out group by group, and not one behind the other.
    """

    sizes: tuple[tuple[str, int], ...]
    unit: int
    is_interleaved: bool

    @property
    def size(self) -> int:
        """Return the length of all of them."""
        return sum(size for _, size in self.sizes)

    @property
    def segments(self) -> int:
        """Return of how many a number of shards must be a multiple, so that none has two parts."""
        if self.is_interleaved:
            return 1
        return self.size // math.gcd(*(size for _, size in self.sizes))

    @property
    def group(self) -> int:
        """Return how many elements must stay together of all parts."""
        if not self.is_interleaved:
            return self.unit
        common = math.gcd(*(size for _, size in self.sizes))
        return self.size if common % self.unit else self.size // (common // self.unit)

    @property
    def group_text(self) -> str:
        """Return `q 512, k 128, v 128`: what one group has of each part."""
        share = self.size // self.group
        return ", ".join(f"{name} {size // share}" for name, size in self.sizes)


@dataclass(frozen=True, slots=True)
class LogicalAxis:
    """A model's name for a dimension.

    Attributes:
      size: how long it is, when that is known.
      factors: the axes whose sizes it is the product of, where it is one of nothing else.
      fixes: the axes that keep their size because of it: its unit, its parts or a sum names them.
      padding: elements of `size` that `policy: {indivisible: pad}` adds.
      unit: a shard must hold whole multiples of this many elements (one head, say; of parts that
        are interleaved, one group of all).
      parts: of a fused axis.
      min_shard: elements below which a shard is not worth having.
    """

    name: str
    size: int | None = None
    unit: int = 1
    doc: str = ""
    span: Span | None = field(default=None, compare=False, repr=False)
    min_shard: int = 1
    parts: Parts | None = None
    factors: tuple[str, ...] = ()
    fixes: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    padding: int = 0

    @property
    def true_size(self) -> int | None:
        """Return the size without padding."""
        return None if self.size is None else self.size - self.padding

    @property
    def grain(self) -> str:
        """Return what a shard holds whole multiples of: `unit`, or `group` of several parts."""
        return "group" if self.parts is not None and self.parts.is_interleaved else "unit"


#: In place of a logical axis: any dimension of an array that nothing names.
ANY = "*"


def axis_of(name: str) -> str:
    """Return the logical axis that a name means, of which it may be a role.

    >>> axis_of("embed'"), axis_of("in:embed"), axis_of("embed")
    ('embed', 'embed', 'embed')
    """
    return name.rstrip("'").rpartition(":")[2]


@dataclass(frozen=True, slots=True)
class AxisRule:
    """ONE alternative: `a -> x | y` is two of these, adjacent in one flat ordered list.

    Attributes:
      mesh_axes: major to minor; `()` is `none`: replicate, and stop looking.
      priority: lower is earlier; ties keep the order of the document.
      span: the alternative itself (`y` of `a -> x | y`).
      is_read: False where the rule cannot be read, which is reported: `none` for its axes.
      in_part: whether mesh axes that do not fit are left out one by one: `a -> (x, y)?`.
    """

    logical_axis: str
    mesh_axes: tuple[str, ...]
    priority: int = 0
    span: Span | None = field(default=None, compare=False, repr=False)
    is_read: bool = True
    in_part: bool = False

    @property
    def is_none(self) -> bool:
        """Say whether the rule asks for replication."""
        return not self.mesh_axes

    @property
    def right(self) -> str:
        """Return what stands on the right: `none`, `(replica, data)`, `(replica, data)?`."""
        return target_text(self.mesh_axes, in_part=self.in_part)

    def __str__(self) -> str:
        """Return `embed -> (replica, data)`."""
        return f"{self.logical_axis} -> {self.right}"


def target_text(mesh_axes: tuple[str, ...], *, in_part: bool = False) -> str:
    """Return the right side of a rule as the language spells it."""
    if not mesh_axes:
        return "none"
    if in_part:
        return f"({', '.join(mesh_axes)})?"
    return mesh_axes[0] if len(mesh_axes) == 1 else f"({', '.join(mesh_axes)})"


def override_text(dims: Iterable[tuple[str, ...]], sums: Sums = NO_SUMS) -> str:
    """Return the mesh axes of each dimension as an override spells them: `(none, (a, b))`."""
    return f"({', '.join(map(target_text, dims))}){sums}"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern over whole paths.

    Attributes:
      text: a glob, or a Python regular expression under `fullmatch`.
      is_optional: whether it is for some of the models that the spec serves, and need not match.
    """

    text: str
    dialect: Dialect = "glob"
    span: Span | None = field(default=None, compare=False, repr=False)
    is_optional: bool = False

    def __str__(self) -> str:
        """Return it as a `params:` key: regexes behind `re:`."""
        return self.text if self.dialect == "glob" else f"re:{self.text}"


@dataclass(frozen=True, slots=True)
class PathRule:
    """Logical axes for the arrays whose path matches: an entry of `params:`."""

    pattern: Pattern
    logical_axes: LogicalAxes
    span: Span | None = field(default=None, compare=False, repr=False)


#: The memories of a device that JAX knows: its own, and two of its host.
MemoryKind = Literal["device", "pinned_host", "unpinned_host"]
HostMemory = Literal["pinned_host", "unpinned_host"]
MEMORY_KINDS: tuple[MemoryKind, ...] = get_args(MemoryKind)


#: Whether arrays have gradients and optimizer state.
Training = Literal["trained", "frozen"]


def host_memory(kind: MemoryKind | None) -> HostMemory | None:
    """Return a memory of a host; None for that of the device, stated or not."""
    return None if kind == "device" else kind


@dataclass(frozen=True, slots=True)
class MemoryRule:
    """The memory of the arrays whose path matches: an entry of `memory:`."""

    pattern: Pattern
    memory: MemoryKind
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class TrainingRule:
    """Whether the arrays whose path matches are trained: an entry of `training:`."""

    pattern: Pattern
    training: Training
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Override:
    """An entry of `overrides:`: it beats what the array itself says.

    Attributes:
      logical_axes: new names; or None, and then `partition` is the answer itself.
      partition: mesh axes per dimension; rules are not asked.
      memory: where the arrays lie; None where `memory:` says that, or nothing does.
      sums: the mesh axes over which they are sums; of a `partition` alone.
    """

    pattern: Pattern
    logical_axes: LogicalAxes | None = None
    partition: tuple[tuple[str, ...], ...] | None = None
    because: str = ""
    span: Span | None = field(default=None, compare=False, repr=False)
    memory: MemoryKind | None = None
    sums: Sums = NO_SUMS


@dataclass(frozen=True, slots=True)
class ScanRule:
    """Stacked axes of the arrays whose path matches, as (name, position in the array)."""

    pattern: Pattern
    axes: tuple[tuple[str, int], ...]
    span: Span | None = field(default=None, compare=False, repr=False)


class ParentDim(NamedTuple):
    """What one dimension of a derived array is of its parent: `0`, `-1/128`, `...`.

    Attributes:
      place: of the dimension in the parent; below 0 from the end; None for `...`.
      operator: `/` where it has one for each `by` of the parent's, `*` where it has `by` for each.
      by: None for `any`: the sizes say it.
    """

    place: int | None
    operator: str = ""
    by: int | None = None

    @property
    def place_text(self) -> str:
        """Return `0`, or `...`."""
        return "..." if self.place is None else str(self.place)

    def __str__(self) -> str:
        """Return it as it is written: `0/128`."""
        by = "any" if self.by is None else str(self.by)
        return f"{self.place_text}{self.operator}{by}" if self.operator else self.place_text


#: The dimensions of a derived array: of its parent, by a name of their own, or None: whole.
DerivedDims = tuple[ParentDim | str | None, ...]


def derived_text(dims: DerivedDims) -> str:
    """Return `0/128 rank _`."""
    return " ".join("_" if dim is None else str(dim) for dim in dims)


#: What a weight reads and what it makes, as roles say it: `in:embed`.
SIDES = ("in", "out")

#: What an entry calls the dimensions of a parent, once for each rank: `[out in | out in in]`.
OwnNames = tuple[tuple[str, ...], ...]


class Side(NamedTuple):
    """One side of a factorization: `A[in]`.

    Attributes:
      text: what the braces of the pattern have for it.
      names: the dimensions of the parent that it holds; `()` for those that the other does not.
    """

    text: str
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return it as it is written: `A[in]`."""
        return f"{self.text}[{' '.join(self.names)}]" if self.names else self.text


class Factors(NamedTuple):
    """A parent as the product of two arrays: `A[in] @ B`.

    The left side ends with the rank, and the right one begins with it.

    Attributes:
      rank: the logical axis between the sides, by which rules place it; None: replicated.
    """

    left: Side
    right: Side
    rank: str | None = None

    def __str__(self) -> str:
        """Return it as it is written: `A[in] @ B rank low`."""
        rank = f" rank {self.rank}" if self.rank else ""
        return f"{self.left} @ {self.right}{rank}"


def derive_text(
    parent: str, own: OwnNames | None, answers: tuple[DerivedDims, ...], factors: Factors | None
) -> str:
    """Return `from *.weight [out in] = B @ A[in]`, `from **/kernel dims 0 _`."""
    dims = " | ".join(map(derived_text, answers))
    words = [f"from {parent}"] if parent else []
    if own is not None:
        words.append(f"[{' | '.join(map(' '.join, own))}]")
    if factors is not None:
        words.append(f"= {factors}")
    elif dims != "..." or not parent:
        words.append(f"dims {dims}")
    return " ".join(words)


@dataclass(frozen=True, slots=True)
class DeriveRule:
    """Arrays that are laid out from another: an entry of `derive:`.

    Attributes:
      parent: the path of the other array, in the wildcards of the pattern; "" where it is the
        parameter that optimizer state belongs to.
      answers: the dimensions, one answer for each rank; `()` where `factors` says them.
      own: what the entry calls the parent's dimensions, one answer for each rank; None where it
        calls them by their logical axes or by position.
      factors: of which product of the parent the arrays are the sides.
    """

    pattern: Pattern
    parent: str
    answers: tuple[DerivedDims, ...]
    span: Span | None = field(default=None, compare=False, repr=False)
    own: OwnNames | None = None
    factors: Factors | None = None

    def __str__(self) -> str:
        """Return `from **/kernel dims 0 _`."""
        return derive_text(self.parent, self.own, self.answers, self.factors)

    @property
    def parent_names(self) -> frozenset[str]:
        """Return the names in `dims` that stand for dimensions of the parent."""
        own = self.own
        return frozenset() if own is None else frozenset(SIDES).union(*own)

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the logical axes that its arrays have and the parent lacks."""
        if self.factors is not None:
            return (self.factors.rank,) if self.factors.rank else ()
        names = (dim for answer in self.answers for dim in answer if isinstance(dim, str))
        return tuple(name for name in names if name not in self.parent_names)


@dataclass(frozen=True, slots=True)
class Activation:
    """A named constraint that code asks for by name.

    Attributes:
      name: as written: the name itself, or the pattern of the names that it is for.
      pattern: None for the name of one.
      logical_axes: one per dimension; all None where `partition` is the answer itself.
      partition: mesh axes per dimension; rules are not asked.
      memory: where it is moved to; None leaves it where it is made.
      sums: the mesh axes over which it is a sum; of a `partition` alone.
      at: where in code `Resolver.constrained` puts it; None where code asks for it by name.
    """

    name: str
    logical_axes: LogicalAxes
    pattern: Pattern | None = None
    span: Span | None = field(default=None, compare=False, repr=False)
    partition: tuple[tuple[str, ...], ...] | None = None
    memory: MemoryKind | None = None
    sums: Sums = NO_SUMS
    at: CodePlace | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """Choices that change the answer.

    Attributes:
      indivisible: what to do with a rule whose mesh axes do not divide the dimension: `next`
        tries the next alternative; `keep` fires it as Flax does, and JAX refuses later; `pad`
        pads the axis to a size that they divide, in every array.
      order: how a mesh axis counts the chips of a torus: `t5x` row by row, `ring` along a ring
        in which neighbours touch. It moves devices, never a shard's shape.
      whole_below: bytes; arrays of fewer stay whole, and rules are not asked. None for no such.
    """

    indivisible: Literal["next", "keep", "pad"] = "next"
    order: Literal["t5x", "ring"] = "t5x"
    whole_below: int | None = None
    whole_below_span: Span | None = field(default=None, compare=False, repr=False)

    def keeps_whole(self, param: Param) -> bool:
        """Say whether an array is too small to be split by rules."""
        return self.whole_below is not None and param.rank > 0 and param.bytes < self.whole_below


@dataclass(frozen=True, slots=True)
class StatePolicy:
    """What stands beside every parameter while training, and how it is laid out: `state:`.

    Attributes:
      optimizer: `same` lays state out as its parameter; `zero1` splits it further over the mesh
        axes `over`, along the first dimension that they divide; `zero2` gradients as well.
      over: mesh axes, major to minor; `()` for those of the first rule of `batch`.
      moments: arrays of a parameter's size that the optimizer keeps (Adam: 2), for memory.
      dtype: of those.
      over_span: the mesh axes as written.
    """

    optimizer: Literal["same", "zero1", "zero2"] = "same"
    over: tuple[str, ...] = ()
    moments: int = 2
    dtype: str = "f32"
    span: Span | None = field(default=None, compare=False, repr=False)
    over_span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CoverageGate:
    """How much every device may hold whole: `coverage: {max_replicated_bytes: 2%}`.

    Attributes:
      max_share: of the bytes of all arrays, 0 to 1; None where `max_bytes` is stated.
      max_bytes: per device; None where `max_share` is stated.
    """

    max_share: float | None = None
    max_bytes: int | None = None
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Replicate:
    """An entry of `replicate:`: arrays that are meant to be whole, with the reason."""

    pattern: Pattern
    because: str
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Target:
    """One machine and the mesh on it. It prints as its name, and is equal to it.

    Attributes:
      hardware: None where the spec gives a mesh alone.
      devices: which device stands where, row-major order of the mesh, where the spec lists them:
        numbers as JAX gives them, along core, x, y, z and slice, the first fastest.
      is_sound: False where the mesh has a fault that is reported, and a size may be a stand-in; or
        where a what-if is refused, and the mesh is not the one asked about. Nothing is shown of
        such a target.
    """

    name: str
    mesh: Mesh
    hardware: Hardware | None = None
    span: Span | None = field(default=None, compare=False, repr=False)
    is_sound: bool = field(default=True, compare=False, repr=False)
    devices: tuple[int, ...] = ()

    def __eq__(self, other: object) -> bool:
        """Say whether `other` is the same machine with the same mesh, or the target's name."""
        if isinstance(other, str):
            return self.name == other
        if not isinstance(other, Target):
            return NotImplemented
        told = (other.name, other.mesh, other.hardware, other.devices)
        return (self.name, self.mesh, self.hardware, self.devices) == told

    def __hash__(self) -> int:
        """Return the hash of the name, as what equals the name must."""
        return hash(self.name)

    @property
    def is_tpu(self) -> bool:
        """Say whether its devices are TPUs, as far as they are known."""
        return self.hardware is not None and self.hardware.chip.platform == "tpu"

    def is_called(self, name: str) -> bool:
        """Say whether it has this name, or is one of the counts of slices that the name is for."""
        return name in (self.name, family(self.name))

    def __str__(self) -> str:
        """Return the name."""
        return self.name


def family(name: str) -> str:
    """Return the name of all counts of slices that a target is one of.

    >>> family("pod[4]"), family("pod")
    ('pod', 'pod')
    """
    start, bracket, rest = name.rpartition("[")
    return start if bracket and rest.endswith("]") and rest[:-1].isdecimal() else name


class NamedNumber(NamedTuple):
    """A name of `let`.

    Attributes:
      is_used: whether a mesh, an axis, an array or another number names it, in any phase.
    """

    name: str
    is_used: bool
    span: Span | None


@dataclass(frozen=True, slots=True)
class Spec:
    """Everything one document says, with its presets merged in.

    Attributes:
      axis_rules: the flat list the resolver walks: priorities and placement are applied.
      any_rules: those for `*`, in order: for arrays that no section names, after all others.
      params: arrays the document itself lists, inline and by manifest.
      sources: this document and all it extends or includes, itself first.
      inherited_axes: logical axes that presets have rules for, even where the document
        replaces or drops those.
      axes_of_code: logical axes that rules are for and code alone may name, as `constrain` does.
      placed_rules: axis_rules in the order of the document, before priorities.
      lint_levels: what the document's own `lints:` asks for.
      project_levels: what the project around it asks for, which `lints:` beats.
      call_levels: what whoever loaded it asks for, which beats both.
      is_whole: False where an error of syntax took lines away: good for findings and no more.
      phase: the name of the phase that it is; empty for the spec itself.
      phases: the phases of the spec, each whole: what it says is merged over the rest.
      mesh_axes_elsewhere: mesh axes that targets of other phases have, where it has phases.
      lets: the numbers that it names.
      multiples: logical axes that are padded, each to a multiple of this number.

    Invariants:
      flat: axis_rules are sorted by priority, and stable in it.
    """

    source: SourceFile
    logical_axes: tuple[LogicalAxis, ...] = ()
    axis_rules: tuple[AxisRule, ...] = ()
    any_rules: tuple[AxisRule, ...] = ()
    path_rules: tuple[PathRule, ...] = ()
    overrides: tuple[Override, ...] = ()
    derives: tuple[DeriveRule, ...] = ()
    scans: tuple[ScanRule, ...] = ()
    activations: tuple[Activation, ...] = ()
    policy: Policy = Policy()
    targets: tuple[Target, ...] = ()
    params: Params = ()
    lint_levels: tuple[LintLevel, ...] = ()
    sources: tuple[SourceFile, ...] = ()
    inherited_axes: tuple[str, ...] = ()
    axes_of_code: tuple[str, ...] = ()
    doc: str = ""
    state: StatePolicy | None = None
    coverage: CoverageGate | None = None
    step: StepSpec | None = None
    replicate: tuple[Replicate, ...] = ()
    memory: tuple[MemoryRule, ...] = ()
    training: tuple[TrainingRule, ...] = ()
    placed_rules: tuple[AxisRule, ...] = field(default=(), compare=False, repr=False)
    project_levels: LevelTable = NOTHING_ASKED
    call_levels: LevelTable = NOTHING_ASKED
    is_whole: bool = field(default=True, compare=False, repr=False)
    phase: str = ""
    phases: tuple[Spec, ...] = field(default=(), repr=False)
    mesh_axes_elsewhere: frozenset[str] = field(default=frozenset(), repr=False)
    lets: tuple[NamedNumber, ...] = field(default=(), compare=False, repr=False)
    multiples: tuple[tuple[str, int], ...] = ()

    @property
    def in_phases(self) -> tuple[Spec, ...]:
        """Return the spec and its phases; without the spec where its phases alone have targets."""
        has_own = self.targets or not any(phase.targets for phase in self.phases)
        return (self, *self.phases) if has_own else self.phases

    def everywhere(self, change: Callable[[Spec], Spec]) -> Spec:
        """Return the spec with a change that its phases take part in."""
        return replace(change(self), phases=tuple(map(change, self.phases)))

    @property
    def levels(self) -> Levels:
        """Return how loud findings are about this spec, wherever it is used."""
        own = LevelTable(tuple((each.finding, each.severity) for each in self.lint_levels))
        return Levels((self.project_levels, own, self.call_levels))

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """Return every pattern: over paths, and over the names of activations."""
        entries: tuple[Any, ...] = (*self.overrides, *self.path_rules, *self.derives, *self.scans)
        entries += (*self.replicate, *self.activations, *self.memory, *self.training)
        return tuple(entry.pattern for entry in entries if entry.pattern is not None)

    @property
    def caches(self) -> Params:
        """Return the arrays that `caches:` lists."""
        return tuple(param for param in self.params if param.is_cache)

    @property
    def derived_axes(self) -> tuple[str, ...]:
        """Return the logical axes that entries of `derive:` name."""
        return tuple(dict.fromkeys(axis for rule in self.derives for axis in rule.axes))

    @property
    def mesh_axis_names(self) -> frozenset[str]:
        """Return the names of the mesh axes of all targets, in other phases too."""
        return self.own_mesh_axes | self.mesh_axes_elsewhere

    @property
    def own_mesh_axes(self) -> frozenset[str]:
        """Return the names of the mesh axes of the targets that it runs on."""
        wholes = (name for target in self.targets for name, _ in target.mesh.wholes)
        return frozenset((*wholes, *(n for target in self.targets for n in target.mesh.names)))
