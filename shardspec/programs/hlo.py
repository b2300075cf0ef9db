"""HLO text as computations of instructions, by name.

It is what XLA prints of a program it has compiled: for CPUs and GPUs from `compiled.as_text()`, for
TPUs in its dumps. Every line of a computation is one instruction: its name, the type that it gives,
the operation, its operands, and attributes. Nothing here judges a program; what is not an
instruction is passed over, so any text can be read.

Which devices a collective joins, in each of the ways that XLA prints it, and over which axes.

    replica_groups={{0,1},{2,3}}                            one by one
    replica_groups=[2,2]<=[2,2]T(1,0)                       rows of a turned block of numbers
    replica_groups=mesh['a'=2,'b'=2] {'b'}                  axes of a mesh of its own
    replica_groups=mesh['a'=8] {'a':(2)4}                   a part of one
    replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a'}
    source_target_pairs={{0,1},{1,0}}                       who sends to whom
    _xla_megascale_target="{1,2}x{0:7}"                     slices, for each device of a slice
    _xla_megascale_target={{100000,200000},{100001,200001}} slices and devices, one by one
    _xla_megascale_target={{100003->200000}}                who sends to whom

A device is a number: its place in the mesh that the program was compiled for, major to minor. The
mesh axes of a collective are those whose coordinate differs within one of its groups.

libtpu makes one program for all slices, which counts the devices of a slice: what crosses slices
hosts send, and the last three ways are of that.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from shardspec.diagnostics.words import by_key
from shardspec.ir.operations import IN_MEGASCALE, CollectiveKind
from shardspec.ir.spec import Mesh, Shape, array_bytes, dtype_name
from shardspec.ir.step import Place
from shardspec.programs.op_names import Callers, Frame, Stack, stack_of

_COMPUTATION = re.compile(r"^(ENTRY\s+)?%?([\w.\-]+)\s*\(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_OPERATION = re.compile(r"([a-z][\w\-]*)\(")
_COMMENT = re.compile(r"/\*[^*]*\*/")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?$)')
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\](\{[^{}]*+\})?")
_SPACE = re.compile(r"S\((\d+)\)")
_PARENTHESIS = re.compile(r"[()]")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|called_computations|branch_computations"
    r"|true_computation|false_computation)=(\{[^{}]*+\}|%?[\w.\-]+)"
)
_NAME = re.compile(r"[\w.\-]+")
_OPERAND = re.compile(r"[\w.\-]+(?:#\d+){0,3}")
_OP_NAME = re.compile(r'\bmetadata=\{[^{}]*?\bop_name="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")
_FRAME_ID = re.compile(r"\bstack_frame_id=(\d+)")
_SOURCE = re.compile(r'\bsource_file="((?:[^"\\]|\\.)*)"(?: source_line=(\d+))?')
_HEADING = re.compile(r"^(FileNames|FunctionNames|FileLocations|StackFrames)\s*$")
_FILE_NAME = re.compile(r'^(\d+) "(.*)"$')
_NUMBERED = re.compile(r"^(\d+) \{(.*)\}$")
_FIELD = re.compile(r"\b(\w++)=(\d+)")
_ALIAS = re.compile(r"\{([\d, ]*)\}:\s*\((\d+)")
_PARTITIONS = re.compile(r"\b(?:num_partitions|replica_count)=(\d+)")

#: More frames than these are not followed outward.
_DEEPEST = 200
#: What no real program reaches: a text may be anything.
_MOST_DIGITS = 18
_MOST_DIMS = 64


@dataclass(frozen=True, slots=True)
class HloArray:
    """One array of a type, as it lies on one device.

    Attributes:
      space: the memory that it lies in, by XLA's number; 0 is that of the device.
    """

    dtype: str
    shape: Shape
    space: int = 0

    @property
    def bytes(self) -> int:
        """Return its bytes, without the padding of tiles."""
        return array_bytes(self.shape, self.dtype)


@dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Attributes:
      type: as it is printed, a tuple in parentheses.
      operands: names of instructions of the same computation.
      stated: what stands in the parentheses: the value of a constant, the number of a parameter.
      attributes: the rest of the line.
    """

    name: str
    type: str
    operation: str
    operands: tuple[str, ...]
    stated: str
    attributes: str
    is_root: bool = False

    @cached_property
    def arrays(self) -> tuple[HloArray, ...]:
        """Return the arrays of the type, those of a tuple in its order."""
        return tuple(arrays_of(self.type))

    @cached_property
    def bare(self) -> str:
        """Return the attributes without what is quoted: names of users, configurations."""
        return _QUOTED.sub('""', self.attributes)

    @cached_property
    def called(self) -> tuple[str, ...]:
        """Return the names of the computations that it calls, in the order they are named."""
        return tuple(name for each in _CALLED.findall(self.bare) for name in _NAME.findall(each))

    @property
    def op_name(self) -> str:
        """Return what the code was doing, `jit(step)/jvp()/dot_general`, or an empty text."""
        found = _OP_NAME.search(self.attributes)
        return _ESCAPED.sub(r"\1", found.group(1)) if found else ""

    def attribute(self, name: str) -> str:
        """Return the word or number that an attribute is, or an empty text."""
        found = re.search(rf"\b{name}=%?([\w.\-]+)", self.bare)
        return found.group(1) if found else ""

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return an attribute that is a list of numbers, `dimensions={0,1}`."""
        found = re.search(rf"\b{name}=\{{([\d,]*)\}}", self.bare)
        return tuple(map(number, found.group(1).split(","))) if found and found.group(1) else ()


@dataclass(frozen=True)
class Computation:
    """Instructions by name, in the order they are scheduled."""

    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)

    @cached_property
    def root(self) -> Instruction | None:
        """Return what the computation gives."""
        return next((each for each in self.instructions.values() if each.is_root), None)

    @cached_property
    def parameters(self) -> dict[int, Instruction]:
        """Return the parameters by number."""
        found = (each for each in self.instructions.values() if each.operation == "parameter")
        return {number(each.stated): each for each in found}

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """Return for each name the instructions that read it."""
        found = self.instructions.values()
        return by_key((name, each) for each in found for name in dict.fromkeys(each.operands))


@dataclass(frozen=True)
class Program:
    """A compiled program.

    Attributes:
      entry: the computation that it starts with; None where the text names none.
      aliases: for each output that takes the memory of a parameter, the number of that.
      partitions: among how many devices it is split.
      frames: each frame of the user's Python, and the number of the one that called it.
      unread: lines that should be instructions of a computation, and are not.
    """

    computations: dict[str, Computation]
    entry: Computation | None
    aliases: dict[int, int]
    partitions: int
    frames: dict[int, tuple[Frame, int]]
    unread: tuple[str, ...] = ()

    def place(self, instruction: Instruction) -> Place:
        """Return the user's line of an instruction; unknown where no frame is the user's."""
        return self._callers.place(self._stack(instruction), instruction.op_name)

    @cached_property
    def _callers(self) -> Callers:
        """Return the helpers in the user's code."""
        found = (each for body in self.computations.values() for each in body.instructions.values())
        return Callers((self._stack(each), each.op_name) for each in found)

    @cached_property
    def _stacks(self) -> dict[tuple[Frame | None, int], Stack]:
        return {}

    def _stack(self, instruction: Instruction) -> Stack:
        first = _first(instruction)
        if first not in self._stacks:
            self._stacks[first] = stack_of(self._outward(*first))
        return self._stacks[first]

    def frames_of(self, instruction: Instruction) -> Iterator[Frame]:
        """Yield the frames that asked for an instruction, the innermost first."""
        yield from self._outward(*_first(instruction))

    def _outward(self, source: Frame | None, at: int) -> Iterator[Frame]:
        if source is not None:
            yield source
        for _ in range(_DEEPEST):
            if at not in self.frames:
                return
            frame, at = self.frames[at]
            yield frame


def _first(instruction: Instruction) -> tuple[Frame | None, int]:
    """Return the line that an instruction states, and the number of its frame."""
    source = _SOURCE.search(instruction.attributes)
    found = _FRAME_ID.search(instruction.bare)
    own = Frame(source.group(1), number(source.group(2) or "")) if source else None
    return own, number(found.group(1)) if found else 0


def program_of(text: str) -> Program:
    """Return the program that a text prints; without an entry where it prints none."""
    computations: dict[str, Computation] = {}
    entry: Computation | None = None
    current: Computation | None = None
    unread: list[str] = []
    lines = text.splitlines()
    for line in _whole(lines):
        if line[:1].isspace():
            found = _INSTRUCTION.match(line)
            each = _instruction(found) if found else None
            is_read = each is not None and _taken(current, each)
            if not is_read and (found or current is not None) and line.strip():
                unread.append(line.strip())
            continue
        head = _COMPUTATION.match(line)
        if head:
            if head.group(2) in computations:
                unread.append(line.strip())
            current = computations[head.group(2)] = Computation(head.group(2))
            entry = current if head.group(1) else entry
        elif line.startswith("}"):
            current = None
    header = next((line for line in lines if line.startswith("HloModule")), "")
    partitions = max(map(number, _PARTITIONS.findall(header)), default=1)
    frames = _frames(lines)
    return Program(computations, entry, _aliases(header), partitions, frames, tuple(unread))


def _taken(current: Computation | None, each: Instruction) -> bool:
    """Add an instruction to the computation that it stands in; say whether there is one."""
    if current is None or each.name in current.instructions:
        return False
    for name in each.operands:
        _take_element(current.instructions, name)
    current.instructions[each.name] = each
    return True


def _whole(lines: list[str]) -> Iterator[str]:
    """Yield lines, those of one instruction as one: JSON in an attribute may have line breaks."""
    held: list[str] = []
    depth = 0
    for line in lines:
        if held and (_INSTRUCTION.match(line) or _COMPUTATION.match(line)):
            yield " ".join(held)
            held = []
        if held:
            held.append(line)
            depth += _opens(line)
        else:
            depth = _opens(line)
            if depth <= 0 or not _INSTRUCTION.match(line):
                yield line
                continue
            held = [line]
        if depth <= 0:
            yield " ".join(held)
            held = []
    if held:
        yield " ".join(held)


def _opens(line: str) -> int:
    """Return how many braces a line opens and does not close; what is quoted has none."""
    if line.count("{") == line.count("}"):
        return 0
    bare = _QUOTED.sub("", line)
    return bare.count("{") - bare.count("}")


def _instruction(found: re.Match[str]) -> Instruction | None:
    is_root, name, rest = found.groups()
    rest = _COMMENT.sub("", rest) if "/*" in rest else rest
    kind, rest = _type_and_rest(rest)
    operation = _OPERATION.match(rest)
    if operation is None:
        return None
    end = _closing(rest, operation.end() - 1)
    stated = rest[operation.end() : end]
    operands = () if operation.group(1) in _VALUES else tuple(_operands(stated))
    return Instruction(
        name, kind, operation.group(1), operands, stated, rest[end + 1 :], bool(is_root)
    )


def _take_element(instructions: dict[str, Instruction], name: str) -> None:
    """Add the instruction that an operand `loop#2` is short for: element 2 of the tuple `loop`."""
    whole, _, index = name.rpartition("#")
    if not whole or name in instructions:
        return
    _take_element(instructions, whole)
    kind = instructions[whole].type if whole in instructions else ""
    parts = divided(kind[1:-1]) if kind.startswith("(") else []
    at = number(index)
    element = parts[at] if at < len(parts) else ""
    instructions[name] = Instruction(
        name, element, "get-tuple-element", (whole,), f"%{whole}", f", index={at}"
    )


#: Operations that have a value in their parentheses, and no operands.
_VALUES = frozenset(("constant", "parameter", "iota"))


def _type_and_rest(text: str) -> tuple[str, str]:
    if not text.startswith("("):
        kind, _, rest = text.partition(" ")
        return kind, rest.lstrip()
    end = _closing(text, 0)
    return text[: end + 1], text[end + 1 :].lstrip()


def _closing(text: str, start: int) -> int:
    """Return where the parenthesis that opens at `start` closes; the end where it does not."""
    depth = 0
    for found in _PARENTHESIS.finditer(text, start):
        depth += 1 if found.group() == "(" else -1
        if depth == 0:
            return found.start()
    return len(text)


def _operands(text: str) -> Iterator[str]:
    """Yield the names in a list of operands, each of which may have its type before it."""
    if "%" in text:
        yield from re.findall(f"%({_OPERAND.pattern})", text)
        return
    for part in divided(text):
        words = part.split()
        if words and _OPERAND.fullmatch(words[-1]):
            yield words[-1]


def divided(text: str) -> list[str]:
    """Return the parts of a list: a comma inside of brackets does not divide.

    >>> divided("f32[2,3] a, (b, c)")
    ['f32[2,3] a', '(b, c)']
    """
    parts, depth, start = [], 0, 0
    for found in re.finditer(r"[()\[\]{},]", text):
        letter = found.group()
        if letter == "," and depth <= 0:
            parts.append(text[start : found.start()].strip())
            start = found.end()
        elif letter != ",":
            depth += 1 if letter in "([{" else -1
    last = text[start:].strip()
    return [*parts, last] if last or parts else []


def arrays_of(kind: str) -> Iterator[HloArray]:
    """Yield the arrays of a type, those of nested tuples in their order; tokens are none.

    >>> [str(each.shape) for each in arrays_of("(f32[2,<=3]{1,0:T(8,128)}, (u32[], token[]))")]
    ['(2, 3)', '()']
    """
    for dtype, sizes, layout in _ARRAY.findall(kind):
        known = _dtype(dtype)
        if known:
            found = (size.removeprefix("<=") for size in sizes.split(",")[:_MOST_DIMS] if size)
            space = _SPACE.search(layout)
            yield HloArray(known, tuple(map(number, found)), number(space[1]) if space else 0)


def _dtype(name: str) -> str | None:
    """Return our name of a dtype of XLA; None of what is none, such as a token."""
    return dtype_name(f"f4_{name[2:]}" if name.startswith("f4e") else name)


def number(text: str) -> int:
    """Return the number that digits are; of digits without end, the first of them.

    >>> number("12"), number(""), number("9" * 5000) < 10**18
    (12, 0, True)
    """
    return int(text[:_MOST_DIGITS]) if text[:_MOST_DIGITS].isdecimal() else 0


def _aliases(header: str) -> dict[int, int]:
    """Return the parameter of each output that takes its memory, both by number."""
    start = header.find("input_output_alias={")
    if start < 0:
        return {}
    end = header.find("entry_computation_layout", start)
    found = _ALIAS.findall(header[start : end if end > 0 else len(header)])
    return {number(output): number(given) for output, given in found if output.isdecimal()}


def _frames(lines: list[str]) -> dict[int, tuple[Frame, int]]:
    """Return file, line and caller of every frame in the tables before the computations.

    The first frame has no caller, and states one all the same where callers are counted from one.
    """
    tables: dict[str, dict[int, str]] = {}
    heading = ""
    for line in lines:
        found = _HEADING.match(line)
        if found:
            heading = found.group(1)
        elif heading and not line.strip():
            heading = ""
        elif heading:
            row = _FILE_NAME.match(line) or _NUMBERED.match(line)
            if row:
                tables.setdefault(heading, {})[number(row.group(1))] = row.group(2)
    return _joined(tables)


def _joined(tables: dict[str, dict[int, str]]) -> dict[int, tuple[Frame, int]]:
    files = tables.get("FileNames", {})
    fields = {
        heading: {at: dict(_FIELD.findall(text)) for at, text in tables.get(heading, {}).items()}
        for heading in ("FileLocations", "StackFrames")
    }
    locations, frames = fields["FileLocations"], fields["StackFrames"]
    first = number(frames.get(1, {}).get("parent_frame_id", ""))
    found = {}
    for at, frame in frames.items():
        place = locations.get(number(frame.get("file_location_id", "")), {})
        file = files.get(number(place.get("file_name_id", "")), "")
        caller = number(frame.get("parent_frame_id", "")) - first
        column = number(place.get("column", ""))
        found[at] = Frame(file, number(place.get("line", "")), column), caller
    return found


_STATED = re.compile(
    r"(?:replica_groups|source_target_pairs)=.*?(?=, (?!device_ids)\w+=|$)", re.DOTALL
)
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_LISTED = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"replica_groups=@?\w*mesh\[([^\[\]]*+)\]"
    r"(?:, device_ids=\(([^()]*+(?:\([^()]*+\)[^()]*+)?+)\))? \{([^{}]*+)\}"
)
_SIZED = re.compile(r"'([^']*)'=(\d+)")
_USED = re.compile(r"'([^']*)'(?::\((\d+)\)(\d+))?")
_TURNED = re.compile(r"\[([\d,]+)\](?:<=\[[\d,]+\])?(?:T\(([\d,]+)\))?")
_ROW = re.compile(r"\{([\d,]+)\}")
_CROSSES = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_TARGET = re.compile(r'_xla_megascale_target=(?:"([^"]*)"|(\{\{[^=]*\}\}))')
_EACH = re.compile(r"\{([\d,]+)\}x\{[\d,:]+\}")
_HOP = re.compile(r"[\d,>-]+")
#: What libtpu adds to the number of a device for each slice; slices are counted from one.
_SLICE = 100_000

Groups = list[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Members:
    """Who takes part in a collective.

    Attributes:
      groups: of devices, each group for itself; of a permute, pairs.
      ways: how many devices are in one.
    """

    groups: Groups
    ways: int

    def axes(self, mesh: Mesh) -> tuple[str, ...]:
        """Return the mesh axes whose coordinate differs within a group."""
        found = []
        below = mesh.device_count
        for name, size in mesh.sizes.items():
            below //= size
            if any(_differs(group, below, size) for group in self.groups):
                found.append(name)
        return tuple(found)


def _differs(group: tuple[int, ...], below: int, size: int) -> bool:
    return len({device // below % size for device in group}) > 1


@dataclass(frozen=True, slots=True)
class Slices:
    """The devices of a mesh as a program counts them that is the same for all slices.

    Attributes:
      devices: the place in the mesh of each device of the first slice.
      firsts: the place in the mesh of the first device of each slice.

    Invariants:
      sum: the place of device `d` of slice `s` is `firsts[s] + devices[d]`.
    """

    devices: tuple[int, ...]
    firsts: tuple[int, ...]


def slices_of(mesh: Mesh, partitions: int) -> Slices | None:
    """Return how a program for so many devices counts those of a mesh; None where it is not for it.

    It is for all of them, or for those of one slice: where the axes `@ dcn` are the slices.
    """
    if partitions == mesh.device_count:
        return Slices(tuple(range(partitions)), (0,))
    sizes = mesh.sizes
    crossing = {axis.name for axis in mesh.axes if axis.network == "dcn"}
    inside = _places(sizes, {name for name in sizes if name not in crossing})
    return Slices(inside, _places(sizes, crossing)) if len(inside) == partitions else None


def _places(sizes: dict[str, int], along: set[str]) -> tuple[int, ...]:
    """Return the places in a mesh along some axes, with the others at their start."""
    places, below = [0], math.prod(sizes.values())
    for name, size in sizes.items():
        below //= size
        if name in along:
            places = [start + at * below for start in places for at in range(size)]
    return tuple(places)


def members_of(instruction: Instruction, slices: Slices) -> Members | None:
    """Return who takes part; everyone of a slice where nothing is said.

    None where it is said in a way that cannot be read, or of devices that are not there.
    """
    found = _STATED.search(instruction.bare)
    members = _members(found.group() if found else "", len(slices.devices))
    if members is None or len(slices.firsts) == 1:
        return members
    groups = [tuple(slices.devices[at] for at in group) for group in members.groups]
    return Members(groups, members.ways)


def together(instruction: Instruction, device_count: int) -> Hashable:
    """Return what two collectives over the same devices have in common."""
    found = _STATED.search(instruction.bare)
    return _together(found.group() if found else "", device_count)


@lru_cache(maxsize=1024)
def _together(text: str, device_count: int) -> Hashable:
    members = _members(text, device_count)
    return text if members is None else frozenset(map(frozenset, members.groups))


def crossing_of(
    instruction: Instruction, slices: Slices
) -> tuple[CollectiveKind, Members | None] | None:
    """Return what a program sends to other slices, and who takes part; None where it does not."""
    kind = _CROSSES.search(instruction.attributes)
    if instruction.operation != "send" or kind is None or kind.group(1) not in IN_MEGASCALE:
        return None
    target = _TARGET.search(instruction.attributes)
    return IN_MEGASCALE[kind.group(1)], _crossing(*target.groups(""), slices) if target else None


@lru_cache(maxsize=1024)
def _crossing(product: str, listed: str, slices: Slices) -> Members | None:
    each = _EACH.fullmatch(product)
    rows = [tuple(s * _SLICE for s in _numbers(each.group(1)))] if each else []
    for row in _HOP.findall(listed):
        rows.append(_numbers(row.replace("->", ",")))
    inner = list(dict.fromkeys(device % _SLICE for row in rows for device in row))
    if len(inner) != len(slices.devices):  # only all of them show how they stand in the mesh
        inner = list(range(len(slices.devices)))
    known, groups = range(len(slices.firsts)), []
    for row in rows:
        if any(device // _SLICE - 1 not in known or device % _SLICE not in inner for device in row):
            return None
        at = [(device // _SLICE - 1, inner.index(device % _SLICE)) for device in row]
        groups.append(tuple(slices.firsts[s] + slices.devices[d] for s, d in at))
    return Members(groups, max(map(len, groups), default=0)) if groups else None


@lru_cache(maxsize=1024)
def _members(text: str, device_count: int) -> Members | None:
    pairs = _PAIRS.search(text)
    if pairs:
        found = [_numbers(row) for row in _ROW.findall(pairs.group(1))]
        return _known(found, device_count, 2)
    groups = _groups(text, device_count)
    if groups is None:
        return None
    return _known(groups, device_count, max(map(len, groups), default=0))


def _known(groups: Groups, device_count: int, ways: int) -> Members | None:
    if any(device >= device_count for group in groups for device in group):
        return None
    return Members(groups, ways)


def _groups(text: str, device_count: int) -> Groups | None:
    iota, mesh = _IOTA.search(text), _MESH.search(text)
    if iota:
        shape, dims, order = (_numbers(part or "") for part in iota.groups())
        devices = turned(range(device_count), dims, order)
        ways = shape[-1] if shape else 0
        return _rows(devices, ways) if math.prod(shape) == device_count else None
    if mesh:
        return _mesh_groups(mesh, device_count)
    listed = _LISTED.search(text)
    rows = [_numbers(row) for row in _ROW.findall(listed.group(1))] if listed else []
    if not rows and "replica_groups=" in text and not listed:
        return None
    return rows or [tuple(range(device_count))]


def _mesh_groups(found: re.Match[str], device_count: int) -> Groups | None:
    """Return the groups along some axes of a mesh that the collective states itself."""
    sizes, ids, used = found.groups()
    axes = {name: number(size) for name, size in _SIZED.findall(sizes)}
    devices = _device_ids(ids, device_count)
    inner: dict[str, list[tuple[int, int]]] = {}
    for name, before, size in _USED.findall(used):
        part = (number(before), number(size)) if size else (1, axes.get(name, 0))
        inner.setdefault(name, []).append(part)
    if devices is None or not inner.keys() <= axes.keys():
        return None
    dims: list[int] = []
    within: list[int] = []
    for name, size in axes.items():
        for ways, is_used in _parts(size, sorted(inner.get(name, []))):
            within += [len(dims)] if is_used else []
            dims.append(ways)
    if math.prod(dims) != device_count:
        return None
    outer = [at for at in range(len(dims)) if at not in within]
    return _rows(turned(devices, dims, outer + within), math.prod(dims[at] for at in within))


def _parts(size: int, used: list[tuple[int, int]]) -> list[tuple[int, bool]]:
    """Return an axis as parts, major to minor, each with whether it is used.

    >>> _parts(8, [(2, 2)])
    [(2, False), (2, True), (2, False)]
    """
    found, before = [], 1
    for start, part in used:
        if start > before:
            found.append((start // before, False))
        found.append((part, True))
        before = max(1, start * part)
    if before < size:
        found.append((size // before, False))
    return found


def _device_ids(text: str | None, device_count: int) -> Sequence[int] | None:
    """Return the devices of a mesh in its order: as they are counted, listed, or turned."""
    if text is None:
        return range(device_count)
    found = _TURNED.match(text)
    if found:
        return turned(range(device_count), _numbers(found.group(1)), _numbers(found.group(2) or ""))
    listed = _numbers(re.sub(r"[^\d,]", "", text))
    return listed if len(listed) == device_count else None


def turned(
    devices: Sequence[int], dims: Sequence[int], order: Sequence[int]
) -> tuple[int, ...] | None:
    """Return devices laid in a block of sizes, read with its dimensions in another order.

    >>> turned(range(6), (2, 3), (1, 0))
    (0, 3, 1, 4, 2, 5)
    """
    if math.prod(dims) != len(devices) or not all(dims):
        return None
    order = tuple(order) or tuple(range(len(dims)))
    if sorted(order) != list(range(len(dims))):
        return None
    strides = [math.prod(dims[at + 1 :]) for at in range(len(dims))]
    ranges = [range(0, dims[at] * strides[at], strides[at]) for at in order if dims[at] > 1]
    return tuple(devices[sum(place)] for place in itertools.product(*ranges))


def _rows(devices: Sequence[int] | None, ways: int) -> Groups | None:
    if devices is None or ways < 1 or len(devices) % ways:
        return None
    return [tuple(devices[at : at + ways]) for at in range(0, len(devices), ways)]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(number(each) for each in text.split(",") if each)
