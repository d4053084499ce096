"""Nodes as NCCL saw them: a DGX H100, a PCIe box of A100, and what is wrong."""

from pathlib import Path

import pytest

from tests import failures
from topologies.errors import InputError
from topologies.readers.nccl_topo import InsideOptions, read_nccl_topo

ROOT = Path(__file__).resolve().parents[3]
DGX_H100 = ROOT / "scenarios" / "described" / "dgx_h100.xml"

GEN4 = 'link_speed="16.0 GT/s PCIe" link_width="16"'
PCIE_4 = 16e9 * 16 / 8 * (128 / 130)


def gpu(i, links="", slot=GEN4, sm=80):
    return (
        f'<pci busid="0000:{i:02x}:00.0" class="0x030200" {slot}>'
        f'<gpu dev="{i}" sm="{sm}" rank="{i}" gdr="1">{links}</gpu></pci>'
    )


def nic(name, speed=200000, slot=GEN4):
    return (
        f'<pci busid="0000:f{name[-1]}:00.0" class="0x020700" {slot}><nic>'
        f'<net name="{name}" dev="0" speed="{speed}" port="1" guid="0x{name[-1]}"/>'
        "</nic></pci>"
    )


def bridge(*inner, slot=GEN4):
    return f'<pci busid="0000:a0:00.0" class="0x060400" {slot}>{"".join(inner)}</pci>'


def cpu(number, *inner):
    return (
        f'<cpu host_hash="0x1" numaid="{number}" arch="x86_64" '
        f'vendor="AuthenticAMD" familyid="143" modelid="49">{"".join(inner)}</cpu>'
    )


def system(*inner):
    return f'<system version="1">{"".join(inner)}</system>'


def paired(i):
    """Return the bridges of an A100 PCIe: twelve links to its neighbour [1]_.

    .. [1] NVIDIA, A100 PCIe product brief: three bridges, 600 GB/s both ways.
    """
    other = f"0000:{i ^ 1:02x}:00.0"
    return f'<nvlink target="{other}" count="12" tclass="0x030200"/>'


def pcie_box(links=lambda i: ""):
    """Return eight A100 PCIe: two sockets, two switches each, two GPUs each."""
    return system(
        *(
            cpu(
                socket,
                *(
                    bridge(
                        *(
                            gpu(i, links(i))
                            for i in range(4 * socket + 2 * k, 4 * socket + 2 * k + 2)
                        ),
                        nic(f"mlx5_{2 * socket + k}"),
                    )
                    for k in range(2)
                ),
            )
            for socket in range(2)
        )
    )


def read(tmp_path, text, **options):
    path = tmp_path / "node.xml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_nccl_topo(path, InsideOptions(**options))


def test_a_dgx_h100_is_one_switch_and_a_nic_for_each_gpu():
    """Datasheet: 18 NVLinks of 25 GB/s, 8 adapters of 400 Gbit/s."""
    node = read_nccl_topo(DGX_H100, InsideOptions())
    assert node.num_gpus == 8
    (tier,) = node.tiers
    assert (tier.fan_out, tier.bandwidth, tier.is_nvlink) == (8, 450e9, True)
    assert [nic.bandwidth for nic in node.nics] == [50e9] * 8
    assert [nic.nearest for nic in node.nics] == [(i,) for i in range(8)]
    assert node.assumed == ()


def test_a_pcie_box_is_its_tree(tmp_path):
    node = read(tmp_path, pcie_box())
    assert [(one.name, one.fan_out) for one in node.tiers] == [
        ("pcie switch", 2),
        ("socket", 2),
        ("node", 2),
    ]
    # NCCL takes 16 GB/s between two processors of that family.
    assert [one.bandwidth for one in node.tiers] == [PCIE_4, PCIE_4, 16e9]
    assert pytest.approx(31.5e9, rel=1e-3) == PCIE_4
    assert [nic.nearest for nic in node.nics] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert "joined by 16 GB/s" in node.assumed[0]
    faster = read(tmp_path, pcie_box(), socket_bandwidth=50e9)
    assert faster.tiers[-1].bandwidth == 50e9


def test_bridges_join_pairs_below_pcie(tmp_path):
    node = read(tmp_path, pcie_box(paired))
    inner, *outer = node.tiers
    assert (inner.name, inner.fan_out, inner.is_nvlink) == ("nvlink", 2, True)
    assert inner.bandwidth == 300e9
    assert [(one.name, one.fan_out) for one in outer] == [("socket", 2), ("node", 2)]


def test_pairs_below_wider_switches_share_their_slots(tmp_path):
    text = system(cpu(0, bridge(*(gpu(i, paired(i)) for i in range(4)))))
    node = read(tmp_path, text)
    assert [(one.fan_out, one.bandwidth) for one in node.tiers] == [
        (2, 300e9),
        (2, 2 * PCIE_4),
    ]


def test_links_between_all_gpus_count_as_a_switch(tmp_path):
    """Four A100 of an HGX board: four links to each of three others."""

    def to_others(i):
        return "".join(
            f'<nvlink target="0000:{j:02x}:00.0" count="4" tclass="0x030200"/>'
            for j in range(4)
            if j != i
        )

    node = read(tmp_path, system(cpu(0, *(gpu(i, to_others(i)) for i in range(4)))))
    (tier,) = node.tiers
    assert (tier.fan_out, tier.bandwidth) == (4, 300e9)
    assert "without a switch" in node.assumed[0]


def test_generations_have_their_links_and_others_need_a_setting(tmp_path):
    link = '<nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/>'
    text = system(cpu(0, *(gpu(i, link, sm=100) for i in range(8))))
    assert read(tmp_path, text).tiers[0].bandwidth == 900e9
    text = system(cpu(0, *(gpu(i, link, sm=61) for i in range(8))))
    with pytest.raises(InputError, match="bandwidth is not known"):
        read(tmp_path, text)
    assert read(tmp_path, text, link_bandwidth=1e9).tiers[0].bandwidth == 18e9


def test_links_of_amds_library_are_counted(tmp_path):
    def link(i):
        return f'<xgmi target="0000:{i ^ 1:02x}:00.0" count="7" tclass="0x038000"/>'

    text = system(cpu(0, *(gpu(i, link(i)) for i in range(2))))
    assert read(tmp_path, text, link_bandwidth=64e9).tiers[0].bandwidth == 448e9


def test_an_irregular_tree_is_one_switch(tmp_path):
    text = system(cpu(0, bridge(gpu(0), gpu(1)), gpu(2)))
    node = read(tmp_path, text)
    assert [(one.fan_out, one.bandwidth) for one in node.tiers] == [(3, PCIE_4)]
    assert any("not regular" in one for one in node.assumed)


def test_slots_may_be_slower_than_adapters_and_may_not_be_known(tmp_path):
    slow = 'link_speed="8.0 GT/s PCIe" link_width="8"'
    text = system(cpu(0, bridge(gpu(0, slot=""), gpu(1)), nic("mlx5_0", slot=slow)))
    node = read(tmp_path, text)
    assert node.nics[0].bandwidth == pytest.approx(8e9 * 8 / 8 * 128 / 130)
    assert node.nics[0].nearest == (0, 1)
    assert node.tiers[0].bandwidth == pytest.approx(8e9 * 16 / 8 * 128 / 130)
    assert len(node.assumed) == 3


def test_the_fastest_adapters_are_used_or_those_that_are_named(tmp_path):
    text = system(
        cpu(0, bridge(gpu(0), nic("mlx5_0"), nic("mlx5_1", 100000)), gpu(1)),
    )
    node = read(tmp_path, text)
    assert [one.name for one in node.nics] == ["mlx5_0"]
    assert "left out: mlx5_1" in " ".join(node.assumed)
    node = read(tmp_path, text, nics=("mlx5_1",))
    assert [(one.name, one.bandwidth) for one in node.nics] == [("mlx5_1", 12.5e9)]
    with pytest.raises(InputError, match="does not have these adapters"):
        read(tmp_path, text, nics=("eth0",))


def test_ranks_number_the_gpus(tmp_path):
    text = system(
        cpu(0, gpu(1).replace('rank="1"', 'rank="0"'), nic("mlx5_0")),
        cpu(1, gpu(0).replace('rank="0"', 'rank="1"')),
    )
    assert read(tmp_path, text).nics[0].nearest == (0,)


BOMB = """<!DOCTYPE system [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>
<system version="1">&b;</system>"""

OUTSIDE = """<!DOCTYPE system [<!ENTITY a SYSTEM "file:///etc/passwd">]>
<system version="1">&a;</system>"""


@failures.over(
    ("text", "message"),
    [
        ("", "line 1: is not XML: no element found"),
        ("<system", "is not XML"),
        ("<graphs version='1'/>", "is not a system"),
        ("<system version='2'/>", "is of an unknown version"),
        ("<system version='1'/>", "has no GPUs"),
        ("<system version='1'><gpu/></system>", "is in no <pci"),
        (BOMB, "has declarations of types or entities"),
        (OUTSIDE, "has declarations of types or entities"),
        ("<a>" * 100, "is nested more than 64 deep"),
        ("<a>" + "<b/>" * 30_000 + "</a>", "has more than 20,000 elements"),
        (b'<?xml version="1.0" encoding="nobody-knows"?><system/>', "is not XML"),
        (b"\xff\xfe\x00", "is not XML"),
        (
            system(cpu(0, gpu(0).replace("</gpu>", "</gpu><gpu/>"))),
            "has several GPUs in one PCIe device",
        ),
        (
            system(cpu(0, *(gpu(i, "<nvlink target='x'/>") for i in (0, 1)))),
            "has no usable count",
        ),
        (system(cpu(0, gpu(0), nic("mlx5_0", "fast"))), "has no usable speed"),
    ],
)
def test_what_is_wrong_is_told_and_nothing_is_expanded(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as told:
        read(tmp_path, text)
    assert "node.xml: " in str(told.value)
