"""What fails of a cluster, how often, and what is particular about it."""

from collections.abc import Sequence
from dataclasses import replace

from nestsim.evaluate.cluster import node_size
from nestsim.features.goodput.draws import GIVEN, FailureKind
from nestsim.features.goodput.peers import domain_loss
from nestsim.features.goodput.trace import FailureLog, logged_kinds, read_log
from nestsim.scenario.base import input_file
from nestsim.scenario.goodput import (
    BREAKS_NODE,
    COMPONENTS,
    PARTS_OF_FABRIC,
    PUBLISHED,
    GoodputSpec,
    PeersSpec,
)
from nestsim.scenario.load import Scenario
from topologies.errors import InputError
from topologies.fabrics.inventory import network_parts
from topologies.network import Network
from topologies.notices import notices

FIRST_DOMAIN = 10_000
"""Number of the random numbers of the first domain, behind all others."""


def failure_log(scenario: Scenario, num_nodes: int) -> FailureLog | None:
    """Return the log of failures that the scenario names."""
    spec = scenario.goodput
    if spec.trace is None:
        return None
    path = input_file(
        scenario.path.parent, spec.trace, "goodput.trace", "a log of failures"
    )
    return read_log(path, time=spec.trace_time, num_nodes=spec.trace_nodes or num_nodes)


def failure_kinds(
    spec: GoodputSpec, network: Network, num_nodes: int, log: FailureLog | None = None
) -> tuple[FailureKind, ...]:
    """Return what fails of a cluster, and how often; what never does is left out."""
    parts = network_parts(network)
    counts = {
        "device": network.num_devices,
        "node": num_nodes,
        "switch": sum(part.count for part in parts.switches if not part.inside_node),
        "link": sum(
            part.count * part.cables_each(part.cable_bandwidth)
            for part in parts.bundles
            if not part.inside_node
        ),
        "fabric": network.num_devices,
        "job": 1,
        "software": network.num_devices,
    }
    published = None if log else PUBLISHED.get(spec.failures)
    known = {} if published is None else published.rates()
    rates = spec.rates.given()
    if not rates.keys().isdisjoint(PARTS_OF_FABRIC):
        known.pop("fabric", None)
    source = "" if published is None else published.source
    kinds = logged_kinds(log, num_nodes, fits=spec.fit_trace) if log else []
    for kind in kinds:
        if kind.name in rates:
            raise InputError(
                "is the name of a cause in the log",
                where=f"goodput.rates.{kind.name}",
                expected="a component that the log has not",
            )
    for stream, name in enumerate(COMPONENTS):
        given = rates.get(name)
        rate = known.get(name, 0.0) if given is None else given.rate
        if given is not None and not counts[name]:
            notices().remark(
                f"goodput.rates.{name} has no effect: outside its nodes the network "
                f"has no {name}"
            )
        if rate and counts[name]:
            kinds.append(
                FailureKind(
                    name=name,
                    stream=stream,
                    count=counts[name],
                    rate=rate,
                    shape=1.0 if given is None else given.shape,
                    breaks_node=name in BREAKS_NODE,
                    source=source if given is None else GIVEN,
                )
            )
    taken = {*COMPONENTS, *(kind.name for kind in kinds)}
    kinds += _domain_kinds(spec, network, num_nodes, taken)
    kinds = _particular(spec, kinds)
    peers = spec.checkpoint.peers
    if peers is not None:
        kinds = [_beside_peers(peers, kind, num_nodes) for kind in kinds]
    return tuple(kinds)


def _beside_peers(peers: PeersSpec, kind: FailureKind, num_nodes: int) -> FailureKind:
    """Return a kind that says how often it takes a whole group of peers."""
    group, jump = peers.replication_factor, peers.replication_jump
    if num_nodes % (group * jump):
        raise InputError(
            "make no whole groups of the job's nodes",
            where="goodput.checkpoint.peers.replication_factor",
            got=f"{group} nodes, each {jump:,} from the next, of {num_nodes:,}",
            expected="a factor and a jump whose product divides the nodes",
        )
    if kind.nodes == 1:
        return kind
    loss = domain_loss(num_nodes, group, jump, kind.nodes)
    return replace(kind, memory_loss=loss)


def _particular(spec: GoodputSpec, kinds: Sequence[FailureKind]) -> list[FailureKind]:
    """Return the kinds with what `causes` says of them."""
    known = {kind.name: kind for kind in kinds}
    names = [cause.name for cause in spec.causes]
    for place, cause in enumerate(spec.causes):
        where = f"goodput.causes[{place}]"
        kind = known.get(cause.name)
        if kind is None:
            raise InputError(
                "is nothing that fails",
                where=f"{where}.name",
                got=cause.name,
                expected=" or ".join(known) or "something with a rate",
            )
        if names.count(cause.name) > 1:
            raise InputError(
                "is there twice",
                where=f"{where}.name",
                got=cause.name,
                expected="one entry for each cause",
            )
        if cause.warm_share and kind.breaks_node:
            raise InputError(
                "goes on in processes of nodes that the failure takes out",
                where=f"{where}.warm_share",
                got=f"{cause.warm_share:g} of {cause.name!r}",
                expected="a cause that takes no node out, e.g. software",
            )
        if cause.repair_time is not None and not kind.breaks_node:
            raise InputError(
                "repairs what no failure of this cause takes out",
                where=f"{where}.repair_time",
                got=f"a time for {cause.name!r}",
                expected="a cause that takes nodes out, e.g. device",
            )
        known[cause.name] = replace(
            kind, repair=cause.repair_time, warm_share=cause.warm_share
        )
    return list(known.values())


def _domain_kinds(
    spec: GoodputSpec, network: Network, num_nodes: int, taken: set[str]
) -> list[FailureKind]:
    """Return what takes several nodes of a cluster at once; names are not to be taken.

    The last domain may be smaller, and counts as a whole one.
    """
    blocks = {
        level.name: -(-level.block_size // node_size(network))
        for level in network.levels
    }
    kinds = []
    for place, domain in enumerate(spec.domains):
        if domain.name in taken:
            raise InputError(
                "is the name of something else that fails",
                where=f"goodput.domains[{place}].name",
                got=domain.name,
                expected="a name of its own",
            )
        taken.add(domain.name)
        nodes = blocks.get(domain.level or "", domain.nodes)
        if nodes is None:
            raise InputError(
                "is no level of the network",
                where=f"goodput.domains[{place}].level",
                got=domain.level,
                expected=" or ".join(blocks),
            )
        if nodes > num_nodes:
            raise InputError(
                "is larger than the job",
                where=f"goodput.domains[{place}].nodes",
                got=f"{nodes:,} nodes",
                expected=f"at most {num_nodes:,}",
            )
        if domain.rate:
            kinds.append(
                FailureKind(
                    name=domain.name,
                    stream=FIRST_DOMAIN + place,
                    count=-(-num_nodes // nodes),
                    rate=domain.rate,
                    shape=domain.shape,
                    breaks_node=True,
                    nodes=nodes,
                    source=GIVEN,
                )
            )
    return kinds
