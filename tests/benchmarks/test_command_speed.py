"""How long whole commands take in fresh processes."""

import subprocess
import sys
from pathlib import Path

import pytest

SCENARIO = Path(__file__).parents[2] / "scenarios" / "llama2_7b_64_h100.toml"


def nestsim(*arguments: str) -> None:
    command = [sys.executable, "-m", "nestsim", *arguments]
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.benchmark(group="command")
def test_help(benchmark):
    benchmark.pedantic(nestsim, args=("--help",), rounds=5, warmup_rounds=1)


@pytest.mark.benchmark(group="command")
def test_main_scenario_with_warm_caches(benchmark, tmp_path):
    arguments = "run", str(SCENARIO), "--output", str(tmp_path / "out")
    benchmark.pedantic(nestsim, args=arguments, rounds=5, warmup_rounds=1)
