"""Measure what a whole run costs from 1,000 to 1,000,000 devices.

    python -m tests.benchmarks.search_scales --output results/bench-scales

Weak scaling: Llama 3 405B on H100s, a sequence of 8,192 tokens a step for every eight
devices, everything searched that Megatron Core can launch. Each size is one ``nestsim
run`` with its report, confirmed plans and pictures, in a process of its own whose
kernels are compiled. CPU seconds and the peak are those of the process.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.measured import ROOT, Row, markdown, tell
from tests.benchmarks.planner_cases import SEARCHES

BASE = SEARCHES / "llama3_405b_100096_h100.toml"
"""The job of every size, and its network."""

SIZES = (1_000, 10_000, 100_000, 1_000_000)
"""Devices of each run."""

NODE = 8
"""Devices that share a step's sequence, and a node."""

COLUMNS = {
    "devices": "devices",
    "configurations": "configurations",
    "opened": "opened",
    "replays": "replays",
    "cpu_seconds": "CPU s",
    "peak_gib": "peak GiB",
    "gap": "gap %",
    "iteration_time": "step [s]",
    "plan": "plan",
}
FORMATS = {
    "cpu_seconds": ".0f",
    "peak_gib": ".2f",
    "gap": ".2f",
    "iteration_time": ".3f",
}


def main() -> None:
    """Measure the sizes that are asked for, print a table and draw it."""
    parser = argparse.ArgumentParser(prog="search_scales", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("results/bench-scales"))
    parser.add_argument("--devices", type=int, nargs="+", default=SIZES)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    known = arguments.output / "scales.json"
    rows = json.loads(known.read_text()) if known.exists() else []
    for devices in arguments.devices:
        rows = [row for row in rows if row["devices"] != devices]
        rows.append(measured(devices, arguments.output))
        tell(f"{devices:,} devices: {rows[-1]['cpu_seconds']:.0f} CPU s")
    rows.sort(key=lambda row: int(row["devices"]))
    known.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    sys.stdout.write(markdown(rows, COLUMNS, FORMATS, {"plan"}))
    draw(rows, arguments.output / "search_scales.png")


def scenario(devices: int) -> str:
    """Return the file of the job on so many devices."""
    known, nodes = 100_096, devices // NODE
    text = BASE.read_text(encoding="utf-8")
    for before, after in (
        (f"{known:,}", f"{devices:,}"),
        (f"num_devices = {known}", f"num_devices = {nodes * NODE}"),
        (f"fan_out = {known // NODE}", f"fan_out = {nodes}"),
        (f"global_batch_size = {known // NODE}", f"global_batch_size = {nodes}"),
    ):
        assert before in text, before
        text = text.replace(before, after)
    return text


def measured(devices: int, output: Path) -> Row:
    """Run one size in a process of its own."""
    place = output / f"{devices}"
    file = output / f"{devices}.toml"
    file.write_text(scenario(devices), encoding="utf-8")
    command = [sys.executable, "-m", "nestsim", "run", str(file)]
    process = subprocess.Popen(
        [*command, "--output", str(place), "--force", "--quiet"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(f"{file}: nestsim run ended with {os.waitstatus_to_exitcode(status)}")
    result = json.loads((place / "result.json").read_text(encoding="utf-8"))
    search, best = result["search"], result["candidates"][0]
    return {
        "devices": devices,
        "configurations": search["configurations"],
        "opened": search.get("configurations opened", 0),
        "replays": search["plans replayed"],
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_gib": used.ru_maxrss / 2**20,
        "gap": 100.0 * result["optimality_gap"],
        "iteration_time": result["simulated"]["iteration_time_s"],
        "plan": best["placement"],
    }


def draw(rows: list[Row], path: Path) -> None:
    """Draw CPU seconds and the peak over devices, on log scales."""
    import matplotlib as mpl
    import pandas as pd
    import seaborn as sns
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from tests.benchmarks.plot_scales import log_scale, log_sizes

    table = pd.DataFrame(rows)
    labels = {"cpu_seconds": "CPU time [s]", "peak_gib": "peak memory [GiB]"}
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(sns.axes_style("whitegrid"))
        mpl.rcParams.update(sns.plotting_context("notebook"))
        figure = Figure(figsize=(10, 4), dpi=100, layout="constrained")
        FigureCanvasAgg(figure)
        for place, axes in enumerate(figure.subplots(1, 2)):
            name, label = list(labels.items())[place]
            colour = sns.color_palette("colorblind")[place]
            sns.lineplot(
                table, x="devices", y=name, ax=axes, color=colour, marker="o", ms=9
            )
            log_sizes(axes, table["devices"])
            axes.xaxis.set_major_formatter("{x:,.0f}")
            log_scale(axes, table[name])
            axes.set_xlabel("devices")
            axes.set_ylabel(label)
        figure.suptitle("A whole run, everything searched", x=0.01, ha="left")
        figure.savefig(path, metadata={"Software": None})


if __name__ == "__main__":
    main()
