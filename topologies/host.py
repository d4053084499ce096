"""Hosts: memory behind the devices, and the links that lead there.

Devices that share a host link are two GPUs of a GB200 superchip, or the GPUs below one
PCIe switch. `topologies.network.Network.with_host` makes links of it.

What a PCIe link carries of its raw rate are the payloads of packets of 256 bytes: 92 %
are left by the data link layer, and each packet has 24 bytes around it [1]_.

References
----------
.. [1] Neugebauer et al., "Understanding PCIe performance for end host networking",
   SIGCOMM 2018, section 3: 57.88 of 62.96 Gbit/s, and headers of writes.
.. [2] PCI-SIG, "PCI Express Base Specification" 3.1 (8 GT/s), 4.0 (16), 5.0 (32) and
   6.0 (64): 16 lanes.
.. [3] NVIDIA, "NVIDIA Grace Hopper Superchip Architecture" whitepaper, 2023: NVLink-C2C
   900 GB/s, both directions together.
.. [4] NVIDIA, "GB200 NVL72" data sheet, 2024: one Grace for two Blackwell GPUs.
.. [5] Ren et al., "ZeRO-Offload", USENIX ATC 2021, section 5 and table 4: Adam for 10e9
   parameters takes 2.57 s on a DGX-2's two Xeon Platinum 8168.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_PAYLOAD = 57.88 / 62.96 * 256 / 280
"""What 256 byte packets leave of a PCIe link's raw rate [1]_."""

ADAM_RATE = 10e9 / 2.57
"""Parameters that the processors of a server update with Adam each second [5]_."""


def _pcie(gigatransfers: float) -> float:
    """Return what 16 lanes of 128b/130b code carry [2]_ [byte/s]."""
    return gigatransfers * 1e9 * 16 / 8 * 128 / 130 * _PAYLOAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What stands behind each device: a link, memory and processors.

    Examples
    --------
    >>> round(usual_host("a100-80gb").to_device / 1e9, 1)
    26.5
    """

    to_device: float
    """Bandwidth of one host link from the host to its devices [byte/s]."""

    to_host: float
    """Bandwidth of one host link from its devices to the host [byte/s]."""

    latency: float = 2e-6
    """Time from a transfer's begin until its first byte arrives [s]."""

    devices_per_link: int = 1
    """Consecutive devices that share one host link."""

    memory: float
    """Memory of the host that each device may use [byte]."""

    adam_rate: float = ADAM_RATE / 8
    """Parameters that the host updates with Adam each second for each of its
    devices."""


HOST_LINKS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "pcie3": {"to_device": _pcie(8.0), "to_host": _pcie(8.0)},
        "pcie4": {"to_device": _pcie(16.0), "to_host": _pcie(16.0)},
        "pcie5": {"to_device": _pcie(32.0), "to_host": _pcie(32.0)},
        # Flits of a fixed size instead of a 128b/130b code: 236 of 256 bytes.
        "pcie6": {
            "to_device": 64e9 * 16 / 8 * 236 / 256,
            "to_host": 64e9 * 16 / 8 * 236 / 256,
        },
        "nvlink-c2c": {"to_device": 450e9, "to_host": 450e9},
    }
)
"""Name of a host link -> bandwidth to the device and to the host, per direction
[2]_, [3]_ [byte/s]."""

_USUAL: Mapping[str, tuple[str, int, float]] = MappingProxyType(
    {
        "v100": ("pcie3", 1, 64e9),  # DGX-1: 512 GB for 8
        "v100-16gb": ("pcie3", 1, 64e9),
        "a100-40gb": ("pcie4", 1, 128e9),  # DGX A100 320GB: 1 TB for 8
        "a100-80gb": ("pcie4", 1, 250e9),  # DGX A100 640GB: 2 TB for 8
        "a10g": ("pcie4", 1, 96e9),  # g5.48xlarge: 768 GiB for 8
        "l4": ("pcie4", 1, 48e9),  # g2-standard-96: 384 GB for 8
        "h100-sxm": ("pcie5", 1, 250e9),  # DGX H100: 2 TB for 8
        "h200": ("pcie5", 1, 250e9),
        "b200": ("pcie5", 1, 250e9),
        "b300": ("pcie6", 1, 250e9),
        # Superchips: two GPUs and one Grace with 480 GB [4]_.
        "gb200": ("nvlink-c2c", 2, 240e9),
        "gb300": ("nvlink-c2c", 2, 240e9),
        "tpu-v3": ("pcie3", 1, 85e9),  # v3-8: 340 GB for 4 chips
        "tpu-v4": ("pcie3", 1, 100e9),  # v4-8: 400 GB for 4 chips
        "tpu-v5e": ("pcie3", 1, 48e9),  # ct5lp-hightpu-8t: 384 GB for 8
        "tpu-v5p": ("pcie4", 1, 112e9),  # ct5p-hightpu-4t: 448 GB for 4
        "tpu-v6e": ("pcie4", 1, 180e9),  # ct6e-standard-8t: 1,440 GB for 8
    }
)
"""Accelerator -> its host link, devices that share one, and memory of the host for each
device [byte], in the servers or cloud machines named, by their makers' data sheets."""

_UNKNOWN = ("pcie4", 1, 64e9)
"""What is taken for accelerators that are not in the catalogue."""


def usual_host(accelerator: str, link: str | None = None) -> Host:
    """Return what usually stands behind an accelerator.

    Parameters
    ----------
    accelerator
        Name in the catalogue, or any other.
    link
        A name of `HOST_LINKS` in place of the usual one.
    """
    usual, shared, memory = _USUAL.get(accelerator, _UNKNOWN)
    rates = HOST_LINKS[link or usual]
    return Host(
        to_device=rates["to_device"],
        to_host=rates["to_host"],
        devices_per_link=shared,
        memory=memory,
    )
