"""Plans as configurations of torchtitan: a TOML file for 0.2, a command line for 0.3.

What the plan says goes into one table of options under the names of 0.2.2; the two
files are that table in two spellings. What has no option is a gap.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nestsim.launch.carried import (
    brought_back,
    carried_options,
    option_text,
    words_of_option,
)
from nestsim.launch.formats.torchtitan import names as titan
from nestsim.launch.formats.torchtitan.reading import TitanDegrees, tables_of
from nestsim.launch.formats.torchtitan.sources import TitanOptions
from nestsim.launch.formats.usual import (
    order_cases,
    sizes_in_words,
    stated_gaps,
    training_gaps,
    written_plain,
)
from nestsim.launch.job import RANK_MAP, LaunchFiles, LaunchGap, LaunchJob, rank_map
from nestsim.launch.read import Settings
from nestsim.launch.training import CHECK, CHECK_COMMAND, check_text
from nestsim.scenario.editing import toml_text
from planner.plans.spec import DEFAULT_ORDER
from planner.step.plan import Offload
from topologies.input_file import Value


def every_nth(job: LaunchJob) -> str:
    """Return which blocks are computed again; empty if torchtitan cannot say it.

    "2" for every second one.
    """
    settings, blocks = job.settings, job.num_blocks
    if settings.recompute != "full" or settings.recompute_num_layers is None:
        return ""
    chunks = len(job.blocks_by_virtual_stage())
    fitting = [
        str(every)
        for every in range(2, blocks + 1)
        if titan.blocks_again(blocks, chunks, every) == settings.recompute_num_layers
    ]
    named = str(
        (carried_options(job, titan.TOML_FORMAT) or {}).get(titan.EVERY_NTH[1], "")
    )
    return named if named in fitting else next(iter(fitting), "")


_LACKING: Mapping[str, Sequence[str]] = titan.TABLE.facts["lacking"]
"""Version -> cases of the table's gaps that are those of this one alone."""


def version_of(job: LaunchJob) -> str:
    """Return the version that a job names by its release, or the one with a TOML."""
    rules = job.scenario.search.rules
    newer = rules is not None and rules.framework == "torchtitan 0.3"
    return titan.COMMAND_VERSION if newer else titan.TOML_VERSION


def find_gaps(
    job: LaunchJob, flavor: titan.Flavor | None, *, of_other: bool = False
) -> Iterator[LaunchGap]:
    """Yield what cannot be expressed of a job whose model is a flavor, or None.

    In the version that the job names; or what the other one alone cannot express.
    """
    training = job.training
    pure = is_pure(job)
    usual = {
        "precision": training.precision if training.precision != "fp16" else "bf16",
        "optimizer": "adam-bf16" if pure else "adam",
        "gradient_precision": "bf16" if pure else "fp32",
        "weights_in_fp32": not pure,
        "gather_precision": "fp8" if training.gather_precision == "fp8" else "",
    }
    if not of_other:
        yield from training_gaps(job, "torchtitan", titan.CONVERTERS.values(), usual)
    parallel = job.plan.parallel
    values: Settings = {
        "model": job.model.family if flavor is None else flavor.flavor,
        "sizes": sizes_in_words(job.model),
        "software.moe_token_dispatcher_type": "flex",
    }
    if parallel.expert_model_parallel_size > 1:
        etp = parallel.grouping.etp or parallel.tensor_model_parallel_size
        values["expert_tensor_parallel_size"] = etp
    cases = {
        "model: no flavor": flavor is None and not titan.has_arguments(job.model),
        "model: not in 0.2.2": flavor is not None and not flavor.in_toml,
        "model: not in 0.3.0": flavor is not None and not flavor.in_command,
        "model.mtp_num_layers": bool(job.model.mtp_num_layers),
        **_group_cases(job),
        **_pipeline_cases(job),
        **_saving_cases(job),
        **_sharding_cases(job),
        **order_cases(job, is_usual=job.is_in_order(DEFAULT_ORDER)),
    }
    others = {
        case
        for version, lacking in _LACKING.items()
        for case in lacking
        if version != version_of(job)
    }
    chosen = {name: has and (name in others) == of_other for name, has in cases.items()}
    known = set() if not of_other else titan.TABLE.gaps.keys() - others
    yield from stated_gaps(
        job, titan.TABLE, {**dict.fromkeys(known, False), **chosen}, values
    )


def is_pure(job: LaunchJob) -> bool:
    """Whether weights and states of the optimizer are in 16 bits alone."""
    training = job.training
    return training.optimizer == "adam-bf16" and not training.weights_in_fp32


def _pipeline_cases(job: LaunchJob) -> dict[str, bool]:
    plan, software = job.plan, job.workload.software
    graphs = software.captures_step
    pairs, piped = plan.overlap_moe_expert_parallel_comm, len(plan.stages) > 1
    has_pairs = plan.schedule == "dualpipe-v" and piped
    known = plan.schedule_family in titan.OPTIONS[titan.SCHEDULE].words.values()
    return {
        "software.cuda_graphs": graphs and not piped,
        "software.cuda_graphs: in a pipeline": graphs and piped,
        "software.cuda_graphs: of layers": software.cuda_graphs == "layers",
        "schedule": piped and not known,
        "schedule: of one stage": not (piped or pairs or plan.schedule == "1f1b"),
        "overlap_moe_expert_parallel_comm: DualPipeV": pairs and has_pairs,
        "overlap_moe_expert_parallel_comm: others": pairs and not has_pairs,
    }


def _group_cases(job: LaunchJob) -> dict[str, bool]:
    parallel = job.plan.parallel
    tp, cp = parallel.tensor_model_parallel_size, parallel.context_parallel_size
    ep, etp = parallel.expert_model_parallel_size, parallel.grouping.etp
    return {
        "cp_comm_type: p2p": cp > 1 and parallel.cp_comm_type == "p2p",
        "cp_comm_type: heads": cp > 1
        and parallel.cp_comm_type not in ("p2p", "all_gather"),
        "sequence_parallel": tp > 1 and not parallel.sequence_parallel,
        "expert_tensor_parallel_size: alone": ep == 1 and bool(etp),
        "expert_tensor_parallel_size: split as the rest": ep > 1
        and tp > 1
        and etp in (0, tp),
        "expert_tensor_parallel_size: split": ep > 1
        and tp > 1
        and etp not in (0, 1, tp),
        "software.moe_token_dispatcher_type": ep > 1
        and job.workload.software.moe_token_dispatcher_type == "flex",
    }


def _saving_cases(job: LaunchJob) -> dict[str, bool]:
    settings = job.settings
    saves = job.workload.software.saves_products
    some, every = settings.recompute_num_layers is not None, bool(every_nth(job))
    kept = {stage.offload for stage in job.plan.stages}
    together = kept == {Offload(1.0, 1.0, 1.0, 0.0)}
    return {
        "recompute: selective": settings.recompute == "selective" and not saves,
        "recompute_num_layers: every n-th": some and every,
        "recompute_num_layers: others": some and not every,
        **{
            f"offload_{part}": not together
            and getattr(settings, f"offload_{part}") != 0.0
            for part in Offload._fields
        },
    }


def _sharding_cases(job: LaunchJob) -> dict[str, bool]:
    parallel, stage = job.plan.parallel, job.plan.stages[0]
    cp, dp = parallel.context_parallel_size, parallel.data_parallel_size
    if isinstance(job.settings.zero_stage, tuple) or dp * cp == 1:
        return {}
    others = parallel.tensor_model_parallel_size * len(job.plan.stages)
    ep = parallel.expert_model_parallel_size
    zero, group = stage.zero_stage, stage.sharding_group_size
    whole = group % cp == 0 and dp % max(group // cp, 1) == 0
    return {
        "zero_stage: 1": zero == 1,
        "zero_stage: 0 with cp": zero == 0 and cp > 1,
        "zero_stage: 0 with others": zero == 0 and cp == ep == 1 < others,
        "sharding_group_size": bool(zero) and (not whole or group == 1),
    }


TOML_FILE = "torchtitan.toml"
"""What people look at."""

SCRIPT_FILE = "torchtitan.sh"
"""Starts 0.3."""


def write_torchtitan(job: LaunchJob) -> LaunchFiles:
    """Write a plan for torchtitan 0.2 (TOML) and 0.3 (command line)."""
    flavor = titan.flavor_of(job.model)
    values = _options(job)
    gaps = [*find_gaps(job, flavor)]
    in_toml = {**_model_options(job, flavor), **values}
    if every := every_nth(job):
        in_toml |= zip(titan.EVERY_NTH, ("selective", every), strict=True)
    in_toml |= _together(job, values, titan.TOML_FORMAT)
    in_script = values | _together(job, values, titan.COMMAND_FORMAT)
    back, changes = of_version(job, in_toml, titan.TOML_FORMAT)
    behind, others = of_version(job, in_script, titan.COMMAND_FORMAT)
    gaps += [*changes, *others, *elsewhere(job)]
    files: dict[str, str | bytes] = {
        TOML_FILE: _toml(job, in_toml | back),
        SCRIPT_FILE: _script(job, flavor, in_script | behind),
    }
    if flavor is None and titan.has_arguments(job.model):
        files[titan.TRAIN_FILE] = titan.train_file(job.model)
    function = _own_function(job, flavor)
    if function is not None:
        files[titan.CONFIG_FILE] = titan.config_file(function)
    if not job.is_in_order(DEFAULT_ORDER):
        devices = job.devices_of_ranks(DEFAULT_ORDER)
        files[RANK_MAP] = rank_map(devices, job.devices_per_node)
    differing = [str(gap) for gap in find_gaps(job, flavor, of_other=True)]
    other = SCRIPT_FILE if version_of(job) == titan.TOML_VERSION else TOML_FILE
    cases = {"own_flavor": titan.TRAIN_FILE in files, "differing": bool(differing)}
    named = {
        "toml": TOML_FILE,
        "toml_version": titan.TOML_VERSION,
        "script": SCRIPT_FILE,
        "version": titan.COMMAND_VERSION,
        "file": other,
        "differing": "; ".join(differing),
    }
    notes = (
        note.format(**named)
        for case, note in titan.TABLE.facts["notes"].items()
        if cases.get(case, True)
    )
    return LaunchFiles(files=files, gaps=tuple(gaps), notes=tuple(notes))


def _options(job: LaunchJob) -> Settings:
    """Return the options of batch, precision and plan, by names of 0.2.2."""
    plan, training = job.plan, job.training
    batch = plan.micro_batch_size * plan.parallel.data_parallel_size
    values: Settings = {
        "training.seq_len": job.model.sequence_length,
        "training.local_batch_size": plan.micro_batch_size,
        "training.global_batch_size": batch * plan.num_microbatches,
    }
    if len(plan.stages) > 1:
        values["training.local_batch_size"] *= plan.num_microbatches
    values |= {
        "optimizer.name": "AdamW",
        "training.dtype": "bfloat16" if is_pure(job) else "float32",
        **written_plain(job, titan.TABLE, "training"),
        "training.mixed_precision_reduce": "float32",
        "training.enable_cpu_offload": plan.stages[0].offload[:3] == (1.0, 1.0, 1.0),
        # Graphs are captured by default, and refused with a pipeline.
        "training.disable_cuda_graphs": not job.workload.software.captures_step
        or len(plan.stages) > 1,
        **_parallelism(job),
        **_pipeline(job),
    }
    modes = [stage.recompute for stage in plan.stages]
    mode = "full" if {"full", "stage"} & set(modes) else max(modes, key=len)
    values["activation_checkpoint.mode"] = mode
    if mode == "selective":
        values["activation_checkpoint.selective_ac_option"] = "op"
    overlap = job.workload.execution.tp_comm_overlap
    values["parallelism.enable_async_tensor_parallel"] = overlap
    values["compile.enable"] = overlap or training.matmul_precision in _FORMATS
    return values


_FORMATS = tuple(dict.fromkeys(titan.CONVERTERS.values()))


def _parallelism(job: LaunchJob) -> Settings:
    """Return the options of sizes and shards."""
    parallel, stage = job.plan.parallel, job.plan.stages[0]
    cp, ep = parallel.context_parallel_size, parallel.expert_model_parallel_size
    tp, dp = parallel.tensor_model_parallel_size, parallel.data_parallel_size
    shard = max(stage.sharding_group_size // cp, 1) if stage.zero_stage else 1
    if dp % shard:
        shard = dp
    reshard = "fsdp_reshard_after_forward"
    named: Settings = {
        "data_parallel_replicate_degree": dp // shard,
        "data_parallel_shard_degree": shard,
        reshard: titan.OPTIONS[f"parallelism.{reshard}"].word(stage.zero_stage),
        "tensor_parallel_degree": tp,
        "enable_sequence_parallel": parallel.sequence_parallel or tp == 1,
        "pipeline_parallel_degree": parallel.pipeline_model_parallel_size,
        "context_parallel_degree": cp,
        "expert_parallel_degree": ep,
    }
    if cp > 1:
        method = "context_parallel_rotate_method"
        option = titan.OPTIONS[f"parallelism.{method}"]
        named[method] = option.word(parallel.cp_comm_type)
    if ep > 1:
        named["expert_tensor_parallel_degree"] = parallel.grouping.etp or tp
        if job.workload.software.moe_token_dispatcher_type == "flex":
            named["expert_parallel_comm_backend"] = "deepep"
    return {f"parallelism.{name}": value for name, value in named.items()}


def _pipeline(job: LaunchJob) -> Settings:
    """Return the options of schedule, chunks and layout."""
    plan = job.plan
    if len(plan.stages) == 1:
        return {}
    schedule = plan.schedule_family
    if schedule not in titan.OPTIONS[titan.SCHEDULE].words.values():
        chunks = plan.virtual_pipeline_model_parallel_size
        schedule = "1f1b" if chunks == 1 else "interleaved-1f1b"
    named: Settings = {
        "pipeline_parallel_schedule": titan.OPTIONS[titan.SCHEDULE].word(schedule),
        "pipeline_parallel_microbatch_size": plan.micro_batch_size,
    }
    if plan.schedule == "dualpipe-v":
        pairs = plan.overlap_moe_expert_parallel_comm
        named["pipeline_parallel_expert_parallel_overlap"] = pairs
    blocks = job.blocks_by_virtual_stage()
    weights = titan.weights_of(blocks)
    if weights is None:
        named["module_fqns_per_model_part"] = titan.module_names(blocks, "output")
    else:
        per_stage, first, last = weights
        named |= {
            "pipeline_parallel_layers_per_stage": per_stage,
            "pipeline_parallel_first_stage_less_layers": first,
            "pipeline_parallel_last_stage_less_layers": last,
        }
    return {f"parallelism.{name}": value for name, value in named.items()}


def _model_options(job: LaunchJob, flavor: titan.Flavor | None) -> Settings:
    """Return the options of the model, in TOML."""
    model, name = "llama3", titan.flavor_name(job.model)
    if flavor is not None:
        model, name = flavor.model, flavor.flavor
    values: Settings = {"model.name": model, "model.flavor": name}
    precision = job.training.matmul_precision
    if precision in _FORMATS:
        values["model.converters"] = [titan.OPTIONS["model.converters"].word(precision)]
    if job.training.gather_precision == "fp8":
        values["quantize.linear.float8.enable_fsdp_float8_all_gather"] = True
    return values


def _own_function(
    job: LaunchJob, flavor: titan.Flavor | None
) -> titan.ConfigFunction | None:
    """Return the function that 0.3 needs and does not have; None if it has it."""
    precision = job.training.matmul_precision
    precision = precision if precision in _FORMATS else ""
    if flavor is None:
        if not titan.has_arguments(job.model):
            return None
        name = titan.function_name(f"llama3_{titan.flavor_name(job.model)}", precision)
        like = titan.Flavor(model="llama3", flavor="8B")
        return titan.ConfigFunction(
            name=name, flavor=like, spec=job.model, precision=precision
        )
    if not flavor.in_command:
        return None
    converters = titan.REGISTRY.get(flavor.function, ("", {}))[1].get(
        "model.converters", []
    )
    is_there = flavor.function in titan.REGISTRY
    if is_there and [titan.CONVERTERS[name] for name in converters] == [
        precision
    ] * bool(precision):
        return None
    name = titan.function_name(flavor.function, precision)
    return titan.ConfigFunction(name=name, flavor=flavor, precision=precision)


_CHOSEN = "activation_checkpoint"


def _torchrun(job: LaunchJob) -> list[str]:
    """Return the words that start the processes of every node."""
    per_node = job.devices_per_node
    nodes = -(-job.network.num_devices // per_node)
    words = ["torchrun", f"--nnodes={nodes}", f"--nproc_per_node={per_node}"]
    if nodes > 1:
        words += [
            "--node_rank=$NODE_RANK",
            "--rdzv_backend=static",
            "--master_addr=$MASTER_ADDR",
            "--master_port=$MASTER_PORT",
        ]
    return words


_ENVIRONMENT = 'PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"'


def _toml(job: LaunchJob, values: Mapping[str, Any]) -> str:
    """Return the options as TOML, with a word on each table."""
    is_new = titan.flavor_of(job.model) is None and titan.has_arguments(job.model)
    program = titan.TRAIN_FILE if is_new else "-m torchtitan.train"
    text: str = titan.TABLE.facts["templates"]["toml"]
    heading = text.format(
        title=job.scenario.name.replace("\n", " "),
        version=titan.TOML_VERSION,
        check=CHECK,
        start=" ".join(_torchrun(job)),
        file=TOML_FILE,
        environment=_ENVIRONMENT,
        program=program,
    )
    lines = [heading]
    tables: dict[str, list[str]] = {}
    for name, value in values.items():
        if name not in titan.OPTIONS or titan.OPTIONS[name].since == titan.TOML:
            table, _, key = name.rpartition(".")
            tables.setdefault(table, []).append(toml_text({key: value}).rstrip())
    comments = titan.TABLE.facts["comments"]
    for table, entries in tables.items():
        comment = comments.get(table.split(".")[0], "As it was imported.")
        lines += ["", f"# {comment}", f"[{table}]", *entries]
    return "\n".join(lines) + "\n"


def _script(
    job: LaunchJob, flavor: titan.Flavor | None, values: Mapping[str, Any]
) -> str:
    """Return the command line of 0.3, as a script that runs on each node."""
    added = _own_function(job, flavor)
    if added is not None:
        module, function = titan.CONFIG_FILE.removesuffix(".py"), added.name
    elif flavor is not None:
        module, function = flavor.model, flavor.function
    else:
        module, function = "llama3", titan.flavor_name(job.model)
    start = " ".join(_torchrun(job))
    *options, mode = _command_options(values)
    sizes = [word for word in options if word.startswith("--parallelism.")]
    others = [word for word in options if word not in sizes]
    text: str = titan.TABLE.facts["templates"]["script"]
    return text.format(
        title=job.scenario.name.replace("\n", " "),
        version=titan.COMMAND_VERSION,
        environment=_ENVIRONMENT,
        path='export PYTHONPATH="$PWD:$PYTHONPATH"\n' if added else "",
        sizes="".join(f"    {word}\n" for word in sizes),
        check=check_text(f'{start} {CHECK_COMMAND} "${{PARALLELISM[@]}}"'),
        start=start,
        module=module,
        function=function,
        others="".join(f"    {word} \\\n" for word in others),
        mode=mode,
    )


def _command_options(values: Mapping[str, Any]) -> list[str]:
    """Return the options as words, at the end that of what is computed again."""
    words: list[str] = []
    behind: list[str] = []
    for name, value in values.items():
        if name not in titan.OPTIONS:
            text = option_text(name, words_of_option(value))
            (behind if name.startswith(_CHOSEN) else words).append(text)
            continue
        written = titan.command_names().get(name, "")
        if not written:
            continue
        if isinstance(value, bool):
            section, _, key = written.rpartition(".")
            words.append(f"--{section}.{'' if value else 'no-'}{key}")
        elif name == "parallelism.module_fqns_per_model_part":
            words.insert(0, f"--{written} {' '.join(map(_listed, value))}")
        else:
            # One word with commas: list_str_rule of config/manager.py (0.3.0).
            listed = value if isinstance(value, list) else [value]
            words.append(option_text(written, [",".join(map(str, listed))]))
    if values["compile.enable"] and "compile.components" not in values:
        # Functions of the registry compile the loss alone, where experts are routed.
        words.insert(0, "--compile.components model,loss")
    mode = values["activation_checkpoint.mode"]
    # Options of one of several choices stand behind it.
    return [*words, " ".join([f"activation_checkpoint:{mode}", *behind])]


def _listed(names: Sequence[str]) -> str:
    """Return the modules of a part; the head has another name since 0.3."""
    return ",".join("lm_head" if name == "output" else name for name in names)


def _together(job: LaunchJob, values: Settings, format_name: str) -> Settings:
    """Return what joins replica groups, of a job whose import has them; else nothing.

    With the batch of all of them.
    """
    sites, carried = job.scenario.sites, carried_options(job, format_name) or {}
    if sites is None or carried.get("fault_tolerance.enable") is not True:
        return {}
    batch = "training.global_batch_size"
    table: Settings = {
        "fault_tolerance.enable": True,
        "fault_tolerance.group_size": sites.count,
        batch: values[batch] * sites.count,
    }
    if sites.synchronous:
        return table
    method = "fault_tolerance.semi_sync_method"
    table |= {
        method: titan.OPTIONS[method].word(sites.outer_optimizer),
        "fault_tolerance.sync_steps": sites.sync_every,
    }
    if sites.outer_optimizer == "nesterov":
        table |= {
            "fault_tolerance.num_fragments": sites.fragments,
            "fault_tolerance.fragment_sync_delay": sites.delay,
            "fault_tolerance.should_quantize": sites.compression <= 8,
        }
    return table


def of_version(
    job: LaunchJob, values: Mapping[str, Any], format_name: str
) -> tuple[Settings, list[LaunchGap]]:
    """Return what of an imported configuration comes back, and what is changed of it.

    Parameters
    ----------
    job
        The job.
    values
        What is written for its plan.
    format_name
        `TOML_FORMAT` or `COMMAND_FORMAT`, the one that is written.
    """
    is_toml = format_name == titan.TOML_FORMAT
    return brought_back(
        values,
        carried_options(job, format_name) or {},
        reads=lambda options: _tables(job, options, None if is_toml else ""),
        matter=titan.OPTIONS.keys(),
        refusal=_unknown if is_toml else _unknown_now,
        shown=lambda name, value: (name if is_toml else f"--{name}", value),
    )


def elsewhere(job: LaunchJob) -> Iterator[LaunchGap]:
    """Yield what one of the two versions is told and the other is not."""
    for name, version, other in (
        (titan.TOML_FORMAT, titan.TOML_VERSION, titan.COMMAND_VERSION),
        (titan.COMMAND_FORMAT, titan.COMMAND_VERSION, titan.TOML_VERSION),
    ):
        options = carried_options(job, name)
        if options:
            reason = titan.TABLE.facts["elsewhere"].format(version=version, other=other)
            yield LaunchGap("launch.options", ", ".join(options), reason)


def _unknown(name: str) -> str:
    if name in titan.TOML_NAMES or name in titan.OPTIONS:
        return ""
    return f"torchtitan {titan.TOML_VERSION} has no such option."


def _unknown_now(name: str) -> str:
    if name in titan.OPTIONS or titan.is_silent(name):
        return ""
    return f"torchtitan {titan.COMMAND_VERSION} has no such option."


def _tables(job: LaunchJob, values: Mapping[str, Any], function: str | None) -> Any:
    """Return what options are read as."""
    options = TitanOptions(
        table=titan.TABLE,
        values={
            name: Value(value, name)
            for name, value in values.items()
            if name in titan.OPTIONS
        },
        function=function,
    )
    sizes = TitanDegrees.of(options, None)
    return tables_of(options, sizes, job.num_blocks)
