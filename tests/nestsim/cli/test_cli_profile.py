"""``nestsim profile``: its file, its tables, its errors."""

import io
import json

import pytest
import torch
from rich.console import Console

from estimators.measuring.operators import LayerCheck
from estimators.operators.profile import (
    Measurement,
    OperatorTiming,
    Profile,
    read_profile,
)
from nestsim.cli import main
from nestsim.document.terminal import print_document
from nestsim.features.profile.document import (
    catalogue_entry,
    median_spread,
    profile_document,
    profile_json,
)
from tests import failures

WRONG_INPUT = 2


@pytest.fixture(autouse=True)
def one_thread():
    """Keep threads from waiting for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def example(device="NVIDIA A100-SXM4-80GB", *, spread=0.0, num_skipped=0):
    def timing(seconds):
        return OperatorTiming(seconds, spread * seconds, 15)

    product = Measurement(
        operation="linear",
        precision="bf16",
        shape=(4096, 4096, 4096, 1),
        flops=2.0 * 4096**3,
        num_bytes=3 * 2.0 * 4096**2,
        forward=timing(2.0 * 4096**3 / 156e12),
        backward=timing(1e-3),
        weight_gradient=timing(4e-4),
    )
    adam = Measurement(
        operation="adam",
        precision="fp32",
        shape=(1000,),
        flops=0.0,
        num_bytes=28e3,
        forward=timing(28e3 / 1e12),
    )
    return Profile(
        device=device,
        driver="driver 1, CUDA 2",
        date="2026-01-31",
        torch_version="2.5",
        num_threads=0,
        launch_time=5e-6,
        measurements=(product, adam),
        num_skipped=num_skipped,
    )


CHECK = LayerCheck(
    name="GPT, flash attention, 384 tokens x 384",
    precision="bf16",
    measured_forward=OperatorTiming(1e-3, 1e-5, 15),
    measured_backward=OperatorTiming(2e-3, 1e-5, 15),
    predicted_forward=1.1e-3,
    predicted_backward=1.9e-3,
    num_operators=12,
    num_outside=1,
)


def printed(profile, checks=()):
    text = io.StringIO()
    document = profile_document(profile, checks)
    print_document(document, Console(file=text, width=120))
    return text.getvalue()


def test_it_measures_writes_checks_and_prints(tmp_path, capsys):
    file = tmp_path / "cpu.json"
    options = ["--device", "cpu", "--quick", "--check", "--budget", "0 s"]
    assert main(["profile", *options, "--output", str(file)]) == 0
    captured = capsys.readouterr()
    profile = read_profile(file)
    assert (
        profile_document(profile, []).headline.verdict in captured.out.splitlines()[0]
    )
    assert "Whole layers: predicted from the profile, and measured" in captured.out
    assert captured.out.count("backward") == 3
    assert f"The profile is in {file}" in captured.err
    operations = {one.operation for one in profile.measurements}
    assert all(f"\n{name} " in captured.out for name in operations)


def test_json_has_the_profile_and_the_check():
    found = json.loads(json.dumps(profile_json(example(), [CHECK])))
    assert Profile.from_json(found["profile"]) == example()
    (check,) = found["check"]
    assert check["forward"]["error"] == pytest.approx(0.1)
    assert check["backward"]["error"] == pytest.approx(-0.05)
    assert check["num_operators_outside"] == 1


def test_shares_are_of_the_datasheet_where_the_device_is_known():
    text = printed(example())
    assert "the datasheet of a100-80gb" in text
    (product,) = [line for line in text.splitlines() if line.startswith("linear")]
    assert product.split()[-1] == "%"
    assert "156 TFLOP/s" in product
    assert "50.0 %" in product
    (adam,) = [line for line in text.splitlines() if line.startswith("adam")]
    assert "1 TB/s" in adam


def test_shares_are_of_the_best_where_it_is_not():
    text = printed(example("a device"))
    assert "the highest rate measured" in text
    assert text.count("100.0 %") == 2


def test_the_check_says_how_far_off_it_is_and_what_was_extrapolated():
    text = printed(example(), [CHECK])
    assert "+10.0 %" in text
    assert "-5.0 %" in text
    assert "1 of 12 operators have a size outside the measured range" in text


def test_what_was_left_out_and_what_was_disturbed_is_said():
    quiet = printed(example())
    assert "left out" not in quiet
    assert "other programs" not in quiet
    assert "3 shapes left out" in printed(example(num_skipped=3))
    assert median_spread(example(spread=0.4)) == pytest.approx(0.4)
    assert "spread by more than 40.0 %" in printed(example(spread=0.4))


@failures.over(
    ("device", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb-pcie"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA A10G", "a10g"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L40", None),
        ("AMD EPYC", None),
    ],
)
def test_a_drivers_name_finds_its_entry_of_the_catalogue_or_none(device, name):
    entry = catalogue_entry(device)
    assert (entry.name if entry else None) == name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--budget", "5"], "--budget: quantity has no unit"),
        (["--budget", "5 GB"], "--budget: unit is not one of duration"),
        (["--output", "."], "--output: is a folder"),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(
    options, message, tmp_path, capsys
):
    arguments = ["profile", "--output", str(tmp_path / "p.json"), *options]
    assert main(arguments) == WRONG_INPUT
    assert capsys.readouterr().err.startswith(message)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused(tmp_path, capsys):
    file = tmp_path / "p.json"
    assert main(["profile", "--device", "cuda", "-o", str(file)]) == WRONG_INPUT
    assert "torch finds no such device here" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_refused_before_measuring(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    arguments = ["profile", "--quick", "--budget", "0 s", "--quiet"]
    target = tmp_path / "file" / "p.json"
    assert main([*arguments, "-o", str(target)]) == WRONG_INPUT
    assert capsys.readouterr().err.startswith("--output: is not a folder")
