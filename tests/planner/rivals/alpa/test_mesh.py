"""What Alpa sees of a network: two levels, and nothing of who shares a link."""

from planner.rivals.alpa.meshes import MeshAxis, TwoLevelMesh
from tests import failures
from tests.planner.rivals.examples import tree
from topologies.builders import build_network
from topologies.specs import FatTreeSpec, LevelSpec, SpineLeafSpec, TorusSpec


def spine_leaf(oversubscription):
    return build_network(
        SpineLeafSpec(
            devices_per_node=4,
            node_bandwidth=4e11,
            node_latency=1e-6,
            nic_bandwidth=5e10,
            nic_latency=1e-6,
            nodes_per_leaf=2,
            num_leaves=2,
            num_spines=1,
            spine_latency=1e-6,
            oversubscription=oversubscription,
        )
    )


def test_collectives_have_alpas_formulas():
    axis = MeshAxis(4, 2.0, 0.5)
    assert axis.all_gather(8.0) == 2.0 + 0.5 * 3 / 4 * 8.0
    assert axis.all_reduce(8.0) == 2.0 + 2 * 0.5 * 3 / 4 * 8.0
    assert axis.all_to_all(8.0) == 2.0 + 0.5 * 3 / 4**2 * 8.0 * 4 / 2
    alone = axis.of_size(1)
    assert alone.all_gather(8.0) == alone.all_reduce(8.0) == 0.0
    assert alone.all_to_all(8.0) == 0.0


def test_inside_a_node_and_between_nodes_are_the_two_levels():
    network = tree()
    mesh = TwoLevelMesh.of(network)
    node, leaf = network.levels
    assert mesh.inside == MeshAxis(4, node.latency, 1.0 / node.bandwidth)
    assert mesh.between == MeshAxis(2, leaf.latency, 1.0 / leaf.bandwidth)


def test_what_lies_above_the_second_level_is_not_seen():
    def three_levels(outermost):
        levels = tuple(
            LevelSpec(name=name, fan_out=2, bandwidth=bandwidth, latency=1e-6)
            for name, bandwidth in (("node", 3e11), ("leaf", 5e10), ("core", outermost))
        )
        return build_network(FatTreeSpec(levels=levels))

    fast, slow = (TwoLevelMesh.of(three_levels(rate)) for rate in (5e10, 1e9))
    assert fast == slow


def test_oversubscription_is_not_seen():
    assert TwoLevelMesh.of(spine_leaf(1.0)) == TwoLevelMesh.of(spine_leaf(4.0))


def test_submeshes_are_powers_of_two_of_a_node_and_of_nodes():
    assert TwoLevelMesh.of(tree()).submeshes() == ((1, 1), (1, 2), (1, 4), (2, 4))
    wide = FatTreeSpec(
        levels=(
            LevelSpec(name="node", fan_out=6, bandwidth=3e11, latency=1e-6),
            LevelSpec(name="leaf", fan_out=5, bandwidth=5e10, latency=1e-6),
        )
    )
    sizes = TwoLevelMesh.of(build_network(wide)).submeshes()
    assert sizes == ((1, 1), (1, 2), (1, 4), (1, 6), (2, 6), (4, 6))


def test_logical_meshes_keep_the_second_axis_inside_a_node():
    mesh = TwoLevelMesh.of(tree())
    *inside, whole = mesh.submeshes()
    for submesh in inside:
        for logical in mesh.logical_meshes(submesh):
            assert logical.size == submesh.size
            assert logical.first.inverse == mesh.inside.inverse
    shapes = [
        (logical.first.size, logical.second.size, logical.has_free_batch)
        for logical in mesh.logical_meshes(whole)
    ]
    assert shapes == [(8, 1, False), (4, 2, False), (2, 4, False), (8, 1, True)]
    for logical in mesh.logical_meshes(whole):
        assert logical.first.inverse == mesh.between.inverse
        assert logical.second.inverse == mesh.inside.inverse


@failures.over("dimensions", [(8,), (4, 4), (2, 2, 3)])
def test_a_torus_is_lines_and_lines_of_lines(dimensions):
    spec = TorusSpec(
        dimensions=dimensions,
        wrap=(True,) * len(dimensions),
        bandwidth=1e11,
        latency=1e-6,
    )
    network = build_network(spec)
    mesh = TwoLevelMesh.of(network)
    assert mesh.node_size == network.block_sizes[0]
    assert network.num_devices % mesh.node_size == 0
    assert mesh.submeshes()
