"""The kind "infragraph" of [cluster.network]: a graph, and what its links lack."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from nestsim.scenario.base import Table, input_file
from nestsim.scenario.hardware.described import DescribedNetwork
from topologies.errors import InputError
from topologies.readers.infragraph import InfraOptions, read_infragraph
from topologies.settings import Bandwidth, Latency, Text
from topologies.specs import CustomSpec


class InfraGraphTable(Table):
    """A graph of InfraGraph; what it does not tell of its links is said here."""

    kind: Literal["infragraph"]
    """Name of this kind of network."""

    file: Text = Field(examples=["infrastructure.yaml"])
    """An infrastructure of InfraGraph in JSON or YAML, relative to the scenario's
    folder. Its devices are the components of choice "xpu"."""

    bandwidths: dict[Text, Bandwidth] = Field(
        {}, examples=[{"nvlink": "450 GB/s", "pcie": "63 GB/s"}]
    )
    """Bandwidth of one edge of a link, by the link's name, per direction [byte/s]. For
    links of which the file says none, or in gigatransfers; the others keep theirs
    unless they are named here."""

    latencies: dict[Text, Latency] = Field({}, examples=[{"nvlink": "500 ns"}])
    """Latency of one edge of a link, by the link's name [s]."""

    latency: Latency | None = Field(None, examples=["500 ns"])
    """Latency of one edge of links of which neither the file nor `latencies` says one
    [s]."""

    def read(self, folder: Path) -> DescribedNetwork:
        """Return the network of the file and the settings.

        Parameters
        ----------
        folder
            The scenario file's.

        Raises
        ------
        InputError
            If the file is wrong, or does not go with the settings.
        """
        expected = "an infrastructure of InfraGraph in JSON or YAML"
        path = input_file(folder, self.file, "file", expected)
        options = InfraOptions(
            bandwidths=self.bandwidths, latencies=self.latencies, latency=self.latency
        )
        try:
            listed, assumed = read_infragraph(path, options)
        except InputError as error:
            raise error.at("file", ": ") from None
        said = [f"links of {self.file}"]
        if self.bandwidths:
            names = ", ".join(self.bandwidths)
            said.append(f"bandwidths of {names} are the scenario's")
        spec = CustomSpec(path=path, listed=listed)
        return DescribedNetwork(spec, ("; ".join(said), *assumed))
