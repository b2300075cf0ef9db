"""What another jaxlib that is supported does otherwise than the one that the tests show."""

from __future__ import annotations

from importlib.metadata import version

import pytest

_JAXLIB = tuple(int(part) for part in version("jaxlib").split(".")[:3])

#: Shardy there keeps no record of why it split, so that another of several rules may be named.
NAMES_OTHER_CAUSES = _JAXLIB < (0, 10, 2)

#: Operations that JAX there lowers without the line that asked for them.
WITHOUT_A_LINE = {"inverse of one", "inverse of many"} if _JAXLIB < (0, 10, 2) else set[str]()

#: XLA there gathers a cotangent that it moves all-to-all elsewhere, "making it replicated on every
#: device (full rematerialization)": a step that trains with few constraints sends 1 % more.
GATHERS_COTANGENTS = _JAXLIB >= (0, 12, 0)

#: The partitioner there cuts a transform along a sharded dimension; its libtpu gathers all of it.
CUT_BY_JAXLIB = {"fft along"} if _JAXLIB >= (0, 12, 0) else set[str]()

#: Flags with which XLA spends little on code for a CPU; JAX 0.12 chooses itself how that is fused.
#: How a program is partitioned is decided before.
QUICK_FLAGS = "--xla_backend_optimization_level=0"
if _JAXLIB < (0, 12, 0):
    QUICK_FLAGS += " --xla_cpu_use_fusion_emitters=false"

#: A compiled program cannot move arrays of several CPU devices into the memory of their host.
moves_to_host = pytest.mark.skipif(
    _JAXLIB < (0, 10, 2), reason="XLA:CPU of this jaxlib moves nothing to host memory"
)

#: JAX there puts constants of a jitted function where that is called first.
constants_in_place = pytest.mark.skipif(_JAXLIB < (0, 10, 1), reason="needs the lines of constants")


def needs_libtpu() -> None:
    """Skip the test without libtpu, and with one of before jax 0.10.1.

    That sends and holds other amounts: float32 as it is, strided slices one by one.
    """
    pytest.importorskip("libtpu", reason="needs the extra tpu-aot")
    if tuple(map(int, version("libtpu").split(".")[:3])) < (0, 0, 50):
        pytest.skip("the model follows libtpu 0.0.52")
