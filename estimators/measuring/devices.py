"""What torch can measure on, and what it is called."""

import platform
import shutil
import subprocess
from pathlib import Path

import torch

from topologies.errors import InputError


def available_device(name: str) -> torch.device:
    """Return a device to measure on.

    Raises
    ------
    InputError
        If torch does not reach one.
    """
    known = name == "cpu" or (name == "cuda" and torch.cuda.is_available())
    if not known:
        raise InputError(
            "torch finds no such device here",
            where="--device",
            got=name,
            expected="cpu, or cuda where torch was built for it and sees a GPU",
        )
    return torch.device(name)


def precisions_of(device: torch.device) -> tuple[str, ...]:
    """Return the number formats that a device trains in.

    torch computes fp16 on a CPU too, but several times more slowly than fp32: nobody
    trains that way.
    """
    if device.type == "cpu":
        return ("fp32", "bf16")
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return ("bf16", "fp16", "fp32")
    return ("fp16", "fp32")


def device_name(device: torch.device) -> str:
    """Return what the driver or the operating system calls a device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    facts = Path("/proc/cpuinfo")
    if facts.exists():
        for line in facts.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def driver_of(device: torch.device) -> str:
    """Return the versions below torch: driver and toolkit, or operating system."""
    if device.type == "cpu":
        return f"{platform.system()} {platform.release()}"
    driver = "unknown"
    command = shutil.which("nvidia-smi")
    if command is not None:
        asked = "--query-gpu=driver_version"
        answer = subprocess.run(
            [command, asked, "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        driver = next(iter(answer.stdout.split()), driver)
    return f"driver {driver}, CUDA {torch.version.cuda}"
