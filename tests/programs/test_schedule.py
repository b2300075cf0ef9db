"""The time of a step by its schedule: small programs, laws, and real programs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.analysis.step_time import FITTED, StepTime, efficiency, links_of
from shardspec.ir.operations import CollectiveKind
from shardspec.ir.plan import ShardingPlan
from shardspec.language.catalogue import catalogue_entry
from shardspec.programs.costs import OTHERS, STREAMED, schedule_time
from shardspec.programs.op_names import KERNEL
from shardspec.programs.reading import ReadProgram, read_program

DATA = Path(__file__).parents[1] / "data" / "programs"
V5E = catalogue_entry("tpu_v5e").chip
assert V5E.hbm_bytes_per_s is not None
#: What a byte takes in an operation that is no product.
BYTE = 1 / (V5E.hbm_bytes_per_s * efficiency(V5E, "bf16", *STREAMED) * OTHERS)
#: An array of 64 MiB.
BIG = "bf16[4096,8192]"
BYTES = 4096 * 8192 * 2
#: Groups over each axis of the mesh `data: 4, model: 4`.
GROUPS = {"data": "[4,4]<=[4,4]T(1,0)", "model": "[4,4]<=[16]"}
ADD = """
%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}
"""


def plan_of(hardware: str = "tpu v5e 4x4", mesh: str = "data: 4, model: 4") -> ShardingPlan:
    text = (
        "shardspec: 1\narrays: [{path: w, dims: [a, b], shape: [8, 8], dtype: bf16}]\n"
        "rules: [a -> data]\n"
        f"targets: {{t: {{hardware: {hardware}, mesh: {{{mesh}}}}}}}\n"
    )
    spec, faults = pipeline.load_text(text)
    assert spec is not None, faults
    return pipeline.compile_plans(spec)[0]


PLAN = plan_of()


def timed(text: str, plan: ShardingPlan = PLAN) -> StepTime:
    read = read_program(text, plan.target.mesh)
    assert isinstance(read, ReadProgram), read
    found = schedule_time(read, plan)
    assert found is not None
    assert found.basis == "compiled"
    return found


def program(*lines: str, others: str = "") -> str:
    body = "\n".join(f"  {line}" for line in (f"%p = {BIG} parameter(0)", *lines))
    head = "HloModule m, is_scheduled=true, num_partitions=16"
    return f"{head}\n\n{ADD}\n{others}\nENTRY %main (p: {BIG}) -> {BIG} {{\n{body}\n}}\n"


def reduce(name: str, axis: str = "data", part: str = "") -> str:
    stated = f"replica_groups={GROUPS[axis]}, to_apply=%add"
    return f"%{name} = {BIG} all-reduce{part}(%p), {stated}"


def done(name: str, started: str) -> str:
    return f"%{name} = {BIG} all-reduce-done(%{started})"


def copied(name: str) -> str:
    return f"%{name} = {BIG} negate(%p)"


def sent(axis: str = "data") -> float:
    links = links_of(PLAN)
    assert links is not None
    seconds = links.seconds(CollectiveKind.ALL_REDUCE, (axis,), BYTES)
    assert seconds is not None
    return seconds


COPY = 2 * BYTES * BYTE


def exposed(found: StepTime) -> float:
    return sum(axis.exposed_seconds for axis in found.axes)


def test_a_synchronous_collective_is_exposed_whole() -> None:
    found = timed(program(copied("a"), reduce("r"), copied("b")))
    assert found.compute_seconds == pytest.approx(2 * COPY)
    assert found.hbm_seconds == found.compute_seconds
    (axis,) = found.axes
    assert axis.mesh_axis == "data"
    assert axis.seconds == axis.exposed_seconds == pytest.approx(sent())
    assert found.step_seconds == pytest.approx(2 * COPY + sent())


def test_an_asynchronous_collective_hides_behind_what_is_between() -> None:
    names = [f"c{at}" for at in range(1 + int(sent() / COPY))]
    text = program(reduce("s", part="-start"), *map(copied, names), done("r", "s"))
    found = timed(text)
    assert found.axes[0].seconds == pytest.approx(sent())
    assert exposed(found) == 0


def test_what_is_too_short_hides_as_much_as_it_takes() -> None:
    found = timed(program(reduce("s", part="-start"), copied("a"), done("r", "s")))
    assert exposed(found) == pytest.approx(sent() - COPY)


def test_collectives_of_one_axis_queue_and_those_of_two_do_not() -> None:
    def both(other: str) -> StepTime:
        first, second = reduce("s", part="-start"), reduce("t", other, "-start")
        return timed(program(first, second, done("r", "s"), done("q", "t")))

    assert exposed(both("data")) == pytest.approx(2 * sent())
    alone = both("model")
    assert exposed(alone) == pytest.approx(max(sent(), sent("model")))
    assert [axis.seconds for axis in alone.axes] == pytest.approx([sent(), sent("model")])


def test_who_waits_for_another_does_not_expose_its_seconds() -> None:
    small = f"%t = bf16[8] all-reduce-start(%q), replica_groups={GROUPS['data']}, to_apply=%add"
    lines = ["%q = bf16[8] constant({...})", reduce("s", part="-start"), small]
    lines += ["%u = bf16[8] all-reduce-done(%t)", done("r", "s")]
    (axis,) = timed(program(*lines)).axes
    assert axis.exposed_seconds == pytest.approx(axis.seconds)


LOOP = f"""
%body (b: (s32[], {BIG})) -> (s32[], {BIG}) {{
  %b = (s32[], {BIG}) parameter(0)
  %i = s32[] get-tuple-element(%b), index=0
  %x = {BIG} get-tuple-element(%b), index=1
  %r = {BIG} all-reduce(%x), replica_groups={GROUPS["data"]}, to_apply=%add
  %n = {BIG} negate(%r)
  ROOT %t = (s32[], {BIG}) tuple(%i, %n)
}}

%test (c: (s32[], {BIG})) -> pred[] {{
  %c = (s32[], {BIG}) parameter(0)
  ROOT %k = pred[] constant(true)
}}
"""


def loop(trips: int) -> list[str]:
    known = f'backend_config={{"known_trip_count":{{"n":"{trips}"}}}}'
    whole = f"(s32[], {BIG})"
    return [
        "%zero = s32[] constant(0)",
        f"%tuple = {whole} tuple(%zero, %p)",
        f"%w = {whole} while(%tuple), condition=%test, body=%body, {known}",
    ]


def test_a_loop_takes_its_rounds() -> None:
    found = timed(program(*loop(7), others=LOOP))
    assert found.compute_seconds == pytest.approx(7 * COPY)
    assert exposed(found) == pytest.approx(7 * sent())


def test_a_loop_that_sends_holds_up_what_is_under_way() -> None:
    text = program(reduce("s", part="-start"), *loop(3), done("r", "s"), others=LOOP)
    found = timed(text)
    assert found.axes[0].seconds == pytest.approx(4 * sent())
    assert exposed(found) == pytest.approx(4 * sent() - min(sent(), 3 * COPY))


def test_what_is_on_the_chip_has_no_traffic() -> None:
    vmem = BIG + "{1,0:T(8,128)(2,1)S(1)}"
    lines = [f"%v = {vmem} negate(%p)", f"%w = {vmem} negate(%v)", f"%x = {BIG} negate(%w)"]
    assert timed(program(*lines)).compute_seconds == pytest.approx(COPY)
    on_gpu = timed(program(*lines), plan_of("2 * h100", "data: 2 @ dcn, model: 8"))
    assert on_gpu.compute_seconds == pytest.approx(6 * BYTES / (3.35e12 * 0.81))


def test_a_copy_to_the_chip_takes_the_bandwidth_that_is_left() -> None:
    vmem = BIG + "{1,0:T(8,128)(2,1)S(1)}"
    start = f"%s = ({vmem}, {BIG}, u32[]) copy-start(%p)"
    alone = timed(program(start, f"%d = {vmem} copy-done(%s)"))
    assert alone.compute_seconds == alone.hbm_seconds == pytest.approx(BYTES * BYTE * OTHERS)
    beside = timed(program(start, copied("a"), f"%d = {vmem} copy-done(%s)"))
    assert beside.compute_seconds == pytest.approx(COPY + alone.compute_seconds)
    hidden = timed(program(start, reduce("r"), f"%d = {vmem} copy-done(%s)"))
    assert hidden.compute_seconds == pytest.approx(max(0, alone.compute_seconds - sent()))


STACK = "bf16[80,4096,8192]"
FUSED = f"""
%layer (a: {STACK}, i: s32[]) -> {BIG} {{
  %a = {STACK} parameter(0)
  %i = s32[] parameter(1)
  %z = s32[] constant(0)
  %f = f32[80,4096,8192] convert(%a)
  %d = f32[1,4096,8192] dynamic-slice(%f, %i, %z, %z), dynamic_slice_sizes={{1,4096,8192}}
  %g = {BIG.replace("bf16", "f32")} bitcast(%d)
  ROOT %o = {BIG} convert(%g)
}}

%put (a: {STACK}, u: {BIG}, i: s32[]) -> {STACK} {{
  %a = {STACK} parameter(0)
  %u = {BIG} parameter(1)
  %i = s32[] parameter(2)
  %z = s32[] constant(0)
  %v = bf16[1,4096,8192] bitcast(%u)
  ROOT %o = {STACK} dynamic-update-slice(%a, %v, %i, %z, %z)
}}
"""


def test_a_slice_of_a_stack_reads_and_writes_one_layer() -> None:
    stack = f'%s = {STACK} custom-call(), custom_call_target="AllocateBuffer"'
    one = "%one = s32[] constant(1)"
    read = f"%f = {BIG} fusion(%s, %one), kind=kLoop, calls=%layer"
    write = f"%g = {STACK} fusion(%s, %p, %one), kind=kLoop, calls=%put"
    for line in (read, write):
        assert timed(program(stack, one, line, others=FUSED)).compute_seconds == pytest.approx(
            COPY, rel=1e-6
        )


def test_a_lookup_reads_its_rows() -> None:
    rows = "%g = bf16[16,8192] gather(%p, %i), offset_dims={1}, slice_sizes={1,8192}"
    found = timed(program("%i = s32[16] constant({...})", rows))
    assert found.compute_seconds == pytest.approx((2 * 16 * 8192 * 2 + 16 * 4) * BYTE)


def test_a_product_takes_its_flops_and_its_mfu_is_what_is_useful() -> None:
    operands = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    dot = f"%d = bf16[4096,4096] dot(%p, %w), {operands}"
    again = f'{dot.replace("%d", "%e")}, metadata={{op_name="jit(f)/rematted_computation/dot"}}'
    weight = "%w = bf16[8192,4096] constant({...})"
    found = timed(program(weight, dot, again))
    share = efficiency(V5E, "bf16", 4096, 8192, 4096)
    flops = 2 * 4096 * 8192 * 4096 / 197e12
    assert found.compute_seconds == pytest.approx(2 * flops / share)
    assert found.hbm_seconds == 0
    assert found.mfu == pytest.approx(share / 2)


def test_a_call_of_cublas_is_a_product_and_its_workspace_is_no_traffic() -> None:
    stated = '"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}'
    call = f'custom_call_target="__cublas$gemm", backend_config={{{stated}}}'
    line = f"%d = (bf16[4096,16], s8[1073741824]) custom-call(%p, %w), {call}"
    plan = plan_of("2 * h100", "data: 2 @ dcn, model: 8")
    found = timed(program("%w = bf16[8192,16] constant({...})", line), plan)
    moved = BYTES + 2 * (8192 + 4096) * 16
    assert found.compute_seconds == pytest.approx(moved / (3.35e12 * 0.81))


def test_operations_that_stand_for_a_kernel_take_its_flops() -> None:
    stated = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    names = f'metadata={{op_name="jit(f)/jvp({KERNEL})/dot_general"}}'
    text = program(
        "%w = bf16[8192,16] constant({...})",
        f"%d = bf16[4096,16] dot(%p, %w), {stated}, {names}",
        f"%n = bf16[4096,16] negate(%d), {names}",
    )
    flops = 2 * 4096 * 8192 * 16
    assert timed(text).compute_seconds == pytest.approx(FITTED.kernel * flops / 197e12)
    read = read_program(text, PLAN.target.mesh)
    assert isinstance(read, ReadProgram)
    half = schedule_time(read, PLAN, kernel_flops=flops / 2)
    assert half is not None
    assert half.compute_seconds == pytest.approx(FITTED.kernel * flops / 2 / 197e12)


FROM = f"channel_id=7, replica_groups={GROUPS['data']}, dimensions={{0}}"
FLAGS = 'backend_config={"async_collective_fusion_config":{"flag_end":"'
START, REST = f'{FLAGS}-1","flag_start":"-1"}}}}', f'{FLAGS}8","flag_start":"2"}}}}'
SPREAD_GATHER = f"""
%begin (a: bf16[1024,8192]) -> (bf16[1024,8192], {BIG}) {{
  %a = bf16[1024,8192] parameter(0)
  %g = {BIG} all-gather(%a), {FROM}, {START}
  ROOT %c = (bf16[1024,8192], {BIG}) custom-call(%g), custom_call_target="AsyncCollectiveStart"
}}

%on (a: bf16[1024,8192], b: {BIG}, c: {BIG}) -> ({BIG}, {BIG}) {{
  %a = bf16[1024,8192] parameter(0)
  %b = {BIG} parameter(1)
  %c = {BIG} parameter(2)
  %g = {BIG} all-gather(%a), {FROM}, {REST}
  %n = {BIG} negate(%c)
  ROOT %t = ({BIG}, {BIG}) tuple(%n, %b)
}}

%end (a: bf16[1024,8192], b: {BIG}) -> {BIG} {{
  %a = bf16[1024,8192] parameter(0)
  %b = {BIG} parameter(1)
  %g = {BIG} all-gather(%a), {FROM}, {REST}
  ROOT %c = {BIG} custom-call(%a, %b, %g), custom_call_target="AsyncCollectiveDone"
}}
"""


def test_a_collective_that_libtpu_spreads_over_fusions_runs_beside_them() -> None:
    lines = [
        "%q = bf16[1024,8192] constant({...})",
        f"%s = (bf16[1024,8192], {BIG}) fusion(%q), kind=kCustom, calls=%begin",
        f"%b = {BIG} get-tuple-element(%s), index=1",
        f"%f = ({BIG}, {BIG}) fusion(%q, %b, %p), kind=kLoop, calls=%on",
        f"%e = {BIG} fusion(%q, %b), kind=kCustom, calls=%end",
    ]
    found = timed(program(*lines, others=SPREAD_GATHER))
    assert found.compute_seconds == pytest.approx(COPY)
    (axis,) = found.axes
    assert axis.seconds == pytest.approx(sent() / 2)
    assert axis.exposed_seconds == pytest.approx(max(0.0, sent() / 2 - COPY))


def test_a_condition_takes_its_dearer_branch() -> None:
    one = f"%a = {BIG} parameter(0)\n  ROOT %n = {BIG} negate(%a)"
    two = f"ROOT %a = {BIG} parameter(0)"
    branches = "".join(
        f"\n%{name} (a: {BIG}) -> {BIG} {{\n  {body}\n}}\n"
        for name, body in (("one", one), ("two", two))
    )
    stated = "branch_computations={%two, %one}"
    line = f"%c = {BIG} conditional(%k, %p, %p), {stated}"
    found = timed(program("%k = s32[] constant(0)", line, others=branches))
    assert found.compute_seconds == pytest.approx(COPY)


def test_what_cannot_be_timed_is_told() -> None:
    call = f'%k = {BIG} custom-call(%p), custom_call_target="my_kernel"'
    assert any("my_kernel" in note for note in timed(program(call)).notes)
    host = BIG + "{1,0:T(8,128)(2,1)S(5)}"
    copy = [f"%s = ({host}, {BIG}, u32[]) copy-start(%p)", f"%d = {host} copy-done(%s)"]
    assert any("host" in note for note in timed(program(*copy)).notes)


def test_machines_without_speeds_have_no_time() -> None:
    plan = plan_of("cpu x16")
    read = read_program(program(reduce("r")), plan.target.mesh)
    assert isinstance(read, ReadProgram)
    assert schedule_time(read, plan) is None


# laws

steps = st.lists(
    st.one_of(
        st.tuples(st.just("compute"), st.integers(1, 6)),
        st.tuples(st.sampled_from(("data", "model")), st.integers(0, 8)),
        st.tuples(st.sampled_from(("sync data", "sync model")), st.just(0)),
    ),
    max_size=8,
)
Steps = list[tuple[str, int]]


def scheduled(plan: Steps, longer: int = -1, later: int = -1) -> StepTime:
    """Return the time of a schedule in which each collective ends so many places behind its start.

    Args:
      longer: the computation that takes twice as long.
      later: the collective that ends one place later.
    """
    lines: list[str] = []
    ends: dict[int, list[str]] = {}
    for at, (what, size) in enumerate(plan):
        if what == "compute":
            lines += [copied(f"c{at}.{n}") for n in range(size * (2 if at == longer else 1))]
        elif what.startswith("sync"):
            lines.append(reduce(f"r{at}", what.removeprefix("sync ")))
        else:
            lines.append(reduce(f"s{at}", what, "-start"))
            end = min(len(plan), at + size + (at == later))
            ends.setdefault(end, []).append(done(f"d{at}", f"s{at}"))
        lines += ends.pop(at, [])
    for left in ends.values():
        lines += left
    return timed(program(*lines))


@given(steps)
def test_exposed_is_a_part_and_the_step_is_as_long_as_each_of_its_parts(plan: Steps) -> None:
    found = scheduled(plan)
    assert all(0 <= axis.exposed_seconds <= axis.seconds for axis in found.axes)
    longest = max([found.compute_seconds, *(axis.seconds for axis in found.axes)])
    assert found.step_seconds >= longest * (1 - 1e-9)
    assert found.step_seconds == pytest.approx(found.compute_seconds + exposed(found))


@given(steps, st.integers(0, 7))
def test_more_computation_never_exposes_more(plan: Steps, at: int) -> None:
    assert exposed(scheduled(plan, longer=at)) <= exposed(scheduled(plan)) + 1e-12


@given(steps, st.integers(0, 7))
def test_a_later_end_never_exposes_more(plan: Steps, at: int) -> None:
    assert exposed(scheduled(plan, later=at)) <= exposed(scheduled(plan)) + 1e-12


# real programs

MACHINES = {
    "v4": ("tpu v4 2x2x4", "fsdp: 8, tensor: 2"),
    "v5e": ("tpu v5e 4x4", "fsdp: 8, tensor: 2"),
    "v5p": ("tpu v5p 2x2x4", "fsdp: 8, tensor: 2"),
    "v6e": ("tpu v6e 4x4", "fsdp: 8, tensor: 2"),
    "h100": ("2 * h100", "fsdp: 8, tensor: 2"),
}
REAL = [path.stem for path in sorted(DATA.glob("*.txt")) if path.stem.split("-")[1] in MACHINES]


@pytest.mark.parametrize("name", REAL)
def test_real_programs_are_timed(name: str) -> None:
    plan = plan_of(*MACHINES[name.split("-")[1]])
    read = read_program((DATA / f"{name}.txt").read_text(encoding="utf-8"), plan.target.mesh)
    assert isinstance(read, ReadProgram), read
    found = schedule_time(read, plan, FITTED)
    assert found is not None
    assert 0 < found.hbm_seconds <= found.compute_seconds
    assert 0 < found.mfu < 1
    assert {axis.mesh_axis for axis in found.axes} == {
        "+".join(each.axes) for each in read.step.collectives
    }
    assert all(0 < axis.exposed_seconds <= axis.seconds for axis in found.axes)


@given(st.lists(st.sampled_from(program(*loop(3), others=LOOP + FUSED).splitlines()), max_size=30))
def test_any_lines_have_a_time_or_none(lines: list[str]) -> None:
    head = "HloModule m, num_partitions=16\nENTRY %main () -> f32[] {\n"
    read = read_program(head + "\n".join(lines), PLAN.target.mesh)
    if isinstance(read, ReadProgram):
        found = schedule_time(read, PLAN)
        assert found is None or found.step_seconds >= 0
