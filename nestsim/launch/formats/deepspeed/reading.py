"""Read a launch of DeepSpeed: its JSON, or the script that starts it.

A script may write the JSON itself, in a here-document, or name one beside it; a host
file and a rank map beside it are read, too. Nothing is run.

DeepSpeed's batch is micro-batch x accumulation steps x data-parallel size
(``deepspeed/runtime/config.py``, ``_batch_assertion``): of the four numbers, what is
missing follows from the others.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from estimators.grouping import Grouping
from nestsim.launch.carried import launch_table
from nestsim.launch.formats.deepspeed.config import ConfigFacts, read_config
from nestsim.launch.formats.deepspeed.script import (
    FORMAT,
    TABLE,
    TrainerOptions,
    architecture,
    built_model,
    option_words,
    read_options,
)
from nestsim.launch.job import RANK_MAP, parsed_rank_map, placement_settings
from nestsim.launch.read import ImportedJob, LaunchSource, OptionEffects, Settings
from nestsim.launch.shell.marks import known_word, readable
from nestsim.launch.training import TrainingStart, find_training, program_place
from planner.frameworks.rules import shared_out
from planner.plans.spec import DEFAULT_ORDER
from planner.search.placements import Extents
from topologies.arrays import IntArray
from topologies.errors import InputError
from topologies.input_file import Value, parse_json, read_text

PRESET = "deepspeed"
"""Preset of what is read."""

ALGORITHMS: Mapping[str, str] = TABLE.facts["algorithms"]
"""Our name of an algorithm -> NCCL's, in the environment variable ``NCCL_ALGO``."""

JSON, TRAINER = "json.", "trainer."
"""What stands before keys of the JSON, and options of trainers other than
Megatron-DeepSpeed, in the table [launch]."""

_SHARDS_ANYWAY = (
    "ZeRO stage 0 shares out the optimizer's states as stage 1 does: DeepSpeed's "
    "optimizer for bf16 in a pipeline."
)
_NOTHING_AGAIN = (
    "Nothing is recomputed: the JSON leaves that to the script (for the Hugging Face "
    "trainer, gradient_checkpointing)."
)

_LEAST_STAGE = {"offload_weights": 3, "zero_hpz_partition_size": 3}
_LEAST_STAGE |= {"offload_optimizer": 1, "sharding_group_size": 1}
"""Setting of [plan] -> lowest stage of ZeRO that it goes with."""

TRAINER_MICRO_BATCH: int = TABLE.facts["trainer_micro_batch"]
"""``per_device_train_batch_size`` of the Hugging Face trainer."""

SIZES = tuple(option.key for option in TABLE.part("sizes"))
"""Settings of [plan] that are options with a size."""


BLOCKS = "type:transformer"
"""Blocks count; what Megatron-DeepSpeed asks for."""

ENDS = "type:transformer|embedding"
"""Embeddings count as a block, too; BigScience's ``--pp-partition-method``."""

METHODS = (BLOCKS, ENDS)
"""Ways to share out the blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedLaunch:
    """What starts a job with DeepSpeed."""

    options: TrainerOptions
    """Options of the script that is started."""

    config: object | None
    """The JSON, parsed; None if there is none."""

    num_devices: int | None = None
    """Devices that are started on; None if nothing says it."""

    devices: IntArray | None = None
    """Device of each rank; None if each rank has the device of its number."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables."""

    model: Mapping[str, Any] | None = None
    """Table [model] that is given beside it."""

    folder: Path = Path()
    """Folder that files of the model are looked for in."""


@dataclass(slots=True)
class LaunchTables:
    """Tables of a scenario, and how they were come by."""

    tables: dict[str, Settings]
    """``model``, ``training``, ``software`` and ``plan``."""
    num_devices: int
    """Devices of the job."""
    assumptions: list[str]
    """What was assumed, a sentence each."""
    effects: OptionEffects
    """What became of options and keys."""
    kept: Settings
    """What no setting holds."""


def launch_tables(launch: DeepSpeedLaunch) -> LaunchTables:
    """Return what a launch says.

    Raises
    ------
    InputError
        If sizes contradict each other or are missing, or something of it is not known
        here.
    """
    facts = ConfigFacts() if launch.config is None else read_config(launch.config)
    return _LaunchReader(launch, facts).tables()


class _LaunchReader:
    """A launch on its way to tables of a scenario."""

    def __init__(self, launch: DeepSpeedLaunch, facts: ConfigFacts) -> None:
        self.launch, self.facts, self.options = launch, facts, launch.options
        replaced = self.options.replaced.values()
        self.assumptions = [*replaced, *facts.assumptions]
        self.plan: Settings = {}

    def tables(self) -> LaunchTables:
        """Return all of them."""
        launch, options, plan = self.launch, self.options, self.plan
        model = dict(launch.model or architecture(options, self.assumptions))
        if "sequence_length" in options.launch and "family" not in model:
            model["sequence_length"] = options.launch["sequence_length"]
        self._read_sizes()
        batch = self._batch()
        plan |= self.facts.plan
        training = self._training(batch)
        self._read_sharding(training["precision"])
        self._read_recompute()
        self._read_layout(model)
        self._read_placement()
        used = plan["data_parallel_size"] * self._model_ranks()
        if "zero_hpz_partition_size" in plan:
            # Groups are no larger than the world (deepspeed/utils/groups.py:944).
            plan["zero_hpz_partition_size"] = min(plan["zero_hpz_partition_size"], used)
        software: Settings = {"preset": PRESET}
        if plan["pipeline_model_parallel_size"] == 1:  # else behind its last pass
            software |= {name: on for name, on in self.facts.software.items() if on}
        named = {"model": model, "training": training, "software": software}
        outer = "" if options.is_megatron else TRAINER
        kept = {f"{outer}{name}": value for name, value in options.kept().items()}
        kept |= {f"{JSON}{name}": value for name, value in self.facts.kept().items()}
        return LaunchTables(
            tables={**named, "plan": plan},
            num_devices=launch.num_devices or used,
            assumptions=self.assumptions,
            effects=options.effects + self.facts.effects,
            kept=kept,
        )

    def _model_ranks(self) -> int:
        """Return the ranks of one replica."""
        return math.prod(int(self.plan[name]) for name in SIZES[:3])

    def _read_sizes(self) -> None:
        """Put the parallel sizes into the plan, but for the replicas."""
        options, plan = self.options, self.plan
        plan |= {**dict.fromkeys(SIZES, 1), **self.facts.sizes}
        known = {*SIZES, "sequence_parallel", "schedule"}
        plan |= {name: value for name, value in options.plan.items() if name in known}
        if options.launch.get("no_pipeline"):
            plan["pipeline_model_parallel_size"] = 1
        if plan["context_parallel_size"] > 1:
            plan["cp_comm_type"] = "a2a"
        is_mixture = options.model.get("num_moe_experts", 1) > 1
        splits = options.launch.get("expert_tensor", False)
        if is_mixture and plan["tensor_model_parallel_size"] > 1 and not splits:
            raise InputError(
                "holds every expert as often as there are tensor-parallel ranks, which "
                "plans here do not",
                where="--moe-expert-parallel-size",
                expected="--enable-expert-tensor-parallelism beside it, or a tensor-"
                "parallel size of 1",
            )

    def _batch(self) -> int:
        """Put micro-batch and replicas into the plan, and return the global batch."""
        facts, options = self.facts, self.options
        # What the JSON says holds; options of the script fill in what it leaves open.
        batch = _BatchNumbers(
            total=facts.train_batch or options.training.get("global_batch_size") or 0,
            micro=facts.micro_batch or options.plan.get("micro_batch_size") or 0,
            steps=facts.accumulation or options.launch.get("accumulation") or 0,
            replicas=self._replicas(),
        )
        if not batch.micro and "train_micro_batch_size_per_gpu" in facts.automatic:
            batch.micro = TRAINER_MICRO_BATCH
            self.assumptions.append(
                f"A microbatch has {batch.micro} sequences, the trainer's default "
                "per_device_train_batch_size: the JSON leaves it to the trainer."
            )
        if not batch.total and not batch.steps:
            batch.steps = 1
            taken = "Gradients are not accumulated"
            self.assumptions.append(
                f"{taken}: nothing says over how many microbatches."
            )
        batch.complete()
        self.plan["micro_batch_size"] = batch.micro
        self.plan["data_parallel_size"] = batch.replicas
        return batch.total

    def _replicas(self) -> int:
        """Return how many replicas there are; 0 if nothing says how many ranks."""
        launch, inner = self.launch, self._model_ranks()
        ranks = launch.num_devices if launch.devices is None else launch.devices.size
        if ranks is not None and ranks % inner:
            raise Value(f"{ranks} ranks, {inner} in a replica").error(
                "the ranks do not make whole replicas",
                "a multiple of the tensor-, pipeline- and sequence-parallel sizes",
            )
        return (ranks or 0) // inner

    def _training(self, batch: int) -> Settings:
        """Return the table [training]; the JSON decides, as in DeepSpeed."""
        options = self.options
        table = {"global_batch_size": batch, **options.training, **self.facts.training}
        table["global_batch_size"] = batch
        if "precision" not in table and not options.is_megatron:
            self.assumptions.append("Precision is bf16: nothing says it.")
        table.setdefault("precision", "fp32" if options.is_megatron else "bf16")
        if table["precision"] == "fp32":
            table.pop("gradient_precision", None)
        return table

    def _read_sharding(self, precision: str) -> None:
        """Put the stage of ZeRO into the plan, and drop what does not go with it.

        A pipeline in bf16 has ``BF16_Optimizer`` (``deepspeed/runtime/engine.py``,
        ``_do_optimizer_sanity_check``; ``runtime/bf16_optimizer.py``), which shares out
        states without ZeRO.
        """
        stage, plan = self.facts.zero_stage, self.plan
        if stage is None:
            stage = int(self.options.launch.get("zero_stage", 0))
        if plan["pipeline_model_parallel_size"] > 1:
            if stage > 1:
                raise Value(stage, "zero_optimization.stage").error(
                    "does not go with a pipeline in DeepSpeed "
                    "(deepspeed/runtime/pipe/engine.py)",
                    "0 or 1, or --no-pipeline-parallel",
                )
            if not stage and precision == "bf16":
                stage = 1
                self.assumptions.append(_SHARDS_ANYWAY)
        plan["zero_stage"] = stage
        if self.options.launch.get("offload"):
            plan |= {"offload_optimizer": 1.0, "offload_weights": 1.0}
        for name, least in _LEAST_STAGE.items():
            if stage < least:
                plan.pop(name, None)

    def _read_recompute(self) -> None:
        """Say what is recomputed, and drop what hosts would keep of it otherwise."""
        launch, plan = self.options.launch, self.plan
        plan["recompute"] = mode = launch.get("recompute_granularity", "none")
        every = launch.get("recompute_num_layers", 1)
        if launch.get("checkpoint_activations") or launch.get("gradient_checkpointing"):
            mode, every = "full", launch.get("checkpoint_num_layers", 1)
        elif mode == "full" and launch.get("recompute_method") == "block":
            plan["recompute_num_layers"], every = every, 1
            if plan["pipeline_model_parallel_size"] > 1:
                raise Value("block", "--recompute-method").error(
                    "is not what DeepSpeed's pipeline recomputes by",
                    "uniform, or --checkpoint-activations",
                )
        elif not self.options.is_megatron and "gradient_checkpointing" not in launch:
            self.assumptions.append(_NOTHING_AGAIN)
        if mode == "full" and every > 1:
            sentence = "Each block is recomputed from its own input"
            self.assumptions.append(f"{sentence}, not {every} blocks at a time.")
        on_host = launch.get("checkpoint_in_cpu") or plan.pop("offload_activations", 0)
        plan["recompute"] = mode
        if mode == "full" and on_host:
            plan["offload_activations"] = 1.0

    def _read_layout(self, model: Settings) -> None:
        """Say how many blocks each stage holds where they are not equally many."""
        pp = self.plan["pipeline_model_parallel_size"]
        if pp == 1:
            return
        method = self.options.launch.get("partition_method", BLOCKS)
        if method not in METHODS:
            raise Value(method, "--pp-partition-method").error(
                "is no way to share out blocks that is known here", " or ".join(METHODS)
            )
        spec = built_model(model, self.launch.folder)
        blocks, tied = spec.num_layers, spec.tie_word_embeddings
        if pp > blocks + 2:  # the ends of the chain may be stages of their own
            raise Value(pp, "--pipeline-model-parallel-size").error(
                "are more stages than the model has blocks", f"at most {blocks + 2}"
            )
        counts = shared_blocks(blocks, pp, method, tied=tied)
        if len(set(counts)) > 1:
            self.plan["pipeline_model_parallel_layout"] = list(counts)

    def _read_placement(self) -> None:
        """Say where ranks stand, and which algorithm NCCL is to use for all."""
        plan = self.plan
        tp, pp, cp, ep = (int(plan[name]) for name in SIZES)
        dp, grouping = plan["data_parallel_size"], Grouping.of((tp, cp, ep))
        if dp % grouping.replica_unit((tp, cp, ep)):
            raise Value(ep, "--moe-expert-parallel-size").error(
                "does not divide the ranks that experts are spread over",
                f"a divisor of {dp * cp}",
            )
        ep = 1 if grouping.is_folded else ep
        extents = Extents(tp, cp, ep, dp // ep, pp)
        plan |= placement_settings(self.launch.devices, extents, DEFAULT_ORDER)
        named = self.launch.environment.get("NCCL_ALGO", "").lower()
        for ours, theirs in ALGORITHMS.items():
            if named == theirs.lower():
                plan |= {"gradient_algorithm": ours, "tensor_algorithm": ours}


@dataclass(slots=True)
class _BatchNumbers:
    """The four numbers of a batch; 0 for those that are not known yet."""

    total: int
    """Sequences of a step."""
    micro: int
    """Sequences of a microbatch."""
    steps: int
    """Microbatches of a replica."""
    replicas: int
    """Replicas."""

    def complete(self) -> None:
        """Make the missing numbers of the others, as DeepSpeed does.

        Raises
        ------
        InputError
            If too few are known, or they contradict each other.
        """
        if not self.replicas and self.total and self.micro and self.steps:
            self.replicas = max(self.total // (self.micro * self.steps), 1)
        if not self.replicas:
            raise InputError(
                "nothing says how many devices the job runs on",
                expected="the number of devices, or train_batch_size, "
                "train_micro_batch_size_per_gpu and gradient_accumulation_steps",
            )
        if not self.micro and not self.total:
            raise InputError(
                "nothing says the size of a microbatch",
                where="train_micro_batch_size_per_gpu",
                expected="a number, or train_batch_size beside it",
            )
        self._follow()
        made = self.micro * self.steps * self.replicas
        if self.total != made:
            raise Value(self.total, "train_batch_size").error(
                "is not micro-batch x accumulation steps x replicas, as DeepSpeed asks",
                f"{self.micro} x {self.steps} x {self.replicas} = {made}",
            )

    def _follow(self) -> None:
        if not self.micro:
            self.steps = self.steps or 1
            self.micro = max(self.total // (self.steps * self.replicas), 1)
        if not self.total:
            self.total = self.micro * self.steps * self.replicas
        if not self.steps:
            self.steps = max(self.total // (self.micro * self.replicas), 1)


def shared_blocks(
    num_blocks: int, num_stages: int, method: str, *, tied: bool
) -> tuple[int, ...]:
    """Return the blocks of each stage.

    ``PipelineModule`` gives weight 1 to the layers whose class matches a type, 0 to all
    others, and parts them as evenly as it can: the first parts have one more
    (``deepspeed/runtime/utils.py``, ``partition_balanced``, 0.19.8).

    Parameters
    ----------
    num_blocks, num_stages
        Blocks of the model, stages of the pipeline.
    method
        One of `METHODS`.
    tied
        Whether the head is a second embedding; it counts then under `ENDS`.

    Examples
    --------
    >>> shared_blocks(10, 4, BLOCKS, tied=True)
    (3, 3, 2, 2)
    >>> shared_blocks(10, 4, ENDS, tied=True)
    (2, 3, 3, 2)
    """
    first, last = (1, int(tied)) if method == ENDS else (0, 0)
    return shared_out(num_blocks, num_stages, first=first, last=last)


MAX_FILE = 64 * 2**20
"""Longest file beside a script that is read [byte]: a rank map of 8 million devices."""

_EXPECTED = "a JSON of DeepSpeed's, or a script that starts a job with it"
_LAUNCHER = re.compile(r"(?:.*/)?deepspeed(?:\.exe)?")
_OWN = frozenset({"--deepspeed", "--deepspeed-config"})
_STARTS = re.compile(
    r"^(?!\s*#|pip|import|from).*?"
    r"(?:--deepspeed\b|(?:^|[\s\"/])deepspeed\s+(?:-|\S*\.py))",
    re.MULTILINE,
)
"""A line that starts DeepSpeed."""
_MARKS = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")


def is_deepspeed(source: LaunchSource) -> bool:
    """Whether a file looks like a JSON of DeepSpeed's, or a script that starts it."""
    if source.text.lstrip().startswith("{"):
        return any(f'"{mark}"' in source.text for mark in _MARKS)
    return _STARTS.search(source.text) is not None


def read_deepspeed(source: LaunchSource) -> ImportedJob:
    """Read a DeepSpeed JSON plus model, or a script.

    Raises
    ------
    InputError
        With the file and the option or key in the message.
    """
    folder = source.path.parent
    beside = source.model_table()
    if source.text.lstrip().startswith("{"):
        # Sizes that a JSON has no key for may be given as variables.
        words = {
            name.replace("_", "-"): (value,) for name, value in source.variables.items()
        }
        launch = DeepSpeedLaunch(
            options=_sizes_given(words),
            config=_parsed(source.text),
            num_devices=source.num_devices,
            model=beside,
            folder=folder,
        )
        return _job(source, launch, _node(None, source.num_devices), ())
    start = find_training(source, _trains)
    if start is None:
        raise InputError("starts nothing with DeepSpeed", expected=_EXPECTED)
    num_devices, node = _devices(start, folder)
    options = read_options(option_words(start.options))
    launch = DeepSpeedLaunch(
        options=options,
        config=_config(options, start, folder),
        num_devices=source.num_devices or num_devices,
        environment=start.environment,
        model=beside,
        folder=folder,
    )
    ranks = _rank_map(start, folder)
    if ranks is not None:
        if node is None:
            raise InputError(
                "names devices of nodes, and nothing says how many a node has",
                where=RANK_MAP,
                expected="--num_gpus N, or slots in a host file",
            )
        launch = replace(launch, devices=parsed_rank_map(ranks, node))
    return _job(source, launch, _node(node, launch.num_devices), start.assumptions)


def _job(
    source: LaunchSource,
    launch: DeepSpeedLaunch,
    node: int | None,
    assumptions: Sequence[str],
) -> ImportedJob:
    tables = launch_tables(launch)
    assumed = [*assumptions, *tables.assumptions]
    carried = launch_table(FORMAT, tables.kept, assumed)
    return ImportedJob(
        name=source.path.stem,
        tables=tables.tables | carried,
        num_devices=tables.num_devices,
        devices_per_node=node,
        assumptions=tuple(assumed),
        options=tables.effects,
    )


def _sizes_given(words: Mapping[str, tuple[str, ...]]) -> TrainerOptions:
    """Return variables that stand beside a JSON as options, of either kind."""
    options = read_options(words)
    megatron = {
        name: value
        for name, value in words.items()
        if name.endswith("parallel-size") or name in {"sequence-parallel"}
    }
    sizes = read_options({"num-layers": ("1",), "hidden-size": ("1",), **megatron})
    options.plan |= sizes.plan
    options.ignored = [name for name in options.ignored if name[2:] not in megatron]
    options.given, options.words = [], {}  # variables beside the file, no options of it
    return options


def _parsed(text: str) -> object:
    return parse_json(text, expected="a JSON of DeepSpeed's")


def _node(size: int | None, num_devices: int | None) -> int | None:
    if size is None or num_devices is None or num_devices % size:
        return None
    return size


def _trains(words: Sequence[str]) -> bool:
    """Whether a command starts DeepSpeed."""
    bare = {word.partition("=")[0].replace("_", "-") for word in words}
    places = [n for n, word in enumerate(words) if _LAUNCHER.fullmatch(word)]
    is_launcher = 0 in places or (places and program_place(words) is not None)
    return bool(bare & _OWN or is_launcher) and any(
        word.startswith("--") for word in words
    )


def _devices(start: TrainingStart, folder: Path) -> tuple[int | None, int | None]:
    """Return the devices that a command starts, and those of a node."""
    named = option_words(start.launcher).get("hostfile", ())
    if named and None in (start.nodes, start.devices_per_node):
        slots = _slots(start.files.get(named[0]) or _beside(named[0], folder) or "")
        if slots is None:
            return None, start.devices_per_node
        start = replace(
            start,
            nodes=start.nodes or slots[0],
            devices_per_node=start.devices_per_node or slots[1],
        )
    return start.num_devices, start.devices_per_node


def _slots(hosts: str) -> tuple[int, int] | None:
    """Return the hosts of a host file and the slots of each; None if they differ."""
    counts = [
        int(part.removeprefix("slots="))
        for line in hosts.splitlines()
        for part in line.split()[1:2]
        if re.fullmatch(r"slots=[0-9]{1,8}", part)
    ]
    return (len(counts), counts[0]) if counts and len(set(counts)) == 1 else None


def _config(options: TrainerOptions, start: TrainingStart, folder: Path) -> object:
    """Return the JSON that a script names, written by itself or beside it; or None."""
    name = options.launch.get("config")
    if name is None:
        return None
    written = start.files.get(name) or _beside(name, folder)
    if written is None:
        raise Value(readable(name), "--deepspeed_config").error(
            "is not beside the script",
            f"the file {PurePosixPath(readable(name)).name} in the script's folder",
        )
    try:
        return _parsed(readable(written))
    except InputError as error:
        known_word(written, readable(name))
        raise error.at(readable(name), ": ") from None


def _rank_map(start: TrainingStart, folder: Path) -> str | None:
    if "no-python" not in option_words(start.launcher):
        return None
    return start.files.get(RANK_MAP) or _beside(RANK_MAP, folder)


def _beside(name: str, folder: Path) -> str | None:
    """Return the text of a file of the script's folder; None if there is none."""
    if "\0" in name or not PurePosixPath(name).name:
        return None
    for path in (folder / name, folder / PurePosixPath(name).name):
        try:
            is_there = path.is_file()
        except OSError:
            is_there = False
        if is_there:
            return read_text(path, expected="a file of a launch", most_bytes=MAX_FILE)
    return None
