"""A server that is killed: what is finished stays, what was under way goes on."""

import json
import signal
import time
from pathlib import Path

import httpx

from nestsim.features.serve.questions import KINDS, key_of
from nestsim.features.serve.queue import Job
from tests.nestsim.features.compare.small import write
from tests.nestsim.features.serve.serving import Served


def asked(served: Served, text: str, number: int) -> httpx.Response:
    return served.ask("run", wait=0, scenario=f"{text}# {number}\n")


def finished(served: Served, places: list[str]) -> dict[str, dict[str, object]]:
    """Return answers that are there, by their places."""
    got = {place: served.http.get(place) for place in places}
    return {place: one.json() for place, one in got.items() if one.status_code == 200}


def test_nothing_finished_is_lost_and_the_rest_is_taken_up(tmp_path: Path) -> None:
    text = write(tmp_path).read_text()
    with Served(tmp_path / "answers") as served:
        places = [asked(served, text, n).headers["Location"] for n in range(12)]
        while len(before := finished(served, places)) < 2:
            time.sleep(0.02)
        served.end(signal.SIGKILL)
    assert len(before) < len(places)
    with Served(tmp_path / "answers") as served:
        assert finished(served, list(before)) == before
        deadline = time.monotonic() + 60.0
        while len(after := finished(served, places)) < len(places):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        same = {json.dumps(answer["result"]) for answer in after.values()}
        assert len(same) == 1
        assert served.http.get("/v1/jobs").json() == []
        assert list((tmp_path / "answers" / "asked").iterdir()) == []
        assert list((tmp_path / "answers" / "made").iterdir()) == []


def test_workers_end_with_the_server(tmp_path: Path) -> None:
    text = write(tmp_path).read_text()
    with Served(tmp_path / "answers") as served:
        served.ask("memory", scenario=text)
        before = workers_of(tmp_path)
        assert len(before) == 1
        served.end(signal.SIGKILL)
        deadline = time.monotonic() + 30.0
        while workers_of(tmp_path):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def workers_of(folder: Path) -> list[int]:
    """Return the processes that work in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            where = str((process / "cwd").readlink())
        except OSError:
            continue
        if where.startswith(str(folder)):
            found.append(int(process.name))
    return found


def test_what_two_deaths_interrupted_is_lost(tmp_path: Path) -> None:
    text = write(tmp_path).read_text()
    question = KINDS["run"](scenario=text)
    key = key_of("run", question, trust_code=False)
    job = Job(key, "run", question, {"local"}, attempts=2)
    (tmp_path / "answers" / "asked").mkdir(parents=True)
    file = tmp_path / "answers" / "asked" / f"{key}.json"
    file.write_text(job.written())
    (file.parent / "broken.json").write_text("{")
    with Served(tmp_path / "answers") as served:
        lost = served.http.get(f"/v1/results/{key}")
        assert lost.status_code == 410
        assert "the server ended twice" in lost.json()["error"]["message"]
        (known,) = served.http.get("/v1/jobs").json()
        assert (known["job"], known["state"]) == (key, "lost")
        assert list(file.parent.iterdir()) == []
        assert served.ask("run", scenario=text).status_code == 200
