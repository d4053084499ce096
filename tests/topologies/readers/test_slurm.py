"""Slurm's topology files: hostlists, trees, blocks, and what is wrong with them."""

import pytest

from tests import failures
from topologies.errors import InputError
from topologies.readers.slurm import expand_hostlist, read_slurm

TREE = """\
# two leaves below a spine
SwitchName=leaf1 Nodes=gpu[01-04] LinkSpeed=400000
switchname=leaf2 nodes=gpu[05-07],login1
SwitchName=spine Switches=leaf[1-2]
"""

YAML = """\
- topology: fabric
  cluster_default: true
  tree:
    switches:
      - switch: spine
        children: leaf[1-2]
      - switch: leaf1
        nodes: gpu[01-04]
      - switch: leaf2
        nodes: gpu[05-07],login1
- topology: racks
  block:
    block_sizes: [2, 4]
    blocks:
      - block: b1
        nodes: n[1-2]
      - block: b2
        nodes: n[3-4]
      - block: b3
        nodes: n[5-6]
      - block: b4
        nodes: n[7-8]
- topology: none
  flat: true
"""


def read(tmp_path, text, name="topology.conf", **chosen):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_slurm(path, **chosen)


@failures.over(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("tux[0-3,12,18-20]", [f"tux{i}" for i in (0, 1, 2, 3, 12, 18, 19, 20)]),
        ("node[008-011]", ["node008", "node009", "node010", "node011"]),
        ("r[1-2]n[1-2]x,b", ["r1n1x", "r1n2x", "r2n1x", "r2n2x", "b"]),
    ],
)
def test_hostlists_stand_for_names(text, names):
    assert expand_hostlist(text, 100) == names


@failures.over(
    "text",
    [
        "",
        ",",
        "a,",
        "a[",
        "a]",
        "a[1",
        "a[[1]]",
        "a[3-1]",
        "a[x]",
        "a[]",
        "a[1-]",
        "a b",
    ],
)
def test_what_is_no_hostlist_is_refused(text):
    with pytest.raises(InputError, match="is no list of names"):
        expand_hostlist(text, 100)


@failures.over("text", ["a[1-101]", "a[1-11]b[1-11]", "a[1-999999999999]"])
def test_hostlists_of_too_many_names_are_refused_at_once(text):
    with pytest.raises(InputError, match="too many names"):
        expand_hostlist(text, 100)


def test_a_tree_is_read(tmp_path):
    found = read(tmp_path, TREE)
    assert (found.level_names, found.fan_outs) == (("leaf", "spine"), (4, 2))
    assert found.states_speeds
    assert [one.name for one in found.root.branches] == ["leaf1", "leaf2"]
    assert found.root.branches[1].nodes == ("gpu05", "gpu06", "gpu07", "login1")


def test_yaml_says_the_same(tmp_path):
    assert read(tmp_path, YAML, "topology.yaml").root == read(tmp_path, TREE).root


def test_lines_may_be_continued(tmp_path):
    text = TREE.replace(" Nodes=", " \\\n  Nodes=")
    assert read(tmp_path, text).root == read(tmp_path, TREE).root


def test_blocks_are_grouped_by_their_sizes(tmp_path):
    found = read(tmp_path, YAML, "topology.yaml", topology="racks")
    assert found.level_names == ("block", "blocks of blocks 1", "blocks")
    assert found.fan_outs == (2, 2, 2)
    text = "BlockName=b[1] Nodes=n[1-18]\nBlockName=b2 Nodes=n[19-36]\nBlockSizes=18\n"
    assert read(tmp_path, text).fan_outs == (18, 2)


def test_trees_of_unlike_switches_have_no_fan_outs(tmp_path):
    assert read(tmp_path, TREE.replace("login1", "login[1-2]")).fan_outs == ()
    deeper = TREE.replace("leaf[1-2]", "leaf[1-3]")
    deeper += "SwitchName=leaf3 Switches=leaf4\nSwitchName=leaf4 Nodes=x[1-4]\n"
    assert read(tmp_path, deeper).fan_outs == ()


SPINES = (
    "SwitchName=leaf0 Nodes=n[0-3] LinkSpeed=900\n"
    "SwitchName=leaf1 Nodes=n[4-7] LinkSpeed=900\n"
    "SwitchName=leaf2 Nodes=n[8-11] LinkSpeed=900\n"
    "SwitchName=leaf3 Nodes=n[12-15] LinkSpeed=1800\n"
)
"""Leaves as in the second example of Slurm's Topology Guide [2-level, four connections
a switch]: there every spine is listed with all leaves."""


def test_spines_above_the_same_leaves_are_one(tmp_path):
    """The guide says that listing one of the four switches above is the same."""
    one = SPINES + "SwitchName=spine0 Switches=leaf[0-3]\n"
    four = SPINES + "".join(
        f"SwitchName=spine{n} Switches=leaf[0-3] LinkSpeed=1800\n" for n in range(4)
    )
    assert read(tmp_path, four).root == read(tmp_path, one).root
    assert read(tmp_path, four).fan_outs == (4, 4)
    # A fat tree of two pods: each core is above one switch of each pod.
    pods = SPINES + (
        "SwitchName=a[0-1] Switches=leaf[0-1]\nSwitchName=a[2-3] Switches=leaf[2-3]\n"
        "SwitchName=core0 Switches=a0,a2\nSwitchName=core1 Switches=a1,a3\n"
    )
    found = read(tmp_path, pods)
    assert (found.fan_outs, found.root.num_nodes()) == ((4, 2, 2), 16)
    partly = (
        SPINES + "SwitchName=x Switches=leaf[0-2]\nSwitchName=y Switches=leaf[1-3]\n"
    )
    with pytest.raises(InputError, match="is below two switches"):
        read(tmp_path, partly)


def test_nodes_choose_a_part(tmp_path):
    found = read(tmp_path, TREE, nodes="gpu[03-06]")
    assert found.fan_outs == (2, 2)
    # What joins one switch alone is left out.
    assert read(tmp_path, TREE, nodes="gpu[01-03]").fan_outs == (3,)
    apart = TREE.replace("SwitchName=spine Switches=leaf[1-2]\n", "")
    assert read(tmp_path, apart, nodes="gpu[01-03]").fan_outs == (3,)


@failures.over(
    ("text", "message"),
    [
        ("", "lists no switches"),
        ("SwitchName=a\n", "line 1: must have either switches or nodes"),
        ("SwitchName=a Nodes=n Switches=b\n", "line 1: must have either"),
        ("SwitchName=a Nodes=n[1\n", "line 1: is no list of names"),
        ("SwitchName=a Nodes\n", "line 1: is not a setting"),
        ("\nNodeName=a CPUs=4\n", "line 2: is no line of a topology"),
        ("SwitchName=a Nodes=n Cost=3\n", "line 1: unknown setting"),
        ("SwitchName=a Switches=b\n", "line 1: is a switch that no line describes"),
        ("SwitchName=a Switches=a\n", "has no switch at the top"),
        ("SwitchName=a Nodes=n\nSwitchName=a Nodes=m\n", "line 2: is described twice"),
        ("SwitchName=a Nodes=n\nSwitchName=b Nodes=m\n", "by one switch at the top"),
        ("SwitchName=a Nodes=n\nSwitchName=b Nodes=n\n", "line 2: is below two"),
        ("BlockName=a Nodes=n\nBlockName=b Nodes=n\n", "is in two blocks"),
        ("BlockName=a Nodes=n\nSwitchName=b Nodes=n\n", "line 2: mixes"),
        ("BlockSizes=18\n", "lists no blocks"),
        (
            "BlockName=a Nodes=n\nBlockSizes=4,12\n",
            "BlockSizes: must be a power of two",
        ),
        (
            "".join(f"SwitchName=s{i} Switches=s{i + 1}\n" for i in range(20))
            + "SwitchName=s20 Nodes=n\n",
            "switches above each other",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as told:
        read(tmp_path, text)
    assert "topology.conf: " in str(told.value)


@failures.over(
    ("text", "chosen", "message"),
    [
        (YAML, {"topology": "other"}, "has no such topology"),
        (YAML, {"topology": "none"}, "says nothing of switches"),
        (YAML.replace("true", "false"), {}, "has several topologies"),
        (YAML, {"nodes": "gpu99"}, "nodes: does not have these nodes"),
        ("a: [", {}, "is not YAML"),
        ("- topology: &x a\n  tree: *x\n", {}, "has references"),
        ("- topology: a\n  tree: {switches: [{switch: 1, nodes: n}]}\n", {}, "a text"),
        ("- topology: a\n  tree: {switches: 3}\n", {}, "an array"),
        ("3", {}, "an array"),
    ],
)
def test_yaml_that_is_wrong_is_told(tmp_path, text, chosen, message):
    with pytest.raises(InputError, match=message) as told:
        read(tmp_path, text, "topology.yaml", **chosen)
    assert "topology.yaml: " in str(told.value)


def test_a_conf_has_no_named_topologies(tmp_path):
    with pytest.raises(InputError, match="has one topology without a name"):
        read(tmp_path, TREE, topology="fabric")
