"""Strategies of other programs' files about networks, and of the commands on them."""

import json
import re
from pathlib import Path

import tomli
import yaml
from hypothesis import strategies as st

from tests.fuzz.case import OUTPUT, Case, Content
from tests.fuzz.formats import dump
from tests.fuzz.mutations import mutated_bytes, mutated_trees
from tests.fuzz.scenarios import SCENARIO

DESCRIBED = Path(__file__).resolve().parents[2] / "scenarios" / "described"

LOG = "nccl.log"

_LOG = """\
# nccl-tests version 2.19.4 nccl-headers=21903 nccl-library=21903
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor)
#  Rank  0 Group  0 Pid 1 on a device  0 [0000:14:00] NVIDIA A100-SXM4-80GB
#  Rank  1 Group  0 Pid 2 on a device  1 [0000:19:00] NVIDIA A100-SXM4-80GB
#  Rank  2 Group  0 Pid 3 on b device  0 [0000:14:00] NVIDIA A100-SXM4-80GB
#  Rank  3 Group  0 Pid 4 on b device  1 [0000:19:00] NVIDIA A100-SXM4-80GB
#  size  count  type redop root time algbw busbw #wrong time algbw busbw #wrong
   1048576  262144  float  sum  -1  67.31  15.58  23.37  0  65.27  16.07  24.11  0
  67108864  16777216  float  sum  -1  671.7  99.90  149.85  0  672.6  99.78  149.67  0
# Out of bounds values : 0 OK
"""

_TOPOLOGY = """\
- topology: tree
  cluster_default: true
  tree:
    switches:
      - {switch: spine, children: "leaf[1-2]"}
      - {switch: leaf1, nodes: "gpu[01-04]"}
      - {switch: leaf2, nodes: "gpu[05-08]"}
- topology: blocks
  block:
    block_sizes: [2, 4]
    blocks:
      - {block: b1, nodes: "gpu[01-04]"}
      - {block: b2, nodes: "gpu[05-08]"}
"""

_NUMBER = re.compile(rb"\d+")

_NUMBERS = (b"0", b"-1", b"1", b"99999", b"9" * 30, b"1e9", b"x", b"", b"[1-3]", b"nan")


@st.composite
def network_file_cases(draw: st.DrawFn) -> Case:
    """Draw a file about a network, and the scenario or the command that reads it."""
    name = draw(st.sampled_from(["slurm", "yaml", "nccl_topo", "infragraph", "log"]))
    if name == "log":
        content, is_mutated = draw(_contents(_LOG.encode()))
        argv = ["profile-logs", LOG, "-o", OUTPUT]
        argv += draw(st.sampled_from([[], ["--json"], ["--ranks", "4"], ["--quiet"]]))
        files: dict[str, Content] = {LOG: content}
        return Case(
            kind="network file", argv=tuple(argv), files=files, is_mutated=is_mutated
        )
    shipped = "slurm" if name == "yaml" else name
    text = (DESCRIBED / f"{shipped}.toml").read_text(encoding="utf-8")
    document = tomli.loads(text)
    del document["cluster"]["num_devices"]
    network = document["cluster"]["network"]
    original = (DESCRIBED / network["file"]).read_bytes()
    if name == "yaml":
        network["file"], original = "topology.yaml", _TOPOLOGY.encode()
        network |= draw(
            st.sampled_from([{}, {"topology": "blocks"}, {"nodes": "gpu01"}])
        )
    content, is_mutated = draw(_contents(original, tree=name in {"infragraph", "yaml"}))
    if draw(st.integers(0, 3)) == 0:
        changed = draw(mutated_trees(network))
        document["cluster"]["network"], is_mutated = changed, True
    files = {SCENARIO: dump(SCENARIO, document), network["file"]: content}
    argv = ["topology", SCENARIO, "--json"]
    return Case(
        kind="network file", argv=tuple(argv), files=files, is_mutated=is_mutated
    )


@st.composite
def _contents(
    draw: st.DrawFn, content: bytes, *, tree: bool = False
) -> tuple[bytes, bool]:
    """Draw a file: as it is, other numbers in it, other values, other bytes."""
    ways = [*["as it is"] * 3, "number", "number", "bytes", "bytes"]
    how = draw(st.sampled_from([*ways, *["tree"] * 3] if tree else ways))
    if how == "number":
        found = list(_NUMBER.finditer(content))
        one = draw(st.sampled_from(found))
        other = draw(st.sampled_from(_NUMBERS))
        return content[: one.start()] + other + content[one.end() :], True
    if how == "bytes":
        return draw(mutated_bytes(content)), True
    if how == "tree":
        changed = draw(mutated_trees(yaml.safe_load(content)))
        text = json.dumps(changed, default=str)
        return text.encode("utf-8", errors="surrogatepass"), True
    return content, False
