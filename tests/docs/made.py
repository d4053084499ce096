"""What programs write into the pages.

``python -m tests.docs.made`` writes all of it anew, ``python -m tests.docs.made NAME``
one part. A part stands between ``<!-- NAME -->`` and ``<!-- end -->``; the tests make
the quick ones again and compare, `make slow` the others. The tables of docs/paper.md
and docs/published.md have programs of their own, as their results take minutes.
"""

import contextlib
import io
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

import nestsim
from docs.builder.commands import commands_reference
from docs.builder.settings import settings_reference
from docs.builder.tutorial import tutorial
from estimators.models.huggingface import model_types, read_types
from nestsim.cli import main as nestsim_main
from nestsim.document.wording import long_time, number, percent
from nestsim.evaluate.cluster import cluster_network
from nestsim.evaluate.job import plan_job
from nestsim.features.compare.networks_job import on_network, read_network_files
from nestsim.features.sites.job import SHARES
from nestsim.features.sites.record import gigabits
from nestsim.scenario.load import Scenario, load_scenario
from planner.frameworks.framework import FRAMEWORKS
from planner.work import Spent
from tests.benchmarks.planner_cases import all_cases
from tests.benchmarks.planner_growth import replayed_search
from tests.docs.pages import DOCS, ROOT
from tests.nestsim.features.goodput.published_jobs import published_jobs
from tests.nestsim.features.rl.published_runs import PARTS, published_steps
from tests.nestsim.features.sites.published_sites import (
    FITTED_BITS,
    INTELLECT_1,
    published_rows,
)
from tests.validation.test_mist_l4 import RUNS, predicted
from topologies.fabrics.inventory import count_parts
from topologies.network import Network, Routes
from topologies.units import format_bandwidth, format_duration

SCENARIOS = ROOT / "scenarios"


def launched() -> str:
    """Return what the usual release of each framework can launch."""
    rows = []
    for name, framework in FRAMEWORKS.items():
        rules = framework.rules
        ranks = {"plain": " (alone)", "equal": " (etp ep = tp cp)"}
        inside = [order for order in rules.orders if order[-1] != "pp"]
        rows.append(
            [
                f"`{name}`",
                rules.framework.rstrip(","),
                _listed(rules.schedules),
                _listed(rules.zero_stages),
                _listed(rules.zero_stages_with_pipeline),
                _listed(rules.hybrid_sharding),
                _listed((*rules.context_parallel, *rules.context_parallel_on_tpu)),
                _listed(rules.expert_tensor_parallel if rules.expert_parallel else ()),
                f"yes{ranks.get(rules.pp_inside, '')}" if inside else "no",
                _listed(rules.splits if rules.pipeline else ()),
            ]
        )
    head = ["preset", "rules of", "schedules", "ZeRO", "with a pipeline", "parts"]
    return markdown_table(
        [*head, "cp", "an expert on tp ranks", "pp inside dp", "blocks"], rows
    )


def _listed(values: Sequence[object]) -> str:
    return ", ".join(str(value) for value in values) or "-"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def published() -> str:
    """Return the tables by source of what `nestsim validate --markdown` prints."""
    blocks = _printed("validate", "--markdown").split("\n\n")
    heads = ("| Time of a step |", "| Memory of a device |")
    return "\n\n".join(block.strip() for block in blocks if block.startswith(heads))


def _printed(*words: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = nestsim_main([*words, "--quiet"])
    assert status == 0, words
    return printed.getvalue().strip()


def types_read() -> str:
    """Return the types of Hugging Face that are read, and what others have."""
    missing: dict[str, list[str]] = {}
    for name, operator in read_types()["missing"].items():
        missing.setdefault(operator, []).append(f"`{name}`")
    rows = [[operator, ", ".join(names)] for operator, names in missing.items()]
    names = ", ".join(f"`{name}`" for name in sorted(model_types()))
    table = markdown_table(["no table, as they have", "types"], rows)
    return f"Read: {names}.\n\n{table}"


def goodput_habits() -> str:
    """Return effective training time of Llama 3 405B over intervals and diagnoses."""
    scenario = load_scenario(SCENARIOS / "goodput" / "llama3_405b_16384_h100.toml")
    diagnoses = {"no diagnosis": "0 s", "5 min": "5 min", "10 min": "10 min"}
    rows = []
    for interval in ("5 min", "10 min", "30 min", "60 min"):
        shares = []
        for diagnosis in diagnoses.values():
            asked = {
                "goodput.checkpoint.interval": interval,
                "goodput.diagnosis_time": diagnosis,
                "goodput.duration": "54 d",
                "goodput.seeds": 100,
            }
            findings = nestsim.goodput(scenario.replace(asked)).result.findings
            assert findings is not None
            shares.append(percent(findings.effective_time.mean))
        rows.append([interval, *shares])
    return markdown_table(["checkpoints every", *diagnoses], rows)


def goodput_recovery() -> str:
    """Return goodput of Llama 3 405B with quicker ways back, and 64 spare nodes."""
    scenario = load_scenario(SCENARIOS / "goodput" / "llama3_405b_16384_h100.toml")
    scenario = scenario.replace({"goodput.spares": 64, "goodput.seeds": 100})
    racks = [{"name": "rack power", "nodes": 16, "mtbf": "2000 d"}]
    slow = {"share": 0.1, "time": "6 h", "speed": 0.7}
    peers = "checkpoint.peers"
    asked: dict[str, dict[str, object]] = {
        "as above": {},
        "a second node keeps each part in memory": {peers: {}},
        "racks fail": {"domains": racks},
        "racks fail, neighbours keep the parts": {"domains": racks, peers: {}},
        "racks fail, other racks keep the parts": {
            "domains": racks,
            peers: {"replication_jump": 16},
        },
        "spare nodes with processes, ready in 1 min": {"hot_restart_time": "1 min"},
        "8 of 10 failures of software leave processes": {
            "causes": [{"name": "software", "warm_share": 0.8}]
        },
        "1 of 10 nodes is slow for 6 h first": {"slow": slow},
        "and is noticed in 30 min": {"slow": {**slow, "detection_time": "30 min"}},
    }
    rows = []
    for name, settings in asked.items():
        changed = {f"goodput.{key}": value for key, value in settings.items()}
        findings = nestsim.goodput(scenario.replace(changed)).result.findings
        assert findings is not None
        shares, peers_have = findings.shares(), findings.habits.peers is not None
        rows.append(
            [
                name,
                long_time(findings.habits.interval),
                f"{100.0 * findings.goodput.mean:.2f} %",
                f"{100.0 * findings.expected:.2f} %",
                f"{100.0 * shares['lost work'].mean:.2f} %",
                f"{100.0 * shares['restart'].mean:.2f} %",
                f"{100.0 * shares['slow nodes'].mean:.2f} %",
                f"{100.0 * findings.memory_lost:.3f} %" if peers_have else "",
            ]
        )
    head = ["", "to the storage every", "goodput", "closed form", "lost work"]
    others = ["restart", "slow nodes", "failures that take the memory"]
    return markdown_table([*head, *others], rows)


def goodput_published() -> str:
    """Return goodput of published jobs beside what others' failures predict."""
    rows = []
    for job in published_jobs():
        share, least = job.predicted(), "> " if job.is_bound else ""
        rows.append(
            [
                job.name,
                f"{job.num_devices:,}",
                job.failures,
                job.habits or "defaults",
                percent(share),
                f"{least}{percent(job.published)}",
                f"{100.0 * (share - job.published):+.1f}",
            ]
        )
    head = ["job", "devices", "failures of", "habits that are published", "predicted"]
    sources = " ".join(f"{job.name}: {job.source}." for job in published_jobs())
    table = markdown_table([*head, "published", "points off"], rows)
    return f"{table}\n\n{sources}"


def rl_published() -> str:
    """Return published steps of reinforcement learning beside their predictions."""
    steps = published_steps()
    columns = ("step", *PARTS)
    rows = []
    for step in steps:
        cells = [
            f"{step.predicted[name]:.1f} / {step.published[name]:g}"
            if name in step.published
            else f"{step.predicted[name]:.1f} / -"
            for name in columns
        ]
        rows.append([step.name, *cells, f"{100.0 * step.error('step'):+.0f} %"])
    head = ["predicted / published [s]", *columns, "step off"]
    table = markdown_table([name.replace("_", "-") for name in head], rows)
    sources = dict.fromkeys(step.source for step in steps)
    return f"{table}\n\nSources: {'; '.join(sources)}."


def sites_bandwidth() -> str:
    """Return least bandwidths that are published beside those that are predicted."""
    rows = [
        [
            row.model,
            row.method,
            *(
                f"{row.needed(share):.3g}, {printed:g}"
                for share, printed in zip(SHARES, row.published, strict=True)
            ),
        ]
        for row in published_rows()
    ]
    head = ["model", "method", *(f"{100 * share:g} %" for share in SHARES)]
    table = markdown_table(head, rows)
    counts_of = []
    for bits in (16.0, FITTED_BITS):
        offs = [off for row in published_rows() for off in row.steps_off(bits / 16.0)]
        near = sum(abs(off) <= 1 for off in offs)
        counts_of.append(
            f"with {bits:g} bits in place of 16, {offs.count(0)} of {len(offs)} are "
            f"the paper's own, {offs.count(1)} one step higher, {near} no more than "
            f"one step off, and none more than {max(map(abs, offs))}"
        )
    words = "; ".join(counts_of).replace(" in place of 16", "", 1)
    return f"{table}\n\nOn the paper's grid, {words}."


def sites_measured() -> str:
    """Return INTELLECT-1 as it was measured beside what is predicted."""
    rows = []
    for run in INTELLECT_1:
        findings = run.predicted()
        rate, loop = findings.spec.rate(), findings.given.loop
        share = loop.compute_share(rate)
        day = findings.tokens_per_day(findings.given) / findings.spec.count
        measured = run.compute_share * findings.alone_per_day
        rows.append(
            [
                run.region,
                run.bandwidth,
                f"{loop.all_reduce_time(rate):.0f} s, {run.all_reduce:.0f} s",
                f"{percent(share)}, {percent(run.compute_share)}",
                f"{day / 1e9:.3f}, {measured / 1e9:.3f} billion",
                f"{100 * (day / measured - 1):+.1f} %",
                gigabits(run.uplink(loop)),
            ]
        )
    head = ["nodes in", "uplink", "all-reduce", "inner steps", "tokens a day of a node"]
    table = markdown_table([*head, "off", "uplink of that all-reduce"], rows)
    (candidate,) = nestsim.simulate(
        SCENARIOS / "sites/intellect_1.toml"
    ).result.candidates
    step, measured = candidate.simulated.iteration_time, findings.step_time
    return (
        f"{table}\n\nFrom its plan the inner step is {format_duration(step)}, "
        f"{format_duration(measured)} as measured: tokens a day would be "
        f"{100 * (measured / step - 1):+.0f} % off by that alone."
    )


def mixed_stages() -> str:
    """Return a plan of stages on two generations, equal ones and its own."""
    scenario = load_scenario(SCENARIOS / "mixed" / "llama2_7b_32_a100_h100.toml")
    rows = []
    for blocks in ([16, 16], [8, 24]):
        asked = {"plan.num_layers_per_pipeline_stage": blocks}
        (candidate,) = nestsim.simulate(scenario.replace(asked)).result.candidates
        got = candidate.simulated
        rows.append(
            [
                f"{blocks[0]} and {blocks[1]}",
                format_duration(got.iteration_time),
                number(got.tokens_per_second),
                percent(got.mfu),
            ]
        )
    head = ["blocks on A100 and H100", "iteration", "tokens/s", "MFU"]
    return markdown_table(head, rows)


def network_kinds() -> str:
    """Return what the shipped networks are made of, and what they carry."""
    base = load_scenario(SCENARIOS / "llama2_7b_64_h100.toml")
    paths = sorted((SCENARIOS / "networks").glob("*.toml"))
    rows = []
    for file in read_network_files(paths, base):
        network = cluster_network(on_network(base, file))
        parts = count_parts(network)
        rows.append(
            [
                f"`{file.path.name}`",
                f"`{network.kind}`",
                number(parts.num_switches),
                number(parts.num_ports),
                number(parts.num_cables),
                number(_longest_route(network)),
                format_bandwidth(network.bisection_bandwidth()),
                format_bandwidth(_all_to_all(network)),
            ]
        )
    head = ["file", "kind", "switches", "ports", "cables", "longest route"]
    return markdown_table([*head, "bisection", "all to all"], rows)


def _routes_of_all(network: Network) -> Routes:
    devices = np.arange(network.num_devices)
    sources, targets = (ends.ravel() for ends in np.meshgrid(devices, devices))
    return network.routes(sources, targets)


def _longest_route(network: Network) -> int:
    return int(np.diff(_routes_of_all(network).indptr).max())


def _all_to_all(network: Network) -> float:
    """Return what each device can send to all others together [byte/s]."""
    links = network.links
    load = np.bincount(_routes_of_all(network).links, minlength=len(links))
    inside = network.rules.node_levels if network.rules else 0
    used = (load > 0) & (links.level >= inside)
    others = network.num_devices - 1
    return float((links.bandwidth[used] / load[used]).min() * others)


MIST_RUNS = {
    "base": "GPT 1.3B on 2, data parallel, everything recomputed",
    "tuned": "the same, Mist's plan: 12 and 12 layers, 5 and 0 recomputed",
    "shipped": "13 and 11 layers, nothing recomputed",
    "flash": "the same with flash attention",
    "7b": "GPT 7B on 8, optimizer states partly on the host",
    "7b flash": "the same with flash attention",
    "llama 7b": "Llama 7B on 8",
}
"""Run -> what the page calls it."""


def mist_runs() -> str:
    """Return Mist's published runs on L4, and what they are predicted to take."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, words in MIST_RUNS.items():
            measured, time = RUNS[name].measured, predicted(RUNS[name], Path(folder))
            error = f"{100.0 * (time / measured - 1.0):+.1f} %"
            rows.append([words, f"{measured:.2f} s", f"{time:.2f} s", error])
    return markdown_table(["run", "measured", "predicted", ""], rows)


ANSWERED = (
    "bert_large_16_v100",
    "gpt3_1.3b_8_a100",
    "custom_network",
    "glm4_32b_64_h100",
    "llama2_7b_64_h100",
    "llama2_7b_64_h100_degraded",
    "mixtral_8x7b_128_h100",
    "llama3_70b_256_tpu_torus",
    "gpt3_175b_512_tpuv4",
    "gpt3_175b_1024_h100",
    "gpt_76b_1024_a100",
    "paper/fig7_bert_large",
    "paper/fig7_mixtral_790m",
    "paper/fig7_llama2_7b",
    "paper/fig7_llama3_70b",
    "paper/fig7_mixtral_8x7b",
    "paper/fig7_gpt3_35b",
    "paper/fig7_gpt3_175b",
)
"""Scenarios whose searches docs/search.md shows."""


def answers() -> str:
    """Return what searches of scenarios did, and how sure they are."""
    head = ["scenario", "configurations", "opened", "replays", "work, 10^6"]
    rows = [_answer_row(name) for name in ANSWERED]
    return markdown_table([*head, "answer", "gap"], rows)


def _answer_row(name: str) -> list[str]:
    scenario = load_scenario(SCENARIOS / f"{name}.toml")
    if name.startswith("paper/"):
        scenario = scenario.replace({"search.launchable": True})
    return [f"`{name}`", *_search_cells(scenario)]


def answers_of_mixed() -> str:
    """Return what searches did and found where devices differ."""
    half = {"num_devices": 32}
    twice = {
        "cluster.groups": [
            {"accelerator": "a100-80gb", **half},
            {"accelerator": "h100-sxm", **half},
        ],
        "cluster.network.levels[1].fan_out": 8,
        "training.global_batch_size": 512,
    }
    slow = {"slow_devices": [{"device": 21, "factor": 1.5}]}
    alike = load_scenario(SCENARIOS / "llama2_7b_64_h100.toml")
    mixed = load_scenario(SCENARIOS / "mixed" / "llama2_7b_32_a100_h100.toml")
    rows = [
        ["`llama2_7b_64_h100`", *_search_cells(alike)],
        [
            "the same, device 21 takes 1.5 times as long",
            *_search_cells(alike.replace({"cluster.degraded": slow})),
        ],
        [
            "32 A100 and 32 H100: `mixed/llama2_7b_32_a100_h100` with twice the nodes, "
            "512 sequences",
            *_search_cells(mixed.replace(twice)),
        ],
    ]
    head = ["scenario", "configurations", "opened", "replays", "work, 10^6"]
    return markdown_table([*head, "answer", "gap"], rows)


LARGER = {
    "llama3-405b-16384-usual": "Llama 3 405B on 16,384 H100, one 50 GB/s adapter each",
    "gpt3-175b-1024-slowest": "GPT-3 175B on 1,024 H100, 25 GB/s for each eight",
}
"""Case of `make bench-planner` -> what the page calls it."""


def larger_answers() -> str:
    """Return what searches of larger clusters did, with everything searched."""
    rows = []
    for name, words in LARGER.items():
        found = replayed_search(*all_cases()[name].problem(None))
        best = found.plans[0].time
        cells = _done_cells(found.statistics, found.spent, best, found.lower_bound)
        rows.append([words, *cells])
    head = ["search", "configurations", "opened", "replays", "work, 10^6"]
    return markdown_table([*head, "answer", "gap"], rows)


def _search_cells(scenario: Scenario) -> list[str]:
    """Return what a search did, what it found, and how sure it is."""
    result = plan_job(scenario)
    best = result.candidates[0].replayed_time
    assert best is not None
    assert result.spent is not None
    statistics = result.search_statistics
    return _done_cells(statistics, result.spent, best, result.lower_bound)


def _done_cells(
    counts: Mapping[str, int], spent: Spent, best: float, bound: float
) -> list[str]:
    gap = best / bound - 1.0
    open_gap = ", not proven" if spent.is_stopped else ""
    return [
        f"{counts['configurations']:,}",
        f"{counts['configurations opened']:,}",
        f"{counts['plans replayed']:,}",
        f"{spent.work / 1e6:.1f}",
        format_duration(best),
        ("0" if gap < 1e-9 else f"{100.0 * gap:.2f} %") + open_gap,
    ]


def certified() -> str:
    """Return what is said of the certificate of a small search."""
    scenario = "scenarios/gpt3_1.3b_8_a100.toml"
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(ROOT):
        proof = str(Path(folder) / "proof.json.gz")
        _printed("plan", scenario, "--certificate", proof)
        said = _printed("verify", proof)
    lines = [
        "```console",
        f"$ nestsim run {scenario} --certificate proof.json.gz",
        "$ nestsim verify proof.json.gz",
        # A release says it so; between releases, a version changes with each commit.
        *(
            line.rstrip().replace(nestsim.__version__, "0.1.0")
            for line in said.splitlines()
        ),
        "```",
    ]
    return "\n".join(lines)


CONFIRMED = (
    "bert_large_16_v100",
    "mixtral_8x7b_128_h100",
    "llama2_7b_64_h100",
    "glm4_32b_64_h100",
    "llama3_70b_256_tpu_torus",
    "gpt3_175b_1024_h100",
    "gpt3_175b_512_tpuv4",
    "llama2_7b_64_h100_degraded",
    "deepseek_v3_2048_h800",
)
"""Scenarios whose reported plans docs/replay.md counts the events of."""


def events() -> str:
    """Return the events of the plans that are reported, and who confirmed them."""
    rows = []
    for name in CONFIRMED:
        scenario = load_scenario(SCENARIOS / f"{name}.toml")
        command = nestsim.run if scenario.plan is None else nestsim.simulate
        replay = command(scenario).to_dict()["simulated"]
        rows.append([f"`{name}`", f"{replay['events']:,}", replay["engine"]])
    return markdown_table(["plan that is reported", "events", "confirmed by"], rows)


def optical_steps() -> str:
    """Return what a step takes over optical switches, by ports and time to change."""
    job = load_scenario(SCENARIOS / "llama3_70b_256_h100_rail_only.toml").replace(
        {
            "training.global_batch_size": 64,
            "plan.virtual_pipeline_model_parallel_size": 1,
            "cluster.network.sharp": False,
        }
    )
    rows = []
    for ports in (2, 3, 4):
        for wait in ("0 s", "25 ms", "250 ms", "1 s"):
            given = {"level": "rail unit", "ports": ports, "reconfiguration_time": wait}
            asked = job.replace({"cluster.optical": given})
            step = nestsim.simulate(asked).result.candidates[0].circuits
            assert step is not None
            stays = step.fixed_time
            times = (
                f"needs {step.fixed_ports} ports" if stays is None else f"{stays:.3f} s"
            )
            row = (str(ports), f"{step.plain_time:.3f} s", times, wait)
            rows.append((*row, f"{step.changing_time:.3f} s"))
    heads = ("ports", "packets", "circuits that stay", "to change", "that change")
    return markdown_table(heads, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class MadePart:
    """A part of a page that a program writes."""

    page: str
    """File in docs."""

    make: Callable[[], str]
    """Return the part."""

    is_slow: bool = False
    """Whether it takes more than seconds."""


MADE: Mapping[str, MadePart] = MappingProxyType(
    {
        "settings": MadePart(page="scenario.md", make=settings_reference),
        "commands": MadePart(page="commands.md", make=commands_reference),
        "types read": MadePart(page="own_model.md", make=types_read),
        "what frameworks launch": MadePart(page="search.md", make=launched),
        "goodput habits": MadePart(page="goodput.md", make=goodput_habits),
        "goodput recovery": MadePart(page="goodput.md", make=goodput_recovery),
        "goodput published": MadePart(page="goodput.md", make=goodput_published),
        "rl published": MadePart(page="rl.md", make=rl_published),
        "sites bandwidth": MadePart(page="sites.md", make=sites_bandwidth),
        "sites measured": MadePart(page="sites.md", make=sites_measured),
        "mixed stages": MadePart(page="mixed.md", make=mixed_stages),
        "a certificate": MadePart(page="search.md", make=certified),
        "network kinds": MadePart(page="networks.md", make=network_kinds),
        "optical": MadePart(page="networks.md", make=optical_steps),
        "mist runs": MadePart(page="compare.md", make=mist_runs),
        "nestsim validate --markdown": MadePart(
            page="accuracy.md", make=published, is_slow=True
        ),
        "answers where devices differ": MadePart(
            page="search.md", make=answers_of_mixed, is_slow=True
        ),
        "answers of larger clusters": MadePart(
            page="search.md", make=larger_answers, is_slow=True
        ),
        "events": MadePart(page="replay.md", make=events, is_slow=True),
        "answers of searches": MadePart(page="search.md", make=answers, is_slow=True),
        "tutorial": MadePart(page="tutorial.md", make=tutorial, is_slow=True),
    }
)
"""Name of a part -> where it stands, and what makes it."""


def written(name: str) -> str:
    """Return a part as it stands on its page."""
    found = _pattern(name).search(_page(name).read_text(encoding="utf-8"))
    assert found is not None, f"docs/{MADE[name].page} has no <!-- {name} -->"
    return found[2].strip()


def rewrite(name: str) -> None:
    """Make a part anew, and write it into its page."""
    text = MADE[name].make().strip()
    page = _page(name)
    old = page.read_text(encoding="utf-8")
    new = _pattern(name).sub(lambda found: f"{found[1]}{text}\n{found[3]}", old)
    page.write_text(new, encoding="utf-8")


def _page(name: str) -> Path:
    return DOCS / MADE[name].page


def _pattern(name: str) -> re.Pattern[str]:
    start = re.escape(f"<!-- {name} -->\n")
    return re.compile(rf"({start}\n?)(.*?)(<!-- end -->)", re.DOTALL)


if __name__ == "__main__":
    for part in sys.argv[1:] or MADE:
        rewrite(part)
        print(f"docs/{MADE[part].page}: {part}")  # noqa: T201
