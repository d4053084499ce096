"""Tables of options name settings that a scenario has, and say each thing once."""

from dataclasses import fields

from estimators.models.spec import TransformerSpec
from estimators.training import TrainingSpec
from nestsim.scenario import model
from nestsim.scenario.base import is_table, settings
from nestsim.scenario.sites import SitesSpec
from nestsim.scenario.software import SoftwareTable
from planner.frameworks.framework import PRESETS
from planner.frameworks.options import option_table
from planner.plans.spec import PlanSpec
from tests import failures

SETTINGS = {
    "plan": set(settings(PlanSpec)),
    "training": set(settings(TrainingSpec)),
    "software": set(settings(SoftwareTable)),
    "model": {field.name for field in fields(TransformerSpec)}
    | {
        name
        for kind in vars(model).values()
        if is_table(kind)
        for name in settings(kind)
    },
    "cluster": {"accelerator", "num_devices"},
    "sites": {field.name for field in fields(SitesSpec)},
}
TABLES = {
    "torchtitan": option_table("torchtitan"),
    "maxtext": option_table("maxtext"),
    "megatron": option_table("megatron"),
    "Megatron-DeepSpeed": option_table("deepspeed"),
    "trainers": option_table("deepspeed", "trainer"),
    "keys of DeepSpeed": option_table("deepspeed", "keys"),
}


def unknown_settings(settings: str) -> list[str]:
    """Return those of some settings, the first with its table, that there are not."""
    table, missing = "", []
    for setting in filter(None, settings.split(", ")):
        outer, _, name = setting.rpartition(".")
        table = outer or (table if table else setting)
        is_table = not outer and setting in SETTINGS
        if not is_table and name not in SETTINGS.get(table, ()):
            missing.append(setting)
    return missing


def test_settings_of_options_are_those_of_a_scenario() -> None:
    wrong = [
        (name, option.setting)
        for table in TABLES.values()
        for name, option in table.options.items()
        # What several settings follow from is none of them.
        if option.table != "launch" and unknown_settings(option.setting)
    ]
    assert wrong == []


def test_settings_that_cannot_be_said_are_those_of_a_scenario() -> None:
    settings = {
        name.partition(":")[0] for table in TABLES.values() for name in table.gaps
    }
    named = {one if "." in one or one == "model" else f"plan.{one}" for one in settings}
    assert [one for one in named if unknown_settings(one)] == []


@failures.over("framework", TABLES)
def test_an_option_stands_in_one_place_and_words_come_back(framework: str) -> None:
    table = TABLES[framework]
    assert table.name in {*PRESETS, "megatron"}
    others = [*table.assumed, *table.refused]
    assert len(others) == len(set(others))
    assert not table.options.keys() & {*others, *table.silent}
    assert not table.refused.keys() & table.silent
    assert table.finer <= table.options.keys()
    for name, option in table.options.items():
        for meaning in option.words.values():
            assert option.words[option.word(meaning)] == meaning, name
        if option.choices and isinstance(option.default, str):
            assert option.default in option.choices, name
