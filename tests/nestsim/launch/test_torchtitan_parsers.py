"""What is written for torchtitan is read by torchtitan itself.

Needs torchtitan, which needs triton and a recent torch: it is no part of the
development environment. Run with 0.2.2 for the TOML file, with 0.3.0 for the command
line.
"""

import dataclasses
import importlib.metadata
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from estimators.models.library import load_model
from nestsim.launch.formats.torchtitan.names import (
    COMMAND,
    FLAVORS,
    OPTIONS,
    REGISTRY,
    TOML,
    shared_blocks,
)
from nestsim.launch.formats.torchtitan.writing import write_torchtitan
from nestsim.launch.job import LaunchJob
from tests import failures
from tests.frameworks.environments import (
    UnavailableError,
    built_python,
    read_environments,
)
from tests.nestsim.launch.megatron.test_groups import planned
from tests.nestsim.launch.test_torchtitan_round_trip import PLANS
from tests.nestsim.launch.torchtitan_jobs import (
    EXPERTS,
    read_text,
    small_job,
    text_of,
)


def _version() -> str:
    try:
        return importlib.metadata.version("torchtitan")
    except importlib.metadata.PackageNotFoundError:
        return ""


needs_toml = pytest.mark.skipif(
    not _version().startswith("0.2"), reason="needs torchtitan 0.2, which reads TOML"
)
needs_command = pytest.mark.skipif(
    not _version().startswith("0.3"),
    reason="needs torchtitan 0.3, which has a registry and a command line",
)
pytestmark = pytest.mark.filterwarnings("ignore")


def _parsed_toml(folder: Path, text: str) -> Any:
    from torchtitan.config import ConfigManager

    path = folder / "torchtitan.toml"
    path.write_text(text)
    return ConfigManager().parse_args(["--job.config_file", str(path)])


def _parsed_command(text: str) -> Any:
    from torchtitan.config import ConfigManager

    return ConfigManager().parse_args(_words(text))


def _words(text: str) -> list[str]:
    """Return the words behind torchtitan's module in a script."""
    script = 'torchrun() { printf "%s\\0" "$@"; }\n' + text
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    words = done.stdout.decode().split("\0")[:-1]
    return words[words.index("torchtitan.train") + 1 :]


def _option(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part)
    return config


@needs_toml
@failures.over("plan", PLANS, ids=str)
def test_0_2_reads_the_toml(plan: Mapping[str, Any], tmp_path: Path) -> None:
    job = small_job(plan)
    config = _parsed_toml(tmp_path, text_of(write_torchtitan(job), "torchtitan.toml"))
    degrees = config.parallelism
    sizes = job.plan.parallel
    assert degrees.tensor_parallel_degree == sizes.tensor_model_parallel_size
    assert (
        degrees.data_parallel_replicate_degree * degrees.data_parallel_shard_degree
        == sizes.data_parallel_size
    )
    assert config.model.flavor == "h256_l8_a8_g8_f768_v1024"


@needs_toml
def test_names_and_defaults_are_those_of_0_2() -> None:
    from torchtitan.config import JobConfig

    config = JobConfig()
    for name, option in OPTIONS.items():
        if (
            option.since == TOML
            and name != "parallelism.pipeline_parallel_split_points"
        ):
            assert _option(config, name) == option.default, name


@needs_toml
def test_blocks_are_shared_out_as_0_2_does() -> None:
    from torchtitan.distributed.pipeline_parallel import (
        generate_llm_fqn_per_model_part as generated,
    )

    for layers, stages, first, last in ((32, 4, 1, 1), (126, 8, 1, 2), (10, 3, 0, 0)):
        names = generated(stages, layers, first, last)
        counts = [sum(one.startswith("layers.") for one in part) for part in names]
        assert list(shared_blocks(layers, stages, first=first, last=last)) == counts


@needs_toml
def test_a_new_flavor_of_0_2_has_the_sizes_of_the_model(tmp_path: Path) -> None:
    model = {"name": "llama2-7b", "sequence_length": 512}
    files = write_torchtitan(small_job({}, model=model))
    config = _parsed_toml(tmp_path, text_of(files, "torchtitan.toml"))
    scope: dict[str, Any] = {"__name__": "train"}
    exec(text_of(files, "torchtitan_train.py"), scope)
    arguments = scope["llama3_args"][config.model.flavor]
    width = int(2 * 4 * arguments.dim / 3)
    if arguments.ffn_dim_multiplier is not None:
        width = int(arguments.ffn_dim_multiplier * width)
    multiple = arguments.multiple_of
    assert multiple * -(-width // multiple) == 11008
    assert (arguments.dim, arguments.n_layers, arguments.vocab_size) == (
        4096,
        32,
        32000,
    )


GROUPED = (
    {"tensor_model_parallel_size": 2, "expert_tensor_parallel_size": 1},
    {"tensor_model_parallel_size": 2, "expert_tensor_parallel_size": 2},
    {"tensor_model_parallel_size": 1},
    {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 2},
)
"""Plans with experts beside context parallelism, eight ranks of experts."""


@needs_toml
@failures.over("plan", GROUPED, ids=str)
@failures.over("cp", [2, 4])
def test_0_2_builds_the_groups_that_a_plan_is_priced_with(
    plan: Mapping[str, Any], cp: int
) -> None:
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torchtitan.distributed import parallel_dims

    ep = 8 // plan.get("expert_tensor_parallel_size", 1)
    job = small_job(
        {**plan, "context_parallel_size": cp, "expert_model_parallel_size": ep},
        model=EXPERTS,
    )
    sizes = job.plan.parallel
    dims = parallel_dims.ParallelDims(
        dp_replicate=1,
        dp_shard=sizes.data_parallel_size,
        cp=cp,
        tp=sizes.tensor_model_parallel_size,
        pp=sizes.pipeline_model_parallel_size,
        ep=ep,
        etp=plan.get("expert_tensor_parallel_size", 1),
        world_size=16,
    )
    names = {
        "ep": "ep",
        "efsdp": "expert dp",
        "etp": "etp",
        "cp": "cp",
        "fsdp": "dp-cp",
    }
    built: dict[str, set[tuple[int, ...]]] = {name: set() for name in names.values()}
    for rank in range(16):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=16)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parallel_dims, "device_type", "cpu")
            dims.build_mesh()
        for theirs, name in names.items():
            mesh = dims.get_optional_mesh(theirs)
            ranks = [rank] if mesh is None else sorted(mesh.mesh.flatten().tolist())
            built[name].add(tuple(ranks))
        dist.destroy_process_group()
    assert built == {name: planned(job)[name] for name in built}


@needs_command
@failures.over("plan", PLANS, ids=str)
def test_0_3_reads_the_command_line(
    plan: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = small_job(plan)
    files = write_torchtitan(job)
    (tmp_path / "torchtitan_config.py").write_text(
        text_of(files, "torchtitan_config.py")
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "torchtitan_config", raising=False)
    config = _parsed_command(text_of(files, "torchtitan.sh"))
    model = config.model_spec.model
    assert (model.dim, len(model.layers), model.vocab_size) == (256, 8, 1024)
    assert model.layers[0].feed_forward.w1.out_features == 768
    assert config.training.global_batch_size == 64
    degrees, sizes = config.parallelism, job.plan.parallel
    assert degrees.tensor_parallel_degree == sizes.tensor_model_parallel_size
    assert degrees.pipeline_parallel_degree == len(job.plan.stages)


@needs_command
def test_0_3_reads_the_command_line_of_experts() -> None:
    plan = {"expert_model_parallel_size": 8, "recompute": "full"}
    files = write_torchtitan(small_job(plan, model=EXPERTS))
    config = _parsed_command(text_of(files, "torchtitan.sh"))
    assert config.model_spec.flavor == "30B-A3B"
    assert config.parallelism.expert_parallel_degree == 8


@needs_command
def test_names_and_defaults_are_those_of_0_3() -> None:
    from torchtitan.trainer import Trainer

    config = Trainer.Config()
    for name, option in OPTIONS.items():
        written = name if option.newer is None else option.newer
        if written:
            assert _option(config, written) == option.default, name
    assert any(option.since == COMMAND for option in OPTIONS.values())


@needs_command
@failures.over("name", [n for n in FLAVORS if FLAVORS[n].in_command])
def test_flavors_of_0_3_have_the_sizes_of_the_library(name: str) -> None:
    flavor, spec = FLAVORS[name], load_model(name)
    module = importlib.import_module(f"torchtitan.models.{flavor.model}")
    model = module.model_registry(flavor.flavor).model
    assert (len(model.layers), model.dim, model.vocab_size) == (
        spec.num_layers,
        spec.hidden_size,
        spec.vocab_size,
    )


@needs_command
@failures.over("function", REGISTRY)
def test_functions_of_the_registry_set_what_the_table_says(function: str) -> None:
    name, values = REGISTRY[function]
    model = FLAVORS[name].model
    module = importlib.import_module(f"torchtitan.models.{model}.config_registry")
    if "model.converters" in values:
        pytest.importorskip("torchao", reason="8-bit products need torchao")
    config = getattr(module, function)()
    assert config.model_spec.flavor == FLAVORS[name].flavor
    for option in OPTIONS:
        known = OPTIONS[option]
        written = option if known.newer is None else known.newer
        if written and dataclasses.is_dataclass(config):
            assert _option(config, written) == values.get(option, known.default)
    kind = type(config.activation_checkpoint).__qualname__.split(".")[0]
    mode = values.get("activation_checkpoint.mode", "selective")
    assert kind == {"full": "FullAC", "selective": "SelectiveAC"}[mode]


def _deepseek() -> LaunchJob:
    """Return a job that compiles the model, whose function compiles the loss alone."""
    model = {"name": "deepseek-v3", "sequence_length": 512, "mtp_num_layers": 0}
    plan = {"tensor_model_parallel_size": 8, "recompute": "full"}
    return small_job(plan, model=model, software={"tp_comm_overlap": True})


@needs_command
def test_models_whose_function_compiles_the_loss_alone_overlap_tensor_parallelism() -> (
    None
):
    """0.3 refuses asynchronous tensor parallelism unless the model is compiled."""
    config = _parsed_command(text_of(write_torchtitan(_deepseek()), "torchtitan.sh"))
    assert config.compile.enable_async_tensor_parallel
    assert config.compile.components == ["model", "loss"]


def test_a_list_of_0_3_is_one_word_with_commas() -> None:
    text = text_of(write_torchtitan(_deepseek()), "torchtitan.sh")
    words = _words(text)
    assert words[words.index("--compile.components") + 1] == "model,loss"
    note = "Kernels are those of PyTorch without torch.compile."
    assert note in read_text(text, "torchtitan.sh").assumptions
    loss = read_text(text.replace("model,loss", "loss"), "torchtitan.sh")
    assert note not in loss.assumptions


PARSE = """
import sys
from torchtitan.config import ConfigManager
compiled = ConfigManager().parse_args(sys.argv[1:]).compile
print(compiled.enable, compiled.enable_async_tensor_parallel, *compiled.components)
"""


@pytest.mark.slow
def test_lists_are_read_by_the_parser_of_the_environment() -> None:
    try:
        python = built_python(read_environments()["torchtitan-0.3"], build=False)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    words = _words(text_of(write_torchtitan(_deepseek()), "torchtitan.sh"))
    command = [str(python), "-W", "ignore", "-c", PARSE, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "True True model loss"
