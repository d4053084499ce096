"""The tables of docs/paper.md, from the folders that `make paper-all` writes.

``python -m tests.nestsim.paper_page results/paper`` writes them between the page's
markers. A planner or an experiment that the folders do not have leaves a dash.
"""

import csv
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import tomli

from tests.nestsim.paper_sweeps import SWEPT_TABLES, Cells, seconds, swept

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "paper.md"
SCENARIOS = ROOT / "scenarios" / "paper"

MODELS = {
    "bert_large": "BERT-Large",
    "llama2_7b": "Llama 2 7B",
    "llama3_70b": "Llama 3 70B",
    "mixtral_8x7b": "Mixtral 8x7B",
    "gpt3_175b": "GPT-3 175B",
    "gpt3_35b": "GPT-3 35B",
    "mixtral_790m": "Mixtral 790M",
}
"""File name -> name in tables."""

SIZES = (64, 128, 256, 512, 1024)
BATCHES = (1, 2, 4, 8)
DEVICES = {"figure 6": 256, "figure 11": 512}

PLANNERS = {
    "manual": "Manual",
    "mcmc": "MCMC",
    "alpa": "Alpa-E",
    "mist": "Mist",
    "phaze": "Phaze",
}
"""Names of rivals in commands -> in the paper."""

AVERAGES = {
    "figure 5": {"manual": 1.59, "mcmc": 1.71, "alpa": 2.43, "phaze": 1.19},
    "figure 7": {"manual": 1.47, "mcmc": 1.40, "mist": 1.49, "phaze": 1.16},
}
"""What the paper prints: NEST's throughput over another planner's, averaged."""

STRATEGIES = {
    "llama2_7b": ("8,64,1,1", "11,46,1,1", "p 32", "6,85,1,1", "8,64,1,1"),
    "llama3_70b": ("80,6,1,1", "80,6,1,1", "p 52", "41,12,1,1", "81,6,1,1"),
    "bert_large": ("8,64,1,1", "2,256,1,1", "p 24", "1,512,1,1", "1,512,1,1"),
    "gpt3_175b": ("32,4,4,1", "9,7,8,1", "p 72", "16,8,4,1", "16,8,4,4"),
    "mixtral_8x7b": (
        "32,4,1,1,4,1",
        "32,4,1,1,4,1",
        "p 32",
        "16,8,1,1,4,1",
        "8,8,1,1,4,2",
    ),
}
"""Table 2 of the paper: {p, d, t, s} and {p, d, t, s, e, c} of Manual, MCMC, Alpa,
Phaze and NEST on 512 devices; "p 32" where only a depth is printed."""

SEARCH_MINUTES = {
    "gpt3_35b": (17, 15),
    "llama3_70b": (30, 6),
    "llama2_7b": (8, 2.3),
    "bert_large": (3, 2),
}
"""Table 4 of the paper: Mist's and NEST's search [min]."""

TOLERANCE = 0.01
"""How much faster than `nest`'s plan another one may be: its ``proven_gap``."""


Rows = Mapping[tuple[str, str], Mapping[str, str]]
"""(File name, planner) -> row of ``comparison.csv``."""


def published() -> dict[tuple[str, ...], str]:
    """Return what is published: (table, model, point, planner) -> ratio as printed."""
    path = Path(__file__).with_name("paper_published.csv")
    with path.open(encoding="utf-8") as stream:
        _, *rows = csv.reader(stream)
    return {tuple(row[:4]): row[4] for row in rows}


def compared(folder: Path) -> dict[tuple[str, str], dict[str, str]]:
    """Return the rows of a comparison; nothing if there is none."""
    path = folder / "comparison.csv"
    if not path.exists():
        return {}
    stems = {
        tomli.loads(file.read_text(encoding="utf-8"))["name"]: file.stem
        for file in folder.glob("*.toml")
    }
    with path.open(encoding="utf-8") as stream:
        return {
            (stems[row["scenario"]], row["planner"]): row
            for row in csv.DictReader(stream)
        }


def step_time(rows: Rows, stem: str, planner: str) -> float:
    """Return the replayed time of a planner's plan, nan without one [s]."""
    row = rows.get((stem, planner), {})
    return float(row.get("simulated_iteration_time_s") or "nan")


def ratio(rows: Rows, stem: str, planner: str) -> float:
    """Return a plan's replayed time over that of `nest`'s, nan without one."""
    return step_time(rows, stem, planner) / step_time(rows, stem, "nest")


def cell(number: float) -> str:
    """Write a ratio, a dash for none."""
    return f"{number:.2f}" if math.isfinite(number) else "-"


def geometric_mean(numbers: Iterable[float]) -> float:
    """Return the mean of those that there are, nan of none."""
    logs = [math.log(number) for number in numbers if math.isfinite(number)]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def strategy(row: Mapping[str, str]) -> str:
    """Write a plan as the paper's {p, d, t, s, e, c}, with what it adds here.

    As there, d counts replicas of the whole model, experts included.
    """
    if not row.get("pipeline_model_parallel_size"):
        return "-"
    names = ("pipeline", "data", "tensor", "expert", "context")
    keys = ("pipeline_model", "data", "tensor_model", "expert_model", "context")
    sizes = {
        name: int(row[f"{key}_parallel_size"])
        for name, key in zip(names, keys, strict=True)
    }
    sequence = sizes["tensor"] if row["sequence_parallel"] == "True" else 1
    replicas = sizes["data"] // sizes["expert"]
    numbers = [sizes["pipeline"], replicas, sizes["tensor"], sequence]
    if sizes["expert"] * sizes["context"] > 1:
        numbers += [sizes["expert"], sizes["context"]]
    words = [",".join(map(str, numbers))]
    if row["recompute"] != "none":
        words.append(row["recompute"])
    if row["zero_stage"] != "0":
        words.append(f"ZeRO {row['zero_stage']}".replace("ZeRO mixed", "mixed ZeRO"))
    return "; ".join(words)


def figure5(results: Path) -> Cells:
    """Return the rows of figure 5: paper, ours; last the artifact's own Manual."""
    printed = published()
    rows, fixed = (
        compared(results / name) for name in ("fig5", "fig5_published_manual")
    )
    for model, name in list(MODELS.items())[:5]:
        for size in SIZES:
            stem = f"fig5_{model}_{size}"
            cells = [name, f"{size:,}"]
            for planner in ("manual", "mcmc", "phaze"):
                cells.append(printed.get(("figure 5", name, str(size), planner), "-"))
                cells.append(cell(ratio(rows, stem, planner)))
            cells.append(printed.get(("figure 5", name, str(size), "alpa"), "-"))
            cells.append(cell(ratio(rows, stem, "alpa")))
            cells.append(
                cell(unreplicated(results, stem) / step_time(rows, stem, "nest"))
            )
            cells.append(cell(ratio(rows, stem, "mist")))
            yield [*cells, cell(ratio(fixed, stem, "fixed"))]


def unreplicated(results: Path, stem: str) -> float:
    """Return the replayed time of Alpa's plan of one replica, nan without one [s]."""
    return seconds(next(iter(swept(results / f"unreplicated_{stem}")), {}))


def micro_batches(figure: str, results: Path) -> Cells:
    """Return the rows of figure 6 or 11, with the gain by larger micro-batches."""
    printed = published()
    short = figure.replace("figure ", "fig")
    rows = compared(results / short)
    for model, name in list(MODELS.items())[:3]:
        for batch in BATCHES:
            stem = f"{short}_{model}_b{batch}"
            point = (figure, name, str(batch))
            cells = [name, str(batch)]
            for planner in ("manual", "mcmc", "phaze"):
                cells.append(printed.get((*point, planner), "-"))
                cells.append(cell(ratio(rows, stem, planner)))
            cells += [cell(ratio(rows, stem, one)) for one in ("alpa", "mist")]
            gain = step_time(rows, f"{short}_{model}_b1", "nest") / step_time(
                rows, stem, "nest"
            )
            yield [*cells, printed.get((*point, "gain"), "-"), cell(gain)]


def figure7(results: Path) -> Cells:
    """Return the rows of figure 7; published are those of the artifact's table 3."""
    printed = published()
    rows = compared(results / "fig7")
    for model, name in MODELS.items():
        stem = f"fig7_{model}"
        cells = [name]
        for planner in ("manual", "mcmc", "phaze"):
            cells.append(printed.get(("figure 7", name, "1024", planner), "-"))
            cells.append(cell(ratio(rows, stem, planner)))
        cells += [cell(ratio(rows, stem, one)) for one in ("mist", "alpa")]
        yield [*cells, rows.get((stem, "nest"), {}).get("verdict", "-")]


def averages(results: Path) -> Cells:
    """Return the paper's averages beside geometric means of ours."""
    for figure, printed in AVERAGES.items():
        rows = compared(results / figure.replace("figure ", "fig"))
        stems = sorted({stem for stem, _ in rows})
        for planner, name in PLANNERS.items():
            asked = [
                stem
                for stem in stems
                if not (figure == "figure 5" and planner == "alpa")
                or not stem.endswith("_1024")
            ]
            ratios = [ratio(rows, stem, planner) for stem in asked]
            found = [one for one in ratios if math.isfinite(one)]
            if planner not in printed and not found:
                continue
            yield [
                figure,
                name,
                f"{printed[planner]:.2f}" if planner in printed else "-",
                cell(geometric_mean(found)),
                cell(max(found, default=math.nan)),
                f"{len(found)} of {len(asked)}" if found else "-",
            ]
    rows = compared(results / "fig5")
    yield point_by_point(
        "Alpa-E, one replica",
        "alpa",
        lambda stem: unreplicated(results, stem) / step_time(rows, stem, "nest"),
    )
    given = compared(results / "fig5_published_manual")
    yield point_by_point(
        "the artifact's Manual", "manual", lambda stem: ratio(given, stem, "fixed")
    )


def point_by_point(
    label: str, planner: str, ratio_here: Callable[[str], float]
) -> list[str]:
    """Return what plans cost at the points of figure 5 that are published, and here."""
    theirs, ours = [], []
    for model, name in MODELS.items():
        for size in SIZES:
            here = ratio_here(f"fig5_{model}_{size}")
            there = published().get(("figure 5", name, str(size), planner))
            if there is not None and math.isfinite(here):
                theirs.append(float(there))
                ours.append(here)
    return [
        *("figure 5", label),
        cell(geometric_mean(theirs)),
        cell(geometric_mean(ours)),
        cell(max(ours, default=math.nan)),
        f"{len(ours)} points of both",
    ]


def behind(results: Path) -> Cells:
    """Return the points at which another plan is faster than `nest`'s."""
    names = ("fig5", "fig6", "fig7", "fig11", "table2", "s54")
    all_rows = {name: compared(results / name) for name in names}
    worse = [
        [f"`{stem}`", PLANNERS[planner], f"{ratio(rows, stem, planner):.3f}"]
        for rows in all_rows.values()
        for stem, planner in rows
        if planner in PLANNERS and ratio(rows, stem, planner) < 1.0 - 1e-9
    ]
    total = sum(1 for rows in all_rows.values() for key in rows if key[1] == "nest")
    most = [row for row in worse if float(row[2]) < 1.0 / (1.0 + TOLERANCE)]
    yield [f"all {total} scenarios", "by more than 1 %", str(len(most))]
    yield from worse


def table2(results: Path) -> Cells:
    """Return the strategies on 512 devices, the paper's beside ours."""
    rows = {**compared(results / "fig5"), **compared(results / "table2")}
    whose = ("manual", "mcmc", "alpa", "phaze", "nest")
    for model, printed in STRATEGIES.items():
        stems = [f"fig5_{model}_512"]
        if model == "mixtral_8x7b":
            stems.append(f"table2_{model}")
        for stem in stems:
            words = " with flash attention" if stem.startswith("table2") else ""
            for planner, theirs in zip(whose, printed, strict=True):
                row = rows.get((stem, planner), {})
                time = step_time(rows, stem, planner)
                yield [
                    MODELS[model] + words,
                    PLANNERS.get(planner, "NEST"),
                    theirs,
                    strategy(row),
                    f"{time:.4g} s" if math.isfinite(time) else "-",
                ]


def table4(results: Path) -> Cells:
    """Return the search times below the spine, the paper's beside ours."""
    path = results / "fig7" / "search_times.csv"
    times: dict[tuple[str, str], str] = {}
    if path.exists():
        with path.open(encoding="utf-8") as stream:
            times = {
                (row["scenario"], row["planner"]): row["search_time_s"]
                for row in csv.DictReader(stream)
            }
    for model, (mist, nest) in SEARCH_MINUTES.items():
        path = SCENARIOS / f"fig7_{model}.toml"
        name = tomli.loads(path.read_text(encoding="utf-8"))["name"]
        seconds = [
            float(times.get((name, planner)) or "nan") for planner in ("mist", "nest")
        ]
        ours = [f"{one:.1f} s" if math.isfinite(one) else "-" for one in seconds]
        yield [MODELS[model], f"{mist} min", ours[0], f"{nest} min", ours[1]]


def section54(results: Path) -> Cells:
    """Return the plans for 8 and 16 V100 with their times over that of `nest`'s."""
    rows = compared(results / "s54")
    for size in (8, 16):
        stem = f"s54_mixtral_790m_{size}"
        for planner in ("nest", *PLANNERS):
            row = rows.get((stem, planner), {})
            time = step_time(rows, stem, planner)
            yield [
                str(size),
                PLANNERS.get(planner, "NEST"),
                strategy(row),
                f"{time:.4g} s" if math.isfinite(time) else "-",
                cell(ratio(rows, stem, planner)),
            ]


COMMUNICATION = ("expert all-to-all", "transfers", "tail")
"""Terms of a planned time that the network makes, of a plan that shards no layer; the
optimizer's own part of the tail is small."""


def mixtral(results: Path) -> Cells:
    """Return what of the planned step of Mixtral's plans is communication."""
    clusters = {"fig5": "fat-tree (figure 5)", "fig7": "spine-leaf, 2:1 (figure 7)"}
    for folder, words in clusters.items():
        path = results / folder / "comparison.json"
        found = "-"
        groups = json.loads(path.read_text("utf-8"))["groups"] if path.exists() else []
        for group in groups:
            if (group["model"], group["num_devices"]) == ("mixtral-8x7b", 1024):
                nest = next(one for one in group["entries"] if one["planner"] == "nest")
                planned = nest["planned"]
                spent = sum(planned["terms_s"][name] for name in COMMUNICATION)
                found = f"{100.0 * spent / planned['iteration_time_s']:.0f} %"
        yield [words, found]


TABLES: Mapping[str, Callable[[Path], Cells]] = {
    "averages": averages,
    "behind": behind,
    "figure 5": figure5,
    "figure 6": lambda results: micro_batches("figure 6", results),
    "figure 7": figure7,
    "figure 11": lambda results: micro_batches("figure 11", results),
    "table 2": table2,
    "table 4": table4,
    "section 5.4": section54,
    "mixtral": mixtral,
    **SWEPT_TABLES,
}
"""Marker of the page -> the rows of its table."""


def table_text(cells: Iterable[Sequence[str]]) -> str:
    """Write rows as Markdown."""
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def with_tables(page: str, results: Path) -> str:
    """Return the page with its tables of a folder of results.

    Raises
    ------
    ValueError
        If the page lacks a table's markers.
    """
    for name, rows in TABLES.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        body = table_text(rows(results))
        page, count = pattern.subn(rf"\g<1>{body}\g<2>", page)
        if count != 1:
            raise ValueError(f"{PAGE.name} has {count} tables <!-- {name} -->")
    return page


if __name__ == "__main__":
    text = with_tables(PAGE.read_text(encoding="utf-8"), Path(sys.argv[1]))
    PAGE.write_text(text, encoding="utf-8")
