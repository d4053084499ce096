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
_PREFETCH = "zero_optimization.stage3_prefetch_bucket_size"

_SECTIONS = (("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16"))
"""Tables that turn a number format on, and the format."""


@dataclass(slots=True, kw_only=True)
class ConfigFacts:
    """What a DeepSpeed JSON says, under the names of a scenario."""

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
        return {name: one for name, one in self.leaves.items() if name not in held}


def zero_json(
    stage: int,
    *,
    overlaps: bool,
    prefetches: bool,
    optimizer_on_host: float,
    weights_on_host: float,
    second_copies: int,
) -> dict[str, Any]:
    """Return the table ``zero_optimization``."""
    table: dict[str, Any] = {"stage": stage}
    if stage == 0:
        return table
    table |= {"overlap_comm": overlaps, **option_table("deepspeed").facts["zero"]}
    if stage == 3:
        ahead = _OPTIONS[_PREFETCH].default if prefetches else 0
        table["stage3_prefetch_bucket_size"] = ahead
        if second_copies > 1:
            table["zero_hpz_partition_size"] = second_copies
    if optimizer_on_host:
        table["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        if stage == 3:
            table["offload_optimizer"]["ratio"] = optimizer_on_host
    if weights_on_host and stage == 3:
        table["offload_param"] = {"device": "cpu", "pin_memory": True}
    return table


class _Ticked(dict[str, Any]):
    """A table that tells which of its keys are read."""

    ticked: set[str]
    outer: str

    @classmethod
    def of(cls, raw: object, outer: str, facts: ConfigFacts) -> Any:
        """Return a value whose tables tell what is read."""
        if not isinstance(raw, dict):
            return raw
        table = cls()
        table.ticked, table.outer = facts.ticked, outer
        for key, value in raw.items():
            name = f"{outer}.{key}" if outer else str(key)
            if not isinstance(value, dict) or not value:
                facts.leaves[name] = value
            table[key] = cls.of(value, name, facts)
        return table

    def _tick(self, key: str) -> None:
        self.ticked.add(f"{self.outer}.{key}" if self.outer else key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, and tick its key off."""
        self._tick(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        """Return a value, and tick its key off."""
        self._tick(key)
        return super().__getitem__(key)


def read_config(raw: object) -> ConfigFacts:
    """Read a DeepSpeed JSON.

    Raises
    ------
    InputError
        If a value is of another type, or changes a step in a way that plans here do not
        have. ``where`` is the key.
    """
    facts = ConfigFacts()
    config = Value(_Ticked.of(raw, "", facts))
    _sort_keys(config, "", facts)
    facts.train_batch = _size(config, "train_batch_size", facts)
    facts.micro_batch = _size(config, "train_micro_batch_size_per_gpu", facts)
    facts.accumulation = _size(config, "gradient_accumulation_steps", facts)
    _read_precision(config, facts)
    if "zero_optimization" in config.table():
        _read_zero(config["zero_optimization"], facts)
    _read_optimizer(config, facts)
    _read_checkpointing(config, facts)
    _read_sizes(config, facts)
    for name, value in facts.leaves.items():
        usual, taken = TABLE.assumed.get(name, (value, ""))
        if value not in (usual, TRAINER_DECIDES, None):
            facts.replaced.append(name)
            facts.assumptions.append(f"{name}: {taken}")
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


def _size(table: Value, name: str, facts: ConfigFacts) -> int | None:
    value = table.get(name, None)
    if value.raw is None:
        return None
    if value.raw == TRAINER_DECIDES:
        facts.automatic.append(value.where)
        return None
    return value.whole(least=1, most=MOST)


def _flag(table: Value, name: str, default: bool) -> bool:
    """Return yes or no; what the trainer decides is the default."""
    value = table.get(name, default)
    return default if value.raw in (TRAINER_DECIDES, None) else value.flag()


def _tables(table: Value, name: str) -> Iterator[Value]:
    """Yield the inner table of a name, if there is one."""
    value = table.get(name, None)
    if value.raw is not None:
        value.table()
        yield value


def _read_precision(config: Value, facts: ConfigFacts) -> None:
    enabled = [
        precision
        for name, precision in _SECTIONS
        for table in _tables(config, name)
        if _is_on(table, precision, facts)
    ]
    if len(enabled) > 1:
        raise InputError(
            "is on beside another one", where=enabled[1], expected="bf16 or fp16"
        )
    left_open = any(key.endswith(".enabled") for key in facts.automatic)
    for table in _tables(config, "torch_autocast"):
        if _flag(table, "enabled", default=False):
            facts.training["weights_in_fp32"] = True
            enabled = ["bf16"]
    if not enabled and left_open:
        enabled = ["bf16"]
        facts.assumptions.append(
            "The trainer is started with bf16: the JSON leaves it to the trainer."
        )
    facts.training["precision"] = enabled[0] if enabled else "fp32"
    for table in _tables(config, "data_types"):
        summed = table.get("grad_accum_dtype", None)
        if summed.raw is not None:
            facts.training["gradient_precision"] = _known(
                summed, "data_types.grad_accum_dtype"
            )
    wire = config.get("communication_data_type", None)
    if wire.raw is not None:
        facts.training["reduce_precision"] = _known(wire, "communication_data_type")


def _is_on(table: Value, precision: str, facts: ConfigFacts) -> bool:
    """Return whether a number format is on; note it if that is left to the trainer."""
    enabled = table.get("enabled", False)
    if enabled.raw == TRAINER_DECIDES:
        facts.automatic.append(enabled.where)
        return False
    name = f"{precision}_master_weights_and_grads"
    if _flag(table, name, default=False):
        raise table[name].error(
            "keeps the master copy in 16 bits", "a master copy in fp32"
        )
    return enabled.flag()


def _known(value: Value, name: str) -> Any:
    """Return what a word stands for as the value of a key."""
    text, known = value.text().lower(), _OPTIONS[name].words
    if text not in known:
        raise value.error("is not one of the known values", ", ".join(known))
    return known[text]


def _read_zero(zero: Value, facts: ConfigFacts) -> None:
    if isinstance(zero.raw, bool):  # the oldest form
        facts.zero_stage = int(zero.raw)
        return
    _sort_keys(zero, "zero_optimization.", facts)
    stage = zero.get("stage", 0).whole(least=0, most=3)
    facts.zero_stage = stage
    overlaps = stage > 0 and _flag(zero, "overlap_comm", default=stage == 3)
    ahead = zero.get("stage3_prefetch_bucket_size", _OPTIONS[_PREFETCH].default)
    fetches = ahead.raw == TRAINER_DECIDES or ahead.number() > 0
    facts.software["overlap_grad_reduce"] = overlaps
    facts.software["overlap_param_gather"] = stage == 3 and fetches
    _read_offload(zero, facts)
    _read_groups(zero, facts)


def _read_groups(zero: Value, facts: ConfigFacts) -> None:
    """Read who shares the shards, and what is sent in fewer bits."""
    group = zero.get("mics_shard_size", -1)
    if group.raw != -1:
        facts.plan["sharding_group_size"] = group.whole(least=1, most=MOST)
    copies = zero.get("zero_hpz_partition_size", 1).whole(least=0, most=MOST)
    if copies > 1:
        facts.plan["zero_hpz_partition_size"] = copies
    for name in ("zero_quantized_weights", "zero_quantized_gradients"):
        if _flag(zero, name, default=False):
            facts.replaced.append(f"{zero.where}.{name}")
            facts.assumptions.append(
                f"What {name} sends in 8 or 4 bits is counted in 16 bits."
            )


def _read_offload(zero: Value, facts: ConfigFacts) -> None:
    for name, old, setting in (
        ("offload_optimizer", "cpu_offload", "offload_optimizer"),
        ("offload_param", "cpu_offload_param", "offload_weights"),
    ):
        part = 1.0 if _flag(zero, old, default=False) else 0.0
        for table in _tables(zero, name):
            device = table.get("device", "none").text()
            if device not in {"none", "cpu", "nvme"}:
                raise table["device"].error(
                    "is not one of the known values", "none, cpu, nvme"
                )
            if device == "nvme":
                facts.replaced.append(f"{table.where}.device")
                facts.assumptions.append(
                    f"What {name} keeps on NVMe is kept in the host's memory."
                )
            part = 0.0 if device == "none" else table.get("ratio", 1.0).number()
            if part > 1.0:
                raise table["ratio"].error("is no fraction", "0 to 1")
        if part:
            facts.plan[setting] = part


def _read_optimizer(config: Value, facts: ConfigFacts) -> None:
    for table in _tables(config, "optimizer"):
        kind = table.get("type", _OPTIONS["optimizer.type"].default)
        facts.training["optimizer"] = _known(kind, "optimizer.type")
        if "params" in table.table():
            facts.ignored.append(f"{table.where}.params")


def _read_checkpointing(config: Value, facts: ConfigFacts) -> None:
    """Read where recomputed activations stay; that they are is said elsewhere."""
    for table in _tables(config, "activation_checkpointing"):
        if _flag(table, "partition_activations", default=False):
            facts.replaced.append(f"{table.where}.partition_activations")
            facts.assumptions.append(
                "Saved activations are not shared among tensor-parallel ranks as "
                "partition_activations has it."
            )
        if _flag(table, "cpu_checkpointing", default=False):
            facts.plan["offload_activations"] = 1.0


def _read_sizes(config: Value, facts: ConfigFacts) -> None:
    size = _size(config, "sequence_parallel_size", facts)
    if size is not None:
        facts.sizes["context_parallel_size"] = size
    for table in _tables(config, "tensor_parallel"):
        tensor = table.get("autotp_size", 0).whole(least=0, most=MOST)
        if tensor > 0:
            facts.sizes["tensor_model_parallel_size"] = tensor
    for table in _tables(config, "pipeline"):
        stages = table.get("stages", TRAINER_DECIDES)
        if stages.raw != TRAINER_DECIDES:
            facts.sizes["pipeline_model_parallel_size"] = stages.whole(
                least=1, most=MOST
            )
    for table in _tables(config, "expert_parallel"):
        if _flag(table, "enabled", default=False):
            facts.sizes["expert_model_parallel_size"] = table.get(
                "autoep_size", 1
            ).whole(least=1, most=MOST)
