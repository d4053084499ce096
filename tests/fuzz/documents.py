"""Other files that commands read, valid and small.

Instances of the NEST artifact are those that the planner's tests draw; plans and
reports of results are made by the commands themselves.
"""

from hypothesis import strategies as st

from tests.fuzz.formats import Tree
from tests.nestsim.features.validation.validation_rows import GPT, MEMORY

LINKS = "links.toml"
PROFILE = "profile.json"

COLLECTIVE = {
    "row_id": "one",
    "source_key": "own",
    "accelerator": "H100-80GB-SXM",
    "collective": "all_reduce",
    "num_ranks": "8",
    "num_nodes": "1",
    "link": "NVLink4",
    "message_bytes": "1048576",
    "time_us": "45.5",
    "busbw_GBps": "40.1",
}
"""A row about a collective."""


@st.composite
def link_files(draw: st.DrawFn) -> tuple[Tree, int]:
    """Draw a list of links, with its number of devices: switches in a tree or ring."""
    num_devices = draw(st.sampled_from([4, 2, 8, 6, 1]))
    num_switches = draw(st.sampled_from([1, 2, 3]))
    are_named = draw(st.booleans())
    bandwidths = st.sampled_from(["50 GB/s", "100 Gbit/s", "15.75 GB/s"])
    names = [f"gpu {n}" for n in range(num_devices)] if are_named else num_devices
    links: list[Tree] = []

    def join(source: Tree, target: Tree) -> None:
        bandwidth, latency = draw(bandwidths), draw(st.sampled_from(["1 us", "0 s"]))
        ends = {"source": source, "target": target}
        links.append({**ends, "bandwidth": bandwidth, "latency": latency})

    for number in range(num_devices):
        device = names[number] if isinstance(names, list) else number
        join(device, f"switch {number % num_switches}")
    for number in range(num_switches - 1):
        join(f"switch {number}", f"switch {number + 1}")
    if num_switches == 3 and draw(st.booleans()):
        join("switch 2", "switch 0")
    if draw(st.integers(0, 4)) == 0:
        links[0]["bidirectional"] = True
    return {"devices": names, "links": links}, num_devices


@st.composite
def hugging_face_configs(draw: st.DrawFn) -> Tree:
    """Draw a ``config.json`` of one of the families."""
    kind = draw(
        st.sampled_from(["llama", "mistral", "mixtral", "gpt2", "gpt_neox", "bert"])
    )
    layers, hidden = draw(st.sampled_from([2, 4])), draw(st.sampled_from([64, 256]))
    if kind == "gpt2":
        sizes = {"n_embd": hidden, "n_positions": 128, "n_layer": layers, "n_head": 4}
        return {"model_type": kind, **sizes, "vocab_size": 1000}
    config: dict[str, Tree] = {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
        "vocab_size": 1000,
    }
    if kind in {"mistral", "mixtral"}:
        config |= {"num_key_value_heads": 2, "sliding_window": None}
    if kind == "mixtral":
        config |= {"num_local_experts": 4, "num_experts_per_tok": 2}
    if kind == "llama" and draw(st.booleans()):
        config |= {"num_key_value_heads": 2, "tie_word_embeddings": True}
    return config


@st.composite
def rank_times(draw: st.DrawFn) -> dict[str, Tree]:
    """Draw compute times of ranks in steps: CSV, traces of torch, or dumps of NCCL."""
    ranks, steps = draw(st.sampled_from([(4, 8), (5, 9), (3, 8)]))
    time = st.sampled_from([0.1, 0.2, 0.25])
    kind = draw(st.sampled_from(["CSV", "CSV", "traces", "dumps"]))
    if kind == "CSV":
        rows = [
            [str(rank), str(step), f"{draw(time)} s", "node 1"]
            for rank in range(ranks)
            for step in range(steps)
        ]
        return {"times.csv": [["rank", "step", "time", "node"], *rows]}

    def recorded(rank: int) -> Tree:
        entries = [
            {
                "process_group": ["0", "default_pg"],
                "collective_seq_id": step,
                "time_discovered_completed_ns": 10**9 * step,
                "duration_ms": 1e3 * draw(time),
            }
            for step in range(steps)
        ]
        return {"rank": rank, "entries": entries}

    def profiled(rank: int) -> Tree:
        events: list[Tree] = []
        for step in range(steps):
            begin, span = {"ph": "X", "ts": 1e6 * step}, {"cat": "gpu_user_annotation"}
            kernel = {"name": "gemm", "cat": "kernel", "dur": 1e6 * draw(time)}
            events.append({**begin, **span, "name": f"ProfilerStep#{step}", "dur": 9e5})
            events.append({**begin, **kernel})
        return {"distributedInfo": {"rank": rank}, "traceEvents": events}

    made = profiled if kind == "traces" else recorded
    return {f"{kind}/rank{rank}.json": made(rank) for rank in range(ranks)}


_SHAPES = {
    "linear": [[256, 768, 256, 1], [256, 256, 256, 1], [256, 4096, 256, 1]],
    "matmul": [[128, 128, 64, 8], [128, 64, 128, 8]],
    "attention": [[2, 4, 128, 64]],
    "softmax": [[2, 4, 128, 128]],
    "rotary": [[2, 4, 128, 64]],
    "repeat": [[2, 4, 128, 64]],
    "add": [[2, 128, 256]],
    "layernorm": [[2, 128, 256]],
    "rmsnorm": [[2, 128, 256]],
    "gelu": [[2, 128, 1024]],
    "silu": [[2, 128, 1024]],
    "multiply": [[2, 128, 1024]],
    "dropout": [[2, 128, 256]],
    "embedding": [[2, 128, 256]],
    "cross entropy": [[2, 128, 4096]],
    "top-k": [[256, 8]],
    "dispatch": [[256, 256]],
    "combine": [[512, 256]],
}
"""Operation -> shapes that `nestsim profile --quick` measures."""


@st.composite
def profiles(draw: st.DrawFn) -> Tree:
    """Draw a profile that has every operation, in bf16, fp16 and fp32."""
    speed = draw(st.sampled_from([1e12, 1e13]))
    rows = []
    for precision in ("bf16", "fp16", "fp32"):
        for operation, shapes in _SHAPES.items():
            for shape in shapes:
                size = 1.0
                for count in shape:
                    size *= count
                has_flops = operation in {"linear", "matmul", "attention"}
                time = {"seconds": 2 * size / speed, "spread": 1e-7, "samples": 5}
                rows.append(
                    {
                        "operation": operation,
                        "precision": precision,
                        "shape": shape,
                        "flops": 2 * size if has_flops else 0.0,
                        "num_bytes": 8 * size,
                        "forward": time,
                        "backward": {**time, "seconds": 4 * size / speed},
                        "weight_gradient": time if operation == "linear" else None,
                    }
                )
    return {
        "format": "nestsim profile 1",
        "device": "a device",
        "driver": "1.0",
        "date": "2026-03-31",
        "torch_version": "2.9",
        "num_threads": 0,
        "launch_time": 3e-6,
        "num_skipped": 0,
        "measurements": rows,
    }


_OTHERS = {
    "tp": ["1", "2", "4"],
    "pp": ["1", "2"],
    "global_batch": ["16", "32"],
    "micro_batch": ["1", "2"],
    "layers": ["4", "8", ""],
    "hidden": ["256", "1024"],
    "seq_len": ["128", "1024"],
    "software": ["Megatron-LM", "DeepSpeed", "FSDP", "MaxText", ""],
    "recompute": ["full", "selective", "none", "", "2/3"],
    "zero_or_fsdp": ["ZeRO-1", "FSDP", "none", ""],
    "precision": ["bf16", "fp16", "fp32", "fp8", ""],
    "accelerator": [
        "A100-80GB-SXM",
        "H100-80GB-SXM",
        "TPU v5p",
        "V100-32GB",
        "L4-24GB",
    ],
    "inter_node_net": ["8x200 Gb/s", "800 Gb/s per node", "400 Gb/s per GPU", ""],
    "vpp": ["1", "2", ""],
    "dp": ["4", "", "2/4"],
    "value_gib": ["3.5", "40"],
    "metric": ["torch max allocated", "params+grads+optimizer", "activations", "OOM"],
    "where": ["stage 0", "max over GPUs", ""],
    "collective": [
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "alltoall",
        "sendrecv",
    ],
    "num_ranks": ["2", "8", "16"],
    "num_nodes": ["1", "2", ""],
    "message_bytes": ["1", "1048576", "8589934592"],
    "link": ["NVLink4", "InfiniBand 8x400 Gb/s", "PCIe", ""],
}
"""Column -> values, most of which go together."""


@st.composite
def measurements(draw: st.DrawFn) -> Tree:
    """Draw the rows of a file about time, memory or collectives."""
    base = draw(st.sampled_from([GPT, MEMORY, COLLECTIVE]))
    changeable = [column for column in base if column in _OTHERS]
    rows = [list(base)]
    for number in range(draw(st.sampled_from([1, 2, 3]))):
        row = {**base, "row_id": f"row {number}"}
        changed = st.lists(st.sampled_from(changeable), max_size=4, unique=True)
        for column in draw(changed):
            row[column] = draw(st.sampled_from(_OTHERS[column]))
        rows.append(list(row.values()))
    return rows
