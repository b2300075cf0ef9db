"""What a program might send is counted or unknown, and what is unknown proves nothing."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardspec.ir.step import Step
from shardspec.programs.hlo import Instruction, program_of
from shardspec.programs.operations import base, uncounted
from shardspec.programs.proof import (
    Proof,
    closing_lines,
    proof_json,
    proof_lines,
    proof_markdown,
    verdict,
)
from tests.programs.test_proof import proof, sent, step
from tests.programs.test_reading import LINES, SAMPLES, read, text_of

AMONG = ("replica_groups={{0,1}}", "channel_id=7", "source_target_pairs={{0,1},{1,0}}")
METADATA = 'metadata={op_name="jit(f)/moe" source_file="moe.py" source_line=31}'
words = st.from_regex(r"[a-z]{2,8}(-[a-z]{2,8}){0,2}(-start)?", fullmatch=True)
unknown_words = words.filter(lambda word: uncounted(of(word)) is not None)


def of(operation: str, attributes: str = "") -> Instruction:
    return Instruction("x", "f32[8]{0}", operation, ("p",), "%p", attributes)


def program(*lines: str, before: str = "") -> Step:
    body = "".join(f"  {line}\n" for line in lines)
    head = "HloModule m, num_partitions=16\n"
    given = "  %p = f32[8]{0} parameter(0)\n"
    return read(f"{head}{before}ENTRY %main (p: f32[8]) -> f32[8] {{\n{given}{body}}}\n")


def assert_not_proved(compiled: Step) -> Proof:
    """Assert that nothing proves a program, however well its bytes agree."""
    made = proof(step(*compiled.collectives), compiled)
    assert made.difference == 0
    assert not verdict(made).startswith("proved")
    assert made.faults
    (data,) = json.loads(proof_json([made]))["targets"]
    assert data["proved"] is False
    assert len(data["unknown"]) == len(compiled.unknown) > 0
    for form in ("\n".join(proof_lines(made)), proof_markdown([made])):
        assert all(str(each) in form for each in compiled.unknown)
    assert "not proved" in "\n".join(closing_lines([made, "other"]))
    return made


@pytest.mark.parametrize("name", SAMPLES)
def test_real_programs_hold_nothing_unknown(name: str) -> None:
    assert read(text_of(name)).unknown == ()
    assert program_of(text_of(name)).unread == ()


@settings(max_examples=12)
@given(unknown_words, st.sampled_from(AMONG), st.integers(0, 1 << 32))
def test_an_unknown_operation_among_devices_is_no_proof(
    word: str, attribute: str, seed: int
) -> None:
    draw = random.Random(seed)
    lines = text_of("shard_mapped-v5e").splitlines()
    at = draw.choice(
        [at for at, line in enumerate(lines) if line.startswith("  ") and " = " in line]
    )
    lines.insert(at, f"  %new.1 = f32[8]{{0}} {word}(%p), {attribute}, {METADATA}")
    found = read("\n".join(lines))
    assert base(word) in {each.what for each in found.unknown}
    assert any(str(each.place) == "moe.py:31" for each in found.unknown)
    assert_not_proved(found)


@pytest.mark.parametrize(
    "word", ["add", "fusion", "custom-call", "ragged-dot", "call", "copy-start"]
)
@pytest.mark.parametrize("attribute", AMONG)
def test_a_known_name_with_devices_is_no_proof(word: str, attribute: str) -> None:
    target = ', custom_call_target="TopK"' if word == "custom-call" else ""
    assert_not_proved(program(f"ROOT %x = f32[8]{{0}} {word}(%p), {attribute}{target}, {METADATA}"))


RAGGED = (
    "{}ragged-all-to-all{}(%p, %p, %p, %p, %p, %p), channel_id=1,"
    " replica_groups={{{{0,1,2,3}}}}, " + METADATA.replace("{", "{{").replace("}", "}}")
)


def test_tokens_that_are_exchanged_raggedly_are_unknown() -> None:
    one = program(RAGGED.format("ROOT %x = f32[8]{0} ", ""))
    made = assert_not_proved(one)
    assert "unknown: ragged-all-to-all at moe.py:31: " in str(made)
    assert verdict(made) == "not proved: 1 operation is unknown"
    two = program(
        RAGGED.format("%s = ((f32[8]{0}), f32[8]{0}) ", "-start"),
        "ROOT %x = f32[8]{0} ragged-all-to-all-done(%s)",
    )
    assert two.unknown == one.unknown


@pytest.mark.parametrize(
    ("target", "more", "is_local"),
    [
        ("my_kernel", "", False),
        ("", "", False),
        ("te_gemm_ffi", "", False),
        ("__cublas$gemm", "", True),
        ("__cudnn$fmhaSoftmax", "", True),
        ("__gpu$xla.gpu.triton", 'backend_config={name = "kernel"}', True),
        ("__gpu$xla.gpu.triton", 'backend_config={ir = "nvshmem_put"}', False),
        ("TopK", "", True),
        ("Sharding", "", True),
        ("AllocateBuffer", "", True),
        ("AllocateBuffers", "", False),
        ("SliceId", "", True),  # which slice this is, on several
        ("ZeroCrop", "", True),  # fills what an uneven shard has too much, in place
        ("tpu_custom_call", "", False),
        ("tpu_custom_call", 'backend_config={"custom_call_config":{"body":"TUzv"}}', True),
        (
            "tpu_custom_call",
            'backend_config={"custom_call_config":{"body":"TUzv","has_communication":true}}',
            False,
        ),
        (
            "tpu_custom_call",
            'backend_config={"custom_call_config":{"body":"TUzv","collective_id":"1"}}',
            False,
        ),
        ("mosaic_gpu_v2", "backend_config={uses_xla_collective_metadata = false}", True),
        ("mosaic_gpu_v2", "backend_config={uses_xla_collective_metadata = true}", False),
        ("mosaic_gpu_v2", "", False),
    ],
)
def test_custom_calls(target: str, more: str, is_local: bool) -> None:
    line = (
        f'ROOT %x = f32[8]{{0}} custom-call(%p), custom_call_target="{target}", {METADATA}, {more}'
    )
    found = program(line)
    assert (found.unknown == ()) is is_local
    if not is_local:
        made = assert_not_proved(found)
        assert f"unknown: custom-call {target}".rstrip() in str(made)


def test_a_foreign_call_says_nothing_of_memory() -> None:
    made = proof(step(), program('ROOT %x = f32[8]{0} custom-call(%p), custom_call_target="mine"'))
    assert made.fits is None
    assert "unknown whether it fits" in str(made)


def test_a_send_that_names_nobody_is_unknown() -> None:
    to_host = "%s = (f32[8], u32[], token[]) send(%p, %t), channel_id=1, is_host_transfer=true"
    assert program(to_host).unknown == ()
    megascale = ', frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime"}'
    for line in (to_host + megascale, to_host.removesuffix(", is_host_transfer=true")):
        assert [each.what for each in program(line).unknown] == ["send"]


def test_what_nothing_runs_is_unknown() -> None:
    lost = "%lost (q: f32[8]) -> f32[8] {\n  %q = f32[8]{0} parameter(0)\n"
    lost += "  ROOT %a = f32[8]{0} all-reduce(%q), replica_groups={}\n}\n"
    assert_not_proved(program("ROOT %x = f32[8]{0} negate(%p)", before=lost))
    ran = program("ROOT %x = f32[8]{0} call(%p), to_apply=%lost", before=lost)
    assert len(ran.collectives) == 1
    assert ran.unknown == ()


def test_lines_that_are_lost_are_unknown() -> None:
    stray = "  %a = f32[8]{0} all-reduce(%q), replica_groups={}\n"
    assert_not_proved(program("ROOT %x = f32[8]{0} negate(%p)", before=stray))
    assert_not_proved(program("all-reduce of p", "ROOT %x = f32[8]{0} negate(%p)"))
    assert_not_proved(program("%x = f32[8]{0} negate(%p)", "ROOT %x = f32[8]{0} all-reduce(%p)"))
    assert_not_proved(program("ROOT %x = new8[8]{0} all-reduce(%t)", "%t = new8[8]{0} copy(%p)"))


def test_an_instruction_may_go_on_over_lines() -> None:
    kernel = (
        'custom-call(%p), custom_call_target="tpu_custom_call", frontend_attributes={metadata={\n'
        '"mesh_axes":"[\\"expert\\"]"\n'
        '}}, backend_config={"custom_call_config":{"body":"TUzv"}}'
    )
    found = program(f"%k = f32[8]{{0}} {kernel}", "ROOT %x = f32[8]{0} all-reduce(%k)")
    assert found.unknown == ()
    assert len(found.collectives) == 1


LOOP = """\
%body (b: (f32[8])) -> (f32[8]) {{
  %b = (f32[8]) parameter(0)
  %e = f32[8]{{0}} get-tuple-element(%b), index=0
  %n = f32[8]{{0}} {}(%e)
  ROOT %t = (f32[8]) tuple(%n)
}}
%test (c: (f32[8])) -> pred[] {{
  %c = (f32[8]) parameter(0)
  ROOT %r = pred[] constant(true)
}}
"""


def test_a_loop_without_an_end_is_unknown() -> None:
    runs = "ROOT %x = (f32[8]) while(%p), condition=%test, body=%body, " + METADATA
    sends = program(runs, before=LOOP.format("all-reduce"))
    assert sends.unknown[0].figures == ("sends", "flops", "time")
    assert_not_proved(sends)
    outer = LOOP.format("negate").replace("%body", "%round").replace("%test", "%check")
    outer = outer.replace("negate(%e)", "while(%e), condition=%test, body=%body")
    nested = runs.replace("%body", "%round").replace("%test", "%check")
    for word, figures in (
        ("all-reduce", ("sends", "flops", "time")),
        ("negate", ("flops", "time")),
    ):
        both = program(nested, before=LOOP.format(word) + outer)
        assert {each.figures for each in both.unknown} == {figures}
    stays = program(runs, before=LOOP.format("negate"))
    assert stays.unknown[0].figures == ("flops", "time")
    made = proof(step(sent(("fsdp",), 8)), step(sent(("fsdp",), 8)))
    kept = Proof(made.cost, stays, made.memory, "libtpu 1", 1.0)
    assert not any("unknown" in fault for fault in kept.faults)
    assert "unknown: while at moe.py:31" in "\n".join(proof_lines(kept))


@given(
    st.lists(
        st.sampled_from([*LINES, "  %k = f32[8] custom-call(), a={b={", "}}, c={"]), max_size=40
    )
)
def test_no_instruction_is_lost_between_lines(lines: list[str]) -> None:
    """Whatever stands around it, a collective is counted or unknown."""
    mark = "  %mark.1 = f32[8]{0} new-exchange(%p), replica_groups={{0,1}}"
    head = ["HloModule m, num_partitions=16", "ENTRY %main () -> f32[] {"]
    program = program_of("\n".join([*head, *lines, mark]))
    is_read = any("mark.1" in each.instructions for each in program.computations.values())
    assert is_read or any("new-exchange" in line for line in program.unread)


def test_a_broadcast_is_passed_on_once() -> None:
    found = program("ROOT %x = f32[8]{0} collective-broadcast(%p), replica_groups={{0,1},{2,3}}")
    assert found.unknown == ()
    assert [(each.mesh_axes, each.wire_bytes) for each in found.collectives] == [(("tensor",), 32)]
