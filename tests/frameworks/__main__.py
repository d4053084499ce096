"""``python -m tests.frameworks``: hold our rules against the frameworks' own code."""

import argparse
import json
import re
import sys
import time
from collections import Counter
from pathlib import Path

from tests.frameworks.comparing import Compared, compare, draw_plans
from tests.frameworks.environments import (
    CHECKOUTS,
    Environment,
    UnavailableError,
    built_python,
    find_checkout,
    read_environments,
)

KINDS = (
    *("accepted by both", "refused by both", "not asked"),
    *("only we accept", "only the framework accepts"),
)


def main() -> int:
    """Compare what is asked for, and return 1 if a verdict differs."""
    environments = read_environments()
    parser = argparse.ArgumentParser(
        prog="python -m tests.frameworks",
        description="Draw plans, ask each framework's own code whether it takes them, "
        "and compare with our rules.",
    )
    parser.add_argument("names", nargs="*", choices=[*environments, []], metavar="NAME")
    parser.add_argument("--plans", type=int, default=200, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument(
        "--checkouts",
        type=Path,
        default=CHECKOUTS,
        metavar="DIR",
        help="folder of repositories of Megatron-LM, each called like its tag, and of "
        "Megatron-DeepSpeed",
    )
    parser.add_argument(
        *("--output", "-o"),
        type=Path,
        default=Path("results/frameworks"),
        metavar="DIR",
    )
    asked = parser.parse_args()
    asked.output.mkdir(parents=True, exist_ok=True)
    differs = False
    for name in asked.names or environments:
        start, unbuilt = time.monotonic(), Counter[str]()
        try:
            compared = run(environments[name], asked, unbuilt)
        except UnavailableError as reason:
            sys.stdout.write(f"{name}: skipped, {reason}\n")
            continue
        seconds = time.monotonic() - start
        text = table(environments[name], compared, unbuilt, seconds)
        sys.stdout.write(text)
        (asked.output / f"{name}.txt").write_text(text, "utf-8")
        differs = differs or any(row.differs for row in compared)
    return int(differs)


def run(
    environment: Environment, asked: argparse.Namespace, unbuilt: Counter[str]
) -> list[Compared]:
    """Compare a number of plans in an environment, built if it is not there."""
    checkout = find_checkout(environment, asked.checkouts)
    python = built_python(environment, build=True)
    plans = list(draw_plans(environment, asked.plans, asked.seed, unbuilt))

    def progress(number: int) -> None:
        if sys.stderr.isatty():
            end = "\n" if number == len(plans) else "\r"
            sys.stderr.write(f"{environment.name}: {number} of {len(plans)}{end}")

    return compare(environment, python, plans, checkout, progress)


def table(
    environment: Environment,
    compared: list[Compared],
    unbuilt: Counter[str],
    seconds: float,
) -> str:
    """Return the counts of an environment, and one of differences that are alike."""
    counts = Counter(row.kind for row in compared)
    lines = [
        f"{environment.name} (preset {environment.preset}, release "
        f"{environment.release}): {len(compared)} plans: "
        + ", ".join(f"{counts[kind]} {kind}" for kind in KINDS)
        + f"; {seconds:.0f} s",
        "  accepted by both: "
        + ", ".join(f"{number} {name}" for name, number in features(compared)),
    ]
    alike: dict[tuple[str, str], list[Compared]] = {}
    for row in filter(lambda row: row.differs, compared):
        alike.setdefault((row.kind, theme(row)), []).append(row)
    for (kind, _), rows in sorted(alike.items(), key=lambda item: -len(item[1])):
        drawn = rows[0].drawn
        ours = "; ".join(
            f"{rule.rule}: {rule.found}, not {rule.expected} ({rule.source})"
            for rule in drawn.refusals
        )
        lines += [
            f"  {len(rows)} x {kind}, as plan {compared.index(rows[0])}",
            f"    we: {ours or 'accepted'}",
            f"    framework: {rows[0].reason or 'accepted'}",
            *(
                f"    {name}: {json.dumps(drawn.tables[name])}"
                for name in ("plan", "model", "training")
            ),
        ]
    refused = Counter(row.reason.partition("(")[0][:90] for row in compared)
    del refused[""]
    for title, reasons in (
        ("refused by the framework:", refused),
        ("draws that make no plan:", unbuilt),
    ):
        lines += [
            title,
            *(f"  {n:4} x {reason}" for reason, n in reasons.most_common()),
        ]
    return "\n".join(lines) + "\n"


def features(compared: list[Compared]) -> list[tuple[str, int]]:
    """Return how many plans that both accept have what."""
    having: Counter[str] = Counter()
    for row in compared:
        if row.kind == "accepted by both":
            plan, parallel = row.drawn.job.plan, row.drawn.job.plan.parallel
            stages, model = plan.stages, row.drawn.job.model
            has = {
                "experts": model.num_moe_experts > 0,
                "latent": model.kv_lora_rank > 0,
                "ep": parallel.expert_model_parallel_size > 1,
                "etp": parallel.grouping.etp > 0,
                "cp": parallel.context_parallel_size > 1,
                "pp": len(stages) > 1,
                "chunks": plan.virtual_pipeline_model_parallel_size > 1,
                "uneven": len(set(row.drawn.job.blocks_by_virtual_stage())) > 1,
                "zero": any(stage.zero_stage for stage in stages),
                "offload": any(any(stage.offload) for stage in stages),
                "recompute": any(stage.recompute != "none" for stage in stages),
            }
            having.update(name for name, is_there in has.items() if is_there)
    return having.most_common()


def theme(row: Compared) -> str:
    """Return what differences that are alike have in common."""
    rules = " ".join(rule.rule for rule in row.drawn.refusals)
    return re.sub(r"[\d.\[\], ]+", " ", f"{rules} {row.reason}")[:90]


if __name__ == "__main__":
    sys.exit(main())
