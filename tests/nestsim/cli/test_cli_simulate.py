"""``nestsim simulate``: reports, exit status, one clear error for each mistake."""

import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from syrupy.assertion import SnapshotAssertion

from nestsim.cli import main
from nestsim.evaluate import evaluator
from nestsim.evaluate.job import simulate_job
from nestsim.scenario import load_scenario
from nestsim.scenario.base import settings
from nestsim.scenario.simulation import SimulationSpec, SimulationTable
from nestsim.scenario.software import EXECUTION
from nestsim.simulator.system import ReplaySettings
from nestsim.simulator.trace import write_chrome_trace
from planner.step.plan import from_ranges
from planner.step.schedules import SCHEDULES
from tests import failures

SCENARIOS = Path(__file__).parents[3] / "scenarios"
EIGHT = (SCENARIOS / "gpt3_1.3b_8_a100.toml").read_text(encoding="utf-8")

PLAN = """
[plan]
tensor_model_parallel_size = 2
pipeline_model_parallel_size = 2
micro_batch_size = 4
sequence_parallel = true
zero_stage = 1
recompute = ["selective", "none"]
"""

NOT_CONFIRMED = 1
WRONG_INPUT = 2


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, text: str, name: str = "job.toml") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return name


def simulated(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Return the exit status and standard output."""
    status = main(["simulate", *arguments])
    captured = capsys.readouterr()
    assert captured.err == ""
    return status, captured.out


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    status, out = simulated(capsys, *arguments, "--json")
    return status, json.loads(out)


def keys(value: Any, depth: int = 2) -> Any:
    """Return the keys of objects in objects, and what stands for everything else."""
    if isinstance(value, dict) and depth:
        return {key: keys(one, depth - 1) for key, one in value.items()}
    return f"[{type(value).__name__}]"


def test_a_plan_under_megatrons_names_is_replayed_and_confirmed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, data = answer(capsys, write(folder, EIGHT + PLAN))
    assert status == 0
    assert (data["verdict"], data["confirmed"]) == ("confirmed", True)
    plan = data["plan"]
    assert plan["parallel"] == {
        "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 2,
        "data_parallel_size": 2,
        "context_parallel_size": 1,
        "expert_model_parallel_size": 1,
        "sequence_parallel": True,
    }
    assert (plan["micro_batch_size"], plan["num_microbatches"]) == (4, 64)
    assert (plan["recompute"], plan["zero_stage"]) == ("mixed", 1)
    assert (plan["schedule"], plan["placement"]) == ("1f1b", "tp2 dp2 pp2")
    assert [stage["recompute"] for stage in plan["stages"]] == ["selective", "none"]
    assert data["simulated"]["events"] > 0
    assert data["gap"]["total_s"] == pytest.approx(
        data["simulated"]["iteration_time_s"] - data["planned"]["iteration_time_s"]
    )
    assert not list(folder.glob("results*"))


def test_json_has_the_approved_keys(
    folder: Path, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    _, data = answer(capsys, write(folder, EIGHT + PLAN))
    assert json.dumps(keys(data), indent=2) == snapshot


def test_a_plan_that_no_framework_launches_is_replayed_and_told_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From [plan] and from a file alike; the plan of the test above mixes modes."""
    layout = """
[plan]
pipeline_model_parallel_size = 2
virtual_pipeline_model_parallel_size = 2
data_parallel_size = 3
num_microbatches = 86
micro_batch_size = 2
pipeline_model_parallel_layout = [5, 7, 7, 5]
zero_stage = 2
recompute = "full"
"""
    _, data = answer(capsys, write(folder, EIGHT + PLAN))
    assert [one["rule"] for one in data["broken_rules"]] == ["recompute"]
    release = 'preset = "megatron-core"\nrelease = "0.13"'
    eight = EIGHT.replace('preset = "megatron-core"', release)
    scenario = write(folder, eight + layout)
    _, data = answer(capsys, scenario)
    broken = [one["rule"] for one in data["broken_rules"]]
    assert broken == ["global_batch", "idle_devices", "zero_stage"]
    (folder / "plan.json").write_text(json.dumps(data["plan"]), encoding="utf-8")
    _, again = answer(capsys, scenario, "--plan", "plan.json")
    assert again == data
    _, out = simulated(capsys, scenario)
    assert "What keeps megatron-core from launching it" in out
    assert "zero stage 2; expected: one of 0, 1" in " ".join(out.split())


class Run(NamedTuple):
    """A run of the scenario."""

    scenario: str
    folder: Path
    """Where its results are."""
    printed: str


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("run")
    scenario = str(folder / write(folder, EIGHT))
    out = io.StringIO()
    output = ("--output", str(folder / "found"))
    with contextlib.redirect_stdout(out):
        assert main(["run", scenario, *output, "--quiet", "--verbose"]) == 0
    return Run(scenario, folder / "found", out.getvalue())


def test_the_report_is_that_of_a_run_without_the_search(
    whole_run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run = sections_of(whole_run.printed)
    plan = str(whole_run.folder / "plan.json")
    status, out = simulated(capsys, whole_run.scenario, "--plan", plan, "--verbose")
    assert status == 0
    found = sections_of(out)
    assert run.keys() - found.keys() == {"Replayed plans", "Search"}
    only_found = ("planner's rank", "Proven", "Not proven", "faster.")
    for title, lines in found.items():
        kept = [line for line in run[title] if not line.lstrip().startswith(only_found)]
        assert lines == kept


def sections_of(out: str) -> dict[str, list[str]]:
    """Return the lines of a report by the title above them, the first of all as is."""
    sections: dict[str, list[str]] = {}
    title, before = "", ""
    for line in map(str.rstrip, out.splitlines()):
        if not sections or (not before and line and not line.startswith(" ")):
            title = line
        if line:
            sections.setdefault(title, []).append(line)
        before = line
    return sections


def test_the_best_plan_of_a_run_replays_to_the_same_numbers(
    whole_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`run` writes plan.json; `simulate` reads it and finds the same, byte for byte."""
    plan = str(whole_run.folder / "plan.json")
    again = ("--plan", plan, "--output", str(tmp_path), "--quiet")
    assert simulated(capsys, whole_run.scenario, *again)[0] == 0
    folders = (whole_run.folder, tmp_path)
    before, after = (
        {path.relative_to(one).as_posix() for path in one.rglob("*.*")}
        for one in folders
    )
    assert before == after
    for name in ("plan.json", "trace.json", "scenario.toml"):
        first, second = ((one / name).read_bytes() for one in folders)
        assert first == second, name
    first, second = (json.loads((one / "result.json").read_bytes()) for one in folders)
    shared = set(second) - {"lower_bound_s", "optimality_gap"}
    assert set(first) - shared == {
        *("planner_rank", "candidates", "search", "lower_bound_s", "optimality_gap"),
        *("objective", "given", "simplest"),
    }
    for key in sorted(shared):
        assert first[key] == second[key], key
    assert (second["lower_bound_s"], second["optimality_gap"]) == (None, None)


def test_a_folder_of_results_is_written_where_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = write(folder, EIGHT + PLAN)
    assert main(["simulate", scenario, "--output", "mine"]) == 0
    assert "Results are in" in capsys.readouterr().err
    (folder / "mine" / "thesis.tex").touch()
    again = ("--quiet", "--no-figures")
    assert main(["simulate", scenario, "-o", "mine", *again]) == 0
    (folder / "other").mkdir()
    (folder / "other" / "thesis.tex").touch()
    capsys.readouterr()
    assert main(["simulate", scenario, "-o", "other"]) == WRONG_INPUT
    message = capsys.readouterr().err
    assert message.startswith("--output: holds files that nestsim did not write")


def test_a_replay_that_is_too_slow_is_status_1(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Plans are upper bounds where links are free, so that the time is put on here."""
    run = evaluator.replay

    def slower(*arguments: Any, **options: Any) -> Any:
        done = run(*arguments, **options)
        return replace(done, iteration_time=1.2 * done.iteration_time)

    monkeypatch.setattr(evaluator, "replay", slower)
    status, out = simulated(capsys, write(folder, EIGHT + PLAN))
    assert status == NOT_CONFIRMED
    assert out.startswith("NOT CONFIRMED (slower)")
    assert "Planned beside simulated" in out
    assert "No replayed plan was confirmed" not in out


def test_too_little_memory_is_status_1_and_the_replay_is_shown(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reserve = 'memory_reserve = "4 GiB"'
    assert reserve in EIGHT
    text = EIGHT.replace(reserve, 'memory_reserve = "77 GiB"') + PLAN
    scenario = write(folder, text)
    status, out = simulated(capsys, scenario)
    assert status == NOT_CONFIRMED
    assert out.startswith("NOT CONFIRMED (infeasible)")
    assert "Where the time goes" in out
    status, data = answer(capsys, scenario)
    assert status == NOT_CONFIRMED
    assert (data["verdict"], data["confirmed"]) == ("infeasible", False)
    peaks = [stage["peak_bytes"] for stage in data["simulated"]["memory"]]
    fullest = peaks.index(max(peaks))
    assert data["reason"].startswith(f"stage {fullest} needs ")
    assert data["reason"].endswith(" too much")
    assert data["simulated"]["iteration_time_s"] > 0


@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_search_does_not_read_the_plan_and_a_run_holds_its_own_against_it(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow = EIGHT.replace(
        "micro_batch_sizes = [1, 2, 4, 8]",
        "micro_batch_sizes = [4]\ntensor_model_parallel_sizes = [2]",
    )
    assert narrow != EIGHT
    plain = write(folder, narrow)
    planned = write(folder, narrow + PLAN, "planned.toml")
    keep = ("--json", "--no-figures") if command == "run" else ("--json",)
    assert main([command, plain, *keep]) == 0
    without = capsys.readouterr()
    assert "[plan]" not in without.err
    assert main([command, planned, *keep]) == 0
    beside = capsys.readouterr()
    if command == "plan":
        assert "planned.toml: [plan] is for nestsim simulate" in beside.err
        assert beside.out == without.out
    else:
        before, after = (json.loads(text.out) for text in (without, beside))
        assert before.pop("given") is None
        assert after.pop("given")["plan"]["micro_batch_size"] > 0
        assert after == before
    assert main([command, planned, *keep, "--quiet"]) == 0
    assert capsys.readouterr().err == ""


MISTAKES: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "unknown setting": (
        *("zero_stage = 1", "zero = 1", "plan.zero"),
        ("unknown setting", 'did you mean "zero_stage"?'),
    ),
    "missing micro-batch": (
        *("micro_batch_size = 4", "", "plan.micro_batch_size"),
        ("setting is missing", "a whole number from 1 to 1,000,000, e.g. 1"),
    ),
    "unknown schedule": (
        *("zero_stage = 1", 'schedule = "1f1c"', "plan.schedule"),
        ("unknown choice", '"gpipe"', 'did you mean "1f1b"?'),
    ),
    "unknown mode of a stage": (
        *('["selective", "none"]', '["selective", "non"]', "plan.recompute[1]"),
        ("unknown choice", 'did you mean "none"?'),
    ),
    "number for a mode": (
        *('["selective", "none"]', "1", "plan.recompute"),
        ("unknown choice", "got:      1", '"selective"'),
    ),
    "ZeRO stage 4": (
        *("zero_stage = 1", "zero_stage = [1, 4]", "plan.zero_stage[1]"),
        ("must be at most 3",),
    ),
    "modes for too few stages": (
        *('["selective", "none"]', '["none"]', "plan.recompute"),
        ("one entry for each pipeline stage", "2, as pipeline_model_parallel_size"),
    ),
    "zero devices": (
        *("_parallel_size = 2", "_parallel_size = 0", "plan.tensor_model_parallel"),
        ("must be at least 1",),
    ),
    "too many devices": (
        "tensor_model_parallel_size = 2",
        "tensor_model_parallel_size = 16",
        "plan.tensor_model_parallel_size",
        ("more devices than the cluster has", "= 32 to be at most 8 devices"),
    ),
    "heads": (
        "tensor_model_parallel_size = 2",
        "tensor_model_parallel_size = 3",
        "plan.tensor_model_parallel_size",
        ("does not divide num_attention_heads 16", "one of 1, 2, 4, 8, 16"),
    ),
    "layers": (
        *("zero_stage = 1", "num_layers_per_pipeline_stage = [12, 13]", "plan.num_l"),
        ("does not add up", "add up to 24, not 25"),
    ),
    "batch": (
        *("micro_batch_size = 4", "micro_batch_size = 3", "plan.micro_batch_size"),
        ("does not split into full microbatches", "divide global_batch_size 512"),
    ),
    "order": (
        *("zero_stage = 1", 'order = "dp-tp"', "plan.order"),
        ("is not an order of ranks", "tp, then cp, ep, dp and pp"),
    ),
    "algorithm": (
        *("zero_stage = 1", 'tensor_algorithm = "rng"', "plan.tensor_algorithm"),
        ("not one of the known values", '"ring"'),
    ),
    "sharding group": (
        "zero_stage = 1",
        "zero_stage = 1\nsharding_group_size = 5",
        "plan.sharding_group_size",
        ("do not form such groups", "got:      5"),
    ),
    "granularity": (
        *("zero_stage = 1", '[simulation]\ngranularity = "all"', "simulation.granul"),
        ("unknown choice", 'one of "stage", "layer"'),
    ),
}


@failures.over("case", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_told_with_file_setting_found_and_expected(
    case: tuple[str, str, str, tuple[str, ...]],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    old, new, where, words = case
    assert old in PLAN
    changed = PLAN.replace(old, new, 1)
    if "[simulation]" in changed:  # the rest of [plan] must not end up in there
        changed = changed.replace('recompute = ["selective", "none"]\n', "")
    scenario = write(folder, EIGHT + changed)
    assert main(["simulate", scenario]) == WRONG_INPUT
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"job.toml: {where}")
    for word in words:
        assert word in captured.err
    assert len(captured.err.splitlines()) <= 5


def test_without_a_plan_there_is_nothing_to_replay(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", write(folder, EIGHT)]) == WRONG_INPUT
    message = capsys.readouterr().err
    assert message.startswith("job.toml: plan: there is no plan to replay")
    assert "--plan PLAN.json" in message


def test_a_plan_file_takes_precedence_over_the_table_and_must_fit(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = write(folder, EIGHT + PLAN)
    _, first = answer(capsys, scenario)
    plan = first["plan"]
    other = write(folder, EIGHT + PLAN.replace("_size = 4", "_size = 8"), "other.toml")
    write(folder, json.dumps(plan), "plan.json")
    status, data = answer(capsys, other, "--plan", "plan.json")
    assert status == 0
    assert data == first
    plan["num_microbatches"] = 63
    write(folder, json.dumps(plan), "plan.json")
    assert main(["simulate", scenario, "--plan", "plan.json"]) == WRONG_INPUT
    message = capsys.readouterr().err
    assert message.startswith("job.toml: plan.json: num_microbatches: does not make")
    assert "expected: 64, with micro-batches of 4 on 2 replicas" in message
    assert main(["simulate", scenario, "--plan", "none.json"]) == WRONG_INPUT
    assert capsys.readouterr().err.startswith("none.json: no such file")


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_can_be_replayed(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chunks = 2 if SCHEDULES[name].interleaves else 1
    given = f"""
        schedule = "{name}"
        virtual_pipeline_model_parallel_size = {chunks}
        recompute = "full"
    """
    plan = PLAN.replace('recompute = ["selective", "none"]', given)
    job = write(folder, EIGHT + plan)
    status, data = answer(capsys, job, "--output", "found", "--quiet")
    assert status == 0
    assert data["plan"]["schedule"] == name
    assert [len(stage["chunks"]) for stage in data["plan"]["stages"]] == [chunks] * 2
    splits = SCHEDULES[name].splits_backward
    for stage in data["planned"]["stages"]:
        assert (stage["weight_gradient_s"] > 0.0) == splits
    # The whole folder: figures, trace and report.
    text = (folder / "found" / "report.txt").read_text(encoding="utf-8")
    assert ("Weight" in text) == splits
    figures = {path.name for path in (folder / "found" / "figures").iterdir()}
    assert "timeline.png" in figures
    trace = json.loads((folder / "found" / "trace.json").read_text(encoding="utf-8"))
    passes = {event.get("cat") for event in trace["traceEvents"]}
    assert {"forward", "backward"} <= passes
    assert ("weight" in passes) == splits


# The settings of the replay.

OTHER_VALUES: dict[str, object] = {
    "granularity": "layer",
    "engine": "simpy",
    "seed": 7,
}


def changed_settings() -> dict[str, Any]:
    """Return another value than the default for every setting of the replay."""
    found = dict(OTHER_VALUES)
    for name, value in asdict(ReplaySettings()).items():
        if isinstance(value, bool):
            found[name] = not value
    return found


def test_every_setting_of_the_replay_can_be_written() -> None:
    names = {field.name for field in fields(ReplaySettings)}
    assert set(changed_settings()) == names
    later = {
        *("cpu_adam", "expert_communication_slowdown", "frees_gradients"),
        *("delay_wgrad_compute", "moe_shared_expert_overlap"),
    }
    others = {"tolerance", "trace_events", "trace", *EXECUTION} - later
    assert set(settings(SimulationTable)) == names | others
    assert SimulationTable().build() == SimulationSpec()


def _watched(run: Callable[..., Any], seen: list[object]) -> Callable[..., Any]:
    """Return a function that notes its last argument and leaves it out."""

    def watched(*arguments: Any, **named: Any) -> Any:
        *others, settings = arguments
        seen.append(settings)
        return run(*others, **named)

    return watched


def test_every_setting_of_the_replay_reaches_it(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = changed_settings()
    lines = [f"{name} = {json.dumps(value)}" for name, value in wanted.items()]
    text = "\n".join([EIGHT + PLAN, "[simulation]", *lines])
    seen: list[object] = []
    for name in ("lower_plan", "replay"):
        monkeypatch.setattr(
            evaluator,
            name,
            _watched(getattr(evaluator, name), seen),
        )
    scenario = write(folder, text)
    simulated(capsys, scenario)
    # The plan that is reported is lowered and replayed once more, for SimPy's word.
    # And the single changes that say why it takes as long.
    assert len(seen) > 4
    assert all(settings == SimulationSpec(**wanted) for settings in seen)
    assert load_scenario(scenario).simulation == seen[0]


def test_the_trace_shows_all_devices_on_request(folder: Path) -> None:
    """The two replicas of each stage are alike."""
    plan = EIGHT + PLAN
    shown = []
    for name, table in (("few", ""), ("all", '[simulation]\ntrace = "all"\n')):
        scenario = load_scenario(write(folder, f"{plan}\n{table}"))
        result = simulate_job(scenario)
        path = folder / f"{name}.json"
        write_chrome_trace(result.candidate.replay, path)
        trace = json.loads(path.read_text(encoding="utf-8"))
        left_out = trace["otherData"]["left_out"]
        events = trace["traceEvents"]
        passes = sum(event.get("cat") == "forward" for event in events)
        shown.append((left_out, passes))
        replicas = result.candidate.replay.representative.shape[1]
    (few, some), (nothing, every) = shown
    assert few.endswith("alike to others")
    assert nothing == "nothing"
    assert every == replicas * some


@pytest.mark.parametrize("name", ["gpt_76b_1024_a100", "gpt3_175b_1024_h100"])
def test_shipped_plans_are_confirmed(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, data = answer(capsys, str(SCENARIOS / f"{name}.toml"))
    assert status == 0
    assert data["plan"]["placement"].startswith("tp8 dp")
    devices = [d for s in data["plan"]["stages"] for d in from_ranges(s["devices"])]
    assert sorted(devices) == list(range(1024))


def test_the_published_run_of_sc21_is_near_its_published_rate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Table 1: 140 TFLOP/s a device with recompute, 3/4 of it without.

    Without a framework, whose host, gaps and slowest device take the rest.
    """
    _, data = answer(capsys, str(SCENARIOS / "gpt_76b_1024_a100.toml"))
    found = data["simulated"]["tflops_per_device"]
    assert 1.0 < found / (0.75 * 140) < 1.2
