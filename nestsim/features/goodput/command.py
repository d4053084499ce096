"""``nestsim goodput``: what it is called with, and what it returns."""

from dataclasses import dataclass

from nestsim.commands.calls import ProgressTarget, ScenarioSource, reported
from nestsim.commands.report import Parts, ScenarioReport
from nestsim.features.goodput.document import goodput_document
from nestsim.features.goodput.job import goodput_job
from nestsim.features.goodput.record import goodput_json
from nestsim.features.goodput.results import GoodputFindings, GoodputResult


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class GoodputReport(ScenarioReport):
    """What a job trains through failures, and what takes the rest."""

    result: GoodputResult
    """Everything that was found."""

    @property
    def succeeded(self) -> bool:
        """Whether there is a plan to train with."""
        return self.result.findings is not None

    def facts(self) -> dict[str, object]:
        """Return goodput, tokens a day, and the interval between checkpoints."""
        findings = self.result.findings
        facts: dict[str, object] = {"scenario": self.result.scenario_name}
        if findings is None:
            return {**facts, "reason": self.result.shortfall}
        return {
            **facts,
            "goodput": findings.goodput.p50,
            "effective_training_time": findings.effective_time.p50,
            "tokens_per_day": findings.tokens_per_day.p50,
            "mtti_s": findings.mtti,
            "interval_s": findings.habits.interval,
            "best_interval_s": findings.best,
        }

    def parts(self) -> Parts:
        """Return record, a row for each run, figure and page."""
        record, findings = goodput_json(self.result), self.result.findings
        rows = [] if findings is None else seed_rows(findings)
        return self.parts_of("goodput", record, rows, goodput_document)


def goodput(
    scenario: ScenarioSource, *, progress: ProgressTarget = None
) -> GoodputReport:
    """Find what a job trains through failures, checkpoints and restarts.

    Other habits: ``scenario.replace({"goodput.checkpoint.interval": "30 min"})``.

    Parameters
    ----------
    scenario
        As `nestsim.plan` takes it; its table [goodput] says what fails, and what the
        job does about it.
    progress
        As `nestsim.plan` takes it.

    Raises
    ------
    InputError
        If the scenario is wrong, or its parts do not go together.
    """
    return reported(GoodputReport, goodput_job, scenario, progress)


def seed_rows(findings: GoodputFindings) -> list[dict[str, object]]:
    """Return one row for each seed: shares of its time, and its interruptions."""
    runs = findings.runs
    shares, day = runs.shares(), findings.healthy.tokens_per_day
    return [
        {
            "seed": seed,
            "goodput": float(runs.goodput[place]),
            "effective_training_time": float(runs.effective_time[place]),
            "tokens_per_day": float(runs.goodput[place]) * day,
            "interruptions": int(runs.interruptions[place]),
            **{
                name.replace(" ", "_"): float(share[place])
                for name, share in shares.items()
                if name != "training"
            },
        }
        for place, seed in enumerate(findings.seeds)
    ]
