"""An installation without extras: what it does, and what it says it lacks."""

import subprocess
import sys
from pathlib import Path

from tests import failures

ROOT = Path(__file__).parents[3]
WITHOUT = """
import sys

EXTRAS = {"torch", "transformers", "vl_convert", "pyarrow", "distributed"}


class Core:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, *rest):
        if name.partition(".")[0] in EXTRAS:
            return None
        return self.finder.find_spec(name, *rest)


sys.meta_path[:] = map(Core, sys.meta_path)
from nestsim.cli import main
sys.exit(main(sys.argv[1:]))
"""


def core(*words: str) -> "subprocess.CompletedProcess[str]":
    """Run a command where no package of an extra can be imported."""
    command = [sys.executable, "-c", WITHOUT, *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT
    )


def test_a_scenario_is_planned_replayed_and_written(tmp_path: Path) -> None:
    done = core("run", "scenarios/gpt3_1.3b_8_a100.toml", "-o", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "CONFIRMED" in done.stdout
    assert (tmp_path / "out" / "figures" / "timeline.png").is_file()


def test_a_sweep_has_its_points_as_csv_alone(tmp_path: Path) -> None:
    setting = "training.global_batch_size=128,256"
    scenario = "scenarios/gpt3_1.3b_8_a100.toml"
    done = core("sweep", scenario, "--set", setting, "-o", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert "points.csv" in names
    assert "points.parquet" not in names


@failures.over(
    ("words", "extra"),
    [
        ("run scenarios/custom_module.toml", "trace"),
        ("profile --output OUT.json", "trace"),
        ("run scenarios/gpt3_1.3b_8_a100.toml --html -o OUT", "html"),
        (
            "sweep scenarios/gpt3_1.3b_8_a100.toml --executor dask "
            "--scheduler tcp://localhost:8786 --set training.global_batch_size=64,128",
            "dask",
        ),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, words: str, extra: str) -> None:
    done = core(*words.replace("OUT", str(tmp_path / "out")).split())
    assert done.returncode == 2, done.stdout
    assert f'pip install "nestsim[{extra}]"' in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
