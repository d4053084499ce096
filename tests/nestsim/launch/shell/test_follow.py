"""Shell scripts are followed as Bash follows them, and nothing is executed."""

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.launch.formats.megatron.options import TABLE
from nestsim.launch.formats.megatron.reading import read_megatron
from nestsim.launch.read import ImportedJob, LaunchSource
from nestsim.launch.shell.follow import follow_script
from nestsim.launch.shell.marks import first_unknown
from tests import failures
from topologies.errors import InputError

SCRIPTS = Path(__file__).parent.parent / "megatron" / "scripts"


def started(text: str, **variables: str) -> list[tuple[str, ...]]:
    return [one.words for one in follow_script(text, variables).commands]


CASES = [
    "A=8\nrun --tp $A",
    "A=8; B=${A}; run --tp=${B}",
    "run ${A:-8} ${A-9} ${A:=7} $A",
    "A=4 B=2\nrun $((A*B)) $(( $A / 3 )) $((A%B+1))",
    'A=(--x 1 "two words")\nrun ${A[@]}\nrun "${A[@]}"\nrun ${#A[@]} ${A[1]}',
    "A=()\nA+=(--x 1)\nA+=(--y)\nrun ${A[@]}",
    'A="--x 1 \\\n  --y 2"\nrun $A\nrun "$A"',
    "A='$B \"q\"'\nrun $A '#' # comment\n",
    'A=1\nif [ "$A" == "1" ]; then run yes; elif true; then run no; else run x; fi',
    'A=b\ncase "${A}" in\n "a") run a ;;\n b|c) run b ;;\n *) run other ;;\nesac',
    "for i in 1 2 3; do run $i; done",
    "f() {\n  local n=$1; shift\n  run $n $*\n}\nf 4 --x 1\nf 5",
    "[ 2 -gt 1 ] && run yes || run no",
    '[[ "abc" == a* && -z "" ]] && run yes',
    "A=x\nA+=y\nA=${A}z\nrun $A ${A^^}",
    "export A=5 B=6\nrun $A$B",
    "bash -c \"run --in 'a b'\"",
    "eval run one two",
    "A=1\n(A=2; run $A)\n{ run 3; }",
    "run a 2>&1\nrun b 2>/dev/null | cat\nrun c >&1",
    "cat <<EOF > /dev/null\nrun $(nothing)\nEOF\nrun after",
    "if ((2 > 1)); then run yes; fi",
    "A=1; unset A; run ${A:-gone}",
    "set -- p q\nrun fixed",
    "A=8 # eight\nrun \\\n  --tp $A \\\n  --end",
    "[ ! 1 -eq 2 ] && run yes",
    'A="x y"; B=($A z); run "${B[@]}"',
    "run {a..b} 'it''s' \"q\\\"q\"",
]
"""Scripts that call ``run`` and do nothing else that matters."""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no Bash")
@failures.over("script", CASES)
def test_commands_are_those_that_bash_starts(script: str) -> None:
    """Bash itself is the oracle: a function writes down the words of each command."""
    expanding = script.replace("{a..b}", "ab")
    oracle = 'run() { printf \'%s\\0\' "$#" "$@"; }\nexport -f run\n' + expanding
    done = subprocess.run(
        ["bash", "-c", oracle], capture_output=True, text=True, check=False, timeout=20
    )
    words = done.stdout.split("\0")[:-1]
    expected = []
    while words:
        count = int(words.pop(0))
        expected.append(("run", *words[:count]))
        words = words[count:]
    found = [one for one in started(expanding) if one[0] == "run"]
    assert found == expected


def test_what_nothing_sets_is_marked_by_its_name() -> None:
    *_, (_, path, made, taken) = started("run $DATA/x $(date +%s) ${1}")
    assert first_unknown(path) == "$DATA"
    assert first_unknown(made) == "$(date +%s)"
    assert first_unknown(taken) == "$1"


def test_what_is_not_known_keeps_its_name_in_another_shell() -> None:
    text = "bash -c \"run $DATA/x $(ls 'a b' | head -n 1) y\""
    *_, (_, path, made, last) = started(text)
    assert first_unknown(path) == "$DATA"
    assert first_unknown(made) == "$(ls 'a b' | head -n 1)"
    assert last == "y"


DOCUMENTS = [
    'A=4\ncat <<EOF > made\n{"a": $A, "b": "x\\"y", "c": "\\$A\\n"}\nEOF',
    "A=4\ncat > made <<'EOF'\n{\"a\": $A}\nEOF",
    "cat > made <<-EOF\n\tone\n\ttwo\n\tEOF",
    "A=made\ncat <<EOF >$A\none\nEOF\ncat >> $A <<EOF\ntwo\nEOF",
    "tee made <<EOF >/dev/null\none 'two' \"three\"\nEOF",
    'A=2\necho "{\\"a\\": $A}" > made 2> /dev/null',
    "cat <<EOF 2> other > made\none\nEOF",
    "cat <<EOF >| made\n\n  ${B:-two}\nEOF",
]
"""Scripts that write a file ``made``."""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no Bash")
@failures.over("script", DOCUMENTS)
def test_files_are_those_that_bash_writes(script: str, tmp_path: Path) -> None:
    subprocess.run(["bash", "-c", script], check=True, timeout=20, cwd=tmp_path)
    files = follow_script(script, {}).files
    assert files["made"] == (tmp_path / "made").read_text()
    assert set(files) <= {"made", "/dev/null"}


@failures.over(
    ("script", "said"),
    [
        ("A='x", "' is left open in line 1"),
        ('A=1\nB="\n"\nrun "x', '" is left open in line 4'),
        ("run ${A", "${ is left open"),
        ("run $(date", "$( is left open"),
        ("run `date", "` is left open"),
        ("A=(a", "( is left open in line 1"),
        ("run\nif true; then", "if is left open in line 2"),
    ],
)
def test_what_is_left_open_is_said(script: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        follow_script(script, {})
    assert said in str(caught.value)


def test_what_the_user_gives_stays() -> None:
    assert started("N=1\nrun $N $1", N="16", **{"1": "data"}) == [("run", "16", "data")]


def test_conditions_that_only_a_run_would_tell_do_not_hold_and_are_told() -> None:
    run = follow_script("if nvidia-smi; then run a; else run b; fi", {})
    assert [one.words[0] for one in run.commands] == ["nvidia-smi", "run"]
    assert run.commands[-1].words == ("run", "b")
    assert run.assumptions == ("The condition in line 1 of the script does not hold.",)


def test_what_a_script_stops_at_is_told_only_where_it_could_stop() -> None:
    unset = "Variables that nothing in the script sets are set (set -u)."
    succeeds = "Commands succeed (set -e)."
    for script, told in (
        ("set -eu\nN=${N:-8}\ntorchrun $N a.py", ()),
        ("set -eu\ntorchrun $N a.py", (unset,)),
        ("torchrun $N a.py\nsleep 1", ()),
        ("set -e\nmodule load cuda\ntorchrun a.py", (succeeds,)),
        ("set -e\ntorchrun a.py &\nwait", ()),
    ):
        assert follow_script(script, {}).assumptions == told, script


def test_a_loop_over_lines_of_a_command_has_one_round() -> None:
    run = follow_script("while read -r host; do run $host; done < <(hosts)", {})
    assert [one.words[0] for one in run.commands] == ["hosts", "run"]
    assert run.assumptions == ("read in line 1 of the script finds one line.",)


def test_nothing_is_executed(tmp_path: Path) -> None:
    target = tmp_path / "made"
    follow_script(f"touch {target}\nA=$(touch {target})\neval touch {target}\n", {})
    assert not target.exists()


@failures.over(
    "text",
    [
        "f() { f; }\nf",
        "A=x\n" + "A=$A$A\n" * 40 + "run $A",
        "A=(x)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40 + "run ${A[@]}",
        "eval " * 100 + "x",
        "run " + '"$(' * 300,
        "run " + "$((" * 300 + "1",
        "run " + "${A:-" * 300 + "x",
        "if " * 200,
        "(" * 500,
        "for i in 1; do " * 100,
        "A=(",
        "if true; then run",
        "case x in",
        "))) ;; &&",
        "A=" + "9" * 100_000 + "\nrun $((A*A))",
        "run $((9**9**9)) $((1/0)) $((x.y))",
        "x" * 1_500_000,
    ],
)
def test_hostile_scripts_end(text: str) -> None:
    with suppress(InputError):
        follow_script(text, {})


PIECES = st.sampled_from(
    [
        "torchrun ", "pretrain_gpt.py ", "--num-layers ", "--hidden-size ", "8 ", "$A",
        "${A[@]} ", "${A:-", "}", "$((", "))", "A=", "A=(", ")", "\n", " \\\n", '"',
        "'", "if ", "then ", "fi\n", "; ", "[ ", "] ", "[[ ", "]] ", "&& ", "|| ",
        "for i in ", "do ", "done\n", "case ", "esac\n", ";;\n", "--bf16 ", "<<EOF\n",
        "EOF\n", "f() {", "}\n", "--micro-batch-size ", "--moe-layer-freq ", "[0]*3 ",
        "--pipeline-model-parallel-layout ", "Et|tL ", "--num-attention-heads ",
        "--seq-length ", "x", "0 ", "-1 ", "1e9 ", "--pipeline-model-parallel-size ",
        "\x00", "\ufdd0", "bash -c ", "2>&1 ", "# ",
    ]
)  # fmt: skip


@given(st.lists(PIECES, max_size=40).map("".join))
@settings(max_examples=300)
def test_any_script_is_a_job_or_one_refusal(text: str) -> None:
    _job_or_refusal(text)


@given(
    name=st.sampled_from(sorted(path.name for path in SCRIPTS.iterdir())),
    cuts=st.lists(
        st.tuples(st.integers(0, 4000), st.integers(0, 60), PIECES), max_size=4
    ),
)
@settings(max_examples=150)
def test_a_public_script_with_slips_is_a_job_or_one_refusal(
    name: str, cuts: list[tuple[int, int, str]]
) -> None:
    text = (SCRIPTS / name).read_text()
    for start, length, piece in cuts:
        text = text[:start] + piece + text[start + length :]
    _job_or_refusal(text)


def _job_or_refusal(text: str) -> None:
    refusal = None
    try:
        job = read_megatron(LaunchSource(path=Path("launch.sh"), text=text))
    except InputError as error:
        refusal = error
    else:
        assert isinstance(job, ImportedJob)
    assert refusal is None or refusal.problem


def test_refusals_name_the_option_and_the_fix() -> None:
    base = (
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 "
        "--num-attention-heads 2 --seq-length 64 --micro-batch-size 1 "
    )
    for options, words in {
        "--tensor-model-parallel-size $TP": ("$TP", "--set TP=VALUE"),
        "--tensor-modle-parallel-size 2": ("tensor-model-parallel-size",),
        "--yaml-cfg x.yaml": ("--yaml-cfg",),
        "--pipeline-model-parallel-size two": ("two", "whole number"),
        "--recompute-granularity some": ("some", "full", "selective"),
        "--bf16 yes": ("--bf16", "takes no value"),
    }.items():
        source = LaunchSource(path=Path("a.sh"), text=base + options)
        with pytest.raises(InputError) as caught:
            read_megatron(source)
        for word in words:
            assert word in str(caught.value), (options, str(caught.value))


@failures.over("size", ["0", "1", "999999999999999999", "-1", "1.5", "nan"])
def test_any_size_is_a_job_or_one_refusal(size: str) -> None:
    needed = {
        "num-layers": "8",
        "hidden-size": "64",
        "num-attention-heads": "2",
        "seq-length": "64",
        "micro-batch-size": "1",
    }
    names = sorted(TABLE.names | TABLE.silent)
    for name in names:
        options = needed | {
            "num-layers-per-virtual-pipeline-stage": "1",
            "use-distributed-optimizer": "",
            "multi-latent-attention": "",
            "num-experts": "4",
            name: size,
        }
        words = " ".join(f"--{one} {value}" for one, value in options.items())
        _job_or_refusal(
            f"torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py {words}"
        )


def test_options_without_a_command_are_read() -> None:
    text = """
    # as in a file of arguments
    --num-layers 24 --hidden-size 1024
    --num-attention-heads=16   --seq-length 1024
    --micro-batch-size 4 --global-batch-size 32 --bf16
    """
    job = read_megatron(LaunchSource(path=Path("args.txt"), text=text, num_devices=8))
    assert job.tables["plan"]["data_parallel_size"] == 8
    assert job.tables["model"]["hidden_size"] == 1024


def test_options_of_older_versions_are_read() -> None:
    text = (
        "python -m torch.distributed.launch --nproc_per_node 8 --nnodes 2 "
        "pretrain_gpt2.py --model-parallel-size 4 --num-layers 24 --hidden-size 1024 "
        "--num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 "
        "--batch-size 4 --checkpoint-activations --checkpoint-num-layers 1 "
        "--DDP-impl torch --fp16 --use-flash-attn"
    )
    job = read_megatron(LaunchSource(path=Path("old.sh"), text=text))
    assert job.num_devices == 16
    plan = job.tables["plan"]
    assert plan["tensor_model_parallel_size"] == 4
    assert plan["micro_batch_size"] == 4
    assert plan["recompute"] == "full"
    assert job.tables["software"]["preset"] == "megatron-lm"
    assert job.tables["training"]["global_batch_size"] == 16


def test_hybrids_by_their_shares_are_read() -> None:
    """Megatron-LM's ``examples/mamba/train.sh`` (157006d), its smaller model."""
    text = """
    torchrun --nproc_per_node 8 pretrain_mamba.py --tensor-model-parallel-size 1 \\
        --use-distributed-optimizer --untie-embeddings-and-output-weights \\
        --position-embedding-type none --num-layers 48 --hidden-size 1024 \\
        --num-attention-heads 16 --group-query-attention --num-query-groups 8 \\
        --hybrid-attention-ratio 0.08 --hybrid-mlp-ratio 0.5 --seq-length 4096 \\
        --max-position-embeddings 4096 --micro-batch-size 4 --global-batch-size 32 \\
        --disable-bias-linear --normalization RMSNorm --bf16 \\
        --attention-dropout 0.0 --hidden-dropout 0.0 \\
        --spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec
    """
    job = read_megatron(LaunchSource(path=Path("train.sh"), text=text))
    letters = job.tables["model"]["hybrid_override_pattern"]
    assert {one: letters.count(one) for one in "M*-"} == {"M": 20, "*": 4, "-": 24}
    assert job.tables["plan"]["data_parallel_size"] == 8


COMMON = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 2 --seq-length 64 "
    "--micro-batch-size 1 --global-batch-size 32"
)


@failures.over(
    ("script", "devices", "node"),
    [
        (f"torchrun --nnodes=2 --nproc-per-node=4 pretrain_gpt.py {COMMON}", 8, 4),
        (f"torchrun --nnodes 1:2 --nproc_per_node 4 my_train.py {COMMON}", 8, 4),
        (f"torchrun --nnodes 2 --nproc_per_node 4 $PROGRAM {COMMON}", 8, 4),
        (f"srun -N 2 -n 16 python pretrain_gpt.py {COMMON}", 16, 8),
        (f"deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py {COMMON}", 16, 8),
        (
            "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=1\n"
            "#SBATCH --gres=gpu:a100:8\n"
            f"srun bash -c 'python pretrain_gpt.py {COMMON}'",
            32,
            8,
        ),
        (
            "#SBATCH -N 2\nGPUS_PER_NODE=8\n"
            "torchrun --nnodes $SLURM_NNODES --nproc_per_node $GPUS_PER_NODE "
            f"pretrain_gpt.py {COMMON}",
            16,
            8,
        ),
        (f"python pretrain_gpt.py {COMMON}", None, None),
    ],
)
def test_devices_are_those_that_launchers_start(
    script: str, devices: int | None, node: int | None
) -> None:
    job = read_megatron(LaunchSource(path=Path("a.sh"), text=script))
    assert (job.num_devices, job.devices_per_node) == (devices, node)
