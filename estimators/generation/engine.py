"""An inference engine as it is set up: how a replica is split, what it may hold."""

from dataclasses import dataclass

from estimators.grouping import PLAIN_GROUPING
from estimators.layers.shares import divisibility_problem
from estimators.layers.work import Degrees
from estimators.models.spec import TransformerSpec
from estimators.training import NARROW_FORMATS
from topologies.errors import InputError

FORMATS = ("bf16", "fp16", *NARROW_FORMATS)
"""Number formats of weights, and of caches."""

FAMILIES = frozenset({"gpt", "llama", "mixtral", "mamba"})
"""Families of models that answer token by token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """One replica of an inference engine: ``tp x ep`` devices."""

    tp: int = 1
    """Tensor-parallel size, of attention and of dense layers."""

    ep: int = 1
    """Expert-parallel size: ranks of ``tp`` devices that share the experts, and have
    responses of their own (attention is data-parallel among them)."""

    dtype: str = "bf16"
    """Number format of weights, and of products with them, one of `FORMATS`; the
    embedding and the output layer keep 16 bits."""

    memory_utilisation: float = 0.9
    """Part of a device's memory that the engine may use (vLLM's
    ``gpu_memory_utilization``)."""

    max_sequences: int = 256
    """Most responses that a replica works on at a time (vLLM's ``max_num_seqs``, of all
    ``ep`` ranks together)."""

    step_overhead: float = 0.0
    """What each forward step takes beside the device's work [s]."""

    kv_dtype: str = "bf16"
    """Number format of the cache of keys and values, one of `FORMATS`."""

    batched_tokens: int = 8192
    """Most tokens of a forward step of a rank (vLLM's ``max_num_batched_tokens``)."""

    shares_prompts: bool = True
    """Whether responses to one prompt share its pass and its cache (prefix caching)."""

    reserves: bool = False
    """Whether a response starts only where all that it will ever keep has room
    (TensorRT-LLM's GUARANTEED_NO_EVICT); else as soon as its prompt has (vLLM), and the
    last one that came is put out when caches are full."""

    def __post_init__(self) -> None:
        for name in ("dtype", "kv_dtype"):
            if getattr(self, name) not in FORMATS:
                raise InputError(
                    "is no number format",
                    where=name,
                    got=getattr(self, name),
                    expected=f"one of {', '.join(FORMATS)}",
                )
        for name in ("tp", "ep", "max_sequences", "batched_tokens"):
            if getattr(self, name) < 1:
                raise InputError(
                    "is not possible",
                    where=name,
                    got=getattr(self, name),
                    expected="a whole number of at least 1",
                )
        if not 0.0 < self.memory_utilisation <= 1.0:
            raise InputError(
                "is no part of a memory",
                where="memory_utilisation",
                got=self.memory_utilisation,
                expected="a number above 0, at most 1",
            )
        if not 0.0 <= self.step_overhead < 10.0:
            raise InputError(
                "is not possible",
                where="step_overhead",
                got=self.step_overhead,
                expected="from 0 to 10 seconds",
            )

    @property
    def num_devices(self) -> int:
        """Devices of a replica."""
        return self.tp * self.ep

    @property
    def kv_bytes(self) -> float:
        """Size of a cached number [byte]."""
        narrow = NARROW_FORMATS.get(self.kv_dtype)
        return 2.0 if narrow is None else narrow.activation_bytes

    @property
    def weight_bytes(self) -> float:
        """Size of a weight of a block [byte]."""
        narrow = NARROW_FORMATS.get(self.dtype)
        return 2.0 if narrow is None else narrow.weight_bytes

    def degrees(self, tokens: int) -> Degrees:
        """Return what costs of a layer depend on for a rank's tokens of a step."""
        return Degrees(
            tp=self.tp, ep=self.ep, micro_batch_size=tokens, grouping=PLAIN_GROUPING
        )

    def check(self, spec: TransformerSpec) -> None:
        """Refuse a model that answers nothing, or cannot be split this way.

        Raises
        ------
        InputError
            If so.
        """
        if spec.family not in FAMILIES or not spec.causal:
            raise InputError(
                "answers no prompts token by token",
                where="model.family",
                got=spec.family,
                expected=f"one of {', '.join(sorted(FAMILIES))}",
            )
        if spec.compression or spec.block_embedding:
            raise InputError(
                "keeps summaries, or keys for other blocks, which no cache holds",
                where="model",
                got=spec.last_block_kind,
                expected="a model whose blocks keep keys and values of their own",
            )
        problem = divisibility_problem(spec, self.degrees(1))
        if problem is not None:
            raise InputError(
                f"the model cannot be split this way: {problem}",
                where="engine",
                got=f"tp {self.tp}, ep {self.ep}",
                expected="sizes that divide its heads, widths and experts",
            )
