"""Writing constants back touches what was fitted and nothing else."""

from importlib.resources import files

import tomli

from nestsim.features.calibration.calibrate import ConstantEntry, replace_entries
from nestsim.features.calibration.parameters import load_fit_spec

TEXT = """# head
[accelerator.default]
matmul = { value = 0.65, source = "x" } # why
memory = { value = 0.8, source = "y" }

# of the A100
[accelerator.a100]
matmul={value=0.7,source="z"}

[software.default]
gap = { value = 1.0, source = "w" }
"""

ENTRY = ConstantEntry(value=0.71234, source='fit: "a"', low=0.7, high=0.72)
LINE = 'matmul = { value = 0.7123, low = 0.7, high = 0.72, source = "fit: \\"a\\"" }'


def test_everything_else_stays_byte_for_byte():
    written = replace_entries(TEXT, {"accelerator.a100.matmul": ENTRY})
    assert written == TEXT.replace('matmul={value=0.7,source="z"}', LINE)


def test_a_new_constant_follows_the_last_one_of_its_section():
    written = replace_entries(TEXT, {"software.default.matmul": ENTRY})
    assert written == TEXT.rstrip("\n") + "\n" + LINE + "\n"


def test_a_new_section_follows_the_last_one_of_its_group():
    written = replace_entries(TEXT, {"accelerator.b200.matmul": ENTRY})
    assert written == TEXT.replace(
        'source="z"}\n', f'source="z"}}\n\n[accelerator.b200]\n{LINE}\n'
    )


def test_the_shipped_file_reads_back_with_the_new_values_alone():
    text = files("estimators").joinpath("constants.toml").read_text(encoding="utf-8")
    names = [one.name for one in load_fit_spec().parameters]
    assert names
    before = tomli.loads(text)
    after = tomli.loads(replace_entries(text, dict.fromkeys(names, ENTRY)))
    for name in names:
        group, section, constant = name.split(".")
        entry = after[group][section].pop(constant)
        assert entry == {
            "value": 0.7123,
            "low": 0.7,
            "high": 0.72,
            "source": 'fit: "a"',
        }
        before[group].setdefault(section, {}).pop(constant, None)
    assert {g: {s: e for s, e in t.items() if e} for g, t in after.items()} == {
        g: {s: e for s, e in t.items() if e} for g, t in before.items()
    }
