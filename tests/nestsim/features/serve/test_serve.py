"""A server asked over HTTP: the answers of commands, limits, and what it refuses."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import nestsim
from nestsim.features.serve.questions import KINDS
from tests import failures
from tests.nestsim.features.compare.small import write
from tests.nestsim.features.serve.serving import Served

CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}
CODE = "from pathlib import Path\nPath({place!r}).touch()\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("serve")
    with Served(folder, "--most-devices", "64", "--cpu-limit", "40") as served:
        yield served
        assert served.said == []


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a scenario with a plan."""
    return write(tmp_path_factory.mktemp("job"), plan=True).read_text()


def of_config(text: str, config: str) -> str:
    """Return the scenario with a model of a file."""
    begin, end = text.index("[model]"), text.index("[software]")
    model = f'[model]\nconfig = "{config}"\nsequence_length = 2048\n\n'
    return text[:begin] + model + text[end:]


def message(response: httpx.Response, status: int = 422) -> str:
    assert response.status_code == status, response.text
    assert "Traceback" not in response.text
    return str(response.json()["error"]["message"])


def test_answers_are_those_of_the_python_face(served: Served, text: str) -> None:
    scenario = nestsim.Scenario.from_toml(text)
    for kind in ("run", "simulate", "memory"):
        answer = served.ask(kind, scenario=text)
        assert answer.status_code == 200, answer.text
        report = getattr(nestsim, kind)(scenario)
        expected = json.loads(json.dumps(report.printed_dict()))
        assert answer.json()["result"] == expected
        assert answer.json()["succeeded"] is report.succeeded


def test_every_kind_of_question_has_an_answer(served: Served, text: str) -> None:
    short = f"{text}\n[jitter]\nruns = 4\n"
    for kind in KINDS.keys() - {"stress", "goodput", "collectives"}:  # slow ones
        says = {"sweep": {"settings": {"simulation.seed": [1, 2]}}}.get(kind, {})
        says |= {"compare": {"planners": ["manual"]}}.get(kind, {})
        answer = served.ask(kind, scenario=short, **says)
        assert (kind, answer.status_code) == (kind, 200), answer.text


def test_a_scenario_may_be_tables_or_toml_alone(served: Served, text: str) -> None:
    tables = nestsim.Scenario.from_toml(text).document()
    first = served.ask("memory", scenario=tables).json()
    answer = served.http.post(
        "/v1/memory", content=text, headers={"Content-Type": "application/toml"}
    )
    assert answer.json()["result"] == first["result"]


def test_the_same_question_is_answered_from_the_store(
    served: Served, text: str
) -> None:
    asked = {"scenario": f"{text}# once\n"}
    first = served.ask("simulate", **asked)
    begun = time.perf_counter()
    again = served.ask("simulate", **asked)
    assert time.perf_counter() - begun < 0.5
    assert again.json() == first.json()
    place = again.headers["Location"]
    assert served.http.get(place).json() == first.json()
    assert served.http.delete(place).status_code == 204
    assert served.http.get(place).status_code == 404
    assert served.http.delete(place).status_code == 404
    assert served.ask("simulate", **asked).json() == first.json()


def test_who_does_not_wait_is_told_where_the_answer_will_be(
    served: Served, text: str
) -> None:
    asked = served.ask("run", wait=0, scenario=f"{text}# later\n")
    assert asked.status_code == 202
    job = asked.json()["job"]
    place = asked.headers["Location"]
    assert place == f"/v1/results/{job}"
    assert job in [one["job"] for one in served.http.get("/v1/jobs").json()]
    while (answer := served.http.get(place)).status_code == 202:
        assert answer.json()["state"] in {"queued", "running"}
        time.sleep(0.05)
    assert answer.json()["id"] == job
    assert job not in [one["job"] for one in served.http.get("/v1/jobs").json()]


def test_mistakes_are_said_as_commands_say_them(served: Served, text: str) -> None:
    wrong = text.replace("global_batch_size = 16", 'global_batch_size = "many"')
    answer = served.ask("run", scenario=wrong)
    with pytest.raises(nestsim.InputError) as caught:
        nestsim.Scenario.from_toml(wrong)
    assert message(answer) == str(caught.value)
    error = answer.json()["error"]
    assert error["where"] == "scenario.toml: training.global_batch_size"
    assert (error["got"], error["expected"]) == (
        "many",
        caught.value.expected,
    )
    again = served.ask("run", scenario=wrong)
    assert again.json() == answer.json()


@failures.over(
    ("body", "kind", "status", "says"),
    [
        (b"{", "json", 422, "not JSON"),
        (b"[]", "json", 422, "request"),
        (b'{"scenario": "["}', "json", 422, "scenario.toml: not TOML"),
        (b"{}", "json", 422, "request.scenario: Field required"),
        (b'{"scenario": "", "page": 7}', "json", 422, "request.page"),
        (b'{"scenario": "", "a": ' + b"[" * 9000 + b"}", "json", 422, "not JSON"),
        (b'{"scenario": {"a": 1e999}}', "json", 422, "too large"),
        (b"\xff\xfe", "toml", 422, "UTF-16"),
        (b"#" * 4_000_001, "toml", 413, "longer than 4,000,000 bytes"),
        (b"{}", "xml", 415, "application/json"),
    ],
    ids=str,
)
def test_requests_that_are_none(
    body: bytes, kind: str, status: int, says: str, served: Served
) -> None:
    headers = {"Content-Type": f"application/{kind}"}
    answer = served.http.post("/v1/run", content=body, headers=headers)
    assert says in message(answer, status)


def test_files_come_with_the_question_and_no_others_are_read(
    served: Served, text: str, tmp_path: Path
) -> None:
    config = json.dumps(CONFIG)
    (tmp_path / "config.json").write_text(config)
    there = str(tmp_path / "config.json")
    for named in (there, "config.json", "../config.json"):
        answer = served.ask("memory", scenario=of_config(text, named))
        assert "no such file" in message(answer)
    good = of_config(text, "config.json")
    answer = served.ask("memory", scenario=good, files={"config.json": config})
    assert answer.status_code == 200
    # Nor by another road: an axis of a sweep names it.
    axis = {"model.config": ["config.json", there]}
    swept = served.ask(
        "sweep", scenario=good, files={"config.json": config}, settings=axis
    )
    points = swept.json()["result"]["points"]
    assert [point["state"] for point in points] == ["done", "failed"]
    assert "no such file" in points[1]["failure"]


def test_no_code_is_run(served: Served, text: str, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    code = CODE.format(place=str(touched))
    (tmp_path / "mine.py").write_text(code)
    for named in ("mine.py:build", f"{tmp_path}/mine.py:build"):
        scenario = of_config(text, "x").replace('config = "x"', f'module = "{named}"')
        answer = served.ask("memory", scenario=scenario, files={"mine.py": code})
        said = message(answer)
        assert "model.module: would run a Python" in said or "no such file" in said
    config = json.dumps(CONFIG)
    swept = served.ask(
        "sweep",
        scenario=of_config(text, "config.json"),
        files={"config.json": config, "mine.py": code},
        settings={"model": [{"module": "mine.py:build", "sequence_length": 2048}]},
    )
    assert "would run a Python file" in swept.text
    planner = served.ask("compare", scenario=text, planners=["mine.py"])
    assert "request.planners.0" in message(planner)
    assert not touched.exists()


def test_too_many_devices_are_refused(served: Served, tmp_path: Path) -> None:
    scenario = write(tmp_path, plan=False, nodes=17).read_text()
    said = message(served.ask("plan", scenario=scenario))
    assert "cluster: has more devices than this server takes" in said
    assert "got:      '68 devices'" in said


def test_files_of_an_answer_are_the_folder_of_results(
    served: Served, text: str
) -> None:
    answer = served.ask("simulate", scenario=text, page=True)
    place = f"/v1/results/{answer.json()['id']}/files"
    names = served.http.get(place).json()
    assert {"files/page.html", "files/plan.json", "files/result.json"} <= {*names}
    page = served.http.get(f"{place}/files/page.html")
    assert page.headers["Content-Type"].startswith("text/html")
    assert page.headers["Content-Security-Policy"] == "sandbox allow-scripts"
    manifest = served.http.get(f"{place}/files/manifest.json")
    assert page.status_code == manifest.status_code == 200
    for name in ("files/../../x", "%2e%2e/%2e%2e/asked", "files", "nothing"):
        assert served.http.get(f"{place}/{name}").status_code == 404


def test_the_interface_describes_itself(served: Served) -> None:
    described = served.http.get("/v1/openapi.json").json()
    for kind, model in KINDS.items():
        asked = described["paths"][f"/v1/{kind}"]["post"]
        schema = asked["requestBody"]["content"]["application/json"]["schema"]
        assert set(schema["properties"]) == set(model.model_fields)
        assert {"200", "202", "422", "429"} <= set(asked["responses"])


def test_pages_of_other_sites_ask_nothing(served: Served, text: str) -> None:
    for headers in (
        {"Origin": "http://evil.example"},
        {"Host": "evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        asked = served.http.post("/v1/memory", json={"scenario": text}, headers=headers)
        assert "other sites" in message(asked, 403)


def test_a_question_that_takes_too_long_is_ended(text: str, tmp_path: Path) -> None:
    with Served(tmp_path, "--cpu-limit", "1") as served:
        said = message(served.ask("run", scenario=wide(text)))
        assert "limits: it took more than 1 s of processor time" in said
        assert served.ask("simulate", scenario=text).status_code == 200
        assert served.end() == 143


def test_a_question_that_needs_too_much_memory_is_ended(
    text: str, tmp_path: Path
) -> None:
    with Served(tmp_path, "--memory-limit", "1 MiB") as served:
        said = message(served.ask("run", scenario=wide(text)))
        assert "memory" in said


def wide(text: str) -> str:
    """Return a search on 2,048 devices, which takes a while."""
    many = text.replace("fan_out = 2", "fan_out = 512")
    many = many.replace("num_layers = 4", "num_layers = 64")
    many = many.replace("global_batch_size = 16", "global_batch_size = 8192")
    return many[: many.index("[plan]")]


def test_each_token_has_its_own_places(text: str, tmp_path: Path) -> None:
    anna, bert = "a" * 20, "b" * 20
    (tmp_path / "tokens").write_text(f"anna {anna}\nbert {bert}\n")
    options = ("--token-file", str(tmp_path / "tokens"), "--most-waiting", "2")
    with Served(tmp_path / "answers", *options) as served:

        def ask(token: str, number: int) -> httpx.Response:
            asked = {"scenario": f"{text}# {number}\n"}
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            return served.http.post("/v1/run?wait=0", json=asked, headers=headers)

        assert "a token is needed" in message(ask("", 0), 401)
        assert "a token is needed" in message(ask(f"{anna}a", 0), 401)
        assert served.http.get("/v1/jobs").status_code == 401
        taken = [ask(anna, number) for number in range(3)]
        assert [one.status_code for one in taken] == [202, 202, 429]
        assert int(taken[2].headers["Retry-After"]) >= 1
        other = ask(bert, 3)
        assert other.status_code == 202
        mine = {"Authorization": f"Bearer {bert}"}
        assert len(served.http.get("/v1/jobs", headers=mine).json()) == 1
        gone = served.http.delete(other.headers["Location"], headers=mine)
        assert gone.status_code == 204
        looked = served.http.get(other.headers["Location"], headers=mine)
        assert looked.status_code == 404


def test_trusted_questions_read_files_of_the_server(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    scenario = of_config(text, str(tmp_path / "config.json"))
    with Served(tmp_path / "answers", "--trust-code") as served:
        assert served.ask("memory", scenario=scenario).status_code == 200


def test_a_second_server_of_the_folder_is_refused(tmp_path: Path) -> None:
    with Served(tmp_path) as first:
        with pytest.raises(AssertionError, match="another server uses it"):
            Served(tmp_path)
        assert first.end(signal.SIGINT) == 130


@failures.over(
    ("options", "says"),
    [
        (("--host", "0.0.0.0"), "nobody would need a token"),
        (("--host", "::", "--token-file", "no"), "no such file"),
        (("--store", "nowhere://x"), "cannot be reached"),
        (("--memory-limit", "4"), "--memory-limit"),
    ],
)
def test_options_that_are_refused(
    options: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match=says):
        Served(tmp_path, *options)
