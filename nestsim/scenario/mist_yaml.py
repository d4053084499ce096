"""Mist's configurations (YAML, as its tuner reads and writes them) as scenarios.

``training``, ``model`` and ``hardware`` are the job and the cluster: links as Mist
measured them, in its gigabytes of 2**30 bytes. ``strategy`` is the plan, ``tuning``
what the search may try. What Mist's model reads and ours has no place for, such as the
factors of interference, is left out. Settings that are not known are refused, as is a
file that Hydra has yet to put together (Mist writes the whole one down).

References
----------
.. [1] Mist's public repository, ``benchmark/mist/configs`` and ``tuned_configs``; the
   stage strategies are those of ``[b, dp, tp, ws, gs, os, WO, GO, OO, AO]``.
"""

import json
import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from nestsim.scenario.errors import nearest
from topologies.accelerators import accelerator_names
from topologies.errors import InputError
from topologies.input_file import Value, decode, parse_yaml

SUFFIXES = (".yaml", ".yml")
"""How names of Mist's configurations end."""

_GIGABYTE = 2.0**30
_MOST = 1_000_000
_ENTRIES = (1, 2, 4, 8)
_UNPROFILED = (4.5, 0.0)
"""What a link table has where nothing was measured [1]_."""

_LEAST_LATENCY = 0.5e-6
"""Latency of a link whose measured bias is 0; an assumption of the usual order [s]."""

_MEMORY = MappingProxyType(
    {16.0: "v100-16gb", 22.488: "l4", 32.0: "v100", 40.0: "a100-40gb"}
)
"""``memory_capacity`` of Mist's templates -> name in the catalogue [1]_."""

_PRECISIONS = MappingProxyType(
    {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
)

_SECTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "training": (
            *("max_sequence_length", "vocab_size", "global_batch_size"),
            *("params_dtype", "exec_dtype", "optimizer_dtype", "autocast_enabled"),
            "optimizer_name",
        ),
        "hardware": (
            *("gpu_type", "num_nodes", "num_gpus_per_node", "gpu_gpu_comm_params"),
            *("cpu_gpu_comm_params", "gpu_cpu_comm_params"),
            *("interference_model_params", "nvlink", "memory_capacity"),
        ),
        "strategy": (
            *("enabled", "layer_partitions", "device_assignment"),
            *("gradient_checkpointing", "gradient_accumulation_steps"),
            *("stage_strategies", "pre_post_strategy", "pre_post_strategy_array"),
        ),
        "tuning": (
            *("enabled", "zero_2_and_3_enabled", "tuning_granularity", "sample_size"),
            "activation_checkpointing_tuning_enabled",
            *("state_offloading_enabled", "activation_offloading_enabled"),
            *("pre_post_strategy", "pre_post_strategy_array"),
        ),
        "model": (
            *("name", "hidden_size", "intermediate_size", "num_hidden_layers"),
            *("num_attention_heads", "num_heads_kv", "vocab_size", "num_tokentypes"),
            *("fp32_residual_connection", "fp16_lm_cross_entropy", "padding_idx"),
            *("position_embedding_type", "max_position_embeddings", "params_dtype"),
            *("rotary_emb_fraction", "rotary_emb_base", "rotary_emb_scale_base"),
            *("rotary_emb_interleaved", "tie_word_embeddings", "add_encoder"),
            *("add_decoder", "encoder_attn_mask_type", "add_pooler", "num_experts"),
            *("parallel_block", "parallel_block_tied_norm", "prenorm"),
            *("normalization", "activation_function", "mlp_type", "qkv_proj_bias"),
            *("out_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "hidden_dropout"),
            *("attention_dropout", "scale_attn_weights", "use_flash_attn"),
            "bias_dropout_fusion",
        ),
    }
)
"""Section -> settings that Mist has there [1]_."""

_RUN = (
    *("work_dir", "data_dir", "output_path", "print_config", "ignore_warnings"),
    *("seed", "name", "overlap", "use_memory_buffer", "nccl_timeout", "profile"),
    *("tiny_bench", "memory_debug", "enable_advanced_opt_in_first_block"),
    "disable_tp_tuning",
)
"""Settings beside the sections."""

_REFERENCE = re.compile(r"\$\{([A-Za-z0-9_.]+)\}")


def mist_document(text: bytes, name: str) -> dict[str, Any]:
    """Return what a configuration says, as the tables of a scenario.

    Parameters
    ----------
    text
        The file.
    name
        What the scenario is called if the model has no name.

    Raises
    ------
    InputError
        If it is no configuration of Mist, or says what no scenario can. The message
        starts with the setting.
    """
    expected = "a configuration of Mist in YAML"
    root = Value(_resolved(parse_yaml(decode(text), expected=expected)))
    _check_names(root)
    document = {
        "name": f"{root['model'].get('name', name).text()} (Mist)",
        "model": _model(root),
        "training": _training(root["training"]),
        "cluster": _cluster(root["hardware"]),
        "software": {"preset": "mist"},
        "search": _search(root),
    }
    if "strategy" in root.table() and root["strategy"].get("enabled", True).flag():
        document["plan"] = _Strategy(root).plan()
    return document


def _resolved(root: Any) -> Any:
    """Put in what ``${model.num_hidden_layers}`` and its like stand for."""

    def resolve(raw: Any) -> Any:
        if isinstance(raw, dict):
            return {key: resolve(one) for key, one in raw.items()}
        if isinstance(raw, list):
            return [resolve(one) for one in raw]
        found = _REFERENCE.fullmatch(raw) if isinstance(raw, str) else None
        if found is None:
            return raw
        value = root
        for key in found[1].split("."):
            value = value.get(key, raw) if isinstance(value, dict) else raw
        return raw if isinstance(value, dict | list) else value

    return resolve(root)


def _check_names(root: Value) -> None:
    """Refuse what Mist does not have, and files that are only a part."""
    if "defaults" in root.table():
        raise InputError(
            "names other files, which Hydra puts together",
            where="defaults",
            expected="the whole configuration, as Mist writes it down",
        )
    _check_known(root, (*_SECTIONS, *_RUN))
    for section, known in _SECTIONS.items():
        if section in root.table():
            _check_known(root[section], known)


def _check_known(table: Value, known: tuple[str, ...]) -> None:
    for key, value in table.table().items():
        if key in known:
            continue
        where = f"{table.where}.{key}" if table.where else str(key)
        raise InputError(
            "no such setting in Mist's configurations",
            where=where,
            got=value if isinstance(value, int | float | str) else type(value).__name__,
            expected=f"one of {', '.join(known)}",
            hint=nearest(str(key), known),
        )


def _model(root: Value) -> dict[str, Any]:
    """Return the table [model]."""
    model, training = root["model"], root["training"]
    _refuse_unlike(model)
    gated = model.get("mlp_type", "mlp").choice(("mlp", "gated_mlp")) == "gated_mlp"
    norm = model["normalization"].choice(("layernorm", "rmsnorm"))
    biases = {
        model.get(name, False).flag()
        for name in ("out_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias")
    }
    if len(biases) > 1:
        raise model["out_proj_bias"].error(
            "differs from the other biases", "all linear layers with a bias, or none"
        )
    positions = model["position_embedding_type"].choice(("absolute", "rotary"))
    table = {
        "family": "llama" if gated and norm == "rmsnorm" else "gpt",
        "num_layers": _whole(model["num_hidden_layers"]),
        "hidden_size": _whole(model["hidden_size"]),
        "ffn_hidden_size": _whole(model["intermediate_size"]),
        "num_attention_heads": _whole(model["num_attention_heads"]),
        "vocab_size": _whole(model["vocab_size"]),
        "sequence_length": _whole(training["max_sequence_length"]),
        "gated_linear_unit": gated,
        "normalization": norm,
        "position_embedding_type": "rope" if positions == "rotary" else "learned",
        "tie_word_embeddings": model.get("tie_word_embeddings", False).flag(),
        "add_bias_linear": biases.pop(),
        "add_qkv_bias": model.get("qkv_proj_bias", False).flag(),
        "hidden_dropout": model.get("hidden_dropout", 0.0).number(),
        "attention_dropout": model.get("attention_dropout", 0.0).number(),
        "attention": "flash" if model["use_flash_attn"].flag() else "plain",
    }
    groups = model.get("num_heads_kv", None)
    if groups.raw is not None:
        table["num_query_groups"] = _whole(groups)
    return table


def _refuse_unlike(model: Value) -> None:
    """Refuse models that are no chain of causal blocks as ours are."""
    for name, usual in (
        ("encoder_attn_mask_type", "causal"),
        ("parallel_block", False),
        ("prenorm", True),
        ("add_encoder", True),
        ("add_decoder", False),
        ("add_pooler", False),
        ("num_tokentypes", 0),
        ("num_experts", None),
    ):
        value = model.get(name, usual)
        if value.raw != usual:
            raise value.error(
                "is not of a model that is known here",
                f"{json.dumps(usual)}: a decoder of blocks one after the other",
            )


def _training(training: Value) -> dict[str, Any]:
    """Return the table [training]."""
    precision = training["params_dtype"].choice(tuple(_PRECISIONS))
    executed = training.get("exec_dtype", precision)
    if executed.raw != precision:
        raise executed.error("differs from params_dtype", f'"{precision}"')
    training.get("optimizer_dtype", "float32").choice(("float32",))
    training.get("optimizer_name", "adamw").choice(("adamw", "adam"))
    return {
        "global_batch_size": _whole(training["global_batch_size"]),
        "precision": _PRECISIONS[precision],
    }


def _cluster(hardware: Value) -> dict[str, Any]:
    """Return the table [cluster], with the links that were measured."""
    nodes, devices = _shape(hardware)
    levels = [_level(hardware, "node", devices, (1, devices), (1, devices))]
    if nodes > 1:
        # One device of each node; more of them have links of their own.
        levels.append(_level(hardware, "fabric", nodes, (nodes, 1), (nodes, devices)))
    network = {"kind": "fat-tree", "nic": "device", "levels": levels}
    to_device, bias = hardware["cpu_gpu_comm_params"].each(_number, least=2, most=2)
    to_host, _ = hardware["gpu_cpu_comm_params"].each(_number, least=2, most=2)
    host = {
        "bandwidth_to_device": _bandwidth(to_device),
        "bandwidth_to_host": _bandwidth(to_host),
        "latency": f"{bias * 1e6:.6g} us",
    }
    return {"accelerator": _accelerator(hardware), "network": network, "host": host}


def _shape(hardware: Value) -> tuple[int, int]:
    return _whole(hardware["num_nodes"]), _whole(hardware["num_gpus_per_node"])


def _level(
    hardware: Value,
    name: str,
    fan_out: int,
    rate: tuple[int, int],
    step: tuple[int, int],
) -> dict[str, Any]:
    """Return a level of the network from entries of the link table.

    A ring of ``n`` takes ``n - 1`` steps over two links each.

    Parameters
    ----------
    hardware
        The section.
    name, fan_out
        Of the level.
    rate, step
        Nodes and devices of the groups that bandwidth and bias are those of.
    """
    bandwidth, _ = _entry(hardware, *rate)
    _, bias = _entry(hardware, *step)
    members = min(math.prod(step), _ENTRIES[-1] ** 2)
    latency = max(bias / (2.0 * max(members - 1, 1)), _LEAST_LATENCY)
    return {
        "name": name,
        "fan_out": fan_out,
        "bandwidth": _bandwidth(bandwidth),
        "latency": f"{latency * 1e6:.6g} us",
    }


def _entry(hardware: Value, nodes: int, devices: int) -> tuple[float, float]:
    """Return bandwidth and bias of a group, of a smaller one if none was measured."""
    listed = hardware["gpu_gpu_comm_params"].each(_number, least=32, most=32)
    column = _place(devices)
    for row in range(_place(nodes), -1, -1):
        start = 2 * (len(_ENTRIES) * row + column)
        pair = listed[start], listed[start + 1]
        if pair != _UNPROFILED or row == column == 0:
            return pair
    return _UNPROFILED


def _place(count: int) -> int:
    """Return the largest entry that is no larger than a count."""
    return max(place for place, size in enumerate(_ENTRIES) if size <= count)


def _accelerator(hardware: Value) -> str:
    """Return the device, by its name or by its memory."""
    named = hardware.get("gpu_type", None)
    if named.raw is not None:
        return named.text().lower().replace("_", "-")
    memory = hardware["memory_capacity"]
    device = _MEMORY.get(memory.number())
    if device is None:
        raise InputError(
            "belongs to no device that is known here",
            where=memory.where,
            got=memory.raw,
            expected=f"one of {', '.join(f'{size:g}' for size in _MEMORY)}",
            hint="hardware.gpu_type may name one of " + ", ".join(accelerator_names()),
        )
    return device


def _search(root: Value) -> dict[str, Any]:
    """Return the table [search]: what Mist's tuner is kept from."""
    tuning = Value(root.table().get("tuning") or {}, "tuning")
    if not tuning.get("enabled", False).flag():
        return {}
    table: dict[str, Any] = {}
    if root.get("disable_tp_tuning", False).flag():
        table["tensor_model_parallel_sizes"] = [1]
    if not tuning.get("zero_2_and_3_enabled", True).flag():
        table["zero_stages"] = [0, 1]
    if not tuning.get("activation_checkpointing_tuning_enabled", True).flag():
        table["recompute"] = ["full"]
    offload = ["none"]
    if tuning.get("state_offloading_enabled", True).flag():
        offload += ["optimizer", "weights+gradients+optimizer"]
    if tuning.get("activation_offloading_enabled", True).flag():
        offload += ["activations"]
    return table | {"offload": offload}


class _Strategy:
    """The section ``strategy``: one plan."""

    def __init__(self, root: Value) -> None:
        self._root, self._section = root, root["strategy"]
        self._stages = self._section["stage_strategies"].array(least=1, most=_MOST)
        self._rows = [stage.each(_number, least=10, most=10) for stage in self._stages]
        self._layers = self._counts("layer_partitions")
        self._recomputed = self._counts("gradient_checkpointing")

    def plan(self) -> dict[str, Any]:
        """Return the table [plan]."""
        b, dp, tp = self._sizes()
        self._check_devices(dp * tp)
        self._check_batch(b * dp)
        self._check_ends((b, dp, tp))
        table: dict[str, Any] = {
            "micro_batch_size": b,
            "tensor_model_parallel_size": tp,
            "pipeline_model_parallel_size": len(self._rows),
            "data_parallel_size": dp,
            "num_layers_per_pipeline_stage": self._layers,
            "recompute": ["full" if count else "none" for count in self._recomputed],
            "zero_stage": [self._zero_stage(row) for row in self._rows],
        }
        if any(self._recomputed):
            table["recompute_num_layers"] = self._recomputed
        names = ("weights", "gradients", "optimizer", "activations")
        for place, name in enumerate(names, start=6):
            parts = [row[place] for row in self._rows]
            if any(parts):
                table[f"offload_{name}"] = parts
        return table

    def _counts(self, name: str) -> list[int]:
        """Return whole numbers, one for each stage."""
        stages = len(self._stages)
        listed = self._section[name].each(
            lambda value: value.whole(least=0, most=_MOST), least=stages, most=stages
        )
        return list(listed)

    def _sizes(self) -> tuple[int, int, int]:
        """Return micro-batch, data- and tensor-parallel size, common to all stages."""
        sizes = {tuple(row[:3]) for row in self._rows}
        whole = [size for size in sizes if all(part == int(part) > 0 for part in size)]
        if len(sizes) > 1 or not whole:
            raise InputError(
                "stages have unlike sizes",
                where="strategy.stage_strategies",
                got=[list(size) for size in sorted(sizes)],
                expected="one micro-batch, data- and tensor-parallel size for all",
                hint="strategy.enabled: false leaves the plan out",
            )
        b, dp, tp = (int(part) for part in whole[0])
        return b, dp, tp

    def _zero_stage(self, row: tuple[float, ...]) -> int:
        """Return the stage of ZeRO, none without replicas."""
        _, dp, _, weights, gradients, states = row[:6]
        if dp == 1:
            return 0
        if weights:
            return 3
        return 2 if gradients else int(bool(states))

    def _check_devices(self, size: int) -> None:
        """Refuse stages on other devices than their sizes say, or on too many."""
        assigned = self._section["device_assignment"].array(least=1, most=_MOST)
        meshes = [one.each(_whole, least=2, most=2) for one in assigned]
        nodes, devices = _shape(self._root["hardware"])
        counts = [math.prod(mesh) for mesh in meshes]
        if counts != [size] * len(self._rows) or sum(counts) > nodes * devices:
            raise InputError(
                "does not go with the sizes of the stages and the cluster",
                where="strategy.device_assignment",
                got=[list(mesh) for mesh in meshes],
                expected=f"{len(self._rows)} meshes of {size} of "
                f"{nodes * devices:,} devices",
            )

    def _check_batch(self, per_step: int) -> None:
        steps = self._section["gradient_accumulation_steps"]
        batch = _whole(self._root["training"]["global_batch_size"])
        if _whole(steps) * per_step != batch:
            raise steps.error(
                "does not make the global batch",
                f"{batch:,} sequences over {per_step:,} in each step",
            )

    def _check_ends(self, sizes: tuple[int, int, int]) -> None:
        """Refuse an embedding and a head that are sharded unlike the stages."""
        kind = self._section.get("pre_post_strategy", "preset")
        array = self._section.get("pre_post_strategy_array", None)
        if kind.raw != "preset" or array.raw is None:
            return
        row = array.each(_number, least=10, most=10)
        if row[:3] != sizes or any(row[6:]):
            raise InputError(
                "embedding and head are not as the stages",
                where=array.where,
                got=list(row),
                expected=f"{list(sizes)} first, and nothing on hosts",
                hint="strategy.enabled: false leaves the plan out",
            )


def _whole(value: Value) -> int:
    return value.whole(least=1, most=_MOST)


def _number(value: Value) -> float:
    return value.number()


def _bandwidth(gigabytes: float) -> str:
    """Return one of Mist's bandwidths with a unit."""
    return f"{gigabytes * _GIGABYTE / 1e9:.9g} GB/s"
