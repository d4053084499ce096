"""What a plan that was reported trains through failures."""

from nestsim.document.parts import Section, Sentences
from nestsim.evaluate.results import ReplayedResult
from nestsim.scenario.goodput import GoodputSpec
from nestsim.scenario.load import Scenario
from topologies.errors import InputError

BEFORE_GOODPUT = "time"
"""Section of a run's report behind which this one stands."""


def run_goodput(scenario: Scenario, result: ReplayedResult) -> Section:
    """Return what ``nestsim goodput`` says of the reported plan, in short.

    Nothing stands in it if the scenario has no table [goodput], or nothing fits. What
    does not go together there says so in place of it: the plan stands.
    """
    if scenario.goodput == GoodputSpec() or not result.candidates:
        return Section("goodput", "Through failures", ())
    # With scipy's distributions: jobs that ask for no goodput do not wait for them.
    from nestsim.features.goodput.document import goodput_section
    from nestsim.features.goodput.job import goodput_job
    from nestsim.features.goodput.record import goodput_json

    try:
        found = goodput_job(scenario, replayed=result)
    except InputError as error:
        return Section("goodput", "Through failures", (Sentences((str(error),)),))
    return goodput_section(goodput_json(found))
