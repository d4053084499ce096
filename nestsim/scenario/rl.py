"""The table [rl]: a step of reinforcement learning, and which devices do what of it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Gt, Le

from estimators.generation.engine import FORMATS, EngineSetup
from estimators.generation.lengths import DISTRIBUTIONS, Lengths
from estimators.models.limits import MAX_SEQUENCE
from nestsim.scenario.base import input_file
from topologies.errors import InputError, located
from topologies.settings import (
    Count,
    Examples,
    Latency,
    NameChoice,
    Seed,
    Spec,
    Text,
)

ALGORITHMS = ("grpo", "ppo")
"""GRPO needs no critic; PPO trains one."""

PLACEMENTS = ("colocated", "split")
"""Whether training and rollout take turns on all devices, or have devices of their
own."""

SCHEDULES = ("synchronous", "one-step-off", "asynchronous")
"""How far the rollout runs ahead of training: not at all, by a batch, by several."""

OFFLOADS = ("auto", "always", "never")
"""When the trainer's states leave the devices for the rollout."""

Tokens = Annotated[int, Ge(1), Le(MAX_SEQUENCE)]

MOST_STALENESS = 64
"""Most batches that the rollout may be ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec(Spec):
    """The inference engine of the rollout."""

    tensor_parallel_size: Annotated[Count | None, Examples(2)] = None
    """Devices that share each layer in one replica. Left out, the best one is
    searched."""

    expert_parallel_size: Annotated[Count, Examples(8, default=1)] = 1
    """Groups of that many devices that share the experts of a replica."""

    precision: Annotated[
        Annotated[str, NameChoice(FORMATS)], Examples("fp8", default="bf16")
    ] = "bf16"
    """Number format of its weights and of products with them."""

    memory_utilisation: Annotated[
        Annotated[float, Gt(0), Le(1)], Examples(0.6, default=0.9)
    ] = 0.9
    """Part of a device's memory that weights and caches may fill (vLLM's
    ``gpu_memory_utilization``)."""

    max_sequences: Annotated[Count, Examples(1024, default=256)] = 256
    """Most responses that a replica works on at a time (vLLM's ``max_num_seqs``)."""

    step_overhead: Annotated[Latency, Examples("2 ms", default="0 s")] = 0.0
    """What each forward step takes beside the devices' work [s]."""

    def setup(self, tensor_parallel_size: int) -> EngineSetup:
        """Return one replica of some size."""
        return EngineSetup(
            tp=tensor_parallel_size,
            ep=self.expert_parallel_size,
            dtype=self.precision,
            memory_utilisation=self.memory_utilisation,
            max_sequences=self.max_sequences,
            step_overhead=self.step_overhead,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RlSpec(Spec):
    """What `nestsim rl` asks: the batch of a step, its phases, and the pools."""

    prompts: Annotated[Count, Examples(64)]
    """Prompts of a step."""

    samples: Annotated[Count, Examples(16)]
    """Responses to each prompt."""

    prompt_length: Annotated[Tokens, Examples(200)]
    """Tokens of a prompt."""

    response_length: Annotated[Tokens | None, Examples(900)] = None
    """Tokens of a response: of each with `response_lengths` = "fixed", their mean
    before the cap with "log-normal"."""

    response_lengths: Annotated[
        Annotated[str, NameChoice(DISTRIBUTIONS)], Examples("log-normal")
    ] = "fixed"
    """How responses differ in length: not ("fixed"), with a long tail ("log-normal"),
    or as a file has them ("measured")."""

    response_length_sigma: Annotated[
        Annotated[float, Ge(0), Le(10)], Examples(0.8, default=0.0)
    ] = 0.0
    """Standard deviation of the natural logarithm of lengths, with "log-normal"."""

    response_length_cap: Annotated[Tokens | None, Examples(4096)] = None
    """Longest response, where the engine stops. Left out, what the sequence length of
    the model leaves behind the prompt."""

    response_length_file: Annotated[Text | None, Examples("responses.csv")] = None
    """CSV file of "measured" lengths, relative to the scenario's folder: its columns
    `length` and `count` say how many responses have so many tokens."""

    algorithm: Annotated[Annotated[str, NameChoice(ALGORITHMS)], Examples("ppo")] = (
        "grpo"
    )
    """Algorithm: "grpo" rates responses by those of the same prompt, "ppo" by a critic,
    which has values to compute and is trained as well."""

    critic: Annotated[Text | None, Examples("llama3-8b")] = None
    """Model of the critic, a name of the library, with "ppo". Left out, as large as the
    actor and split as it is."""

    reference: bool = True
    """Whether a reference model's log-probabilities are needed, for a penalty on the
    divergence from it."""

    old_log_probs: bool = True
    """Whether the trainer computes the responses' log-probabilities before it trains,
    rather than taking those of the engine."""

    mini_batches: Annotated[Count, Examples(4, default=1)] = 1
    """Optimizer steps that the batch is divided into."""

    placement: Annotated[Annotated[str, NameChoice(PLACEMENTS)], Examples("split")] = (
        "colocated"
    )
    """Where phases run: all of them on all devices in turn ("colocated"), or rollout
    and training on devices of their own ("split")."""

    rollout_devices: Annotated[Count | None, Examples(32)] = None
    """Devices of the rollout with "split", the last ones of the cluster. Left out, the
    best number of nodes is searched."""

    schedule: Annotated[
        Annotated[str, NameChoice(SCHEDULES)], Examples("one-step-off")
    ] = "synchronous"
    """Whether rollout and training wait for each other ("synchronous"), the rollout
    makes the next batch while the trainer has this one ("one-step-off"), or runs
    through up to `staleness` batches ahead ("asynchronous"). Other than the first only
    with "split"."""

    staleness: Annotated[
        Annotated[int, Ge(1), Le(MOST_STALENESS)] | None, Examples(4)
    ] = None
    """Batches that the rollout may be ahead, with "asynchronous"."""

    engine: Annotated[EngineSpec, Examples(default={})] = field(
        default_factory=EngineSpec
    )
    """How one replica of the inference engine is set up."""

    reward_time: Annotated[Latency, Examples("2 s", default="0 s")] = 0.0
    """What rewards take in a step, by rules on hosts, behind the rollout [s]."""

    offload: Annotated[
        Annotated[str, NameChoice(OFFLOADS)], Examples("always", default="auto")
    ] = "auto"
    """Whether the trainer's states leave colocated devices for the rollout: where they
    do not fit beside the engine ("auto"), "always" or "never"."""

    seed: Seed = 0
    """Seed of the order in which lengths come."""

    def __post_init__(self) -> None:
        needs_file = self.response_lengths == "measured"
        if (self.response_length_file is not None) != needs_file:
            raise InputError(
                "goes with measured lengths alone",
                where="response_length_file",
                got=self.response_length_file or "nothing",
                expected='a CSV file with response_lengths = "measured", else nothing',
            )
        if (self.response_length is None) != needs_file:
            raise InputError(
                "is the length of responses that no file has",
                where="response_length",
                got=self.response_length or "nothing",
                expected="a number of tokens"
                if self.response_length is None
                else "nothing, with measured lengths",
            )
        self._check_together()

    def _check_together(self) -> None:
        if self.overlaps and not self.is_split:
            raise InputError(
                "has rollout and training at the same time, on devices of their own",
                where="schedule",
                got=self.schedule,
                expected='"synchronous", or placement = "split"',
            )
        if self.rollout_devices is not None and not self.is_split:
            raise InputError(
                "are devices of the rollout alone",
                where="rollout_devices",
                got=self.rollout_devices,
                expected='nothing, or placement = "split"',
            )
        if (self.staleness is not None) != (self.schedule == "asynchronous"):
            raise InputError(
                "goes with the asynchronous schedule alone",
                where="staleness",
                got=self.staleness or "nothing",
                expected='a number of batches with schedule = "asynchronous", else '
                "nothing",
            )
        if self.critic is not None and self.algorithm != "ppo":
            raise InputError(
                "is trained by PPO alone",
                where="critic",
                got=self.critic,
                expected='nothing, or algorithm = "ppo"',
            )
        if self.mini_batches > self.prompts * self.samples:
            raise InputError(
                "are more than there are responses",
                where="mini_batches",
                got=self.mini_batches,
                expected=f"at most {self.prompts * self.samples:,}",
            )

    @property
    def overlaps(self) -> bool:
        """Whether the rollout makes another batch while the trainer works."""
        return self.schedule != "synchronous"

    @property
    def is_split(self) -> bool:
        """Whether rollout and trainer have devices of their own."""
        return self.placement == "split"

    @property
    def num_responses(self) -> int:
        """Responses of a step."""
        return self.prompts * self.samples

    def lengths(self, sequence_length: int, folder: Path) -> Lengths:
        """Return how long responses are.

        Parameters
        ----------
        sequence_length
            Longest prompt with its response [tokens].
        folder
            Of the file of lengths.

        Raises
        ------
        InputError
            If there is no such file, or prompts and responses do not fit into a
            sequence.
        """
        room = sequence_length - self.prompt_length
        cap = room if self.response_length_cap is None else self.response_length_cap
        if not 1 <= cap <= room:
            raise InputError(
                "does not fit into a sequence behind its prompt",
                where="rl.prompt_length"
                if self.response_length_cap is None
                else "rl.response_length_cap",
                got=self.prompt_length if room < 1 else cap,
                expected="together at most model.sequence_length = "
                f"{sequence_length:,}",
            )
        if self.response_length_file is not None:
            name = self.response_length_file
            file = input_file(folder, name, "rl.response_length_file", "a CSV file")
            with located("rl.response_length_file", ": "):
                return Lengths.measured(file, cap)
        assert self.response_length is not None
        if self.response_lengths == "log-normal":
            return Lengths.log_normal(
                self.response_length, self.response_length_sigma, cap
            )
        return Lengths(mean=float(self.response_length), cap=cap)
