"""``nestsim accelerators``."""

from typing import TYPE_CHECKING

from nestsim.cli.arguments import Json

if TYPE_CHECKING:
    from topologies.accelerators import Accelerator


def accelerators(as_json: Json = False) -> None:
    """List the accelerators that a scenario can name.

    Rates are dense, without sparsity; `--json` adds where each number was published.

    Example: `nestsim accelerators`, then in a scenario:
    `[cluster] accelerator = "h100-sxm"`
    """
    import typer

    from topologies.accelerators import accelerator_names, load_accelerator

    devices = [load_accelerator(name) for name in accelerator_names()]
    if as_json:
        from nestsim.report.json import dump_json

        catalogue = {device.name: _facts(device) for device in devices}
        typer.echo(dump_json(catalogue), nl=False)
        return
    from nestsim.cli.output import print_table
    from topologies.units import format_bandwidth, format_size

    print_table(
        {
            "name": False,
            "vendor": False,
            "TFLOP/s bf16": True,
            "fp16": True,
            "fp32": True,
            "memory": True,
            "memory bandwidth": True,
            "scale-up": True,
        },
        [
            (
                device.name,
                device.vendor,
                *(_tera(device, kind) for kind in ("bf16", "fp16", "fp32")),
                format_size(device.memory_bytes),
                format_bandwidth(device.memory_bandwidth),
                format_bandwidth(device.interconnect_bandwidth),
            )
            for device in devices
        ],
    )


def _tera(device: "Accelerator", number_format: str) -> str:
    rate = device.peak_flops.get(number_format)
    return "-" if rate is None else f"{rate / 1e12:.4g}"


def _facts(device: "Accelerator") -> dict[str, object]:
    return {
        "vendor": device.vendor,
        "peak_flops": dict(device.peak_flops),
        "memory_bytes": device.memory_bytes,
        "memory_bandwidth_bytes_per_s": device.memory_bandwidth,
        "num_compute_units": device.num_compute_units,
        "interconnect_bandwidth_bytes_per_s": device.interconnect_bandwidth,
        "sources": dict(device.sources),
    }
