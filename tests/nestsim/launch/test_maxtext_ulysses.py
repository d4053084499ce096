"""MaxText's Ulysses, on TPUs alone: written with what it asks for, and read back."""

from pathlib import Path

import nestsim

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
