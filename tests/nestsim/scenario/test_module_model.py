"""A module of the user's own in a scenario: who runs it, who says so, what it costs."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nestsim.cli import main
from nestsim.evaluate.job import plan_job, simulate_job
from nestsim.features.sweep.axes import axis
from nestsim.features.sweep.scenario_task import ScenarioTask, scenario_digest
from nestsim.scenario import load_scenario
from nestsim.scenario.load import Scenario
from tests import failures
from topologies.errors import InputError

SHIPPED = Path(__file__).parents[3] / "scenarios"
MODULES = Path(__file__).parents[2] / "estimators" / "tracing" / "modules"

JOB = """
name = "a job"
[model]
{model}
[software]
preset = "ideal"
[training]
global_batch_size = 16
[cluster]
accelerator = "a100-80gb"
[cluster.network]
kind = "fat-tree"
[[cluster.network.levels]]
name = "node"
fan_out = 4
bandwidth = "300 GB/s"
latency = "1 us"
"""

OWN = """module = "llama.py:build"
sequence_length = 1024
arguments = { width = 1024, layers = 8, inner = 2816, words = 32000 }
"""

SPELLED_OUT = """family = "llama"
num_layers = 8
hidden_size = 1024
num_attention_heads = 8
num_query_groups = 4
ffn_hidden_size = 2816
vocab_size = 32000
sequence_length = 1024
"""

RUNS = "note: runs llama.py, which [model] module names\n"


def written(folder: Path, model: str = OWN, *, also: str = "") -> Path:
    shutil.copy(MODULES / "llama.py", folder)
    file = folder / "job.toml"
    file.write_text(JOB.format(model=model) + also)
    return file


def test_a_copy_of_a_family_is_planned_as_the_family(tmp_path: Path) -> None:
    own = load_scenario(written(tmp_path))
    library = Scenario.from_toml(JOB.format(model=SPELLED_OUT))
    mine, theirs = plan_job(own).candidates, plan_job(library).candidates
    assert [one.priced.plan for one in mine] == [one.priced.plan for one in theirs]
    for one, other in zip(mine, theirs, strict=True):
        assert one.planned.iteration_time == pytest.approx(
            other.planned.iteration_time, rel=1e-12
        )
        assert one.planned.mfu == pytest.approx(other.planned.mfu, rel=1e-12)
        assert one.planned.peak_memory == other.planned.peak_memory


@failures.over(
    ("model", "where", "said"),
    [
        (
            'module = "llama.py"\nsequence_length = 8',
            "model.module",
            "names no function",
        ),
        ('module = "no.py:build"\nsequence_length = 8', "model.module", "no such file"),
        (
            'module = "llama.py:make"\nsequence_length = 8',
            "model.module",
            "build, rotate",
        ),
        ('module = "llama.py:build"', "model.sequence_length", "missing"),
        (
            'module = "llama.py:build"\nsequence_length = 8\nnum_layers = 3',
            "model.num_layers",
            "unknown setting",
        ),
        (
            'module = "llama.py:build"\nname = "llama2-7b"\nsequence_length = 8',
            "model",
            "more than one way",
        ),
        (
            'module = "llama.py:build"\nsequence_length = 8\narguments = { depth = 3 }',
            "model.module",
            "unexpected keyword argument 'depth'",
        ),
    ],
)
def test_a_mistake_is_told_with_file_and_setting(
    tmp_path: Path, model: str, where: str, said: str
) -> None:
    file = written(tmp_path, model)
    with pytest.raises(InputError) as caught:
        load_scenario(file)
    assert str(caught.value).startswith(f"{file}: {where}")
    assert said in str(caught.value)


PLAN = "[plan]\nmicro_batch_size = 1\ntensor_model_parallel_size = {}\n"


def test_a_tensor_group_that_cannot_split_its_heads_is_refused(tmp_path: Path) -> None:
    six = OWN.replace("1024, layers", "768, heads = 6, groups = 6, layers")
    assert simulate_job(load_scenario(written(tmp_path, six, also=PLAN.format(2))))
    file = written(tmp_path, six, also=PLAN.format(4))
    with pytest.raises(InputError, match="does not divide num_attention_heads 6"):
        simulate_job(load_scenario(file))


def test_a_tensor_group_is_refused_where_attention_cannot_be_split(
    tmp_path: Path,
) -> None:
    file = written(tmp_path, also=PLAN.format(2))
    source = tmp_path / "llama.py"
    text = source.read_text()
    source.write_text(text.replace("self.wo(y.", "self.wo(y.exp()."))
    with pytest.raises(InputError) as caught:
        simulate_job(load_scenario(file))
    assert "but the attention in layers.0.attention does not stand" in str(caught.value)
    assert "expected: one of 1" in str(caught.value)


def test_what_runs_the_file_says_so_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(written(tmp_path)), "--json"]) == 0
    out, err = capsys.readouterr()
    assert err.count(RUNS) == 1
    assert json.loads(out)["scenario"] == "a job"


CHECK = """
import sys
sys.path[:0] = {path!r}
from nestsim.cli import main
for arguments in (["schema"], ["models"], ["topology", "other.toml"]):
    assert main(arguments) == 0
assert "torch" not in sys.modules, "torch"
assert not any("my_model" in name for name in sys.modules), "the user's file"
"""


def test_no_other_setting_runs_or_imports_anything(tmp_path: Path) -> None:
    (tmp_path / "my_model.py").write_text("raise SystemExit('this was run')\n")
    (tmp_path / "other.toml").write_text(JOB.format(model='name = "gpt3-125m"'))
    code = CHECK.format(path=[str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "runs" not in done.stderr


def test_a_changed_file_is_another_scenario(tmp_path: Path) -> None:
    path = written(tmp_path)
    scenario = load_scenario(path)
    axes = [axis("training.global_batch_size", [16, 32])]
    before = scenario_digest(scenario), ScenarioTask.of(scenario).facts(axes)["files"]
    file = tmp_path / "llama.py"
    assert scenario.files()[1:] == (file,)
    file.write_text(file.read_text() + "# another one\n")
    scenario = load_scenario(path)
    after = scenario_digest(scenario), ScenarioTask.of(scenario).facts(axes)["files"]
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_a_sweep_on_several_workers_varies_its_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = """
[sweep]
what = "plan"
[sweep.set]
"model.arguments.layers" = [4, 8]
"""
    out = tmp_path / "out"
    file = written(tmp_path, also=sweep)
    assert main(["sweep", str(file), "--workers", "2", "--output", str(out)]) == 0
    assert RUNS in capsys.readouterr().err
    rows = (out / "points.csv").read_text().splitlines()
    column = rows[0].split(",").index("planned_iteration_time_s")
    short, deep = (float(row.split(",")[column]) for row in rows[1:])
    assert 0 < short < deep
    assert json.loads((out / "manifest.json").read_text())["module"] == "llama.py:build"


def test_a_comparison_names_the_module_and_its_hash(tmp_path: Path) -> None:
    out = tmp_path / "out"
    file = written(tmp_path)
    planners = ["--planners", "nest,manual"]
    assert main(["compare", str(file), *planners, "--output", str(out)]) == 0
    manifest = json.loads((out / "manifest.json").read_text())
    module = load_scenario(file).module
    assert module is not None
    assert manifest["modules"] == {
        "job.toml": {"module": "llama.py:build", "module_sha256": module.sha256}
    }


def test_the_shipped_module_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    scenario = SHIPPED / "custom_module.toml"
    assert main(["run", str(scenario), "--output", str(out)]) == 0
    printed, err = capsys.readouterr()
    assert "note: runs my_model.py, which [model] module names" in err
    assert "Proven" in printed
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["module"] == "my_model.py:build"
    module = load_scenario(scenario).module
    assert module is not None
    assert manifest["module_sha256"] == module.sha256
    width, inner, groups, words = 2048, 8192, 512, 32_000
    block = 2 * width**2 + 2 * groups * width + 2 * inner * width + width + 2 * 128
    total = 24 * block + 2 * words * width + width
    assert module.graph.num_parameters == total


def test_a_type_without_a_reader_is_planned_of_transformers_module(
    tmp_path: Path,
) -> None:
    """Where the file lies matters, and settings that only readers heed are refused."""
    pytest.importorskip("transformers")
    config = {"model_type": "bitnet", "num_hidden_layers": 3, "hidden_size": 512}
    config |= {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000}
    (tmp_path / "config.json").write_text(json.dumps(config))
    table = 'config = "config.json"\nsequence_length = 512\n'
    scenario = load_scenario(written(tmp_path, table + "num_layers = 4\n"))
    assert scenario.module is not None
    assert scenario.spec.num_layers == 4
    assert scenario.module_facts() == {}
    assert "transformers" in " ".join(scenario.notes)
    assert plan_job(scenario).candidates
    file = written(tmp_path, table + "mtp_num_layers = 1\n")
    with pytest.raises(InputError) as caught:
        load_scenario(file)
    assert str(caught.value).startswith(f"{file}: model.mtp_num_layers")


def test_a_type_that_cannot_be_traced_is_refused_with_what_it_has(
    tmp_path: Path,
) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text('{"model_type": "jetmoe"}')
    with pytest.raises(InputError) as caught:
        load_scenario(written(tmp_path, 'config = "config.json"\n'))
    assert "model type is not supported" in str(caught.value)
    assert "a mixture of attention heads" in caught.value.hint


def test_pictures_are_part_of_a_scenario(tmp_path: Path) -> None:
    """Those of a model that sees; a model without a tower refuses them."""
    text = {
        "model_type": "qwen3_vl_text",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 211,
        "max_position_embeddings": 4096,
    }
    vision = {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 4,
        "out_hidden_size": 64,
        "deepstack_visual_indexes": [1],
    }
    seeing = {"model_type": "qwen3_vl", "text_config": text, "vision_config": vision}
    (tmp_path / "config.json").write_text(json.dumps(seeing))
    table = 'config = "config.json"\nsequence_length = 512\n'
    pictures = "images = 2\nimage_pixels = [96, 64]\n"
    spec = load_scenario(written(tmp_path, table + pictures)).spec
    assert spec.vision is not None
    assert (spec.vision.images, spec.vision.patches) == (2, 24)
    assert plan_job(load_scenario(written(tmp_path, table + pictures))).candidates
    (tmp_path / "config.json").write_text(json.dumps({**text, "model_type": "qwen3"}))
    with pytest.raises(InputError) as caught:
        load_scenario(written(tmp_path, table + pictures))
    assert "images" in str(caught.value)
