"""Python is parsed by several threads at once: each gets its tree."""

import ast
import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from shardspec.python_syntax import expression, parsed

TEXT = "".join(f"x{each} = [f(y.a, (1, 2)) for y in range({each})]\n" for each in range(40))


@pytest.fixture
def _often() -> Iterator[None]:
    """Let another thread run in the middle of a tree: collecting garbage calls Python there."""

    def wait(*_: object) -> None:
        time.sleep(0)

    kept = gc.get_threshold()
    gc.callbacks.append(wait)
    gc.set_threshold(10)
    yield
    gc.set_threshold(*kept)
    gc.callbacks.remove(wait)


@pytest.mark.usefixtures("_often")
def test_threads_do_not_disturb_each_other() -> None:
    wanted = ast.dump(ast.parse(TEXT))
    with ThreadPoolExecutor(4) as pool:
        trees = [*pool.map(lambda _: parsed(TEXT), range(24))]
    assert {ast.dump(each) for each in trees} == {wanted}


def test_an_expression_is_one() -> None:
    assert ast.dump(expression("f(x)[0]")) == ast.dump(ast.parse("f(x)[0]", mode="eval").body)
    with pytest.raises(SyntaxError):
        expression("x = 1")


def test_what_python_warns_of_stays_unsaid(recwarn: pytest.WarningsRecorder) -> None:
    parsed("x = '\\d'")
    expression("'\\d'")
    assert not recwarn.list
