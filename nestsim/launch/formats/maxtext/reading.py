"""Configurations of MaxText as the tables of a scenario."""

import math
from typing import Any

from estimators.models.library import load_model
from nestsim.launch.carried import TableOptions, launch_table
from nestsim.launch.formats.maxtext import sources as maxtext
from nestsim.launch.formats.usual import left_over
from nestsim.launch.read import DEFAULT_NODE, ImportedJob, LaunchSource, Settings
from planner.frameworks.framework import FRAMEWORKS
from planner.plans.spec import DIMENSIONS
from topologies.input_file import Value

_ENDS_ON_STAGES = (
    "The embedding and the head are on the first and the last stage; MaxText has them "
    "on all devices, in front of its pipeline and behind it."
)


def read_maxtext(source: LaunchSource) -> ImportedJob:
    """Read a YAML file of MaxText, or the script that starts it.

    Raises
    ------
    InputError
        If it is neither, or says what no scenario can.
    """
    settings = maxtext.read_settings(source)
    model, num_layers = _model(source, settings)
    mesh = _mesh(settings, source.num_devices)
    plan = {
        **_sizes(settings, mesh),
        **_pipeline(settings, mesh, num_layers),
        **_sharding(settings, mesh),
        **_recompute(settings),
    }
    batch, micro_batch = _batches(settings, mesh)
    is_gpu = settings.choice("hardware").startswith("gpu")
    tables = {
        "model": model,
        "training": {"global_batch_size": batch, **_training(settings)},
        "software": {"preset": "maxtext", **_software(settings)},
        "plan": {"micro_batch_size": micro_batch, **plan},
    }
    kept = {
        name: value for name, value in settings.kept().items() if name != maxtext.BUILT
    }
    tables |= launch_table(maxtext.FORMAT, kept, settings.assumptions)
    return ImportedJob(
        name=f"{source.path.stem} (MaxText)",
        tables=tables,
        num_devices=mesh.num_devices,
        devices_per_node=math.prod(mesh.inside.values()) if is_gpu else None,
        assumptions=tuple(settings.assumptions),
        options=settings.effects,
    )


def _model(source: LaunchSource, settings: TableOptions) -> tuple[Any, int]:
    """Return the table [model], and how many layers MaxText counts in it."""
    length = settings.whole("max_target_length")
    shared: Settings = {"sequence_length": length}
    if settings.choice("attention") == "dot_product":
        shared["attention"] = "plain"
    name = settings.value("model_name").text()
    size = maxtext.blocks_of_layer(name)
    given = source.model_spec(length)
    if given is not None:
        table = source.model_table() or {}
        return {**table, **shared}, given.num_layers // size
    if name == "default":
        sizes = _sized_model(settings)
        return {**sizes, **shared}, sizes["num_layers"]
    if name not in maxtext.MODELS:
        raise settings.value("model_name").error(
            "is no model that is known",
            "a name of MaxText's, or --model NAME or CONFIG.JSON beside it",
        )
    spec = load_model(maxtext.MODELS[name], sequence_length=length)
    depths = settings.whole("mtp_num_layers", least=0)
    if spec.mtp_num_layers != depths:
        shared["mtp_num_layers"] = depths
    return {"name": maxtext.MODELS[name], **shared}, spec.num_layers // size


def _sized_model(settings: TableOptions) -> Settings:
    """Return a Llama of the sizes that are given, times the global scale.

    Doubling the scale doubles in turn heads and feed-forward width, hidden size, and
    layers (``get_individual_scales`` of ``pyconfig.py``).
    """
    block = settings.value("decoder_block").text()
    if block not in ("llama2", "mistral"):
        raise settings.value("decoder_block").error(
            "is no kind of block that a model without a name can have here",
            '"llama2", or --model NAME or CONFIG.JSON beside it',
        )
    scale = settings.whole("global_parameter_scale")
    if scale & (scale - 1) or scale > 2**20:
        raise settings.value("global_parameter_scale").error(
            "is no power of two", "1, 2, 4 and so on"
        )
    turns, rest = divmod(scale.bit_length() - 1, 3)
    wide, hidden = 2 ** (turns + (rest > 0)), 2 ** (turns + (rest > 1))
    factors = {"num_layers": 2**turns, "hidden_size": hidden}
    factors |= dict.fromkeys(_WIDE, wide)
    return {
        "family": "llama",
        **{
            name: value * factors[name] if name in factors else value
            for name, value in settings.settings("model").items()
        },
    }


_WIDE = ("num_attention_heads", "num_query_groups", "ffn_hidden_size")


def _mesh(settings: TableOptions, num_devices: int | None) -> maxtext.AxisMesh:
    """Return the sizes of all axes, those that are left open filled in."""
    inside, among = (
        {
            axis: settings.whole(f"{kind}_{axis}_parallelism", least=-1)
            for axis in (*maxtext.AXES, *maxtext.OTHER_AXES)
        }
        for kind in ("ici", "dcn")
    )
    for sizes, kind in ((inside, "ici"), (among, "dcn")):
        if 0 in sizes.values() or list(sizes.values()).count(-1) > 1:
            raise Value(
                {axis: size for axis, size in sizes.items() if size != 1},
                f"{kind}_.._parallelism",
            ).error(
                "sizes of axes are numbers from 1 on, one of them -1 for what is left",
                "one -1 at most",
            )
    slices = _num_slices(settings, num_devices, inside, among)
    per_slice = _slice_size(settings)
    if per_slice is None and num_devices is not None:
        per_slice = num_devices // slices
    _fill(among, slices, "dcn")
    _fill(inside, per_slice, "ici")
    mesh = maxtext.AxisMesh(inside, among)
    if num_devices not in (None, mesh.num_devices):
        raise Value(f"{mesh.num_devices}, {num_devices} devices").error(
            "the axes do not make the number of devices",
            f"--num-devices {mesh.num_devices}, or none",
        )
    for axis in maxtext.OTHER_AXES:
        if mesh.size(axis) > 1:
            raise Value(mesh.size(axis), f"ici_{axis}_parallelism").error(
                "is an axis that no plan has", "1"
            )
    return mesh


def _num_slices(
    settings: TableOptions,
    num_devices: int | None,
    inside: dict[str, int],
    among: dict[str, int],
) -> int:
    """Return how many slices there are: nodes, where the devices are GPUs."""
    given = settings.whole("compile_topology_num_slices", least=-1)
    if given > 0:
        return given
    known = math.prod(size for size in among.values() if size > 0)
    if -1 not in among.values():
        return known
    if num_devices is not None:
        if -1 not in inside.values():
            return max(num_devices // math.prod(inside.values()), 1)
        if settings.choice("hardware").startswith("gpu") and known == 1:
            node = min(DEFAULT_NODE, num_devices)
            settings.assume(f"A node has {node} devices.")
            return max(num_devices // node, 1)
    return known


def _slice_size(settings: TableOptions) -> int | None:
    """Return the devices of a slice of the topology that is compiled for."""
    topology = settings.value("compile_topology")
    if topology.raw == "":
        return None
    generation, _, count = topology.text().partition("-")
    cores: int | None = maxtext.TABLE.facts["cores_per_chip"].get(generation)
    if cores is None or not count.isdecimal() or len(count) > 7:
        raise topology.error(
            "is no slice that is known", "such as v5p-512, v5e-256, v4-128"
        )
    return max(int(count) // cores, 1)


def _fill(sizes: dict[str, int], total: int | None, kind: str) -> None:
    """Put in the size that is left open."""
    known = math.prod(size for size in sizes.values() if size > 0)
    for axis, size in sizes.items():
        if size < 1:
            name = f"{kind}_{axis}_parallelism"
            sizes[axis] = left_over(total, known, name, "axes")
            known *= sizes[axis]
    if total not in (None, known):
        raise Value(f"{known}, {total} devices", f"{kind}_.._parallelism").error(
            "the axes do not make the number of devices", "their product"
        )


def _sizes(settings: TableOptions, mesh: maxtext.AxisMesh) -> Settings:
    """Return sizes and order of ranks."""
    tp = mesh.size("tensor") * mesh.size("tensor_sequence")
    exchanging, ep = mesh.size("context_usp_ulysses"), mesh.size("expert")
    cp = mesh.size("context") * exchanging
    plan: Settings = {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": mesh.size("pipeline"),
        "data_parallel_size": mesh.size("data") * mesh.size("fsdp") * ep,
        "context_parallel_size": cp,
        "expert_model_parallel_size": ep,
        "sequence_parallel": mesh.size("tensor_sequence") > 1,
    }
    if mesh.size("tensor") > 1 and mesh.size("tensor_sequence") > 1:
        settings.assume("All tensor-parallel ranks share sequences, too.")
    if cp > 1:
        plan |= _context(settings, cp, exchanging)
    factors = list(mesh.factors)
    if ep > 1 and tp * cp > 1:
        settings.assume(
            "Experts are spread outside of tensor- and context-parallel groups; "
            "MaxText spreads them inside."
        )
        # Behind the innermost dimensions, in front of the replicas.
        factors = [factor for factor in factors if factor[0] != "ep"]
        place = sum(name in ("tp", "cp") for name, _ in factors)
        factors.insert(place, ("ep", ep))
    names = [name for name, _ in factors]
    ranked = [DIMENSIONS.index(name) for name in names]
    if ranked == sorted(set(ranked)):
        return plan
    if len(set(names)) == len(names):
        rest = [name for name in DIMENSIONS if name not in names]
        others = [name for name in (*rest, *names) if name != "tp"]
        return {**plan, "order": "-".join(["tp", *others])}
    return {**plan, "placement": " ".join(f"{name}{size}" for name, size in factors)}


def _context(settings: TableOptions, cp: int, exchanging: int) -> Settings:
    """Return how ranks share a sequence.

    Raises
    ------
    InputError
        If some exchange heads and others do not, but not as rings of those that do.
    """
    strategy = "context_parallel_strategy"
    kind = settings.meaning(strategy)
    if kind != "a2a+p2p" and exchanging == 1:
        return {"cp_comm_type": kind}
    if kind != "a2a+p2p" or exchanging in (1, cp):
        raise settings.value(strategy).error(
            f"does not go with {exchanging} of {cp} ranks that exchange heads",
            '"usp" with ici_context_parallelism and '
            "ici_context_usp_ulysses_parallelism above 1, or neither",
        )
    sizes = [exchanging, cp // exchanging]
    return {"cp_comm_type": kind, "hierarchical_context_parallel_sizes": sizes}


def _batches(settings: TableOptions, mesh: maxtext.AxisMesh) -> tuple[int, int]:
    """Return the sequences of an optimizer step and of a microbatch."""
    name = "per_device_batch_size"
    per_device = settings.value(name).number()
    rounds = settings.whole("gradient_accumulation_steps")
    local = per_device * mesh.num_devices
    pp = mesh.size("pipeline")
    dp = mesh.size("data") * mesh.size("fsdp") * mesh.size("expert")
    parts = dp
    if pp > 1:
        delayed = settings.flag("pipeline_delay_activation_forwarding")
        count = settings.whole("num_pipeline_microbatches", least=-1)
        if count < 1:
            count = pp * (2 if delayed else 1)
        if count % pp:
            raise settings.value("num_pipeline_microbatches").error(
                "is no multiple of the number of stages", f"a multiple of {pp}"
            )
        parts *= count
        if rounds > 1:
            settings.assume(
                f"The {rounds} rounds of gradient accumulation go through the "
                "pipeline without a gap; MaxText empties it after each."
            )
    micro_batch = local / parts
    if micro_batch < 1 or not micro_batch.is_integer():
        raise settings.value(name).error(
            "does not make whole sequences in each microbatch",
            f"a multiple of {parts / mesh.num_devices:g}",
        )
    return int(local) * rounds, int(micro_batch)


def _pipeline(
    settings: TableOptions, mesh: maxtext.AxisMesh, num_layers: int
) -> Settings:
    """Return how often stages come round again."""
    pp = mesh.size("pipeline")
    if pp == 1:
        return {}
    piped = settings.whole("pipeline_parallel_layers", least=-1)
    if piped not in (-1, num_layers):
        raise settings.value("pipeline_parallel_layers").error(
            "leaves blocks outside of the pipeline, which no plan does", "-1"
        )
    per_stage = settings.whole("num_layers_per_pipeline_stage")
    repeats, rest = divmod(num_layers, pp * per_stage)
    given = settings.whole("num_pipeline_repeats", least=-1)
    if rest or given not in (-1, repeats):
        raise Value(
            f"{pp} stages, {per_stage} layers each, {given} repeats",
            "num_layers_per_pipeline_stage",
        ).error(
            "stages, repeats and layers of a stage do not make the model's blocks",
            f"a product of {num_layers}",
        )
    settings.assume(_ENDS_ON_STAGES)
    return {"virtual_pipeline_model_parallel_size": repeats}


def _sharding(settings: TableOptions, mesh: maxtext.AxisMesh) -> Settings:
    """Return what is sharded: weights over fsdp, context and expert axes."""
    shared = ("fsdp", "context", "context_usp_ulysses", "expert")
    group = math.prod(mesh.size(axis) for axis in shared)
    if group == 1:
        return {"zero_stage": int(settings.flag("shard_optimizer_over_data"))}
    plan: Settings = {"zero_stage": 3}
    if mesh.size("pipeline") > 1 and settings.flag("pipeline_fsdp_ag_once"):
        plan["zero_stage"] = 2
        settings.assume(
            "Weights that are gathered once before the pipeline are ZeRO-2's."
        )
    if mesh.size("data") > 1:
        plan["sharding_group_size"] = group
    return plan


def _recompute(settings: TableOptions) -> Settings:
    """Return what is computed again, and what the host keeps."""
    policy = settings.value("remat_policy")
    name = policy.text()
    plan: Settings = {}
    for option, part in (
        ("optimizer_memory_host_offload", "optimizer"),
        ("parameter_memory_host_offload", "weights"),
    ):
        if settings.flag(option):
            plan[f"offload_{part}"] = 1.0
    if name == "full":
        return {**plan, "recompute": "full"}
    if name == "custom":
        return {**plan, **_custom(settings)}
    if name == "minimal_offloaded":
        settings.assume("The host keeps all that is kept of a block.")
        return {**plan, "recompute": "selective", "offload_activations": 1.0}
    policies = FRAMEWORKS["maxtext"].remat_policies
    if name not in policies:
        raise policy.error(
            "is no policy that is known",
            ", ".join(("full", *policies, "minimal_offloaded", "custom")),
        )
    nearest = policies[name]
    if name != "minimal":
        settings.assume(f"Recompute: {nearest.note}.")
    return {**plan, "recompute": nearest.mode}


def _custom(settings: TableOptions) -> Settings:
    """Return what a policy of single results comes to."""
    whats = {settings.choice(name) for name in maxtext.REMAT_TENSORS}
    offloads = settings.value("decoder_layer_input").text() == "offload"
    plan: Settings = {"offload_activations": 1.0} if offloads else {}
    if whats == {"device"}:
        return {**plan, "recompute": "none"}
    if whats != {"remat"}:
        settings.assume("Recompute: custom as full recompute.")
    return {**plan, "recompute": "full"}


def _training(settings: TableOptions) -> Settings:
    """Return the settings of [training] but for the batch."""
    table = settings.settings("training")
    if not table["weights_in_fp32"]:
        if (table["precision"], table["optimizer"]) != ("bf16", "adam"):
            raise settings.value("weight_dtype").error(
                "goes with bfloat16 and adamw only, here", '"float32"'
            )
        table["optimizer"] = "adam-bf16"
    return table


def _software(settings: TableOptions) -> Settings:
    """Return the settings of [software] beside the preset."""
    if settings.choice("attention") == "cudnn_flash_te":
        return {"attention_kernel": "fused"}
    return {}
