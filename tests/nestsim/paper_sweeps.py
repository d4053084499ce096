"""The tables of docs/paper.md that come from sweeps; see `tests.nestsim.paper_page`."""

import csv
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

Cells = Iterable[list[str]]
"""Rows of a table."""

Point = Mapping[str, str]
"""A row of ``points.csv``."""

COMMUNICATING = {
    "gpt3_175b": "GPT-3 175B",
    "llama3_70b": "Llama 3 70B",
    "mixtral_8x7b": "Mixtral 8x7B",
}

LAYER_MEMORY = {
    "gpt3_175b": ("GPT-3 175B", 10.1, 9.7, "t 4: 1.81 + 5.45"),
    "llama3_70b": ("Llama 3 70B", 24.8, 22.9, "7.63 + 18.76"),
    "llama2_7b": ("Llama 2 7B", 9.8, 8.1, "1.33 + 9.07"),
    "bert_large": ("BERT-Large", 0.21, 0.21, "0.05 + 0.17"),
}
"""Table 6 of the paper: name, Alpa's and NEST's layer [GB]; and what the artifact's
instance files have for a layer, weights and gradients (twice ``parameterSize``) and
``activationSize`` [GB]."""

SMALL_MEMORY = {
    "llama3_70b": ("Llama 3 70B, 24 GB", "641 devices, 81,1,1; ZeRO-3 over 8"),
    "bert_large": ("BERT-Large, 120 MB", "980 devices, 25,10,1; ZeRO-3 over 4"),
}
"""Table 7 of the paper: what is trained, and NEST's plan for it."""

RESTRICTED = {
    "bert_large": ("BERT-Large (no recompute)", "1.48"),
    "llama2_7b": ("Llama 2 7B", "1.25"),
    "mixtral_8x7b": ("Mixtral 8x7B", "2.01"),
    "gpt3_175b": ("GPT-3 175B", "1.34"),
}
"""Name, and the published ratio of Manual on 512 devices."""

TWO_ENGINES = {
    "bert_large": "BERT-Large",
    "llama2_7b": "Llama 2 7B",
    "llama3_70b": "Llama 3 70B",
    "mixtral_8x7b": "Mixtral 8x7B",
    "gpt3_175b": "GPT-3 175B",
}


def swept(folder: Path) -> list[dict[str, str]]:
    """Return the points of a sweep; nothing if there is none."""
    path = folder / "points.csv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def seconds(point: Point) -> float:
    """Return the replayed time of a point [s]."""
    return float(point.get("simulated_iteration_time_s") or "nan")


def plan_sizes(plan: Mapping[str, Any]) -> str:
    """Write a table [plan] as the paper's {p, d, t, s}, or {p, d, t, s, e}."""
    tensor = plan["tensor_model_parallel_size"]
    experts = plan.get("expert_model_parallel_size", 1)
    sizes = [
        plan["pipeline_model_parallel_size"],
        plan["data_parallel_size"] // experts,
        tensor,
        tensor if plan.get("sequence_parallel") else 1,
        *([experts] if "expert_model_parallel_size" in plan else []),
    ]
    return ",".join(map(str, sizes))


def figure2(results: Path) -> Cells:
    """Return the share of the step that a free network takes away, by strategy."""
    for model, name in COMMUNICATING.items():
        times: dict[tuple[str, str], list[float]] = {}
        misfits = set()
        for point in swept(results / f"fig2_{model}"):
            key = (plan_sizes(json.loads(point["plan"])), point["plan.recompute"])
            times.setdefault(key, []).append(seconds(point))
            if point["verdict"] == "infeasible":
                misfits.add(key)
        for sizes in dict.fromkeys(sizes for sizes, _ in times):
            cells = [name, sizes]
            for recompute in ("none", "full"):
                real, free = times[sizes, recompute]
                mark = "*" if (sizes, recompute) in misfits else ""
                cells.append(f"{100.0 * (1.0 - free / real):.0f} %{mark}")
                cells.append(f"{real:.4g} s")
            yield cells


def figure10(results: Path) -> Cells:
    """Return what is predicted for one node, by micro-batch."""
    for size in (4, 8):
        for point in swept(results / f"fig10_gpt3_{size}"):
            yield [
                str(size),
                point["plan.micro_batch_size"],
                f"{1e3 * seconds(point):.1f} ms",
                f"{100.0 * float(point['simulated_mfu']):.1f} %",
                f"{float(point['simulated_peak_memory_bytes']) / 2**30:.1f} GiB",
            ]


def table6(results: Path) -> Cells:
    """Return the memory of one block: the paper's, the artifact's, ours."""
    for model, (name, alpa, nest, artifact) in LAYER_MEMORY.items():
        peak = {
            (point["model.num_layers"], point["training.optimizer"]): float(
                point["simulated_peak_memory_bytes"]
            )
            for point in swept(results / f"table6_{model}")
        }
        ours = ["-", "-", "-"]
        if peak:
            adam, short = (
                peak["2", optimizer] - peak["1", optimizer]
                for optimizer in ("adam", "adam-bf16")
            )
            # The optimizers differ by 8 B a parameter; weight and gradient have 4 B.
            weights = 0.5 * (adam - short)
            activations = short - 2.0 * weights
            parts = (weights, activations, weights + activations)
            ours = [f"{part / 1e9:.2f}" for part in parts]
        yield [name, str(alpa), str(nest), artifact, *ours]


def table7(results: Path) -> Cells:
    """Return what fits under a small memory, with ZeRO and without."""
    for model, (name, printed) in SMALL_MEMORY.items():
        for point in swept(results / f"table7_{model}"):
            stages = json.loads(point["search.zero_stages"])
            found = ["does not fit", "-"]
            if point["state"] == "done":
                sizes = ",".join(
                    point[f"{key}_parallel_size"]
                    for key in ("pipeline_model", "data", "tensor_model")
                )
                zero = point["zero_stage"].replace("mixed", "of several stages")
                found = [
                    f"{point['devices_used']} devices, {sizes}; ZeRO {zero}",
                    f"{seconds(point):.4g} s",
                ]
            with_zero = len(stages) > 1
            yield [
                name,
                point["training.optimizer"],
                "yes" if with_zero else "no",
                printed if with_zero else "does not fit",
                *found,
            ]


def restricted(results: Path) -> Cells:
    """Return `nest` and the artifact's Manual under the artifact's restrictions."""
    for model, (name, printed) in RESTRICTED.items():
        points = swept(results / f"restricted_fig5_{model}_512")
        times = {point["search.planner"]: seconds(point) for point in points}
        if not times:
            yield [name, "-", "-", "-", printed]
            continue
        nest, fixed = times["nest"], times["fixed"]
        words = [f"{time:.4g} s" for time in (nest, fixed)]
        yield [name, *words, f"{fixed / nest:.2f}", printed]


def engines(results: Path) -> Cells:
    """Return what two engines take off the step of the artifact's Manual plans."""
    for model, name in TWO_ENGINES.items():
        times = {
            point["cluster.accelerator.vector_engine"]: seconds(point)
            for point in swept(results / f"engines_fig5_{model}_128")
        }
        if not times:
            yield [name, "-", "-", "-"]
            continue
        one, two = times["False"], times["True"]
        yield [
            name,
            f"{one:.4g} s",
            f"{two:.4g} s",
            f"-{100.0 * (1 - two / one):.1f} %",
        ]


SWEPT_TABLES: Mapping[str, Callable[[Path], Cells]] = {
    "figure 2": figure2,
    "figure 10": figure10,
    "table 6": table6,
    "table 7": table7,
    "restricted": restricted,
    "engines": engines,
}
"""Marker of the page -> the rows of its table."""
