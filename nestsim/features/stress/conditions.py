"""Conditions: states of the cluster that plans are put under.

A condition turns a scenario into another one, so that everything that plans and replays
scenarios works under it. Background traffic is taken off the links' bandwidth: it has
a constant rate, gives way to nothing, and the job shares what is left.

A network with another oversubscription ratio has the same switches and other
bandwidths. The ratio of a level is what its children's links carry together over its
links to the level above. Another ratio changes the links to the level above, and
nothing below; further out, ratios that are not named stay as they are, but for a
fat-tree's levels whose bandwidth the scenario gives: those keep their bandwidth.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from nestsim.evaluate.cluster import cluster_network
from nestsim.scenario.stress import BackgroundSpec, ConditionSpec, StressSpec
from topologies.builders import build_network
from topologies.degrade import Degradation, SlowLinks, select_links
from topologies.errors import InputError
from topologies.joined_specs import NetworkSpec
from topologies.network import Network, Tier
from topologies.units import format_bandwidth

if TYPE_CHECKING:
    from nestsim.scenario.load import Scenario

MOST_RATIO = 1e6
"""Largest ratio of oversubscription, which scenarios accept, too."""


def built_ratios(network: Network) -> dict[str, float]:
    """Return the ratio of each level that has links to one above, from the inside out.

    Parameters
    ----------
    network
        As it was built; empty for tori and lists of links, which have no such levels.
    """
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
    for level in known:
        if level in ratios:
            spec = _with_ratio(spec, level, ratios[level])
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


def _with_ratio(spec: NetworkSpec, level: str, ratio: float) -> NetworkSpec:
    if not 0 < ratio <= MOST_RATIO:
        raise InputError(
            "must be a positive ratio", got=ratio, expected=f"at most {MOST_RATIO:g}"
        )
    tiers = build_network(spec).tiers()
    number = [tier.name for tier in tiers].index(level)
    return spec.with_oversubscription(tiers, number, ratio)


AS_BUILT = "as built"
"""Name of the condition that leaves the scenario as it is, which "healthy" plans are
made for."""

DEFAULT_RATIOS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Ratios that are tried if the scenario names none."""

MOST_CONDITIONS = 10_000
"""Conditions of a stress test at most."""

_SAME = 1e-9
"""Relative difference of ratios below which they are the same."""

Ratios = tuple[tuple[str, float], ...]
"""Levels whose ratio is another than as built, from the inside out."""


def apply_condition(scenario: "Scenario", condition: ConditionSpec) -> "Scenario":
    """Return the scenario under a condition.

    Raises
    ------
    InputError
        If the condition names what the cluster does not have, or its background
        traffic leaves nothing of a link.
    """
    try:
        spec = scenario.network_spec
        if condition.ecmp_seed is not None:
            spec = spec.with_ecmp_seed(condition.ecmp_seed)
        try:
            spec = with_ratios(spec, condition.oversubscription)
        except InputError as error:
            raise error.at("oversubscription") from None
        worse = _joined(scenario.degradation, condition.degraded)
        changed = replace(scenario, network_spec=spec, degradation=worse)
        if condition.background:
            taken = _taken(cluster_network(changed), condition.background)
            worse = _joined(worse, Degradation(slow_links=taken))
            changed = replace(changed, degradation=worse)
    except InputError as error:
        raise error.at(f'condition "{condition.name}"', ": ") from None
    return changed


def _joined(first: Degradation | None, second: Degradation) -> Degradation | None:
    """Return both together; None if nothing is wrong."""
    if first is not None:
        second = Degradation(
            slow_links=(*first.slow_links, *second.slow_links),
            removed_links=(*first.removed_links, *second.removed_links),
            removed_switches=(*first.removed_switches, *second.removed_switches),
            slow_devices=(*first.slow_devices, *second.slow_devices),
        )
    return None if second == Degradation() else second


def _taken(
    network: Network, background: Sequence[BackgroundSpec]
) -> tuple[SlowLinks, ...]:
    """Return the links that background traffic takes from, as slowed ones.

    What several take from a link adds up.
    """
    links = network.links
    taken = np.zeros(len(links))
    for index, traffic in enumerate(background):
        try:
            chosen = select_links(network, traffic.links)
        except InputError as error:
            raise error.at(f"background[{index}].links") from None
        share = traffic.share or 0.0
        rate = links.bandwidth[chosen] * share if traffic.rate is None else traffic.rate
        taken[chosen] += rate
        full = np.flatnonzero(taken >= links.bandwidth * (1.0 - _SAME))
        if full.size:
            raise InputError(
                "leaves nothing of a link",
                where=f"background[{index}]",
                got=f"{format_bandwidth(float(taken[full[0]]))} of {traffic.links}",
                expected=f"less than {format_bandwidth(_capacity(network, full[0]))}",
            )
    factor = links.bandwidth / (links.bandwidth - taken)
    return tuple(
        SlowLinks(links=_link_text(network, int(link)), factor=float(factor[link]))
        for link in np.flatnonzero(factor > 1.0)
    )


def _capacity(network: Network, link: int) -> float:
    return float(network.links.bandwidth[link])


def _link_text(network: Network, link: int) -> str:
    """Return the text that names one link, with its number among parallel ones."""
    links, names = network.links, network.vertex_names
    source, target = int(links.source[link]), int(links.target[link])
    alike = np.flatnonzero((links.source == source) & (links.target == target))
    text = f"{names[source]} -> {names[target]}"
    if alike.size > 1:
        text += f" #{int(np.searchsorted(alike, link))}"
    return text


def canonical(built: Mapping[str, float], ratios: Mapping[str, float]) -> Ratios:
    """Return ratios without those that are as built: the same for the same network."""
    return tuple(
        (level, ratios[level])
        for level in built
        if level in ratios and abs(ratios[level] / built[level] - 1.0) > _SAME
    )


def ratio_condition(ratios: Ratios) -> ConditionSpec:
    """Return the condition of some ratios; none is the scenario itself."""
    name = ", ".join(f"{level} {ratio:.6g}:1" for level, ratio in ratios) or AS_BUILT
    return ConditionSpec(name=name, oversubscription=dict(ratios))


def default_axes(built: Mapping[str, float]) -> dict[str, tuple[float, ...]]:
    """Return the ratios that are tried if nothing is said: of levels above the node."""
    levels = list(built)
    return dict.fromkeys(levels[1:] or levels, DEFAULT_RATIOS)


def axes_of(
    spec: StressSpec, built: Mapping[str, float]
) -> dict[str, tuple[float, ...]]:
    """Return the ratios of each level that varies, rising, from the inside out.

    Raises
    ------
    InputError
        If a level has no links to one above, or there is nothing to do.
    """
    axes = dict(spec.oversubscription)
    for level in axes:
        if level not in built:
            names = " or ".join(f'"{name}"' for name in built)
            raise InputError(
                "is no level with links to one above",
                where="stress.oversubscription",
                got=level,
                expected=names or "none: only trees of switches have such levels",
            )
    if not (axes or spec.conditions or spec.ecmp_seeds):
        axes = default_axes(built)
        if not axes:
            raise InputError(
                "there is nothing to stress: the network has no levels of switches",
                where="stress",
                expected="a list stress.conditions: slow or removed links, slow "
                "devices, background traffic",
            )
    return {level: tuple(sorted(axes[level])) for level in built if level in axes}


def all_conditions(
    spec: StressSpec, axes: Mapping[str, Sequence[float]], built: Mapping[str, float]
) -> tuple[ConditionSpec, ...]:
    """Return every condition once: as built, each ratio, combinations, and the others.

    Raises
    ------
    InputError
        If there are too many, or two of one name.
    """
    count = math.prod(len(ratios) for ratios in axes.values())
    if count > MOST_CONDITIONS:
        raise InputError(
            "makes too many conditions",
            where="stress.oversubscription",
            got=f"{count:,} combinations",
            expected=f"at most {MOST_CONDITIONS:,}",
        )
    lines = [{level: ratio} for level, ratios in axes.items() for ratio in ratios]
    grid = [
        dict(zip(axes, ratios, strict=True))
        for ratios in itertools.product(*axes.values())
    ]
    ratios = dict.fromkeys(canonical(built, changed) for changed in ({}, *lines, *grid))
    conditions = [ratio_condition(changed) for changed in ratios]
    conditions += [
        ConditionSpec(name=f"ECMP seed {seed}", ecmp_seed=seed)
        for seed in spec.ecmp_seeds
    ]
    taken = {condition.name for condition in conditions}
    for index, condition in enumerate(spec.conditions):
        if condition.name in taken:
            raise InputError(
                "is the name of another condition",
                where=f"stress.conditions[{index}].name",
                got=condition.name,
                expected="another name",
            )
    return (*conditions, *spec.conditions)


def network_ratios(scenario: "Scenario") -> dict[str, float]:
    """Return the ratios of the scenario's network as it was built."""
    from topologies.builders import build_network

    try:
        network = build_network(scenario.network_spec)
    except InputError as error:
        raise scenario.network_spec.located(error, "cluster.network") from None
    return built_ratios(network)
