"""Workflows, the action, the hook, the container file: what they name is there."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from nestsim.registry import COMMANDS
from tests import failures
from tests.distributions import PYTHONS

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CHECKED = {
    **dict.fromkeys(WORKFLOWS, "vendor.github-workflows"),
    ROOT / "action.yml": "vendor.github-actions",
    ROOT / "templates" / "gitlab-ci.yml": "vendor.gitlab-ci",
}
"""File -> the schema of its kind that comes with check-jsonschema."""

CALL = re.compile(r"\bnestsim (?:\"\$COMMAND\"|([a-z]+))((?: (?:--[a-z-]+|\S+))*)")


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@failures.over(("path", "kind"), CHECKED.items())
def test_a_file_is_what_its_schema_says(path: Path, kind: str) -> None:
    if importlib.util.find_spec("check_jsonschema") is None:
        pytest.skip("check-jsonschema, of the group dev, is not installed")
    command = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", kind)
    done = subprocess.run([*command, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@failures.over("path", [*WORKFLOWS, ROOT / "action.yml"])
def test_what_others_wrote_is_pinned_by_its_commit(path: Path) -> None:
    used = re.findall(r"uses: (.*)", path.read_text(encoding="utf-8"))
    assert used
    for line in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v[\d.]+", line), line


@failures.over("path", WORKFLOWS)
def test_a_job_may_write_only_where_it_says_so(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert ("permissions" in job) == (name == "publish"), name
        assert job["timeout-minutes"] <= 30


def test_the_release_is_tried_on_every_python_and_published_by_trust() -> None:
    release = read(ROOT / ".github" / "workflows" / "release.yml")
    matrix = release["jobs"]["try"]["strategy"]["matrix"]
    assert tuple(matrix["python"]) == PYTHONS
    steps = {step.get("name"): step for step in release["jobs"]["build"]["steps"]}
    built = steps["Wheels with kernels, each by its Python"]["run"]
    assert f"for version in {' '.join(PYTHONS)};" in built
    assert {"wheel", "kernels", "source"} == set(matrix["distribution"])
    publish = release["jobs"]["publish"]
    assert {"build", "try"} == set(publish["needs"])
    assert publish["permissions"]["id-token"] == "write"
    last = publish["steps"][-1]
    assert last["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert last["with"] == {"attestations": True}


def test_calls_name_commands_and_options_that_there_are() -> None:
    known = {command.name: command for command in COMMANDS}
    files = [*WORKFLOWS, *(ROOT / "templates").iterdir(), ROOT / "Containerfile"]
    hook = ROOT / ".pre-commit-hooks.yaml"
    calls = 0
    for path in [*files, hook]:
        for line in path.read_text(encoding="utf-8").split("\n"):
            if line.lstrip().startswith(
                ("#", "name:", "description:", "COPY", "RUN u")
            ):
                continue
            for name, options in CALL.findall(line):
                command = known[name or "run"]
                calls += 1
                for option in re.findall(r"--[a-z-]+", options):
                    assert command.has(option), f"{path.name}: {line}"
    assert calls >= 6
    (entry,) = read(hook)
    assert entry["entry"] == "nestsim check --quiet"


def test_the_container_file_has_both_targets_and_copies_what_is_there() -> None:
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    stages = re.findall(r"^FROM \S+ AS (\w+)$", text, re.MULTILINE)
    assert stages == ["build", "base", "core", "full"]
    for stage in stages[2:]:
        body = text.partition(f" AS {stage}\n")[2].partition("\nFROM ")[0]
        last = [line for line in body.split("\n") if line.startswith("USER")]
        assert last == ["USER nestsim"]
    for source in re.findall(r"^COPY (?!--from)(\S+)", text, re.MULTILINE):
        assert (ROOT / source).exists(), source
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)$", text, re.MULTILINE)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra in extras.split(","):
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE), extra


STUBS = {
    "nestsim": """#!/usr/bin/env bash
echo "# report of $2"
case $2 in *wrong*) echo "wrong input" >&2; exit 2;; *slow*) exit 1;; esac
""",
    "gh": """#!/usr/bin/env bash
echo "$@" >>"$CALLS"
case "$*" in *--paginate*) cat "$KNOWN";; esac
""",
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment with programs that do nothing."""
    for name, text in STUBS.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(text, encoding="utf-8")
        program.chmod(0o755)
    for name in ("right", "slow", "wrong"):
        (tmp_path / f"{name}.toml").touch()
    return {
        "HOME": str(tmp_path),
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "COMMAND": "run",
        "OUTPUT": "results",
        "GITHUB_REPOSITORY": "a/b",
        "CALLS": str(tmp_path / "calls"),
        "KNOWN": str(tmp_path / "known"),
    }


def bash(script: str, folder: Path, environment: dict[str, str]) -> int:
    command = ("bash", str(ROOT / "templates" / script), "report.md")
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, check=False
    )
    return done.returncode


@failures.over(
    ("scenarios", "status"),
    [("right.toml", 0), ("right.toml slow.toml", 1), ("*.toml", 2), ("none*", 2)],
)
def test_the_worst_of_all_scenarios_is_the_status(
    scenarios: str, status: int, environment: dict[str, str]
) -> None:
    folder = Path(environment["HOME"])
    environment = {**environment, "SCENARIOS": scenarios}
    assert bash("report.sh", folder, environment) == status
    report = (folder / "report.md").read_text(encoding="utf-8")
    assert report.startswith("<!-- nestsim -->\n")
    count = 3 if scenarios == "*.toml" else scenarios.count(".toml")
    assert report.count("# report of") == count
    assert ("wrong input" in report) == (scenarios == "*.toml")
    outputs = folder / "outputs"
    outputs.unlink(missing_ok=True)
    environment |= {"GITHUB_OUTPUT": str(outputs)}
    assert bash("report.sh", folder, environment) == 0
    assert outputs.read_text(encoding="utf-8") == f"status={status}\n"


@failures.over(
    ("known", "call"),
    [
        ("", "api --method POST repos/a/b/issues/7/comments"),
        ("12\n15\n", "api --method PATCH repos/a/b/issues/comments/12"),
    ],
)
def test_a_pull_request_has_one_comment(
    known: str, call: str, environment: dict[str, str]
) -> None:
    folder = Path(environment["HOME"])
    (folder / "known").write_text(known, encoding="utf-8")
    (folder / "report.md").write_text("<!-- nestsim -->\nwords", encoding="utf-8")
    assert bash("comment.sh", folder, {**environment, "NUMBER": "7"}) == 0
    calls = (folder / "calls").read_text(encoding="utf-8")
    assert f"{call} --raw-field body=<!-- nestsim -->\nwords --silent\n" in calls
    assert calls.count("--method") == 1
    (folder / "calls").unlink()
