"""SHD205 and SHD206 say the line that names an array, and following it resolves the finding."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import yaml
from hypothesis import given, settings

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic
from shardspec.ir.spec import Param, Params
from shardspec.naming.guessing import guess
from tests.naming.odd_arrays import arrays

HEAD = """\
mesh: {fsdp: 4, tensor: 4}
axes: {embed: 4096, mlp: 16384, joined_kv: 4096, norm: 4096, kv_heads: 8, kv: 128, layers: 4}
rules: [mlp -> tensor, embed -> fsdp, joined_kv -> tensor, "norm, kv_heads, kv, layers -> none"]
lints: {unnamed-small: warn}
"""
_ENTRY = re.compile(r'`("(?:[^"\\]|\\.)*": [^`]*)`')


def found(text: str) -> list[Diagnostic]:
    spec, faults = pipeline.load_text(text, "spec.yaml")
    assert spec is not None, faults
    return [
        each
        for each in pipeline.check(spec, faults, spec.params).shown
        if each.code.id in ("SHD205", "SHD206", "SHD235")
    ]


def lines(finding: Diagnostic) -> list[str]:
    """Return the entries that a help says, as they are to be pasted."""
    help = finding.help or ""
    return _ENTRY.findall(help) if "by path and size" in help else []


def spec_of(arrays: dict[str, str], *params: str) -> str:
    text = HEAD
    if params:
        text += "params:\n" + "".join(f"  {line}\n" for line in params)
    return text + yaml.safe_dump({"arrays": arrays}, allow_unicode=True, width=10_000)


@pytest.mark.parametrize(
    ("path", "kind", "line"),
    [
        ("a/wi/kernel", "bf16[4096, 16384]", '"a/wi/kernel": embed mlp'),
        ("a.up_proj.weight", "bf16[16384, 4096]", '"a.up_proj.weight": mlp embed'),
        ("a/key/kernel", "bf16[4096, 8, 128]", '"a/key/kernel": embed kv_heads kv'),
        ("layers_{0..3}/wo/kernel", "bf16[16384, 4096]", '"layers_{0..3}/wo/kernel": mlp embed'),
        ("layers/wi/kernel", "bf16[4, 4096, 16384]", '"layers/wi/kernel": layers embed mlp'),
        ("a/norm/scale", "f32[4096]", '"a/norm/scale": norm'),
        ("some/thing", "bf16[16384, 8]", '"some/thing": mlp kv_heads'),
        ('q"uote: #/wi/kernel', "bf16[4096, 16384]", '"q\\"uote: #/wi/kernel": embed mlp'),
        ("a\\*b/wi/kernel", "bf16[4096, 16384]", None),
    ],
)
def test_the_line_that_is_said_resolves_it(path: str, kind: str, line: str | None) -> None:
    arrays = {path: kind}
    (finding,) = found(spec_of(arrays))
    (said,) = lines(finding)
    assert line is None or said == line
    assert found(spec_of(arrays, said)) == []


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("a/query/kernel", "bf16[4096, 4096]"),  # inputs or outputs first
        ("a/thing", "bf16[4096, 16384]"),  # embed or joined_kv
        ("a/wi/kernel", "bf16[4096, 777]"),  # no axis is as long
        ("a/thing", "f32[777]"),
    ],
)
def test_nothing_is_said_where_there_are_two_answers_or_none(path: str, kind: str) -> None:
    (finding,) = found(spec_of({path: kind}))
    assert lines(finding) == []
    assert "AXIS" in (finding.help or "")


def test_small_ones_are_said_together_where_each_has_one() -> None:
    small = {"a/norm/scale": "f32[4096]", "a/wi/bias": "f32[16384]"}
    arrays = {"a/wi/kernel": "bf16[4096, 16384]", **small}
    (finding,) = found(spec_of(arrays, '"a/wi/kernel": embed mlp'))
    said = lines(finding)
    assert len(said) == 2
    assert found(spec_of(arrays, '"a/wi/kernel": embed mlp', *said)) == []
    arrays["a/odd"] = "f32[77]"
    (finding,) = found(spec_of(arrays, '"a/wi/kernel": embed mlp'))
    assert lines(finding) == []
    assert "or their names to `params`" in (finding.help or "")


def test_an_entry_with_too_few_names_is_written_anew() -> None:
    arrays = {"layers_{0..3}/wi/kernel": "bf16[4096, 16384]"}
    (finding,) = found(spec_of(arrays, '"**/wi/kernel": mlp'))
    assert lines(finding) == ['"**/wi/kernel": embed mlp']
    assert found(spec_of(arrays, *lines(finding))) == []


def test_an_entry_that_is_right_for_others_gets_one_above() -> None:
    arrays = {"a/wi/kernel": "bf16[4096, 16384]", "a/wi/bias": "bf16[16384]"}
    (finding,) = found(spec_of(arrays, '"**/wi/*": mlp'))
    assert "put above it" in (finding.help or "")
    (said,) = lines(finding)
    assert found(spec_of(arrays, said, '"**/wi/*": mlp')) == []


def test_the_line_stands_in_the_dsl_as_well() -> None:
    text = HEAD + "arrays: {a/wi/kernel: 'bf16[4096, 16384]'}\n"
    (said,) = lines(found(text)[0])
    dsl = (
        "shardspec 1\nmesh { tensor = 4 }\naxis mlp = 16384\naxis embed = 4096\n"
        f"rules {{ mlp -> tensor; embed -> none }}\nparams {{\n  {said}\n}}\n"
        "arrays {\n  a/wi/kernel : bf16[4096, 16384]\n}\n"
    )
    spec, faults = pipeline.load_text(dsl, "spec.shard")
    assert spec is not None
    assert faults == ()
    assert pipeline.check(spec, faults, spec.params).shown == ()


@settings(max_examples=60)
@given(arrays)
def test_what_is_said_of_any_arrays_resolves(found: Params) -> None:
    """Under the axes that all of them would be guessed to have."""
    params = tuple(Param(each.path, each.shape, each.dtype) for each in found)
    axes = {axis.name: axis.size for axis in guess(params).axes}
    if not axes:
        return
    spec, _ = pipeline.load_text(yaml.safe_dump({"axes": axes, "mesh": {"data": 2}}))
    assert spec is not None
    said = [line for each in _unnamed(spec, params) for line in lines(each)]
    if not said:
        return
    entries = "".join(f"  {line}\n" for line in said)
    text = yaml.safe_dump({"axes": axes, "mesh": {"data": 2}}) + f"params:\n{entries}"
    spec, faults = pipeline.load_text(text)
    assert spec is not None, faults
    assert faults == ()
    named = {path for each in said for path in (each,)}
    assert len(named) == len(said)
    assert not {d.code.id for d in _all(spec, params)} & {"SHD206", "SHD302", "SHD204", "SHD209"}
    assert len(_unnamed(spec, params)) < len(_unnamed_without(axes, params))


def _all(spec: object, params: Params) -> tuple[Diagnostic, ...]:
    from shardspec.ir.spec import Spec

    assert isinstance(spec, Spec)
    return pipeline.check(spec, (), params).shown


def _unnamed(spec: object, params: Params) -> list[Diagnostic]:
    return [each for each in _all(spec, params) if each.code.id == "SHD205"]


def _unnamed_without(axes: dict[str, int], params: Params) -> list[Diagnostic]:
    spec, _ = pipeline.load_text(yaml.safe_dump({"axes": axes, "mesh": {"data": 2}}))
    return _unnamed(spec, params)


def test_nothing_is_loaded_where_nothing_is_found() -> None:
    body = (
        "import sys\nfrom shardspec import pipeline\n"
        f"spec, faults = pipeline.load_text({(HEAD + NAMED)!r})\n"
        "assert not pipeline.check(spec, faults, spec.params).shown\n"
        "print(*sorted(name for name in sys.modules if 'naming' in name))\n"
    )
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


NAMED = (
    "arrays: {a/wi/kernel: 'bf16[embed mlp]', a/key: 'bf16[embed kv_heads kv]', n: 'f32[norm]'}\n"
)


def test_a_cache_is_named_in_its_type() -> None:
    text = HEAD + "caches: {c/key: 'bf16[8, 128]'}\n"
    assert all(lines(each) == [] for each in found(text))


def test_a_name_that_repeats_is_marked() -> None:
    param = Param("pooler/dense/kernel", (4096, 4096))
    from shardspec.naming.proposing import proposed_names

    assert proposed_names([param], {"embed": 4096}) == ("embed", "embed'")


def test_names_in_the_types_of_the_spec_are_offered_for_arrays_of_code() -> None:
    """They name the arrays of the spec alone, whatever sizes are stated."""
    text = (
        "mesh: {data: 2}\nrules: [embed -> data, mlp -> none]\n"
        "arrays: {a/wi: 'bf16[embed=64 mlp=128]', b/wi: 'bf16[embed=64 mlp=128]'}\n"
    )
    spec, _ = pipeline.load_text(text)
    (told,) = _unnamed(spec, (Param("a/wi", (64, 128)),))
    assert '`"a/wi": embed mlp`' in (told.help or "")
    (told,) = _unnamed(spec, (Param("a/wi", (2, 64, 128)),))
    assert "embed" not in (told.help or "")
