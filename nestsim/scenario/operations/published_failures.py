"""How often parts of clusters fail: what was published, with its source.

Interruptions are counted by what failed, and divided by how many there were of it and
for how long. Where a publication does not tell switches from cables and adapters they
are the *fabric*, counted per device. Software is counted per device, too: a job on
more devices meets more of its races, time-outs and corner cases. Kokolis et al. (source
below) measured 47.7 days between failures of jobs on 8 GPUs, whatever their cause; the
software of Llama 3 stopped a job on 2,048 times as many every 20.6 hours.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

DAY = 86400.0
"""Length of a day [s]."""

COMPONENTS = ("device", "node", "switch", "link", "fabric", "job", "software")
"""What fails: an accelerator, the rest of its node, a switch, a cable outside of nodes,
the fabric's share of one device, what stops the job whatever its size, and the
software's share of one device."""

PARTS_OF_FABRIC = frozenset({"switch", "link"})
"""Components that a published fabric contains: told apart, they are in place of it."""

BREAKS_NODE = frozenset({"device", "node"})
"""Components whose failure takes a node out until it is repaired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFailures:
    """Interruptions of one cluster over a while."""

    source: str
    """Where they were published."""

    num_devices: int
    """Devices of the cluster."""

    devices_per_node: int
    """Devices of one of its nodes."""

    time: float
    """How long they were counted [s]."""

    causes: Mapping[str, Mapping[str, float]]
    """Component -> cause as it is called there -> interruptions."""

    planned: float = 0.0
    """Planned interruptions in that time."""

    hangs: float = 0.0
    """Interruptions that were noticed by a time limit alone."""

    @property
    def unexpected(self) -> float:
        """All interruptions but planned ones."""
        return sum(sum(counts.values()) for counts in self.causes.values())

    @property
    def hang_share(self) -> float:
        """Share of the unexpected ones that a time limit noticed."""
        return self.hangs / self.unexpected

    def rates(self) -> dict[str, float]:
        """Return how often one of each component fails [1/s]."""
        numbers = {
            "device": self.num_devices,
            "node": self.num_devices // self.devices_per_node,
            "fabric": self.num_devices,
            "software": self.num_devices,
        }
        return {
            name: sum(counts.values()) / (numbers[name] * self.time)
            for name, counts in self.causes.items()
        }


PUBLISHED: Mapping[str, PublishedFailures] = MappingProxyType(
    {
        "llama3": PublishedFailures(
            source='Grattafiori et al., "The Llama 3 Herd of Models", 2024, section '
            "3.3.4 and table 5",
            num_devices=16384,
            devices_per_node=8,
            time=54 * DAY,
            causes={
                "device": {
                    "faulty GPU": 148,
                    "GPU HBM3 memory": 72,
                    "GPU SRAM memory": 19,
                    "GPU system processor": 17,
                    "silent data corruption": 6,
                    "GPU thermal interface and sensor": 6,
                },
                "node": {
                    "host maintenance": 32,
                    "NIC": 7,
                    "SSD": 3,
                    "power supply": 3,
                    "server chassis": 2,
                    "IO expansion board": 2,
                    "CPU": 2,
                    "system memory": 2,
                },
                "fabric": {"network switch or cable": 35},
                "software": {
                    "software bug": 54,
                    "NCCL watchdog timeouts": 7,
                    "dependency": 2,
                },
            },
            planned=47,
            hangs=7,
        ),
        # 6.50 failures for 1,000 node-days: 1.8 h between failures of 16,384 devices.
        "meta-rsc1": PublishedFailures(
            source='Kokolis et al., "Revisiting Reliability in Large-Scale Machine '
            'Learning Research Clusters", HPCA 2025, cluster RSC-1',
            num_devices=8000,
            devices_per_node=8,
            time=DAY,
            causes={"node": {"failures": 6.50}},
        ),
    }
)
"""Name of a publication, as `goodput.failures` takes it -> what it counted."""
