"""The smallest recipe that still shows an error: choices are made simpler one by one."""

from __future__ import annotations

from collections.abc import Callable

from tests.generated.recipe import Recipe, simpler


def shrunk(recipe: Recipe, is_bad: Callable[[Recipe], bool], most: int = 60) -> Recipe:
    """Return a recipe that is bad and of which no simpler neighbour is.

    Args:
      is_bad: asked once of each recipe; it compiles, so it is slow.
      most: how often it may be asked.

    Invariants:
      ends: the complexity falls with every step, so there are finitely many.
    """
    asked: dict[str, bool] = {}
    while True:
        for new in simpler(recipe):
            if new.text not in asked:
                if len(asked) >= most:
                    return recipe
                asked[new.text] = is_bad(new)
            if asked[new.text]:
                recipe = new
                break
        else:
            return recipe
