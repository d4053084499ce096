"""Pages of stress tests, sweeps, networks and jobs in a real browser, of their JSON."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import nestsim
from nestsim.cli import main
from nestsim.document.dumps import dump_json
from nestsim.document.html import page_html
from nestsim.document.parts import Document, Section
from nestsim.face.report import FolderReport
from nestsim.face.sweep import SweepReport
from nestsim.features.compare.networks_document import networks_document
from nestsim.features.goodput.document import goodput_document
from nestsim.features.jitter.document import jitter_document
from nestsim.features.jobs.document import jobs_document
from nestsim.features.stress.document import stress_document
from nestsim.features.sweep.axes import Axis
from nestsim.features.sweep.document import sweep_document
from nestsim.features.sweep.record import sweep_json
from nestsim.scenario import load_scenario
from tests.nestsim.features.compare.small import write
from tests.nestsim.features.compare.test_networks import PRICES, TORUS, TREE, put
from tests.nestsim.features.conftest import DESKTOP, PHONE, Opened
from tests.nestsim.features.jitter.jobs import small
from tests.nestsim.features.jobs.test_jobs_report import three_jobs, without_a_plan
from tests.nestsim.features.stress.clusters import TEXT
from tests.nestsim.features.stress.test_stress_cost import COST, SLOW
from tests.nestsim.features.sweep.test_sweep_cost import AXES, priced

Open = Callable[..., Opened]

HOSTILE = "</script><img src=x onerror=\"document.title='hit'\"><b>&amp;'|\"${1}"


@dataclass(frozen=True)
class Kind:
    """A kind of result."""

    report: Any
    page: Callable[[Mapping[str, Any]], Document]
    figures: set[str]
    """Names of its figures."""

    names: tuple[str, ...]
    """What users may call things."""

    sorted_by: tuple[str, str] | None
    """Section and column of a table that readers sort; None where there is none."""

    @property
    def data(self) -> Any:
        """Return what the folder holds."""
        return json.loads(self.report.to_json())


def stressed(folder: Path) -> Kind:
    path = folder / "small.toml"
    path.write_text(TEXT + COST, encoding="utf-8")
    asked = {
        "stress.planners": ["manual"],
        "stress.workers": 1,
        "stress.oversubscription": {"leaf": [2.0, 4.0], "node": [10.0, 40.0]},
        "stress.conditions": [
            {"name": "slow spine", "degraded": {"slow_links": [SLOW]}}
        ],
        "stress.keep": 0.9,
        "stress.level": "leaf",
    }
    return Kind(
        nestsim.stress(load_scenario(path).replace(asked)),
        stress_document,
        {"conditions", "map", "line-0", "line-1", "crossed", "pareto", "links"},
        ("small", "slow spine", "leaf 0"),
        ("conditions", "Kept"),
    )


def swept(folder: Path) -> Kind:
    path = folder / "small.toml"
    path.write_text(TEXT, encoding="utf-8")
    return Kind(
        SweepReport(scenario=load_scenario(path), result=priced()),
        sweep_document,
        {"sweep", "pareto"},
        ("a job", "400 Gbit/s", "oversubscription"),
        ("points", "tokens/s"),
    )


def networked(folder: Path) -> Kind:
    path = write(folder)
    path.write_text(path.read_text(encoding="utf-8") + PRICES, encoding="utf-8")
    networks = put(folder, tree=TREE, torus=TORUS)
    return Kind(
        nestsim.compare_networks(path, networks),
        networks_document,
        {"throughput", "step", "ports"},
        ("four blocks", "tree", "torus", "spine"),
        ("throughput", "Iteration"),
    )


def shared(_: Path) -> Kind:
    return Kind(
        nestsim.jobs(three_jobs()),
        jobs_document,
        {"slow-downs", "levels"},
        ("small", "second", "third", "leaf"),
        ("jobs", "Slow-down"),
    )


def failing(folder: Path) -> Kind:
    path = write(folder, plan=True)
    asked = {"goodput.seeds": 5, "goodput.checkpoint.interval": "2 h"}
    return Kind(
        nestsim.goodput(load_scenario(path).replace(asked)),
        goodput_document,
        {"causes", "runs", "intervals", "tokens"},
        ("four blocks", "a100"),
        ("failures", "In a run"),
    )


def jittered(_: Path) -> Kind:
    compute = {"distribution": "lognormal", "cv": 0.03, "per": "step"}
    slow = [{"fraction": 0.125, "factor": 1.1}]
    asked = {"jitter.runs": 30, "jitter.compute": compute, "jitter.slow": slow}
    return Kind(
        nestsim.jitter(small(asked), workers=1),
        jitter_document,
        {"steps", "scale"},
        ("small", "lognormal"),
        None,
    )


KINDS = {
    "stress": stressed,
    "sweep": swept,
    "networks": networked,
    "goodput": failing,
    "jobs": shared,
    "jitter": jittered,
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Kind:
    return KINDS[request.param](tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize(
    "options",
    [DESKTOP, {**PHONE, "color_scheme": "dark"}],
    ids=["desktop", "phone in the dark"],
)
def test_a_page_is_drawn_without_complaints_and_is_accessible(
    opened: Open, kind: Kind, options: dict[str, Any]
) -> None:
    page = kind.page(kind.data)
    assert {one.name for one in page.figures} == kind.figures
    one = opened(page, **options)
    plots = one.view.locator(".plot")
    assert plots.count() == len(kind.figures)
    for number in range(plots.count()):
        assert plots.nth(number).locator("svg path").count() > 1, number
    one.view.evaluate(
        "document.querySelectorAll('details').forEach(d => d.open = true)"
    )
    assert one.violations() == []
    assert one.width() <= options["viewport"]["width"]
    assert one.complaints == []


def test_the_answer_comes_first_and_a_heading_sorts(opened: Open, kind: Kind) -> None:
    data = kind.data
    one = opened(kind.page(data))
    headings = one.view.locator("h1, h2").all_inner_texts()
    assert headings[0] == data["scenario"]
    assert data["headline"] in headings[1]
    if kind.sorted_by is None:
        assert one.view.locator("table.sortable").count() == 0
        return
    section, column = kind.sorted_by
    table = one.view.locator(f"#{section} table.sortable").first
    place = table.locator("thead th").all_inner_texts().index(column)
    table.get_by_role("button", name=column).click()
    cells = table.locator(f"tbody tr > :nth-child({place + 1})[data-key]")
    keys = [float(cell.get_attribute("data-key")) for cell in cells.all()]
    assert len(keys) > 1
    assert keys == sorted(keys)
    assert one.complaints == []


def test_names_are_shown_as_text(opened: Open, kind: Kind) -> None:
    one = opened(kind.page(renamed(kind.data, kind.names)))
    assert HOSTILE in one.view.locator("h1").inner_text()
    assert one.view.locator("img, main b, svg b").count() == 0
    assert one.view.title() != "hit"
    assert one.complaints == []


def renamed(data: Any, names: tuple[str, ...]) -> Any:
    """Return data in which names have markup behind them."""
    if isinstance(data, dict):
        return {renamed(key, names): renamed(one, names) for key, one in data.items()}
    if isinstance(data, list):
        return [renamed(one, names) for one in data]
    if isinstance(data, str):
        for name in names:
            data = data.replace(name, name + HOSTILE)
    return data


def test_curves_and_bars_of_a_sweep_are_drawn_with_any_names(opened: Open) -> None:
    """One setting makes a curve where its values are numbers, bars where not."""
    one, _ = AXES
    named = Axis(path="plan.schedule", values=("1f1b", HOSTILE))
    figures = []
    for name, axis in {"curve": one, "bars": named}.items():
        base = priced()
        outcomes = tuple(
            replace(outcome, point={axis.path: value})
            for value, outcome in zip(axis.values, base.outcomes, strict=False)
        )
        data = sweep_json(replace(base, axes=(axis,), outcomes=outcomes))
        page = sweep_document(renamed(json.loads(dump_json(data)), ("2", "400 Gbit/s")))
        figures.append(replace(page.figures[0], name=name))
    section = Section(name="all", title="All", blocks=tuple(figures))
    seen = opened(replace(page, sections=(section,)))
    assert seen.complaints == []
    assert seen.violations() == []
    for name in ("curve", "bars"):
        words = seen.view.locator(f"#figure-{name} svg").text_content()
        assert HOSTILE[:9] in words, name
    assert seen.view.locator("img, main b").count() == 0


def test_what_is_found_and_what_is_stored_give_the_same_bytes(kind: Kind) -> None:
    report = kind.report
    assert isinstance(report, FolderReport)
    assert page_html(report.document()) == page_html(kind.page(kind.data))


def test_the_folder_has_the_page_where_it_is_asked_for(
    kind: Kind, tmp_path: Path
) -> None:
    kind.report.save(tmp_path / "out", figures=False, html=True)
    written = (tmp_path / "out" / "page.html").read_text(encoding="utf-8")
    assert written == page_html(kind.report.document())
    kind.report.save_page(tmp_path / "alone.html")
    assert (tmp_path / "alone.html").read_text(encoding="utf-8") == written


def test_nestsim_report_gives_the_page_of_the_folder(
    kind: Kind, tmp_path: Path
) -> None:
    folder = kind.report.save(tmp_path / "results", figures=False, html=True)
    expected = (folder / "page.html").read_bytes()
    target = tmp_path / "again.html"
    assert main(["report", str(folder), "-q", "-o", str(target)]) == 0
    assert target.read_bytes() == expected


def test_nothing_found_is_a_page_too(opened: Open, tmp_path: Path, kind: Kind) -> None:
    path = tmp_path / "none.toml"
    if kind.page is sweep_document:
        base = priced([None] * 6)
        data = sweep_json(base)
    elif kind.page is stress_document:
        path.write_text(TEXT, encoding="utf-8")
        full = {"cluster.memory_reserve": "79.9 GiB", "stress.planners": ["manual"]}
        varied = {"stress.oversubscription": {"leaf": [4.0]}, "stress.workers": 1}
        data = nestsim.stress(load_scenario(path).replace(full | varied)).to_dict()
    elif kind.page is jobs_document:
        data = nestsim.jobs(without_a_plan()).to_dict()
    elif kind.page is goodput_document:
        job = load_scenario(write(tmp_path, reserve="79.9 GiB"))
        quick = {"search.planner": "manual", "goodput.seeds": 1}
        data = nestsim.goodput(job.replace(quick)).to_dict()
    elif kind.page is jitter_document:
        full = {"cluster.memory_reserve": "79.9 GiB", "search.planner": "manual"}
        document = small(full).document()
        del document["plan"]
        data = nestsim.jitter(document, workers=1).to_dict()
    else:
        job = write(tmp_path, reserve="79.9 GiB")
        data = nestsim.compare_networks(job, put(tmp_path, a=TREE, b=TORUS)).to_dict()
    page = kind.page(json.loads(dump_json(data)))
    assert page.headline.tone == "bad"
    one = opened(page)
    assert one.violations() == []
    assert one.complaints == []
