"""Peak memory of partitioned programs: a small text for each rule, and what any text has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.language.catalogue import catalogue_entry
from shardspec.programs.hlo import Program, program_of
from shardspec.programs.peak import Device, Held, Peak, peak_of
from shardspec.programs.peak_again import Rates, rates_of
from shardspec.programs.peak_gates import GATES
from shardspec.programs.peak_hiding import Speeds
from shardspec.programs.peak_kernels import Platform
from shardspec.programs.peak_scores import SOFTMAX as SOFTMAXES
from shardspec.programs.peak_scores import Softmax
from shardspec.programs.peak_units import GATHERS_FIRST

MIB = 1 << 20
HOPPER, AMPERE = (rates_of(catalogue_entry(name).chip) for name in ("h100", "a100"))
SPEEDS = Speeds(1e15, 1e12, 1e11, 1e10, 8)
PLATFORMS: tuple[Platform, ...] = ("tpu", "gpu")
#: f32 of 1 MiB on one device; whole tiles of a TPU.
BIG = "f32[512,512]{1,0}"
HALF = "bf16[512,512]{1,0}"
ADD = """\
%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}
"""
DOT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"


def entry(body: str, header: str = "", before: str = "") -> str:
    """Return a program whose entry has some lines."""
    lines = "\n".join(f"  {line.strip()}" for line in body.strip().splitlines())
    head = f"HloModule jit_f{header}, num_partitions=8\n\n{ADD}\n{before}\n"
    return f"{head}ENTRY %main () -> f32[] {{\n{lines}\n}}\n"


def peak(text: str, platform: Platform = "gpu", donated: tuple[int, ...] = ()) -> Peak:
    """Return the peak of a text."""
    return peak_of(program_of(text), Device(platform), donated)


def names(found: Peak) -> list[str]:
    """Return what makes the values that are alive at the peak, by name."""
    return sorted(each.instruction.name for each in found.alive if each.instruction and each.bytes)


def test_chain_of_elementwise_operations_is_one_kernel() -> None:
    text = entry(f"""
        %p = {BIG} parameter(0)
        %a = {BIG} exponential(%p)
        %b = {BIG} multiply(%a, %p)
        ROOT %c = {BIG} add(%b, %p)
    """)
    found = peak(text)
    assert (found.given_bytes, found.made_bytes, names(found)) == (MIB, MIB, ["c"])
    assert found.alive[0].why == "is a result"


def test_result_takes_the_memory_of_a_donated_parameter() -> None:
    body = f"""
        %p = {BIG} parameter(0)
        ROOT %c = {BIG} add(%p, %p)
    """
    assert peak(entry(body)).bytes == 2 * MIB
    assert peak(entry(body), donated=(0,)).bytes == MIB
    aliased = ", input_output_alias={ {}: (0, {}, may-alias) }"
    assert peak(entry(body, aliased.replace("{}: (", "{0}: ("))).bytes == MIB


def test_parameter_that_is_read_after_a_result_is_made_keeps_its_memory() -> None:
    text = entry(f"""
        %p = {BIG} parameter(0)
        %a = {BIG} add(%p, %p)
        %d = {BIG} dot(%a, %p), {DOT}
        ROOT %t = ({BIG}, {BIG}) tuple(%a, %d)
    """)
    assert peak(text, donated=(0,)).made_bytes == 2 * MIB


def test_product_of_a_gpu_reads_memory_and_of_a_tpu_fuses() -> None:
    text = entry(f"""
        %p = {BIG} parameter(0)
        %a = {BIG} add(%p, %p)
        %d = {BIG} dot(%a, %p), {DOT}
        %z = f32[] constant(0)
        ROOT %r = f32[] reduce(%d, %z), dimensions={{0,1}}, to_apply=%add
    """)
    assert names(peak(text, "gpu"))[:2] == ["a", "d"]
    assert "a" not in names(peak(text, "tpu"))


def test_product_of_a_gpu_reads_what_is_widened_from_a_smaller_value() -> None:
    text = entry(f"""
        %p = {BIG} parameter(0)
        %q = s8[512,512]{{1,0}} parameter(1)
        %a = {BIG} convert(%q)
        ROOT %d = {BIG} dot(%p, %a), {DOT}
    """)
    assert names(peak(text)) == ["d"]


SOFTMAX = f"""
    %p = {BIG} parameter(0)
    %q = {BIG} parameter(1)
    %d = {BIG} dot(%p, %q), {DOT}
    %e = {BIG} exponential(%d)
    %z = f32[] constant(0)
    %s = f32[512]{{0}} reduce(%e, %z), dimensions={{1}}, to_apply=%add
    %b = {BIG} broadcast(%s), dimensions={{0}}
    %n = {BIG} divide(%e, %b)
    %o = {BIG} dot(%n, %q), {DOT}
"""


def reasons(text: str, platform: Platform) -> dict[str, str]:
    """Return why each value of a program is in memory."""
    return reasons_of(entry(text), platform)


def reasons_of(text: str, platform: Platform) -> dict[str, str]:
    """Return why each value of a whole text is in memory."""
    return reasons_in(peak(text, platform))


def reasons_in(found: Peak) -> dict[str, str]:
    """Return why each value is in memory."""
    return {each.instruction.name: each.why for each in found.values if each.instruction}


def test_costly_value_is_stored_where_a_sum_and_another_kernel_read_it() -> None:
    saved = f"ROOT %t = ({BIG}, f32[512]{{0}}, {BIG}) tuple(%o, %s, %e)"
    assert reasons(SOFTMAX + saved, "tpu")["e"] == "is a result"
    kept = f"%m = {BIG} multiply(%e, %o)\nROOT %t = ({BIG}, f32[512]{{0}}) tuple(%m, %s)"
    assert reasons(SOFTMAX + kept, "tpu")["e"] == "exponential, read by 3 kernels"
    assert "e" not in reasons(SOFTMAX + kept, "gpu")


def test_costly_value_in_bf16_is_made_again() -> None:
    saved = f"%m = {BIG} multiply(%e, %o)\nROOT %t = ({BIG}, f32[512]{{0}}) tuple(%m, %s)"
    assert "e" in reasons(SOFTMAX + saved, "tpu")
    assert "e" not in reasons((SOFTMAX + saved).replace("f32[512,", "bf16[512,"), "tpu")


LEFT, RIGHT = "slice={[0:512], [0:256]}", "slice={[0:512], [256:512]}"
EVEN = "slice={[0:512:1], [0:512:2]}"


def sliced(one: str, other: str = "") -> str:
    """Return a program that multiplies a slice of a value with another slice, or with itself."""
    half = "f32[512,256]{1,0}"
    second = f"%t = {half} slice(%a), {other}" if other else f"%t = {half} bitcast(%s)"
    return entry(f"""
        %p = {BIG} parameter(0)
        %a = {BIG} add(%p, %p)
        %s = {half} slice(%a), {one}
        {second}
        %m = {half} multiply(%s, %t)
        ROOT %d = {half} dot(%m, %p), {DOT}
    """)


def test_tpu_keeps_in_memory_what_two_slices_read() -> None:
    assert "a" in reasons_of(sliced(LEFT, RIGHT), "tpu")
    assert "a" not in reasons_of(sliced(LEFT, RIGHT), "gpu")
    assert "a" not in reasons_of(sliced(LEFT), "tpu")


def test_slice_that_leaves_elements_out_is_a_kernel_of_a_tpu() -> None:
    assert {"a", "s"} <= reasons_of(sliced(EVEN), "tpu").keys()
    assert reasons_of(sliced(EVEN), "gpu").keys() == {"m", "d"}
    assert reasons_of(sliced("slice={[0:512:1], [0:256:1]}"), "tpu").keys() == {"d"}


def padded(padding: str) -> str:
    """Return a program that pads a value that it makes."""
    return entry(f"""
        %p = {BIG} parameter(0)
        %z = f32[] constant(0)
        %a = {BIG} add(%p, %p)
        %d = f32[1024,512]{{1,0}} pad(%a, %z), padding={padding}
        ROOT %m = f32[1024,512]{{1,0}} multiply(%d, %d)
    """)


def test_pad_of_a_tpu_reads_memory_and_one_between_elements_writes_it() -> None:
    behind, between = padded("0_512x0_0"), padded("0_1_1x0_0_0")
    assert reasons_of(behind, "tpu").keys() == {"a", "m"}
    assert reasons_of(between, "tpu").keys() == {"a", "d", "m"}
    assert reasons_of(behind, "gpu").keys() == reasons_of(between, "gpu").keys() == {"m"}


def test_kernel_of_a_gpu_writes_over_whichever_operand_is_not_read_again() -> None:
    text = entry(f"""
        %p = {BIG} parameter(0)
        %q = f32[512,8]{{1,0}} parameter(1)
        %a = {BIG} dot(%p, %p), {DOT}
        %b = {BIG} dot(%a, %p), {DOT}
        %c = {BIG} add(%a, %b)
        %d = f32[512,8]{{1,0}} dot(%c, %q), {DOT}
        %e = f32[512,8]{{1,0}} dot(%a, %q), {DOT}
        ROOT %r = f32[512,8]{{1,0}} add(%d, %e)
    """)
    assert 2 * MIB <= peak(text).made_bytes < 3 * MIB


def test_softmax_between_two_products_is_one_kernel_on_a_tpu() -> None:
    found = peak(entry(SOFTMAX + f"ROOT %t = ({BIG}) tuple(%o)"), "tpu")
    assert "d" not in names(found)


def test_barrier_holds_its_operands() -> None:
    text = entry(f"""
        %p = {BIG} parameter(0)
        %q = {BIG} parameter(1)
        %a = {BIG} add(%p, %q)
        %g = ({BIG}) opt-barrier(%a)
        %h = {BIG} get-tuple-element(%g), index=0
        ROOT %d = {BIG} dot(%h, %h), {DOT}
    """)
    for platform in PLATFORMS:
        assert [each.why for each in peak(text, platform).values if each.bytes] == [
            "is read by a barrier",
            "product",
        ]


def test_what_a_barrier_lets_through_waits_for_all_that_it_holds() -> None:
    """One operand is there early: what follows would free `w` before the other is made."""
    text = entry(f"""
        %p = {BIG} parameter(0)
        %q = {BIG} parameter(1)
        %w = {BIG} dot(%p, %q), {DOT}
        %a = {BIG} dot(%p, %p), {DOT}
        %c = {BIG} dot(%q, %q), {DOT}
        %g = ({BIG}, {BIG}) opt-barrier(%a, %c)
        %h = {BIG} get-tuple-element(%g), index=0
        %k = {BIG} get-tuple-element(%g), index=1
        %d = f32[512]{{0}} custom-call(%h, %w), custom_call_target="d"
        %e = f32[512]{{0}} custom-call(%k), custom_call_target="e"
        ROOT %t = (f32[512]{{0}}, f32[512]{{0}}) tuple(%d, %e)
    """)
    for platform in PLATFORMS:
        assert {"a", "c", "w"} <= {*names(peak(text, platform))}, platform


def added(order: str) -> str:
    """Return a program that adds products up and multiplies the total: products as `d0`."""
    lines = [f"%p = {BIG} parameter(0)"]
    lines += [f"%q{at} = {BIG} parameter({at + 1})" for at in range(4)]
    for each in order.split():
        name, _, read = each.partition("=")
        is_sum = bool(read)
        operands = read.replace("+", ", %") if is_sum else f"p, %q{name[1:]}"
        rest = f"add(%{operands})" if is_sum else f"dot(%{operands}), {DOT}"
        lines.append(f"%{name} = {BIG} {rest}")
    return entry("\n".join([*lines, f"ROOT %r = {BIG} dot(%s3, %p), {DOT}"]))


def test_products_that_are_added_up_fill_one_buffer_of_a_tpu() -> None:
    """As libtpu 0.0.52 compiles it: each add is in the kernel of its product, and in place."""
    text = added("d0 d1 s1=d0+d1 d2 s2=s1+d2 d3 s3=s2+d3")
    found = peak(text, "tpu")
    assert (found.made_bytes, names(found)) == (2 * MIB, ["d0", "r"])
    assert peak(text).made_bytes > 2 * MIB  # a kernel of a GPU has no product in it


def test_products_that_are_added_to_the_sum_of_the_rest_are_in_memory_on_a_tpu() -> None:
    """Here the kernel goes on through all adds to the first product, as libtpu 0.0.52 has it."""
    text = added("d3 d2 d1 d0 s1=d1+d0 s2=d2+s1 s3=d3+s2")
    assert peak(text, "tpu").made_bytes == 4 * MIB


def test_value_beside_a_product_is_written_over_where_nobody_else_reads_it() -> None:
    text = added("d0 d1 s1=d0+d1 d2 s2=s1+d2 d3 s3=s2+d3").replace("dot(%p, %q3)", "dot(%s1, %q3)")
    assert peak(text, "tpu").made_bytes == 3 * MIB


def mlp(lines: str) -> Peak:
    """Return the peak of a layer and what comes back on a TPU, of `name=operation of operands`."""
    found = [f"%{name} = {BIG} parameter({at})" for at, name in enumerate("xwvg")]
    for line in lines.split(";"):
        name, _, text = line.strip().partition("=")
        operation, *operands = text.split()
        read = ", ".join(f"%{each}" for each in operands)
        found.append(
            f"%{name} = {BIG} {operation}({read}){f', {DOT}' if operation == 'dot' else ''}"
        )
    names = [line.partition("=")[0].strip() for line in lines.split(";")]
    results = [name for name in names if name.startswith("r")]
    root = ", ".join(f"%{name}" for name in results)
    found.append(f"ROOT %t = ({', '.join([BIG] * len(results))}) tuple({root})")
    return peak(entry("\n".join(found)), "tpu")


def test_what_all_readers_of_a_product_lead_to_is_written_over_its_operand_on_a_tpu() -> None:
    """As libtpu 0.0.52 has it: `h` is read last where the gradient `dh` is made of the product."""
    found = mlp("""
        h=dot x w; a=tanh h; rw=dot g a; da=dot g v; one=multiply da h; two=multiply da a;
        dh=add one two; rx=dot dh w; rk=dot x dh
    """)
    assert reasons_in(found).keys() == {"h", "rw", "rx", "rk"}
    assert found.made_bytes == (1 + 3) * MIB


@pytest.mark.parametrize(("act", "held"), [("tanh", 4), ("maximum", 3)])
def test_gradient_of_a_gate_is_made_once_where_it_is_costly(act: str, held: int) -> None:
    """As libtpu 0.0.52 has it: the product `h` makes `dh` too, which `da` and `u` are read for."""
    also = " h" if act == "maximum" else ""
    found = mlp(f"""
        h=dot x w; a={act} h{also}; u=dot x v; y=multiply a u; rw=dot g y; dy=dot g g;
        du=multiply dy h; da=multiply dy u; ha=multiply a h; dh=multiply da ha; rv=dot x du;
        rz=dot du w; rx=dot dh w; rk=dot x dh
    """)
    assert ("dh" in reasons_in(found)) == (act == "tanh")
    assert found.made_bytes == (held + 5) * MIB


def test_scatter_of_a_tpu_reads_its_rows_from_memory() -> None:
    text = entry(f"""
        %p = {BIG} parameter(0)
        %i = s32[512,1]{{1,0}} parameter(1)
        %z = f32[] constant(0)
        %b = {BIG} broadcast(%z), dimensions={{}}
        %a = {BIG} add(%p, %p)
        ROOT %s = {BIG} scatter(%b, %i, %a), update_window_dims={{1}}, to_apply=%add
    """)
    assert reasons_of(text, "tpu")["a"] == "is read by scatter"
    assert "a" not in reasons_of(text, "gpu")


def scores_of(
    heads: int,
    batch: int,
    gradients: bool,
    *,
    is_made: bool = False,
    is_masked: bool = False,
    is_late: bool = False,
) -> Program:
    """Return a softmax over scores, bf16 of 1 MiB, of some heads over the same keys.

    Args:
      batch: the dimension of the batches in queries and keys: 0 or 1.
      is_made: that queries and keys are products in the program, and not given.
      is_masked: that a constant mask selects among the scores.
      is_late: that the gradient of the result is made of the result, as without rematerialization,
        and that of the values too. Of one head whose batches come first.
    """
    rows = 256 // heads

    def shape(dtype: str, *sizes: int) -> str:
        order = [size for size in sizes if size > 1]
        return f"{dtype}[{','.join(map(str, order))}]"

    queries = (8, rows, heads, 128) if batch == 0 else (rows, 8, heads, 128)
    keys = (8, 256, 128) if batch == 0 else (256, 8, 128)
    q, k = shape("bf16", *queries), shape("bf16", *keys)
    narrow, wide, sums = (
        shape(dtype, *sizes)
        for dtype, sizes in (
            ("bf16", (8, rows, heads, 256)),
            ("f32", (8, rows, heads, 256)),
            ("f32", (8, rows, heads)),
        )
    )
    last = 3 if heads > 1 else 2
    along = ",".join(map(str, range(last)))
    batched = f"lhs_batch_dims={{{batch}}}, rhs_batch_dims={{{batch}}}"
    inner = f"{batched}, lhs_contracting_dims={{{last}}}, rhs_contracting_dims={{2}}"
    outer = (
        f"lhs_batch_dims={{0}}, rhs_batch_dims={{{batch}}}, lhs_contracting_dims={{{last}}}, "
        f"rhs_contracting_dims={{{1 - batch}}}"
    )
    out = shape("bf16", 8, rows, heads, 128)
    made = f"""
        %w = bf16[128,128] parameter(4)
        %q = {q} dot(%q0, %w), lhs_contracting_dims={{{last}}}, rhs_contracting_dims={{0}}
        %k = {k} dot(%k0, %w), lhs_contracting_dims={{2}}, rhs_contracting_dims={{0}}
    """
    masked = f"""
        %mask = {wide.replace("f32", "pred")} constant({{...}})
        %low = {wide} constant({{...}})
        %sw = {wide} convert(%s)
        %sf = {wide} select(%mask, %sw, %low)
    """
    summed = "lhs_contracting_dims={1}, rhs_contracting_dims={1}"
    late = f"""
        %dv = {k} dot(%p, %g), {batched}, {summed}
        ROOT %r = ({out}, {out}, {out}, {k}) tuple(%o, %dq, %dk, %dv)
    """
    back = f"""
        %dp = {narrow} dot({"%o" if is_late else "%g"}, %k), {inner}
        %dpf = {wide} convert(%dp)
        %pd = {wide} multiply(%dpf, %n)
        %u = {sums} reduce(%pd, %z), dimensions={{{last}}}, to_apply=%add
        %ub = {wide} broadcast(%u), dimensions={{{along}}}
        %dd = {wide} subtract(%dpf, %ub)
        %dn = {wide} multiply(%dd, %n)
        %ds = {narrow} convert(%dn)
        %dq = {out} dot(%ds, %k), {outer}
        %dk = {out} dot(%ds, %v), {outer}
        {late if is_late else f"ROOT %r = ({out}, {out}, {out}) tuple(%o, %dq, %dk)"}
    """
    text = entry(f"""
        %q{0 if is_made else ""} = {q} parameter(0)
        %k{0 if is_made else ""} = {k} parameter(1)
        %v = {k} parameter(2)
        %g = {q} parameter(3)
        %z = f32[] constant(0)
        {made if is_made else ""}
        %s = {narrow} dot(%q, %k), {inner}
        {masked if is_masked else f"%sf = {wide} convert(%s)"}
        %m = {sums} reduce(%sf, %z), dimensions={{{last}}}, to_apply=%add
        %mb = {wide} broadcast(%m), dimensions={{{along}}}
        %c = {wide} subtract(%sf, %mb)
        %e = {wide} exponential(%c)
        %t = {sums} reduce(%e, %z), dimensions={{{last}}}, to_apply=%add
        %tb = {wide} broadcast(%t), dimensions={{{along}}}
        %n = {wide} divide(%e, %tb)
        %p = {narrow} convert(%n)
        %o = {out} dot(%p, %v), {outer}
        {back if gradients else f"ROOT %r = {out} add(%o, %o)"}
    """)
    return program_of(text)


@pytest.mark.parametrize(
    ("chip", "heads", "batch", "gradients", "held"),
    [
        # One head: scores in bf16 and exponentials in f32; one kernel where the batches are first.
        ("v5p", 1, 1, False, "e s"),
        ("v5p", 1, 0, False, "e"),
        ("v5p", 1, 0, True, "dp ds e s"),
        ("v7x", 1, 1, False, "e"),
        ("v6e", 1, 1, False, "e s"),
        # Several: exponentials are made again for gradients, and where the batches are first.
        ("v5p", 2, 1, False, "e s"),
        ("v5p", 2, 0, False, "s"),
        ("v5p", 2, 1, True, "dp ds s"),
        ("v6e", 2, 1, True, "dp ds s"),
        ("v6e", 2, 0, True, "dp s"),
        ("v5e", 2, 1, True, "dp s"),
    ],
)
def test_scores_of_attention_are_in_memory_on_a_tpu(
    chip: str, heads: int, batch: int, gradients: bool, held: str
) -> None:
    """As libtpu 0.0.52 has it, of `jax.nn.softmax` in f32 over an einsum in bf16."""
    device = Device("tpu", softmax=SOFTMAXES.get(chip, Softmax()))
    found = reasons_in(peak_of(scores_of(heads, batch, gradients), device))
    assert " ".join(sorted(found.keys() & {"s", "e", "dp", "ds"})) == held


@pytest.mark.parametrize(
    ("chip", "gradients", "is_masked", "held"),
    [
        # Queries and keys of a layer: their batches come first in memory, as libtpu likes.
        ("v5p", False, True, "e"),
        ("v5p", False, False, "s"),
        ("v6e", False, False, "s"),
        # The kernel of the gradients of scores writes probabilities that are computed again.
        ("v5e", True, True, "dp ds e p"),
        ("v5e", True, False, "dp ds s"),
        ("v6e", True, False, "dp ds p s"),
    ],
)
def test_scores_of_a_layer_are_laid_out_by_the_compiler(
    chip: str, gradients: bool, is_masked: bool, held: str
) -> None:
    """As libtpu 0.0.52 has it where the layer projects its queries and keys itself."""
    device = Device("tpu", softmax=SOFTMAXES.get(chip, Softmax()))
    program = scores_of(1, 1, gradients, is_made=True, is_masked=is_masked)
    found = reasons_in(peak_of(program, device))
    assert " ".join(sorted(found.keys() & {"s", "e", "p", "dp", "ds"})) == held


def layer_scores(row: int, keys: str, *, is_flat: bool) -> Program:
    """Return attention of 4 heads over 2,048 queries that a layer projects, masked, in bf16.

    Args:
      keys: own: of each head; repeated: of 2 heads, twice; one: of one head, four times.
      is_flat: that the products of the layer make its heads as one dimension.
    """
    count = {"own": 4, "repeated": 2, "one": 1}[keys]
    wide, narrow = f"f32[2,4,2048,{row}]", f"bf16[2,4,2048,{row}]"

    def projected(name: str, at: int, length: int, heads: int) -> str:
        sizes = f"{128 * heads}" if is_flat else f"{heads},128"
        dims = "lhs_contracting_dims={2}, rhs_contracting_dims={0}"
        return f"""
        %{name}x = bf16[2,{length},512] parameter({at})
        %{name}w = bf16[512,{sizes}] parameter({at + 1})
        %{name}d = bf16[2,{length},{sizes}] dot(%{name}x, %{name}w), {dims}
        %{name} = bf16[2,{length},{heads},128] reshape(%{name}d)
        """

    copies = f"""
        %kb = bf16[2,{row},{count},{4 // count},128] broadcast(%k), dimensions={{0,1,2,4}}
        %kr = bf16[2,{row},4,128] reshape(%kb)
        %vb = bf16[2,{row},{count},{4 // count},128] broadcast(%v0), dimensions={{0,1,2,4}}
        %v = bf16[2,{row},4,128] reshape(%vb)
    """
    batched = "lhs_batch_dims={0,2}, rhs_batch_dims={0,2}, lhs_contracting_dims={3}"
    summed = "lhs_batch_dims={0,1}, rhs_batch_dims={0,2}, lhs_contracting_dims={3}"
    text = entry(f"""
        {projected("q", 0, 2048, 4)}
        {projected("k", 2, row, count)}
        %v{0 if count < 4 else ""} = bf16[2,{row},{count},128] parameter(4)
        {copies if count < 4 else ""}
        %z = f32[] constant(0)
        %mask = {wide.replace("f32", "pred")} constant({{...}})
        %low = {wide} constant({{...}})
        %s = {narrow} dot(%q, %{"kr" if count < 4 else "k"}), {batched}, rhs_contracting_dims={{3}}
        %sw = {wide} convert(%s)
        %sf = {wide} select(%mask, %sw, %low)
        %m = f32[2,4,2048] reduce(%sf, %z), dimensions={{3}}, to_apply=%add
        %mb = {wide} broadcast(%m), dimensions={{0,1,2}}
        %c = {wide} subtract(%sf, %mb)
        %e = {wide} exponential(%c)
        %t = f32[2,4,2048] reduce(%e, %z), dimensions={{3}}, to_apply=%add
        %tb = {wide} broadcast(%t), dimensions={{0,1,2}}
        %n = {wide} divide(%e, %tb)
        %p = {narrow} convert(%n)
        %o = bf16[2,4,2048,128] dot(%p, %v), {summed}, rhs_contracting_dims={{1}}
        ROOT %r = bf16[2,4,2048,128] add(%o, %o)
    """)
    return program_of(text)


def test_copies_of_values_are_in_memory_and_those_of_keys_are_not() -> None:
    """As libtpu 0.0.52 has it: a product that sums up copies by probabilities reads them."""
    found = reasons_in(peak_of(layer_scores(1024, "repeated", is_flat=False), Device("tpu")))
    assert "kb" not in found
    assert found["vb"] == "is read by a product"


@pytest.mark.parametrize("keys", ["own", "repeated", "one"])
@pytest.mark.parametrize("is_flat", [False, True])
@pytest.mark.parametrize(
    ("chip", "row", "joined"),
    [
        ("v4", 1024, "own, own flat, one, one flat"),
        ("v4", 2048, "own, own flat, one, one flat"),
        ("v5p", 1024, "own, one, one flat"),
        ("v5p", 2048, "own flat, repeated flat, one, one flat"),
        ("v6e", 1024, "one, one flat"),
        ("v6e", 2048, "own, own flat, repeated, repeated flat, one, one flat"),
    ],
)
def test_scores_that_a_layer_makes_are_inside_one_kernel_by_chip_row_and_keys(
    chip: str, row: int, joined: str, keys: str, is_flat: bool
) -> None:
    """As libtpu 0.0.52 has it of a forward pass: scores are in memory where they are not joined."""
    device = Device("tpu", softmax=SOFTMAXES.get(chip, Softmax()))
    found = reasons_in(peak_of(layer_scores(row, keys, is_flat=is_flat), device))
    assert "e" in found
    assert ("s" not in found) == ((f"{keys} flat" if is_flat else keys) in joined.split(", "))


@pytest.mark.parametrize(("chip", "is_written"), [("v5e", False), ("v5p", True)])
def test_probabilities_that_their_gradients_wait_for_are_kept_on_v5p(
    chip: str, is_written: bool
) -> None:
    """Without rematerialization the gradient comes back only when attention has returned.

    On v5p a kernel writes for both products what v5e computes inside each.
    """
    program = scores_of(1, 0, True, is_made=True, is_masked=True, is_late=True)
    found = reasons_in(peak_of(program, Device("tpu", softmax=SOFTMAXES.get(chip, Softmax()))))
    assert ("p" in found) == is_written


ATTENTION = """
    %q = bf16[8,{rows},256]{{2,1,0}} parameter(0)
    %k = bf16[8,{row},256]{{2,1,0}} parameter(1)
    %g = bf16[8,{rows},256]{{2,1,0}} parameter(2)
    %z = f32[] constant(0)
    %low = f32[] constant(-1e9)
    %lows = {scores} broadcast(%low), dimensions={{}}
    %i = s32[{rows},{row}]{{1,0}} iota(), iota_dimension=0
    %j = s32[{rows},{row}]{{1,0}} iota(), iota_dimension=1
    %ge = pred[{rows},{row}]{{1,0}} compare(%i, %j), direction=GE
    %mask = pred[8,{rows},{row}]{{2,1,0}} broadcast(%ge), dimensions={{1,2}}
    %s = {narrow} dot(%q, %k), {batched}, rhs_contracting_dims={{2}}
    %sf = {scores} convert(%s)
    %ms = {scores} select(%mask, %sf, %lows)
    %m = f32[8,{rows}]{{1,0}} reduce(%ms, %z), dimensions={{2}}, to_apply=%add
    %mb = {scores} broadcast(%m), dimensions={{0,1}}
    %c = {scores} subtract(%ms, %mb)
    %e = {scores} exponential(%c)
    %t = f32[8,{rows}]{{1,0}} reduce(%e, %z), dimensions={{2}}, to_apply=%add
    %tb = {scores} broadcast(%t), dimensions={{0,1}}
    %dp = {narrow} dot(%g, %k), {batched}, rhs_contracting_dims={{2}}
    %dpf = {scores} convert(%dp)
    %dn = {scores} divide(%dpf, %tb)
    %dsf = {scores} multiply(%dn, %e)
    %ds = {narrow} convert(%dsf)
    %dq = bf16[8,{rows},256]{{2,1,0}} dot(%ds, %k), {batched}, rhs_contracting_dims={{1}}
    %dk = bf16[8,{row},256]{{2,1,0}} dot(%ds, %q), {summed}, rhs_contracting_dims={{1}}
    ROOT %o = (bf16[8,{rows},256]{{2,1,0}}, bf16[8,{row},256]{{2,1,0}}) tuple(%dq, %dk)
"""


def attention(rows: int, row: int) -> Program:
    """Return a program of the scores of attention and their gradients."""
    dims = {"scores": f"f32[8,{rows},{row}]{{2,1,0}}", "narrow": f"bf16[8,{rows},{row}]{{2,1,0}}"}
    batches = "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims="
    sums = {"batched": batches + "{2}", "summed": batches + "{1}"}
    return program_of(entry(ATTENTION.format(rows=rows, row=row, **dims, **sums)))


def test_gradients_of_scores_are_in_memory_for_the_two_products_that_read_them() -> None:
    found = peak_of(attention(256, 256), Device("tpu"))
    assert reasons_in(found)["ds"] == "is read by 2 products"


@pytest.mark.parametrize(
    ("rows", "row", "is_spread"),
    [(2048, 2048, False), (4096, 4096, True), (1024, 4096, False), (8192, 8192, False)],
)
def test_softmax_reads_its_constants_from_memory_for_some_rows(
    rows: int, row: int, is_spread: bool
) -> None:
    device = Device("tpu", softmax=SOFTMAXES["v6e"])
    values = peak_of(attention(rows, row), device).values
    spread = {v.instruction.name for v in values if v.instruction and v.why.endswith("softmax")}
    assert spread == ({"mask", "lows"} if is_spread else set())


@pytest.mark.parametrize(
    ("rows", "row", "width"), [(2048, 2048, 4), (4096, 2048, 4), (2048, 4096, 2), (1024, 1024, 2)]
)
def test_product_masks_scores_that_have_no_fewer_rows_than_keys(
    rows: int, row: int, width: int
) -> None:
    values = peak_of(attention(rows, row), Device("tpu")).values
    found = {each.instruction.name: each.bytes for each in values if each.instruction}
    assert found["s"] == width * 8 * rows * row


def test_scores_of_groups_are_computed_again_where_there_is_no_room() -> None:
    def made(usable: int | None, chip: str = "v5p") -> dict[str, str]:
        softmax = SOFTMAXES.get(chip, Softmax())
        device = Device("tpu", usable_bytes=usable, softmax=softmax)
        return reasons_in(peak_of(scores_of(2, 1, False), device))

    assert {"s", "e"} <= made(None).keys()
    assert "e" not in made(1)
    assert "e" in made(1, "v6e")


NEURONS = """
    %p = {wide} parameter(0)
    %w = {wide} parameter(1)
    %a = {wide} {operation}(%p)
    %x = {wide} add(%a, %p)
    %y = {wide} multiply(%a, %w)
    %m = {wide} dot(%x, %w), {dot}
    %o = {wide} dot(%y, %m), {dot}
    ROOT %r = {small} slice(%o), slice={{[0:8], [0:512]}}
"""


@pytest.mark.parametrize(
    ("operation", "dtype", "rates", "mib"),
    [
        ("tanh", "bf16", HOPPER, 0.5),
        ("tanh", "bf16", AMPERE, 1),
        ("exponential", "f32", HOPPER, None),
        ("sine", "f32", HOPPER, 1),
        ("rsqrt", "f32", HOPPER, None),
        ("negate", "bf16", HOPPER, None),
        ("log", "f32", AMPERE, 1),
    ],
)
def test_gpu_keeps_what_costs_more_to_compute_again_than_to_read(
    operation: str, dtype: str, rates: Rates, mib: float | None
) -> None:
    wide, small = f"{dtype}[512,512]{{1,0}}", f"{dtype}[8,512]{{1,0}}"
    lines = NEURONS.format(wide=wide, small=small, operation=operation, dot=DOT)
    values = peak_of(program_of(entry(lines)), Device("gpu", rates=rates)).values
    kept = [each.bytes / MIB for each in values if each.why.endswith("kernels")]
    assert kept == ([] if mib is None else [mib])


LOOP = """\
%body (t: (s32[], f32[512,512])) -> (s32[], f32[512,512]) {{
  %t = {state} parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %one = s32[] constant(1)
  %zero = s32[] constant(0)
  %next = s32[] add(%i, %one)
  %c = f32[512,512]{{1,0}} get-tuple-element(%t), index=1
  %w = f32[4,512,512]{{2,1,0}} get-tuple-element(%t), index=2
  %y = f32[4,512,512]{{2,1,0}} get-tuple-element(%t), index=3
  %ws = f32[1,512,512]{{2,1,0}} dynamic-slice(%w, %i, %zero, %zero)
  %wr = f32[512,512]{{1,0}} reshape(%ws)
  {inner}
  %up = f32[1,512,512]{{2,1,0}} reshape(%n)
  %yn = f32[4,512,512]{{2,1,0}} dynamic-update-slice(%y, %up, %i, %zero, %zero)
  ROOT %r = {state} tuple(%next, %n, %w, %yn)
}}
%cond (t: (s32[], f32[512,512])) -> pred[] {{
  %t = {state} parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %four = s32[] constant(4)
  ROOT %lt = pred[] compare(%i, %four), direction=LT
}}
"""
STACK = "f32[4,512,512]{2,1,0}"
STATE = f"(s32[], {BIG}, {STACK}, {STACK})"


def looped(inner: str) -> str:
    """Return a program with a loop over a stack, whose rounds make `%n` out of `%c` and `%wr`."""
    return entry(AROUND, before=LOOP.format(inner=inner, state=STATE))


AROUND = f"""
    %x = {BIG} parameter(0)
    %w = {STACK} parameter(1)
    %zero = s32[] constant(0)
    %none = f32[] constant(0)
    %ys = {STACK} broadcast(%none), dimensions={{}}
    %given = (s32[], {BIG}, {STACK}, {STACK}) tuple(%zero, %x, %w, %ys)
    %loop = (s32[], {BIG}, {STACK}, {STACK}) while(%given), condition=%cond, body=%body
    %c = {BIG} get-tuple-element(%loop), index=1
    %y = {STACK} get-tuple-element(%loop), index=3
    ROOT %t = ({BIG}, {STACK}) tuple(%c, %y)
"""


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize(("of", "is_ahead"), [("%w", True), ("%y", False)])
def test_what_a_loop_exchanges_alike_in_each_round_lives_as_long_as_it(
    platform: Platform, of: str, is_ahead: bool
) -> None:
    groups = "replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}"
    inner = f"""
        %again = {STACK} all-to-all({of}), channel_id=1, {groups}
        %part = {BIG} slice(%again), slice={{[1:2], [0:512], [0:512]}}
        %m = {BIG} dot(%c, %part), {DOT}
        %n = {BIG} dot(%m, %wr), {DOT}
    """
    found = peak(looped(inner), platform)
    (sent,) = (each for each in found.values if _makes(each, "again"))
    (product,) = (each for each in found.values if _makes(each, "m"))
    assert (sent.dies > product.dies) == is_ahead


def _makes(each: Held, name: str) -> bool:
    return each.instruction is not None and each.instruction.name == name


def test_loop_keeps_its_carry_and_fills_its_stack_in_place() -> None:
    inner = "%n = f32[512,512]{1,0} add(%c, %wr)"
    found = peak(looped(inner), donated=(0,))
    assert found.given_bytes == 5 * MIB
    # the stack of the results; the carry takes the parameter's memory, and the round its own
    assert 4 * MIB <= found.made_bytes < 6 * MIB + 64


def test_what_a_round_makes_is_alive_beside_the_outside() -> None:
    inner = f"%n = f32[512,512]{{1,0}} dot(%c, %wr), {DOT}"
    one = peak(looped(inner))
    first = f"%m = f32[512,512]{{1,0}} dot(%c, %wr), {DOT}\n"
    inner = f"{first}  %n = f32[512,512]{{1,0}} dot(%m, %m), {DOT}"
    two = peak(looped(inner))
    assert two.made_bytes >= one.made_bytes


def test_donated_cache_that_a_loop_reads_and_writes_anew_is_held_twice() -> None:
    inner = "%n = f32[512,512]{1,0} add(%c, %wr)"
    text = looped(inner)
    assert peak(text, donated=(0, 1)).made_bytes >= 4 * MIB


def test_tpu_converts_a_stack_before_the_loop_that_slices_it() -> None:
    inner = (
        f"%wb = bf16[512,512]{{1,0}} convert(%wr)\n  %n = f32[512,512]{{1,0}} dot(%c, %wb), {DOT}"
    )
    text = looped(inner)
    narrow = [each.bytes for each in peak(text, "tpu").values if each.dtype == "bf16"]
    assert 2 * MIB in narrow
    assert 2 * MIB not in [each.bytes for each in peak(text, "gpu").values if each.dtype == "bf16"]


def test_tpu_converts_a_stack_before_a_loop_also_behind_a_barrier() -> None:
    """A layer that is rematerialized reads its weights behind one, as `jax.checkpoint` has it."""
    inner = (
        "%bar = (f32[512,512]{1,0}, s32[]) opt-barrier(%wr, %i)\n"
        "  %wk = f32[512,512]{1,0} get-tuple-element(%bar), index=0\n"
        "  %wb = bf16[512,512]{1,0} convert(%wk)\n"
        f"  %n = f32[512,512]{{1,0}} dot(%c, %wb), {DOT}"
    )
    text = looped(inner).replace("opt-barrier(%wr, %i)", "opt-barrier(%pair)")
    pair = "%pair = (f32[512,512]{1,0}, s32[]) tuple(%wr, %i)\n  %bar = "
    found = peak(text.replace("%bar = ", pair, 1), "tpu")
    assert 2 * MIB in [each.bytes for each in found.values if each.dtype == "bf16"]


#: A parameter whose new value is gathered from the shards that a device has computed.
UPDATED = f"""
    %w = {BIG} parameter(0)
    %g = f32[64,512]{{1,0}} parameter(1)
    %zero = s32[] constant(0)
    %own = f32[64,512]{{1,0}} dynamic-slice(%w, %zero, %zero), dynamic_slice_sizes={{64,512}}
    %new = f32[64,512]{{1,0}} subtract(%own, %g)
    %all = {BIG} all-gather(%new), channel_id=1, replica_groups=[1,8]<=[8], dimensions={{0}}
    ROOT %t = ({BIG}) tuple(%all)
"""


@pytest.mark.parametrize(("platform", "copies"), [("tpu", 1), ("gpu", 0)])
def test_a_donated_parameter_that_a_gather_writes_is_copied_on_a_tpu(
    platform: Platform, copies: int
) -> None:
    """As libtpu 0.0.52 has it on all chips; the array that is gathered is copied as well."""
    found = peak(entry(UPDATED), platform, donated=(0,))
    copied = [each for each in found.values if each.why == "copy"]
    assert [each.bytes for each in copied] == [MIB] * copies
    large = [each.why for each in found.values if each.bytes == MIB]
    assert large.count("all-gather") == copies


#: A layer that multiplies two products, and the gradient of the weights behind it.
GATED = f"""
    %x = {HALF} parameter(0)
    %w = {HALF} parameter(1)
    %v = {HALF} parameter(2)
    %dy = {HALF} parameter(3)
    %a = {HALF} dot(%x, %w), {DOT}
    %b = {HALF} dot(%x, %v), {DOT}
    %s = {HALF} OPERATION(%a)
    %h = {HALF} multiply(%s, %b)
    %down = {HALF} dot(%h, %w), {DOT}
    %back = {HALF} dot(%dy, %w), {DOT}
    %grad = {HALF} dot(%h, %back), {DOT}
"""
ALONE = "ROOT %t = () tuple(%down, %grad, %a, %b)"
ADDED = f"%sum = {HALF} add(%down, %x)\nROOT %t = () tuple(%sum, %grad, %a, %b)"
CHAINED = GATED.replace("dot(%h, %back)", "dot(%h, %twice)").replace(
    "%back = ", f"%twice = {HALF} add(%down, %down)\n    %back = "
)


@pytest.mark.parametrize(
    ("chip", "operation", "text", "is_written"),
    [
        ("v4", "logistic", GATED + ALONE, True),
        ("v4", "tanh", GATED + ALONE, True),
        ("v4", "logistic", GATED + ADDED, True),
        ("v7x", "logistic", GATED + ADDED, True),
        ("v5p", "logistic", GATED + ALONE, True),
        ("v5p", "tanh", GATED + ALONE, False),
        ("v5p", "logistic", GATED + ADDED, False),
        ("v5e", "logistic", GATED + ALONE, False),
        ("v6e", "logistic", GATED + ALONE, False),
        # The gradient reads what the kernel of the product ends with.
        ("v4", "logistic", CHAINED + "ROOT %t = () tuple(%grad, %back, %a, %b)", False),
    ],
)
def test_a_product_writes_the_gate_that_two_products_read(
    chip: str, operation: str, text: str, is_written: bool
) -> None:
    device = Device("tpu", gates=GATES.get(chip, "none"))
    program = program_of(entry(text.replace("OPERATION", operation)))
    assert ("h" in reasons_in(peak_of(program, device))) == is_written


def test_relu_is_computed_again_for_each_product() -> None:
    text = GATED.replace("OPERATION(%a)", "maximum(%a, %x)")
    found = peak_of(program_of(entry(text + ALONE)), Device("tpu", gates="all"))
    assert "h" not in reasons_in(found)


def test_a_result_is_not_written_where_a_product_beside_it_is_on_a_tpu() -> None:
    """Two products that are added: the first one is in memory beside the sum of both."""
    text = entry(f"""
        %x = {BIG} parameter(0)
        %a = {BIG} dot(%x, %x), {DOT}
        %b = {BIG} dot(%a, %x), {DOT}
        ROOT %t = {BIG} add(%b, %a)
    """)
    assert [peak(text, each).made_bytes for each in PLATFORMS] == [2 * MIB, 2 * MIB]


def decode(tokens: int) -> Program:
    """Return two layers over some tokens, each with a weight that is gathered."""
    gather = "channel_id={}, replica_groups=[1,8]<=[8], dimensions={{0}}"
    x, own = f"f32[{tokens},512]{{1,0}}", "f32[64,512]{1,0}"
    return program_of(
        entry(f"""
            %x = {x} parameter(0)
            %v = {own} parameter(1)
            %w = {own} parameter(2)
            %a = {BIG} all-gather(%v), {gather.format(1)}
            %y = {x} dot(%x, %a), {DOT}
            %b = {BIG} all-gather(%w), {gather.format(2)}
            ROOT %t = {x} dot(%y, %b), {DOT}
        """)
    )


@pytest.mark.parametrize(
    ("chip", "tokens", "weights"), [("v5e", 8, 2), ("v5p", 8, 2), ("v6e", 8, 1), ("v5e", 512, 1)]
)
def test_weights_that_few_tokens_read_are_all_gathered_first(
    chip: str, tokens: int, weights: int
) -> None:
    found = peak_of(decode(tokens), Device("tpu", gathers_first=chip in GATHERS_FIRST))
    assert [each.why for each in found.alive if each.bytes == MIB].count("all-gather") == weights


def gathered(dimension: int) -> str:
    """Return a loop that gathers a slice of its stack along a dimension."""
    shape = "f32[4096,512]{1,0}" if dimension == 0 else "f32[512,4096]{1,0}"
    inner = (
        f"%g = {shape} all-gather(%wr), channel_id=1, replica_groups=[1,8]<=[8], "
        f"dimensions={{{dimension}}}\n"
        f"  %n = f32[512,512]{{1,0}} slice(%g), slice={{[0:512], [0:512]}}"
    )
    return looped(inner)


def test_gpu_transposes_a_stack_that_is_not_gathered_along_its_first_dimension() -> None:
    assert peak(gathered(1)).made_bytes - peak(gathered(0)).made_bytes == 4 * MIB
    assert peak(gathered(1), "tpu").made_bytes == peak(gathered(0), "tpu").made_bytes


def looked_up(keys: str, batch: str) -> str:
    """Return a loop with a product of 128 queries for each of 8 x 4 batches, and a slice as keys.

    Args:
      keys: the shape of the slice.
      batch: the dimensions of the batches in it.
    """
    dims = f"lhs_batch_dims={{0,1}}, lhs_contracting_dims={{3}}, rhs_batch_dims={batch}"
    inner = (
        f"%q = f32[8,4,128,64]{{3,2,1,0}} reshape(%c)\n"
        f"  %k = f32[{keys}]{{3,2,1,0}} reshape(%wr)\n"
        f"  %d = f32[8,4,128,128]{{3,2,1,0}} dot(%q, %k), {dims}, rhs_contracting_dims={{3}}\n"
        f"  %half = f32[8,4,128,64]{{3,2,1,0}} slice(%d), "
        f"slice={{[0:8], [0:4], [0:128], [0:64]}}\n"
        f"  %n = f32[512,512]{{1,0}} reshape(%half)"
    )
    return looped(inner)


def test_gpu_transposes_a_stack_whose_batches_are_not_its_first_dimensions() -> None:
    turned, plain = looked_up("8,128,4,64", "{0,2}"), looked_up("8,4,128,64", "{0,1}")
    assert peak(turned).made_bytes - peak(plain).made_bytes == 4 * MIB
    assert peak(turned, "tpu").made_bytes == peak(plain, "tpu").made_bytes


@pytest.mark.parametrize(("labels", "is_turned"), [("b0f_0io", True), ("b0f_o0i", False)])
def test_gpu_reads_filters_with_their_outputs_first(labels: str, is_turned: bool) -> None:
    """cuDNN's order: the filters that a loop reads one after another are turned before it."""
    inner = (
        f"%f = f32[8,64,512]{{2,1,0}} reshape(%wr)\n"
        f"  %cb = f32[1,512,512]{{2,1,0}} reshape(%c)\n"
        f"  %v = f32[1,512,512]{{2,1,0}} convolution(%cb, %f), window={{size=8 pad=4_3}}, "
        f"dim_labels={labels}->b0f, feature_group_count=8\n"
        f"  %n = f32[512,512]{{1,0}} reshape(%v)"
    )
    assert ("transpose" in {each.why for each in peak(looped(inner)).values}) == is_turned
    assert "transpose" not in {each.why for each in peak(looped(inner), "tpu").values}


def test_what_a_turned_stack_becomes_is_turned_back_into_what_was_donated() -> None:
    text = looked_up("8,128,4,64", "{0,2}").replace("%w, %yn)", "%yn, %yn)")
    text = text.replace("dynamic-update-slice(%y,", "dynamic-update-slice(%w,")
    text = text.replace("(%loop), index=3", "(%loop), index=2")
    kept, donated = peak(text), peak(text, donated=(1,))
    turned = [each for each in donated.values if each.bytes == 4 * MIB]
    assert {each.why for each in turned} >= {"transpose"}
    assert donated.bytes < kept.bytes


def test_gpu_sums_what_a_vector_is_multiplied_with_where_that_is_read() -> None:
    """A step with one query for each head: keys are not written, and their stack is not turned."""
    dims = "lhs_batch_dims={0,1}, lhs_contracting_dims={3}, rhs_batch_dims={0,2}"
    inner = (
        f"%m = f32[8,128,4,64]{{3,2,1,0}} reshape(%wr)\n"
        f"  %k = f32[8,128,4,64]{{3,2,1,0}} negate(%m)\n"
        f"  %cs = f32[4,512]{{1,0}} slice(%c), slice={{[0:4], [0:512]}}\n"
        f"  %q = f32[8,4,1,64]{{3,2,1,0}} reshape(%cs)\n"
        f"  %d = f32[8,4,1,128]{{3,2,1,0}} dot(%q, %k), {dims}, rhs_contracting_dims={{3}}\n"
        f"  %v = f32[8,4,128]{{2,1,0}} reshape(%d)\n"
        f"  %e = f32[8,4,128,64]{{3,2,1,0}} broadcast(%v), dimensions={{0,1,2}}\n"
        f"  %n = f32[512,512]{{1,0}} reshape(%e)"
    )
    whys = {each.why for each in peak(looped(inner)).values}
    assert not {"transpose", "product", "is read by a product"} & whys


LOOKUP = """
    %indices = s32[64,8]{{1,0}} parameter(0)
    %table = bf16[512,512]{{1,0}} parameter(1)
    %cut = s32[64,8]{{1,0}} {given}
    %every = s32[64,8,512]{{2,1,0}} broadcast(%cut), dimensions={{0,1}}
    %count = s32[512]{{0}} iota(), iota_dimension=0
    %columns = s32[64,8,512]{{2,1,0}} broadcast(%count), dimensions={{2}}
    %same = pred[64,8,512]{{2,1,0}} compare(%every, %columns), direction=EQ
    %rows = bf16[64,8,512]{{2,1,0}} convert(%same)
    %flat = bf16[512,512]{{1,0}} reshape(%rows)
    ROOT %out = bf16[512,512]{{1,0}} {reader}
"""
LOOKED = f"dot(%flat, %table), {DOT}"


@pytest.mark.parametrize(
    ("given", "reader", "written"),
    [
        ("reshape(%indices)", LOOKED, "s32"),
        ("negate(%indices)", LOOKED, "bool"),
        ("reshape(%indices)", "add(%flat, %table)", ""),
    ],
)
def test_gpu_writes_numbers_of_columns_that_a_product_compares_indices_with(
    given: str, reader: str, written: str
) -> None:
    text = entry(LOOKUP.format(given=given, reader=reader))
    found = [each for each in peak(text).values if each.why == "is compared in a product"]
    assert [each.dtype for each in found] == ([written] if written else [])
    assert all(each.shape == (64, 8, 512) for each in found)
    assert "is compared in a product" not in {each.why for each in peak(text, "tpu").values}


@pytest.mark.parametrize(("platform", "is_kept"), [("gpu", True), ("tpu", False)])
def test_gpu_keeps_what_is_put_together_for_several_kernels(
    platform: Platform, is_kept: bool
) -> None:
    text = entry(f"""
        %p = {BIG} parameter(0)
        %q = {BIG} parameter(1)
        %c = f32[1024,512]{{1,0}} concatenate(%p, %q), dimensions={{0}}
        %a = f32[1024,512]{{1,0}} negate(%c)
        %b = f32[1024,512]{{1,0}} sine(%c)
        ROOT %t = (f32[1024,512], f32[1024,512]) tuple(%a, %b)
    """)
    found = {each.why for each in peak(text, platform).values}
    assert ("concatenate, read by 2 kernels" in found) == is_kept


@pytest.mark.parametrize(("also", "is_turned"), [("%p", False), ("%d", True)])
def test_gpu_writes_a_gradient_as_all_read_it(also: str, is_turned: bool) -> None:
    """What is read in both orders is in memory as it is made, and so is turned for one of them."""
    text = entry(f"""
        %p = {BIG} parameter(0)
        %x = {BIG} parameter(1)
        %d = {BIG} dot(%x, %x), {DOT}
        %t = {BIG} transpose(%d), dimensions={{1,0}}
        %g = {BIG} negate(%t)
        %n = {BIG} add(%p, %g)
        %o = {BIG} multiply(%n, {also})
        ROOT %r = f32[8,512]{{1,0}} slice(%o), slice={{[0:8], [0:512]}}
    """)
    assert ("transpose" in {each.why for each in peak(text).values}) == is_turned


@pytest.mark.parametrize("parts", [2, 3, 4, 5])
@pytest.mark.parametrize("readers", [2, 3, 4])
def test_gpu_writes_a_sum_of_many_arrays_once_for_several_kernels(parts: int, readers: int) -> None:
    """Each kernel would read all of the arrays; or one writes the sum, and all read that."""
    lines = [f"%p{at} = {BIG} parameter({at})" for at in range(parts)]
    lines += [f"%s1 = {BIG} add(%p0, %p1)"]
    lines += [f"%s{at} = {BIG} add(%s{at - 1}, %p{at})" for at in range(2, parts)]
    kinds = ("negate", "sine", "cosine", "sqrt")[:readers]
    lines += [f"%r{at} = {BIG} {kind}(%s{parts - 1})" for at, kind in enumerate(kinds)]
    outs = ", ".join(f"%r{at}" for at in range(readers))
    lines += [f"ROOT %t = ({', '.join([BIG] * readers)}) tuple({outs})"]
    rates = Rates(1e9, {}, is_narrow=False)
    values = peak_of(program_of(entry("\n".join(lines))), Device("gpu", rates=rates)).values
    is_kept = any(each.why.startswith("add, read by") for each in values)
    assert is_kept == ((readers - 1) * parts > readers + 1)


LOGITS = f"""
    %p = {BIG} parameter(0)
    %l = s32[512,1]{{1,0}} parameter(1)
    %d = {BIG} dot(%p, %p), {DOT}
    %z = f32[] constant(0)
    %e = {BIG} exponential(%d)
    %s = f32[512]{{0}} reduce(%e, %z), dimensions={{1}}, to_apply=%add
"""


def test_gpu_gathers_the_logits_of_labels_before_their_gradient() -> None:
    """Check that logits are not kept for the loss, which only comes out at the end."""
    text = entry(f"""{LOGITS}
        %g = f32[512,1]{{1,0}} gather(%d, %l), offset_dims={{}}, slice_sizes={{1,1}}
        %f = f32[512]{{0}} reshape(%g)
        %n = f32[512]{{0}} subtract(%s, %f)
        %b = {BIG} broadcast(%s), dimensions={{0}}
        %o = {BIG} divide(%e, %b)
        %w = {BIG} dot(%o, %p), {DOT}
        %v = {BIG} dot(%w, %w), {DOT}
        %loss = f32[] reduce(%n, %z), dimensions={{0}}, to_apply=%add
        ROOT %r = (f32[], {BIG}) tuple(%loss, %v)
    """)
    assert reasons_of(text, "gpu")["n"] == "is gathered for a sum"
    born = {each.instruction.name: each.born for each in peak(text).values if each.instruction}
    assert born["n"] < born["o"]
    rows = text.replace("slice_sizes={1,1}", "slice_sizes={1,512}")
    assert "n" not in reasons_of(rows, "gpu")
    assert "n" not in reasons_of(text, "tpu")


def test_what_gpus_gather_of_one_array_does_not_wait_in_a_circle() -> None:
    text = entry(f"""{LOGITS}
        %k = s32[512,1]{{1,0}} parameter(2)
        %g = f32[512,1]{{1,0}} gather(%d, %l), offset_dims={{}}, slice_sizes={{1,1}}
        %n = f32[512,1]{{1,0}} multiply(%g, %g)
        %h = f32[512,1]{{1,0}} gather(%d, %k), offset_dims={{}}, slice_sizes={{1,1}}
        %i = f32[512]{{0}} reshape(%h)
        %m = f32[512]{{0}} multiply(%i, %s)
        %first = f32[] reduce(%m, %z), dimensions={{0}}, to_apply=%add
        %wide = f32[512]{{0}} broadcast(%first), dimensions={{}}
        %f = f32[512]{{0}} reshape(%n)
        %both = f32[512]{{0}} add(%f, %wide)
        %c = f32[512]{{0}} subtract(%both, %s)
        %b = {BIG} broadcast(%s), dimensions={{0}}
        %o = {BIG} divide(%e, %b)
        %w = {BIG} dot(%o, %p), {DOT}
        %loss = f32[] reduce(%c, %z), dimensions={{0}}, to_apply=%add
        ROOT %r = (f32[], {BIG}) tuple(%loss, %w)
    """)
    born = {each.instruction.name: each.born for each in peak(text).values if each.instruction}
    assert born["m"] < born["c"] < born["o"]


@pytest.mark.parametrize(("total", "buffers"), [("a", 1), ("s", 2)])
def test_gpu_writes_over_what_another_kernel_sums(total: str, buffers: int) -> None:
    text = entry(f"""{LOGITS}
        %q = f32[512,8]{{1,0}} parameter(2)
        %a = f32[512]{{0}} all-reduce(%s), replica_groups={{{{0,1}}}}, to_apply=%add
        %b = {BIG} broadcast(%{total}), dimensions={{0}}
        %o = {BIG} divide(%e, %b)
        ROOT %w = f32[512,8]{{1,0}} dot(%o, %q), {DOT}
    """)
    assert peak(text).made_bytes // MIB == buffers


def test_gpu_has_a_value_where_a_result_of_its_size_comes_later() -> None:
    text = entry(f"""
        %p = {BIG} parameter(0)
        %a = {BIG} dot(%p, %p), {DOT}
        %b = {BIG} dot(%a, %p), {DOT}
        ROOT %c = {BIG} dot(%b, %p), {DOT}
    """)
    assert peak(text).made_bytes == 2 * MIB
    assert len(peak(text).values) == 2


GROUPED = """
    %q = bf16[8,256,4,128]{{3,2,1,0}} parameter(0)
    %k = bf16[8,512,128]{{2,1,0}} parameter(1)
    %s = f32[8,256,4,512]{{3,2,1,0}} dot(%q, %k), {batched}, rhs_contracting_dims={{2}}
    %e = f32[8,256,4,512]{{3,2,1,0}} exponential(%s)
    %p = bf16[8,256,4,512]{{3,2,1,0}} convert(%e)
    %t = bf16[8,4,256,512]{{3,2,1,0}} transpose(%p), dimensions={{0,2,1,3}}
    ROOT %o = {made} dot({read}, %k), {batched}, rhs_contracting_dims={{1}}
"""


@pytest.mark.parametrize(
    ("read", "made", "is_turned"), [("%p", "8,256,4,128", False), ("%t", "8,4,256,128", True)]
)
def test_gpu_writes_scores_of_groups_in_the_order_that_a_product_asks_for(
    read: str, made: str, is_turned: bool
) -> None:
    batched = "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={3}"
    found = peak(entry(GROUPED.format(read=read, made=f"bf16[{made}]{{3,2,1,0}}", batched=batched)))
    assert ("transpose" in {each.why for each in found.values}) == is_turned
    assert sum(each.dtype == "bf16" and each.bytes == 8 * MIB for each in found.values) == 1


@pytest.mark.parametrize(("order", "is_turned"), [("{0,2,1}", True), ("{0,1,2}", False)])
def test_gpu_turns_a_value_beside_one_in_another_order(order: str, is_turned: bool) -> None:
    wide = "f32[8,256,256]{2,1,0}"
    batched = "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}"
    text = entry(f"""
        %x = {wide} parameter(0)
        %y = {wide} parameter(1)
        %a = {wide} dot(%x, %y), {batched}, rhs_contracting_dims={{2}}
        %b = {wide} dot(%y, %y), {batched}, rhs_contracting_dims={{2}}
        %n = {wide} negate(%b)
        %t = {wide} transpose(%n), dimensions={order}
        ROOT %c = {wide} add(%a, %t)
    """)
    assert ("transpose" in {each.why for each in peak(text).values}) == is_turned


def test_of_two_copies_in_a_loop_a_tpu_without_room_saves_one() -> None:
    text = looped("%n = f32[512,512]{1,0} add(%c, %wr)")
    text = text.replace("(%zero, %x, %w, %ys)", "(%zero, %x, %w, %v)")
    text = text.replace(
        "%ys = f32[4,512,512]{2,1,0} broadcast(%none), dimensions={}", f"%v = {STACK} parameter(2)"
    )
    text = text.replace("%w, %yn)", "%wn, %yn)").replace(
        "  %up =", f"  %wn = {STACK} add(%w, %w)\n  %up ="
    )
    text = text.replace(
        f"ROOT %t = ({BIG}, {STACK}) tuple(%c, %y)",
        f"%z = {STACK} get-tuple-element(%loop), index=2\n"
        f"  ROOT %t = ({BIG}, {STACK}, {STACK}) tuple(%c, %y, %z)",
    )

    def held(usable: int | None) -> int:
        return peak_of(program_of(text), Device("tpu", usable_bytes=usable), (1, 2)).made_bytes

    assert held(None) == held(64 * MIB)
    assert held(None) - held(8 * MIB) == 4 * MIB


def test_values_that_are_read_twice_are_walked_once() -> None:
    """64 squares in a row have 2**64 paths, and a kernel that two products read has them all."""
    squares = "\n".join(f"%n{at + 1} = {BIG} multiply(%n{at}, %n{at})" for at in range(64))
    text = f"""
        %p = {BIG} parameter(0)
        %q = {BIG} parameter(1)
        %d = {BIG} dot(%p, %q), {DOT}
        %n0 = {BIG} tanh(%d)
        {squares}
        %e = {BIG} dot(%n64, %q), {DOT}
        ROOT %f = {BIG} dot(%e, %n64), {DOT}
    """
    assert "n64" in reasons(text, "tpu")


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_an_update_that_is_selected_is_in_place(platform: Platform) -> None:
    """A device that has a part of a stack updates it in the rounds of that part alone."""
    inner = "%n = f32[512,512]{1,0} add(%c, %wr)"
    selected = (
        looped(inner)
        .replace("%w, %yn)", "%w, %ys)")
        .replace(
            "  ROOT %r",
            f"  %mine = pred[4,512,512]{{2,1,0}} broadcast(%p), dimensions={{}}\n"
            f"  %ys = {STACK} select(%mine, %yn, %y)\n  ROOT %r",
        )
    )
    selected = selected.replace(
        "  %next =", "  %p = pred[] compare(%i, %one), direction=LT\n  %next ="
    )
    assert peak(selected, platform).made_bytes <= peak(looped(inner), platform).made_bytes + 64


def test_gather_is_narrowed_where_all_readers_convert() -> None:
    text = entry(f"""
        %p = {BIG} parameter(0)
        %g = f32[4096,512]{{1,0}} all-gather(%p), replica_groups=[1,8]<=[8], dimensions={{0}}
        ROOT %c = bf16[4096,512]{{1,0}} convert(%g)
    """)
    assert "g" in names(peak(text))
    assert {each.dtype for each in peak(text).values} == {"bf16"}


def test_gpu_joins_small_gathers_over_the_same_devices() -> None:
    groups = ("[1,8]<=[8]", "{{0,1,2,3,4,5,6,7}}")
    lines = [
        f"%g{at} = f32[4096,512]{{1,0}} all-gather(%p{at}), channel_id={at + 1}, "
        f"replica_groups={groups[at]}, dimensions={{0}}\n"
        f"%d{at} = f32[512,512]{{1,0}} dot(%x{at}, %g{at}), {DOT}"
        for at in (0, 1)
    ]
    text = entry(f"""
        %p0 = {BIG} parameter(0)
        %p1 = {BIG} parameter(1)
        %x0 = f32[512,4096]{{1,0}} parameter(2)
        %x1 = f32[512,4096]{{1,0}} parameter(3)
        {lines[0]}
        {lines[1]}
        ROOT %s = {BIG} add(%d0, %d1)
    """)
    assert {"g0", "g1"} <= set(names(peak(text, "gpu")))
    assert not {"g0", "g1"} <= set(names(peak(text, "tpu")))


MAX = """\
%max (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] maximum(%x, %y)
}
"""
#: The side of an array, how and over whom another one is summed, and whether libtpu joins them.
SUMS = (
    (512, "add", "[1,8]<=[8]", True),
    (512, "max", "[1,8]<=[8]", False),
    (512, "add", "[2,4]<=[8]", False),
    (3840, "add", "{{0,1,2,3,4,5,6,7}}", True),
    (4096, "add", "[1,8]<=[8]", False),
)


@pytest.mark.parametrize(("side", "how", "groups", "are_joined"), SUMS)
def test_tpu_joins_sums_over_the_same_devices_up_to_120_mib(
    side: int, how: str, groups: str, are_joined: bool
) -> None:
    whole, row = f"f32[{side},{side}]{{1,0}}", f"f32[8,{side}]{{1,0}}"
    sums = (("add", "[1,8]<=[8]"), (how, groups))
    lines = [
        f"%d{at} = {whole} dot(%p{at}, %p{at}), {DOT}\n"
        f"%s{at} = {whole} all-reduce(%d{at}), channel_id={at + 1}, replica_groups={sums[at][1]}, "
        f"to_apply=%{sums[at][0]}\n%r{at} = {row} dot(%x, %s{at}), {DOT}"
        for at in (0, 1)
    ]
    text = entry(
        f"""
        %p0 = {whole} parameter(0)
        %p1 = {whole} parameter(1)
        %x = {row} parameter(2)
        {lines[0]}
        {lines[1]}
        ROOT %t = {row} add(%r0, %r1)
    """,
        before=MAX,
    )
    found = peak(text, "tpu")
    assert found.made_bytes // (4 * side * side) == 1 + are_joined, names(found)


def test_backward_of_take_along_axis_is_a_comparison_on_a_tpu() -> None:
    text = entry(f"""
        %i = s32[512,1,1]{{2,1,0}} parameter(0)
        %u = f32[512,1]{{1,0}} parameter(1)
        %p = {BIG} parameter(2)
        %z = f32[] constant(0)
        %zeros = {BIG} broadcast(%z), dimensions={{}}
        %s = {BIG} scatter(%zeros, %i, %u), update_window_dims={{}}, to_apply=%add
        ROOT %c = {HALF} convert(%s)
    """)
    assert names(peak(text, "tpu")) == ["c"]
    assert "zeros" in names(peak(text, "gpu"))


def test_short_lived_values_are_in_the_fast_memory_of_a_tpu() -> None:
    text = entry(f"""
        %p = {BIG} parameter(0)
        %a = {BIG} dot(%p, %p), {DOT}
        %b = {BIG} dot(%a, %a), {DOT}
        ROOT %c = {BIG} dot(%b, %b), {DOT}
    """)
    program = program_of(text)
    slow, fast = peak_of(program, Device("tpu")), peak_of(program, Device("tpu", 8 * MIB))
    assert (slow.made_bytes, fast.made_bytes) == (3 * MIB, MIB)


def test_what_a_loop_makes_of_a_donated_array_is_in_the_fast_memory_of_a_tpu() -> None:
    """As libtpu 0.0.52 has caches of decoding on v4 and v6e; it copies them back at the end."""
    program = program_of(looped("%n = f32[512,512]{1,0} add(%c, %wr)"))
    fast = Device("tpu", 8 * MIB)
    kept, copied = (peak_of(program, fast, donated).made_bytes for donated in ((), (0,)))
    assert copied == kept - MIB


def test_ragged_product_of_a_gpu_masks_rows_for_each_group() -> None:
    text = entry(f"""
        %p = {BIG} parameter(0)
        %w = f32[8,512,512]{{2,1,0}} parameter(1)
        %n = s32[8]{{0}} parameter(2)
        ROOT %d = {BIG} ragged-dot(%p, %w, %n), lhs_contracting_dims={{1}}
    """)
    assert peak(text).made_bytes == 9 * MIB


def test_products_of_the_same_rows_read_one_mask_on_a_gpu() -> None:
    text = entry(f"""
        %p = {BIG} parameter(0)
        %w = f32[8,512,512]{{2,1,0}} parameter(1)
        %n = s32[8]{{0}} parameter(2)
        %d = {BIG} ragged-dot(%p, %w, %n), lhs_contracting_dims={{1}}
        %v = f32[8,512,512]{{2,1,0}} parameter(3)
        %e = {BIG} ragged-dot(%p, %v, %n), lhs_contracting_dims={{1}}
        ROOT %t = ({BIG}, {BIG}) tuple(%d, %e)
    """)
    assert peak(text).made_bytes == 10 * MIB


def test_masks_of_rows_are_made_again_on_a_gpu_without_room() -> None:
    """Check that a mask is alive from its first product to its last, unless that does not fit."""
    text = entry(f"""
        %p = {BIG} parameter(0)
        %w = f32[8,512,512]{{2,1,0}} parameter(1)
        %n = s32[8]{{0}} parameter(2)
        %a = {BIG} ragged-dot(%p, %w, %n), lhs_contracting_dims={{1}}
        %q = {BIG} dot(%a, %a), {DOT}
        %b = {BIG} ragged-dot(%q, %w, %n), lhs_contracting_dims={{1}}
        %o = {BIG} dot(%b, %b), {DOT}
        %v = f32[8,512,512]{{2,1,0}} broadcast(%o), dimensions={{1,2}}
        ROOT %c = {BIG} ragged-dot(%p, %v, %n), lhs_contracting_dims={{1}}
    """)
    roomy, short = (
        peak_of(program_of(text), Device("gpu", usable_bytes=room * MIB)).made_bytes
        for room in (64, 16)
    )
    assert (roomy // MIB, short // MIB) == (18, 10)


def test_result_of_a_tpu_is_laid_out_for_the_whole_array_where_nobody_shards_it() -> None:
    """One head on a device takes the place of two in bf16, beside the donated argument."""
    rows = "bf16[4096,1,128]{2,1,0}"
    body = f"""
        %p = {rows} parameter(0)
        ROOT %c = {rows} add(%p, %p)
    """
    program = program_of(entry(body, ", input_output_alias={ {0}: (0, {}, may-alias) }"))
    whole, split = (4096, 4, 128), (4096, 8, 128)
    assert peak_of(program, Device("tpu"), (0,)).bytes == MIB
    assert peak_of(program, Device("gpu"), (0,), {0: whole}).bytes == MIB
    program = program_of(entry(body))
    assert peak_of(program, Device("tpu"), (0,), {0: whole}).bytes == 3 * MIB
    turned = body.replace("ROOT %c", "%c").replace(rows, "bf16[8,1024,64]{2,1,0}")
    turned += "ROOT %t = bf16[1024,8,64]{2,1,0} transpose(%c), dimensions={1,0,2}"
    program = program_of(entry(turned))
    assert peak_of(program, Device("tpu"), (), {0: (1024, 8, 64)}).bytes == 2 * MIB
    two = program_of(entry(body.replace("4096,1", "2048,2")))
    assert peak_of(two, Device("tpu"), (0,), {0: split}).bytes == MIB


def test_equal_values_of_called_functions_are_one_value() -> None:
    called = f"""
%f (a: f32[]) -> {BIG} {{
  %a = f32[] parameter(0)
  ROOT %b = {BIG} broadcast(%a), dimensions={{}}
}}
"""
    body = f"""
        %p = {BIG} parameter(0)
        %a = f32[] parameter(1)
        %b = {BIG} call(%a), to_apply=%f
        %c = {BIG} call(%a), to_apply=%f
        %d = {BIG} dot(%b, %p), {DOT}
        %e = {BIG} dot(%c, %d), {DOT}
        ROOT %t = ({BIG}, {BIG}, {BIG}) tuple(%b, %c, %e)
    """
    assert names(peak(entry(body, before=called))) == ["b", "e"]


def test_gather_of_a_gpu_computes_what_it_reads() -> None:
    text = entry(f"""
        %p = {HALF} parameter(0)
        %i = s32[16]{{0}} parameter(1)
        %a = {BIG} convert(%p)
        %g = f32[16,512]{{1,0}} gather(%a, %i), offset_dims={{1}}
        ROOT %t = (f32[16,512]{{1,0}}) tuple(%g)
    """)
    assert (names(peak(text, "gpu")), names(peak(text, "tpu"))) == (["g"], ["a", "g"])


def test_loops_that_begin_with_equal_zeros_have_arrays_of_their_own_on_a_gpu() -> None:
    """Both are made by one kernel, before the first of the loops."""
    body = f"""
        %zero = f32[] constant(0)
        %zeros = {BIG} broadcast(%zero), dimensions={{}}
        %i = s32[] constant(0)
        %in = (s32[], {BIG}) tuple(%i, %zeros)
        %w0 = (s32[], {BIG}) while(%in), condition=%cond, body=%inner
        %w1 = (s32[], {BIG}) while(%in), condition=%cond, body=%inner
        %r0 = {BIG} get-tuple-element(%w0), index=1
        %r1 = {BIG} get-tuple-element(%w1), index=1
        ROOT %t = ({BIG}, {BIG}) tuple(%r0, %r1)
    """
    inner = f"""
%inner (g: (s32[], {BIG})) -> (s32[], {BIG}) {{
  %g = (s32[], {BIG}) parameter(0)
  %c = {BIG} get-tuple-element(%g), index=1
  %i = s32[] get-tuple-element(%g), index=0
  %d = {BIG} dot(%c, %c), {DOT}
  ROOT %o = (s32[], {BIG}) tuple(%i, %d)
}}
"""
    found = peak(entry(body, before=inner))
    made = [each for each in found.values if each.instruction and each.instruction.name == "zeros"]
    assert len(made) == 2
    assert made[0].born == made[1].born


def test_tiles_of_a_tpu_are_filled_up() -> None:
    text = entry("ROOT %p = f32[1024,16]{1,0} parameter(0)")
    assert (peak(text).bytes, peak(text, "tpu").bytes) == (1 << 16, 1 << 16)
    text = entry("ROOT %p = f32[64,16,16]{2,1,0} parameter(0)")
    assert peak(text, "tpu").bytes > peak(text).bytes


TEXTS = [
    looped("%n = f32[512,512]{1,0} add(%c, %wr)"),
    gathered(1),
    entry(SOFTMAX + f"ROOT %t = ({BIG}) tuple(%o)"),
]
LINES = [line for text in TEXTS for line in text.splitlines()]


@given(
    st.lists(st.sampled_from(LINES), max_size=60).map("\n".join) | st.text(),
    st.sampled_from(PLATFORMS),
    st.frozensets(st.integers(0, 3)),
)
def test_any_text_has_a_peak_of_at_least_its_parameters(
    text: str, platform: Platform, donated: frozenset[int]
) -> None:
    free = dict.fromkeys((0, 1, 2, 5), (1024, 512))
    found = peak_of(program_of(text), Device(platform, 1 << 20, SPEEDS), donated, free)
    assert found.bytes >= found.given_bytes >= 0
    assert sum(each.bytes for each in found.alive) == found.made_bytes
    assert all(0 <= each.born <= each.dies <= found.end for each in found.values)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=30))
def test_donation_never_adds_and_the_peak_is_the_same_on_every_run(
    pairs: list[tuple[int, int]],
) -> None:
    lines = [f"%v{at} = {BIG} parameter({at})" for at in range(6)]
    for at, (one, other) in enumerate(pairs, 6):
        kind = ("add", f"dot {DOT}")[at % 2]
        operation, _, rest = kind.partition(" ")
        comma = f", {rest}" if rest else ""
        lines.append(f"%v{at} = {BIG} {operation}(%v{at - 6 + one}, %v{at - 6 + other}){comma}")
    program = program_of(entry("\n".join(lines) + f"\nROOT %t = ({BIG}) tuple(%v{len(lines) - 1})"))
    for platform in PLATFORMS:
        device = Device(platform)
        kept = peak_of(program, device)
        assert peak_of(program, device) == kept
        found = peak_of(program, device, range(6))
        assert found.bytes - found.gap_bytes <= kept.bytes - kept.gap_bytes


def test_computations_that_call_themselves_come_to_an_end() -> None:
    text = (
        "HloModule m\n\nENTRY %f (p: f32[8]) -> f32[8] {\n  %p = f32[8]{0} parameter(0)\n"
        "  %a = f32[8]{0} call(%p), to_apply=%f\n  ROOT %b = f32[8]{0} call(%a), to_apply=%f\n}\n"
    )
    assert peak(text).bytes >= 32


RESIDUAL = """
    %x = bf16[4096,512] parameter(0)
    %y = bf16[4096,512] parameter(1)
    %w = bf16[512,512] parameter(2)
    %g = bf16[4096,512] parameter(3)
    %z = bf16[] constant(0)
    %zs = bf16[4096,512] broadcast(%z), dimensions={}
    %f = f32[] constant(0)
    %a1 = bf16[4096,512] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    %a2 = bf16[4096,512] dot(%y, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    %a = bf16[4096,512] add(%a1, %a2)
    %m = bf16[4096,512] maximum(%a, %zs)
    %o = bf16[4096,512] dot(%m, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    %d = bf16[4096,512] multiply(%a, %g)
    %t = bf16[4096,512] multiply(%d, %a1)
    %u = bf16[4096,512] multiply(%d, %a2)
    %s1 = bf16[512] reduce(%d, %z), dimensions={0}, to_apply=%add
    %s2 = bf16[512] reduce(%t, %z), dimensions={0}, to_apply=%add
    %s3 = bf16[512] reduce(%u, %z), dimensions={0}, to_apply=%add
    %b = bf16[4096,512] broadcast(%s1), dimensions={1}
    %e = bf16[4096,512] subtract(%d, %b)
    %c = bf16[4096,512] dot(%e, %w), lhs_contracting_dims={1}, rhs_contracting_dims={1}
    ROOT %r = (bf16[4096,512], bf16[4096,512], bf16[512], bf16[512]) tuple(%o, %c, %s2, %s3)
"""


def test_gpu_computes_a_sum_again_for_a_value_that_is_kept() -> None:
    """The readers of that value then read it, and no longer the sum."""
    found = reasons_in(peak_of(program_of(entry(RESIDUAL)), Device("gpu", rates=AMPERE)))
    assert "d" in found
    assert "a" not in found


NORMALIZED = """
    %x = f32[4096,512] parameter(0)
    %w = f32[512,512] parameter(1)
    %v = f32[512,512] parameter(2)
    %z = f32[] constant(0)
    %h = f32[4096,512] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    %a = f32[4096,512] add(%h, %x)
    %s = f32[512] reduce(%a, %z), dimensions={0}, to_apply=%add
    %b = f32[4096,512] broadcast(%s), dimensions={1}
    %n = f32[4096,512] subtract(%a, %b)
    %o = f32[4096,512] dot(%n, %v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    ROOT %r = f32[4096,512] add(%o, %a)
"""


def test_product_of_a_tpu_adds_what_is_normalized_over_the_batch() -> None:
    """As libtpu 0.0.52 has it of a residual network: not the product is kept, but the sum."""
    found = reasons_in(peak_of(program_of(entry(NORMALIZED)), Device("tpu")))
    assert found["a"].startswith("add after a product")
    assert "h" not in found
