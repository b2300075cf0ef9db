"""HLO text as computations of instructions, by name.

It is what XLA prints of a program it has compiled: for CPUs and GPUs from `compiled.as_text()`, for
TPUs in its dumps. Every line of a computation is one instruction: its name, the type that it gives,
the operation, its operands, and attributes. Nothing here judges a program; what is not an
instruction is passed over, so any text can be read.

No program says which chip is at each place in the mesh. We write it behind one (`with_chips`):

    // chips={100000,100004,200000,200004}
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from shardspec.diagnostics.words import by_key
from shardspec.ir.spec import Shape, array_bytes, dtype_name
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
_CHIPS = re.compile(r"// chips=\{(\d+(?:,\d+)*)\}")
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

    @cached_property
    def index(self) -> int:
        """Return which element of a tuple is taken."""
        return number(self.attribute("index"))

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
      chips: the number of the chip at each place in the mesh; empty where the text does not say.
    """

    computations: dict[str, Computation]
    entry: Computation | None
    aliases: dict[int, int]
    partitions: int
    frames: dict[int, tuple[Frame, int]]
    unread: tuple[str, ...] = ()
    chips: tuple[int, ...] = ()

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
    found = _CHIPS.fullmatch(lines[-1]) if lines else None
    chips = tuple(map(number, found.group(1).split(","))) if found else ()
    frames = _frames(lines)
    return Program(computations, entry, _aliases(header), partitions, frames, tuple(unread), chips)


def with_chips(text: str, chips: Sequence[int]) -> str:
    """Return the text of a program that says which chip is at each place in the mesh, if known."""
    if not chips:
        return text
    return f"{text.rstrip()}\n// chips={{{','.join(map(str, chips))}}}\n"


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
