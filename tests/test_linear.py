"""No pattern of the package takes more than linear time, whatever text it meets.

Every regex is collected from the source, stretched by the units of its own parse tree, and timed at
two lengths. A stranger writes the text, so a pattern that is quadratic on one line hangs a verb.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import re
import re._constants as sre
import re._parser as sre_parse
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

PACKAGE = Path(__file__).parent.parent / "shardspec"
MODULES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.name not in ("__init__.py", "__main__.py")
]
#: Modules that may have a pattern, by their text: to collect the tests imports none of them.
WITH_PATTERNS = [
    name
    for name in MODULES
    if "import re\n" in (PACKAGE.parent / f"{name.replace('.', '/')}.py").read_text("utf-8")
]
METHODS = ("match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer")
FROM_START = ("match", "fullmatch")

#: Patterns that meet a bounded stretch of text alone, by module and start, each with the bound.
BOUNDED = {
    ("jax_backend.step.sends", "axes"): "what jax prints of one operation",
    ("language.catalogue", "("): "80 characters of what should be a machine",
    ("language.catalogue", "[a-z]"): "80 characters of what should be a machine",
    ("lints.evidence.entries", "\\\\.|"): "a sound regex, whose sets are closed",
    ("lints.registry", "^## (Bad"): "pages of our own",
    ("lsp.completion", "(?<=[\\s"): "500 characters before the cursor",
    ("lsp.completion", "((?:\\.\\.?/)"): "500 characters before the cursor",
}

#: Units beside those of the pattern; and what makes a match fail behind them.
UNITS = ("a", "0", " ", "\n", "a ", "a\n", "a/", "\\")
ENDINGS = ("", "\0", "\n\0")
SHORT, LONG = 800, 6_400
#: Processor time of this thread: below the one nothing is judged, above the other it is stopped.
FLOOR_S, CEILING_S = 0.002, 1.0
#: So often in a row a text is slow, unless it is stopped: what runs beside the tests is not.
TIMES = 3
GROWTH = 24.0
#: Of four times as much: four where it is linear, sixteen where it is quadratic.
AGAIN = 8.0


class Use(NamedTuple):
    """A pattern, where it stands, and how it is applied."""

    module: str
    pattern: str
    flags: int
    methods: tuple[str, ...]


class _Loose(ast.NodeTransformer):
    """Puts a name for what a pattern takes from its function."""

    def __init__(self, known: dict[str, Any]) -> None:
        self.known = known

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        is_known = all(name in self.known for name in names)
        return node if is_known else ast.Constant("name")


@functools.cache
def nodes_of(name: str) -> tuple[ast.AST, ...]:
    """Return the nodes of a module, in the order of `ast.walk`: its source is parsed once."""
    file = importlib.import_module(name).__file__
    return tuple(ast.walk(ast.parse(Path(str(file)).read_text("utf-8"))))


def evaluated(node: ast.expr, module: ModuleType) -> Any:
    """Return what an argument is, as far as the module alone says it; None where it does not."""
    loose = ast.fix_missing_locations(ast.Expression(_Loose(vars(module)).visit(node)))
    try:
        return eval(compile(loose, "<pattern>", "eval"), dict(vars(module)))
    except Exception:
        return None


def uses_in(name: str, applied: dict[tuple[str, str], set[str]]) -> Iterator[Use]:
    """Yield the patterns that a module applies or compiles where it needs them."""
    module = importlib.import_module(name)
    nodes = nodes_of(name)
    chained = {
        id(node.value): node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call)
    }
    named = {
        id(node.value): {getattr(target, "id", "") for target in node.targets}
        for node in nodes
        if isinstance(node, ast.Assign)
    }
    for node in nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        method = node.func.attr
        if getattr(node.func.value, "id", "") != "re" or method not in (*METHODS, "compile"):
            continue
        pattern = evaluated(node.args[0], module)
        if isinstance(pattern, re.Pattern):
            pattern = pattern.pattern
        methods = {method, chained.get(id(node), "")} & set(METHODS)
        for key in named.get(id(node), ()):
            methods |= applied.get((name, key), set())
        if isinstance(pattern, str):
            yield Use(name, pattern, _flags(node, module), tuple(methods))


def _flags(node: ast.Call, module: ModuleType) -> int:
    at = {"compile": 1, "sub": 4, "subn": 4, "split": 3}.get(getattr(node.func, "attr", ""), 2)
    given = [each.value for each in node.keywords if each.arg == "flags"] + node.args[at:]
    return int(evaluated(given[0], module) or 0) if given else 0


def applied_methods() -> dict[tuple[str, str], set[str]]:
    """Return the methods that are called of each name, by the module that gives it its value."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for name in MODULES:
        module = importlib.import_module(name)
        for node in nodes_of(name):
            if isinstance(node, ast.Attribute) and node.attr in METHODS:
                key = getattr(node.value, "id", getattr(node.value, "attr", ""))
                found[home_of(module, key), key].add(node.attr)
    return found


def home_of(module: ModuleType, key: str) -> str:
    """Return the module that a name stands in: this one, or the one it was imported from."""
    value = vars(module).get(key)
    if isinstance(value, re.Pattern):
        for other in MODULES:
            if vars(importlib.import_module(other)).get(key) is value:
                return other
    return module.__name__


@functools.cache
def all_uses() -> list[Use]:
    """Return each pattern once, with all methods that it is applied by."""
    applied = applied_methods()
    found: dict[tuple[str, str, int], set[str]] = defaultdict(set)
    for name in MODULES:
        for use in uses_in(name, applied):
            flags = use.flags if use.flags & re.ASCII else use.flags | re.UNICODE
            found[use.module, use.pattern, flags] |= set(use.methods)
    return [
        Use(module, pattern, flags, tuple(sorted(methods)) or ("match", "search"))
        for (module, pattern, flags), methods in sorted(found.items())
    ]


# stretching


def samples(tree: Any) -> list[str]:
    """Return a few texts that a parsed pattern matches, more or less."""
    found = [""]
    for operator, value in tree:
        pieces = [piece for piece in pieces_of(operator, value) if piece is not None] or [""]
        found = [before + piece for before in found[:3] for piece in pieces[:4]]
    return found[:6]


def pieces_of(operator: Any, value: Any) -> list[str]:
    match operator:
        case sre.LITERAL:
            return [chr(value)]
        case sre.NOT_LITERAL:
            return [next(char for char in "a b" if ord(char) != value)]
        case sre.ANY:
            return ["a", " "]
        case sre.IN:
            return [char for char in "a0 \n\t_-.,/\"'(){}[]=:;#\\*Z" if _is_in(value, char)]
        case sre.BRANCH:
            return [each for branch in value[1] for each in samples(branch)[:2]]
        case sre.SUBPATTERN:
            return samples(value[3])
        case sre.ATOMIC_GROUP:
            return samples(value)
        case sre.MAX_REPEAT | sre.MIN_REPEAT | sre.POSSESSIVE_REPEAT:
            least = value[0]
            return [each * max(least, 1) for each in samples(value[2])]
    return [""]


def _is_in(members: Any, char: str) -> bool:
    try:
        found = re.compile(sre_parse_text(members))
    except re.error:
        return False
    return bool(found.fullmatch(char))


def sre_parse_text(members: Any) -> str:
    """Return a class as a pattern again."""
    inside = ""
    for operator, value in members:
        match operator:
            case sre.NEGATE:
                inside += "^"
            case sre.LITERAL:
                inside += re.escape(chr(value))
            case sre.RANGE:
                inside += f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
            case sre.CATEGORY:
                inside += CATEGORIES[value]
    return f"[{inside}]"


CATEGORIES = {
    sre.CATEGORY_DIGIT: r"\d", sre.CATEGORY_NOT_DIGIT: r"\D", sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S", sre.CATEGORY_WORD: r"\w", sre.CATEGORY_NOT_WORD: r"\W",
}  # fmt: skip


def stretches(tree: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """Yield for every repeat of a pattern what stands before it and what is repeated."""
    for operator, value in tree:
        match operator:
            case sre.MAX_REPEAT | sre.MIN_REPEAT | sre.POSSESSIVE_REPEAT:
                if value[1] is sre.MAXREPEAT or value[1] > 50:
                    for unit in samples(value[2]):
                        yield before, unit
                yield from stretches(value[2], before)
            case sre.SUBPATTERN:
                yield from stretches(value[3], before)
            case sre.ATOMIC_GROUP:
                yield from stretches(value, before)
            case sre.BRANCH:
                for branch in value[1]:
                    yield from stretches(branch, before)
        before += (pieces_of(operator, value) or [""])[0]


def attacks(use: Use) -> Iterator[tuple[str, str, str]]:
    """Yield beginnings, units and endings that a pattern is stretched with."""
    tree = sre_parse.parse(use.pattern, use.flags & ~re.DEBUG)
    own = list(dict.fromkeys(stretches(tree)))
    units = list(dict.fromkeys([unit for _, unit in own if unit])) if own else []
    beginnings = list(dict.fromkeys(["", *(before for before, _ in own)]))
    again = (*beginnings[:8], *(before + unit for before, unit in own[:8]), samples(tree)[0])
    for beginning in beginnings[:6]:
        for unit in dict.fromkeys((*units[:8], *again, *UNITS)):
            if unit and (beginning == "" or unit not in again):
                for ending in ENDINGS:
                    yield beginning, unit, ending


class SlowError(Exception):
    """A match took more than the ceiling."""


#: When this thread has had its time; None where nothing is measured: a late signal does nothing.
_end: float | None = None


def _stop(*_: object) -> None:
    """Stop what runs, if this thread had the time: the timer counts that of all threads."""
    global _end
    if _end is None:
        return
    left = _end - time.thread_time()
    if left > 0:
        signal.setitimer(signal.ITIMER_PROF, left)
        return
    _end = None
    raise SlowError


@contextmanager
def ceiling(seconds: float) -> Iterator[None]:
    global _end
    signal.signal(signal.SIGPROF, _stop)  # and it stays: without a handler a late signal kills
    _end = time.thread_time() + seconds
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        _end = None
        signal.setitimer(signal.ITIMER_PROF, 0)


def seconds_of(pattern: re.Pattern[str], method: str, text: str) -> float:
    """Return the processor time of one application, in this thread alone."""
    started = time.thread_time()
    match method:
        case "sub" | "subn":
            pattern.sub("", text)
        case "finditer":
            for _ in pattern.finditer(text):
                pass
        case _:
            getattr(pattern, method)(text)
    return time.thread_time() - started


def slow_on(use: Use) -> str | None:
    """Return a text on which a pattern grows faster than its length; None where none was found."""
    module = use.module.removeprefix("shardspec.")
    if any(module == name and use.pattern.startswith(start) for name, start in BOUNDED):
        return None
    pattern = re.compile(use.pattern, use.flags)
    methods = [each for each in use.methods if each in FROM_START]
    methods += [each for each in use.methods if each not in FROM_START][:1]  # they search alike
    for beginning, unit, ending in attacks(use):
        for method in methods:
            parts = (beginning, unit, ending)
            if is_slow(pattern, method, *parts):
                return f"{method}: {beginning!r} + {unit!r} * n + {ending!r}"
    return None


def is_slow(pattern: re.Pattern[str], method: str, *parts: str) -> bool:
    """Say whether a match is stopped at its ceiling, or grows each time that it is tried."""
    try:
        for _ in range(TIMES):
            with ceiling(CEILING_S):
                if not grows(pattern, method, *parts):
                    return False
    except SlowError:
        return True
    return True


def grows(pattern: re.Pattern[str], method: str, *parts: str) -> bool:
    """Say whether a text takes longer than its length says, and four times as much of it, too."""
    beginning, unit, ending = parts

    def text(length: int) -> str:
        return beginning + unit * (length // len(unit)) + ending

    if seconds_of(pattern, method, text(LONG)) < FLOOR_S:
        return False
    long = min(seconds_of(pattern, method, text(LONG)) for _ in range(3))
    short = min(seconds_of(pattern, method, text(SHORT)) for _ in range(5))
    if long <= max(FLOOR_S, GROWTH * short):
        return False
    longer = min(seconds_of(pattern, method, text(4 * LONG)) for _ in range(3))
    again = min(seconds_of(pattern, method, text(LONG)) for _ in range(3))
    return longer > AGAIN * again


def test_patterns_are_collected() -> None:
    assert len(all_uses()) > 300
    assert {use.module for use in all_uses()} <= set(WITH_PATTERNS)


@pytest.mark.parametrize("module", WITH_PATTERNS)
def test_no_pattern_grows_faster_than_its_text(module: str) -> None:
    slow = {}
    for use in all_uses():
        if use.module == module:
            found = slow_on(use)
            if found:
                slow[use.pattern] = found
    assert not slow


def test_what_other_threads_do_is_not_counted() -> None:
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            hashlib.sha256(bytes(1_000_000)).digest()  # without the interpreter's lock

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        with ceiling(0.02):
            time.sleep(0.3)
    finally:
        done.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    "pattern", [r"(?:\s*(?:#[^\n]*)?\n)*\s*(x)", r"(a+)+b", r"^\s*x", r"\s+$", r"x[^()]*\)"]
)
def test_a_slow_pattern_is_found(pattern: str) -> None:
    assert slow_on(Use("here", pattern, re.MULTILINE | re.UNICODE, ("search",)))
