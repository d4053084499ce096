"""Graphs of InfraGraph: expanded as its own package does, made smaller, refused."""

import contextlib
import io
import json
import warnings
from pathlib import Path

import pytest
import yaml

from tests import failures
from topologies.errors import InputError
from topologies.fabrics.custom import build_custom
from topologies.input_file import Value
from topologies.readers.infragraph import (
    InfraOptions,
    expand_infragraph,
    read_infragraph,
)
from topologies.readers.link_collector import PathRate, leave_out_ends, reduce_graph
from topologies.specs import CustomSpec

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "scenarios" / "described" / "infragraph.yaml"
PCIE = InfraOptions(bandwidths={"pcie": 63e9}, latencies={"pcie": 5e-7})


def blueprint(name):
    """Return one of the package's own infrastructures."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("infragraph", reason="the package is not installed")
        from infragraph import Infrastructure
        from infragraph.blueprints.devices.amd.mi300x import MI300X
        from infragraph.blueprints.devices.generic.generic_switch import Switch
        from infragraph.blueprints.devices.generic.server import Server
        from infragraph.blueprints.devices.nvidia.cx5 import Cx5
        from infragraph.blueprints.devices.nvidia.dgx import NvidiaDGX
        from infragraph.blueprints.fabrics.clos_fat_tree_fabric import ClosFatTreeFabric
        from infragraph.blueprints.fabrics.closfabric import ClosFabric
        from infragraph.blueprints.fabrics.single_tier_fabric import SingleTierFabric

        def composed():
            nic, whole = Cx5(), Infrastructure(name="composed")
            host = NvidiaDGX("dgx_h100", nic)
            whole.devices.append(nic).append(host)
            whole.instances.add(name="host", device=host.name, count=2)
            return whole

        built = {
            "clos": ClosFabric,
            "fat-tree": lambda: ClosFatTreeFabric(Switch(), Server(), 2, [100, 100]),
            "dgx-h100": lambda: SingleTierFabric(NvidiaDGX("dgx_h100"), 2),
            "dgx-a100": lambda: SingleTierFabric(NvidiaDGX("dgx_a100"), 2),
            "mi300x": lambda: SingleTierFabric(MI300X(), 2),
            "composed": composed,
        }
        with contextlib.redirect_stdout(io.StringIO()):
            return built[name]()


def of_package(infrastructure):
    """Return vertices and edges as the package expands them."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        from infragraph.infragraph_service import InfraGraphService

        service = InfraGraphService()
        service.set_graph(infrastructure)
        graph = service.get_networkx_graph()
    kinds = dict(graph.nodes(data="type"))
    edges = {(*sorted(pair), link) for *pair, link in graph.edges(data="link")}
    return kinds, edges


@failures.over(
    "name", ["clos", "fat-tree", "dgx-h100", "dgx-a100", "mi300x", "composed"]
)
def test_graphs_are_expanded_as_by_the_package(name):
    infrastructure = blueprint(name)
    ours = expand_infragraph(Value(json.loads(infrastructure.serialize())))
    kinds, edges = of_package(infrastructure)
    assert dict(ours.kinds) == kinds
    assert {(one.one, one.other, one.link) for one in ours.edges} == edges


@failures.over("language", ["json", "yaml"])
def test_what_the_package_writes_is_a_network(language, tmp_path):
    infrastructure = blueprint("clos")
    kind = infrastructure.YAML if language == "yaml" else infrastructure.JSON
    path = tmp_path / f"graph.{language}"
    path.write_text(infrastructure.serialize(kind), encoding="utf-8")
    fast = dict.fromkeys(("fabric", "pcie", "ic"), 50e9) | {"nvlink": 300e9}
    listed, said = read_infragraph(path, InfraOptions(bandwidths=fast, latency=1e-6))
    network = build_custom(CustomSpec(path=path, listed=listed))
    assert network.num_devices == 8
    # Inside a server NVLink, between them one or both adapters of 100 Gbit/s.
    inside, between = (level.bandwidth for level in network.levels)
    assert inside == 300e9
    assert between in {12.5e9, 25e9}
    assert "switches remain" in said[0]


def test_the_example_has_the_bandwidths_that_it_says():
    """18 NVLinks to four switches inside a node, one cable for each device between."""
    listed, said = read_infragraph(EXAMPLE, PCIE)
    network = build_custom(CustomSpec(path=EXAMPLE, listed=listed))
    assert network.num_devices == 32
    assert [level.bandwidth for level in network.levels] == [450e9, 50e9]
    # Two leaves of 16 devices, each with 16 cables to spines: nothing is lost.
    assert network.bisection_bandwidth() == 16 * 50e9
    assert any("act as one" in sentence for sentence in said)


def test_paths_beside_each_other_carry_what_they_do_together():
    rate = PathRate(10.0, 1.0, False)
    around = {}
    for one, other in (("a", "x"), ("x", "b"), ("a", "y"), ("y", "z"), ("z", "b")):
        around.setdefault(one, {})[other] = rate
        around.setdefault(other, {})[one] = rate
    reduce_graph(around, frozenset("ab"))
    assert set(around) == {"a", "b"}
    assert around["a"]["b"] == PathRate(20.0, 3.0, True)


def test_a_direct_link_stays_beside_a_longer_way():
    rate = PathRate(10.0, 1.0, False)
    around = {"a": {"b": rate, "x": rate}, "b": {"a": rate, "x": rate}}
    around["x"] = {"a": rate, "b": rate}
    reduce_graph(around, frozenset("ab"))
    assert set(around) == {"a", "b", "x"}


def test_equal_switches_act_as_one_and_ends_are_left_out():
    rate = PathRate(10.0, 1.0, False)
    around = {}
    for device in "abc":
        for switch in "xy":
            around.setdefault(device, {})[switch] = rate
            around.setdefault(switch, {})[device] = rate
    for one, other in (("x", "m"), ("m", "n")):  # memory behind a switch
        around.setdefault(one, {})[other] = rate
        around.setdefault(other, {})[one] = rate
    leave_out_ends(around, frozenset("abc"))
    assert reduce_graph(around, frozenset("abc")) == 1
    assert set(around) == {"a", "b", "c", "x"}
    assert around["a"] == {"x": PathRate(20.0, 1.0, False)}


def changed(tmp_path, change):
    document = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    change(document)
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_a_graph_that_the_service_returned_is_read(tmp_path):
    document = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    path = tmp_path / "graph.json"
    path.write_text(json.dumps({"infrastructure": document, "annotations": {}}))
    assert read_infragraph(path, PCIE)[0] == read_infragraph(EXAMPLE, PCIE)[0]


@failures.over(
    ("change", "message"),
    [
        (lambda d: d.pop("devices"), "devices: key is missing"),
        (lambda d: d["instances"][0].update(device="x"), "is no device"),
        (lambda d: d["instances"][0].update(count=0), r"instances\[0\].count: is out"),
        (lambda d: d["instances"][0].update(name="leaf"), "a name that is there twice"),
        (lambda d: d["edges"][0].update(scheme="ring"), "is no scheme"),
        (lambda d: d["edges"][0]["ep1"].update(component="gpu"), "is no component of"),
        (lambda d: d["edges"][0]["ep1"].update(component="nic[9]"), "names number 9"),
        (
            lambda d: d["edges"][0]["ep1"].update(component="nic[--1:]"),
            "cannot be read",
        ),
        (lambda d: d["edges"][0]["ep1"].update(component="nic[::0]"), "cannot be read"),
        (lambda d: d["edges"][0]["ep1"].update(instance="rack[0]"), "is no instance"),
        (
            lambda d: d["instances"][0].update(count=40_000),
            "has too many components",
        ),
        (
            lambda d: d["devices"][0]["components"].append(
                {"name": "server", "choice": "device", "count": 1}
            ),
            "devices inside each other",
        ),
        (
            lambda d: d["devices"][0]["components"][1].update(choice="cpu"),
            "has no devices",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path, change, message):
    path = changed(tmp_path, change)
    with pytest.raises(InputError, match=message) as told:
        read_infragraph(path, PCIE)
    assert "graph.json: " in str(told.value)


@failures.over(
    ("options", "message"),
    [
        (InfraOptions(), "does not tell the bandwidth of links"),
        (InfraOptions(bandwidths={"pcie": 1e9}), "does not tell the latency of links"),
        (InfraOptions(bandwidths={"pcie": 1e9, "x": 1e9}), "bandwidths: has no such"),
    ],
)
def test_links_that_nobody_describes_are_named(options, message):
    with pytest.raises(InputError, match=message) as told:
        read_infragraph(EXAMPLE, options)
    assert "infragraph.yaml: " in str(told.value)


@failures.over("text", ["", "[", "{", "3", "a: &x 1\nb: *x\n", "[1, 2]"])
def test_what_is_no_graph_is_refused(tmp_path, text):
    path = tmp_path / "graph.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"graph\.yaml: "):
        read_infragraph(path, PCIE)
