"""``nestsim sites``: what it is called with, and what it returns."""

from collections.abc import Iterator
from dataclasses import dataclass

from nestsim.commands.calls import ProgressTarget, ScenarioSource, reported
from nestsim.commands.report import Parts, ScenarioReport
from nestsim.features.sites.document import sites_document
from nestsim.features.sites.job import SitesFindings, SitesResult, sites_job
from nestsim.features.sites.record import sites_json


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SitesReport(ScenarioReport):
    """What sites far apart train together, and the network that they need."""

    result: SitesResult
    """Everything that was found."""

    @property
    def succeeded(self) -> bool:
        """Whether there is a plan for a site."""
        return self.result.findings is not None

    def facts(self) -> dict[str, object]:
        """Return tokens a day, the time of a round, and the share of inner steps."""
        name, trained = self.result.scenario_name, self.result.findings
        if trained is None:
            return {"scenario": name, "reason": self.result.shortfall}
        rate, loop = trained.spec.rate(), trained.given.loop
        return {
            "scenario": name,
            "tokens_per_day": trained.tokens_per_day(trained.given),
            "alone_per_day": trained.alone_per_day,
            "compute_share": loop.compute_share(rate),
            "round_s": loop.round_time(rate),
            "step_time_s": trained.step_time,
        }

    def parts(self) -> Parts:
        """Return record, points of the curves, figures and page."""
        record, findings = sites_json(self.result), self.result.findings
        rows = [] if findings is None else [*curve_rows(findings)]
        return self.parts_of("sites", record, rows, sites_document)


def sites(scenario: ScenarioSource, *, progress: ProgressTarget = None) -> SitesReport:
    """Find what sites far apart train together, over what network.

    Other networks: ``scenario.replace({"sites.bandwidth": "1 Gbit/s"})``.

    Parameters
    ----------
    scenario
        As `nestsim.plan` takes it, of one site; its table [sites] says how many there
        are, what joins them and how often they meet.
    progress
        As `nestsim.plan` takes it.

    Raises
    ------
    InputError
        If the scenario is wrong, has no table [sites], or its parts do not go together.
    """
    return reported(SitesReport, sites_job, scenario, progress)


def curve_rows(findings: SitesFindings) -> Iterator[dict[str, object]]:
    """Yield one row for each way and point of the curves."""
    spec = findings.spec
    for way in findings.ways:
        bandwidths = zip(
            findings.bandwidths(), findings.over_bandwidth(way), strict=True
        )
        latencies = zip(findings.latencies(), findings.over_latency(way), strict=True)
        points = [
            *((bandwidth, spec.latency, tokens) for bandwidth, tokens in bandwidths),
            *((spec.slowest, latency, tokens) for latency, tokens in latencies),
        ]
        for bandwidth, latency, tokens in points:
            yield {
                "way": way.name,
                "bandwidth_bytes_per_s": bandwidth,
                "latency_s": latency,
                "tokens_per_day": tokens,
            }
