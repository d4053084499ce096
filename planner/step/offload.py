"""What the hosts of a stage's devices keep, and what goes over their links and when.

A host keeps a fraction of a stage's weights, accumulated gradients, optimizer states or
saved activations (`planner.step.plan.Offload`); with ZeRO, of a device's shard of them.
It comes and goes layer by layer, beside the layer's own work: of a layer

- the weights come in each forward and backward pass, and are dropped after it;
- the gradients come and go in each backward pass, in which they are accumulated;
- the saved activations of a block leave in the forward pass and come back in the
  backward pass; those of the ends of the chain, the embedding and the head with its
  logits, do not travel, as frameworks offload what layers of a stack keep (MaxText's
  ``decoder_layer_input``), and stay while they are worked on.

Both directions of a host link are used at once. A layer is over when its work and its
transfers are: what is visible of a transfer is what outlasts the layer. Two layers of
what comes and goes have room on the device, one in use and one on the way. With
optimizer states on the host the step's end is one of two [1]_, [2]_:

- the host updates: the gradients of its part go there, its processors work, and the
  weights come back (``cpu_adam``: DeepSpeed's CPUAdam, Megatron's
  ``optimizer_cpu_offload``);
- the device updates: the states come and go, in both directions at once.

References
----------
.. [1] Ren et al., "ZeRO-Offload", USENIX ATC 2021, section 4: updates by the host.
.. [2] Zhu et al., "Mist", EuroSys 2025, section 4: fractions of everything, states
   updated on the device.
"""

from typing import NamedTuple

import numpy as np

from estimators.layers.work import LayerTable
from estimators.training import ParameterBytes
from planner.kernels.tables import ON_THE_WAY
from planner.step.ledger import GRADIENTS, LEDGER, WEIGHTS
from planner.step.plan import Offload, Stage
from topologies.accelerators import Host
from topologies.arrays import FloatArray

TO_HOST = "to host"
"""Direction of what leaves a device for its host."""

TO_DEVICE = "to device"
"""Direction of what comes from a host to its device."""


class HostRates(NamedTuple):
    """What the host link costs each device, all devices using theirs at once."""

    latency: FloatArray | float
    """Time from a transfer's begin until its first byte arrives [s]."""

    to_device: float
    """Inverse bandwidth towards the device, its share of the link [s/byte]."""

    to_host: float
    """Inverse bandwidth towards the host, the device's share of the link [s/byte]."""

    adam_time: float
    """Time in which the host updates a parameter [s]."""

    def time(self, direction: str, num_bytes: FloatArray) -> FloatArray:
        """Return how long transfers take alone; nothing if nothing is sent [s]."""
        inverse = self.to_device if direction == TO_DEVICE else self.to_host
        is_sent = num_bytes > 0.0
        some = np.where(is_sent, num_bytes, 1.0)
        return np.where(is_sent, self.latency + some * inverse, 0.0)


def host_rates(host: Host | None) -> HostRates:
    """Return the rates of hosts; infinitely slow where there are none."""
    if host is None:
        return HostRates(np.inf, np.inf, np.inf, np.inf)
    shared = host.devices_per_link
    return HostRates(
        latency=host.latency,
        to_device=shared / host.to_device,
        to_host=shared / host.to_host,
        adam_time=1.0 / host.adam_rate,
    )


class HeldParameters(NamedTuple):
    """Parameters of layers on one device, and who shares their shards."""

    dense: FloatArray
    """Parameters of each layer outside of experts, shape ``(L,)``."""

    expert: FloatArray
    """Parameters of each layer's experts, shape ``(L,)``."""

    group_size: float
    """Devices that share shards of dense parameters."""

    expert_group_size: float
    """Devices that share shards of experts."""

    def held(self, tensor: str, zero_stage: int) -> FloatArray:
        """Return what a device holds of a tensor, a shard where ZeRO shards it."""
        if tensor in LEDGER[zero_stage].sharded:
            return self.dense / self.group_size + self.expert / self.expert_group_size
        return self.dense + self.expert


class PassTraffic(NamedTuple):
    """What each layer sends in one kind of pass, shape ``(L,)``."""

    to_device: FloatArray
    """Bytes that come from the host beside each layer [byte]."""

    to_host: FloatArray
    """Bytes that leave for the host beside each layer [byte]."""

    def times(self, rates: HostRates) -> FloatArray:
        """Return how long each layer's transfers take, both directions at once [s]."""
        return np.maximum(
            rates.time(TO_DEVICE, self.to_device), rates.time(TO_HOST, self.to_host)
        )


class StageTransfers(NamedTuple):
    """What passes of a stage exchange with the host."""

    forward: PassTraffic
    """Traffic of the forward pass."""

    backward: PassTraffic
    """Traffic of the backward pass."""


def pass_transfers(
    offload: Offload,
    parameters: HeldParameters,
    saved: FloatArray,
    *,
    zero_stage: int,
    parameter_bytes: ParameterBytes,
) -> StageTransfers:
    """Return what each layer exchanges with the host in its passes.

    Parameters
    ----------
    offload
        Fractions that the host keeps.
    parameters
        Parameters of the layers.
    saved
        Activations of each layer that leave until its backward pass, shape ``(L,)``
        [byte].
    zero_stage
        Stage of ZeRO, 0 to 3.
    parameter_bytes
        Bytes per parameter.
    """
    weight_bytes = offload.weights * parameter_bytes.weights
    weights = weight_bytes * parameters.held(WEIGHTS, zero_stage)
    weight_bytes = offload.gradients * parameter_bytes.gradients
    gradients = weight_bytes * parameters.held(GRADIENTS, zero_stage)
    activations = offload.activations * saved
    return StageTransfers(
        forward=PassTraffic(weights, activations),
        backward=PassTraffic(weights + gradients + activations, gradients),
    )


class StepTransfers(NamedTuple):
    """What a device exchanges with its host at the end of a step."""

    before_to_host: float
    """Bytes that leave for the host before the update [byte]."""

    before_to_device: float
    """Bytes that come to the device at the same time [byte]."""

    after_to_device: float
    """Bytes that come to the device after the update [byte]."""

    on_host: float
    """Parameters that the host updates."""

    def times(self, rates: HostRates) -> tuple[float, float]:
        """Return how long both exchanges take, before and after the update [s]."""
        before = max(
            float(rates.time(TO_HOST, np.asarray(self.before_to_host))),
            float(rates.time(TO_DEVICE, np.asarray(self.before_to_device))),
        )
        after = float(rates.time(TO_DEVICE, np.asarray(self.after_to_device)))
        return before, after


NOTHING_SENT = StepTransfers(0.0, 0.0, 0.0, 0.0)
"""Everything is updated where it is."""


def step_transfers(
    offload: Offload,
    updated: float,
    parameter_bytes: ParameterBytes,
    *,
    cpu_adam: bool,
) -> StepTransfers:
    """Return what the update of a device's share of the parameters sends.

    What the host has already of gradients and weights is not sent.

    Parameters
    ----------
    offload
        Fractions that the host keeps.
    updated
        Parameters that the device would update without a host.
    parameter_bytes
        Bytes per parameter.
    cpu_adam
        Whether the host updates what it keeps.
    """
    if offload.optimizer == 0.0:
        return NOTHING_SENT
    if not cpu_adam:
        states = offload.optimizer * updated * parameter_bytes.optimizer
        return StepTransfers(states, states, 0.0, 0.0)
    missing = max(offload.optimizer - offload.gradients, 0.0)
    stale = max(offload.optimizer - offload.weights, 0.0)
    return StepTransfers(
        before_to_host=missing * updated * parameter_bytes.gradients,
        before_to_device=0.0,
        after_to_device=stale
        * updated
        * (parameter_bytes.weights - parameter_bytes.frozen),
        on_host=offload.optimizer * updated,
    )


STAGING = "staging"
"""Name of the memory of what is on the way to or from the host."""


def on_the_way(table: LayerTable, saved: FloatArray) -> FloatArray:
    """Return what layers keep that is on its way to a host, over `ON_THE_WAY` [byte].

    Of shape ``(L,)``, as ``saved``, what layers keep for their backward passes. An end
    of the chain is worked on, there and back, while nothing else is: it stays, once.
    """
    found: FloatArray = np.where(table.is_block > 0, saved, saved / ON_THE_WAY)
    return found


def staging_bytes(
    offload: Offload, weights: float, gradients: float, saved: float
) -> float:
    """Return the memory of what is on its way [byte].

    Parameters
    ----------
    offload
        Fractions that the host keeps.
    weights, gradients, saved
        What the largest layer holds of each; of the last one `on_the_way` [byte].
    """
    layer = offload.weights * weights
    layer += offload.gradients * gradients + offload.activations * saved
    return ON_THE_WAY * layer


def is_beside_passes(stage: Stage) -> bool:
    """Tell whether passes of a stage exchange anything with the host."""
    return stage.offload.in_passes
