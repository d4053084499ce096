"""Small random networks of every kind.

Bandwidths are small integers as floats, so that sums are exact.
"""

import contextlib
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import strategies as st

from topologies import (
    CustomSpec,
    Degradation,
    DragonflySpec,
    FatTreeSpec,
    HyperXSpec,
    InputError,
    LevelSpec,
    Network,
    PodsSpec,
    RailSpec,
    SlowLinks,
    SpineLeafSpec,
    TorusSpec,
    build_network,
    degrade,
)

rates = st.integers(1, 12).map(float)
latencies = st.integers(0, 5).map(float)
ratios = st.sampled_from([1.0, 2.0, 4.0, 0.5])


@st.composite
def fat_tree_specs(draw, largest=3, depth=4):
    """Trees of any depth, explicit and derived trunks mixed."""
    nic = draw(st.sampled_from(["node", "device"]))
    count = draw(st.integers(1, depth))
    explicit = [True] + [draw(st.booleans()) for _ in range(count - 1)]
    levels = []
    for index in range(count):
        derived_above = index + 1 < count and not explicit[index + 1]
        levels.append(
            LevelSpec(
                name=f"tier {index}",
                fan_out=draw(st.integers(1, largest)),
                latency=draw(latencies),
                bandwidth=draw(rates) if explicit[index] else None,
                oversubscription=draw(st.none() | ratios) if derived_above else None,
            )
        )
    return FatTreeSpec(levels=tuple(levels), nic=nic)


@st.composite
def spine_leaf_specs(draw, largest=3):
    return SpineLeafSpec(
        devices_per_node=draw(st.integers(1, largest)),
        node_bandwidth=draw(rates),
        node_latency=draw(latencies),
        nodes_per_leaf=draw(st.integers(1, largest)),
        num_leaves=draw(st.integers(1, largest)),
        nic=draw(st.sampled_from(["node", "device"])),
        nic_bandwidth=draw(rates),
        nic_latency=draw(latencies),
        num_spines=draw(st.integers(1, 4)),
        oversubscription=draw(ratios),
        spine_latency=draw(latencies),
        trunk=draw(st.sampled_from(["ideal", "ecmp"])),
        ecmp_seed=draw(st.integers(-5, 2**70)),
    )


@st.composite
def rail_specs(draw, largest=3):
    spec = draw(joined_rail_specs(largest))
    return rails_alone(spec) if draw(st.booleans()) else spec


def rails_alone(spec):
    """Return the same network without what joins its rails."""
    spines = ("num_spines", 1), ("oversubscription", 1.0), ("trunk", "ideal")
    rest = {} if spec.num_units > 1 else dict(spines)
    return replace(spec, rail_only=True, pxn=True, **rest)


@st.composite
def joined_rail_specs(draw, largest=3):
    return RailSpec(
        devices_per_node=draw(st.integers(1, largest)),
        node_bandwidth=draw(rates),
        node_latency=draw(latencies),
        nodes_per_unit=draw(st.integers(1, largest)),
        num_units=draw(st.integers(1, largest)),
        nic_bandwidth=draw(rates),
        nic_latency=draw(latencies),
        num_spines=draw(st.integers(1, 4)),
        oversubscription=draw(ratios),
        spine_latency=draw(latencies),
        pxn=draw(st.booleans()),
        trunk=draw(st.sampled_from(["ideal", "ecmp"])),
        ecmp_seed=draw(st.integers(-5, 2**70)),
    )


@st.composite
def torus_specs(draw, largest=5):
    sizes = draw(st.lists(st.integers(1, largest), min_size=1, max_size=3))
    wrap = [draw(st.booleans()) for _ in sizes]
    return TorusSpec(
        dimensions=tuple(sizes),
        wrap=tuple(wrap),
        bandwidth=draw(rates),
        latency=draw(latencies),
    )


@st.composite
def link_files(draw):
    """Return the text of a custom network in which all devices are joined."""
    num_devices = draw(st.integers(1, 5))
    num_switches = draw(st.integers(0, 3))
    names = [str(d) for d in range(num_devices)]
    names += [f"switch {s}" for s in range(num_switches)]
    pairs = {(draw(st.integers(0, v - 1)), v) for v in range(1, len(names))}
    possible = [(a, b) for b in range(len(names)) for a in range(b)]
    if possible:
        pairs |= set(draw(st.lists(st.sampled_from(possible), max_size=6)))
    lines = [f"devices = {num_devices}"]
    for a, b in sorted(pairs):
        lines += ["[[links]]", f'source = "{names[a]}"', f'target = "{names[b]}"']
        lines.append(f'bandwidth = "{draw(st.integers(1, 9))} B/s"')
        lines.append(f'latency = "{draw(st.integers(0, 3))} s"')
    return "\n".join(lines) + "\n"


def custom_network(text: str) -> Network:
    """Build a custom network from the text of its file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "links.toml"
        path.write_text(text, encoding="utf-8")
        return build_network(CustomSpec(path=path))


@st.composite
def cabled_fat_tree_specs(draw, largest=3, depth=3):
    """Fat-trees whose links are of several cables, which are links of their own."""
    spec = draw(fat_tree_specs(largest, depth))
    levels = [
        replace(level, num_cables=draw(st.none() | st.integers(1, 4)))
        for level in spec.levels
    ]
    seed = draw(st.integers(-5, 2**70))
    return replace(spec, levels=tuple(levels), trunk="ecmp", ecmp_seed=seed)


@st.composite
def link_names(draw, network):
    """Name a link of a network in one of the ways that there are."""
    links, names = network.links, network.vertex_names
    link = draw(st.integers(0, len(links) - 1))
    here, there = names[links.source[link]], names[links.target[link]]
    arrow = draw(st.sampled_from(["->", "<->"]))
    cable = draw(st.sampled_from(["", "", " #0"]))
    return f"{here} {arrow} {there}{cable}"


@st.composite
def degradations(draw, network):
    """Slow and remove up to three links and a switch; it may cut devices off."""
    some = (
        st.lists(link_names(network), max_size=3) if len(network.links) else st.just([])
    )
    switches = network.vertex_names[network.num_devices :]
    some_switch = (
        st.lists(st.sampled_from(switches), max_size=1) if switches else st.just([])
    )
    slow = [
        SlowLinks(links=name, factor=draw(st.sampled_from([1.0, 2.0, 4.0])))
        for name in draw(some)
    ]
    return Degradation(
        slow_links=tuple(slow),
        removed_links=tuple(draw(some)),
        removed_switches=tuple(draw(some_switch)),
    )


@st.composite
def degraded_networks(draw, kinds=None):
    """Return a network as built, and what is left of it; it still holds together."""
    kinds = networks | cabled_fat_trees if kinds is None else kinds
    built = draw(kinds.filter(lambda n: len(n.links) > 0))
    left = built
    for name in draw(st.lists(link_names(built), max_size=3)):
        slow = SlowLinks(links=name, factor=draw(st.sampled_from([1.0, 2.0, 4.0])))
        left = degrade(left, Degradation(slow_links=(slow,)))
    cuts = [
        Degradation(removed_links=(name,))
        for name in draw(st.lists(link_names(built), min_size=1, max_size=6))
    ]
    if switches := built.vertex_names[built.num_devices :]:
        cuts.append(Degradation(removed_switches=(draw(st.sampled_from(switches)),)))
    for cut in cuts:
        with contextlib.suppress(InputError):
            left = degrade(left, cut)
    return built, left


@st.composite
def blocks_below(draw, largest=2):
    """What stands below a switch: nodes of devices, or nodes whose switch it is."""
    count = draw(st.integers(1, 2))
    levels = [
        LevelSpec(
            name=name,
            fan_out=draw(st.integers(1, largest)),
            latency=draw(latencies),
            bandwidth=draw(rates),
        )
        for name in ("node", "switch")[:count]
    ]
    return FatTreeSpec(
        levels=tuple(levels), nic=draw(st.sampled_from(["node", "device"]))
    )


@st.composite
def dragonfly_specs(draw, routing="minimal"):
    """Dragonflies with and without spines, with several links between groups."""
    switches, spines = draw(st.integers(1, 3)), draw(st.integers(0, 2))
    links = draw(st.integers(1, 3))
    most = min(4, (spines or switches) * links + 1)
    return DragonflySpec(
        below=draw(blocks_below()),
        routing=routing,
        trunk=draw(st.sampled_from(["ideal", "ecmp"])),
        ecmp_seed=draw(st.integers(-5, 2**70)),
        switches_per_group=switches,
        num_groups=draw(st.integers(2, most)),
        global_links=links,
        spines_per_group=spines,
        local_bandwidth=draw(rates),
        local_latency=draw(latencies),
        global_bandwidth=draw(rates),
        global_latency=draw(latencies),
    )


@st.composite
def hyperx_specs(draw, routing="minimal"):
    """Grids of switches whose lines are joined all to all, or in rings."""
    dimensions = draw(st.lists(st.integers(2, 4), min_size=1, max_size=2))
    return HyperXSpec(
        below=draw(blocks_below()),
        routing=routing,
        trunk=draw(st.sampled_from(["ideal", "ecmp"])),
        ecmp_seed=draw(st.integers(-5, 2**70)),
        dimensions=tuple(dimensions),
        bandwidths=tuple(draw(rates) for _ in dimensions),
        latency=draw(latencies),
        rings=draw(st.booleans()),
    )


@st.composite
def pods_specs(draw):
    """Pods of trees and tori."""
    pod = draw(tree_specs | torus_specs(largest=3))
    divisors = [n for n in range(1, pod.num_devices + 1) if pod.num_devices % n == 0]
    return PodsSpec(
        pod=pod,
        num_pods=draw(st.integers(2, 3)),
        nic_bandwidth=draw(rates),
        nic_latency=2 * draw(latencies),
        latency=draw(latencies),
        devices_per_nic=draw(st.sampled_from(divisors)),
        oversubscription=draw(ratios),
    )


tree_specs = fat_tree_specs() | spine_leaf_specs() | rail_specs()
cabled_fat_trees = cabled_fat_tree_specs().map(build_network)
trees = tree_specs.map(build_network)
tori = torus_specs().map(build_network)
customs = link_files().map(custom_network)
joined_specs = dragonfly_specs() | hyperx_specs() | pods_specs()
joined = joined_specs.map(build_network)
networks = trees | tori | customs | joined
degraded = degraded_networks().map(lambda pair: pair[1])
