"""The JSON of DeepSpeed: what it says of batches, precision, ZeRO and the host.

Keys are those of DeepSpeed 0.19.8 (``deepspeed/runtime/config.py``,
``runtime/zero/config.py``, ``runtime/zero/offload_config.py``,
``runtime/precision_config.py``, ``runtime/tensor_parallel/config.py``) and, read only,
of earlier releases. Where the file is silent, that release's defaults hold: they are
the format's, not assumptions.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from nestsim.launch.read import OptionEffects
from nestsim.scenario.errors import nearest
from planner.frameworks.options import option_table
from topologies.errors import InputError
from topologies.input_file import Value

TABLE = option_table("deepspeed", "keys")
"""Keys of the JSON, those of tables with the table's name in front."""

VERSION: str = option_table("deepspeed").facts["release"]
"""Release of DeepSpeed whose keys are written."""

MOST = 1_000_000_000
"""Largest size that is read."""

TRAINER_DECIDES = "auto"
"""What the Hugging Face trainer puts its own value in place of."""

_OPTIONS = TABLE.options
PREFETCH = "zero_optimization.stage3_prefetch_bucket_size"
"""Weights that are gathered ahead."""

_SECTIONS = (("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16"))
"""Tables that turn a number format on, and the format."""


@dataclass(slots=True, kw_only=True)
class ConfigFacts:
    """What a DeepSpeed JSON says, under the names of a scenario."""

    root: Value = field(default_factory=lambda: Value({}))
    """The JSON."""
    train_batch: int | None = None
    """``train_batch_size``."""
    micro_batch: int | None = None
    """``train_micro_batch_size_per_gpu``."""
    accumulation: int | None = None
    """``gradient_accumulation_steps``."""
    zero_stage: int | None = None
    """Stage of ZeRO, None if there is no such table."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Settings of [plan] with parallel sizes."""
    plan: dict[str, Any] = field(default_factory=dict)
    """Other settings of [plan]."""
    training: dict[str, Any] = field(default_factory=dict)
    """Settings of [training]."""
    software: dict[str, Any] = field(default_factory=dict)
    """Settings of [software]."""
    automatic: list[str] = field(default_factory=list)
    """Keys of which the trainer decides."""
    assumptions: list[str] = field(default_factory=list)
    """What is assumed, a sentence each."""
    ignored: list[str] = field(default_factory=list)
    """Keys that make no difference to a plan."""
    replaced: list[str] = field(default_factory=list)
    """Keys in whose place something else is assumed."""
    ticked: set[str] = field(default_factory=set)
    """Keys that somebody read."""
    leaves: dict[str, Any] = field(default_factory=dict)
    """Values of all keys, those of tables with the table's name in front."""

    @property
    def effects(self) -> OptionEffects:
        """What became of each key."""
        hidden = tuple(f"{name}." for name in self.ignored)
        keys = [
            name
            for name in self.leaves
            if name in self.replaced or not name.startswith(hidden)
        ]
        return OptionEffects.of(
            [*keys, *self.ignored],
            read=self.ticked - set(self.ignored),
            assumed=self.replaced,
        )

    def kept(self) -> dict[str, Any]:
        """Return the keys that no setting holds, with their values."""
        held = self.ticked - {*self.ignored, *self.replaced, *TABLE.finer}
        return {name: value for name, value in self.leaves.items() if name not in held}

    def value(self, name: str, default: Any = None) -> Value:
        """Return the value of a key, and tick it off; the default if it is not there.

        Raises
        ------
        InputError
            If what it should stand in is no table.
        """
        *tables, key = name.split(".")
        table = self.root
        self.ticked.add(name)
        for part in tables:
            table = table.get(part, None)
            self.ticked.add(table.where)  # which may be empty
            if table.raw is None:
                return Value(default, name)
        return table.get(key, default)

    def size(self, name: str) -> int | None:
        """Return a number of things; None where nobody says it, or the trainer will."""
        value = self.value(name)
        if value.raw == TRAINER_DECIDES:
            self.automatic.append(name)
        if value.raw in (TRAINER_DECIDES, None):
            return None
        return value.whole(least=1, most=MOST)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return yes or no; what the trainer decides is the default."""
        value = self.value(name, default)
        return default if value.raw in (TRAINER_DECIDES, None) else value.flag()

    def meaning(self, name: str, default: Any = None) -> Any:
        """Return what the word behind a key stands for."""
        value, known = self.value(name, default), _OPTIONS[name].words
        if value.text().lower() not in known:
            raise value.error("is not one of the known values", ", ".join(known))
        return known[value.text().lower()]

    def replace(self, name: str, sentence: str) -> None:
        """Note what is taken in place of a key."""
        self.replaced.append(name)
        self.assumptions.append(sentence)


def _leaves(table: Any, outer: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a table of tables, empty ones among them."""
    for key, value in table.items() if isinstance(table, dict) else ():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{outer}{key}.")
        else:
            yield f"{outer}{key}", value


def read_config(raw: object) -> ConfigFacts:
    """Read a DeepSpeed JSON.

    Raises
    ------
    InputError
        If a value is of another type, or changes a step in a way that plans here do not
        have. ``where`` is the key.
    """
    facts = ConfigFacts(root=Value(raw), leaves=dict(_leaves(raw)))
    _sort_keys(facts.root, "", facts)
    facts.train_batch = facts.size("train_batch_size")
    facts.micro_batch = facts.size("train_micro_batch_size_per_gpu")
    facts.accumulation = facts.size("gradient_accumulation_steps")
    _read_precision(facts)
    if "zero_optimization" in facts.root.table():
        _read_zero(facts)
    _read_optimizer(facts)
    _read_checkpointing(facts)
    _read_sizes(facts)
    for name, value in facts.leaves.items():
        usual, taken = TABLE.assumed.get(name, (value, ""))
        if value not in (usual, TRAINER_DECIDES, None):
            facts.replace(name, f"{name}: {taken}")
    return facts


def is_key(name: str) -> bool:
    """Whether DeepSpeed has a key, whatever stands in its table."""
    return name in {*_inside(_OPTIONS, ""), *_inside(TABLE.silent, "")} or (
        name in TABLE.refused or name.startswith("_")
    )


def _inside(names: Iterable[str], outer: str) -> set[str]:
    """Return the keys of a table, of all names the parts behind the table's."""
    return {
        name.removeprefix(outer).partition(".")[0]
        for name in names
        if name.startswith(outer)
    }


def _sort_keys(table: Value, outer: str, facts: ConfigFacts) -> None:
    """Note keys without effect of a table; refuse what is none or no plan has."""
    known, silent = _inside(_OPTIONS, outer), _inside(TABLE.silent, outer) - {""}
    for name, value in table.items():
        changes = TABLE.refused.get(f"{outer}{name}")
        if changes and value.raw not in (False, None, {}):
            raise value.error(f"is about {changes}", "a configuration without it")
        if name in known:
            continue
        if name in silent or changes or (not outer and name.startswith("_")):
            facts.ignored.append(value.where)
            continue
        raise InputError(
            "is no key of DeepSpeed's",
            where=value.where,
            expected=f"the keys of DeepSpeed {VERSION}",
            hint=nearest(name, sorted(known | silent)),
        )


def _read_precision(facts: ConfigFacts) -> None:
    enabled = [
        precision for name, precision in _SECTIONS if _is_on(name, precision, facts)
    ]
    if len(enabled) > 1:
        raise InputError(
            "is on beside another one", where=enabled[1], expected="bf16 or fp16"
        )
    left_open = any(key.endswith(".enabled") for key in facts.automatic)
    if facts.flag("torch_autocast.enabled"):
        facts.training["weights_in_fp32"] = True
        enabled = ["bf16"]
    if not enabled and left_open:
        enabled = ["bf16"]
        facts.assumptions.append(
            "The trainer is started with bf16: the JSON leaves it to the trainer."
        )
    facts.training["precision"] = enabled[0] if enabled else "fp32"
    for name in ("data_types.grad_accum_dtype", "communication_data_type"):
        if facts.value(name).raw is not None:
            facts.training[_OPTIONS[name].key] = facts.meaning(name)


def _is_on(section: str, precision: str, facts: ConfigFacts) -> bool:
    """Return whether a number format is on; note it if that is left to the trainer."""
    enabled = facts.value(f"{section}.enabled", False)
    if enabled.raw == TRAINER_DECIDES:
        facts.automatic.append(enabled.where)
        return False
    name = f"{section}.{precision}_master_weights_and_grads"
    if facts.flag(name):
        raise facts.value(name).error(
            "keeps the master copy in 16 bits", "a master copy in fp32"
        )
    return enabled.flag()


_ZERO = "zero_optimization."


def _read_zero(facts: ConfigFacts) -> None:
    zero = facts.value("zero_optimization")
    if isinstance(zero.raw, bool):  # the oldest form
        facts.zero_stage = int(zero.raw)
        return
    _sort_keys(zero, _ZERO, facts)
    stage = facts.value(f"{_ZERO}stage", 0).whole(least=0, most=3)
    facts.zero_stage = stage
    overlaps = stage > 0 and facts.flag(f"{_ZERO}overlap_comm", default=stage == 3)
    ahead = facts.value(PREFETCH, _OPTIONS[PREFETCH].default)
    fetches = ahead.raw == TRAINER_DECIDES or ahead.number() > 0
    facts.software["overlap_grad_reduce"] = overlaps
    facts.software["overlap_param_gather"] = stage == 3 and fetches
    _read_offload(facts, "offload_optimizer", "cpu_offload", "offload_optimizer")
    _read_offload(facts, "offload_param", "cpu_offload_param", "offload_weights")
    group = facts.value(f"{_ZERO}mics_shard_size", -1)
    if group.raw != -1:
        facts.plan["sharding_group_size"] = group.whole(least=1, most=MOST)
    copies = facts.value(f"{_ZERO}zero_hpz_partition_size", 1)
    if copies.whole(least=0, most=MOST) > 1:
        facts.plan["zero_hpz_partition_size"] = copies.whole(least=0, most=MOST)
    for name in ("zero_quantized_weights", "zero_quantized_gradients"):
        if facts.flag(f"{_ZERO}{name}"):
            taken = f"What {name} sends in 8 or 4 bits is counted in 16 bits."
            facts.replace(f"{_ZERO}{name}", taken)


def _read_offload(facts: ConfigFacts, name: str, old: str, setting: str) -> None:
    """Read what the host keeps, as new and old releases say it."""
    part = float(facts.flag(f"{_ZERO}{old}"))
    if facts.value(f"{_ZERO}{name}").raw is not None:
        device = facts.value(f"{_ZERO}{name}.device", "none")
        if device.text() not in {"none", "cpu", "nvme"}:
            raise device.error("is not one of the known values", "none, cpu, nvme")
        if device.raw == "nvme":
            taken = f"What {name} keeps on NVMe is kept in the host's memory."
            facts.replace(device.where, taken)
        part = 0.0
        if device.raw != "none":
            ratio = facts.value(f"{_ZERO}{name}.ratio", 1.0)
            part = ratio.number()
            if part > 1.0:
                raise ratio.error("is no fraction", "0 to 1")
    if part:
        facts.plan[setting] = part


def _read_optimizer(facts: ConfigFacts) -> None:
    kind = "optimizer.type"
    if facts.value("optimizer").raw is None:
        return
    known = facts.meaning(kind, _OPTIONS[kind].default)
    facts.training["optimizer"] = known
    if "params" in facts.value("optimizer").table():
        facts.ignored.append("optimizer.params")


def _read_checkpointing(facts: ConfigFacts) -> None:
    """Read where recomputed activations stay; that they are is said elsewhere."""
    outer = "activation_checkpointing."
    if facts.flag(f"{outer}partition_activations"):
        facts.replace(
            f"{outer}partition_activations",
            "Saved activations are not shared among tensor-parallel ranks as "
            "partition_activations has it.",
        )
    if facts.flag(f"{outer}cpu_checkpointing"):
        facts.plan["offload_activations"] = 1.0


def _read_sizes(facts: ConfigFacts) -> None:
    tensor = facts.value("tensor_parallel.autotp_size", 0)
    stages = facts.value("pipeline.stages", TRAINER_DECIDES)
    sizes = {
        "context_parallel_size": facts.size("sequence_parallel_size"),
        "tensor_model_parallel_size": tensor.whole(least=0, most=MOST),
    }
    if stages.raw != TRAINER_DECIDES:
        sizes["pipeline_model_parallel_size"] = stages.whole(least=1, most=MOST)
    if facts.flag("expert_parallel.enabled"):
        experts = facts.value("expert_parallel.autoep_size", 1)
        sizes["expert_model_parallel_size"] = experts.whole(least=1, most=MOST)
    facts.sizes = {name: size for name, size in sizes.items() if size}
