"""Tests of what only some versions of JAX and of its compilers do."""

from __future__ import annotations

import importlib.metadata

import jax
import pytest


def needs_libtpu() -> None:
    """Skip the test without libtpu, and with one of before jax 0.10.1.

    That sends and holds other amounts: float32 as it is, strided slices one by one.
    """
    pytest.importorskip("libtpu", reason="needs the extra tpu-aot")
    version = tuple(map(int, importlib.metadata.version("libtpu").split(".")[:3]))
    if version < (0, 0, 50):
        pytest.skip("the model follows libtpu 0.0.52")


#: jax 0.10.0 puts constants of a jitted function where that is called first.
CONSTANTS_IN_PLACE = pytest.mark.skipif(
    jax.__version_info__ < (0, 10, 1), reason="needs the lines of constants"
)
