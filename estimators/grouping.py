"""How the ranks of a stage form groups: experts, and ranks that share a sequence.

The one place of the rule by which frameworks spread experts over ranks. ``tp``, ``cp``,
``ep`` and ``etp`` are tensor-, context-, expert- and expert-tensor-parallel size.
"""

from dataclasses import dataclass
from math import lcm
from typing import Annotated, NamedTuple, TypedDict

from topologies.settings import Count, Examples, Listed, NameChoice, Spec

CP_COMM_TYPES = ("p2p", "all_gather", "a2a", "a2a+p2p")
"""How the ranks of a context-parallel group share attention, Megatron's names: keys and
values go round a ring, or are gathered; heads are exchanged for tokens (Ulysses), among
all ranks, or among a few, whose groups form rings."""


StageSizes = tuple[int, int, int]
"""Tensor-, context- and expert-parallel size."""


class Grouping(NamedTuple):
    """How the ranks of a stage form groups, beside what its grid says.

    The defaults are a ring of context-parallel ranks, and experts that are split over
    the tensor group, on ranks that the grid has an axis for.

    Groups of experts count the ranks of a stage in one of two ways (sources:
    `planner.frameworks.rules`, "expert_parallelism"). Megatron Core since 0.10,
    torchtitan since 0.2.1 and DeepSpeed count them anew: ``etp`` neighbours share each
    expert, ``ep`` of those share all of them, and what is left holds the same ones.
    Megatron Core before that and MaxText divide the data-parallel ranks by ``ep``. With
    one context-parallel rank, and an ``etp`` that is ``tp``, both are the same, and the
    grid has an axis for ``ep``.
    """

    etp: int = 0
    """Expert-tensor-parallel size; 0 if it is the tensor-parallel size."""
    cp_comm_type: str = "p2p"
    """One of `CP_COMM_TYPES`."""
    a2a: int = 0
    """Context-parallel ranks that exchange heads among themselves under ``"a2a+p2p"``;
    0 under the others."""
    folds: bool = False
    """Whether groups of experts that are split as other layers count the ranks of a
    stage anew."""

    @classmethod
    def of(
        cls,
        sizes: StageSizes,
        *,
        etp: int = 0,
        within_data: bool = False,
        cp_comm_type: str = "p2p",
        a2a: int = 0,
    ) -> "Grouping":
        """Return the grouping of some sizes, equal ones by the same values.

        ``within_data`` is `estimators.software.Software.experts_within_data`.
        """
        tp, cp, ep = sizes
        kind = cp_comm_type if cp > 1 else "p2p"
        if kind != "a2a+p2p":
            a2a = 0
        etp = 0 if etp == tp else etp
        folds = etp == 0 and min(cp, ep) > 1 and not within_data
        return cls(etp, kind, a2a, folds)

    @property
    def is_folded(self) -> bool:
        """Whether expert groups count the ranks of a stage in their own way."""
        return self.folds or self.etp > 0

    def expert_span(self, sizes: StageSizes) -> int:
        """Return the neighbouring ranks of a stage among which experts are shared."""
        tp, cp, ep = sizes
        return ep * (self.etp or tp) if self.is_folded else tp * cp * ep

    def replica_unit(self, sizes: StageSizes) -> int:
        """Return of what the replicas are a multiple, for experts to go round them."""
        ranks = sizes[0] * sizes[1]
        return lcm(self.expert_span(sizes), ranks) // ranks

    def settings(self, cp: int, ep: int) -> "GroupSettings":
        """Return it as a `ParallelismConfig` of some sizes has it."""
        return {
            "expert_tensor_parallel_size": self.etp or None,
            "experts_within_data": min(cp, ep) > 1 and not self.is_folded,
            "cp_comm_type": self.cp_comm_type,
            "hierarchical_context_parallel_sizes": (
                (self.a2a, cp // self.a2a) if self.a2a else None
            ),
        }

    def exchanging(self, cp: int) -> int:
        """Return the ranks that exchange heads for tokens, of ``cp``."""
        return {"a2a": cp, "a2a+p2p": self.a2a}.get(self.cp_comm_type, 1)

    def ring(self, cp: int) -> int:
        """Return the ranks of a ring that keys and values go round, of ``cp``."""
        return cp // self.exchanging(cp) if self.cp_comm_type != "all_gather" else 1


class GroupSettings(TypedDict):
    """Settings of a `ParallelismConfig` that say how ranks form groups."""

    expert_tensor_parallel_size: int | None
    """Devices that share each expert's matrices."""
    experts_within_data: bool
    """Whether experts are spread over data-parallel ranks alone."""
    cp_comm_type: str
    """How the ranks that share a sequence share attention."""
    hierarchical_context_parallel_sizes: tuple[int, ...] | None
    """Ranks that exchange heads, and ranks of each ring."""


PLAIN_GROUPING = Grouping()
"""A ring, and experts split as the other layers are."""


CpCommType = Annotated[str, NameChoice(CP_COMM_TYPES)]
"""One of `CP_COMM_TYPES`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelDegrees(Spec):
    """How many devices share what, under Megatron's names, but for replicas."""

    tensor_model_parallel_size: Annotated[Count, Examples(8)] = 1
    """Devices that share each layer's matrices."""

    pipeline_model_parallel_size: Annotated[Count, Examples(16)] = 1
    """Stages of the pipeline."""

    context_parallel_size: Annotated[Count, Examples(2)] = 1
    """Devices that share each sequence; more than 1 needs flash attention."""

    expert_model_parallel_size: Annotated[Count, Examples(8)] = 1
    """Devices that share the experts of each mixture-of-experts layer: neighbours
    among all ranks of a stage, with "megatron-lm" and "maxtext" among its
    data-parallel ranks."""

    expert_tensor_parallel_size: Annotated[Count | None, Examples(1)] = None
    """Devices that share each expert's matrices. Left out, as many as share those of
    other layers. Fewer let experts be spread over tensor- and context-parallel ranks,
    too; this needs sequence parallelism."""

    cp_comm_type: Annotated[CpCommType, Examples("a2a")] = "p2p"
    """How devices that share a sequence share attention, Megatron's names: "p2p" (keys
    and values go round a ring), "all_gather" (they are gathered), "a2a" (Ulysses: heads
    are exchanged for tokens) or "a2a+p2p" (heads among some ranks, a ring of those)."""

    hierarchical_context_parallel_sizes: Annotated[
        Annotated[tuple[Count, ...], Listed(2, 2)] | None, Examples([2, 4])
    ] = None
    """With "a2a+p2p": ranks that exchange heads, and ranks of each ring; their product
    is `context_parallel_size`."""

    sequence_parallel: Annotated[bool, Examples(True, default=None)] = False
    """Megatron's sequence parallelism, where the tensor-parallel size exceeds 1: norms,
    dropouts and residuals are split over the tensor-parallel group along the sequence
    (Korthikanti et al., 2022). Left out, as `software.preset` has it; off with
    "ideal"."""
