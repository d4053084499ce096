"""Tables of latent attention, and of the convolution of Mamba-2 layers.

Latent attention was measured with queries of 192 and values of 128 channels: what
DeepSeek V2 and V3, Kimi K2 and Moonlight have. Its tables are those of attention with
heads of 160, the mean of both, and differ from others by their variant. The fastest of
its kernels counts, without what some of them do beside.

Of Mamba-2 only the convolution was measured, not the scan. Its kernel reads and writes
every channel once, and is slower than the memory: on Blackwell by a factor of two.
Short sequences take longer than the table says, which knows the traffic alone.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd

from estimators.operators.shape_tables import GRIDS, KERNEL_TIME, product_roofline
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
