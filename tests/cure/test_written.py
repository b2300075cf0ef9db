"""Lines as changes of files: which values can be written, how much that is, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shardspec import pipeline
from shardspec.cure.lines import Layout, Line, Site
from shardspec.cure.patching import Extent, Refused
from shardspec.cure.written import source_of, writable, written
from shardspec.diagnostics import SourceFile
from tests.cure.worlds import EXPERTS, ROWS

OWN = """\
def layer(resolver, a, b):
    x = a @ b
    return x + a
"""
BARE = """\
def layer(a, b):
    x = a @ b
    return x + a
"""


@pytest.fixture(autouse=True)
def forget() -> None:
    source_of.cache_clear()


def at(path: Path, line: int, text: str) -> Site:
    """Return the value of an expression, by its text in a line."""
    start = path.read_text().splitlines()[line - 1].index(text)
    extent = Extent(str(path), line, start, line, start + len(text))
    return Site((64, 128, 512), "f32", extent, layouts=(ROWS, EXPERTS))


def file(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def test_what_a_line_takes_to_write(tmp_path: Path) -> None:
    own, bare = file(tmp_path, "own.py", OWN), file(tmp_path, "bare.py", BARE)
    sites = [at(own, 2, "a @ b"), at(own, 3, "x + a"), at(bare, 2, "a @ b"), at(bare, 3, "x + a")]
    found = writable(sites, str(tmp_path))
    assert [each.effort for each in found] == [0, 1, 2, 3]
    assert [each.at for each in found] == [each.at for each in sites]
    assert found[0].layouts == (ROWS, EXPERTS)


def test_files_outside_of_the_folder_are_left_out(tmp_path: Path) -> None:
    inside = file(tmp_path / "here", "m.py", OWN)
    beside = file(tmp_path / "here2", "m.py", OWN)
    above = file(tmp_path, "m.py", OWN)
    link = tmp_path / "here" / "link.py"
    link.symlink_to(above)
    sites = [at(each, 2, "a @ b") for each in (inside, beside, above, link)]
    assert [each.at for each in writable(sites, str(tmp_path / "here"))] == [sites[0].at]


def test_the_folder_may_be_a_link(tmp_path: Path) -> None:
    inside = file(tmp_path / "real", "m.py", OWN)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert len(writable([at(inside, 2, "a @ b")], str(tmp_path / "link"))) == 1


def test_what_cannot_be_constrained_is_left_out(tmp_path: Path) -> None:
    own = file(tmp_path, "m.py", OWN)
    gone = Site((64, 128), "f32", Extent(str(tmp_path / "gone.py"), 1, 0, 1, 5))
    nowhere = Site((64, 128), "f32", Extent(str(own), 2, 0, 2, 2))
    argument = Site((64, 128), "f32", path="batch")
    assert writable([gone, nowhere, argument], str(tmp_path)) == [argument]


def test_a_file_gets_all_of_its_lines_and_files_are_in_order(tmp_path: Path) -> None:
    second, first = file(tmp_path, "z.py", OWN), file(tmp_path, "a.py", OWN)
    lines = [
        Line(at(second, 3, "x + a"), (ROWS,)),
        Line(at(first, 2, "a @ b"), (EXPERTS,)),
        Line(at(second, 2, "a @ b"), (ROWS, EXPERTS)),
    ]
    found = written(lines)
    assert not isinstance(found, Refused)
    assert [each.file for each in found] == [str(first), str(second)]
    assert found[0].lines == ('x = resolver.constrain(x, "_ expert _")',)
    assert found[1].new == (
        "def layer(resolver, a, b):\n    x = a @ b\n"
        '    x = resolver.constrain(x, "batch _ embed")\n'
        '    x = resolver.constrain(x, "_ expert _")\n'
        '    return resolver.constrain(x + a, "batch _ embed")\n'
    )
    assert second.read_text() == OWN, "files on disk stay as they are"


ENTRY = Line(Site((64, 128), "", path="cache/*/k"), (ROWS,))
YAML = "shardspec: 1\nparams:  # of the model\n  wi: embed mlp\n"
DSL = "shardspec 1\nparams {\n  wi : embed mlp\n}\n"


def test_an_argument_is_an_entry_of_params() -> None:
    found = written([ENTRY], SourceFile("spec.yaml", YAML))
    assert not isinstance(found, Refused)
    line = '"optional:cache/*/k": batch _ embed'
    assert found[0].new == YAML.replace("  wi", f"  {line}\n  wi")
    assert (found[0].file, found[0].lines) == ("spec.yaml", (line,))
    made = written([ENTRY], SourceFile("spec.shard", DSL))
    assert not isinstance(made, Refused)
    assert made[0].new == DSL.replace("  wi", "  optional cache/*/k : batch _ embed\n  wi")


@pytest.mark.parametrize(("name", "text"), [("spec.yaml", YAML), ("spec.shard", DSL)])
def test_an_entry_for_an_argument_is_no_fault_of_a_spec_that_lists_arrays(
    name: str, text: str
) -> None:
    arrays = (
        "arrays {\n  wi : f32[8, 8]\n}\n" if name.endswith("shard") else "arrays: {wi: f32[8, 8]}\n"
    )
    found = written([ENTRY], SourceFile(name, text + arrays))
    assert not isinstance(found, Refused)
    spec, faults = pipeline.load_text(found[0].new, name)
    assert spec is not None, faults
    assert "SHD204" not in {
        each.code.id for each in pipeline.check(spec, faults, spec.params).shown
    }


@pytest.mark.parametrize(
    ("name", "text", "entry"),
    [
        ("spec.yaml", "shardspec: 1\n", "\nparams:\n  {}\n"),
        ("spec.yaml", "shardspec: 1\nparams: {wi: embed mlp}\n", "params: {{{}, wi: embed mlp}}"),
        ("spec.yaml", "shardspec: 1\nparams: {}\n", "params: {{{}}}\n"),
        ("spec.shard", "shardspec 1\n", "\nparams {{\n  {}\n}}\n"),
    ],
)
def test_a_spec_gets_params_where_it_has_none(name: str, text: str, entry: str) -> None:
    other = replace(ENTRY, site=replace(ENTRY.site, path="cache/*/v"))
    both = [written([ENTRY, other][:count], SourceFile(name, text)) for count in (1, 2)]
    for count, found in enumerate(both, 1):
        assert not isinstance(found, Refused)
        assert found[0].new.count("batch _ embed") == count
        loaded, faults = pipeline.load_text(found[0].new, name)
        assert loaded is not None, faults
        assert len(loaded.path_rules) == count + ("wi" in text)
        if count == 1:
            assert entry.format(found[0].lines[0]) in found[0].new


@pytest.mark.parametrize(
    "spec",
    [
        None,
        SourceFile("-", YAML),
        SourceFile("spec.yaml", "shardspec: 1\nparams: &all {wi: embed mlp}\n"),
        SourceFile("spec.shard", "shardspec 1\nparams { wi : embed mlp }\n"),
    ],
)
def test_an_argument_whose_entry_has_no_place_is_refused(spec: SourceFile | None) -> None:
    assert isinstance(written([ENTRY], spec), Refused)


NESTED = """\
class Mlp:
    def __call__(self, x, w):
        def inner(y):
            return y @ w
        return inner(x)


def free(x, w):
    a, b = x @ w, w @ x
    return a
"""


def test_an_entry_of_a_value_inside_of_vmap_names_all_of_its_dimensions(tmp_path: Path) -> None:
    """`resolver.constrained` sees the value with what `vmap` maps, where that put it."""
    theirs = file(tmp_path / "their", "m.py", NESTED)
    site = replace(at(theirs, 4, "y @ w"), shape=(64, 32, 512), vmaps=1)
    (found,) = writable([site], str(tmp_path / "mine"), has_places=True)
    line = Line(replace(found, mapped=(1,)), (Layout("batch length embed", ((),) * 3),))
    spec = SourceFile("spec.yaml", "shardspec: 1\nactivations:\n  h: _ embed\n")
    (made,) = written([line], spec) or ()
    assert made.lines == (
        'inner_4: {axes: length batch embed, at: "their/m.py:Mlp.__call__.<locals>.inner line 4"}',
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "spec.yaml",
            "shardspec: 1\naxes: {embed: 512}\nmesh: {fsdp: 1}\nrules: [embed -> fsdp]\n",
        ),
        (
            "spec.yaml",
            "shardspec: 1\nactivations: {inner_4: {axes: _ embed}}\nparams: {w: _ embed}\n",
        ),
        ("spec.yaml", "shardspec: 1\nactivations:\n  h: _ embed\nparams:\n  w: _ embed\n"),
        ("spec.shard", "shardspec 1\nmesh (fsdp=1)\nactivation h : _ embed\n"),
    ],
)
def test_a_value_of_code_that_is_not_changed_is_an_entry_of_activations(
    tmp_path: Path, name: str, text: str
) -> None:
    theirs = file(tmp_path / "their", "m.py", NESTED)
    sites = [at(theirs, 4, "y @ w"), at(theirs, 5, "inner(x)"), at(theirs, 9, "x @ w")]
    both = [*sites, at(theirs, 9, "w @ x"), replace(ENTRY.site)]
    found = writable(both, str(tmp_path / "mine"), has_places=True)
    places = [each.place for each in found]
    assert places == [
        "their/m.py:Mlp.__call__.<locals>.inner line 4",
        "their/m.py:Mlp.__call__ line 5",
        "",
    ], "two values of one line have no place of their own"
    assert writable(both, str(tmp_path / "mine")) == [ENTRY.site]
    lines = [Line(each, (ROWS,)) for each in found]
    made = written(lines, SourceFile(name, text))
    assert not isinstance(made, Refused)
    (spec,) = made
    assert all(each in spec.new for each in spec.lines)
    loaded, faults = pipeline.load_text(spec.new, name)
    assert loaded is not None, (faults, spec.new)
    given = {str(each.at.function): each for each in loaded.activations if each.at is not None}
    assert sorted(given) == ["Mlp.__call__", "Mlp.__call__.<locals>.inner"]
    assert [line.site.path for line in lines if line.site.path] == [
        str(rule.pattern) for rule in loaded.path_rules if "cache" in str(rule.pattern)
    ]
    before, _ = pipeline.load_text(text, name)
    assert before is not None
    assert len(loaded.activations) == len(before.activations) + 2, "names are new"
    move = Line(found[0], (ROWS, EXPERTS))
    assert isinstance(written([move], SourceFile(name, text)), Refused)


def test_why_lines_are_refused(tmp_path: Path) -> None:
    broken = file(tmp_path, "broken.py", "x = (\n")
    site = Site((64, 128), "f32", Extent(str(broken), 1, 4, 1, 5))
    found = written([Line(site, (ROWS,))])
    assert isinstance(found, Refused)
    gone = Site((64, 128), "f32", Extent(str(tmp_path / "gone.py"), 1, 0, 1, 5))
    missing = written([Line(gone, (ROWS,))])
    assert missing == Refused(f"{tmp_path / 'gone.py'} cannot be read: No such file or directory")
    own = at(file(tmp_path, "own.py", OWN), 2, "a @ b")
    twice = written([Line(own, (ROWS,)), Line(own, (EXPERTS,))])
    assert isinstance(twice, Refused)
    assert twice.at == own.at


def test_nothing_is_written_of_no_lines() -> None:
    assert written([]) == ()


def test_line_ends_stay(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_bytes(OWN.replace("\n", "\r\n").encode())
    found = written([Line(at(tmp_path / "m.py", 2, "a @ b"), (ROWS,))])
    assert not isinstance(found, Refused)
    assert "\r\n" in found[0].old
    assert found[0].new.count("\n") == found[0].new.count("\r\n") == 4


def test_what_is_looked_up_by_gets_its_own_line(tmp_path: Path) -> None:
    text = (
        "def f(resolver, t, ids, tree):\n    x = t[ids].sum(1)\n"
        "    y = jnp.take(t, tree['ids'], axis=0)\n"
        "    return embed(tree.ids) + t[ids + 1] + embed(t, ids) + x + y\n"
    )
    own, other = file(tmp_path / "a", "m.py", text), file(tmp_path / "b", "m.py", text)
    places = [(2, "t[ids]"), (3, "jnp.take(t, tree['ids'], axis=0)"), (4, "embed(tree.ids)")]
    unclear = [(4, "t[ids + 1]"), (4, "embed(t, ids)")]
    asked = [replace(at(own, *each), is_index=True) for each in (*places, *unclear)]
    asked += [replace(at(other, *each), is_index=True) for each in places]
    found = writable(asked, str(tmp_path / "a"), has_places=True)
    (patch,) = written([Line(replace(site, shape=(64, 4)), (ROWS,)) for site in found]) or ()
    names = f'"{ROWS.names}"'
    assert patch.lines == (
        f"x = t[resolver.constrain(ids, {names})].sum(1)",
        f"y = jnp.take(t, resolver.constrain(tree['ids'], {names}), axis=0)",
        f"return embed(resolver.constrain(tree.ids, {names})) + t[ids + 1] + embed(t, ids) + x + y",
    )


def test_an_index_on_a_line_takes_no_place_from_a_value(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    other = file(tmp_path / "b", "m.py", OWN)
    index = replace(at(other, 2, "a @ b"), is_index=True)
    sites = [at(other, 2, "a @ b"), index]
    assert len(writable(sites, str(tmp_path / "mine"), has_places=True)) == 1


def test_what_vmap_maps_is_named_apart(tmp_path: Path) -> None:
    own = file(tmp_path, "m.py", OWN)
    twice = replace(at(own, 3, "x + a"), vmaps=2, mapped=(0, 1))
    found = written([Line(replace(at(own, 2, "a @ b"), vmaps=1), (ROWS,)), Line(twice, (ROWS,))])
    assert not isinstance(found, Refused)
    assert found[0].lines == (
        'x = resolver.constrain(x, "_ embed", mapped="batch")',
        'return resolver.constrain(x + a, "embed", mapped="batch _")',
    )


def test_only_our_own_constraints_name_what_vmap_maps(tmp_path: Path) -> None:
    flax = "from flax.linen import with_logical_constraint\n" + BARE.replace(
        "a @ b", 'with_logical_constraint(a @ b, ("batch", None, "embed"))'
    )
    site = at(file(tmp_path, "m.py", flax), 4, "x + a")
    (seen,), (mapped,) = (
        written([Line(site, (ROWS,))]),
        written([Line(replace(site, vmaps=1), (ROWS,))]),
    )
    assert "return with_logical_constraint(x + a" in seen.new
    assert 'return shardspec.constrain(x + a, "_ embed", mapped="batch")' in mapped.new


def test_a_long_chain_of_calls_is_read(tmp_path: Path) -> None:
    lambdas = "def f(xs, w):\n    return jax.vmap(lambda x: jax.vmap(lambda y: y @ w)(x) * 2)(xs)\n"
    own = file(tmp_path, "lambdas.py", lambdas)
    inner = replace(at(own, 2, "y @ w"), vmaps=2)
    outer = replace(at(own, 2, "jax.vmap(lambda y: y @ w)(x) * 2"), vmaps=1)
    assert [each.vmaps for each in writable([inner, outer], str(tmp_path))] == [2, 1]
    deep = file(tmp_path, "m.py", BARE.replace("x + a", f"x + f{'(0)' * 900}"))
    mapped = replace(at(deep, 2, "a @ b"), vmaps=1)
    assert [each.vmaps for each in writable([mapped], str(tmp_path))] == [1]
