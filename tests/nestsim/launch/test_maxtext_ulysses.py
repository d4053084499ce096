"""MaxText's ways to share sequences on TPUs: written with what they ask for, and read.

`python -m tests.frameworks maxtext` asks ``pyconfig`` about such plans.
"""

from pathlib import Path
from typing import Any

import pytest

import nestsim
from nestsim.launch.read import LaunchSource
from nestsim.launch.readers import find_reader
from planner.frameworks.framework import FRAMEWORKS
from tests import failures
from topologies.errors import InputError

SCENARIO = """
name = "heads exchanged"
[model]
name = "llama2-7b"
[training]
global_batch_size = 16
[software]
preset = "maxtext"
[cluster]
accelerator = "tpu-v5e"
network = {kind = "torus", dimensions = [4, 4], bandwidth = "50 GB/s", latency = "1 us"}
[plan]
micro_batch_size = 1
context_parallel_size = 4
data_parallel_size = 4
cp_comm_type = "a2a"
zero_stage = 3
"""


def test_heads_are_exchanged_as_maxtext_asks_for_it(tmp_path: Path) -> None:
    scenario = tmp_path / "job.toml"
    scenario.write_text(SCENARIO, encoding="utf-8")
    launch = nestsim.export(scenario).launch
    assert launch.gaps == ()
    name, text = next((k, str(v)) for k, v in launch.files.items() if k.endswith("yml"))
    # configs/types.py of 0.2.5: what ulysses is refused without.
    for line in (
        'context_parallel_strategy: "ulysses"',
        'attention: "flash"',
        "use_tokamax_splash: true",
        "context_parallel_load_balance: false",
    ):
        assert text.count(f"\n{line.partition(':')[0]}:") == 1
        assert line in text
    (tmp_path / name).write_text(text, encoding="utf-8")
    plan = nestsim.import_launch(tmp_path / name).scenario.plan
    assert plan is not None
    assert plan.cp_comm_type == "a2a"
    # A ring of GPUs is none of it.
    scenario.write_text(SCENARIO.replace("tpu-v5e", "h100-sxm"), encoding="utf-8")
    (gap,) = nestsim.export(scenario).launch.gaps
    assert gap.setting == "cp_comm_type"


def written(folder: Path, *changes: tuple[str, str]) -> tuple[str, Any]:
    """Return the YAML file of the job with other settings, and the plan of it."""
    text = SCENARIO
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    scenario = folder / "job.toml"
    scenario.write_text(text, encoding="utf-8")
    launch = nestsim.export(scenario).launch
    assert launch.gaps == ()
    file = folder / "maxtext.yml"
    file.write_text(str(launch.files["maxtext.yml"]), encoding="utf-8")
    plan = nestsim.import_launch(file).scenario.plan
    return file.read_text(encoding="utf-8"), plan


USP = (
    'cp_comm_type = "a2a"',
    'cp_comm_type = "a2a+p2p"\nhierarchical_context_parallel_sizes = {}',
)


@failures.over("sizes", [(2, 4), (4, 2)])
def test_rings_of_exchanged_heads_are_two_axes(
    sizes: tuple[int, int], tmp_path: Path
) -> None:
    old, new = USP
    text, plan = written(
        tmp_path,
        (old, new.format(list(sizes))),
        ("context_parallel_size = 4", "context_parallel_size = 8"),
        ("data_parallel_size = 4", "data_parallel_size = 2"),
    )
    # _validate_usp_context_parallelism of configs/types.py, 0.2.5.
    for line in (
        'context_parallel_strategy: "usp"',
        f"ici_context_usp_ulysses_parallelism: {sizes[0]}",
        f"ici_context_parallelism: {sizes[1]}",
        'attention: "flash"',
        "use_tokamax_splash: true",
    ):
        assert f"\n{line}\n" in text
    assert "context_parallel_load_balance" not in text
    assert plan.cp_comm_type == "a2a+p2p"
    assert plan.hierarchical_context_parallel_sizes == sizes
    assert plan.context_parallel_size == 8
    assert plan.zero_stage == 3
    assert plan.sharding_group_size is None


def test_a_ring_on_tpus_has_the_kernel_that_it_is_refused_without(
    tmp_path: Path,
) -> None:
    ring = ('cp_comm_type = "a2a"', 'cp_comm_type = "p2p"')
    text, plan = written(tmp_path, ring)
    assert plan.cp_comm_type == "p2p"
    for line in (
        'attention: "flash"',
        "use_tokamax_splash: true",
        'context_parallel_strategy: "ring"',
    ):
        assert f"\n{line}\n" in text
    assert "packing" not in text
    gathered, _ = written(tmp_path, ('cp_comm_type = "a2a"', ALL))
    assert "use_tokamax_splash" not in gathered
    latent, _ = written(tmp_path, ring, ("llama2-7b", "deepseek-v2-lite"))
    assert "\npacking: false\n" in latent


ALL = 'cp_comm_type = "all_gather"'


@failures.over(
    "lines",
    [
        "context_parallel_strategy: usp\nici_context_parallelism: 4",
        "context_parallel_strategy: usp\nici_context_usp_ulysses_parallelism: 4",
        "context_parallel_strategy: ring\nici_context_parallelism: 2\n"
        "ici_context_usp_ulysses_parallelism: 2",
    ],
)
def test_what_maxtext_refuses_is_not_read(lines: str) -> None:
    text = f"base_config: base.yml\nmodel_name: llama2-7b\n{lines}\n"
    source = LaunchSource(path=Path("job.yml"), text=text, num_devices=16)
    with pytest.raises(InputError) as caught:
        find_reader(source).read(source)
    assert caught.value.where == "context_parallel_strategy"


def test_on_tpus_the_square_of_a_ring_divides_a_sequence() -> None:
    rules = FRAMEWORKS["maxtext"].rules
    on_gpus, on_tpus = (rules.on(name) for name in ("h100-sxm", "tpu-v5p"))
    # Ranks of a sequence, of a ring.
    assert [on_gpus.sequence_unit(1, *x) for x in ((8, 8), (8, 1))] == [8, 8]
    units = [on_tpus.sequence_unit(1, *x) for x in ((8, 8), (8, 1), (8, 2), (8, 4))]
    assert units == [64, 8, 8, 16]
