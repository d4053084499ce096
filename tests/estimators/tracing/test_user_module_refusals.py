"""What cannot be a chain of priced layers is refused, in the user's terms."""

from pathlib import Path

import pytest

from estimators.tracing.user_module import UserModule
from tests import failures
from topologies.errors import InputError

START = (Path(__file__).parent / "modules" / "small.py").read_text()

LINES = START.count("\n")

REFUSALS = {
    "no file": (None, "no such file"),
    "bad syntax": ("def build(:", "the file cannot be run (line 1)"),
    "bad import": ("import no_such_package_at_all", "No module named"),
    "no function": ("def make(): return 1", "the file has no such function"),
    "the file ends the program": ("raise SystemExit(3)", "SystemExit: 3"),
    "build fails": (
        "def build():\n    raise RuntimeError('no weights here')",
        "build() fails (line 2)\n  got:      'RuntimeError: no weights here'",
    ),
    "build needs arguments": ("def build(width): return 1", "missing 1 required"),
    "no module": ("def build(): return [1]", "returns no torch.nn.Module"),
    "other inputs": (
        START + "class Odd(Model):\n"
        "    def forward(self, tokens, labels, mask): return super().forward(tokens)\n"
        "build = Odd",
        "tokens, labels, mask",
    ),
    "a branch on numbers": (
        START + "class Odd(Block):\n"
        "    def forward(self, x):\n"
        "        return x if x.sum() > 0 else super().forward(x)\n"
        "def build(): return Model(block=Odd)",
        f"the model cannot be traced (line {LINES + 3})",
    ),
    "an error in forward": (
        START + "class Odd(Block):\n"
        "    def forward(self, x): return super().forward(x[..., :3])\n"
        "def build(): return Model(block=Odd)",
        "RuntimeError",
    ),
    "one block": (START + "def build(): return Model(1)", "has no repeated blocks"),
    "no list": (
        START + "class Odd(Model):\n"
        "    def __init__(self): super().__init__(); self.blocks = None\n"
        "    def forward(self, tokens): return self.head(self.words(tokens))\n"
        "build = Odd",
        "has no repeated blocks",
    ),
    "a tensor skips": (
        START + "class Odd(Model):\n"
        "    def forward(self, tokens):\n"
        "        first = x = self.words(tokens)\n"
        "        for block in self.blocks: x = block(x)\n"
        "        return self.head(x + first)\n"
        "build = Odd",
        "skips over blocks",
    ),
    "blocks take the first one's input": (
        START + "class Odd(Block):\n"
        "    def forward(self, x, y): return super().forward(x) + y\n"
        "class Other(Model):\n"
        "    def forward(self, tokens):\n"
        "        first = x = self.words(tokens)\n"
        "        for block in self.blocks: x = block(x, first)\n"
        "        return self.head(x)\n"
        "def build(): return Other(block=Odd)",
        "blocks.1 takes the results of",
    ),
    "blocks return two tensors": (
        START + "class Odd(Block):\n"
        "    def forward(self, x):\n"
        "        return super().forward(x), self.up(x)\n"
        "class Other(Model):\n"
        "    def forward(self, tokens):\n"
        "        x, kept = self.words(tokens), 0\n"
        "        for block in self.blocks:\n"
        "            x, more = block(x)\n"
        "            kept = kept + more.mean(-1, keepdim=True)\n"
        "        return self.head(x * kept)\n"
        "def build(): return Other(block=Odd)",
        "blocks.0 has 2 results",
    ),
    "operators between blocks": (
        START + "class Odd(Model):\n"
        "    def forward(self, tokens):\n"
        "        x = self.words(tokens)\n"
        "        for block in self.blocks: x = block(x) * 0.5\n"
        "        return self.head(x)\n"
        "build = Odd",
        "is changed between them",
    ),
    "unlike shapes": (
        START + "class Odd(Block):\n"
        "    def __init__(self, place):\n"
        "        super().__init__()\n"
        "        self.up = nn.Linear(16 * place, 16 * place + 16)\n"
        "    def forward(self, x): return F.gelu(self.up(x))\n"
        "class Other(Model):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.blocks = nn.ModuleList(Odd(i + 1) for i in range(3))\n"
        "        self.head = nn.Linear(64, 64)\n"
        "build = Other",
        "blocks.0: [1, 8, 16] to [1, 8, 32]",
    ),
    "a block twice": (
        START + "class Odd(Model):\n"
        "    def forward(self, tokens):\n"
        "        x = self.words(tokens)\n"
        "        for block in [*self.blocks, *self.blocks]: x = block(x)\n"
        "        return self.head(x)\n"
        "build = Odd",
        "calls a block more than once",
    ),
    "an unknown operator": (
        START + "class Odd(Block):\n"
        "    def forward(self, x): return super().forward(x.cumsum(1))\n"
        "def build(): return Model(block=Odd)",
        "uses an operator that has no price\n  got:      'cumsum in blocks.0'",
    ),
    "an unknown module": (
        START + "class Odd(Block):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.mix = nn.Conv1d(8, 8, 1)\n"
        "    def forward(self, x): return super().forward(self.mix(x))\n"
        "def build(): return Model(block=Odd)",
        "Conv1d at blocks.0.mix",
    ),
    "attention of torch": (
        START + "class Odd(Block):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.mix = nn.MultiheadAttention(16, 4)\n"
        "    def forward(self, x): return super().forward(self.mix(x, x, x)[0])\n"
        "def build(): return Model(block=Odd)",
        "MultiheadAttention at blocks.0.mix",
    ),
    "blocks of torch": (
        START + "def build(): return Model(\n"
        "    block=lambda: nn.TransformerEncoderLayer(16, 4, 32)\n"
        ")",
        "TransformerEncoderLayer at blocks.0",
    ),
    "tokens that are mixed": (
        START + "class Odd(Block):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.mix = nn.Linear(8, 8)\n"
        "    def forward(self, x):\n"
        "        return super().forward(self.mix(x.transpose(1, 2)).transpose(1, 2))\n"
        "def build(): return Model(block=Odd)",
        "the model has a linear layer that mixes tokens\n"
        "  got:      'Linear at blocks.0.mix'",
    ),
    "tokens that are mixed by a parameter": (
        START + "class Odd(Block):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.mix = nn.Parameter(torch.zeros(8, 8))\n"
        "    def forward(self, x): return super().forward(self.mix @ x)\n"
        "def build(): return Model(block=Odd)",
        "a weight that is not a matrix behind them",
    ),
    "a factorised embedding that is tied": (
        START + "class Odd(Model):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.words, self.wide = nn.Embedding(64, 8), nn.Linear(8, 16)\n"
        "        self.slim, self.head = nn.Linear(16, 8), nn.Linear(8, 64, False)\n"
        "        self.head.weight = self.words.weight\n"
        "    def forward(self, tokens):\n"
        "        x = self.wide(self.words(tokens))\n"
        "        for block in self.blocks: x = block(x)\n"
        "        return self.head(self.slim(x))\n"
        "build = Odd",
        "a parameter that several layers share\n  got:      'words.weight'",
    ),
    "tokens that are routed": (
        START + "class Odd(Block):\n"
        "    def forward(self, x):\n"
        "        return super().forward(x) * x.topk(2).values.sum(-1, keepdim=True)\n"
        "def build(): return Model(block=Odd)",
        "topk in blocks.0",
    ),
    "a mean over tokens": (
        START + "class Odd(Block):\n"
        "    def forward(self, x): return super().forward(x) + x.mean(1, True)\n"
        "def build(): return Model(block=Odd)",
        "reduces over another dimension than the last",
    ),
    "no embedding": (
        START + "class Odd(Model):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.words = None\n"
        "        self.table = nn.Parameter(torch.zeros(64, 16))\n"
        "    def forward(self, tokens):\n"
        "        x = self.table[tokens]\n"
        "        for block in self.blocks: x = block(x)\n"
        "        return self.head(x)\n"
        "build = Odd",
        "no embedding of token ids",
    ),
    "fewer tokens": (
        START + "class Odd(Model):\n"
        "    def forward(self, tokens):\n"
        "        return super().forward(tokens[:, ::2])\n"
        "build = Odd",
        "another number of tokens",
    ),
    "an unused parameter": (
        START + "class Odd(Model):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.spare = nn.Linear(4, 4)\n"
        "build = Odd",
        "a parameter that no layer of the chain uses\n  got:      'spare.weight'",
    ),
    "a shared parameter": (
        START + "class Odd(Model):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.blocks[1].up.weight = self.blocks[0].up.weight\n"
        "build = Odd",
        "a parameter that several layers share\n  got:      'blocks.0.up.weight'",
    ),
}


@failures.over("name", REFUSALS)
def test_a_module_that_cannot_be_planned_is_refused(tmp_path: Path, name: str) -> None:
    text, said = REFUSALS[name]
    file = tmp_path / "my_model.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InputError) as caught:
        UserModule(file=file, function="build", sequence_length=8).trace()
    assert said in str(caught.value)
    assert caught.value.expected


def test_what_the_refusals_begin_with_is_a_model(tmp_path: Path) -> None:
    file = tmp_path / "my_model.py"
    file.write_text(START)
    module = UserModule(file=file, function="build", sequence_length=8).trace()
    assert module.graph.names == (
        *("embedding", "block 0", "block 1", "block 2", "head"),
    )


def test_what_the_file_prints_does_not_reach_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my_model.py"
    file.write_text("print('loud')\n" + START)
    UserModule(file=file, function="build", sequence_length=8).trace()
    out, err = capsys.readouterr()
    assert out == ""
    assert "loud" in err
