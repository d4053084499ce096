"""Tables of latent attention, of Mamba-2's convolution, and of the gated delta rule.

Latent attention was measured with queries of 192 and values of 128 channels: what
DeepSeek V2 and V3, Kimi K2 and Moonlight have. Its tables are those of attention with
heads of 160, the mean of both, and differ from others by their variant. The fastest of
its kernels counts, without what some of them do beside.

Of Mamba-2 only the convolution was measured, not the scan. Its kernel reads and writes
every channel once, and is slower than the memory: on Blackwell by a factor of two.
Short sequences take longer than the table says, which knows the traffic alone.

Of the gated delta rule the triton kernels of flash-linear-attention were measured, with
TensorRT-LLM for 16 heads of values or more in all sequences, with SGLang for any
number. TensorRT-LLM's take less, by a tenth on B200 and a third on H100, so SGLang's
count where there are no others. FlashInfer's kernel, which vLLM has, keeps nothing for
a backward pass.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd

from estimators.operators.shape_tables import (
    GRIDS,
    KERNEL_TIME,
    product_roofline,
    recurrence_roofline,
)
from estimators.tracing.recurrences import RECURRENCES
from nestsim.features.calibration.operators import (
    CHIPS,
    RESULT_BYTES,
    Prompts,
    Shapes,
    hat_matrix,
)
from topologies.accelerators import Accelerator, load_accelerator
from topologies.arrays import FloatArray

WIDTHS = 192, 128
"""Width of a query's and of a value's head of latent attention that was measured."""

RANK, UNTURNED = 512, 128
"""Numbers that keys and values of a token are made of; channels of a key that are made
of them, where the others are rotary ones."""

KERNELS: Mapping[str, bool] = MappingProxyType(
    {
        "default": False,
        "trtllm_mla": False,
        "vllm_flash_attn_mla": True,
    }
)
"""Kernel of latent attention -> whether its times hold the product that makes keys and
values, and their copies, as vLLM 0.14's ``MLACommonImpl.forward`` does. SGLang's on
Hopper and Ada attends to the latents themselves, which no training does; vLLM's on
Ampere and Ada is slower, and was measured for shapes that others were not."""

PROMPTS = 256, 16384
"""Tokens of the shortest and of the longest prompts that tables are made of: those that
are on the grid."""

SHORTEST_SEQUENCE = 1024
"""Tokens of the shortest sequences that a table of convolutions is made of."""

FEWEST_HEADS = 16
"""Heads of values of all sequences from which on TensorRT-LLM was measured."""

SHORTEST_SCAN = 128
"""Tokens of the shortest sequences that a table of the gated delta rule is made of."""


def latent_shapes(
    data: Path, products: Mapping[str, FloatArray]
) -> Iterator[tuple[str, Shapes]]:
    """Yield name and shapes of each table of latent attention in bf16.

    Parameters
    ----------
    data
        Folder of parquet files.
    products
        Name of a table of products -> its nodes.
    """
    rows = pd.read_parquet(data / "latent_attention_forward.parquet")
    rows = rows[(rows.kv_cache_dtype == "bfloat16") & rows.isl.between(*PROMPTS)]
    keys = ["batch_size", "isl", "num_heads"]
    for system, device in CHIPS.items():
        chip = load_accelerator(device)
        group = rows[(rows.system == system) & rows.kernel_source.isin(list(KERNELS))]
        batch, length, heads = group[keys].to_numpy(np.float64).T
        beside = _keys_and_values(
            batch * length, heads, chip, products[f"product/{chip.name}/bf16"]
        )
        times = group.latency_ms.to_numpy() * 1e-3
        times -= np.where(group.kernel_source.map(KERNELS), beside, 0.0)
        best = group.assign(time=times).groupby(keys).time.min().reset_index()
        batch, length, heads = best[keys].to_numpy(np.float64).T
        prompts = Prompts(batch, length, heads, heads, length)
        name = f"attention/{chip.name}/{sum(WIDTHS) // 2}/latent"
        yield name, prompts.shapes(WIDTHS, chip, best.time.to_numpy())


def _keys_and_values(
    tokens: FloatArray, heads: FloatArray, chip: Accelerator, nodes: FloatArray
) -> FloatArray:
    """Return how long it takes to make keys and values of latents [s]."""
    query, value = WIDTHS
    sizes = np.stack(
        [tokens, heads * (UNTURNED + value), np.full(tokens.size, float(RANK))], axis=1
    )
    slower = np.exp(hat_matrix(GRIDS["product"], sizes) @ nodes.ravel())
    _, roofline = product_roofline(
        (*sizes.T, np.ones(tokens.size)),
        chip.peak_flops["bf16"],
        chip.memory_bandwidth,
        (RESULT_BYTES, RESULT_BYTES),
    )
    copied = 2.0 * RESULT_BYTES * tokens * heads * query / chip.memory_bandwidth
    return np.asarray(slower * roofline + copied)


def convolution_shapes(data: Path) -> Iterator[tuple[str, Shapes]]:
    """Yield name and shapes of each table of convolutions in bf16."""
    rows = pd.read_parquet(data / "mamba2_forward.parquet")
    rows = rows[rows.kernel_source == "causal_conv1d_fn"]
    rows = rows[rows.seq_len >= SHORTEST_SEQUENCE]
    for system, device in CHIPS.items():
        group = rows[rows.system == system]
        if group.empty:
            continue
        chip = load_accelerator(device)
        states = 2 * group.n_groups * group.d_state
        channels = group.nheads * group.head_dim + states
        moved = 2.0 * RESULT_BYTES * (group.num_tokens * channels).to_numpy(np.float64)
        roofline = KERNEL_TIME + moved / chip.memory_bandwidth
        logs = np.log(group.latency_ms.to_numpy() * 1e-3 / roofline)
        yield f"convolution/{chip.name}", Shapes(moved[:, None], logs, None)


def recurrence_shapes(data: Path) -> Iterator[tuple[str, Shapes]]:
    """Yield name and shapes of each table of the gated delta rule in bf16."""
    rows = pd.read_parquet(data / "gated_delta_forward.parquet")
    rows = rows[rows.kernel_source == "chunk_gated_delta_rule"]
    few = rows.batch_size * rows.num_v_heads < FEWEST_HEADS
    rows = rows[(rows.framework == "TRTLLM") | few]
    rows = rows[rows.seq_len >= SHORTEST_SCAN]
    keys = ["batch_size", "seq_len", "num_k_heads", "num_v_heads"]
    keys += ["head_k_dim", "head_v_dim"]
    best = rows.groupby(["system", *keys]).latency_ms.min().reset_index()
    rule = RECURRENCES["gated delta rule"]
    for system, device in CHIPS.items():
        group = best[best.system == system]
        if group.empty:
            continue
        chip = load_accelerator(device)
        tokens = group.seq_len.to_numpy(np.float64)
        heads = (group.batch_size * group.num_v_heads).to_numpy(np.float64)
        key, value = group[["head_k_dim", "head_v_dim"]].to_numpy(np.float64).T
        flops = heads * rule.flops(rule.forward, tokens, key, value)
        moved = heads * tokens * rule.elements(rule.forward, key, value)
        roofline = recurrence_roofline(
            flops, RESULT_BYTES * moved, chip.peak_flops["bf16"], chip.memory_bandwidth
        )
        logs = np.log(group.latency_ms.to_numpy() * 1e-3 / roofline)
        sizes = np.stack([tokens, heads], axis=1)
        yield f"recurrence/{chip.name}", Shapes(sizes, logs, None)
