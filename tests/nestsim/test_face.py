"""The Python face: one scenario in three forms, small results, the command's bytes."""

import ast
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import nestsim
from nestsim.cli import main
from nestsim.document.canvas import save_figure
from nestsim.scenario.editing import toml_text
from tests.nestsim.features.compare.small import write

MOST_REPR = 2_000
"""Characters of what a console shows of a result, and of what hangs below it."""

HEAVY = ("numpy", "torch", "numba", "pandas", "matplotlib", "pydantic", "scipy")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("face"), plan=True)


@pytest.fixture(scope="module")
def scenario(file: Path) -> nestsim.Scenario:
    return nestsim.Scenario.from_file(file)


@pytest.fixture(scope="module")
def report(scenario: nestsim.Scenario) -> nestsim.JobReport:
    return nestsim.run(scenario)


CALLS: dict[str, Callable[[nestsim.Scenario], nestsim.Report]] = {
    "plan": nestsim.plan,
    "explain": lambda one: nestsim.explain(one, "tp=1"),
    "run": nestsim.run,
    "simulate": nestsim.simulate,
    "compare": lambda one: nestsim.compare(one, planners=["manual"]),
    "stress": lambda one: nestsim.stress(
        one.replace({"stress.planners": ["manual"], "stress.workers": 1})
    ),
    "sweep": lambda one: nestsim.sweep(
        one, {"training.global_batch_size": [16, 32]}, what="plan", workers=1
    ),
    "collectives": lambda one: nestsim.collectives(one, [1024]),
    "memory": lambda one: nestsim.memory(one, "b=1"),
    "jitter": lambda one: nestsim.jitter(one, runs=2, workers=1),
}


@pytest.fixture(scope="module")
def reports(scenario: nestsim.Scenario) -> dict[str, nestsim.Report]:
    return {name: call(scenario) for name, call in CALLS.items()}


def test_importing_nestsim_imports_nothing_heavy() -> None:
    code = (
        "import sys, time; begun = time.perf_counter(); import nestsim; "
        "taken = time.perf_counter() - begun; "
        "print(taken, *sys.modules)"
    )
    taken, *modules = _python(code).split()
    assert not {*HEAVY} & {*modules}
    assert float(taken) < 0.3


def test_every_name_of_the_face_is_there_and_listed() -> None:
    assert sorted(nestsim.__all__) == nestsim.__all__
    assert {*nestsim.__all__} == {*nestsim._HOMES}
    assert {*nestsim.__all__} <= {*dir(nestsim)}
    for name in nestsim.__all__:
        assert getattr(nestsim, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'pln'"):
        nestsim.pln  # type: ignore[attr-defined]  # noqa: B018


def test_type_checkers_see_what_is_imported() -> None:
    tree = ast.parse(Path(nestsim.__file__).read_text())
    (block,) = (one for one in tree.body if isinstance(one, ast.If))
    homes = {
        alias.name: one.module
        for one in block.body
        if isinstance(one, ast.ImportFrom)
        for alias in one.names
    }
    assert homes == nestsim._HOMES


def _python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    return done.stdout


def test_a_scenario_is_the_same_from_file_text_and_dictionary(file: Path) -> None:
    one = nestsim.Scenario.from_file(file)
    two = nestsim.Scenario.from_toml(file.read_text(), file)
    three = nestsim.Scenario.from_dict(one.document(), file)
    assert one == two
    assert one.content() == three.content()
    assert three.document() == one.document()


def test_a_replaced_scenario_is_checked_anew(scenario: nestsim.Scenario) -> None:
    twice = 2 * scenario.training.global_batch_size
    other = scenario.replace({"training.global_batch_size": twice})
    assert other.training.global_batch_size == twice
    assert scenario.training.global_batch_size == twice // 2
    assert other.document()["training"]["global_batch_size"] == twice
    with pytest.raises(nestsim.InputError) as caught:
        scenario.replace({"training.global_batch_size": "many"})
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(f"{scenario.path}: training.global_batch_size: must be")
    assert lines[1].split() == ["got:", "'many'"]
    assert lines[2].strip().startswith("expected:")


@pytest.mark.parametrize(
    "values", [{"training": {"global_batch_size": None}}, {"training": {1: 2}}]
)
def test_what_toml_has_not_is_refused_with_its_place(values: Any) -> None:
    with pytest.raises(nestsim.InputError, match=r"^mine\.toml: training"):
        nestsim.Scenario.from_dict(values, "mine.toml")


def test_every_repr_is_short(
    reports: dict[str, nestsim.Report], scenario: nestsim.Scenario
) -> None:
    assert len(repr(scenario)) < MOST_REPR
    for name, one in reports.items():
        assert repr(one).startswith(type(one).__name__)
        for path, value in _below(one, name, depth=5):
            assert len(repr(value)) <= MOST_REPR, path


def _below(value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield a record, and the records that hang below it."""
    if is_dataclass(value):
        yield path, value
    if depth == 0:
        return
    inner: list[tuple[str, Any]] = []
    if is_dataclass(value):
        inner = [
            (f"{path}.{one.name}", getattr(value, one.name))
            for one in fields(value)
            if not one.name.startswith("scenario")  # its parts: `Scenario.content`
        ]
    elif isinstance(value, tuple | list):
        inner = [(f"{path}[{index}]", one) for index, one in enumerate(value[:3])]
    for place, one in inner:
        yield from _below(one, place, depth - 1)


def test_every_result_has_a_table_and_html(reports: dict[str, nestsim.Report]) -> None:
    for name, one in reports.items():
        frame = one.to_frame()
        assert isinstance(frame, pd.DataFrame), name
        assert len(frame) > 0, name
        html = one._repr_html_()
        assert type(one).__name__ in html
        assert html.count("<table") == html.count("</table>") == 2
        assert json.loads(one.to_json()) is not None


def test_the_command_prints_what_the_face_returns(
    reports: dict[str, nestsim.Report],
    file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", str(file), "-o", str(file.parent / "out"), "-q"]) == 0
    assert _stripped(capsys.readouterr().out) == _stripped(str(reports["run"]))
    assert main(["plan", str(file), "--json", "-q"]) == 0
    assert capsys.readouterr().out == reports["plan"].to_json()


def _stripped(text: str) -> list[str]:
    """Return the words: a pipe is wider than a text that is kept."""
    return text.split()


def test_a_saved_folder_is_that_of_the_command(
    report: nestsim.JobReport, file: Path, tmp_path: Path
) -> None:
    status = main(["run", str(file), "-o", str(tmp_path / "command"), "-q"])
    assert (status == 0) == report.succeeded
    saved = report.save(tmp_path / "face")
    names = sorted(one.relative_to(saved) for one in saved.rglob("*.*"))
    assert Path("manifest.json") in names
    for name in names:
        ours = (saved / name).read_bytes()
        assert ours == (tmp_path / "command" / name).read_bytes(), name
    assert (saved / "result.json").read_text() == report.to_json()


def test_a_foreign_folder_is_refused(report: nestsim.JobReport, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(nestsim.InputError, match="did not write"):
        report.save(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_figure_is_that_of_the_folder(
    report: nestsim.JobReport, tmp_path: Path
) -> None:
    saved = report.save(tmp_path / "out")
    assert report.figures == ("timeline", "topology", "memory", "links", "gap")
    for name in report.figures:
        save_figure(report.figure(name), tmp_path / "mine.png")
        drawn = (tmp_path / "mine.png").read_bytes()
        if name != "topology":  # its file says who drew it
            assert drawn == (saved / "figures" / f"{name}.png").read_bytes(), name


def test_an_unknown_figure_is_refused_with_those_that_there_are(
    report: nestsim.JobReport,
) -> None:
    with pytest.raises(nestsim.InputError) as caught:
        report.figure("timelin")
    assert caught.value.expected == (
        'one of "timeline", "topology", "memory", "links", "gap"'
    )
    assert caught.value.hint == 'did you mean "timeline"?'


def test_progress_is_told_to_the_caller(scenario: nestsim.Scenario) -> None:
    told: list[tuple[str, float | None]] = []
    nestsim.run(scenario, progress=lambda doing, share: told.append((doing, share)))
    assert told[0] == ("network: build", None)
    assert any(doing.startswith("replay: plan 1 of") for doing, _ in told)
    assert all(share is None or 0.0 <= share <= 1.0 for _, share in told)


def test_notices_are_part_of_the_result_and_nothing_is_printed(
    scenario: nestsim.Scenario, capfd: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings(record=True) as heard:
        found = nestsim.plan(scenario, progress=True)
    assert found.notices[0].endswith("the search does not read it")
    assert not heard
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_notes_of_a_call_stand_in_no_other_one(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A call that fails, two at a time in threads, and the command line likewise."""
    (tmp_path / "my_model.py").write_text('raise ValueError("no")\n')
    document = nestsim.Scenario.from_file(file).document()
    document["model"] = {"module": "my_model.py:build", "sequence_length": 128}
    module = tmp_path / "module.toml"
    with pytest.raises(nestsim.InputError, match="my_model"):
        nestsim.plan(nestsim.Scenario.from_dict(document, module))
    alone = nestsim.plan(file).notices
    assert not [one for one in alone if "my_model" in one]

    def moved(setting: str, value: object) -> nestsim.Scenario:
        values = {f"simulation.{setting}": value}
        return nestsim.Scenario.from_file(file).replace(values)

    settings = {"expert_skew": 1.0, "communication_slowdown": 1.5}
    with ThreadPoolExecutor(2) as pool:
        calls = {
            name: pool.submit(
                lambda name: nestsim.plan(moved(name, settings[name])), name
            )
            for name in settings
        }
        notices = {name: call.result().notices for name, call in calls.items()}
    for name, told in notices.items():
        assert [one for one in settings if f"simulation.{one}" in " ".join(told)] == [
            name
        ]
    assert nestsim.plan(file).notices == alone
    (tmp_path / "module.toml").write_text(toml_text(document))
    assert [main(["plan", str(module)]), main(["plan", str(file)])] == [2, 0]
    assert "note: runs my_model.py" not in capsys.readouterr().err


def test_an_interrupted_call_leaves_python_as_it_was(
    scenario: nestsim.Scenario,
) -> None:
    import signal

    before = signal.getsignal(signal.SIGINT)

    def interrupt(_: str, __: float | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        nestsim.run(scenario, progress=interrupt)
    assert signal.getsignal(signal.SIGINT) is before
    assert nestsim.plan(scenario).plans


def test_an_interrupted_sweep_goes_on_where_it_was(
    scenario: nestsim.Scenario, tmp_path: Path
) -> None:
    settings = {"training.global_batch_size": [16, 32, 64]}

    def interrupt(doing: str, share: float | None) -> None:
        if share:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        nestsim.sweep(
            scenario,
            settings,
            what="plan",
            workers=1,
            keep_in=tmp_path / "kept",
            progress=interrupt,
        )
    assert (tmp_path / "kept" / "sweep.sqlite").exists()
    told: list[float | None] = []
    found = nestsim.sweep(
        scenario,
        settings,
        what="plan",
        workers=1,
        keep_in=tmp_path / "kept",
        progress=lambda _, share: told.append(share),
    )
    assert next(share for share in told if share is not None) == pytest.approx(1 / 3)
    assert len(found.to_frame()) == 3


def test_mistakes_name_the_file(scenario: nestsim.Scenario) -> None:
    wrong = scenario.replace({"plan.pipeline_model_parallel_size": 7})
    with pytest.raises(nestsim.InputError, match=f"^{scenario.path}: plan"):
        nestsim.simulate(wrong)


def test_a_plan_travels_from_one_call_to_the_next(
    report: nestsim.JobReport, scenario: nestsim.Scenario, tmp_path: Path
) -> None:
    saved = report.save(tmp_path / "out", figures=False)
    assert report.best is not None
    by_value = nestsim.simulate(scenario, report.best.priced.plan)
    by_file = nestsim.simulate(scenario, saved / "plan.json")
    assert by_value.to_json() == by_file.to_json()
    assert by_value.best is not None
    assert by_value.best.simulated == report.best.simulated


def test_published_measurements_are_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from nestsim.features.validation import command as validation

    read: list[Path | None] = []
    monkeypatch.setattr(validation, "tables_of", lambda file: read.append(file) or ())
    assert nestsim.validate().results == ()
    assert read == [None]


def test_measurements_of_a_file_are_validated(tmp_path: Path) -> None:
    from tests.nestsim.features.validation.validation_rows import GPT, write_csv

    write_csv(tmp_path / "rows.csv", GPT)
    found = nestsim.validate(tmp_path / "rows.csv")
    assert found.succeeded
    assert found.figures == ("validation",)
    assert len(found.to_frame()) == len(found.results[0].rows)
    assert len(repr(found)) < MOST_REPR


def test_loading_is_quick_enough_for_a_console(file: Path) -> None:
    begun = time.perf_counter()
    nestsim.load_scenario(file)
    assert time.perf_counter() - begun < 2.0


def test_the_version_is_that_of_the_package() -> None:
    assert nestsim.__version__ == version("nestsim")
