"""Configurations of torchtitan as the tables of a scenario.

What the framework takes where it is silent is part of the format, and no assumption:
the defaults of 0.2.2 for TOML, those of 0.3.0 and of the named function of its registry
for a command line.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from estimators.models.library import load_model
from nestsim.launch.carried import launch_table
from nestsim.launch.formats.torchtitan import names as titan
from nestsim.launch.formats.torchtitan.sources import (
    TitanOptions,
    is_command,
    is_toml,
    read_command,
    read_toml,
)
from nestsim.launch.formats.usual import left_over
from nestsim.launch.read import ImportedJob, LaunchSource, Settings
from planner.step.schedules import find_schedule
from topologies.errors import InputError
from topologies.input_file import Value


def is_torchtitan(source: LaunchSource) -> bool:
    """Whether a file looks like a configuration of torchtitan."""
    return is_toml(source) or is_command(source)


def read_torchtitan(source: LaunchSource) -> ImportedJob:
    """Read a TOML file of torchtitan up to 0.2, or a command line of 0.3.

    Raises
    ------
    InputError
        If it is neither, or says what no scenario can.
    """
    options = read_command(source) if is_command(source) else read_toml(source)
    model, num_layers = _model(source, options)
    sizes = TitanDegrees.of(options, source.num_devices)
    tables = {"model": model, **tables_of(options, sizes, num_layers)}
    kept = options.kept()
    tables |= launch_table(
        titan.COMMAND_FORMAT if options.is_command else titan.TOML_FORMAT,
        kept,
        options.assumptions,
    )
    return ImportedJob(
        name=f"{source.path.stem} (torchtitan)",
        tables=tables,
        num_devices=sizes.num_devices,
        devices_per_node=options.devices_per_node,
        assumptions=tuple(options.assumptions),
        options=options.effects,
    )


def tables_of(
    options: TitanOptions, sizes: "TitanDegrees", num_layers: int
) -> dict[str, Settings]:
    """Return the tables but for the model.

    Parameters
    ----------
    options
        The options.
    sizes
        Their degrees.
    num_layers
        Blocks of the model.
    """
    batch = _batch(options, sizes)
    plan = {
        **_parallel_sizes(options, sizes),
        "micro_batch_size": _micro_batch(options, sizes),
        **_pipeline(options, sizes.pp, num_layers),
        **_sharding(options, sizes),
    }
    plan |= _recompute(options, plan, sizes.pp, num_layers)
    if options.flag("training.enable_cpu_offload"):
        for part in ("weights", "gradients", "optimizer"):
            plan[f"offload_{part}"] = 1.0
    training = {"global_batch_size": batch, **_training(options)}
    _assume_others(options, training)
    sites = _sites(options)
    return {
        **({"sites": sites} if sites else {}),
        "training": training,
        "software": {"preset": "torchtitan", **_software(options, plan)},
        "plan": plan,
    }


_OF_CONVERTERS = ("quantize.", "float8.", "mx.")
"""Beginnings of options without effect where nothing is converted."""


def _assume_others(options: TitanOptions, training: Mapping[str, Any]) -> None:
    """Note what is taken instead of options that no setting stands for."""
    narrow = "matmul_precision" in training
    for name, value in options.ignored.items():
        if name.startswith(_OF_CONVERTERS) and not narrow:
            continue
        usual, taken = titan.TABLE.assumed.get(name.replace("-", "_"), (value, ""))
        if value != usual:
            options.assume(f"{name}: {taken}", name)


class TitanDegrees(NamedTuple):
    """Degrees of all dimensions."""

    tp: int
    cp: int
    pp: int
    replicate: int
    shard: int

    @classmethod
    def of(cls, options: TitanOptions, num_devices: int | None) -> "TitanDegrees":
        """Read them, the one that is left open by the number of devices."""
        tp, cp, pp, replicate = (
            options.whole(f"parallelism.{name}")
            for name in (
                "tensor_parallel_degree",
                "context_parallel_degree",
                "pipeline_parallel_degree",
                "data_parallel_replicate_degree",
            )
        )
        name = "parallelism.data_parallel_shard_degree"
        shard = options.whole(name, least=-1)
        others = tp * cp * pp * replicate
        devices = num_devices or options.num_devices
        if shard == 0:
            raise options.value(name).error("is no size", "a size, or -1")
        if shard > 0:
            if devices not in (None, others * shard):
                raise Value(f"{others * shard}, {devices} devices").error(
                    "the degrees do not make the number of devices",
                    f"--num-devices {others * shard}, or none",
                )
        else:
            shard = left_over(devices, others, name, "degrees")
        return cls(tp, cp, pp, replicate, shard)

    @property
    def num_devices(self) -> int:
        """Devices of the job."""
        return math.prod(self)

    @property
    def dp(self) -> int:
        """Replicas of the pipeline."""
        return self.replicate * self.shard


def _model(source: LaunchSource, options: TitanOptions) -> tuple[Settings, int]:
    """Return the table [model], and how many blocks the model has."""
    length = options.whole("training.seq_len")
    given = source.model_spec(length)
    if given is not None:
        table = source.model_table() or {}
        return {**table, "sequence_length": length}, given.num_layers
    name, written = _model_name(options)
    sizes = titan.DEBUG_MODEL if name == "debugmodel" else titan.flavor_table(written)
    if sizes is not None:
        return {**sizes, "sequence_length": length}, sizes["num_layers"]
    if name is None:
        raise Value(
            written, "--config" if options.is_command else "model.flavor"
        ).error(
            "is a flavor of torchtitan that is not known",
            "a published flavor, or --model NAME or CONFIG.JSON beside it",
        )
    spec = load_model(name, sequence_length=length)
    table = {"name": name, "sequence_length": length}
    if spec.mtp_num_layers:
        table["mtp_num_layers"] = 0
    return table, spec.num_layers


def _model_name(options: TitanOptions) -> tuple[str | None, str]:
    """Return the name in the library, and what is written."""
    if options.function is None:
        model = options.value("model.name").text()
        flavor = options.value("model.flavor").text()
        if (model, flavor.partition("_")[0]) == ("llama3", "debugmodel"):
            return "debugmodel", flavor
        written = flavor if model == "llama3" else f"{model} {flavor}"
        return titan.library_name(model, flavor), written
    function = options.function
    if function in titan.REGISTRY:
        return titan.REGISTRY[function][0], function
    if function == "llama3_debugmodel":
        return "debugmodel", function
    return titan.function_model(function), function


def _batch(options: TitanOptions, sizes: TitanDegrees) -> int:
    """Return the sequences of an optimizer step."""
    name = "training.global_batch_size"
    local = options.whole("training.local_batch_size")
    batch = options.whole(name, least=-1)
    per_round, groups = local * sizes.dp, _replica_groups(options)
    if batch <= 0:
        return per_round
    if batch % (per_round * groups):
        raise options.value(name).error(
            "is no multiple of local batch size x data-parallel degree",
            f"a multiple of {local} x {sizes.dp * groups}",
        )
    return batch // groups


def _replica_groups(options: TitanOptions) -> int:
    """Return how many instances of the job train together through torchft."""
    if not options.flag("fault_tolerance.enable"):
        return 1
    groups = options.whole("fault_tolerance.group_size", least=0)
    if groups < 2:
        raise options.value("fault_tolerance.group_size").error(
            "is no number of replica groups that train together", "2 or more"
        )
    return groups


def _sites(options: TitanOptions) -> Settings:
    """Return the table [sites] of replica groups that meet through torchft.

    One instance of the job is a site. Steps, fragments and delay are those of torchft's
    ``DiLoCo``; its sums are quantised to 8 bits (``allreduce_quantized``).
    """
    groups = _replica_groups(options)
    if groups == 1:
        return {}
    options.assume(
        "Each replica group is a site: between them are 10 Gbit/s and 30 ms one way."
    )
    table: Settings = {"count": groups, "bandwidth": "10 Gbit/s", "latency": "30 ms"}
    if options.value("fault_tolerance.semi_sync_method").raw in (None, ""):
        return {**table, "synchronous": True}
    optimizer = options.meaning("fault_tolerance.semi_sync_method")
    steps = options.whole("fault_tolerance.sync_steps")
    wide = options.choice("training.dtype") != "bfloat16"
    table |= {"sync_every": steps, "compression": 32 if wide else 16}
    if optimizer != "nesterov":
        return {**table, "outer_optimizer": optimizer}
    options.assume(
        "Devices hold the outer optimizer's copy of the parameters; torchft has it in "
        "the hosts' memory."
    )
    listed = options.value("fault_tolerance.module_fqns_per_model_fragment")
    parts = len(listed.array(most=100_000)) if listed.raw else 0
    fragments = parts or options.whole("fault_tolerance.num_fragments")
    delay = options.whole("fault_tolerance.fragment_sync_delay", least=0)
    if steps % fragments or delay >= steps // fragments:
        raise Value(
            f"{steps} steps, {fragments} fragments, a delay of {delay}",
            "fault_tolerance.sync_steps",
        ).error(
            "the steps do not go with fragments and delay",
            "a multiple of the fragments, and less delay than steps for each",
        )
    if options.flag("fault_tolerance.should_quantize"):
        table["compression"] = 8
    return {**table, "fragments": fragments, "delay": delay}


def _micro_batch(options: TitanOptions, sizes: TitanDegrees) -> int:
    """Return the sequences of a microbatch."""
    local = options.whole("training.local_batch_size")
    if sizes.pp == 1:
        return local
    name = "parallelism.pipeline_parallel_microbatch_size"
    size = options.whole(name)
    if local % size:
        raise options.value(name).error(
            "does not divide the local batch size", f"a divisor of {local}"
        )
    rounds = _batch(options, sizes) // (local * sizes.dp)
    if rounds > 1:
        options.assume(
            f"The {rounds} rounds of gradient accumulation go through the pipeline "
            "without a gap; torchtitan empties it after each."
        )
    return size


def _parallel_sizes(options: TitanOptions, sizes: TitanDegrees) -> Settings:
    """Return the sizes of [plan]."""
    plan: Settings = {
        "tensor_model_parallel_size": sizes.tp,
        "pipeline_model_parallel_size": sizes.pp,
        "data_parallel_size": sizes.dp,
        "context_parallel_size": sizes.cp,
        "sequence_parallel": sizes.tp > 1
        and (
            not options.is_command
            or options.flag("parallelism.enable_sequence_parallel")
        ),
    }
    if sizes.cp > 1:
        # 0.3 gathers keys and values, and has no ring: distributed/context_parallel.
        method = "parallelism.context_parallel_rotate_method"
        plan["cp_comm_type"] = options.meaning(method)
    ep = options.whole("parallelism.expert_parallel_degree")
    if ep > 1:
        plan |= _experts(options, sizes, ep)
    if (
        ep > 1
        and sizes.pp > 1
        and options.value(titan.SCHEDULE).raw == "DualPipeV"
        and not options.is_command
        and options.flag("parallelism.pipeline_parallel_expert_parallel_overlap")
    ):
        plan["overlap_moe_expert_parallel_comm"] = True
    return plan


def _experts(options: TitanOptions, sizes: TitanDegrees, ep: int) -> dict[str, int]:
    """Return how experts are spread: over ``dp_shard``, ``cp`` and ``tp`` / etp."""
    etp = 1
    if not options.is_command:
        etp = options.whole("parallelism.expert_tensor_parallel_degree")
    if etp not in (1, sizes.tp):
        raise options.value("parallelism.expert_tensor_parallel_degree").error(
            "is neither 1 nor the tensor-parallel degree", f"1 or {sizes.tp}"
        )
    ranks = sizes.shard * sizes.cp * sizes.tp
    if ranks % (etp * ep):
        raise options.value("parallelism.expert_parallel_degree").error(
            "does not divide the ranks that experts are spread over",
            f"a divisor of {ranks // etp}",
        )
    spread = {"expert_model_parallel_size": ep}
    return {**spread, "expert_tensor_parallel_size": 1} if etp != sizes.tp else spread


def _sharding(options: TitanOptions, sizes: TitanDegrees) -> Settings:
    """Return what is sharded, over how many ranks (FSDP2, HSDP, DDP)."""
    stage = options.meaning("parallelism.fsdp_reshard_after_forward")
    ranks = sizes.shard * sizes.cp
    if ranks == 1:
        # Nobody shares anything; the files that we write say what the plan calls it.
        return {"zero_stage": stage}
    # The default keeps gathered weights over a microbatch's passes in a pipeline.
    plan: Settings = {"zero_stage": stage or (2 if sizes.pp > 1 else 3)}
    if sizes.replicate > 1:
        plan["sharding_group_size"] = ranks
    return plan


def _pipeline(options: TitanOptions, pp: int, num_layers: int) -> Settings:
    """Return schedule, chunks and layout."""
    if pp == 1:
        return {}
    csv = options.value(f"{titan.SCHEDULE}_csv")
    if csv.raw not in ("", None):
        raise InputError(
            "is a schedule in a file of its own, which is not read",
            where=csv.where,
            expected=f"a name in {titan.SCHEDULE}",
        )
    written, names = options.value(titan.SCHEDULE), titan.OPTIONS[titan.SCHEDULE].words
    by_lower = {name.lower(): ours for name, ours in names.items()}
    text = written.text()
    if text.lower() not in by_lower:
        others = ", ".join(titan.TABLE.facts["other_schedules"])
        raise written.error(
            "is no schedule that is simulated",
            f"{', '.join(names)} (torch has {others}, too)",
        )
    schedule = by_lower[text.lower()]
    single = schedule in ("1f1b", "gpipe")
    blocks = _blocks(options, pp, num_layers, single=single)
    chunks, rest = divmod(len(blocks), pp)
    if rest or (chunks != 1 if single else chunks < titan.DEFAULT_CHUNKS):
        raise Value(
            f"{len(blocks)} virtual stages, {pp} stages, {text}", titan.SCHEDULE
        ).error(
            "the virtual stages do not go with pipeline and schedule",
            "one for each stage" if single else "two or more for each stage",
        )
    plan: Settings = {"virtual_pipeline_model_parallel_size": chunks}
    usual = "1f1b" if chunks == 1 else "interleaved-1f1b"
    if schedule != usual:
        plan["schedule"] = schedule
        find_schedule(schedule)
    if len(set(blocks)) > 1:
        plan["pipeline_model_parallel_layout"] = list(blocks)
    return plan


def _blocks(
    options: TitanOptions, pp: int, num_layers: int, *, single: bool
) -> tuple[int, ...]:
    """Return the blocks of each virtual stage."""
    listed = options.value("parallelism.module_fqns_per_model_part")
    if listed.raw:
        parts = [
            [str(name.raw) for name in part.array()]
            for part in listed.array(most=100_000)
        ]
        return _located(
            listed.where, lambda: titan.blocks_of_modules(parts, num_layers)
        )
    points = options.value("parallelism.pipeline_parallel_split_points")
    if points.raw:
        names = [str(name.raw) for name in points.array()]
        return _located(points.where, lambda: titan.blocks_of_points(names, num_layers))
    first, last = (
        options.whole(f"parallelism.pipeline_parallel_{end}_stage_less_layers", least=0)
        for end in ("first", "last")
    )
    name = "parallelism.pipeline_parallel_layers_per_stage"
    number = pp * (1 if single else titan.DEFAULT_CHUNKS)
    if options.value(name).raw is not None:
        per_stage = options.whole(name)
        number = titan.num_virtual_stages(num_layers, per_stage, first=first, last=last)
    return _located(
        name, lambda: titan.shared_blocks(num_layers, number, first=first, last=last)
    )


def _located(where: str, blocks: Callable[[], Sequence[int]]) -> tuple[int, ...]:
    """Return blocks; what is wrong with them is said of an option."""
    try:
        return tuple(blocks())
    except InputError as error:
        raise error.at(where) from None


def _recompute(
    options: TitanOptions, plan: Settings, pp: int, num_layers: int
) -> Settings:
    """Return what is computed again."""
    mode = options.choice("activation_checkpoint.mode")
    if mode == "memory_budget":
        raise options.value("activation_checkpoint.mode").error(
            "leaves what is computed again to the compiler",
            '"none", "selective" or "full"',
        )
    if mode != "selective" or options.is_command:
        return {"recompute": mode}
    option = options.value("activation_checkpoint.selective_ac_option")
    every = str(option.raw)
    if every == "op":
        return {"recompute": mode}
    if not every.isdecimal() or not 0 < int(every) <= num_layers:
        raise option.error("is no way to select", '"op", or "2" for every 2nd block')
    if int(every) == 1:
        return {"recompute": "full"}
    chunks = pp * plan.get("virtual_pipeline_model_parallel_size", 1)
    count = titan.blocks_again(num_layers, chunks, int(every))
    options.assume(
        f"Of each chunk's blocks the first {count} are computed again; torchtitan "
        f"computes every {every}th block again (selective_ac_option).",
        *titan.EVERY_NTH,
    )
    return {"recompute": "full", "recompute_num_layers": count}


def _training(options: TitanOptions) -> Settings:
    """Return the settings of [training] but for the batch."""
    table = {**options.settings("training"), "gradient_precision": "fp32"}
    if options.choice("training.dtype") == "bfloat16":
        table |= {
            "precision": "bf16",
            "weights_in_fp32": False,
            "optimizer": "adam-bf16",
            "gradient_precision": "bf16",
        }
    if options.choice("optimizer.name") == "Adam":
        options.assume(
            "Adam and AdamW take the same time and memory.", "optimizer.name"
        )
    options.choice("training.mixed_precision_reduce")
    precision = _converted(options)
    if precision:
        table["matmul_precision"] = precision
    if options.flag("quantize.linear.float8.enable_fsdp_float8_all_gather"):
        table["gather_precision"] = "fp8"
    return table


def _converted(options: TitanOptions) -> str:
    """Return the number format of products with weights, ``""`` for the usual one."""
    if options.function is not None and options.function not in titan.REGISTRY:
        return titan.split_function(options.function)[1]
    grouped = titan.TABLE.facts["grouped_converters"]
    names = options.texts("model.converters")
    if not set(names) <= {*titan.CONVERTERS, *grouped}:
        raise options.value("model.converters").error(
            "is no way to change the model that is known",
            f"some of {', '.join((*titan.CONVERTERS, *grouped))}",
        )
    return next(
        (titan.CONVERTERS[name] for name in names if name in titan.CONVERTERS), ""
    )


def _software(options: TitanOptions, plan: Settings) -> Settings:
    """Return the settings of [software] beside the preset."""
    table: Settings = {}
    if options.flag("parallelism.enable_async_tensor_parallel"):
        table["tp_comm_overlap"] = True
    if options.is_command and not options.flag("training.disable_cuda_graphs"):
        table["cuda_graphs"] = "full_iteration"
    compiled = options.flag("compile.enable")
    if compiled and "model" in options.texts("compile.components"):
        kernels = "Kernels are those of PyTorch without torch.compile."
        options.assume(kernels, "compile.enable", "compile.components")
    backend = "parallelism.expert_parallel_comm_backend"
    groups = plan.get("expert_model_parallel_size", 1)
    if groups > 1 and options.choice(backend) != "standard":
        table["moe_token_dispatcher_type"] = "flex"
    return table
