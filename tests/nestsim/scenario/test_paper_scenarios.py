"""The scenario files of the NEST paper's comparisons: complete, and alike."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tomli

from nestsim.evaluate import build_job
from nestsim.scenario import load_scenario

ROOT = Path(__file__).parents[3]
PAPER = ROOT / "scenarios" / "paper"
FILES = sorted(PAPER.glob("*.toml"))
MODELS = ("bert_large", "llama2_7b", "llama3_70b", "mixtral_8x7b", "gpt3_175b")
SIZES = (64, 128, 256, 512, 1024)


def tables(stem: str) -> dict[str, Any]:
    """Read a file as it is written."""
    return tomli.loads((PAPER / f"{stem}.toml").read_text(encoding="utf-8"))


def num_devices(stem: str) -> int:
    """Return what the name of a file promises."""
    if stem.startswith("fig5"):
        return int(stem.rsplit("_", 1)[1])
    return 256 if stem.startswith("fig6") else 1024


def test_all_points_of_the_figures_are_there():
    names = {f"fig5_{model}_{size}" for model in MODELS for size in SIZES}
    names |= {f"fig6_{model}_b{b}" for model in MODELS[:3] for b in (1, 2, 4, 8)}
    names |= {f"fig7_{model}" for model in (*MODELS, "gpt3_35b", "mixtral_790m")}
    assert {path.stem for path in FILES} == names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_loads_and_adds_up(path):
    scenario = load_scenario(path)
    network, workload = build_job(scenario, None)
    assert network.num_devices == num_devices(path.stem)
    assert tables(path.stem)["cluster"]["num_devices"] == network.num_devices
    assert workload.training.global_batch_size == 4096
    assert scenario.search.virtual_pipeline_model_parallel_sizes == (1,)
    assert f"nestsim compare scenarios/paper/{path.name}" in scenario.text.decode()
    assert f"figure {path.stem[3]}:" in scenario.text.decode()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_but_devices_and_whole_links_is_counted(path):
    assert tables(path.stem)["software"] == {"preset": "ideal"}
    assert "efficiency" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("model", MODELS)
def test_points_of_a_model_differ_in_size_alone(model):
    points = [tables(f"fig5_{model}_{size}") for size in SIZES]
    for size, point in zip(SIZES, points, strict=True):
        assert f"{size:,} " in point.pop("name")
        assert point["cluster"].pop("num_devices") == size
        assert point["cluster"]["network"]["levels"][2].pop("fan_out") == size // 32
        point.pop("plan", None)
    assert all(point == points[0] for point in points)


@pytest.mark.parametrize("model", MODELS[:3])
def test_points_of_figure_6_are_those_of_figure_5_but_for_the_micro_batch(model):
    first = tables(f"fig5_{model}_256")
    for b in (1, 2, 4, 8):
        point = tables(f"fig6_{model}_b{b}")
        assert point["search"].pop("micro_batch_sizes") == [b]
        point["search"]["micro_batch_sizes"] = [1]
        assert {**first, "name": point["name"]} == {
            **point,
            **({"plan": first["plan"]} if "plan" in first else {}),
        }


@pytest.mark.parametrize("prefix", ["fig5", "fig7"])
def test_all_models_of_a_figure_meet_the_same_cluster_job_and_software(prefix):
    alike = {}
    for path in FILES:
        if path.stem.startswith(prefix):
            point = tables(path.stem)
            parts = (point["cluster"], point["training"], point["software"])
            assert alike.setdefault(num_devices(path.stem), parts) == parts


def test_only_models_with_graphs_for_it_are_tensor_parallel():
    for path in FILES:
        sizes = tables(path.stem)["search"]["tensor_model_parallel_sizes"]
        is_wide = any(name in path.stem for name in ("bert", "gpt3"))
        assert (max(sizes) == 8) == is_wide


def test_published_plans_fit_on_their_clusters():
    """The replicas of a plan share its devices, whatever their experts do."""
    found = 0
    for path in FILES:
        plan = tables(path.stem).get("plan")
        if plan is None:
            continue
        found += 1
        used = (
            plan["tensor_model_parallel_size"]
            * plan["pipeline_model_parallel_size"]
            * plan["data_parallel_size"]
        )
        assert num_devices(path.stem) - plan["pipeline_model_parallel_size"] < used
        assert used <= num_devices(path.stem)
    assert found == 19


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_make_runs_every_file_and_the_smaller_target_figure_5():
    def named(target: str) -> set[str]:
        done = subprocess.run(
            ["make", "--dry-run", target],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        return set(re.findall(r"scenarios/paper/(\S+\.toml)", done.stdout))

    assert named("paper") == {path.name for path in PAPER.glob("fig5_*.toml")}
    assert named("paper-all") == {path.name for path in FILES}
