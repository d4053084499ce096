"""What transfers lose to each other, level by level of the network.

The plan prices each transfer as if its own kind had the network to itself: the messages
over one boundary of all replicas at once, or the same collective of all groups of a
stage. The step is run again under this assumption, which costs every flow a fixed rate.
The links of one level after another, from the inside out, are then shared by whatever
truly meets there; the last level gives the replay itself. The differences between
neighbours in this chain add up to all that contention adds. They can be negative, where
replicas keep out of each other's way. What an outer level costs is counted on top of
the inner ones: the order is part of the definition.

Letters: ``F`` flows, ``E`` links.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from nestsim.simulator.flows import Flows
from nestsim.simulator.model import Model, build_model
from nestsim.simulator.outcome import SPAN_KINDS
from nestsim.simulator.replay import fold_model
from nestsim.simulator.run import run_system
from nestsim.simulator.settings import ReplaySettings
from nestsim.simulator.system import Incidence, Run
from nestsim.simulator.work import PipelineWork
from topologies.arrays import FloatArray, IntArray
from topologies.network import Links, Network


class Ends(NamedTuple):
    """When a step is over."""

    pipeline: float
    """End of the last pass [s]."""

    whole: float
    """End of the last duty [s]."""


class Contention(NamedTuple):
    """A step as the plan assumes it, and what each level adds to it."""

    alone: Ends
    """With a network of its own for each kind of transfer."""

    even: Ends
    """The same with all devices equally fast."""

    by_level: Mapping[str, float]
    """Name of the level -> how much later the last pass ends because the links of this
    level are shared, too [s]; levels on which nothing can meet are left out."""


def contention_by_level(
    network: Network, work: PipelineWork, settings: ReplaySettings, pipeline: float
) -> Contention:
    """Split what contention costs by level; that takes one run for each such level.

    Parameters
    ----------
    network, work, settings
        What was replayed.
    pipeline
        When the last pass of the replay ended [s].
    """
    model = build_model(network, work)
    shared = shared_levels(model, network.links)
    chain = [
        _ends(model, network.links, shared[:number], settings)
        for number in range(max(1, len(shared)))
    ]
    even = chain[0]
    if (work.slowdown > 1.0).any():
        same = replace(work, slowdown=np.ones(work.slowdown.shape))
        even = _ends(build_model(network, same), network.links, (), settings)
    reached = [*(ends.pipeline for ends in chain), pipeline]
    by_level: dict[str, float] = {}
    for number, level in enumerate(shared):
        name = network.levels[level].name
        added = reached[number + 1] - reached[number]
        by_level[name] = by_level.get(name, 0.0) + added
    return Contention(chain[0], even, by_level)


def shared_levels(model: Model, links: Links) -> tuple[int, ...]:
    """Return the levels that have a link which several flows cross, rising."""
    flows = model.flows.incidence.links
    crossed = np.bincount(flows, minlength=len(links)) > 1
    return tuple(np.unique(links.level[crossed]).tolist())


def _ends(
    model: Model, links: Links, shared: Sequence[int], settings: ReplaySettings
) -> Ends:
    """Run the step with the links of the given levels shared, the others private."""
    kinds = kinds_of_transfer(model.flows)
    incidence, capacity = private_links(model.flows.incidence, links, shared, kinds)
    system = replace(model.system, incidence=incidence, capacity=capacity)
    folding = fold_model(model._replace(system=system))
    run = run_system(folding.system, settings)
    return Ends(_last_pass(model, folding.system.program, run), run.end)


def kinds_of_transfer(flows: Flows) -> IntArray:
    """Give the flows that the plan prices together the same number, shape ``(F,)``."""
    kinds = np.arange(len(flows))
    teams = (row for own in flows.teams for each in own for row in each)
    for together in (*flows.activation, *flows.gradient, *teams):
        kinds[together] = together.min(initial=len(flows))
    return kinds


def private_links(
    incidence: Incidence, links: Links, shared: Sequence[int], kinds: IntArray
) -> tuple[Incidence, FloatArray]:
    """Give each flow a link of its own instead of all that are not shared.

    It has the rate that they allow the flow's lanes while all flows of the same kind,
    and no others, are active.

    Parameters
    ----------
    incidence, links
        Which flow crosses which link, and the links.
    shared
        Levels whose links stay as they are.
    kinds
        Of each flow, shape ``(F,)``.

    Returns
    -------
    tuple[Incidence, FloatArray]
        Which flow crosses which link, links renumbered, and their capacities.
    """
    num_flows = incidence.indptr.size - 1
    flow = np.repeat(np.arange(num_flows), np.diff(incidence.indptr))
    kept = np.isin(links.level[incidence.links], shared)
    crossed = incidence.links[~kept]
    keys = kinds[flow[~kept]] * len(links) + crossed
    _, together = np.unique(keys, return_inverse=True)
    weight = np.bincount(together, incidence.weights[~kept])[together]
    limit = np.full(num_flows, np.inf)
    np.minimum.at(limit, flow[~kept], links.bandwidth[crossed] / weight)
    own = np.flatnonzero(np.isfinite(limit))
    common = np.unique(incidence.links[kept])
    flows = np.concatenate((flow[kept], own))
    number = np.concatenate(
        (
            np.searchsorted(common, incidence.links[kept]),
            common.size + np.arange(own.size),
        )
    )
    weights = np.concatenate((incidence.weights[kept], np.ones(own.size)))
    order = np.lexsort((number, flows))
    sizes = np.bincount(flows, minlength=num_flows)
    indptr = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    capacity = np.concatenate((links.bandwidth[common], limit[own]))
    return Incidence(indptr, number[order].astype(np.int64), weights[order]), capacity


def _last_pass(model: Model, program: IntArray, run: Run) -> float:
    """Return when the last pass of all actors ended [s]."""
    optimizer = SPAN_KINDS.index("optimizer")
    return max(
        (
            float(ends[model.programs[kind].kinds != optimizer].max(initial=0.0))
            for kind, ends in zip(program.tolist(), run.span_ends, strict=True)
        ),
        default=0.0,
    )
