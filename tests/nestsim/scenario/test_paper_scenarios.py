"""The scenario files of the NEST paper's comparisons: complete, and alike."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tomli

from nestsim.evaluate.cluster import build_job
from nestsim.scenario import load_scenario
from tests import failures

ROOT = Path(__file__).parents[3]
PAPER = ROOT / "scenarios" / "paper"
FILES = sorted(PAPER.glob("*.toml"))
MODELS = ("bert_large", "llama2_7b", "llama3_70b", "mixtral_8x7b", "gpt3_175b")
SIZES = (64, 128, 256, 512, 1024)
FIGURE_SIZES = {
    "fig2": 64,
    "fig6": 256,
    "fig7": 1024,
    "fig11": 512,
    "table2": 512,
    "table6": 1,
    "table7": 1024,
}
SWEPT = ("fig2_", "fig10_", "table6_", "table7_")
SIMULATED = ("fig2_", "fig10_", "table6_")
WHERE = {"fig": "figure ", "table": "table ", "s54": "section 5.4"}


def tables(stem: str) -> dict[str, Any]:
    """Read a file as it is written."""
    return tomli.loads((PAPER / f"{stem}.toml").read_text(encoding="utf-8"))


def num_devices(stem: str) -> int:
    """Return what the name of a file promises."""
    if stem.startswith("fig5"):
        return int(stem.rsplit("_", 1)[1])
    if stem.startswith(("fig10", "s54")):
        return int(stem.rsplit("_", 1)[1])
    return FIGURE_SIZES[stem.split("_", maxsplit=1)[0]]


def is_searched(path: Path) -> bool:
    """Tell whether a file is compared, or planned at points, as in the paper."""
    return not path.stem.startswith(SIMULATED)


def test_all_points_of_the_figures_are_there():
    names = {f"fig5_{model}_{size}" for model in MODELS for size in SIZES}
    for figure in ("fig6", "fig11"):
        names |= {
            f"{figure}_{model}_b{b}" for model in MODELS[:3] for b in (1, 2, 4, 8)
        }
    names |= {f"fig7_{model}" for model in (*MODELS, "gpt3_35b", "mixtral_790m")}
    names |= {f"fig2_{model}" for model in MODELS[2:]}
    names |= {f"fig10_gpt3_{size}" for size in (4, 8)}
    names |= {f"s54_mixtral_790m_{size}" for size in (8, 16)}
    names |= {"table2_mixtral_8x7b", "table7_llama3_70b", "table7_bert_large"}
    names |= {f"table6_{model}" for model in (*MODELS[:3], "gpt3_175b")}
    assert {path.stem for path in FILES} == names


@failures.over("path", FILES, ids=lambda path: path.stem)
def test_every_file_loads_and_adds_up(path):
    scenario = load_scenario(path)
    network, workload = build_job(scenario, None)
    assert network.num_devices == num_devices(path.stem)
    assert tables(path.stem)["cluster"]["num_devices"] == network.num_devices
    command = "sweep" if path.stem.startswith(SWEPT) else "compare"
    assert f"nestsim {command} scenarios/paper/{path.name}" in scenario.text.decode()
    kind, number = re.match(r"(fig|table|s54)(\d*)", path.stem).groups()
    assert f"{WHERE[kind]}{number}:" in scenario.text.decode().replace("\n# ", " ")
    if is_searched(path):
        assert workload.training.global_batch_size == 4096
        assert scenario.search.virtual_pipeline_model_parallel_sizes == (1,)
        assert scenario.search.objective == "replayed"
        assert not scenario.search.launchable


@failures.over("path", FILES, ids=lambda path: path.stem)
def test_nothing_but_devices_and_whole_links_is_counted(path):
    if path.stem.startswith("fig10"):
        pytest.skip("what people measure ran under a framework")
    assert tables(path.stem)["software"] == {"preset": "ideal"}
    assert "efficiency" not in path.read_text(encoding="utf-8")


@failures.over("model", MODELS)
def test_points_of_a_model_differ_in_size_alone(model):
    points = [tables(f"fig5_{model}_{size}") for size in SIZES]
    for size, point in zip(SIZES, points, strict=True):
        assert f"{size:,} " in point.pop("name")
        assert point["cluster"].pop("num_devices") == size
        assert point["cluster"]["network"]["levels"][2].pop("fan_out") == size // 32
        point.pop("plan", None)
    assert all(point == points[0] for point in points)


@failures.over(("figure", "size"), [("fig6", 256), ("fig11", 512)])
@failures.over("model", MODELS[:3])
def test_points_of_figure_6_and_11_are_those_of_figure_5_but_for_the_micro_batch(
    model, figure, size
):
    first = tables(f"fig5_{model}_{size}")
    for b in (1, 2, 4, 8):
        point = tables(f"{figure}_{model}_b{b}")
        assert point["search"].pop("micro_batch_sizes") == [b]
        point["search"]["micro_batch_sizes"] = [1]
        assert {**first, "name": point["name"]} == {
            **point,
            **({"plan": first["plan"]} if "plan" in first else {}),
        }


def test_devices_of_the_paper_s_tpus_have_two_engines():
    """Matrix products on one (Sunstone), all else on the other (Tandem)."""
    for path in FILES:
        device = tables(path.stem)["cluster"]["accelerator"]
        if isinstance(device, dict) and device["name"] == "tpuv4-like":
            assert device["vector_engine"] is True


def test_a_free_network_of_figure_2_is_the_other_one_without_limits():
    for model in MODELS[2:]:
        table = tables(f"fig2_{model}")
        real, free = table["sweep"]["set"]["cluster.network"]
        assert real == table["cluster"]["network"]
        limits = {key for key in real if real[key] != free[key]}
        assert limits == {key for key in real if key.endswith(("width", "latency"))}


@pytest.mark.parametrize("prefix", ["fig5", "fig7"])
def test_all_models_of_a_figure_meet_the_same_cluster_job_and_software(prefix):
    alike = {}
    for path in FILES:
        if path.stem.startswith(prefix):
            point = tables(path.stem)
            parts = (point["cluster"], point["training"], point["software"])
            assert alike.setdefault(num_devices(path.stem), parts) == parts


def test_only_models_with_graphs_for_it_are_tensor_parallel():
    for path in filter(is_searched, FILES):
        if path.stem.startswith("s54"):
            continue
        sizes = tables(path.stem)["search"]["tensor_model_parallel_sizes"]
        is_wide = any(name in path.stem for name in ("bert", "gpt3"))
        assert (max(sizes) == 8) == is_wide


def test_published_plans_fit_on_their_clusters():
    """The replicas of a plan share its devices, whatever their experts do."""
    found = 0
    for path in FILES:
        plan = tables(path.stem).get("plan")
        if plan is None or not path.stem.startswith("fig5"):
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
