"""How names, numbers, sizes and paths stand in a message.

Arrays that differ in a layer number only are shown as one: `decoder/layers_0/kernel` to
`decoder/layers_23/kernel` are `decoder/layers_{0..23}/kernel`.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import TypeVar

from shardspec.diagnostics.diagnostic import Edit, Fix, Span
from shardspec.diagnostics.quote import in_quotes as in_quotes

#: Up to so many names all are compared; of more, so many on each side in each of the two orders.
MOST_COMPARED = 200
_BESIDE = 12

_SEPARATORS = re.compile(r"[-_.\s]+")


class NameIndex:
    """Names in the order of their beginnings, in that of their ends, and by their letters alone."""

    def __init__(self, names: frozenset[str]) -> None:
        """Put `names` in order."""
        self.names = sorted(names)
        self._by_bare = grouped(self.names, bare)
        is_large = len(self.names) > MOST_COMPARED
        self._starts = sorted((name.lower(), name) for name in self.names) if is_large else []
        self._ends = sorted((name.lower()[::-1], name) for name in self.names) if is_large else []

    def alike(self, name: str, without: Collection[str] = ()) -> list[str]:
        """Return the names that are worth comparing with one, in order, but for some."""
        found: Iterable[str] = self.names
        if self._starts:
            lowered = name.lower()
            near = (*_beside(self._starts, lowered), *_beside(self._ends, lowered[::-1]))
            found = sorted({*near, *self._by_bare.get(bare(name), ())[:_BESIDE]})
        return [each for each in found if each not in without]

    def same(self, name: str, without: Collection[str] = ()) -> list[str]:
        """Return the names that differ in capitals and separators alone, but for some."""
        return [each for each in self._by_bare.get(bare(name), ()) if each not in without]


def _beside(ordered: Sequence[tuple[str, str]], key: str) -> list[str]:
    at = bisect_left(ordered, (key, ""))
    return [name for _, name in ordered[max(at - _BESIDE, 0) : at + _BESIDE]]


def bare(name: str) -> str:
    """Return the letters and digits of a name, small.

    >>> bare("kvHeads") == bare("kv_heads")
    True
    """
    return _SEPARATORS.sub("", name).lower()


def index_of(names: Iterable[str]) -> NameIndex:
    """Return the index of names; of one frozenset it is made once."""
    return _index(names if isinstance(names, frozenset) else frozenset(names))


@lru_cache(maxsize=8)
def _index(names: frozenset[str]) -> NameIndex:
    return NameIndex(names)


def nearest(
    name: str,
    known: Iterable[str],
    *,
    without: Collection[str] = (),
    count: int = 1,
    cutoff: float = 0.6,
) -> tuple[str, ...]:
    """Return up to `count` of `known` that look like `name`, the nearest first.

    Args:
      known: of one frozenset, however often it is asked, the index is made once.
      without: those of `known` that are not meant.

    >>> nearest("tenosr", ["data", "tensor"])
    ('tensor',)
    """
    import difflib

    candidates = index_of(known).alike(name, without)
    lowered = {candidate.lower(): candidate for candidate in reversed(candidates)}
    found = difflib.get_close_matches(name.lower(), lowered, n=count, cutoff=cutoff)
    return tuple(lowered[match] for match in found)


_FAR = 3


def respelt(
    spans: Iterable[Span | None],
    name: str,
    known: Iterable[str],
    *,
    without: Collection[str] = (),
    may_be_sure: bool = True,
) -> Fix | None:
    """Return the fix that writes the nearest known name at each of `spans`; None if all are far.

    Args:
      spans: places that hold the name, in quotes or not; others are passed over, and where none
        holds it there is no fix.
      without: those of `known` that are not meant.
      may_be_sure: False where the right name may not do what the author wants.
    """
    meant, is_sure = _meant(name, known, without)
    if meant is not None and bare(meant) != bare(name) and distance(name, meant) >= _FAR:
        return None
    places = [place for span in spans if span is not None and (place := _place(span, name))]
    if meant is None or not places:
        return None
    edits = tuple(Edit(place, meant) for place in dict.fromkeys(places))
    return Fix(f"replace `{name}` by `{meant}`", edits, is_sure=is_sure and may_be_sure)


def is_slip(name: str, meant: str) -> bool:
    """Say whether a name is a slip of the fingers for another, and nothing else in all likelihood.

    Of names of several words each word is compared: one word in place of another is no slip.

    >>> is_slip("mpl", "mlp"), is_slip("kvHeads", "kv_heads"), is_slip("wi_0", "wi_1")
    (True, True, False)
    >>> is_slip("q_heads", "kv_heads"), is_slip("activation_lenght", "activation_length")
    (False, True)
    """
    if bare(name) == bare(meant):
        return True
    if _digits(name) != _digits(meant):
        return False
    words, others = _SEPARATORS.split(name), _SEPARATORS.split(meant)
    if len(words) != len(others):
        return min(len(name), len(meant)) > 2 and distance(name, meant) == 1
    pairs = [pair for pair in zip(words, others, strict=True) if pair[0] != pair[1]]
    return len(pairs) < _FAR and all(_is_slip_of_a_word(*pair) for pair in pairs)


def _is_slip_of_a_word(word: str, meant: str) -> bool:
    shorter = min(len(word), len(meant))
    return shorter > 2 and distance(word, meant) <= min(max(1, shorter // 4), _FAR - 1)


def _place(span: Span, name: str) -> Span | None:
    """Return where the name itself stands in a span that may hold its quotes."""
    longer = span.end - span.start - len(name)
    if longer == 0 and span.text == name:
        return span
    if longer == 2 and span.text[0] in "'\"" and span.text[1:-1] == name:
        return Span(span.source, span.start + 1, span.end - 1)
    return None


def _meant(name: str, known: Iterable[str], without: Collection[str]) -> tuple[str | None, bool]:
    """Return the nearest known name, and whether it is meant beyond doubt."""
    known = known if isinstance(known, frozenset) else frozenset(known)
    found = nearest(name, known, without=without)
    meant = found[0] if found else None
    same = index_of(known).same(name, without)
    if same:
        return (same[0] if len(same) == 1 else meant), len(same) == 1
    if meant is None or _digits(meant) != _digits(name):
        return meant, False
    slips = distance(name, meant)
    if slips > min(2, len(name) // 4):
        return meant, False
    alike = index_of(known).alike(name, without)
    return meant, not any(each != meant and distance(name, each) <= slips for each in alike)


def _digits(name: str) -> list[str]:
    return re.findall(r"\d", name)


def distance(one: str, other: str) -> int:
    """Return how many slips lie between two words: letters put in, left out, changed, swapped.

    Stops counting at three.

    >>> distance("tenosr", "tensor"), distance("embd", "embed"), distance("data", "model")
    (1, 1, 3)
    """
    if abs(len(one) - len(other)) >= _FAR:
        return _FAR
    before: list[int] = []
    above = list(range(len(other) + 1))
    for row, letter in enumerate(one, start=1):
        line = [row]
        for column, against in enumerate(other, start=1):
            cost = min(above[column] + 1, line[-1] + 1, above[column - 1] + (letter != against))
            if row > 1 and column > 1 and (letter, against) == (other[column - 2], one[row - 2]):
                cost = min(cost, before[column - 2] + 1)
            line.append(cost)
        before, above = above, line
    return min(above[-1], _FAR)


Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)

#: A number; a longer run of digits is several, since Python refuses to read one of thousands.
_DIGITS = re.compile(r"([0-9]{1,18})")
_COUNT = re.compile(r"(?P<stem>.*)\[(?P<count>[1-9][0-9]{0,5})\]")
_BRACES = re.compile(r"\{([0-9]{1,18}(?:\.\.[0-9]{1,18}|(?:,[0-9]{1,18})+))\}")

MOST_PATHS = 1_000_000
"""More than any model has."""


def numbers_apart(path: str) -> list[str]:
    """Return a path cut at its numbers: text, number, text, ..., text.

    >>> numbers_apart("layers_10/wi_0")
    ['layers_', '10', '/wi_', '0', '']
    """
    return _DIGITS.split(path)


def template(path: str) -> str:
    """Return `path` with every number as `#`: equal for arrays of different layers."""
    return _DIGITS.sub("#", path)


def natural(path: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key under which `layers_2` comes before `layers_10`.

    >>> sorted(["a10", "a2", "a"], key=natural)
    ['a', 'a2', 'a10']
    """
    parts = enumerate(numbers_apart(path))
    return tuple([(0, int(part), "") if at % 2 else (1, 0, part) for at, part in parts if part])


def numbers_in(path: str) -> list[int]:
    """Return the numbers of a path, by which paths of one template sort as by `natural`.

    >>> numbers_in("layers_10/wi_0")
    [10, 0]
    """
    return list(map(int, _DIGITS.findall(path)))


def collapsed(paths: Sequence[str]) -> str | None:
    """Return one glob for exactly these paths, which share a template; None if there is none.

    >>> collapsed(["a_0/w_0", "a_0/w_1", "a_1/w_0", "a_1/w_1"])
    'a_{0,1}/w_{0,1}'
    >>> collapsed(["a_0", "a_2"])
    'a_{0,2}'
    """
    if len(paths) == 1:
        return paths[0]
    return with_ranges(numbers_apart(paths[0])[::2], list(map(_DIGITS.findall, paths)))


def with_ranges(texts: Sequence[str], numbers: Sequence[Sequence[str]]) -> str | None:
    """Return one glob for exactly the paths of a template; None if there is none.

    Args:
      texts: what stands around the numbers of each.
      numbers: those of each path.

    >>> with_ranges(["a_", "/w"], [["0"], ["1"], ["2"]])
    'a_{0..2}/w'
    """
    columns = list(zip(*numbers, strict=True))
    alternatives = [sorted(sorted(set(column)), key=int) for column in columns]
    if len(columns) > 1 and math.prod(map(len, alternatives)) != len(set(map(tuple, numbers))):
        return None
    pairs = zip(map(spelt, alternatives), texts[1:], strict=True)
    return texts[0] + "".join(number + text for number, text in pairs)


def spelt(numbers: list[str]) -> str:
    """Return sorted numbers as a glob has them.

    >>> spelt(["7"]), spelt(["0", "2"]), spelt(["0", "1", "2"])
    ('7', '{0,2}', '{0..2}')
    """
    if len(numbers) == 1:
        return numbers[0]
    shown = len(numbers) > 2 and is_run(numbers)
    return f"{{{numbers[0]}..{numbers[-1]}}}" if shown else f"{{{','.join(numbers)}}}"


def is_run(numbers: Sequence[str]) -> bool:
    """Say whether these are all the numbers from the first to the last."""
    count = int(numbers[-1]) - int(numbers[0]) + 1
    return count == len(numbers) and run_of(numbers[0], numbers[-1]) == list(numbers)


def run_of(first: str, last: str) -> list[str]:
    """Return the numbers from `first` to `last`, as long as these where they begin with zeros.

    >>> run_of("8", "10"), run_of("08", "10")
    (['8', '9', '10'], ['08', '09', '10'])
    """
    width = run_width(first, last)
    return [f"{number:0{width}d}" for number in range(int(first), int(last) + 1)]


def run_width(first: str, last: str) -> int:
    """Return how many digits each number of a run has at least; 0 where none is filled up."""
    return len(first) if first.startswith("0") and len(first) == len(last) else 0


def expanded(text: str, most: int = MOST_PATHS) -> list[str] | None:
    """Return the paths that `collapsed` made `text` of; None where they are more than `most`.

    >>> expanded("a_{0,1}/w_{08..10}")
    ['a_0/w_08', 'a_0/w_09', 'a_0/w_10', 'a_1/w_08', 'a_1/w_09', 'a_1/w_10']
    """
    pieces = _BRACES.split(text)
    if math.prod(map(_count, pieces[1::2])) > most:
        return None
    choices = [_numbers(piece) if index % 2 else [piece] for index, piece in enumerate(pieces)]
    return ["".join(parts) for parts in product(*choices)]


def _count(text: str) -> int:
    """Return how many numbers `_numbers` makes; a range that runs backwards has none."""
    first, _, last = text.partition("..")
    return max(int(last) - int(first) + 1, 0) if last else text.count(",") + 1


def _numbers(text: str) -> list[str]:
    first, _, last = text.partition("..")
    return run_of(first, last) if last else text.split(",")


def described(paths: Iterable[str]) -> str:
    """Return `160 arrays, first layers/0/attn/k/kernel` for a note."""
    paths = list(paths)
    first = "" if len(paths) == 1 else "first "
    return f"{counted(len(paths), 'array')}, {first}{paths[0]}"


def as_one(paths: Iterable[str], rest: str = "") -> str:
    """Return one glob for paths that differ in numbers alone; else the first of them and `rest`.

    >>> as_one(["a_1", "a_0"]), as_one(["a_0/b_1", "a_1/b_0"], " .."), as_one(["a", "a_0"])
    ('a_{0,1}', 'a_0/b_1 ..', 'a')
    """
    ordered = sorted(paths, key=natural)
    alike = len(set(map(template, ordered))) == 1
    return (alike and collapsed(ordered)) or ordered[0] + rest


def globs(paths: Iterable[str]) -> Iterator[str]:
    """Yield a glob for the paths of each template, or these where no glob is for exactly them.

    >>> list(globs(["a_0", "b", "a_1"]))
    ['a_{0,1}', 'b']
    """
    for alike in grouped(paths, template).values():
        glob = collapsed(sorted(alike, key=natural))
        yield from alike if glob is None else (glob,)


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return items by what they have in common, in order of the first of each.

    >>> grouped(["wi", "b", "wo"], len)
    {2: ['wi', 'wo'], 1: ['b']}
    """
    return by_key((key(item), item) for item in items)


def by_key(pairs: Iterable[tuple[Key, Item]]) -> dict[Key, list[Item]]:
    """Return what goes with each key, in order of the first of each.

    >>> by_key([("a", 1), ("b", 2), ("a", 3)])
    {'a': [1, 3], 'b': [2]}
    """
    groups: dict[Key, list[Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups


def reached(
    first: Iterable[Key], onward: Callable[[Key], Iterable[Key]], *, is_nearest_first: bool = False
) -> Iterator[Key]:
    """Yield some things and all that is reached from them, each once.

    >>> [*reached("a", {"a": "bc", "b": "d", "c": "d", "d": "a"}.__getitem__)]
    ['a', 'c', 'd', 'b']
    """
    waiting, seen = deque(first), set[Key]()
    while waiting:
        each = waiting.popleft() if is_nearest_first else waiting.pop()
        if each not in seen:
            seen.add(each)
            yield each
            waiting.extend(onward(each))


def by_template(
    items: Iterable[Item], path: Callable[[Item], str]
) -> dict[tuple[str, ...], list[tuple[list[str], Item]]]:
    """Return items whose paths differ in numbers alone together, each with its numbers.

    They are by the texts around the numbers, in order of the first of each.

    >>> by_template(["a_0/w", "b", "a_1/w"], str)
    {('a_', '/w'): [(['0'], 'a_0/w'), (['1'], 'a_1/w')], ('b',): [([], 'b')]}
    """
    parted = ((numbers_apart(path(item)), item) for item in items)
    return by_key((tuple(parts[::2]), (parts[1::2], item)) for parts, item in parted)


def counted(number: int, what: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "array"), counted(0, "array"), counted(2, "mesh"), counted(2, "mesh axis")
    ('1 array', '0 arrays', '2 meshes', '2 mesh axes')
    """
    if number == 1:
        return f"1 {what}"
    if what.endswith("is"):
        return f"{number} {what[:-2]}es"
    return f"{number} {what}{'es' if what.endswith(('sh', 'ch', 's', 'x')) else 's'}"


def tallied(*counts: tuple[int, str]) -> str:
    """Return numbers with their nouns, without what there is none of.

    >>> tallied((2, "array"), (0, "state"), (1, "activation"))
    '2 arrays and 1 activation'
    """
    return " and ".join(counted(number, what) for number, what in counts if number)


_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_MOST = 10**300
"""What more counts as: beyond it, a whole number is no float."""

_DECIMAL = ("", " K", " M", " B", " T")


def binary_bytes(count: float) -> str:
    """Return bytes in binary units.

    >>> binary_bytes(0), binary_bytes(16384), binary_bytes(1342177280)
    ('0 B', '16.0 KiB', '1.25 GiB')
    """
    value = float(min(count, _MOST))
    for unit in _BINARY:
        if value < 1024 or unit == _BINARY[-1]:
            break
        value /= 1024
    return f"{count:.0f} B" if unit == "B" else f"{three_figures(value)} {unit}"


def element_count(count: int) -> str:
    """Return a number of elements.

    >>> element_count(11307321344), element_count(512)
    ('11.3 B', '512')
    """
    value = float(min(count, _MOST))
    for unit in _DECIMAL:
        if value < 1000 or unit == _DECIMAL[-1]:
            break
        value /= 1000
    return str(count) if not unit else f"{three_figures(value)}{unit}"


def flops_text(flops: int) -> str:
    """Return FLOPs with three figures.

    >>> flops_text(3160000000000), flops_text(12)
    ('3.16 TFLOP', '12 FLOP')
    """
    for unit, scale in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if flops >= 0.9995 * scale:
            return f"{three_figures(flops / scale)} {unit}FLOP"
    return f"{flops} FLOP"


def seconds_text(seconds: float) -> str:
    """Return a time with three figures.

    >>> seconds_text(1.92), seconds_text(0.0041), seconds_text(0.0000002), seconds_text(0)
    ('1.92 s', '4.10 ms', '0.20 us', '0 s')
    """
    if not seconds:
        return "0 s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.9995 * scale:
            return f"{three_figures(seconds / scale)} {unit}"
    return f"{three_figures(seconds * 1e6)} us"


def three_figures(value: float) -> str:
    """Return three figures: 1.25, 12.5, 125, 1020."""
    if value >= 1e15:
        return f"{value:.3g}"
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def percent(part: float, whole: float) -> str:
    """Return a share with as many places as it needs.

    >>> percent(2, 100000), percent(1, 3), percent(1, 10**9)
    ('0.002 %', '33 %', '< 0.001 %')
    """
    share = 100 * part / whole if whole else 0.0
    if share == 0 or share >= 10:
        return f"{share:.0f} %"
    if share < 0.001:
        return "< 0.001 %"
    return f"{share:.1f} %" if share >= 1 else f"{share:.1g} %"


def did_you_mean(name: str, known: Iterable[str], *, without: Collection[str] = ()) -> str | None:
    """Return "did you mean `x`?", or None when nothing is near."""
    found = nearest(name, known, without=without)
    return f"did you mean `{found[0]}`?" if found else None


_MOST_KNOWN = 6


def near_or_known(name: str, known: Iterable[str], says: str = "known here", more: str = "") -> str:
    """Return "did you mean `x`?", or a list of names that begins with the most similar ones.

    Args:
      says: what the list is of.
      more: what shows all names, where the list is cut.

    >>> near_or_known("bogus", ["indivisible", "order"])
    'known here: `indivisible`, `order`'
    """
    names = tuple(dict.fromkeys(known))
    if meant := did_you_mean(name, names):
        return meant
    if len(names) > _MOST_KNOWN:
        names = tuple(dict.fromkeys((*nearest(name, names, count=3, cutoff=0.3), *names)))
    cut = f"; {more}" if more and len(names) > _MOST_KNOWN else ""
    return f"{says}: {listed(names, _MOST_KNOWN)}{cut}"


def named(noun: str, names: Collection[str]) -> str:
    """Return what is listed with its noun.

    >>> named("target", ["a"]), named("target", ["a", "b"])
    ('target `a`', 'targets `a`, `b`')
    """
    return f"{noun}{'s' if len(names) > 1 else ''} {listed(names)}"


def listed(names: Iterable[str], limit: int = 8) -> str:
    """Return names in backticks for a message, cut after `limit`; counts of slices in runs.

    >>> listed(["b", "a"]), listed(["pod[1]", "pod[2]", "pod[3]"])
    ('`b`, `a`', '`pod[1]` to `pod[3]`')
    """
    runs = _runs(names)
    ends = [run if len(run) < 3 else [run[0], run[-1]] for run in runs]
    spelt = [
        (" to " if len(run) > 2 else ", ").join(f"`{name}`" for name in end)
        for run, end in zip(runs, ends, strict=True)
    ]
    rest = sum(map(len, runs[limit:]))
    return ", ".join(spelt[:limit]) + (f" and {rest} more" if rest else "")


def one_of(names: Sequence[str]) -> str:
    """Return names of which one is meant, in backticks.

    >>> one_of(["a"]), one_of(["a", "b", "c"])
    ('`a`', '`a`, `b` or `c`')
    """
    quoted = [f"`{name}`" for name in names]
    return " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


def _runs(names: Iterable[str]) -> list[list[str]]:
    """Return names in order; those of one family with one slice more each stand together."""
    runs: list[list[str]] = []
    for name in names:
        counted = _COUNT.fullmatch(name)
        before = f"{counted['stem']}[{int(counted['count']) - 1}]" if counted else None
        if runs and runs[-1][-1] == before:
            runs[-1].append(name)
        else:
            runs.append([name])
    return runs


def pattern_of(paths: Iterable[str]) -> str:
    """Return a pattern of exactly these paths.

    >>> pattern_of(["a/0/k", "a/1/k", "a/2/k"]), pattern_of(["a/0", "a/b"])
    ('a/{0..2}/k', '{a/0,a/b}')
    """
    found = list(globs(paths))
    return found[0] if len(found) == 1 else "{" + ",".join(found) + "}"
