"""The published figures that come with nestsim: cited, consistent, expressible."""

import re
from pathlib import Path

import pytest

from nestsim.features.validation.case import read_case
from nestsim.features.validation.columns import RowRefusedError, read_measurements
from nestsim.features.validation.document import NUMBERS
from nestsim.features.validation.runner import TABLES, published_measurements
from tests import failures

ROOT = Path(__file__).parents[4]

TIME, MEMORY = published_measurements()
ROWS = {row.row_id: row for table in (TIME, MEMORY) for row in table.rows}

CITATION = re.compile(
    # Author or organisation, title, year; then where: an article's number with its
    # table or section, or a file of a repository at a commit.
    r".+, .+, (?:[A-Za-z]+ )?20\d\d, .*"
    r"(?:arXiv:\d{4}\.\d{5}(?:v\d)?, (?:table|section) \d"
    r"|github:[\w.-]+/[\w.-]+@[0-9a-f]{10}:\S+)"
)


def number(row, column):
    value = row.number(column)
    assert value is not None, f"{row.row_id}: {column}"
    return value


def rows_of(source):
    return [row for row in TIME.rows if row.source == source]


def refusal(row):
    try:
        read_case(row)
    except RowRefusedError as error:
        return error.code, error.reason
    return "", ""


def named(rows):
    return failures.over("row", rows, ids=lambda row: row.row_id)


def test_there_are_about_sixty_times_and_fifteen_sizes():
    assert (TIME.kind, MEMORY.kind) == ("throughput", "memory")
    assert 60 <= len(TIME.rows) <= 80
    assert 15 <= len(MEMORY.rows) <= 20
    assert len({row.source for row in TIME.rows}) >= 15


@named(ROWS.values())
def test_every_row_says_where_it_is_published(row):
    assert CITATION.match(row.words("source")), row.words("source")


@named(ROWS.values())
def test_sizes_make_the_devices_and_share_the_batch(row):
    sizes = [row.whole(name) or 1 for name in ("tp", "pp", "cp", "dp")]
    devices = row.whole("num_devices")
    assert sizes[0] * sizes[1] * sizes[2] * sizes[3] == devices
    assert row.whole("global_batch") % (sizes[3] * row.whole("micro_batch")) == 0


@named(ROWS.values())
def test_rows_are_read_whole(row):
    case = read_case(row)
    assert case.num_devices == row.whole("num_devices")
    if "per stage" in row.words("recompute"):
        listed = case.plan.num_layers_per_pipeline_stage is not None
        assert listed or case.stages
    else:
        assert not case.stages


@pytest.mark.parametrize("table", [TIME, MEMORY], ids=lambda table: table.kind)
def test_no_configuration_is_there_twice(table):
    told = ("row_id", "source", "notes", "value_gib", "iter_time_s")
    seen = [
        tuple(text for name, text in row.values.items() if name not in told)
        for row in table.rows
    ]
    assert len(set(seen)) == len(seen)


def sc21_flops(row, *, factor):
    """FLOPs of a step: equation 3 of Narayanan et al., SC 2021; 72 for 96 without
    recomputation."""
    layers, hidden = number(row, "layers"), number(row, "hidden")
    sequence, vocab = number(row, "seq_len"), number(row, "vocab")
    whole = 1 + sequence / (6 * hidden) + vocab / (16 * factor / 96 * layers * hidden)
    return factor * number(row, "global_batch") * sequence * layers * hidden**2 * whole


def rate(row, flops, seconds):
    return flops / (number(row, "num_devices") * seconds) / 1e12


def step(row):
    for column in ("iter_time_s", "iter_time_s_derived"):
        value = row.number(column)
        if value is not None:
            return value
    tokens = number(row, "global_batch") * number(row, "seq_len")
    devices = number(row, "num_devices")
    return tokens / (devices * number(row, "tokens_per_s_per_device"))


WITH_SC21_COUNT = [
    row
    for row in TIME.rows
    if row.words("tflops_kind") == "hardware" and row.source != "InternEvo"
]


@named(WITH_SC21_COUNT)
def test_printed_rates_and_times_agree_by_the_count_of_sc21(row):
    found = rate(row, sc21_flops(row, factor=96), step(row))
    # The exception says in its notes that its count is an older one.
    older = "older count" in row.words("notes")
    tolerance = 0.04 if older else 0.02
    assert found == pytest.approx(number(row, "tflops_per_device"), rel=tolerance)


def test_the_count_of_sc21_is_checked_on_three_sources():
    sources = {row.source for row in WITH_SC21_COUNT}
    assert sources >= {"SC21 table 1", "SC21 table 2", "BLOOM design runs", "MT-NLG"}


@named([*rows_of("SC21 table 2"), *rows_of("SC21 ZeRO-3")])
def test_times_of_table_2_make_the_days_that_it_prints(row):
    printed = re.match(r"(\d+) days for 300e9 tokens", row.words("notes"))
    assert printed is not None
    steps = 300e9 / (number(row, "global_batch") * number(row, "seq_len"))
    days = steps * step(row) / 86400
    # The rate has three digits or two, the days are rounded.
    assert days == pytest.approx(float(printed[1]), rel=0.01, abs=0.5)


@named([row for row in rows_of("InternEvo") if row.number("tflops_per_device")])
def test_internevo_counts_as_sc21_without_recomputation(row):
    found = rate(row, sc21_flops(row, factor=72), step(row))
    assert found == pytest.approx(number(row, "tflops_per_device"), rel=0.03)


@named(rows_of("LLM Foundry"))
def test_llm_foundry_counts_six_per_weight_and_full_attention(row):
    # scripts/train/benchmarking/README.md: 6 N + 12 L h s for a token.
    layers, hidden = number(row, "layers"), number(row, "hidden")
    sequence = number(row, "seq_len")
    weights = 12 * layers * hidden**2 + number(row, "vocab") * hidden
    token = 6 * weights + 12 * layers * hidden * sequence
    found = token * number(row, "tokens_per_s_per_device") / 1e12
    assert found == pytest.approx(number(row, "tflops_per_device"), rel=0.02)


@named(rows_of("MaxText TPU"))
def test_times_of_maxtext_follow_from_its_own_count(row):
    # maxtext_utils.calculate_tflops_training_per_device before it halved attention:
    # three times the forward pass, attention over the whole square.
    names = ("layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "seq_len")
    layers, hidden, ffn, heads, groups, width, sequence = (
        number(row, name) for name in names
    )
    block = 2 * hidden * ffn * 3
    block += 2 * hidden * (heads + 2 * groups) * width + 2 * heads * width * hidden
    block += 4 * sequence * heads * width
    token = 3 * (layers * block + 2 * hidden * number(row, "vocab"))
    flops = token * number(row, "global_batch") * sequence
    found = rate(row, flops, number(row, "iter_time_s_derived"))
    assert found == pytest.approx(number(row, "tflops_per_device"), rel=1e-4)


def test_the_sizes_of_llama_3_make_its_405_billion_parameters():
    # Llama Team 2024, table 3: 405B.
    (row, *_) = rows_of("Llama 3 405B")
    hidden, layers = number(row, "hidden"), number(row, "layers")
    groups = number(row, "kv_heads") / number(row, "heads")
    block = hidden**2 * (2 + 2 * groups) + 3 * hidden * number(row, "ffn")
    whole = layers * block + 2 * number(row, "vocab") * hidden
    assert whole == pytest.approx(405e9, rel=0.01)


def test_the_worked_example_of_the_page_is_the_file_in_scenarios():
    file = ROOT / "scenarios" / "my_measurements.csv"
    rows = read_measurements(file).rows
    assert [row.row_id for row in rows] == ["tp2", "tp4", "pp2"]
    for row in rows:
        read_case(row)
    page = (ROOT / "docs" / "validate.md").read_text(encoding="utf-8")
    assert file.read_text(encoding="utf-8") in page


def test_the_page_on_accuracy_has_the_sources_and_columns_of_the_tables():
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    found = re.search(
        r"<!-- nestsim validate --markdown -->\n(.*?)<!-- end -->", page, re.DOTALL
    )
    assert found is not None, "the page has no table of accuracy"
    lines = [line.strip("| ").split(" | ") for line in found[1].split("\n") if line]
    headings = [line[1:] for line in lines if line[0].endswith(("step", "device"))]
    assert headings == [list(NUMBERS)] * len(TABLES)
    expected = []
    for table in (TIME, MEMORY):
        expected += [*dict.fromkeys(row.source for row in table.rows), "all"]
    ends = {"Time of a step", "Memory of a device"}
    names = [line[0] for line in lines]
    assert [name for name in names if name not in ends and "--" not in name] == expected
