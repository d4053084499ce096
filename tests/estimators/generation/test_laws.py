"""Laws of decoding kernels against measurements that were held out of their fit."""

import csv
import statistics
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from estimators.generation.laws import (
    AttentionLaw,
    all_reduce_curves,
    held_out_error,
    small_product_factor,
)
from estimators.operators.shape_tables import product_roofline, product_table
from topologies import load_accelerator


class Kernel(NamedTuple):
    kind: str
    accelerator: str
    width: int
    batch: int
    heads: int
    groups: int
    size: int
    keys: int
    microseconds: float


@cache
def kernels() -> list[Kernel]:
    """Return kernels of AIConfigurator (see decode_laws.toml), 25 of each table."""
    with Path(__file__).with_name("kernels.csv").open(encoding="utf-8") as file:
        kinds = Kernel.__annotations__.values()
        return [
            Kernel(
                *(kind(text) for kind, text in zip(kinds, row.values(), strict=True))
            )
            for row in csv.DictReader(file)
        ]


def law_time(row: Kernel) -> float:
    """Return what a law says of one kernel [s]."""
    latent = row.kind == "latent"
    law = AttentionLaw.of(load_accelerator(row.accelerator), row.width, latent=latent)
    width = row.size if latent else 2 * row.groups * row.size
    flops = 2.0 * (576 + 512) * row.heads if latent else 0.0
    per_key = law.per_key(width * row.width, flops)
    queries = row.batch * row.heads * row.size
    return law.kernel + law.per_query * queries + row.batch * row.keys * per_key


TABLES = sorted({row[:3] for row in kernels() if row.kind != "product"})


@pytest.mark.parametrize("table", TABLES, ids=lambda table: "-".join(map(str, table)))
def test_attention_is_as_near_as_the_table_of_laws_says(table):
    rows = [row for row in kernels() if row[:3] == table]
    assert len(rows) == 25
    errors = [abs(law_time(row) * 1e6 / row.microseconds - 1) for row in rows]
    held_out = held_out_error(table[1], table[2], latent=table[0] == "latent")
    # 25 of some thousand rows scatter about their median.
    assert statistics.median(errors) < 0.03 + 1.6 * held_out
    assert held_out < 0.2


@pytest.mark.parametrize("kind", ["attention", "latent"])
def test_large_caches_are_within_10_percent_in_16_bits_on_hopper(kind):
    rows = [
        row
        for row in kernels()
        if row.kind == kind
        and row.accelerator in {"h100-sxm", "h200"}
        and row.width == 2
        and row.microseconds > 40
    ]
    assert len(rows) >= 10
    errors = [abs(law_time(row) * 1e6 / row.microseconds - 1) for row in rows]
    assert statistics.median(errors) < 0.10


@pytest.mark.parametrize("width", [2, 1])
@pytest.mark.parametrize("name", ["a100-80gb", "h100-sxm", "h200", "b200"])
def test_small_products_are_within_15_percent(name, width):
    rows = [row for row in kernels() if row[:3] == ("product", name, width)]
    if not rows:
        assert "fp8" not in load_accelerator(name).peak_flops
        return
    chip, stored = load_accelerator(name), "bf16" if width == 2 else "fp8"
    table, errors = product_table(name, stored), []
    rates = chip.peak_flops[stored], chip.memory_bandwidth, (float(width), 2.0)
    for row in rows:
        sizes = row.batch, row.heads, row.groups
        time = table.slowdown(*sizes) * product_roofline((*sizes, 1.0), *rates)[1]
        time *= small_product_factor(chip, stored, row.batch)
        errors.append(abs(time * 1e6 / row.microseconds - 1))
    assert statistics.median(errors) < 0.15


def test_the_factor_of_small_products_fades():
    chip = load_accelerator("h200")
    whole = small_product_factor(chip, "fp8", 1)
    assert whole == small_product_factor(chip, "fp8", 64) < 0.8
    assert small_product_factor(chip, "fp8", 128) == pytest.approx(whole**0.5)
    assert small_product_factor(chip, "fp8", 256) == 1.0
    assert small_product_factor(chip, "fp16", 8) == small_product_factor(
        chip, "bf16", 8
    )


def test_engines_add_up_small_messages_faster_than_a_library():
    for name, ranks in (("a100-80gb", 8), ("h100-sxm", 8), ("gb200", 4)):
        chip = load_accelerator(name)
        curves = all_reduce_curves(name)
        time = curves.time("all_reduce", ranks, 65536.0, chip.interconnect_bandwidth)
        assert 3e-6 < time < 10e-6
    assert all_reduce_curves("l40s") is None


def test_chips_without_tables_take_a_relative_at_their_own_bandwidth():
    h20, h100 = (load_accelerator(name) for name in ("h20", "h100-sxm"))
    fitted, like = (AttentionLaw.of(chip, 2.0, latent=False) for chip in (h20, h100))
    assert fitted.kernel == like.kernel
    scale = h20.memory_bandwidth / h100.memory_bandwidth
    assert fitted.bandwidth == pytest.approx(like.bandwidth * scale)
    l40s = AttentionLaw.of(load_accelerator("l40s"), 2.0, latent=True)
    assert l40s.kernel == AttentionLaw.of(h100, 2.0, latent=True).kernel
