"""There and back: files of other tools, through import, check, compile and export.

Files are written by the tools' own libraries, and what comes out is given back to the tools: Flax
resolves the exported rules, gin-config parses the exported gin, JAX takes the exported layouts. The
texts of T5X and MaxText are their own rules, as facts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from shardspec import pipeline
from shardspec.cli.main import cli
from shardspec.cli.request import Request
from shardspec.ir.plan import ShardingPlan

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == code, result.output
    return result


def plan_of(spec_file: str, arrays: str | None = None) -> ShardingPlan:
    spec, found = pipeline.load_path(spec_file)
    assert spec is not None, found
    params = None if arrays is None else Request().read_arrays(arrays)
    return pipeline.compile_plans(spec, params)[0]


def executed(file: str) -> dict[str, Any]:
    space: dict[str, Any] = {}
    exec(Path(file).read_text(encoding="utf-8"), space)
    return space


def full(spec: Any, rank: int) -> tuple[tuple[str, ...], ...]:
    """Return a PartitionSpec of JAX as ours has it."""
    dims = tuple(() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in spec)
    return dims + ((),) * (rank - len(dims))


def resolved_by_linen(names: Any, rules: Any, rank: int) -> tuple[tuple[str, ...], ...]:
    import flax.linen as nn

    return full(nn.logical_to_mesh_axes(names, tuple(map(tuple, rules))), rank)


LLAMA = """\
shardspec: 1
mesh: {fsdp: 2, tensor: 4}
rules: [vocab -> tensor, mlp -> tensor, heads -> tensor, embed -> fsdp]
params:
  "{model.embed_tokens,lm_head}.weight": vocab embed
  "model.layers.*.mlp.{gate,up}_proj.weight": mlp embed
  "model.layers.*.mlp.down_proj.weight": embed mlp
  "model.layers.*.self_attn.{q,k,v}_proj.weight": heads embed
  "model.layers.*.self_attn.o_proj.weight": embed heads
  "*norm.weight": embed
"""


def llama() -> dict[str, tuple[int, ...]]:
    """Return the arrays of a small model, as Hugging Face names them."""
    shapes = {"model.embed_tokens.weight": (64, 16), "lm_head.weight": (64, 16)}
    for layer in range(12):
        at = f"model.layers.{layer}"
        shapes |= {f"{at}.mlp.{name}_proj.weight": (32, 16) for name in ("gate", "up")}
        shapes |= {f"{at}.self_attn.{name}_proj.weight": (16, 16) for name in "qkvo"}
        shapes[f"{at}.mlp.down_proj.weight"] = (16, 32)
        shapes[f"{at}.input_layernorm.weight"] = (16,)
    return shapes | {"model.norm.weight": (16,)}


def test_safetensors_to_a_list_of_regexes() -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    import jax
    import numpy as np

    arrays = {path: np.zeros(shape, np.float32) for path, shape in llama().items()}
    numpy.save_file(arrays, "model.safetensors")
    Path("spec.yaml").write_text(LLAMA + "manifest: ./model.safetensors\n")
    run("check", "spec.yaml")
    run("export", "regex", "spec.yaml", "-o", "layouts.py")
    rules = executed("layouts.py")["RULES"]
    assert len(rules) < 15
    mesh = jax.make_mesh((2, 4), ("fsdp", "tensor"))
    plan = plan_of("spec.yaml")
    assert len(plan.arrays) == len(arrays)
    for sharding in plan.arrays:
        path = sharding.param.path
        spec = next(spec for regex, spec in rules if re.fullmatch(regex, path))
        placed = jax.device_put(arrays[path], jax.sharding.NamedSharding(mesh, spec))
        assert full(spec, sharding.param.rank) == sharding.partition_spec.dims
        assert placed.addressable_shards[0].data.shape == sharding.shard_shape


def test_orbax_to_a_module_of_layouts() -> None:
    orbax = pytest.importorskip("orbax.checkpoint")
    import jax
    import numpy as np

    tree = {f"layers_{n}": {"wi": np.zeros((16, 32)), "norm": np.zeros(16)} for n in range(3)}
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(Path.cwd() / "checkpoint", tree)
    Path("spec.yaml").write_text(
        "mesh: {data: 2, model: 4}\nrules: [mlp -> model, embed -> data]\n"
        'params: {"**/wi": embed mlp, "**/norm": embed}\n'
    )
    run("export", "python", "spec.yaml", "--arrays", "checkpoint", "-o", "layouts.py")
    space = executed("layouts.py")
    shardings = space["shardings"]()
    plan = plan_of("spec.yaml", "checkpoint")
    assert set(shardings) == {f"layers_{n}/{name}" for n in range(3) for name in ("wi", "norm")}
    for path, sharding in shardings.items():
        layer, name = path.split("/")
        placed = jax.device_put(tree[layer][name], sharding)
        assert placed.addressable_shards[0].data.shape == plan[path].shard_shape


RULES = """\
RULES = (
    ("batch", ("data", "expert")),
    ("vocab", "model"),
    ("mlp", "model"),
    ("embed", "model"),
    ("embed", ("data", "expert")),
    ("embed", "data"),
    ("heads", None),
)
"""


def linen_model() -> Any:
    """Return the boxed parameters of a Linen model."""
    import jax
    from flax import linen as nn

    def named(*names: str) -> Any:
        return nn.with_logical_partitioning(nn.initializers.zeros, names)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Embed(64, 16, embedding_init=named("vocab", "embed"), name="embed")(x)
            for layer in range(3):
                inits = {"kernel_init": named("embed", "mlp"), "bias_init": named("mlp")}
                up = nn.Dense(32, **inits, name=f"up_{layer}")
                down = nn.Dense(
                    16, kernel_init=named("mlp", "embed"), use_bias=False, name=f"down_{layer}"
                )
                x = down(up(x))
            return x

    tokens = jax.ShapeDtypeStruct((2, 3), "int32")
    return jax.eval_shape(Model().init, jax.random.key(0), tokens)["params"]


def test_linen_rules_there_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    nn = pytest.importorskip("flax.linen")
    import jax

    boxed = linen_model()
    module = ModuleType("linen_world")
    module.arrays = lambda: boxed  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "linen_world", module)
    Path("rules.py").write_text(RULES)
    mesh = "data=2 expert=2 model=2"
    asked = ("--mesh", mesh, "--semantics", "linen", "--against", "linen_world:arrays")
    run("import", "flax", "rules.py", *asked, "-o", "spec.yaml")
    params = ("--arrays", "linen_world:arrays")
    run("export", "flax", "spec.yaml", *params, "-o", "back.py")
    rules = executed("back.py")["RULES"]
    assert list(rules) == list(executed("rules.py")["RULES"])
    plan = plan_of("spec.yaml", "linen_world:arrays")
    theirs = nn.logical_to_mesh(nn.get_partition_spec(boxed), rules)
    flat, _ = jax.tree_util.tree_flatten_with_path(theirs)
    assert len(flat) == len(plan.arrays) == 10
    for path, spec in flat:
        sharding = plan["/".join(key.key for key in path)]
        assert full(spec, sharding.param.rank) == sharding.partition_spec.dims


def test_nnx_rules_there_and_back() -> None:
    spmd = pytest.importorskip("flax.core.spmd")
    from jax.sharding import PartitionSpec

    Path("rules.py").write_text('RULES = (("embed", "data"), ("mlp", "model"), ("heads", None))')
    Path("arrays.yaml").write_text(
        "a: f32[embed=8 mlp=8]\nb: f32[heads=8 embed=8]\nc: f32[mlp=8]\n"
    )
    mesh = ("--mesh", "data=2 model=4", "--against", "arrays.yaml")
    run("import", "nnx", "rules.py", *mesh, "-o", "spec.yaml")
    run("export", "nnx", "spec.yaml", "--arrays", "arrays.yaml", "-o", "back.py")
    rules = executed("back.py")["RULES"]
    for sharding in plan_of("spec.yaml", "arrays.yaml").arrays:
        theirs = spmd.get_pspec(PartitionSpec(*sharding.logical_axes), rules)
        assert full(theirs, sharding.param.rank) == sharding.partition_spec.dims


GIN = """\
from __gin__ import dynamic_registration
from t5x import partitioning
from t5x import utils

MODEL_AXIS = "model"

partitioning.PjitPartitioner:
  num_partitions = 4
  logical_axis_rules = @partitioning.standard_logical_axis_rules()
partitioning.standard_logical_axis_rules:
  activation_partitioning_dims = 1
  parameter_partitioning_dims = 2
  additional_rules = [("expert", %MODEL_AXIS), ("expert", "data")]
utils.override_params_axes_names.params_axes_names_override = [
    ("encoder/layer_\\\\d+/external_mlp/kernel", ("embed", "mlp")),
    ("encoder/layer_\\\\d+/external_mlp/bias", ("mlp",)),
]
"""
ARRAYS = """\
"encoder/layer_{0..11}/external_mlp/kernel": f32[16, 32]
"encoder/layer_{0..11}/external_mlp/bias": f32[32]
encoder/expert/wi: f32[expert=8 embed=16 mlp=32]
token_embedder/embedding: f32[vocab=64 embed=16]
encoder/norm: f32[embed=16]
"""


@pytest.fixture
def t5x(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Give gin a `t5x` to configure, which notes what it is called with."""
    gin = pytest.importorskip("gin")
    called: dict[str, Any] = {}
    package, partitioning, utils = (
        ModuleType(name) for name in ("t5x", "t5x.partitioning", "t5x.utils")
    )
    source = (
        "def PjitPartitioner(num_partitions=None, model_parallel_submesh=None,"
        " ici_mesh_shape=None, dcn_mesh_shape=None, logical_axis_rules=None):\n"
        "    called.update(locals())\n"
        "def standard_logical_axis_rules(activation_partitioning_dims=1,"
        " parameter_partitioning_dims=1, additional_rules=None):\n"
        "    return [*standard[activation_partitioning_dims, parameter_partitioning_dims],"
        " *(additional_rules or [])]\n"
    )
    partitioning.__dict__.update(called=called, standard=_standard_rules())
    exec(source, partitioning.__dict__)
    exec(
        "def override_params_axes_names(model_variables=None, params_axes_names_override=()):\n"
        "    return params_axes_names_override\n",
        utils.__dict__,
    )
    package.__path__ = []
    package.partitioning, package.utils = partitioning, utils  # type: ignore[attr-defined]
    for module in (package, partitioning, utils):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    yield called
    gin.clear_config()


def _standard_rules() -> dict[tuple[int, int], list[tuple[str, str | None]]]:
    """Return T5X's four lists. Source: `t5x.partitioning.standard_logical_axis_rules`."""
    model = [("mlp", "model"), ("heads", "model"), ("kv", None), ("joined_kv", "model")]
    first: list[tuple[str, str | None]] = [("batch", "data"), ("vocab", "model")]
    tail = ("relpos_buckets", "abspos_buckets", "length", "layers", "stack", "mlp_activations")
    rest: list[tuple[str, str | None]] = [(name, None) for name in tail]
    by_model, by_data = ("embed", "model"), ("embed", "data")
    return {
        (1, 1): [*first, ("embed", None), *model, *rest],
        (2, 1): [*first, *model, by_model, *rest],
        (1, 2): [*first, *model, by_data, *rest],
        (2, 2): [*first, *model, by_model, by_data, *rest],
    }


def bound(text: str, called: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return the rules and overrides that gin binds, by gin-config itself."""
    import gin

    gin.clear_config()
    with gin.unlock_config(), gin.config.interactive_mode():
        gin.parse_config(text)
    from t5x import partitioning, utils  # type: ignore[import-not-found]

    gin.get_configurable(partitioning.PjitPartitioner)()
    has_overrides = "override_params_axes_names" in text
    override = utils.override_params_axes_names
    overrides = gin.get_configurable(override)() if has_overrides else ()
    return called["logical_axis_rules"], list(overrides)


def test_gin_there_and_back(t5x: dict[str, Any]) -> None:
    pytest.importorskip("flax")
    Path("run.gin").write_text(GIN)
    Path("arrays.yaml").write_text(ARRAYS)
    asked = ("--hardware", "h100", "--against", "arrays.yaml")
    run("import", "t5x-gin", "run.gin", *asked, "-o", "spec.yaml")
    run("export", "t5x-gin", "spec.yaml", "--arrays", "arrays.yaml", "-o", "back.gin")
    rules, overrides = bound(Path("back.gin").read_text(), t5x)
    assert bound(GIN, t5x) == (rules, overrides)
    assert t5x["num_partitions"] == 4
    plan = plan_of("spec.yaml", "arrays.yaml")
    assert plan.mesh.sizes == {"data": 2, "model": 4}
    for sharding in plan.arrays:
        param = sharding.param
        hits = (names for regex, names in overrides if re.fullmatch(regex, param.path))
        names = next(hits, param.logical_axes)
        theirs = resolved_by_linen(names, rules, param.rank)
        assert theirs == sharding.partition_spec.dims


def test_standard_rules_of_t5x_there_and_back(t5x: dict[str, Any]) -> None:
    pytest.importorskip("flax")
    names = ("batch", "vocab", "embed", "mlp", "heads", "joined_kv")
    lines = [f"a_{a}_{b}: f32[{a}=8 {b}=8]" for a in names for b in names if a != b]
    Path("arrays.yaml").write_text("\n".join(lines) + "\n")
    for dims, standard in _standard_rules().items():
        preset = {(1, 1): "1d", (2, 1): "activations-2d", (1, 2): "parameters-2d", (2, 2): "2d"}
        Path("spec.yaml").write_text(
            f"extends: t5x/{preset[dims]}\nhardware: h100\nmesh: {{data: rest, model: 4}}\n"
        )
        run("export", "t5x-gin", "spec.yaml", "--arrays", "arrays.yaml", "-o", "back.gin")
        rules, _ = bound(Path("back.gin").read_text(), t5x)
        assert rules == standard
        for sharding in plan_of("spec.yaml", "arrays.yaml").arrays:
            theirs = resolved_by_linen(sharding.logical_axes, rules, 2)
            assert theirs == sharding.partition_spec.dims


MAXTEXT_ARRAYS = """\
"decoder/layers_{0..3}/mlp/wi_{0,1}/kernel": f32[embed=64 mlp=128]
"decoder/layers_{0..3}/mlp/wo/kernel": f32[mlp=128 embed=64]
"decoder/layers_{0..3}/self_attention/query/kernel": f32[embed=64 q_heads=8 kv=16]
"decoder/layers_{0..3}/self_attention/key/kernel": f32[embed=64 kv_heads=8 kv_head_dim=16]
"decoder/layers_{0..3}/norm/scale": f32[norm=64]
token_embedder/embedding: f32[vocab=256 embed=64]
"""


@pytest.mark.parametrize(
    ("files", "mesh"),
    [
        (("base.yml",), "fsdp=4 tensor=2"),
        (("base.yml",), "data=2 fsdp=2 expert=2"),
        (("base.yml", "llama2-70b.yml"), "fsdp=4 tensor=2"),
        (("base.yml", "custom_mesh_and_rule/pure-fsdp.yml"), "fsdp=8"),
    ],
)
def test_maxtext_there_and_back(files: tuple[str, ...], mesh: str) -> None:
    yaml = pytest.importorskip("yaml")
    pytest.importorskip("flax")
    sources = [str(DATA / "maxtext" / file) for file in files]
    Path("arrays.yaml").write_text(MAXTEXT_ARRAYS)
    asked = ("--mesh", mesh, "--against", "arrays.yaml")
    run("import", "maxtext", *sources, *asked, "-o", "spec.yaml")
    if len(files) > 1:  # a list of its own, which leaves most names without a rule
        spec = Path("spec.yaml").read_text().replace("lints: {", "lints: {SHD202: warn, ")
        Path("spec.yaml").write_text(spec)
    arrays = ("--arrays", "arrays.yaml", "--lossy")
    run("export", "maxtext", "spec.yaml", *arrays, "-o", "back.yml")
    config = yaml.safe_load(Path("back.yml").read_text())
    assert config["override_logical_axis_rules"] is True
    plan = plan_of("spec.yaml", "arrays.yaml")
    sizes = {"stage": "pipeline", "model": "tensor"}
    for axis in plan.mesh.axes:
        assert config[f"ici_{sizes.get(axis.name, axis.name)}_parallelism"] == axis.size
    for sharding in plan.arrays:
        rules = config["logical_axis_rules"]
        pairs = [(name, v if isinstance(v, str) else tuple(v)) for name, v in rules]
        theirs = resolved_by_linen(sharding.logical_axes, pairs, sharding.param.rank)
        assert theirs == sharding.partition_spec.dims
    run("import", "maxtext", "back.yml", "-o", "again.yaml")
    again = plan_of("again.yaml", "arrays.yaml")
    assert [s.partition_spec for s in again.arrays] == [s.partition_spec for s in plan.arrays]
    assert again.mesh.sizes == plan.mesh.sizes
