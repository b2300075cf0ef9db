"""A resolver of a phase."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import pytest

import shardspec
from tests.test_guides import own_files

SPEC = """\
targets:
  eight: {hardware: 8 cpu, mesh: {fsdp: 4, tensor: 2}}
rules:
  - embed -> fsdp
  - mlp -> tensor
params:
  "**/wi": embed mlp
phases:
  decode:
    mesh: {tensor: 8}
    rules:
      - embed -> none
"""
TREE = {"wi": jax.ShapeDtypeStruct((16, 32), "float32")}


def resolver(phase: str | None = None) -> shardspec.Resolver:
    return shardspec.Resolver(shardspec.loads(SPEC), phase=phase)


def test_a_phase_has_its_mesh_and_its_rules() -> None:
    train, decode = resolver(), resolver("decode")
    assert dict(decode.mesh.shape) == {"tensor": 8}
    assert train.shardings(TREE)["wi"].spec == jax.sharding.PartitionSpec("fsdp", "tensor")
    assert decode.shardings(TREE)["wi"].spec == jax.sharding.PartitionSpec(None, "tensor")
    assert decode.findings(TREE) == ()
    assert "phase decode, target default: tensor=8" in repr(decode)
    assert train != decode
    assert decode == resolver("decode")


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(shardspec.ShardspecError, match="no phase is called `decod`"):
        resolver("decod")
    with pytest.raises(TypeError, match="a phase is named by a string"):
        resolver(3)  # type: ignore[arg-type]


def test_plans_of_phases() -> None:
    spec = shardspec.loads(SPEC)
    assert spec.phases == ("decode",)
    plan = spec.compile([shardspec.Param("a/wi", (16, 32))], phase="decode")
    assert str(plan["a/wi"].partition_spec) == "P(None, 'tensor')"
    assert plan.name == "decode@default"
    with pytest.raises(shardspec.ShardspecError, match="no phase"):
        spec.compile([], phase="serve")


def test_reshard_moves_live_arrays_and_says_what_moved() -> None:
    train, decode = resolver(), resolver("decode")
    value = jax.numpy.arange(16 * 32, dtype="float32").reshape(16, 32)
    tree = train.put({"wi": value, "steps": 3})
    there, moved = train.reshard(tree, to=decode)
    assert there["wi"].sharding == decode.shardings(TREE)["wi"]
    assert there["steps"] == 3
    assert (there["wi"] == value).all()
    assert moved.paths == ("wi",)
    # each of 8 devices wants 16 x 4 of 16 x 32, and holds 4 x 16: four columns of those at most
    assert moved.total_bytes == sum(16 * 4 * 4 - kept for kept in held(train, decode))
    assert "reshard     1 array to reshard:" in str(moved)
    assert "embed: fsdp -> none" in str(moved)
    back, again = decode.reshard(there, to=train)
    assert back["wi"].sharding == tree["wi"].sharding
    assert again.total_bytes > 0
    same, nothing = train.reshard(tree, to=resolver())
    assert (nothing.paths, nothing.total_bytes, str(nothing)) == ((), 0, "nothing moved")
    assert same["wi"].sharding == tree["wi"].sharding


def held(here: shardspec.Resolver, there: shardspec.Resolver) -> list[int]:
    """Return, counted by JAX's own indices, the bytes that each device has of what it will hold."""
    kept = []
    before = here.shardings(TREE)["wi"].devices_indices_map((16, 32))
    after = there.shardings(TREE)["wi"].devices_indices_map((16, 32))
    for device, wanted in after.items():
        both = [
            len({*range(*one.indices(size))} & {*range(*other.indices(size))})
            for one, other, size in zip(wanted, before[device], (16, 32), strict=True)
        ]
        kept.append(both[0] * both[1] * 4)
    return kept


def test_to_other_devices_everything_moves() -> None:
    spec = shardspec.loads(
        "targets: {four: {hardware: 4 cpu, mesh: {data: 4}}}\n"
        "rules: [embed -> data]\nparams: {wi: embed _}\n"
    )
    one = shardspec.Resolver(spec, devices=jax.devices()[:4])
    other = shardspec.Resolver(spec, devices=jax.devices()[4:])
    tree = one.put({"wi": jax.numpy.ones((16, 32))})
    there, moved = one.reshard(tree, to=other)
    assert moved.total_bytes == 16 * 32 * 4
    assert str(moved) == "1 array to reshard: 2.00 KiB move, 512 B to one device, of other devices"
    assert set(there["wi"].sharding.device_set) == set(jax.devices()[4:])


@pytest.mark.parametrize("name", ["rl", "slices"])
def test_the_page_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Path(__file__).parents[2] / "docs" / f"{name}.md"
    monkeypatch.chdir(tmp_path)
    for file, body in own_files(page.read_text("utf-8")).items():
        (tmp_path / file).write_text(body, encoding="utf-8")
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    program = next(body for language, body in blocks if language == "python")
    printed = next(body for language, body in blocks if language == "text")
    exec(compile(program, str(page), "exec"), {})
    assert capsys.readouterr().out == printed


def test_what_lies_otherwise_is_not_moved() -> None:
    with pytest.raises(shardspec.ShardspecError, match="SHD901"):
        resolver().reshard({"wi": jax.numpy.ones((16, 32))}, to=resolver("decode"))
    with pytest.raises(TypeError, match="`to` is a `Resolver`"):
        resolver().reshard(TREE, to="decode")  # type: ignore[arg-type]
