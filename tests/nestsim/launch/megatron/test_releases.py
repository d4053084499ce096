"""Options that a release of Megatron lacks are not written for it."""

from pathlib import Path

import nestsim
from nestsim.scenario.load import Scenario
from tests import failures
from tests.nestsim.cli.test_cli_simulate import EIGHT

PLAN = """
[plan]
pipeline_model_parallel_size = 2
virtual_pipeline_model_parallel_size = 2
data_parallel_size = 4
micro_batch_size = 1
zero_stage = 1
"""
# 1, 2, 2 and 1 blocks.
ACCOUNTED = """
account_for_embedding_in_pipeline_split = true
account_for_loss_in_pipeline_split = true
"""
OTHER_ENDS = "pipeline_model_parallel_layout = [2, 1, 2, 1]"


def exported(release: str, split: str) -> nestsim.ExportReport:
    """Export six blocks on four virtual stages."""
    text = EIGHT.replace(
        'preset = "megatron-core"', f'preset = "megatron-core"\nrelease = "{release}"'
    ).replace("[model]", "[model]\nnum_layers = 6")
    scenario = Scenario.from_toml(text + PLAN + split, Path("job.toml"))
    return nestsim.export(scenario)


@failures.over(
    ("release", "split", "words", "others"),
    [
        (
            "0.12",
            ACCOUNTED,
            "--account-for-loss-in-pipeline-split",
            "--pipeline-model-parallel",
        ),
        ("0.16", ACCOUNTED, "--pipeline-model-parallel-layout", "--account-for"),
        # Blocks of a stage, which its chunks share evenly.
        (
            "0.12",
            OTHER_ENDS,
            "--decoder-first-pipeline-num-layers 4",
            "--pipeline-model-parallel",
        ),
        ("0.16", OTHER_ENDS, "--pipeline-model-parallel-layout", "--decoder-first"),
    ],
)
def test_a_release_says_a_split_in_its_own_words(release, split, words, others):
    report = exported(release, split)
    script = str(report.launch.files["launch.sh"])
    assert words in script
    assert others not in script.replace("--pipeline-model-parallel-size", "")
    assert not [gap for gap in report.launch.gaps if "layout" in gap.setting]
