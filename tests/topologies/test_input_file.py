"""Files that people hand in: whatever they are, reading them ends, in a sentence."""

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import failures
from topologies.errors import InputError
from topologies.input_file import (
    MAX_DEPTH,
    MAX_DIGITS,
    carried_files,
    file_in,
    file_problem,
    files_to_carry,
    parse_json,
    parse_toml,
    read_file,
    read_json,
)


def refusal(path: Path, most_bytes: int = 1000) -> str:
    with pytest.raises(InputError) as caught:
        read_json(path, expected="a thing", most_bytes=most_bytes)
    return str(caught.value)


def test_a_regular_file_is_read_also_through_a_link(tmp_path):
    (tmp_path / "file").write_bytes(b"\xef\xbb\xbf[1, 2]")
    (tmp_path / "link").symlink_to("file")
    assert read_json(tmp_path / "link", expected="", most_bytes=9) == [1, 2]


@pytest.mark.timeout(20)
def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        assert "is a socket" in refusal(tmp_path / "socket")
    assert "is a pipe" in refusal(tmp_path / "pipe")
    assert "is a link that leads to itself" in refusal(tmp_path / "loop")
    assert "is a folder" in refusal(tmp_path)
    assert "is a device" in refusal(Path("/dev/zero"))
    assert "no such file" in refusal(tmp_path / "none")
    assert "no such file" in refusal(tmp_path / "none" / "inner")
    assert "too long a name" in refusal(tmp_path / ("x" * 300))
    assert "a name that no file has" in refusal(tmp_path / "a\0b")


def test_a_file_of_a_terabyte_is_refused_by_its_length(tmp_path):
    file = tmp_path / "sparse"
    file.touch()
    os.truncate(file, 10**12)
    told = refusal(file)
    assert "is too long" in told
    assert "1,000,000,000,000 bytes" in told
    assert "a thing, of at most 1,000 bytes" in told


def test_a_file_that_says_nothing_of_its_length_is_read_no_further_than_allowed():
    whole = read_file(Path("/proc/self/status"), expected="", most_bytes=10**6)
    assert len(whole) > 10
    with pytest.raises(InputError, match="is too long"):
        read_file(Path("/proc/self/status"), expected="", most_bytes=len(whole) // 2)


@failures.over(
    ("text", "problem"),
    [
        ("[" * 200_000, "nested too deeply"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "nested too deeply"),
        ('{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1), "nested too deeply"),
        ("[NaN]", "a number is not finite"),
        ("[-Infinity]", "a number is not finite"),
        ("[1e999]", "a number is too large"),
        ("[" + "9" * (MAX_DIGITS + 1) + "]", "a number is too long"),
        ("[" + "9" * 10_000 + "]", "a number is too long"),
        ('{"a": 1, "a": 2}', "a key is there twice"),
        ("", "not JSON: Expecting value at line 1, column 1"),
    ],
)
def test_json_that_nobody_can_use_is_refused(text, problem):
    with pytest.raises(InputError, match=problem) as caught:
        parse_json(text, expected="a thing")
    assert len(str(caught.value)) < 500


def test_values_may_be_nested_as_deep_as_is_said():
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert parse_json(text, expected="")


@failures.over(
    ("content", "problem"),
    [
        (b"a = " + b"[" * 100_000, "nested too deeply"),
        (b".".join([b"a"] * 500) + b" = 1", "nested too deeply"),
        (b".".join([b"a"] * 50_000) + b" = 1", "nested too deeply"),
        (b"a = " + b"9" * 10_000, "a number is too long"),
        (b"a = \xff", r"is not UTF-8 text \(line 1\)"),
        (b"\xff\xfea\x00", "is encoded in UTF-16"),
        (b"a = 1\na = 2", "not TOML"),
    ],
)
def test_toml_that_nobody_can_use_is_refused(content, problem):
    with pytest.raises(InputError, match=problem):
        parse_toml(content)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_document_or_explained(content):
    expected = ""
    try:
        found = parse_toml(content)
    except InputError as error:
        found, expected = {}, error.expected
    assert isinstance(found, dict)
    assert found or expected or not content.strip() or b"#" in content


def test_a_folder_stands_for_its_file_and_a_hopeless_name_for_itself(tmp_path):
    assert file_in(tmp_path, "a.json") == tmp_path / "a.json"
    assert file_in(tmp_path / "b", "a.json") == tmp_path / "b"
    long = Path("x" * 5000)
    assert file_in(long, "a.json") == long
    with pytest.raises(InputError, match="too long"):
        read_file(long, expected="a file", most_bytes=1)


@failures.over(
    ("name", "found", "problem"),
    [
        ("file", "", ""),
        (".", "is a folder, not a file", "is a folder, not a file"),
        ("missing", "no such file", "no such file"),
        ("a\0b", "has a name that no file has", "has a name that no file has"),
    ],
)
def test_a_file_that_was_carried_is_read_or_refused_as_at_home(
    tmp_path, monkeypatch, name, found, problem
):
    home, there = tmp_path / "home", tmp_path / "there"
    for folder in (home, there):
        folder.mkdir()
    (home / "file").write_text("{}")
    (there / "missing").write_text("{}")  # another file of this name

    def read() -> str:
        try:
            read_json(Path(name), expected="a thing", most_bytes=1000)
        except InputError as error:
            return error.problem
        return ""

    monkeypatch.chdir(home)
    assert (file_problem(Path(name)), read()) == (found, problem)
    carried = files_to_carry([Path(name)])
    monkeypatch.chdir(there)
    with carried_files(carried):
        assert (file_problem(Path(name)), read()) == (found, problem)
