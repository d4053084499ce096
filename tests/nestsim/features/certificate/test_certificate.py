"""Certificates of searches: those that were written hold, any other one fails."""

import copy
import gzip
import json
import random
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import nestsim
from nestsim.cli import main
from nestsim.evaluate.evaluator import Evaluator
from nestsim.evaluate.job import plan_job
from nestsim.features.certificate.job import inspected, trail_for, write_certificate
from nestsim.features.certificate.plain import has_plain_bounds
from nestsim.features.certificate.record import (
    CertificateRecord,
    certificate_json,
    seal,
)
from planner.search.replayed.trail import ProofTrail
from tests import failures

FAILED, WRONG_INPUT = 1, 2

PRESETS = ("ideal", "deepspeed", "fsdp", "megatron-core", "megatron-lm", "torchtitan")

SEEDS = (1, 2, 4, 6, 7)

RESERVES = {1: "79.3 GB", 2: "84.3 GB", 4: "84.6 GB", 7: "79.8 GB"}
"""Seed -> memory that is kept free: little is left."""


class Certified(NamedTuple):
    """A small random search, and its certificate as plain values."""

    scenario: nestsim.Scenario
    evaluator: Evaluator
    trail: ProofTrail
    data: dict[str, Any]

    def problems(self, data: Mapping[str, Any]) -> list[str]:
        """Return what does not hold of what the certificate could say instead."""
        record = CertificateRecord.read(data)
        checked = inspected(record, self.evaluator, None)
        return [failure for one in checked for failure in one.failures]


def document(seed: int) -> dict[str, Any]:
    """Draw a scenario of few devices, some of them slow, some with little memory."""
    rng = random.Random(seed)
    experts = {"num_moe_experts": 4, "moe_router_topk": 2} if rng.random() < 0.3 else {}
    levels = [
        {
            "name": name,
            "fan_out": fan_out,
            "bandwidth": f"{rng.uniform(*speeds):.3f} GB/s",
            "latency": "2 us",
        }
        for name, fan_out, speeds in (("node", 4, (50, 300)), ("fabric", 2, (0.5, 20)))
    ]
    cluster = {
        "accelerator": "a100-80gb",
        "memory_reserve": RESERVES.get(seed, "0 GB"),
        "network": {"kind": "fat-tree", "nic": "node", "levels": levels},
    }
    if seed % 4 == 3:
        cluster["degraded"] = {"slow_devices": [{"device": 5, "factor": 1.5}]}
    return {
        "name": f"seed {seed}",
        "model": {
            "family": "mixtral" if experts else "llama",
            "num_layers": rng.randint(3, 8),
            "hidden_size": rng.choice((512, 1024)),
            "num_attention_heads": 8,
            "vocab_size": 32000,
            "sequence_length": rng.choice((512, 2048)),
            **experts,
        },
        "training": {"global_batch_size": rng.choice((8, 16))},
        "software": {"preset": PRESETS[seed % len(PRESETS)]},
        "cluster": cluster,
        "search": {"micro_batch_sizes": [1, 2], "keep_best": 2, "proposals": 2},
    }


@lru_cache
def certified(seed: int, work_limit: int | None = None) -> Certified:
    """Search a random scenario, and certify that."""
    changes = {} if work_limit is None else {"search.work_limit": work_limit}
    scenario = nestsim.Scenario.from_dict(document(seed)).replace(changes)
    trail = trail_for(scenario)
    plan_job(scenario, trail=trail)
    text = json.dumps(certificate_json(scenario, trail))
    return Certified(scenario, Evaluator.of(scenario), trail, json.loads(text))


@failures.over("seed", SEEDS)
def test_a_certificate_holds(seed: int) -> None:
    made = certified(seed)
    assert made.problems(made.data) == []
    assert made.data["proven"]
    assert made.data["optimality_gap"] is None or (
        made.data["optimality_gap"] <= made.data["proven_gap"]
    )


@failures.over("seed", (0, 3, 5, *range(8, 14)))
def test_certificates_of_more_searches_hold(seed: int) -> None:
    made = certified(seed)
    assert made.problems(made.data) == []
    assert made.data["proven"]


def test_worlds_have_what_certificates_tell_apart() -> None:
    some = [certified(seed) for seed in SEEDS]
    by = {number for one in some for number in one.data["configurations"]["by"]}
    assert by == {0, 1, 2, 3, 4}
    plain = {has_plain_bounds(one.trail.candidates) for one in some}  # type: ignore[arg-type]
    assert plain == {False, True}
    assert any(one.data["first_replays"] for one in some)


@failures.over("seed", (1, 2, 6, 7))
def test_a_stopped_search_holds_and_is_not_proven(seed: int) -> None:
    made = certified(seed, 1)
    assert made.problems(made.data) == []
    assert made.data["stopped_by"] == "work limit"
    gap = made.data["optimality_gap"]
    assert made.data["proven"] == (gap is not None and gap <= 0.01)
    assert made.data["proven"] == all(made.data["configurations"]["closed"])


def numbers(data: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where numbers and switches are."""
    if isinstance(data, dict):
        for key, inner in data.items():
            yield from numbers(inner, (*place, key))
    elif isinstance(data, list):
        for index, inner in enumerate(data):
            yield from numbers(inner, (*place, index))
    elif isinstance(data, bool | int | float):
        yield place


def changed(data: Any, place: tuple[Any, ...], rng: random.Random) -> Any:
    """Return the same with another number at a place."""
    other = copy.deepcopy(data)
    *outer, last = place
    inner = other
    for part in outer:
        inner = inner[part]
    value = inner[last]
    if isinstance(value, bool):
        inner[last] = not value
    elif isinstance(value, int):
        inner[last] = value + rng.choice((-1, 1))
    else:
        inner[last] = value * rng.choice((0.5, 1 - 1e-6, 1 + 1e-6, 2)) or 1.0
    return other


@failures.over("seed", (1, 2, 7))
def test_any_number_that_is_changed_fails(seed: int) -> None:
    """One of each kind of number, in a certificate whose hash is made anew."""
    made, rng = certified(seed), random.Random(seed)
    kinds: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for place in numbers(made.data):
        kind = tuple(part for part in place if isinstance(part, str))
        kinds.setdefault(kind, []).append(place)
    assert len(kinds) > 30
    passed = [
        place
        for places in kinds.values()
        for place in [rng.choice(places)]
        if not made.problems(changed(made.data, place, rng))
    ]
    assert passed == []


@failures.over("seed", (2, 4))
def test_a_space_that_is_not_whole_fails(seed: int) -> None:
    made = certified(seed)
    columns = made.data["configurations"]
    last = len(columns["by"]) - 1
    for position in (0, last):
        less = copy.deepcopy(made.data)
        for column in less["configurations"].values():
            del column[position]
        assert any("missing" in problem for problem in made.problems(less))
        more = copy.deepcopy(made.data)
        for column in more["configurations"].values():
            column.append(column[position])
        assert any("twice" in problem for problem in made.problems(more))


def test_a_plan_that_is_left_out_fails() -> None:
    made = certified(1)
    for place, opened in enumerate(made.data["opened"]):
        for number in range(len(opened["placements"])):
            less = copy.deepcopy(made.data)
            del less["opened"][place]["placements"][number]
            assert made.problems(less)
        less = copy.deepcopy(made.data)
        del less["opened"][place]
        assert made.problems(less)


def test_a_faster_time_than_the_replay_has_fails() -> None:
    """As somebody would forge it: bound, gap, and hash go with it."""
    made = certified(6)
    forged = copy.deepcopy(made.data)
    forged["answer"]["replayed_s"] *= 0.9
    forged["lower_bound_s"] = forged["answer"]["replayed_s"]
    forged["optimality_gap"] = 0.0
    problems = made.problems(forged)
    assert any(problem.startswith("The answer replays in") for problem in problems)


def test_a_bound_that_is_too_high_is_refuted_by_replays() -> None:
    """Even where the functions of the search would say the same."""
    made = certified(1)
    assert made.trail.candidates is not None
    record = CertificateRecord.read(made.data)
    high = tuple(
        None if bound is None else 3.0 * made.trail.best_time
        for bound in record.configurations.first_bound_s
    )
    columns = {**vars(record.configurations), "first_bound_s": high}
    other = {**made.data, "configurations": columns}
    problems = made.problems(json.loads(json.dumps(other)))
    assert any("below the bound" in problem for problem in problems)


def test_files_are_the_same_bytes_and_small(tmp_path: Path) -> None:
    made = certified(1)
    for name in ("one.json", "two.json", "one.json.gz", "two.json.gz"):
        write_certificate(made.scenario, made.trail, tmp_path / name)
    content = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert content["one.json"] == content["two.json"]
    assert content["one.json.gz"] == content["two.json.gz"]
    assert gzip.decompress(content["one.json.gz"]) == content["one.json"]
    assert json.loads(content["one.json"]) == made.data
    per_row = len(content["one.json.gz"]) / len(made.data["configurations"]["by"])
    assert per_row < 20_000_000 / 54_000


def written(path: Path, data: Mapping[str, Any]) -> str:
    path.write_text(json.dumps(data), encoding="utf-8")
    return str(path)


def test_the_command_says_what_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = certified(1)
    file = written(tmp_path / "proof.json", made.data)
    assert main(["verify", file, "--quiet", "--replays", "2"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("HOLDS  seed 1")
    assert "What was checked" in text
    assert "at most 2 plans were replayed" in text
    data = copy.deepcopy(made.data)
    data["lower_bound_s"] *= 0.99
    for sealed in (False, True):
        data["sha256"] = seal(data) if sealed else data["sha256"]
        file = written(tmp_path / "other.json", data)
        assert main(["verify", file, "--quiet", "--json", "--replays", "0"]) == FAILED
        said = json.loads(capsys.readouterr().out)
        assert said["verdict"] == "fails"
        assert not said["proven"]
        named = [problem.split(" is ")[0] for problem in said["failures"]]
        assert "The least bound left" in named
        hashes = any("hash differs" in problem for problem in said["failures"])
        assert hashes is not sealed


def test_what_is_no_certificate_of_this_version_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = certified(1).data
    wrong = {
        "is not a certificate that this version reads": {**data, "format": "other 1"},
        "was made with other constants": {**data, "data_sha256": "0" * 64},
        "is not a certificate: answer": {**data, "answer": 3},
        "columns are not equally long": {
            **data,
            "configurations": {**data["configurations"], "tp": []},
        },
        "there is no certificate of such a search": {
            **data,
            "scenario": {
                **data["scenario"],
                "text": data["scenario"]["text"].replace(
                    "[search]", '[search]\nplanner = "manual"'
                ),
            },
        },
    }
    with failures.collected() as case:
        for message, other in wrong.items():
            with case(message):
                file = written(tmp_path / "wrong.json", other)
                assert main(["verify", file, "--quiet"]) == WRONG_INPUT
                said = capsys.readouterr().err
                assert message in said
                assert file in said
        for content in (b"\x1f\x8bno gzip", b"{", b"\xff", b"[1]"):
            with case(content):
                (tmp_path / "bytes").write_bytes(content)
                assert main(["verify", str(tmp_path / "bytes"), "-q"]) == WRONG_INPUT


def test_a_scenario_with_files_is_whole(tmp_path: Path) -> None:
    """The certificate holds the files, wherever they were."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    links = "devices = 2\n[[links]]\nsource = 0\ntarget = 1\nbandwidth = '50 GB/s'\n"
    (folder / "links.toml").write_text(f"{links}latency = '1 us'\n")
    changes = document(6)
    changes["cluster"]["network"] = {"kind": "custom", "path": "elsewhere/links.toml"}
    scenario = nestsim.Scenario.from_dict(changes, tmp_path / "small.toml")
    report = nestsim.plan(scenario, certify=True)
    proof = tmp_path / "proof.json.gz"
    report.save_certificate(proof)
    (folder / "links.toml").unlink()
    verified = nestsim.verify(proof)
    assert verified.succeeded
    assert verified.to_dict()["lower_bound_s"] == report.result.lower_bound > 0.0
    with pytest.raises(nestsim.InputError, match="certify=True"):
        nestsim.plan(document(6)).save_certificate(proof)


def test_a_certificate_changes_nothing_of_a_search() -> None:
    made = certified(6)
    plain = plan_job(made.scenario)
    assert plain.lower_bound == made.trail.lower_bound
    times = [candidate.replayed_time for candidate in plain.candidates]
    assert (times[0] if times else np.inf) == made.trail.best_time
