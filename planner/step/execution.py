"""How a framework executes a step: what it hides behind compute, and at what price.

Facts about the job, like its software: the search, the prices and the replay read the
same ones. What the replay's engine may leave out or skip is not here
(`nestsim.simulator.settings`).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Which transfers are hidden behind compute, and what slows compute down."""

    overlap_grad_reduce: bool = False
    """Megatron's: gradients are reduced bucket by bucket behind the last backward
    pass, instead of after it. What ZeRO-2 and 3 reduce in every microbatch goes on
    behind the next layer."""

    overlap_param_gather: bool = False
    """Megatron's: parameters are gathered bucket by bucket behind the first forward
    pass of the next step, instead of after the optimizer step. What ZeRO-3 gathers of
    a layer goes on behind the layer before it."""

    overlap_p2p_comm: bool = True
    """Megatron's: transfers between stages do not stop the stages' work. Off, both
    sides of a transfer wait for it, as Megatron does without interleaving; with
    interleaving the sender does."""

    tp_comm_overlap: bool = False
    """Megatron's: tensor-parallel collectives run behind the products next to them, so
    that both together take as long as the longer one."""

    communication_slowdown: float = 1.0
    """Factor on the duration of compute while one of the overlaps above, but for
    transfers between stages, has the same device communicate beside it; at least 1."""

    expert_skew: float = 1.0
    """Tokens that the busiest expert-parallel rank receives over the mean; at least 1.
    It sets the pace of the all-to-all and of the experts' compute."""


NOTHING_HIDDEN = Execution()
"""Everything waits for what is sent, but for transfers between stages."""
