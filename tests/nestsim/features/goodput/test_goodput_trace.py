"""Logs of failures: read, run as they were, and fitted; SciPy's own fit beside it."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import nestsim
from nestsim.cli import main
from nestsim.features.goodput.draws import FailureKind
from nestsim.features.goodput.results import GoodputFindings
from nestsim.features.goodput.trace import (
    CauseFit,
    Histories,
    fitted,
    log_likelihood,
    read_log,
)
from nestsim.scenario.load import load_scenario
from tests import failures
from topologies.errors import InputError

FILE = Path(__file__).parents[4] / "scenarios/goodput/llama3_405b_16384_h100.toml"
DAY = 86400.0


def renewed(shape: float, *, nodes: int, mtbf: float) -> FailureKind:
    return FailureKind(
        name="node",
        stream=7,
        count=nodes,
        rate=1.0 / mtbf,
        shape=shape,
        breaks_node=True,
        source="test",
    )


def histories(shape: float, nodes: int, mtbf: float, time: float) -> Histories:
    """Histories of nodes one by one, as the simulation draws them."""
    failed, censored = [], []
    for seed in range(nodes):
        kind = renewed(shape, nodes=1, mtbf=mtbf)
        moments = kind.draw(seed, time)
        failed.append(np.diff([0.0, *moments]))
        censored.append(time - moments[-1] if len(moments) else time)
    return Histories(np.concatenate(failed), np.array(censored), np.ones(nodes))


@failures.over("shape", [0.6, 1.5, 3.0])
def test_the_shape_is_scipy_s_with_censored_times(shape: float) -> None:
    lives = histories(shape, 300, 100 * DAY, 150 * DAY)
    data = stats.CensoredData(uncensored=lives.failed, right=lives.censored)
    known, _, scale = stats.weibull_min.fit(data, floc=0)
    fit = fitted(lives)
    assert fit.shape == pytest.approx(known, rel=1e-3)
    mean = scale * math.gamma(1 + 1 / known)
    assert 1 / fit.rate == pytest.approx(mean, rel=1e-3)
    assert fit.shape_band[0] < shape < fit.shape_band[1]


def test_the_likelihood_is_that_of_the_distribution() -> None:
    lives = histories(0.7, 50, 100 * DAY, 150 * DAY)
    shape = 0.9
    total = (lives.failed**shape).sum() + (lives.censored**shape).sum()
    law = stats.weibull_min(shape, scale=(total / len(lives.failed)) ** (1 / shape))
    plain = law.logpdf(lives.failed).sum() + law.logsf(lives.censored).sum()
    assert log_likelihood(lives, shape) == pytest.approx(plain)


def test_constant_rates_are_called_so_19_times_in_20() -> None:
    """And Garwood's limits hold the rate 9 times in 10 or more: 200 logs."""
    fits: list[CauseFit] = []
    for seed in range(200):
        kind = renewed(1.0, nodes=40, mtbf=40 * DAY)
        moments = kind.draw(seed, 60 * DAY)
        failed = np.diff([0.0, *moments])
        lives = Histories(failed, np.array([60 * DAY - moments[-1]]), np.ones(1))
        fits.append(fitted(lives))
    constant = sum(fit.shape == 1.0 for fit in fits)
    assert constant >= 180
    rate = 40 / (40 * DAY)
    inside = sum(fit.rate_band[0] <= rate <= fit.rate_band[1] for fit in fits)
    assert inside >= 174  # 180 of 200, less two standard errors


def test_nodes_that_never_failed_count() -> None:
    """Twice the nodes, half the rate of one."""
    failed, end = np.array([5.0, 7.0]) * DAY, np.array([3.0, 10.0]) * DAY
    few = fitted(Histories(failed, end, np.array([2.0, 1.0])))
    many = fitted(Histories(failed, end, np.array([2.0, 1.0 + 2.8])))
    assert few.rate == pytest.approx(2 / (28 * DAY))
    assert many.rate == pytest.approx(2 / (56 * DAY))


def write(tmp_path: Path, text: str) -> Path:
    """Write a log, and the scenario that names it."""
    (tmp_path / "failures.csv").write_text(text, encoding="utf-8")
    table = '\n[goodput]\ntrace = "failures.csv"\ntrace_time = "10 d"\n'
    scenario = FILE.read_text("utf-8").replace("\n[goodput]\n", table)
    file = tmp_path / "job.toml"
    file.write_text(scenario, encoding="utf-8")
    return file


LOG = "time,node,cause,replaced\n1 d,n7,GPU,\n30 h,,switch,\n2.5 d,n8,crash,no\n"


def run(file: Path, **settings: object) -> GoodputFindings:
    scenario = load_scenario(file).replace(
        {f"goodput.{name}": value for name, value in settings.items()}
    )
    report = nestsim.goodput(scenario)
    assert report.result.findings is not None
    return report.result.findings


def test_failures_come_as_they_were(tmp_path: Path) -> None:
    """Three failures in ten days, in each of the runs; one takes its node."""
    findings = run(write(tmp_path, LOG), seeds=5, hang_share=0.0)
    assert findings.runs.duration == 10 * DAY
    assert set(findings.interruptions) == {3.0}
    assert findings.goodput.p5 == findings.goodput.p95
    assert {kind.name: kind.breaks_node for kind in findings.kinds} == {
        "GPU": True,
        "crash": False,
        "switch": False,
    }


def test_dates_begin_with_the_first(tmp_path: Path) -> None:
    dated = "time,node,cause\n2026-03-02T06:00,n1,GPU\n2026-03-01,n2,GPU\n"
    log = read_log(
        write(tmp_path, dated).parent / "failures.csv", time=None, num_nodes=8
    )
    assert [failure.time for failure in log.failures] == [0.0, 30 * 3600.0]
    assert log.time == 30 * 3600.0


def test_fitted_rates_are_random_and_scale(tmp_path: Path) -> None:
    """Of 100 nodes: the job's 2,048 fail 20 times as often; the switch as it did."""
    findings = run(write(tmp_path, LOG), seeds=50, fit_trace=True, trace_nodes=100)
    kinds = {kind.name: kind for kind in findings.kinds}
    assert kinds["GPU"].total_rate == pytest.approx(2048 / (100 * 10 * DAY))
    assert kinds["switch"].total_rate == pytest.approx(1 / (10 * DAY))
    assert findings.interruptions.p5 < findings.interruptions.p95


def test_the_command_says_what_was_fitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["goodput", str(write(tmp_path, LOG)), "--fit", "--seeds", "5"]) == 0
    output = capsys.readouterr().out
    assert "fitted, 1: MTBF" in output
    assert "Log: failures.csv." in output


@failures.over(
    ("text", "words"),
    [
        ("time,node\n1 d,n1\n", "header"),
        ("time,node,cause\n", "has no failures"),
        ("time,node,cause\n1,n1,GPU\n", "line 2: time"),
        ("time,node,cause\n1 d,n1,GPU\n2026-03-01,n1,GPU\n", "has dates and times"),
        ("time,node,cause\n1 d,n1,\n", "line 2: names no cause"),
        ("time,node,cause\n11 d,n1,GPU\n", "behind the end of the log"),
        ("time,node,cause,replaced\n1 d,n1,GPU,maybe\n", "line 2: replaced"),
        (
            "time,node,cause,replaced\n1 d,n1,GPU,no\n2 d,n1,GPU,yes\n",
            "takes some nodes out",
        ),
    ],
)
def test_bad_logs_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    assert main(["goodput", str(write(tmp_path, text))]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert "Traceback" not in captured.err
    assert not captured.out


def test_as_they_were_on_other_nodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="another number of nodes"):
        run(write(tmp_path, LOG), trace_nodes=100)
