"""Every plan of every shipped scenario as its framework's launch configuration.

What is written is read again as the same settings, or the difference is named.
"""

from pathlib import Path

import pytest

from nestsim.evaluate.job import plan_job
from nestsim.launch.job import LaunchJob
from nestsim.launch.read import LaunchSource
from nestsim.launch.readers import READERS
from nestsim.launch.registry import PRESET_FORMATS, WRITERS
from nestsim.scenario.load import Scenario, load_scenario
from nestsim.scenario.software import PRESETS
from tests import failures
from topologies.errors import InputError

SCENARIOS = Path("scenarios")


def _loaded() -> dict[str, Scenario]:
    found = {}
    for path in (*SCENARIOS.rglob("*.toml"), *SCENARIOS.rglob("*.yaml")):
        try:
            scenario = load_scenario(path)
        except InputError:
            continue  # a part of a scenario: links, a network
        if scenario.network_spec.kind != "none":  # of memory alone
            found[str(path.relative_to(SCENARIOS))] = scenario
    return found


LOADED = dict(sorted(_loaded().items()))
GIVEN = [name for name, one in LOADED.items() if one.plan is not None]
SEARCHED = [name for name in LOADED if name not in GIVEN]

NOT_THEIRS = {"ai2_olmo2_32b_1024_h100", "google_palm_540b_6144_tpuv4_pods"}
"""Scenarios whose models their launchers do not have."""


def check(job: LaunchJob, tmp_path: Path) -> None:
    """Hold an export to what it is read as; differences must be named."""
    to = PRESET_FORMATS[job.scenario.software_preset]
    launch = WRITERS[to](job)
    assert all(isinstance(one, str) and one for one in launch.files.values())
    if "model" in {gap.setting for gap in launch.gaps}:
        # To be written by the user before the launcher, or a reader, knows it.
        assert job.scenario.path.stem in NOT_THEIRS
        return
    if to not in READERS:  # Megatron Bridge's says what Megatron-LM's says
        launch = WRITERS["megatron"](job)
        to = "megatron"
    for name, text in launch.files.items():
        (tmp_path / name).write_text(str(text), encoding="utf-8")
    name = next(iter(launch.files))
    source = LaunchSource(path=tmp_path / name, text=str(launch.files[name]))
    imported = READERS[to].read(source)
    assert imported.num_devices == job.plan.parallel.num_devices
    if launch.gaps:  # what is read is another plan, and what differs is named
        return
    document = {
        "name": "again",
        **imported.tables,
        "cluster": job.scenario.document()["cluster"],
    }
    again = LaunchJob.of(Scenario.from_dict(document, path=job.scenario.path))
    assert again.settings == job.settings


def test_few_plans_cannot_be_said_in_full() -> None:
    """Whole stages recomputed, Mist's stages, DeepSeek-V3's DualPipe-V; padding.

    Llama 3's FSDP frees gradients that Megatron's buffers hold; it has no sandwich
    norms. Adapters are told nowhere. OLMo 2 and PaLM are no models of their launchers,
    nor is Wan.
    Attention in 8 bits has no option on Megatron-LM's command line; what XLA does not
    hide has none in MaxText.

    GPT-3 has 50,257 tokens, an odd number that no tensor-parallel size divides.
    """
    with_gaps = []
    for name in GIVEN:
        job = LaunchJob.of(LOADED[name])
        if WRITERS[PRESET_FORMATS[job.scenario.software_preset]](job).gaps:
            with_gaps.append(name)
    assert with_gaps == [
        "cost/gpt3_175b_1024_h100.toml",
        "deepseek_v3_2048_h800.toml",
        "goodput/llama3_405b_16384_h100.toml",
        "gpt3_175b_1024_h100.toml",
        "llama3_8b_2_rtx4090_qlora.toml",
        "mist_gpt_1.3b_2_l4.yaml",
        *(f"paper/fig10_gpt3_{n}.toml" for n in (4, 8)),
        "paper/fig2_gpt3_175b.toml",
        *(f"paper/fig5_gpt3_175b_{n}.toml" for n in (1024, 128, 256, 512)),
        "paper/fig5_llama3_70b_128.toml",
        *(f"paper/fig5_mixtral_8x7b_{n}.toml" for n in (1024, 128, 256, 512)),
        *(
            f"published/{stem}.toml"
            for stem in (
                "ai2_olmo2_32b_1024_h100",
                "google_palm_540b_6144_tpuv4_pods",
                "maxtext_deepseek_v3_256_tpuv7",
                "maxtext_qwen3_235b_256_tpuv7",
                "megascale_moe_352b_1440_h800",
                "meta_llama3_405b_131k_16384_h100",
                "meta_llama3_405b_16384_h100",
                *(
                    f"mlperf_deepseek_v3_{chips}"
                    for chips in ("256_gb300", "4096_gb300", "8192_gb200")
                ),
                *(f"nvidia_wan_14b_{chips}" for chips in ("128_h100", "32_gb200")),
            )
        ),
    ]


def test_every_framework_has_a_format() -> None:
    assert PRESET_FORMATS.keys() == PRESETS.keys()
    assert set(PRESET_FORMATS.values()) <= WRITERS.keys()


@failures.over("name", GIVEN)
def test_a_plan_that_is_given_comes_back(name: str, tmp_path: Path) -> None:
    check(LaunchJob.of(LOADED[name]), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHED)
def test_a_plan_that_is_found_comes_back(name: str, tmp_path: Path) -> None:
    scenario = LOADED[name]
    found = plan_job(scenario).candidates
    if not found:
        pytest.skip("no plan fits")
    check(LaunchJob.of(scenario, found[0].priced.plan), tmp_path)
