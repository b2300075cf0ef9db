"""The state of one spec on one target: entries written for it, its parameter, then ZeRO.

A pattern that names arrays of the model usually matches the state of those arrays too:
`**/kernel` is the tail of `0/mu/decoder/kernel`. Such an entry says what the parameter is,
and the state follows from that. An entry speaks of state if it matches the path of the state
array and not that of its parameter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from shardspec.ir.plan import Dims, ParamSharding
from shardspec.ir.spec import Override, Param, PathRule
from shardspec.resolve.match import PathMatcher
from shardspec.resolve.resolver import ArrayResolver
from shardspec.resolve.state import Relation, StateSharding, as_state, derive, unowned
from shardspec.resolve.zero import extra_axes, split_further, state_axes

Entry = Override | PathRule

#: What ZeRO may split further: the others are small, or laid out by hand.
_SPLIT = {Relation.SAME, Relation.REDUCED, Relation.STACKED}


@dataclass(frozen=True, slots=True)
class StateResolver:
    """A spec on one target, asked for arrays of state.

    Attributes:
      of_params: the entries that name parameters, which thus do not speak of arrays that belong
        to none.
      over: the mesh axes that ZeRO splits state over.
    """

    arrays: ArrayResolver
    of_params: frozenset[Entry]
    over: tuple[str, ...]
    _known: dict[object, StateSharding] = field(default_factory=dict, compare=False, repr=False)

    def resolve(
        self,
        state: Param,
        owner: ParamSharding | None,
        name: str = "",
        rest: tuple[str, ...] = (),
    ) -> StateSharding:
        """Return the answer for one array of state.

        Args:
          owner: None where it belongs to no parameter.
          name: what the optimizer calls it.
          rest: components of its path below the parameter's.
        """
        own = self._own(state, owner) if state.rank else None
        if own is not None:
            return as_state(own, Relation.OWN, owner, name)
        if owner is None:
            return unowned(state)
        key = (owner.dims, owner.param.shape, state.shape, name, rest)
        known = self._known.get(key)
        if known is None:
            self._known[key] = known = self._split(derive(owner, state, name, rest))
        return StateSharding(
            state,
            known.dims,
            owner.origin,
            relation=known.relation,
            owner=owner,
            field=name,
            reading=known.reading,
            readings=known.readings,
            split=known.split,
        )

    def gradient(self, owner: ParamSharding) -> Dims:
        """Return how the gradient of a parameter lies: split further under `zero2`."""
        policy = self.arrays.spec.state
        if policy is None or policy.optimizer != "zero2":
            return owner.dims
        return extra_axes(owner.dims, self.arrays.target.mesh, self.over)

    def _split(self, found: StateSharding) -> StateSharding:
        if not self.over or found.relation not in _SPLIT:
            return found
        split = split_further(found.dims, self.arrays.target.mesh, self.over)
        return replace(found, dims=split.dims, split=split)

    def _own(self, state: Param, owner: ParamSharding | None) -> ParamSharding | None:
        """Return what the spec or the array itself says of it, None where it follows its owner."""
        names, spec = self.arrays.names, self.arrays.spec
        override = self._entry(names.overrides, spec.overrides, state.path, owner)
        if override is not None:
            return self.arrays.resolve(state, override)
        if _has_own_names(state, owner):
            return self.arrays.resolve(state)
        entry = self._entry(names.path_rules, spec.path_rules, state.path, owner)
        if entry is None:
            return None
        return self.arrays.resolve(replace(state, logical_axes=None), entry)

    def _entry(
        self,
        matcher: PathMatcher,
        entries: tuple[Entry, ...],
        path: str,
        owner: ParamSharding | None,
    ) -> Entry | None:
        """Return the first entry that speaks of the state array at `path`."""
        if not entries:
            return None
        matching = matcher.all_matches(path)
        taken = set(matcher.all_matches(owner.param.path)) if owner and matching else set()
        free = (entries[index] for index in matching if index not in taken)
        return next((entry for entry in free if entry not in self.of_params), None)


def state_resolver(arrays: ArrayResolver, params: Iterable[ParamSharding]) -> StateResolver:
    """Return a spec made ready for the state of these parameters."""
    of_params = frozenset(each.matched for each in params if each.matched is not None)
    return StateResolver(arrays, of_params, state_axes(arrays.spec, arrays.target.mesh))


def _has_own_names(state: Param, owner: ParamSharding | None) -> bool:
    """Say whether an array carries names that are meant for it.

    Boxes of Flax stay around the state of what they held. Their names say something new only
    where they are not the parameter's, and are as many as the dimensions.
    """
    names = state.logical_axes
    if names is None:
        return False
    if owner is None:
        return True
    of_owner = owner.param.logical_axes
    return of_owner is not None and names != of_owner and len(names) == state.rank
