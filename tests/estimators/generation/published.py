"""Published throughput of inference engines beside what is predicted for it.

``python -m tests.estimators.generation.published`` writes the table of
docs/generation.md anew.

TensorRT-LLM measures itself (``docs/source/performance/perf-overview.md`` of
github.com/NVIDIA/TensorRT-LLM, versions 0.14 and 1.0): requests of one length come all
at once, ``Total Output Throughput`` [token/s]. All engines there run up to 4,096 (0.14)
or 2,048 (1.0) requests of 8,192 tokens a step and never put one out again; with weights
in 8 or 4 bits the cache has 8 bits. Rows of 1.0 with experts have attention in parallel
over data.
"""

import csv
import statistics
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from estimators.generation.engine import EngineSetup
from estimators.generation.lengths import Lengths
from estimators.generation.rollout import rollout
from estimators.models.library import load_model
from estimators.platform import Platform
from topologies import Network, RailSpec, build_network, load_accelerator

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "generation.md"
BEGIN, END = "<!-- generation-published -->", "<!-- end -->"


class Row(NamedTuple):
    """One published measurement."""

    engine: str
    model: str
    accelerator: str
    tp: int
    ep: int
    dtype: str
    prompt: int
    response: int
    requests: int
    sequences: int
    tokens_per_second: float

    @property
    def setup(self) -> tuple[str, ...]:
        """What rows of one line of the table have in common."""
        split = f"tp {self.tp}" if self.ep == 1 else f"ep {self.ep}"
        return self.engine, self.model, self.accelerator, split, self.dtype


@cache
def rows() -> tuple[Row, ...]:
    """Return all measurements."""
    path = Path(__file__).with_name("published.csv")
    with path.open(encoding="utf-8", newline="") as file:
        kinds = Row.__annotations__.values()
        return tuple(
            Row(*(kind(text) for kind, text in zip(kinds, line.values(), strict=True)))
            for line in csv.DictReader(file)
        )


@cache
def node() -> Network:
    """Return one node of eight devices joined by NVLink."""
    return build_network(
        RailSpec(
            devices_per_node=8,
            node_bandwidth=450e9,
            node_latency=1e-6,
            nic_bandwidth=50e9,
            nic_latency=2e-6,
            spine_latency=2e-6,
            nodes_per_unit=1,
            num_units=1,
        )
    )


@cache
def platform(accelerator: str) -> Platform:
    """Return a device without a framework."""
    return Platform(accelerator=load_accelerator(accelerator))


@cache
def predicted(row: Row) -> float:
    """Return the throughput predicted for a measurement [token/s]."""
    engine = EngineSetup(
        tp=row.tp,
        ep=row.ep,
        dtype=row.dtype,
        kv_dtype="bf16" if row.dtype == "fp16" else "fp8",
        max_sequences=row.sequences,
        shares_prompts=False,
        reserves=True,
    )
    return rollout(
        load_model(row.model, sequence_length=32768),
        platform(row.accelerator),
        node(),
        engine,
        row.requests,
        1,
        Lengths.fixed(row.prompt),
        Lengths.fixed(row.response),
        1,
        0,
    ).tokens_per_second


def error(row: Row) -> float:
    """Return the signed error of a prediction, as a part of what was measured."""
    return predicted(row) / row.tokens_per_second - 1.0


def table() -> str:
    """Return the table of docs/generation.md."""
    by_setup: dict[tuple[str, ...], list[float]] = {}
    for row in rows():
        by_setup.setdefault(row.setup, []).append(error(row))
    head = ("engine", "model", "accelerator", "split", "format")
    return "\n".join(_lines((*head, "rows", "median error", "all rows"), by_setup))


def _lines(
    head: tuple[str, ...], by_setup: dict[tuple[str, ...], list[float]]
) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for setup, errors in by_setup.items():
        middle = 100 * statistics.median(errors)
        span = f"{100 * min(errors):+.0f} to {100 * max(errors):+.0f} %"
        cells = (*setup, str(len(errors)), f"{middle:+.0f} %", span)
        yield f"| {' | '.join(cells)} |"
    every = [error for errors in by_setup.values() for error in errors]
    size = 100 * statistics.median(abs(error) for error in every)
    within = sum(abs(error) <= 0.15 for error in every)
    yield (
        f"\nOf all {len(every)} rows the median error is {size:.0f} % in size, "
        f"{100 * statistics.median(every):+.0f} % with its sign; "
        f"{within} are within 15 %."
    )


def written() -> str:
    """Return the table as it stands on the page."""
    text = PAGE.read_text(encoding="utf-8")
    return text.partition(BEGIN)[2].partition(END)[0].strip()


def main() -> None:
    """Write the table anew."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
