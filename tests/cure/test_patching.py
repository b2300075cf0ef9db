"""Constraints in a stranger's code: what is written, where, and that nothing else changes.

In the examples `⟦...⟧` are the expressions to constrain, in order of their first bracket.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.cure.patching import Constrained, Extent, Patched, Refused, diff_of, patched

NAMES = "batch _ embed"


def marked(text: str) -> tuple[str, list[Extent]]:
    """Return a text without its brackets, and the extents of what was in them."""
    source = ""
    opened: list[int] = []
    starts: list[tuple[int, int]] = []
    ends: dict[int, tuple[int, int]] = {}
    for letter in text:
        whole = source.removeprefix("\ufeff")
        line = re.split(r"\r\n?|\n", whole)
        place = len(line), len(line[-1].encode())
        if letter == "⟦":
            opened.append(len(starts))
            starts.append(place)
        elif letter == "⟧":
            ends[opened.pop()] = place
        else:
            source += letter
    return source, [Extent("m.py", *start, *ends[at]) for at, start in enumerate(starts)]


def patch_of(text: str, *names: tuple[str, ...]) -> Patched | Refused:
    source, extents = marked(text)
    given = names or ((NAMES,),) * len(extents)
    return patched(
        source, "m.py", [Constrained(*each) for each in zip(extents, given, strict=True)]
    )


def new_of(text: str, *names: tuple[str, ...]) -> str:
    result = patch_of(text, *names)
    assert isinstance(result, Patched), result
    return result.new


#: How the constraint of `x` by NAMES is spelt in most examples.
C = 'resolver.constrain(x, "batch _ embed")'


def in_function(body: str) -> str:
    """Return a function with a resolver around some lines."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"def f(resolver, a, b):\n{lines}"


#: A body of a function, and what it is afterwards; None for a refusal.
PLACES = {
    "an assigned value gets a line": ("x = ⟦a @ b⟧", f"x = a @ b\nx = {C}"),
    "with an annotation": ("x: Array = ⟦a @ b⟧", f"x: Array = a @ b\nx = {C}"),
    "with a comment": ("x = ⟦a @ b⟧  # why\ny = 1", f"x = a @ b  # why\nx = {C}\ny = 1"),
    "in parentheses": ("x = (⟦a @  # up\n  b⟧)  # b", f"x = (a @  # up\n  b)  # b\nx = {C}"),
    "continued": ("x = ⟦a @ \\\n    b⟧", f"x = a @ \\\n    b\nx = {C}"),
    "after a continued header": (
        "if a: \\\n  x = ⟦a @ b⟧",
        'if a: \\\n  x = resolver.constrain(a @ b, "batch _ embed")',
    ),
    "before a continued end": (
        "x = ⟦a @ b⟧ \\\n\ny = 1",
        'x = resolver.constrain(a @ b, "batch _ embed") \\\n\ny = 1',
    ),
    "an update": ("x += a\n⟦x += b⟧\nreturn x", f"x += a\nx += b\nx = {C}\nreturn x"),
    "the added value of an update": (
        "x += ⟦g(b)⟧",
        'x += resolver.constrain(g(b), "batch _ embed")',
    ),
    "an update of an element": ("⟦x[0] += b⟧", None),
    "an update in a line of several": ("a = 1; ⟦x += b⟧", None),
    "deeper": ("if a:\n\tx = ⟦-a⟧\nelse:\n\tpass", f"if a:\n\tx = -a\n\tx = {C}\nelse:\n\tpass"),
    "several statements in a line": (
        "y = 1; x = ⟦a @ b⟧",
        'y = 1; x = resolver.constrain(a @ b, "batch _ embed")',
    ),
    "a statement before another": (
        "x = ⟦a @ b⟧; y = 1",
        'x = resolver.constrain(a @ b, "batch _ embed"); y = 1',
    ),
    "behind a colon": (
        "if a: x = ⟦a @ b⟧",
        'if a: x = resolver.constrain(a @ b, "batch _ embed")',
    ),
    "two targets": ("x = y = ⟦a @ b⟧", 'x = y = resolver.constrain(a @ b, "batch _ embed")'),
    "an attribute": ("self.x = ⟦a @ b⟧", 'self.x = resolver.constrain(a @ b, "batch _ embed")'),
    "a part of a value": ("x = ⟦a @ b⟧ + 1", 'x = resolver.constrain(a @ b, "batch _ embed") + 1'),
    "returned": ("return ⟦a @ b⟧", 'return resolver.constrain(a @ b, "batch _ embed")'),
    "returned without a space": ("return⟦-a⟧", 'return resolver.constrain(-a, "batch _ embed")'),
    "brackets become those of the call": (
        "return(⟦a + b⟧)",
        'return resolver.constrain(a + b, "batch _ embed")',
    ),
    "brackets around a factor": (
        "x = (⟦a + b⟧) * (a)",
        'x = resolver.constrain(a + b, "batch _ embed") * (a)',
    ),
    "brackets of an argument": (
        "x = f((⟦a + b⟧), f(a))",
        'x = f(resolver.constrain(a + b, "batch _ embed"), f(a))',
    ),
    "brackets of a call stay": (
        "x = f(⟦a + b⟧)",
        'x = f(resolver.constrain(a + b, "batch _ embed"))',
    ),
    "a line that becomes too long": (
        "x = a + f(⟦a * a * a * a * a * a * a * a * a * a * a * a * a * a * a * b⟧)",
        "x = a + f(resolver.constrain(\n"
        "    a * a * a * a * a * a * a * a * a * a * a * a * a * a * a * b, "
        '"batch _ embed"\n))',
    ),
    "brackets in a line that becomes too long": (
        "x = a + (⟦a * a * a * a * a * a * a * a * a * a * a * a * a * a * a * a * b⟧)",
        "x = a + resolver.constrain(\n"
        "    a * a * a * a * a * a * a * a * a * a * a * a * a * a * a * a * b, "
        '"batch _ embed"\n)',
    ),
    "before a keyword": (
        "return ⟦g(a)⟧if b else⟦-a⟧",
        'return resolver.constrain(g(a), "batch _ embed")if b'
        ' else resolver.constrain(-a, "batch _ embed")',
    ),
    "over several lines": (
        "return ⟦g(\n    a,  # first\n    b,\n)⟧  # end",
        'return resolver.constrain(g(\n    a,  # first\n    b,\n), "batch _ embed")  # end',
    ),
    "a chain": (
        "return ⟦a.sum()⟧.reshape(3)",
        'return resolver.constrain(a.sum(), "batch _ embed").reshape(3)',
    ),
    "a method on its own line": (  # JAX gives the place from its name on
        "x = (a\n  .reshape(3)\n  .⟦sum()⟧)",
        f"x = (a\n  .reshape(3)\n  .sum())\nx = {C}",
    ),
    "a method within a chain of lines": (
        "return (a\n  .⟦reshape(3)⟧\n  .sum())",
        'return (resolver.constrain(a\n  .reshape(3), "batch _ embed")\n  .sum())',
    ),
    "an attribute on its own line": ("x = (a\n  .⟦T⟧)", f"x = (a\n  .T)\nx = {C}"),
    "nested": (
        "return ⟦g(⟦a @ b⟧)⟧",
        'return resolver.constrain(g(resolver.constrain(a @ b, "batch _ embed")), "batch _ embed")',
    ),
    "nested with the same start": (
        "return ⟦⟦a.b⟧ @ b⟧",
        'return resolver.constrain(resolver.constrain(a.b, "batch _ embed") @ b, "batch _ embed")',
    ),
    "nested with the same end": (
        "return ⟦a ** ⟦-b⟧⟧",
        'return resolver.constrain(a ** resolver.constrain(-b, "batch _ embed"), "batch _ embed")',
    ),
    "nested in an assigned value": (
        "x = ⟦g(⟦a @ b⟧)⟧",
        f'x = g(resolver.constrain(a @ b, "batch _ embed"))\nx = {C}',
    ),
    "behind wide letters": (
        'ü = "é#"; x = ⟦a @ b⟧  # ü',
        'ü = "é#"; x = resolver.constrain(a @ b, "batch _ embed")  # ü',
    ),
    "a string with a hash": ('x = ⟦g("#;")⟧', f'x = g("#;")\nx = {C}'),
    "a comprehension": (
        "return [⟦g(c)⟧ for c in a]",
        'return [resolver.constrain(g(c), "batch _ embed") for c in a]',
    ),
    "a lambda": (
        "x = lambda c: ⟦g(c)⟧",
        'x = lambda c: resolver.constrain(g(c), "batch _ embed")',
    ),
    "a function in one line": (
        "def g(c): x = ⟦c @ c⟧; return x",
        'def g(c): x = resolver.constrain(c @ c, "batch _ embed"); return x',
    ),
    "a walrus": (
        "if (x := ⟦g(a)⟧): pass",
        'if (x := resolver.constrain(g(a), "batch _ embed")): pass',
    ),
    "a whole walrus": ("if (⟦x := g(a)⟧): pass", None),
    "one of several values": (
        "x, y = ⟦g(a)⟧, b",
        'x, y = resolver.constrain(g(a), "batch _ embed"), b',
    ),
    "several values": ("x, y = ⟦g(a)⟧", None),
    "several values in a list": ("[x, *y] = ⟦g(a)⟧", None),
    "a target": ("⟦x[0]⟧ = a", None),
    "a deleted name": ("del ⟦a⟧", None),
    "a function that is called": ("return ⟦g(a)⟧(b)", None),
    "a star": ("return g(⟦*a⟧)", None),
    "a keyword argument": (
        "return g(k=⟦a @ b⟧)",
        'return g(k=resolver.constrain(a @ b, "batch _ embed"))',
    ),
    "a generator": ("return g⟦(c for c in a)⟧", None),
    "a constant": ("return ⟦1.0⟧", None),
    "an index": ("return a[⟦b, 1⟧]", None),
    "in an f-string": ('return f"{⟦a + b⟧}"', None),
    "a pattern": ("match a:\n    case ⟦b.c⟧:\n        pass", None),
    "a decorator": ("@⟦g(a)⟧\ndef h(): pass", None),
    "a context manager": ("with ⟦g(a)⟧: pass", None),
    "half an expression": ("return a + ⟦b * a⟧[0]", None),
    "the name of the resolver": (
        "resolver = ⟦g(a)⟧",
        'resolver = resolver.constrain(g(a), "batch _ embed")',
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_places(name: str) -> None:
    body, wanted = PLACES[name]
    result = patch_of(in_function(body))
    if wanted is None:
        assert isinstance(result, Refused)
        assert result.at in marked(in_function(body))[1]
    else:
        assert isinstance(result, Patched), result
        assert result.new == in_function(wanted)
        assert result.old == marked(in_function(body))[0]


def test_async_code() -> None:
    start = "async def f(resolver):\n    "
    assert isinstance(patch_of(f"{start}return await ⟦g()⟧\n"), Refused)
    assert isinstance(patch_of(f"{start}x = ⟦yield 1⟧\n"), Refused)
    new = new_of(f"{start}return ⟦await g()⟧\n")
    assert new == f'{start}return resolver.constrain(await g(), "batch _ embed")\n'


def test_a_move_is_two_constraints() -> None:
    body = in_function("x = ⟦a @ b⟧\nreturn ⟦x @ b⟧")
    move = ("batch _", "_ batch")
    result = patch_of(body, move, move)
    assert isinstance(result, Patched)
    lines = (
        'x = resolver.constrain(x, "batch _")\nx = resolver.constrain(x, "_ batch")',
        'return resolver.constrain(resolver.constrain(x @ b, "batch _"), "_ batch")',
    )
    assert result.lines == lines
    assert result.new == in_function("x = a @ b\n" + "\n".join(lines))


def test_an_expression_given_twice() -> None:
    source, (at,) = marked(in_function("x = ⟦a @ b⟧"))
    twice = patched(source, "m.py", [Constrained(at, ("a b",)), Constrained(at, ("a b",))])
    assert isinstance(twice, Patched)
    assert twice.lines == ('x = resolver.constrain(x, "a b")',) * 2
    assert twice.new.count("constrain") == 1
    other = patched(source, "m.py", [Constrained(at, ("a b",)), Constrained(at, ("b a",))])
    assert isinstance(other, Refused)


def test_lines_are_those_that_were_written() -> None:
    body = "if a:\n    y = ⟦g(\n        a,\n    )⟧ + 1; x = ⟦a @ b⟧"
    result = patch_of(in_function(body))
    assert isinstance(result, Patched)
    assert result.lines == (
        'y = resolver.constrain(g(\n    a,\n), "batch _ embed") + 1;'
        ' x = resolver.constrain(a @ b, "batch _ embed")',
        '), "batch _ embed") + 1; x = resolver.constrain(a @ b, "batch _ embed")',
    )


# how it is spelt

#: A file, and the call that its bracket gets.
SPELLINGS = {
    "a parameter": ("def f(resolver, a):\n    return ⟦-a⟧\n", "resolver.constrain"),
    "a global": ("resolver = load()\ndef f(a):\n    return ⟦-a⟧\n", "resolver.constrain"),
    "an imported one": (
        "from m import resolver\ndef f(a):\n    return ⟦-a⟧\n",
        "resolver.constrain",
    ),
    "a global that is None": (
        "resolver = None\ndef f(a):\n    return ⟦-a⟧\n",
        "shardspec.constrain",
    ),
    "a local that comes later": (
        "def f(a):\n    a = ⟦a[0]⟧.T\n    resolver = g()\n",
        "shardspec.constrain",
    ),
    "a local that came before": (
        "def f(a):\n    resolver = g()\n    return ⟦-a⟧\n",
        "resolver.constrain",
    ),
    "another name, by use": (
        "def f(r, a):\n    a = r.constrain(a, 'x y')\n    return ⟦-a⟧\n",
        "r.constrain",
    ),
    "by use with an activation": (
        "def f(r, a):\n    a = r.constrain(a, activation='x')\n    return ⟦-a⟧\n",
        "r.constrain",
    ),
    "a use that takes no names": (
        "def f(r, a):\n    a = r.constrain(a, P('x'))\n    return ⟦-a⟧\n",
        "shardspec.constrain",
    ),
    "a closure": (
        "def f(r):\n    def g(a):\n        return r.constrain(⟦-a⟧, 'x')\n    return g\n",
        "r.constrain",
    ),
    "shadowed by a local": (
        "def f(r):\n    def g(a):\n        r = 1\n        return ⟦-a⟧\n"
        "    return r.constrain(g(2), 'x')\n",
        "shardspec.constrain",
    ),
    "shadowed by a loop": (
        "def f(resolver, b):\n    b = resolver.constrain(b, 'x')\n"
        "    return [⟦-resolver⟧ for resolver in b]\n",
        "shardspec.constrain",
    ),
    "shadowed by a parameter with the same role": (
        "def f(r, a):\n    return r.constrain(a, 'x')\ndef g(r, a):\n    return ⟦-a⟧\n",
        "r.constrain",
    ),
    "in a default": (
        "def f(r, a):\n    def g(r, b=⟦-a⟧): pass\n    return r.constrain(a, 'x')\n",
        "r.constrain",
    ),
    "a parameter does not reach its defaults": (
        "def f(a):\n    def g(resolver, b=⟦-a⟧): pass\n",
        "shardspec.constrain",
    ),
    "a lambda's parameter": ("f = lambda resolver, a: ⟦a[0]⟧.T\n", "resolver.constrain"),
    "in another function": (
        "def f(r, a):\n    return r.constrain(a, 'x')\ndef g(a):\n    return ⟦-a⟧\n",
        "shardspec.constrain",
    ),
    "deleted by global": (
        "def f(a):\n    global resolver\n    resolver = 1\n    return ⟦-a⟧\nresolver = load()\n",
        "resolver.constrain",
    ),
    "a field of a context": (
        "def f(c, a):\n    return c.resolver.constrain(a, 'x')\n"
        "def g(c, a):\n    return ⟦-a⟧ * c.size\n",
        "c.resolver.constrain",
    ),
    "a parameter that is no context": (
        "def f(c, a):\n    return c.resolver.constrain(a, 'x')\n"
        "def g(c, a):\n    return ⟦-a⟧ * c\n",
        "shardspec.constrain",
    ),
    "self, in another method": (
        "class A:\n    def f(self, a):\n        return self.r.constrain(a, 'x')\n"
        "    def g(self, a):\n        return ⟦-a⟧\n",
        "self.r.constrain",
    ),
    "self, in a class that has the field": (
        "class A:\n    r: Any\n    def f(self, a):\n        return self.r.constrain(a, 'x')\n"
        "class B:\n    r: Any\n    def g(self, a):\n        return ⟦-a⟧\n",
        "self.r.constrain",
    ),
    "self, in a class that sets it": (
        "class A:\n    def f(self, a):\n        return self.constrain(a, activation='x')\n"
        "class B:\n    def __init__(self, r):\n        self.constrain = r.constrain\n"
        "    def g(self, a):\n        return ⟦-a⟧\n",
        "self.constrain",
    ),
    "self, in a class that knows none": (
        "class A:\n    def f(self, a):\n        return self.r.constrain(a, 'x')\n"
        "class B:\n    def g(self, a):\n        return ⟦-a⟧\n",
        "shardspec.constrain",
    ),
    "self, in a static method": (
        "class A:\n    def f(self, a):\n        return self.r.constrain(a, 'x')\n"
        "    @staticmethod\n    def g(self):\n        return ⟦-self⟧\n",
        "shardspec.constrain",
    ),
    "self, in a function of a method": (
        "class A:\n    def f(self, a):\n        def g(b):\n            return ⟦-b⟧\n"
        "        return self.r.constrain(g(a), 'x')\n",
        "self.r.constrain",
    ),
    "a class does not bind names of its methods": (
        "class A:\n    resolver = load()\n    def f(self, a):\n        return ⟦-a⟧\n",
        "shardspec.constrain",
    ),
    "flax": (
        "from flax import linen as nn\ndef f(a):\n"
        "    a = nn.with_logical_constraint(a, ('x',))\n    return ⟦-a⟧\n",
        "nn.with_logical_constraint",
    ),
    "flax in full": (
        "import flax.linen\ndef f(a):\n"
        "    a = flax.linen.spmd.with_logical_constraint(a, ('x',))\n    return ⟦-a⟧\n",
        "flax.linen.spmd.with_logical_constraint",
    ),
    "flax, renamed": (
        "from flax.linen import with_logical_constraint as wlc\ndef f(a):\n"
        "    a = wlc(a, ('x',))\n    return ⟦-a⟧\n",
        "wlc",
    ),
    "flax, shadowed": (
        "from flax import linen as nn\ndef f(a):\n"
        "    a = nn.with_logical_constraint(a, ('x',))\ndef g(nn):\n    return ⟦-nn⟧\n",
        "shardspec.constrain",
    ),
    "flax, imported alone": (
        "from flax import linen as nn\ndef f(a):\n    return ⟦-a⟧\n",
        "shardspec.constrain",
    ),
    "a resolver before flax": (
        "from flax import linen as nn\ndef f(resolver, a):\n"
        "    a = nn.with_logical_constraint(a, ('x',))\n    return ⟦-a⟧\n",
        "resolver.constrain",
    ),
    "raw constraints": (
        "import jax\ndef f(a):\n    a = jax.lax.with_sharding_constraint(a, P('x'))\n"
        "    return ⟦-a⟧\n",
        "shardspec.constrain",
    ),
    "shardspec is there": ("import shardspec\ndef f(a):\n    return ⟦-a⟧\n", "shardspec.constrain"),
    "shardspec renamed": ("import shardspec as s\ndef f(a):\n    return ⟦-a⟧\n", "s.constrain"),
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name: str) -> None:
    text, callee = SPELLINGS[name]
    result = patch_of(text)
    assert isinstance(result, Patched), result
    axes = '("batch", None, "embed")' if callee.endswith(("logical_constraint", "wlc")) else None
    inner = text[text.index("⟦") + 1 : text.index("⟧")]
    assert f"{callee}({inner}, {axes or repr(NAMES)})".replace("'", '"') in result.new
    needs_import = callee == "shardspec.constrain"
    assert result.new.count("import shardspec\n") == needs_import


def test_shardspec_is_something_else() -> None:
    assert isinstance(patch_of("def f(shardspec):\n    return ⟦-shardspec⟧\n"), Refused)
    assert isinstance(patch_of("shardspec = 1\ndef f(a):\n    return ⟦-a⟧\n"), Refused)
    inside = "def f(a):\n    import shardspec\n    return ⟦-a⟧\n"
    assert new_of(inside).count("import shardspec") == 1


def test_tuples_of_flax() -> None:
    start = "from flax.linen import with_logical_constraint\nwith_logical_constraint(a, b)\n"
    names = ("batch",), ("",), ("_ x",)
    new = new_of(f"{start}⟦f(a)⟧\n⟦f(b)⟧\n⟦f(c)⟧\n", *names)
    assert [line[30:] for line in new.splitlines()[2:]] == ['("batch",))', "())", '(None, "x"))']


#: The head of a file without and with the import.
IMPORTS = {
    "behind the other packages": (
        "import os\n\nimport jax  # a\nimport numpy\nfrom flax import nnx\n\nfrom . import m\n",
        "import os\n\nimport jax  # a\nimport numpy\nimport shardspec\nfrom flax import nnx\n"
        "\nfrom . import m\n",
    ),
    "the block with jax": (
        "import absl\n\nimport jax\n\nimport mine\n",
        "import absl\n\nimport jax\nimport shardspec\n\nimport mine\n",
    ),
    "no plain import": (
        "from __future__ import annotations\nfrom jax import (\n    numpy,\n)\n",
        "from __future__ import annotations\nimport shardspec\nfrom jax import (\n    numpy,\n)\n",
    ),
    "standard packages alone": (
        "import os\nimport re\n",
        "import os\nimport re\n\nimport shardspec\n",
    ),
    "a docstring": ('"""Doc.\n\nMore."""\n', '"""Doc.\n\nMore."""\n\nimport shardspec\n'),
    "a docstring and the future": (
        '"""Doc."""\nfrom __future__ import annotations\n',
        '"""Doc."""\nfrom __future__ import annotations\n\nimport shardspec\n',
    ),
    "several in a line": ("import jax; import os\n", "import jax; import os\nimport shardspec\n"),
    "a comment": ("# licence\n", "# licence\nimport shardspec\n\n"),
    "for type checkers alone": (
        "import jax\nif TYPE_CHECKING:\n    import shardspec\n",
        "import jax\nimport shardspec\nif TYPE_CHECKING:\n    import shardspec\n",
    ),
    "of one name": (
        "import jax\nfrom shardspec import load\n",
        "import jax\nimport shardspec\nfrom shardspec import load\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IMPORTS)
def test_imports(name: str) -> None:
    old, new = IMPORTS[name]
    code = "@jit\ndef f(a):\n    return {}\n"
    wrapped = code.format('shardspec.constrain(-a, "batch _ embed")')
    assert new_of(old + code.format("⟦-a⟧")) == new + wrapped


def test_an_import_before_code_on_the_first_line() -> None:
    assert new_of("⟦f(a)⟧") == 'import shardspec\n\nshardspec.constrain(f(a), "batch _ embed")'


# the text


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", [True, False])
def test_line_ends_are_kept(end: str, last: bool) -> None:
    text = "\ufeffimport jax\ndef f(a):\n\tx = ⟦-a⟧ # ü"
    wanted = "\ufeffimport jax\nimport shardspec\ndef f(a):\n\tx = -a # ü\n\t"
    wanted += 'x = shardspec.constrain(x, "batch _ embed")'
    tail = "\n" * last
    assert new_of((text + tail).replace("\n", end)) == (wanted + tail).replace("\n", end)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = (", "cannot be parsed"),
        ("x = '\udc80'", "UTF-8"),
        ("x = '\0'", "cannot be parsed"),
        ("-" * 100_000 + "1", "cannot be parsed"),
        ("#" * 2_000_001, "2 MB"),
    ],
    ids=["syntax", "surrogate", "zero", "deep", "large"],
)
def test_files_that_are_refused(text: str, reason: str) -> None:
    at = Extent("m.py", 1, 0, 1, 1)
    result = patched(text, "m.py", [Constrained(at, ("a",))])
    assert isinstance(result, Refused)
    assert reason in result.reason
    assert result.at is None


@pytest.mark.parametrize("place", [(0, 0, 0, 0), (9, 0, 9, 3), (1, -1, 1, 3), (1, 0, 1, 10**9)])
def test_places_that_are_none(place: tuple[int, int, int, int]) -> None:
    at = Extent("m.py", *place)
    assert patched("abc\n", "m.py", [Constrained(at, ("a",))]) == Refused(
        "no expression has exactly this place", at
    )


def test_names_are_quoted() -> None:
    new = new_of("def f(resolver, a):\n    return ⟦-a⟧\n", ('a" + b\\\n',))
    call = ast.parse(new).body[0].body[0].value
    assert [each.value for each in call.args[1:]] == ['a" + b\\\n']


def test_nothing_is_run(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    assert new_of(f"open({str(trap)!r}, 'w')\ny = ⟦f(1)⟧\n")
    assert not trap.exists()


def test_large_files_take_seconds(tmp_path: Path) -> None:
    body = "def f(resolver, a):\n    x = a @ a\n    return x\n\n" * 5_000
    lines = [2 + 4 * each for each in range(0, 5_000, 50)]
    asked = [Constrained(Extent("m.py", line, 8, line, 13), (NAMES,)) for line in lines]
    start = time.process_time()
    result = patched(body, str(tmp_path / "m.py"), asked)
    assert isinstance(result, Patched)
    diff = diff_of([result], str(tmp_path))
    assert time.process_time() - start < 15
    assert len(re.findall(r"^\+    x = resolver", diff, re.MULTILINE)) == 100
    assert not re.findall(r"^-[^-]", diff, re.MULTILINE)


# laws

EXPRESSIONS = st.recursive(
    st.sampled_from(["a", "b.T", "a[0]", "g(a, 'é#')", "(a + b)", "a.sum()", "m.dot(a,\n  b)"]),
    lambda inner: st.one_of(
        st.builds("{} @ {}".format, inner, inner),
        st.builds("({})\\\n  .reshape(2)".format, inner),
        st.builds("-{}".format, inner),
        st.builds("g({}, # why\n k={})".format, inner, inner),
        st.builds("[{} for c in {}]".format, inner, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("(lambda a: {})({})".format, inner, inner),
        st.builds("(w := {})".format, inner),
        st.builds("f'{{{}}}'".format, st.sampled_from(["a", "b + a"])),
    ),
    max_leaves=6,
)
STATEMENTS = st.builds(
    str.format,
    st.sampled_from(
        [
            *("x = {0}", "x: T = {0} # é", "x += {0}", "x, y = {0}, {1}", "x, y = {0}"),
            *("return {0}", "é = '#;'; x = {0}; y = {1}", "x = ({0}\n)", "x = y = {0}"),
            *("self.x = {0}", "if {0}: x = {1}", "for c in {0}: x += {1}", "assert {0} # c"),
            *("def h(resolver, c={0}): x = {1}", "with g({0}) as resolver:\n\tx = {1}"),
            *("class K:\n  x = {0}", "@g({0})\ndef k(): pass", "resolver = {0}", "del x[{0}]"),
            *("x = r.constrain({0}, 'x')", "x = nn.with_logical_constraint({0}, ('x',))"),
            *("import shardspec", "x = self.r.constrain({0}, activation='x')"),
        ]
    ),
    EXPRESSIONS,
    EXPRESSIONS,
)
HEADS = [
    *(
        "",
        "import jax\n",
        '"""Doc."""\n',
        "import os\nfrom jax import numpy\n",
        "# coding: utf-8\n",
    ),
    *("from flax import linen as nn\n", "resolver = None\n", "'''a\n'''; import os, jax # b\n"),
]


@st.composite
def programs(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(HEADS))
    for name in "fg"[: draw(st.integers(1, 2))]:
        parameters = draw(st.sampled_from(["a, b", "resolver, a, b", "r, a, b", "self, r"]))
        text += f"def {name}({parameters}):\n"
        for body in draw(st.lists(STATEMENTS, min_size=1, max_size=4)):
            text += "".join(f"  {line}\n" for line in body.splitlines())
    text = text.removesuffix("\n") if draw(st.booleans()) else text
    return text.replace("\n", draw(st.sampled_from(["\n", "\r\n", "\r"])))


class Stripped(ast.NodeTransformer):
    """Takes out all that has names like `added0`, and the imports of shardspec."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return node.args[0] if is_added(node) else node

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        return None if is_added_line(node) else self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> ast.AST | None:
        return None if ast.unparse(node) == "import shardspec" else node


def is_added(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and len(node.args) == 2
        and re.fullmatch(r"'added\d+'|\('added\d+',\)", ast.unparse(node.args[1])) is not None
    )


def is_added_line(node: ast.AST) -> bool:
    if not isinstance(node, ast.Assign) or not is_added(node.value):
        return False
    return ast.unparse(node.value.args[0]) == ast.unparse(node.targets[0])


def stripped(source: str) -> str:
    return ast.dump(Stripped().visit(ast.parse(source)))


def without_edits(new: str) -> set[str]:
    """Return what a text may have been: an import may have come with one line end or two."""
    raw = new.encode()
    starts = [0, *(found.end() for found in re.finditer(rb"\r\n?|\n", raw))]
    cuts: list[tuple[int, int]] = []
    tree = ast.parse(new)
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt | ast.Call):
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
        if is_added_line(node):
            whole = raw[:start].rstrip(b" \t")
            cuts.append((len(re.sub(rb"(\r\n|\r|\n)\Z", b"", whole)), end))
            node.value.args.pop()  # it is no call to unwrap
        elif is_added(node):
            inner = node.args[0]
            cuts.append((start, starts[inner.lineno - 1] + inner.col_offset))
            cuts.append((starts[inner.end_lineno - 1] + inner.end_col_offset, end))
    for start, end in sorted(cuts, reverse=True):
        raw = raw[:start] + raw[end:]
    text = raw.decode()
    line = r"(?:\r\n|\r|\n)"
    patterns = (
        rf"(?:\A|(?<=[\r\n]))import shardspec{line}{{1,2}}",
        rf"{line}{{1,2}}import shardspec(?![^\r\n])",
    )
    imports = [re.sub(each.replace("1,2", n), "", text, count=1) for each in patterns for n in "12"]
    return {text, *imports}


def places_in(source: str) -> list[Extent]:
    nodes = (
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.expr | ast.AugAssign)
    )
    places = (
        (each.lineno, each.col_offset, each.end_lineno, each.end_col_offset) for each in nodes
    )
    return [Extent("m.py", *place) for place in dict.fromkeys(places)]


@given(programs(), st.data())
def test_without_the_added_calls_a_file_is_as_before(source: str, data: st.DataObject) -> None:
    places = [*places_in(source), Extent("m.py", 0, 0, 0, 0)]
    chosen = data.draw(st.lists(st.sampled_from(places), unique=True, max_size=4))
    asked = [Constrained(at, (f"added{number}",)) for number, at in enumerate(chosen)]
    taken = [each for each in asked if isinstance(patched(source, "m.py", [each]), Patched)]
    result = patched(source, "m.py", taken)
    assert isinstance(result, Patched), result
    assert stripped(result.new) == stripped(source)
    assert len(result.lines) == len(taken)
    for each, line in zip(taken, result.lines, strict=True):
        assert each.names[0] in line
        assert result.new.count(each.names[0]) == 1
    ungrouped = {re.sub(r"[()\s]", "", text) for text in (source, *without_edits(result.new))}
    assert len(ungrouped) < 1 + len(without_edits(result.new))


@given(programs())
def test_what_no_one_asked_for_is_not_changed(source: str) -> None:
    assert patched(source, "m.py", []) == Patched("m.py", source, source, ())


# diffs

TOOLS = {"git": ["git", "apply"], "patch": ["patch", "-p1", "-s"]}


def apply_with(tool: str, diff: str, folder: Path) -> None:
    if not shutil.which(tool):
        pytest.skip(f"{tool} is not installed")
    subprocess.run(TOOLS[tool], input=diff.encode(), cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("path", ["m.py", "a b/é m.py", 'q"\\x.py'])
@pytest.mark.parametrize("last", [True, False])
def test_tools_take_the_diff(tool: str, end: str, path: str, last: bool, tmp_path: Path) -> None:
    lines = "".join(f"    y = a # {each}\f\n" for each in range(20))
    text = f"import jax\ndef f(a):\n    x = ⟦-a⟧\n{lines}    x = ⟦a @ a⟧\n{lines}    x = ⟦-x⟧"
    text = (text + "\n" * last).replace("\n", end)
    file = tmp_path / path
    source, extents = marked(text)
    result = patched(source, str(file), [Constrained(at, (NAMES,)) for at in extents])
    assert isinstance(result, Patched)
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(result.old.encode())
    other = Patched(str(tmp_path / "n.py"), "a\n", "a\nb\n", ())
    (tmp_path / "n.py").write_text("a\n", "utf-8")
    diff = diff_of([result, other], str(tmp_path))
    assert ("\\ No newline at end of file\n" in diff) is not last
    apply_with(tool, diff, tmp_path)
    assert file.read_bytes() == result.new.encode()
    assert (tmp_path / "n.py").read_text("utf-8") == "a\nb\n"


LINES = st.lists(st.sampled_from(["a\n", "b\n", "\n", "c\r\n", "d\re\n"]), max_size=12)


@given(LINES, LINES, st.sampled_from(["", "end"]), st.sampled_from(["", "end", "other"]))
def test_any_two_texts_have_a_diff(
    one: list[str], other: list[str], old_end: str, new_end: str
) -> None:
    """The diff is played back by hand; `git apply` is slow for many examples."""
    old, new = "".join(one) + old_end, "".join(other) + new_end
    lines = re.findall(r"[^\n]*\n", diff_of([Patched("m.py", old, new, ())], "."))
    read, wrote = [], []
    at = 0
    source = re.findall(r"[^\n]*\n|[^\n]+", old)
    for here, line in enumerate(lines[2:], 2):
        ends = here + 1 < len(lines) and lines[here + 1].startswith("\\")
        body = line[1:-1] if ends else line[1:]
        if line.startswith("@@"):
            start, count = map(int, re.findall(r"-(\d+),(\d+)", line)[0])
            first = start - (count > 0)
            wrote += source[at:first]
            at = first
        if line[0] in " -":
            assert source[at] == body
            read.append(body)
            at += 1
        if line[0] in " +":
            wrote.append(body)
    assert "".join([*wrote, *source[at:]]) == new
    assert bool(lines) == (old != new)


def test_a_diff_shows_few_lines() -> None:
    result = patch_of(in_function("x = ⟦a @ b⟧\nx = ⟦x @ b⟧\nx = ⟦x + 1⟧"))
    assert isinstance(result, Patched)
    diff = diff_of([result], ".")
    assert diff.startswith("--- a/m.py\n+++ b/m.py\n@@ -1,4 +1,7 @@\n")
    assert diff.count("\n+ ") == 3
    assert diff.count("\n-") == 0


def test_a_file_outside_of_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="outside"):
        diff_of([Patched(str(tmp_path / "m.py"), "", "a", ())], str(tmp_path / "inner"))
