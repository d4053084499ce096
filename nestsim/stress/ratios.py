"""Networks with other oversubscription ratios: the same switches, other bandwidths.

The ratio of a level is what its children's links carry together over its links to the
level above. Another ratio changes the links to the level above, and nothing below;
further out, ratios that are not named stay as they are, but for a fat-tree's levels
whose bandwidth the scenario gives: those keep their bandwidth.
"""

from collections.abc import Mapping
from dataclasses import replace

from topologies.builders import build_network
from topologies.errors import InputError
from topologies.fabrics.tree_routing import TreeRouting
from topologies.network import Network, Tier
from topologies.specs import FatTreeSpec, NetworkSpec, RailSpec, SpineLeafSpec

MOST_RATIO = 1e6
"""What scenarios accept, too."""


def built_ratios(network: Network) -> dict[str, float]:
    """Return the ratio of each level that has links to one above, from the inside out.

    Parameters
    ----------
    network
        As it was built; empty for tori and lists of links, which have no such levels.
    """
    if not isinstance(network.routing, TreeRouting):
        return {}
    tiers = network.tiers()
    return {tier.name: tier.oversubscription for tier in tiers if tier.num_uplinks}


def uplinks(network: Network, level: str) -> Tier:
    """Return a tree's level by name."""
    return next(tier for tier in network.tiers() if tier.name == level)


def with_ratios(spec: NetworkSpec, ratios: Mapping[str, float]) -> NetworkSpec:
    """Return the parameters of a network with other ratios.

    Parameters
    ----------
    spec
        A tree of switches.
    ratios
        Level -> its ratio; all at once, the inner ones first.

    Raises
    ------
    InputError
        If a level has no links to one above.
    """
    known = built_ratios(build_network(spec)) if ratios else {}
    for level in ratios:
        _check_level(level, known)
    for number, level in enumerate(known):
        if level in ratios:
            spec = _with_ratio(spec, number, ratios[level])
    return spec


def _check_level(level: str, known: Mapping[str, float]) -> None:
    if level in known:
        return
    if not known:
        expected = "a tree of switches; other networks are slowed by conditions"
    else:
        expected = " or ".join(f'"{name}"' for name in known)
    raise InputError(
        "is no level with links to one above", got=level, expected=expected
    )


def _with_ratio(spec: NetworkSpec, number: int, ratio: float) -> NetworkSpec:
    if not 0 < ratio <= MOST_RATIO:
        raise InputError(
            "must be a positive ratio", got=ratio, expected=f"at most {MOST_RATIO:g}"
        )
    network = build_network(spec)
    built = list(built_ratios(network).values())[number]
    if isinstance(spec, SpineLeafSpec | RailSpec):
        if number:
            return replace(spec, oversubscription=ratio)
        return replace(spec, nic_bandwidth=spec.nic_bandwidth * built / ratio)
    assert isinstance(spec, FatTreeSpec)
    assert isinstance(network.routing, TreeRouting)
    above = network.routing.switch_tiers[number + 1]
    levels = list(spec.levels)
    levels[number] = replace(levels[number], oversubscription=None)
    # As many cables as before, so that names and hashes of cables stay what they are.
    levels[number + 1] = replace(
        levels[number + 1],
        bandwidth=above.child_bandwidth * built / ratio,
        num_cables=above.num_parallel * above.num_cables,
    )
    return replace(spec, levels=tuple(levels))
