"""What a model runs on: a device, the software that drives it, and what both reach."""

import math
from dataclasses import dataclass, field
from functools import cached_property

from estimators.constants import Constants, SoftwareConstants, load_constants
from estimators.models.spec import TransformerSpec
from estimators.operators import OperatorModel
from estimators.profile import Profile
from estimators.profiled_times import OperatorTimes, ProfiledTimes
from estimators.software import IDEAL, Software
from estimators.training import TrainingSpec
from estimators.transports import Transport, find_transport, transports
from estimators.user_files.links import UserLinks
from topologies.accelerators import Accelerator


@dataclass(frozen=True, kw_only=True, eq=False)
class Platform:
    """Everything that operator times depend on beside the work itself."""

    accelerator: Accelerator
    """The device."""

    software: Software = IDEAL
    """What drives it."""

    constants: Constants = field(default_factory=load_constants)
    """What they reach."""

    links: UserLinks | None = None
    """What was measured of links, taken instead of what is published."""

    profile: Profile | None = None
    """Measured operator times, which are taken instead of the accelerator's rates."""

    _times: dict[tuple[TrainingSpec, TransformerSpec], OperatorTimes] = field(
        default_factory=dict, init=False, repr=False
    )

    @cached_property
    def software_constants(self) -> SoftwareConstants:
        """What the software costs."""
        return self.constants.software(self.software.name)

    @property
    def memory_rate(self) -> float:
        """Rate of streaming kernels such as the optimizer step [byte/s]."""
        reached = self.constants.accelerator(self.accelerator.name, self.software.name)
        return self.accelerator.memory_bandwidth * reached.memory

    @property
    def slowest(self) -> float:
        """Time of the slowest device's work over that of a usual one.

        The largest of ``N`` normal deviations is near ``sigma sqrt(2 ln N)``; all of a
        job's devices wait for it.
        """
        deviations = math.sqrt(2.0 * math.log(max(1, self.software.num_ranks)))
        return 1.0 + self.software_constants.slowest_rank * deviations

    def transport(self, *, inside_node: bool, num_ranks: int = 1) -> Transport:
        """Return what collectives reach inside a node, or between nodes.

        By the name that the cluster gives it, else as measured, else as it is usual.
        Inside a node it is what joins so many neighbours.
        """
        name = self.software.fabric_transport
        if inside_node:
            levels = self.software.node_transports
            reaching = [one for size, one in levels if num_ranks <= size]
            name = next(iter(reaching), levels[-1][1] if levels else "")
        if name:
            return transports()[name]
        own = None
        if self.links is not None:
            own = self.links.transport(inside_node=inside_node)
        if own is not None:
            return own
        return find_transport(self.accelerator.name, inside_node=inside_node)

    def operator_times(
        self, training: TrainingSpec, spec: TransformerSpec
    ) -> OperatorTimes:
        """Return what knows how long an operator of an architecture takes.

        Raises
        ------
        InputError
            If the accelerator has no rate for the job's precision, or the profile
            lacks that precision or one of the model's operations.
        """
        if (training, spec) not in self._times:
            self._times[training, spec] = self._made_times(training, spec)
        return self._times[training, spec]

    def _made_times(
        self, training: TrainingSpec, spec: TransformerSpec
    ) -> OperatorTimes:
        if self.profile is not None:
            return ProfiledTimes.of(self.profile, training.precision, spec)
        return OperatorModel.of(
            self.accelerator, training, self.software, self.constants
        )
