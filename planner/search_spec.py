"""What a search may try, as the scenario says it."""

from dataclasses import dataclass

from planner.launch_rules import LaunchRules

OBJECTIVES = ("replayed", "planned")
"""The time of a step in the replay, among launchable plans of one choice for all
stages; or by a closed form that hides nothing, among all splits with a choice for each
stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpec:
    """The space that a planner searches, and when it stops.

    None for a list of sizes means every size that the cluster and the model allow
    (micro-batch sizes: powers of two).
    """

    micro_batch_sizes: tuple[int, ...] | None = None
    """Sequences per microbatch."""

    tensor_model_parallel_sizes: tuple[int, ...] | None = None
    """Devices that share each layer's matrices."""

    pipeline_model_parallel_sizes: tuple[int, ...] | None = None
    """Numbers of pipeline stages."""

    data_parallel_sizes: tuple[int, ...] | None = None
    """Numbers of replicas."""

    context_parallel_sizes: tuple[int, ...] | None = None
    """Devices that share each sequence."""

    expert_model_parallel_sizes: tuple[int, ...] | None = None
    """Replicas that share the experts of each mixture-of-experts layer."""

    virtual_pipeline_model_parallel_sizes: tuple[int, ...] | None = None
    """Chunks per stage; more than 1 is interleaved 1F1B."""

    sequence_parallel: bool | None = None
    """On, off, or None: on wherever the tensor-parallel size exceeds 1."""

    recompute: tuple[str, ...] = ("none", "selective", "full")
    """Modes that a stage may use: these, and ``"stage"``, which no framework has."""

    zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    """ZeRO stages that a stage may use, 0 to 3."""

    launchable: bool = True
    """Whether the search keeps to what the framework can launch."""

    rules: LaunchRules | None = None
    """What that is; None for no framework's rules."""

    idle_devices: bool = False
    """Whether launchable plans may leave devices without work."""

    objective: str = "replayed"
    """What is minimised, of `OBJECTIVES`."""

    proven_gap: float = 0.01
    """A search for the fastest replay ends when no other plan can be faster by more
    than this, relative."""

    keep_best: int = 5
    """Distinct plans to return, best first."""

    time_limit: float | None = None
    """The search returns what it has after this long, once it has a plan; None for no
    limit [s]. What it finds may then differ from run to run."""

    work_limit: int | None = None
    """The search returns what it has after this much work, once it has a plan; None
    for no limit. In units of `planner.work`."""

    memory_reserve: float = 0.0
    """Device memory that plans must leave free [byte]."""
