"""Options of Megatron-LM that say how a job is spread, read into the table [plan].

How blocks are shared out, what is recomputed, who shares shards, what hosts keep.
"""

from collections.abc import Mapping
from typing import Any

from estimators.layers.saved_activations import ATTENTION_CORE, RECOMPUTE_MODULES
from nestsim.launch.formats.megatron import options as known
from nestsim.launch.formats.megatron.options import GivenOptions, need, read_layout
from nestsim.launch.read import Settings
from topologies.input_file import Value


def count_replicas(sizes: Mapping[str, object], num_devices: int | None) -> int | None:
    """Return the data-parallel size; None if nothing says how many devices."""
    if num_devices is None:
        return None
    names = ("tensor_model", "pipeline_model", "context")
    taken = 1
    for name in names:
        taken *= int(str(sizes.get(f"{name}_parallel_size", 1)))
    return max(num_devices // max(taken, 1), 1)


def read_plan(
    given: GivenOptions, num_devices: int | None, model: Mapping[str, Any]
) -> Settings:
    """Return the table ``plan``.

    Raises
    ------
    InputError
        If an option has a value that it cannot have, or one is missing.
    """
    plan: Settings = given.part("parallel")
    need(plan, "micro-batch-size")
    for name in plan:
        if name.endswith("parallel_size"):
            need(plan, name.replace("_", "-"))
    plan = {
        name: value
        for name, value in plan.items()
        if value is not False or name == "sequence_parallel"
    }
    replicas = count_replicas(plan, num_devices)
    if replicas is not None:
        plan["data_parallel_size"] = replicas
    ranks = (replicas or 1) * plan["context_parallel_size"]
    plan |= _context(given, plan)
    if not (_splits_experts(plan) and model.get("num_moe_experts")):
        plan.pop("expert_tensor_parallel_size", None)
    plan |= _split(given, plan, model)
    group = given.whole("microbatch-group-size-per-virtual-pipeline-stage")
    if group is not None and plan.get("virtual_pipeline_model_parallel_size", 1) > 1:
        # Megatron-LM reads it where stages have several chunks.
        plan["microbatch_group_size_per_vp_stage"] = group
    plan |= _recompute(given, plan, model)
    plan |= _sharding(given, ranks if replicas else None)
    plan |= _offload(given, model)
    if given.flag("use-tp-pp-dp-mapping"):
        plan["order"] = known.PP_INSIDE_ORDER
    return plan


def _splits_experts(plan: Mapping[str, Any]) -> bool:
    """Whether experts have a tensor-parallel size of their own."""
    tp = plan["tensor_model_parallel_size"]
    return bool(plan.get("expert_tensor_parallel_size", tp) != tp)


def _context(given: GivenOptions, plan: Mapping[str, Any]) -> Settings:
    if plan["context_parallel_size"] == 1:
        return {}
    words = known.TABLE.options["cp-comm-type"].words
    kinds = {words.get(word, word) for word in given.words("cp-comm-type")}
    if "ds-sequence-parallel-size" in given:
        kinds = {"a2a"}
    if len(kinds) > 1:
        raise Value(" ".join(given.words("cp-comm-type")), "--cp-comm-type").error(
            "differs from block to block", "one way for all blocks"
        )
    table: Settings = {"cp_comm_type": next(iter(kinds), "p2p")}
    where = "hierarchical-context-parallel-sizes"
    sizes = [given.whole_number(where, word) for word in given.words(where)]
    if sizes and table["cp_comm_type"] == "a2a+p2p":
        table["hierarchical_context_parallel_sizes"] = sizes
    return table


def _split(
    given: GivenOptions, plan: Mapping[str, Any], model: Mapping[str, Any]
) -> Settings:
    """Return the chunks of stages, and blocks that are given one by one."""
    layout = given.word("pipeline-model-parallel-layout")
    stages = plan["pipeline_model_parallel_size"]
    if layout:
        blocks, _ = read_layout(layout, stages)
        v = len(blocks) // stages
        return {
            "virtual_pipeline_model_parallel_size": v,
            "pipeline_model_parallel_layout": list(blocks),
        }
    chunks = given.whole("num-virtual-stages-per-pipeline-rank")
    in_chunk = given.whole("num-layers-per-virtual-pipeline-stage")
    if chunks is not None and in_chunk is not None:
        raise Value(chunks, "--num-virtual-stages-per-pipeline-rank").error(
            "does not go with --num-layers-per-virtual-pipeline-stage",
            "one of the two, as Megatron-LM asserts",
        )
    if chunks is None and in_chunk:
        ends = [
            name
            for name in plan
            if name.startswith("account_for_") and plan[name] is True
        ]
        layers = num_blocks(model) + len(ends)
        if layers % (stages * in_chunk):
            raise Value(in_chunk, "--num-layers-per-virtual-pipeline-stage").error(
                "does not divide the blocks of a stage",
                f"a divisor of {layers} layers over {stages} stages",
            )
        chunks = layers // (stages * in_chunk)
    table: Settings = {}
    if chunks is not None and chunks > 1:
        table["virtual_pipeline_model_parallel_size"] = chunks
    if "embedding" in given.word("pp-partition-method"):
        # "type:transformer|embedding": the ends of the chain count as a block each.
        table["account_for_embedding_in_pipeline_split"] = True
        table["account_for_loss_in_pipeline_split"] = True
    return table


def num_blocks(model: Mapping[str, Any]) -> int:
    """Return the blocks of a model, those of its decoder included."""
    if "num_layers" in model:
        return int(model["num_layers"])
    encoder = int(model["encoder_num_layers"])
    return encoder + int(model.get("decoder_num_layers", encoder))


def _recompute(
    given: GivenOptions, plan: Mapping[str, Any], model: Mapping[str, Any]
) -> Settings:
    granularity, method = _granularity(given)
    if granularity != "full":
        modules = given.words("recompute-modules") or ATTENTION_CORE
        repeats = granularity == "selective" and {*modules} & {*RECOMPUTE_MODULES}
        return {"recompute": "selective" if repeats else "none"}
    names = ("recompute-num-layers", "activations-checkpoint-num-layers")
    older = (*names, "checkpoint-num-layers")
    count = next((n for name in older if (n := given.whole(name)) is not None), 1)
    if method == "block":
        return {"recompute": "full", "recompute_num_layers": count}
    stages = plan["pipeline_model_parallel_size"]
    blocks = plan.get("pipeline_model_parallel_layout")
    most = max(blocks) if blocks else -(-num_blocks(model) // max(stages, 1))
    chunks = plan.get("virtual_pipeline_model_parallel_size", 1)
    if count > 1 and count >= most and chunks == 1:
        return {"recompute": "stage"}
    if count > 1:
        given.assume(f"Blocks are recomputed one by one, not {count} together.")
    return {"recompute": "full"}


def _granularity(given: GivenOptions) -> tuple[str, str]:
    """Return what is recomputed, none, selective or full, and by which method.

    Older versions had other options for it.
    """
    words = {"full": "full", "selective": "selective"}
    older = given.word("activations-checkpoint-method")
    method = given.word("recompute-method") or older
    for name in ("recompute-granularity", "activations-checkpoint-granularity"):
        if name in given:
            return given.choice(name, words, "none"), method
    if given.any_of("recompute-activations"):
        return "selective", method
    oldest = ("checkpoint-activations", "deepspeed-activation-checkpointing")
    return "full" if method or given.any_of(*oldest) else "none", method


def _sharding(given: GivenOptions, ranks: int | None) -> Settings:
    stage = int(given.flag("use-distributed-optimizer"))
    if given.any_of("use-megatron-fsdp", "use-custom-fsdp"):
        stage = given.meaning("data-parallel-sharding-strategy", 0)
    if given.any_of("use-torch-fsdp2"):
        stage = 2 if given.any_of("torch-fsdp2-no-reshard-after-forward") else 3
    if given.any_of("deepspeed"):
        stage = given.whole("zero-stage") or 0
        if given.any_of("bf16") and stage == 0:
            # DeepSpeed's BF16_Optimizer shards its states (runtime/bf16_optimizer.py).
            stage = 1
    table: Settings = {"zero_stage": stage}
    if given.word("optimizer") == "dist_muon":
        table["zero_stage"] = 1
    instances = given.whole("num-distributed-optimizer-instances") or 1
    if instances > 1 and table["zero_stage"] and ranks:
        if ranks % instances:
            raise Value(instances, "--num-distributed-optimizer-instances").error(
                "does not divide the data- and context-parallel ranks",
                f"a divisor of {ranks}",
            )
        table["sharding_group_size"] = ranks // instances
    return table


def _offload(given: GivenOptions, model: Mapping[str, Any]) -> Settings:
    table: Settings = {}
    if given.flag("optimizer-cpu-offload"):
        part = given.real("optimizer-offload-fraction")
        table["offload_optimizer"] = 1.0 if part is None else part
    if layers := given.whole("cpu-offloading-num-layers"):
        table["offload_activations"] = layers / num_blocks(model)
    return table
