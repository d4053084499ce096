"""Fits of the table [jitter], against times drawn by the project's own model."""

import json

import numpy as np
import pytest
import tomli

import nestsim
from nestsim.cli import main
from nestsim.features.jitter.fit import fit_jitter, fit_toml
from nestsim.features.jitter.step_times import StepTimes, read_step_times
from nestsim.scenario.jitter import JitterSpec, JitterTable, SlowShare
from nestsim.simulator.noise import Jitter, Noise
from topologies.errors import InputError


def drawn(seed, cv, slow=(), ranks=64, steps=100, always=()):
    """Return times of ranks in steps, as `nestsim jitter` draws them."""
    spec = JitterSpec(jitter=Jitter(seed=seed), slow=tuple(slow))
    rng = np.random.default_rng(seed)
    noise = Noise("lognormal", cv).draw(rng, ranks * steps).reshape(ranks, steps)
    paces = np.array([spec.slowdowns(ranks, run) for run in range(steps)]).T
    common = 0.3 * (1 + 0.1 * rng.random(steps))
    times = common * noise * paces
    for rank, factor in always:
        times[rank] *= factor
    return StepTimes(
        ranks=tuple(range(ranks)),
        nodes=("",) * ranks,
        times=times,
        per="step",
        source="drawn",
    )


@pytest.mark.parametrize("slow", [None, (0.02, 1.15)])
def test_bands_hold_what_times_were_drawn_from(slow):
    shares = [] if slow is None else [SlowShare(*slow)]
    held = {"cv": 0, "fraction": 0, "factor": 0}
    for seed in range(20):
        fit = fit_jitter(drawn(seed, 0.03, shares))
        held["cv"] += fit.cv.low <= 0.03 <= fit.cv.high
        assert fit.cv.value == pytest.approx(0.03, rel=0.05)
        if slow is None:
            assert fit.fraction is None
            continue
        held["fraction"] += fit.fraction.low <= slow[0] <= fit.fraction.high
        held["factor"] += fit.factor.low <= slow[1] <= fit.factor.high
    # 95 of 100: of 20, 15 or less in 3 of 1,000 such tests.
    assert all(count >= 16 for name, count in held.items() if slow or name == "cv")


def test_ranks_that_are_always_slow_are_named_and_few_others():
    named = wrong = 0
    for seed in range(20):
        fit = fit_jitter(drawn(seed, 0.03, always=[(5, 1.08), (40, 1.04)]))
        ranks = [drained.rank for drained in fit.slow]
        assert ranks[:2] == [5, 40]
        assert fit.slow[0].factor == pytest.approx(1.08, abs=0.015)
        named, wrong = named + len(ranks), wrong + len(ranks) - 2
    assert wrong <= 0.15 * named
    assert sum(bool(fit_jitter(drawn(seed, 0.03)).slow) for seed in range(20)) <= 4


def written(path, times):
    lines = ["rank,step,time"]
    for rank, row in enumerate(times.times.tolist()):
        lines += [f"{rank},{step},{time!r} s" for step, time in enumerate(row)]
    path.write_text("\n".join(lines), encoding="utf-8")


def test_the_command_prints_a_table_that_a_scenario_takes(tmp_path, capsys):
    times = drawn(3, 0.02, [SlowShare(0.03, 1.2)], always=[(7, 1.1)])
    file, output = tmp_path / "times.csv", tmp_path / "jitter.toml"
    written(file, times)
    assert main(["jitter-fit", str(file), "-o", str(output), "-q"]) == 0
    printed = capsys.readouterr().out
    assert "Drain" in printed
    tables = tomli.loads(output.read_text("utf-8"))
    spec = JitterTable.model_validate(tables["jitter"]).build()
    assert spec.jitter.compute.cv == pytest.approx(0.02, rel=0.1)
    assert spec.slow[0].factor == pytest.approx(1.2, rel=0.02)
    assert tables["cluster"]["degraded"]["slow_devices"][0]["device"] == 7
    assert main(["jitter-fit", str(file), "--json", "-q"]) == 0
    record = json.loads(capsys.readouterr().out)
    report = nestsim.jitter_fit(file)
    assert report.to_dict() == record
    assert report.to_toml() == output.read_text("utf-8")
    assert report.to_frame()["rank"].tolist() == [7]
    assert report.facts()["always_slow"] == [7]
    assert record["toml"].split("\n")[1:] == fit_toml(fit_jitter(times)).split("\n")[1:]


def traces(folder, times, made):
    folder.mkdir()
    for rank, row in enumerate(times.times.tolist()):
        content = json.dumps(made(rank, row))
        (folder / f"rank{rank}.json").write_text(content, encoding="utf-8")
    return read_step_times(folder)


def profiled(rank, row):
    events = []
    for step, time in enumerate(row):
        begin = 1e6 * step
        events += [
            {"ph": "X", "cat": "gpu_user_annotation", "name": f"ProfilerStep#{step}"}
            | {"ts": begin, "dur": 9e5},
            {
                "ph": "X",
                "cat": "kernel",
                "name": "gemm",
                "ts": begin,
                "dur": 4e5 * time,
            },
            {"ph": "X", "cat": "kernel", "name": "relu", "ts": begin + 1}
            | {"dur": 6e5 * time},
            {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce"}
            | {"ts": begin + 2, "dur": 5e5},
        ]
    return {"distributedInfo": {"rank": rank}, "traceEvents": events}


def test_kernels_of_traces_are_counted_but_those_of_nccl(tmp_path):
    times = drawn(1, 0.02, ranks=4, steps=10)
    read = traces(tmp_path / "kineto", times, profiled)
    np.testing.assert_allclose(read.times, times.times, rtol=1e-9)
    assert read.per == "step"


def test_dumps_tell_compute_by_what_each_rank_waits(tmp_path):
    times = drawn(2, 0.02, ranks=4, steps=10)
    longest = times.times.max(axis=0)

    def recorded(rank, row):
        done, entries = 1000.0 * rank, []  # clocks differ
        for number, time in enumerate([0.0, *row]):
            waits = 0.01 + (longest[number - 1] - time if number else 0.0)
            done += time + waits
            entries.append(
                {
                    "process_group": ["0", "default_pg"],
                    "collective_seq_id": number,
                    "time_discovered_completed_ns": round(1e9 * done),
                    "duration_ms": 1e3 * waits,
                }
            )
        return {"rank": rank, "entries": entries}

    read = traces(tmp_path / "dumps", times, recorded)
    np.testing.assert_allclose(read.times, times.times, atol=1e-8)
    assert read.per == "operator"


WRONG = {
    "rank,step\n0,0": "columns are missing",
    "rank,step,time\n0,0,3": "line 2.time",
    "rank,step,time\n0,0,3 s\n0,0,3 s": "names a rank and a step twice",
    "rank,step,time\nx,0,3 s": "is not a whole number",
    "rank,step,time\n0,0,3 s": "has too few ranks or steps",
}


def test_wrong_files_are_refused_with_the_place(tmp_path):
    file, wrong = tmp_path / "t.csv", []
    for text, words in WRONG.items():
        file.write_text(text, encoding="utf-8")
        with pytest.raises(InputError) as caught:
            read_step_times(file)
        if words not in str(caught.value) or str(file) not in str(caught.value):
            wrong.append((text, str(caught.value)))
    assert not wrong
    file.write_bytes(b"\x80\x04.")
    with pytest.raises(InputError, match="pickles may run code"):
        read_step_times(file)
    with pytest.raises(InputError, match="no such file"):
        read_step_times(tmp_path / "none.csv")
    with pytest.raises(InputError, match="holds no JSON"):
        read_step_times(tmp_path)
    (tmp_path / "a.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="is no trace and no dump"):
        read_step_times(tmp_path)
