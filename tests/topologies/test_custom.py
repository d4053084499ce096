"""Networks listed link by link."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from tests import failures
from tests.topologies.oracles import all_pairs
from tests.topologies.strategies import custom_network, customs, link_files
from topologies import CustomSpec, InputError, build_network
from topologies.fabrics.custom import class_floors, classify
from topologies.fabrics.routing import max_flow
from topologies.network import Links


def link(source, target, bandwidth="100 GB/s", latency="1 us", **more):
    values = {"source": source, "target": target, "bandwidth": bandwidth}
    values |= {"latency": latency} | more
    words = {True: "true", False: "false"}
    inside = ", ".join(
        f"{key} = " + (words[v] if isinstance(v, bool) else f"{v!r}")
        for key, v in values.items()
        if v is not None
    )
    return "{ " + inside + " }"


def write(tmp_path, devices, *links):
    path = tmp_path / "net.toml"
    rows = ",\n  ".join(links)
    path.write_text(f"devices = {devices}\nlinks = [\n  {rows}\n]\n", encoding="utf-8")
    return CustomSpec(path=path)


def reference_costs(network):
    """Least (hops, latency) of all pairs: links are relaxed until nothing moves."""
    links = network.links
    count = len(network.vertex_names)
    best = [[(np.inf, np.inf)] * count for _ in range(count)]
    for vertex in range(count):
        best[vertex][vertex] = (0, 0.0)
    for row in best:
        changed = True
        while changed:
            changed = False
            for a, b, cost in zip(
                links.source, links.target, links.latency, strict=True
            ):
                offer = (row[a][0] + 1, row[a][1] + cost)
                if offer < row[b]:
                    row[b], changed = offer, True
    return best


@given(network=customs)
@settings(max_examples=30)
def test_routes_have_the_least_hops_then_the_least_latency(network):
    best = reference_costs(network)
    sources, targets = all_pairs(network)
    routes = network.routes(sources, targets)
    costs = zip(np.diff(routes.indptr), network.latencies(routes), strict=True)
    for source, target, cost in zip(sources, targets, costs, strict=True):
        assert cost == best[source][target]


@given(text=link_files())
@settings(max_examples=25)
def test_largest_flows_equal_those_of_scipy(text):
    network = custom_network(text)
    links, count = network.links, len(network.vertex_names)
    if network.num_devices < 2:
        return
    half = network.num_devices // 2
    capacity = np.zeros((count + 2, count + 2), dtype=np.int32)
    capacity[links.source, links.target] = links.bandwidth
    capacity[count, :half] = capacity[half : network.num_devices, count + 1] = 10_000
    expected = maximum_flow(csr_array(capacity), count, count + 1).flow_value
    assert network.bisection_bandwidth() == expected


def test_a_flow_of_nothing_is_zero():
    none = np.zeros(0, dtype=np.int64)
    links = Links(
        source=none,
        target=none,
        bandwidth=none.astype(float),
        latency=none.astype(float),
        level=none,
        num_parallel=none,
    )
    assert max_flow(links, 2, np.array([0]), np.array([1])) == 0


def test_equally_long_routes_take_the_lowest_last_link(tmp_path):
    spec = write(tmp_path, 2, link(0, "x"), link(0, "y"), link("y", 1), link("x", 1))
    network = build_network(spec)
    middle = network.links.target[network.route(0, 1)[0]]
    assert network.vertex_names[middle] == "y"


def test_latency_decides_between_routes_of_equal_hops(tmp_path):
    spec = write(
        tmp_path,
        2,
        link(0, "x", latency="2 us"),
        link(0, "y"),
        link("x", 1),
        link("y", 1),
    )
    network = build_network(spec)
    assert network.vertex_names[network.links.target[network.route(0, 1)[0]]] == "y"


def test_devices_pass_on_what_is_not_for_them(tmp_path):
    network = build_network(write(tmp_path, 3, link(0, 1), link(1, 2)))
    assert len(network.route(0, 2)) == 2


def test_names_beyond_the_devices_are_switches(tmp_path):
    spec = write(tmp_path, '["a", "b"]', link("a", "hub"), link("b", "hub"))
    network = build_network(spec)
    assert network.num_devices == 2
    assert network.vertex_names == ("a", "b", "hub")


def test_a_number_and_its_name_are_the_same_device(tmp_path):
    network = build_network(write(tmp_path, 2, link(0, "1")))
    assert network.vertex_names == ("0", "1")


def test_one_way_links_need_a_way_back(tmp_path):
    one_way = link(0, 1, bidirectional=False)
    with pytest.raises(InputError, match="cannot be reached") as caught:
        build_network(write(tmp_path, 2, one_way))
    assert "no route from 1 to 0" in str(caught.value)
    back = link(1, 0, latency="9 us", bidirectional=False)
    network = build_network(write(tmp_path, 2, one_way, back))
    assert network.links.latency.tolist() == pytest.approx([1e-6, 9e-6])


def test_what_is_cut_off_is_named(tmp_path):
    with pytest.raises(InputError) as caught:
        build_network(write(tmp_path, '["a", "b", "c", "d"]', link("a", "b")))
    assert "no route from a to c, d" in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "net.toml") + ": links: ")


def test_two_fast_islands_make_two_levels_and_aligned_blocks(tmp_path):
    slow = {"bandwidth": "200 Gbit/s", "latency": "2 us"}
    spec = write(
        tmp_path,
        6,
        *[link(a, b) for a, b in ((0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5))],
        link(0, "spine", **slow),
        link(3, "spine", **slow),
    )
    network = build_network(spec)
    inner, outer = network.levels
    assert (inner.name, outer.name) == ("100 GB/s", "25 GB/s")
    assert (inner.block_size, inner.num_blocks) == (3, 2)
    assert inner.uplink_bandwidth == 25e9
    assert inner.oversubscription == (6 * 100 + 25) / 25
    assert outer.latency == pytest.approx(6e-6)
    assert network.block_sizes == (3, 6)
    assert network.bisection_bandwidth() == 25e9
    assert [tier.num_links for tier in network.tiers()] == [6, 2]
    assert network.links.level.tolist() == [0] * 12 + [1] * 4


def test_interleaved_islands_are_no_aligned_blocks(tmp_path):
    spec = write(tmp_path, 4, link(0, 2), link(1, 3), link(0, 1, bandwidth="1 GB/s"))
    assert build_network(spec).block_sizes == (4,)


def test_a_device_alone_is_a_network(tmp_path):
    path = tmp_path / "net.toml"
    path.write_text("devices = 1\n", encoding="utf-8")
    network = build_network(CustomSpec(path=path))
    assert (network.num_devices, len(network.links)) == (1, 0)
    assert network.bisection_bandwidth() == 0


def test_speeds_within_five_percent_are_one_class():
    floors = class_floors(np.array([100.0, 96.0, 94.0, 50.0]))
    assert floors.tolist() == [96.0, 94.0, 50.0]
    assert classify(np.array([100.0, 95.0, 94.0, 1.0]), floors).tolist() == [0, 1, 1, 2]


def test_more_than_five_classes_join_where_the_gap_is_smallest():
    floors = class_floors(np.array([64.0, 32.0, 16.0, 12.0, 4.0, 2.0, 1.0]))
    assert len(floors) == 5
    assert 16.0 not in floors.tolist()


FAULTS = {
    "missing bandwidth": (2, (link(0, 1, None),), "links[0].bandwidth"),
    "no unit": (2, (link(0, 1, 100),), "links[0].bandwidth"),
    "not a bandwidth": (2, (link(0, 1, "2 us"),), "links[0].bandwidth"),
    "zero bandwidth": (2, (link(0, 1, "0 GB/s"),), "links[0].bandwidth"),
    "negative latency": (2, (link(0, 1, latency="-1 us"),), "links[0].latency"),
    "no such device": (2, (link(0, 2),), "links[0].target"),
    "negative device": (2, (link(-1, 1),), "links[0].source"),
    "to itself": (2, (link(0, 1), link(1, "1")), "links[1].target"),
    "twice": (2, (link(0, 1), link(1, 0)), "links[1]"),
    "not yes or no": (2, (link(0, 1, bidirectional=1),), "links[0].bidirectional"),
    "empty name": (2, (link(0, ""),), "links[0].target"),
    "unknown key": (2, (link(0, 1, bandwith="1 B/s"),), "links[0].bandwith"),
    "no devices": (0, (link(0, 1),), "devices"),
    "yes as a count": ("true", (link(0, 1),), "devices"),
    "too many": (10**9, (link(0, 1),), "devices"),
    "name twice": ('["a", "a"]', (link(0, 1),), "devices[1]"),
    "number as name": ("[1, 2]", (link(0, 1),), "devices[0]"),
}


@failures.over("fault", FAULTS)
def test_faults_name_the_file_and_the_setting(fault, tmp_path):
    devices, links, where = FAULTS[fault]
    with pytest.raises(InputError) as caught:
        build_network(write(tmp_path, devices, *links))
    assert str(caught.value).startswith(f"{tmp_path / 'net.toml'}: {where}: ")


def test_a_misspelt_setting_gets_a_suggestion(tmp_path):
    with pytest.raises(InputError, match="unknown setting") as caught:
        build_network(write(tmp_path, 2, link(0, 1, latncy="1 us")))
    assert 'did you mean "latency"?' in str(caught.value)


@failures.over(
    ("content", "problem"),
    [
        (b"devices = ", "not TOML"),
        (b"\xff", "is not UTF-8 text"),
        (b"devices = 2\nlinks = 3", "not a list of tables"),
        (b"links = []", "is missing"),
        (None, "no such file"),
    ],
)
def test_unreadable_files_are_refused(tmp_path, content, problem):
    path = tmp_path / "net.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=problem) as caught:
        build_network(CustomSpec(path=path))
    assert str(path) in str(caught.value)


@failures.over("name", ["\x1b[31mred", "two\nlines", "x" * 200, "\u202eab"])
@failures.over("place", ["device", "switch"])
def test_names_that_reports_cannot_write_out_are_refused(tmp_path, name, place):
    written = json.dumps(name)
    rows = f"devices = [{written}, 'b']" if place == "device" else "devices = 2"
    rest = "bandwidth = '1 GB/s'\nlatency = '1 us'\n"
    path = tmp_path / "net.toml"
    path.write_text(f"{rows}\n[[links]]\nsource = 0\ntarget = {written}\n{rest}")
    with pytest.raises(InputError, match="not a name that can be written out") as one:
        build_network(CustomSpec(path=path))
    assert all(line.isprintable() for line in str(one.value).split("\n"))


def test_all_wrong_links_of_a_file_are_listed(tmp_path):
    wrong = [link(0, 9), link(0, 1, latency="soon"), link(1, 1)]
    with pytest.raises(InputError) as caught:
        build_network(write(tmp_path, 2, *wrong, link(0, 1)))
    told = str(caught.value)
    assert "links[0].target: no such device (and 2 others in this file)" in told
    assert "links[1].latency: not a quantity; got 'soon'" in told
    assert "links[2].target: joins a vertex to itself" in told
