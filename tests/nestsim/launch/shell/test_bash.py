# ruff: noqa: E501 - scripts are as they would be written
"""Scripts start what Bash starts: the same ones run for real with a launcher's stub.

Bash is the oracle: ``torchrun`` and ``python`` on its path write down their arguments
and the variables that matter to a plan. What the reader cannot follow it may refuse, or
list as taken; that it reads something else without a word is what is looked for.
"""

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from nestsim.launch.shell.follow import follow_script
from nestsim.launch.shell.marks import first_unknown
from topologies.errors import InputError

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no Bash")

SEEN = ("TP", "PP", "NNODES", "GPUS_PER_NODE", "CUDA_DEVICE_MAX_CONNECTIONS")
"""Variables that the stub writes down."""

PROGRAMS = ("torchrun", "python")

STUB = (
    "#!/bin/bash\n"
    'printf "%s\\0" "${0##*/}" "$#" "$@" '
    + " ".join(f'"${{{name}-unset}}"' for name in SEEN)
    + ' >> "$STUB_LOG"\n'
)

FOLLOWED = {
    "plain": "TP=2 PP=4\ntorchrun --tp $TP --pp $PP",
    "break": """
for TP in 1 2 4 8; do
  if [ $TP -eq 4 ]; then break; fi
done
torchrun --tp $TP""",
    "break 2": """
for a in 1 2 3; do for b in 4 5 6; do
  [ $((a * b)) -eq 10 ] && break 2
done; done
torchrun --tp $a --pp $b""",
    "continue": """
ARGS=""
for i in 1 2 3 4; do
  [ $i = 2 ] && continue
  ARGS="$ARGS $i"
done
torchrun $ARGS""",
    "continue 2": """
for a in 1 2; do for b in 1 2 3; do
  if [ $b = 2 ]; then continue 2; fi
  torchrun $a $b
done; done""",
    "break in a function is none": """
f() { break; TP=3; }
for i in 1 2; do f; done
torchrun $TP $i""",
    "break out of a shell": """
for i in 1 2; do (break; torchrun no); torchrun $i; done""",
    "while": """
TP=1; N=8
while [ $((TP * 2)) -lt $N ]; do TP=$((TP * 2)); done
torchrun --tp $TP""",
    "until": """
N=1
until [ $N -ge 64 ]; do N=$((N * 3)); done
torchrun --nodes $N""",
    "while with break": """
i=0
while true; do
  i=$((i + 1))
  if ((i > 4)); then break; fi
done
torchrun $i""",
    "while that never begins": "while false; do TP=8; done\ntorchrun ${TP:-1}",
    "while reads lines": """
while read -r host slots; do N=$((N + slots)); LAST=$host; done <<EOF
a 8
b 4
EOF
torchrun $N $LAST""",
    "while in a pipe is a shell": """
N=1
printf '1\\n2\\n' | while read x; do N=$x; done
torchrun $N""",
    "C-style for": """
for ((i = 0; i < 3; i++)); do S="$S$i"; done
torchrun $S $i""",
    "C-style for with braces": """
for ((i=8, j=1; i>j; i/=2, j*=2)) { A+=($i $j); }
torchrun "${A[@]}" """,
    "C-style for without end": """
for ((;;)); do ((n++ > 3)) && break; done
torchrun $n""",
    "return": """
f() { TP=2; return; TP=8; }
f
torchrun $TP""",
    "return of a status": """
f() { return 3; }
f
S=$?
f && A=yes || A=no
torchrun $S $A""",
    "return inside of a loop": """
f() { for i in 1 2 3; do [ $i = 2 ] && return 0; done; i=9; }
f; torchrun $i""",
    "return outside is none": "return 1\ntorchrun on",
    "local": """
TP=8
f() { local TP=2 x; x=1; PP=$((TP * 2)); }
f
torchrun --tp $TP --pp $PP ${x:-none}""",
    "local is seen by what is called": """
TP=8
g() { PP=$TP; }
f() { local TP=2; g; }
f; torchrun $TP $PP""",
    "local array": """
A=(1 2)
f() { local -a A=(3 4 5); N=${#A[@]}; }
f; torchrun $N ${#A[@]}""",
    "declare in a function is local": """
f() { declare TP=2; declare -g PP=4; }
f; torchrun ${TP:-8} $PP""",
    "function arguments": """
f() { torchrun $# "$1" "${2:-x}" "$*" $0x; shift; torchrun "$@"; }
f "a b" c d
f""".replace("$0x", ""),
    "function keyword": "function run_it { torchrun $1; }\nrun_it 7",
    "function in brackets is a shell": """
f() ( TP=8; torchrun $TP )
TP=1; f; torchrun $TP""",
    "recursion": """
f() { if [ $1 -gt 1 ]; then f $(($1 / 2)); fi; S="$S $1"; }
f 8; torchrun $S""",
    "subshell": "TP=2\n(TP=8; PP=1; torchrun $TP)\ntorchrun $TP ${PP:-4}",
    "subshell exits alone": "(exit 3)\ntorchrun $?\n(exit; torchrun no)\ntorchrun end",
    "group": "TP=2\n{ TP=8; torchrun $TP; }\ntorchrun $TP",
    "exit": "TP=2\ntorchrun $TP\nexit 0\ntorchrun 9",
    "exit in a function": "f() { exit 1; }\ntorchrun 1; f; torchrun 2",
    "braces count": "torchrun {1..8}\nfor i in {1..4}; do N=$i; done\ntorchrun $N",
    "braces count down and in steps": "torchrun {8..1..3} {01..03} {a..e..2} {-1..1}",
    "braces list": "torchrun --{tp,pp}=2 a{b,c{1,2}}d {x} {a,b}{1,2} {,z}",
    "braces in quotes are letters": "torchrun \"{1..3}\" '{a,b}' \\{a,b} ${X:-{a,b}}",
    "braces before variables": "N=3\ntorchrun {1..$N} {$N,4}",
    "readonly": "readonly TP=2\ntorchrun $TP",
    "readonly in declare": "declare -r TP=2\ndeclare TP=8\nexport TP=4\ntorchrun $TP",
    "readonly of a function": """
readonly TP=2
f() { local TP=8; PP=$TP; }
f; torchrun $TP $PP""",
    "export": "TP=2\nexport PP=4 NNODES\nNNODES=2\ntorchrun a\nexport TP\npython b",
    "export into another shell": """
TP=2; export PP=4
bash -c 'torchrun ${TP:-none} $PP'
TP=3 bash -c 'torchrun $TP'
bash -c 'torchrun $0 $1 $#' zero one two""",
    "assignment in front": """
export NNODES=1
NNODES=2 TP=4 torchrun $NNODES
torchrun $NNODES ${TP:-none}""",
    "assignment in front of a function": """
f() { torchrun $TP; }
TP=1; TP=2 f; torchrun $TP""",
    "env": "env PP=3 torchrun a\nnohup torchrun b\ntimeout 5 torchrun c",
    "defaults": """
E=""
torchrun ${A:-8} ${A-9} "${E:-7}" "${E-6}" ${E:+x} ${B:=5} $B ${B:+set} "${E+is}" """,
    "defaults of words": """
torchrun ${A:-a b "c d"} "${A:-a b}" "${A:-"q r"}" "${A:-'q'}" ${A:-${B:-deep}}""",
    "cut": """
F=/data/run.7/model-8x22b.tar.gz
torchrun ${F##*/} ${F%.gz} ${F%%.*} ${F#*/} ${F#/data/} "${F%/*}" ${F##*[-x]} """,
    "replace": """
F=a-b-c
torchrun ${F/-/+} ${F//-/} ${F/#a/z} ${F/%c/z} ${F//[ab]/x} "${F//-/ }" ${F/q/r}""",
    "case of letters": "F=gpt3\ntorchrun ${F^} ${F^^} G${F,,}; F=GPT; torchrun ${F,} ${F,,}",
    "parts": """
F=abcdefgh; N=2
torchrun ${F:2} ${F:1:3} ${F: -3} ${F:N:N+1} ${F:0:-2} ${#F}""",
    "indirect": "NAME=TP; TP=4\ntorchrun ${!NAME} ${!NAME:-1}",
    "arrays": """
A=(--tp 2 "two words" '')
A+=(--end); A[1]=8
torchrun "${A[@]}" ${#A[@]} "${A[-1]}" "${A[@]:1:2}" ${A[@]/--/-} "${A[*]}" ${!A[@]}
unset 'A[0]'; torchrun "${A[@]}" """,
    "array of gaps": "A[3]=x; A[1]=y\ntorchrun ${A[@]} ${!A[@]} ${#A[@]}\nA+=(z); torchrun ${!A[@]}",
    "array in words": 'A=(1 2 3)\ntorchrun "x${A[@]}y" x"${A[*]}"y "${A[@]-}"',
    "empty array": 'A=()\ntorchrun "${A[@]}" ${#A[@]} a "x${A[@]}" ""',
    "map": """
declare -A LAYERS=([small]=12 [big]=96)
LAYERS[mid]=24; K=mid
torchrun ${LAYERS[small]} ${LAYERS[$K]} ${#LAYERS[@]} ${LAYERS[none]:-0}""",
    "map of pairs": 'declare -A M=(a 1 b 2 c 3 d)\ntorchrun ${M[a]} ${M[b]} ${M[c]} "${M[d]}" ${#M[@]}',
    "array of elements": "A=([2]=c [0]=a d)\ntorchrun ${!A[@]} ${A[@]}",
    "arithmetic": """
A=7 B=2
torchrun $((A/B)) $((A%B)) $((-A/B)) $((A**B)) $((A<<B)) $((A>B?A:B)) $((A&B|8)) \\
  $((!A)) $((~A)) $((A==7&&B!=2)) $((0x1f)) $((010)) $((2#101)) $(( (A+B)*2 )) $((A,B)) """,
    "arithmetic sets": """
A=5
((A+=3)); ((B=A*2, C=B-1)); let D=C+1 "E = D << 1"
torchrun $A $B $C $D $E $((A++)) $A $((--A)) $((F=3)) $F""",
    "arithmetic sets what it read before": "C=1\ntorchrun $((C *= (C <<= 2))) $C $((C -= C++)) $C $((2 ** 3 ** 2 - -2 ** 2))",
    "arithmetic of names": "A=B; B=4\ntorchrun $((A+1)) $((${A}*2))",
    "arithmetic of arrays": "A=(3 4); i=1\ntorchrun $((A[i]*A[0])); ((A[i]+=5)); torchrun ${A[1]}",
    "arithmetic with status": """
((0)) && X=yes || X=no
if ((3 > 2)); then Y=yes; fi
torchrun $X $Y""",
    "integer attribute": "declare -i N=2*3\nN+=4; M=2+2\ntorchrun $N $M",
    "quotes": r"""
A='$B "q" \n' B="two  words"
torchrun "$A" $B "$B" 'it'\''s' "a\"b\$c\\d" a\ b $'x\ty\x41\'' "" ''$B'' "`echo in`" """,
    "quotes in variables are letters": "A=\"--x 'a b'\"\ntorchrun $A\neval torchrun $A",
    "here-document": """
N=4
cat <<EOF > conf
n=$N $((N*2)) $(echo in) \\$N "q" 'r' \\\\
EOF
torchrun "$(cat conf)"
cat <<'EOF' > conf
n=$N `x`
EOF
torchrun "$(cat conf)"
torchrun "$(cat <<-EOF
	a
	b
	EOF
)" """,
    "here-string": 'read -r A B <<< "1 2 3"\ntorchrun "$A" "$B"\ntorchrun "$(cat <<< x)"',
    "read with a separator": """
IFS=: read -r A B C <<< "one:two::four"
IFS=, read -ra L <<< "1,2,3"
torchrun "$A" "$B" "$C" ${#L[@]} "${L[@]}" """,
    "split by another separator": 'A=1:2::3; IFS=:\ntorchrun $A "$A"\nset -- x y; torchrun "$*"',
    "eval": """
for name in TP PP; do eval "$name=4"; done
eval 'torchrun $TP' $PP
eval "f() { torchrun \\$1; }"; f 9""",
    "source": """
cat > env.sh <<'EOF'
TP=4
PP=$1
return 0
TP=9
EOF
source env.sh 2
. ./env.sh
torchrun $TP ${PP:-none}""",
    "script of its own": """
cat > go.sh <<'EOF'
torchrun $1 ${TP:-none} ${PP:-none}
EOF
TP=1; export PP=2
bash go.sh a
sh ./go.sh b""",
    "script by a pipe": "echo 'torchrun $((2+3))' | bash\nbash <<EOF\ntorchrun $((1+1))\nEOF",
    "set and shift": """
set -- a b c d e
shift; shift 2
torchrun $1 $# "$@" ${@:1:1} "${@:2}"
set --; torchrun $# "$@" end""",
    "options by hand": """
set -- --tp 4 --pp=2 rest
while [[ $# -gt 0 ]]; do
  case $1 in
    --tp) TP=$2; shift 2 ;;
    --pp=*) PP="${1#*=}"; shift ;;
    *) REST+=("$1"); shift ;;
  esac
done
torchrun $TP $PP ${REST[@]}""",
    "getopts": """
f() {
  local OPTIND opt
  while getopts "t:p:v" opt "$@"; do
    case $opt in t) TP=$OPTARG ;; p) PP=$OPTARG ;; v) V=1 ;; *) V=bad ;; esac
  done
  shift $((OPTIND - 1)); REST=$*
}
f -t 4 -vp2 last
torchrun $TP $PP $V $REST
f -q; torchrun $V""",
    "case": """
for M in 7b 70B x70b-chat other; do
  case "$M" in
    7[bB] | 8b) TP=1 ;;
    7?[bB]) TP=8 ;;
    *70b*) TP=4 ;&
    never) PP=2 ;;
    *) TP=0 ;;
  esac
  torchrun $M $TP ${PP:-1}
done""",
    "case goes on": """
case abc in a*) A=1 ;;& *c) B=2 ;;& *z) C=3 ;; esac
torchrun $A $B ${C:-none}""",
    "double brackets": """
A=llama-70b N=8
[[ $A == llama* && $N -gt 4 ]] && torchrun 1
[[ $A == "llama*" ]] || torchrun 2
[[ ! ( -z $A || $N -lt 4 ) ]] && torchrun 3
[[ $A =~ ([0-9]+)b$ ]] && torchrun ${BASH_REMATCH[1]}
[[ -n $A && -z $NOTHING ]] && torchrun 5
[[ $A < m ]] && torchrun 6
[[ $NOTHING -eq 0 ]] && torchrun 7
[[ N -eq 8 ]] && torchrun 8""",
    "brackets": """
A="x y" N=08
[ "$A" = "x y" ] && torchrun 1
[ $NOTHING -lt 4 ] && torchrun 2
[ "$NOTHING" -lt 4 ] && torchrun 3
[ $NOTHING != a ] && torchrun 4
[ "$NOTHING" != a ] && torchrun 5
[ $N -eq 8 ] && torchrun 6
[ -n "$A" -a ! -z "$N" -o "$A" = b ] && torchrun 7
test 3 -gt 2 && torchrun 8
[ "" ] || torchrun 9
[ $A = "x y" ] || torchrun 10""",
    "chains": """
true && false || torchrun 1
false && torchrun no; torchrun 2
false || { true && torchrun 3; }
! false && torchrun 4
true || torchrun no && torchrun 5""",
    "if chains": """
N=16
if [ $N -lt 8 ]; then A=1; elif [ $N -lt 32 ]; then A=2; else A=3; fi
if ! [ $N -eq 16 ]; then B=1; else B=2; fi
if false; then :; fi; torchrun $A $B $?""",
    "set -e": "set -e\nfalse || torchrun 1\nif false; then :; fi\ntorchrun 2\nfalse\ntorchrun 3",
    "set -e in a function": """
set -e
f() { false; torchrun in; }
f || torchrun 1
f
torchrun 2""",
    "pipefail": """
set -o pipefail
false | true && A=yes || A=no
set +o pipefail
false | true && B=yes || B=no
torchrun $A $B""",
    "trap": "trap 'torchrun last $TP' EXIT\nTP=2\ntorchrun first",
    "trap in a shell": "(trap 'torchrun in' EXIT; torchrun 1)\ntorchrun 2",
    "exec": "exec torchrun 1\ntorchrun 2",
    "pipes": """
torchrun 1 2>&1 | tee log
A=$(echo a b | while read x y; do echo "$y$x"; done)
torchrun $A |& cat
echo x | torchrun 2""",
    "commands in words": """
f() { echo "$1-$2"; }
A=$(f 1 2) B=`f 3 4`
C=$(for i in 1 2 3; do echo -n $i; done; printf '%03d|%s\\n' 7 x)
torchrun $A $B "$C" $(seq 1 4) "$(seq 2)" $(echo "a  b") $(( $(echo 3) + 1 ))
X=$(false) || torchrun $?
torchrun "$(TP=9; echo $TP)" ${TP:-none}""",
    "nested commands": 'torchrun "$(echo "$(echo "a b")" `echo \\`echo c\\``)"',
    "command with a case": "A=$(case x in x) echo 1;; y) echo 2;; esac)\ntorchrun $A",
    "printf": "printf -v A '%s_%02d' x 5\ntorchrun $A $(printf '%s,' 1 2 3)",
    "printing into files": """
echo a > f; echo b >> f
{ echo c; echo d; } >> f
mapfile -t L < f
torchrun "${L[@]}" "$(< f)"
for i in 1 2; do echo $i; done > g
torchrun $(cat g)""",
    "background": "torchrun 1 &\nwait\n{ TP=3; } &\nwait; torchrun ${TP:-2}",
    "unset": 'A=1; unset A; torchrun ${A:-gone} ${A-gone} "$A" end',
    "adding": 'A=x; A+=y; A=${A}z; N=1; N+=2\ntorchrun $A $N ${A}$N"$A"',
    "comments": "A=8 # eight\ntorchrun a#b \\\n  --tp $A # not this\n# torchrun no",
    "semicolons": "if true;then torchrun 1;fi;for i in 2;do torchrun $i;done;{ torchrun 3;}",
    "keywords as words": "torchrun if then done esac { } ! in [[ for\necho if; torchrun done",
    "redirections anywhere": "> /dev/null torchrun 1 2>&1 a\ntorchrun 2 <<< x b &> /dev/null",
    "empty words": 'E=\ntorchrun $E "$E" a$E "" end',
    "special parameters": 'set -- a "b c"\nfor x; do torchrun "$x"; done\ntorchrun "$*" $# "${@}"',
    "status of assignments": "A=$(exit 4); torchrun $?\nA=1; torchrun $?",
    "not a condition": "if [ 1 -eq ]; then torchrun 1; else torchrun 2; fi 2>/dev/null",
    "colon sets": ": ${TP:=4} ${PP:=2}\ntorchrun $TP $PP",
    "select by index": "SIZES=(1 2 4 8)\nfor i in ${!SIZES[@]}; do ((SIZES[i] == 4)) && torchrun $i; done",
    "division of devices": """
NNODES=2 GPUS_PER_NODE=8; export NNODES
WORLD=$(($NNODES*$GPUS_PER_NODE)); TP=2
PP=$((WORLD/TP/4))
torchrun --nproc_per_node=${GPUS_PER_NODE} --pp ${PP}""",
    "time and negation": "time torchrun 1\n! torchrun 2\ntorchrun $?",
    "break in a condition": "while true; do i=$((i+1)); while break; do :; done; [ $i = 3 ] && break; done; torchrun $i",
    "parts of arrays": "A=(x.py y.py); torchrun ${A[@]%.py} ${A[@]/#/pre_} ${A[@]^^}",
    "getopts that tells nothing": 'set -- -q -a; while getopts :a: o; do torchrun "$o" $OPTARG; done',
    "getopts without a value": 'set -- -t; OPTERR=0; while getopts t: o; do torchrun "$o" "${OPTARG-u}"; done; torchrun $OPTIND',
    "replace slashes": "p=a/b/c; torchrun ${p//\\//_} ${p/\\//-} ${p////x}",
    "replace at the ends": "p=a/b/c; torchrun ${p///x} ${p//#/x} ${p/#//x} ${p/%/x} ${p/%//x} ${p/#/x} ${p/}",
    "length in letters": "p='héé'; q=abc; torchrun ${#q} ${#p}",
    "export taken back": "export PP=2; export -n PP; bash -c 'torchrun ${PP:-none}'",
    "arrays are not exported": "export A=(1 2); torchrun ${A[1]}; bash -c 'torchrun ${A:-none}'",
    "set -a": "set -a; TP=2; set +a; PP=3; bash -c 'torchrun ${TP:-n} ${PP:-n}'",
    "source with arguments": "echo 'A=$1; set -- z' > e.sh\nset -- q\n. ./e.sh w\ntorchrun $A $1",
    "source that sets arguments": "echo 'set -- z y' > e.sh; set -- q; . ./e.sh; torchrun $1 $#; . ./e.sh w; torchrun $1",
    "source that shifts": "echo 'shift' > e.sh; set -- q r; . ./e.sh; torchrun $1 $#; . ./e.sh a b; torchrun $1",
    "status in a trap": "trap 'torchrun $?' EXIT; exit 3",
    "env without a variable": "export TP=2; env -u TP torchrun 1; env --unset=TP torchrun 2; env torchrun 3",
    "set with a dash": "set - a b; torchrun $#; set -; torchrun $#",
    "return beyond a byte": "f() { return -1; }; f; torchrun $?; g() { return 300; }; g; torchrun $?",
    "exit beyond a byte": "(exit 300); torchrun $?; (exit -1); torchrun $?",
    "brackets in brackets": "[ \\( 1 = 1 -o 1 = 2 \\) -a 3 = 3 ] && torchrun 1; [[ ( 1 == 1 || 1 == 2 ) && ! 3 == 4 ]] && torchrun 2",
    "wrappers": "nice -n 5 torchrun 1; nohup torchrun 2 >/dev/null; env A=1 torchrun 3; timeout 10 torchrun 4; stdbuf -oL torchrun 5",
}
"""Scripts that are followed to the letter: they start what Bash starts."""
FOLLOWED["time and negation"] = "time torchrun 1\n! true; torchrun $?"

TOLD = {
    "unset a function": "f() { torchrun in; }\nunset -f f\nf 2>/dev/null || torchrun out",
    "read-only set again": "readonly TP=2\nTP=8\ntorchrun $TP",
    "what a program returns": "if grep -q x y; then TP=1; else TP=2; fi\ntorchrun $TP",
    "what a program returns in a chain": "grep -q x y && TP=1\ntorchrun ${TP:-2}",
    "status of a program": "grep -q x y\n[ $? -eq 0 ] && TP=1\ntorchrun ${TP:-2}",
    "files": "[ -f here.txt ] && TP=1\n[[ -d there ]] || TP=2\ntorchrun ${TP:-3}",
    "a file that is not there": "source settings.sh\ntorchrun ${TP:-1}",
    "what programs print": "N=$(hostname | wc -c)\ntorchrun $N",
    "loops over what programs print": "for i in $(ls /usr); do torchrun 1; done",
    "patterns of files": "touch a.txt b.txt\ntorchrun *.txt",
    "loops over files": "touch a.txt b.txt\nfor f in *.txt; do torchrun 1; done",
    "random numbers": "torchrun $((RANDOM % 4 + 10))",
    "home": "torchrun ~/x $HOME ${HOME:-none} ${PWD##*/}",
    "xargs": "echo 1 2 3 | xargs -n 1 torchrun",
    "find": "find /usr -maxdepth 0 -exec torchrun {} ;".replace(" ;", " \\;"),
    "until a program works": "until test -d /nowhere/x; do TP=$((TP + 1)); break; done\ntorchrun ${TP:-0}",
    "alias": "shopt -s expand_aliases\nalias run='torchrun'\nrun 1",
    "set -u": "set -u\nA=$NOTHING\ntorchrun 1",
    "set -e behind a program": "set -e\ngrep -q x y\ntorchrun 1",
    "extended patterns": "shopt -s extglob\nA=aab\ntorchrun ${A##+(a)}",
    "select": "select x in a b; do break; done <<< 1\ntorchrun $x",
    "reference": "declare -n R=TP\nTP=4; R=2\ntorchrun $TP",
    "trap on errors": "trap 'torchrun failed' ERR\nfalse\ntorchrun 1",
    "keys of a map": "declare -A M=([b]=1 [a]=2 [c]=3)\ntorchrun ${!M[@]}",
    "line numbers": "torchrun $LINENO",
    "output of the launcher": 'A=$(torchrun 1)\n[ -z "$A" ] && torchrun 2',
    "without a program": "nosuchprogram && torchrun 1\nnosuchprogram || torchrun 2",
    "quoted for the shell": 'A="a b"\ntorchrun ${A@Q}',
    "printf of bash": "printf -v A %q 'a b'\ntorchrun $A",
    "last pipe": "shopt -s lastpipe\necho 3 | read N\ntorchrun ${N:-none}",
    "divided by zero": "N=0\nA=$((4 / N))\ntorchrun ${A:-none}",
    "coprocess": "coproc cat\ntorchrun 1",
    "nullglob": "shopt -s nullglob\nA=(*.none)\ntorchrun ${#A[@]}",
    "time of day": "printf -v A '%(%Y)T' -1\ntorchrun $A",
    "pipe status": "false | true\n[ ${PIPESTATUS[0]} -eq 1 ] && torchrun 1",
    "wrong redirection": "[ -s /etc/hostname ] && torchrun $(head -c 1 /dev/zero | wc -c)",
    "a variable that must be set": "torchrun 0; : ${ZZ:?must be set}; torchrun 1",
    "a function called export": "export() { :; }; export TP=1; torchrun ${TP:-n}",
    "set -n": "torchrun 0; set -n; torchrun 1",
    "nocasematch": "shopt -s nocasematch; [[ ABC == abc ]] && torchrun 1; case X in x) torchrun 2;; esac",
    "brackets behind a command": 'torchrun --moe-layer-freq "([0]*3+[1]*58)" ([0]*1) 2>/dev/null',
    "lines of Windows": "A=1\r\ntorchrun $A\r\n",
}
"""Scripts that depend on the machine, or are rare: refused or told, or alike."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of programs that write down how they are started."""
    folder = tmp_path_factory.mktemp("programs")
    for name in PROGRAMS:
        (folder / name).write_text(STUB)
        (folder / name).chmod(0o755)
    return folder


Start = tuple[tuple[str, ...], tuple[str, ...]]
"""Words of a command, and the variables that it sees."""


def run_in_bash(script: str, programs: Path, folder: Path) -> list[Start]:
    """Return what Bash starts, in an empty folder."""
    log, file, work = folder / "log", folder / "script.sh", folder / "work"
    log.write_bytes(b"")
    file.write_text(script)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    subprocess.run(
        ["bash", str(file)],
        cwd=work,
        env={
            "PATH": f"{programs}:/usr/bin:/bin",
            "HOME": "/h",
            "STUB_LOG": str(log),
            "LC_ALL": "C.UTF-8",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=20,
    )
    words = log.read_bytes().decode().split("\0")[:-1]
    found = []
    while words:
        name, count = words.pop(0), int(words.pop(0))
        seen = words[count : count + len(SEEN)]
        found.append(((name, *words[:count]), tuple(seen)))
        del words[: count + len(SEEN)]
    return found


def compared(script: str, programs: Path, folder: Path) -> str:
    """Return how a script is read: ``alike``, ``told``, or what is silently other."""
    real = run_in_bash(script, programs, folder)
    try:
        run = follow_script(script, {})
    except InputError as refusal:
        return "told" if refusal.problem else "refused without a word"
    read: list[Start] = []
    for one in run.commands:
        places = [n for n, word in enumerate(one.words) if word in PROGRAMS]
        if places and (places[0] == 0 or one.words[0] in WRAPPERS):
            seen = tuple(one.environment.get(name, "unset") for name in SEEN)
            read.append((one.words[places[0] :], seen))
    if read == real:
        return "alike"
    marked = any(first_unknown(word) for words, _ in read for word in words)
    if run.assumptions or marked:
        return "told"
    return f"read {read}\nBash {real}"


WRAPPERS = ("env", "nohup", "timeout", "xargs", "find", "nice", "stdbuf")


def test_scripts_start_what_bash_starts(programs: Path, tmp_path: Path) -> None:
    found = {
        name: compared(script, programs, tmp_path) for name, script in FOLLOWED.items()
    }
    other = {name: how for name, how in found.items() if how != "alike"}
    assert len(FOLLOWED) >= 54
    assert not other, "\n".join(f"{name}: {how}" for name, how in other.items())


def test_what_only_the_machine_tells_is_told(programs: Path, tmp_path: Path) -> None:
    found = {
        name: compared(script, programs, tmp_path) for name, script in TOLD.items()
    }
    silent = {name: how for name, how in found.items() if how not in ("alike", "told")}
    assert not silent, "\n".join(f"{name}: {how}" for name, how in silent.items())


NAMES = ("A", "B", "TP", "N")


class Drawn:
    """Small programs, drawn: they end, and depend on nothing but themselves."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.loops = 0
        self.call = ":"

    def program(self) -> str:
        """Return a program."""
        lines = [f"{name}={self.draw.randint(1, 8)}" for name in NAMES]
        lines += ["L=(3 1 4)", "f() {", self.block(1, is_function=True), "}"]
        self.call = "f"  # by others than itself
        lines += [self.command(0) for _ in range(self.draw.randint(3, 7))]
        return "\n".join([*lines, 'torchrun $A $B $TP $N "${L[@]}"']) + "\n"

    def block(self, depth: int, *, is_function: bool = False) -> str:
        """Return some commands."""
        lines = [self.command(depth) for _ in range(self.draw.randint(1, 3))]
        if is_function and self.draw.random() < 0.7:
            lines.insert(0, f"local {self.draw.choice(NAMES)}={self.word()}")
        if is_function and self.draw.random() < 0.5:
            lines.append(f"return {self.draw.randint(0, 2)}")
        return "\n".join(lines)

    def word(self) -> str:
        """Return a word that becomes one number or text."""
        name = self.draw.choice(NAMES)
        return self.draw.choice(
            [
                str(self.draw.randint(0, 9)),
                f"${name}",
                f'"${{{name}:-7}}"',
                f"${{{name}:+5}}",
                f"$(({self.sum(2)}))",
                f"${{{name}%?}}1",
                f"${{{name}/1/2}}",
                f"${{L[{self.draw.randint(0, 2)}]}}",
                "${#L[@]}",
                f"$(echo ${name})",
                f"$({name}=2; echo $(({self.sum(1)})))",
                "${1:-6}",
                "$#",
            ]
        )

    def sum(self, depth: int) -> str:
        """Return arithmetic."""
        if depth == 0 or self.draw.random() < 0.3:
            return self.draw.choice([*NAMES, "3", "L[1]", "$N", "$#"])
        sign = self.draw.choice(
            [
                "+",
                "-",
                "*",
                "<",
                ">",
                "==",
                "!=",
                "&&",
                "||",
                "&",
                "|",
                "^",
                "<<",
                ">=",
                ",",
                "?",
            ]
        )
        left, right = self.sum(depth - 1), self.sum(depth - 1)
        if sign == "?":
            return f"({left} > 2 ? {right} : 1)"
        return (
            f"({left} {sign} ({right} & 15))"
            if sign == "<<"
            else (f"({left} {sign} {right})")
        )

    def condition(self) -> str:
        """Return what holds or does not."""
        name, word = self.draw.choice(NAMES), self.word()
        return self.draw.choice(
            [
                f'[ "${name}" = {word} ]',
                f"[ ${{{name}:-0}} -lt 5 ]",
                f"[[ ${name} == [1-4]* ]]",
                f"[[ ${name} -gt {word} || -z $A ]]",
                f"(({self.sum(2)}))",
                "true",
                "false",
                f"! {self.call} 1",
                f"[[ ! ${name} =~ ^[2-5]$ && -n $B ]]",
            ]
        )

    def command(self, depth: int) -> str:
        """Return a command."""
        simple = [self.simple] * 5
        return self.draw.choice(simple if depth > 2 else [*simple, *[self.nested] * 4])(
            depth
        )

    def simple(self, depth: int) -> str:
        """Return a command of one line."""
        name, word = self.draw.choice(NAMES), self.word()
        return self.draw.choice(
            [
                f"{name}={word}",
                f"{name}+={word}",
                f"(({name} = ({self.sum(2)}) % 97))",
                f"{name}=$(( ({self.sum(2)}) % 97 ))",
                f"torchrun {word} {self.word()}",
                f"{name}={word} torchrun ${name}",
                f"{self.condition()} && {name}={word} || torchrun {name}",
                f"L=({word} 5 {self.word()})",
                f"L+=({word})",
                f"export {name}",
                f"unset {name}; {name}=${{{name}:-4}}",
                f"set -- {word} {self.word()}",
                "shift",
                f"read -r {name} B <<< '{self.draw.randint(1, 9)} 2 3'",
                f"eval '{name}={word}'" if "'" not in word else ":",
                "break" if self.loops else f"{self.call} 1 2",
                "continue" if self.loops else f"{self.call} {word}",
                "break 2" if self.loops > 1 else self.call,
                f"echo ${name} | while read x; do torchrun $x; {name}=9; done",
                f"torchrun {{1..3}} {name}{{a,b}}",
                "exit 0" if depth and self.draw.random() < 0.1 else "true",
            ]
        )

    def nested(self, depth: int) -> str:
        """Return a command around others."""
        kind = self.draw.choice(
            [
                "if",
                "for",
                "count",
                "while",
                "until",
                "case",
                "shell",
                "group",
                "f",
                "or",
            ]
        )
        name = self.draw.choice(NAMES)
        if kind in ("for", "count", "while", "until"):
            return self.loop(kind, name, depth)
        block, other = self.block(depth + 1), self.block(depth + 1)
        return {
            "if": f"if {self.condition()}; then\n{block}\nelse\n{other}\nfi",
            "case": f"case ${name} in\n[1-3]) {block} ;;\n4|5)\n{other} ;&\n*) N=2 ;;\n"
            "esac",
            "shell": f"(\n{block}\n)",
            "group": f"{{\n{block}\n}}",
            "f": f"g() {{\nlocal {name}=3\nB=2\n}}\ng {self.word()}",
            "or": f"{{ {self.condition()} && {self.condition()}; }} || {{\n{block}\n}}",
        }[kind]

    def loop(self, kind: str, name: str, depth: int) -> str:
        """Return a loop of a few rounds."""
        self.loops += 1
        block = self.block(depth + 1)
        self.loops -= 1
        step = f"i{depth}"
        if kind == "for":
            return f"for {name} in {self.word()} 2 {{1..2}}; do\n{block}\ndone"
        if kind == "count":
            head = f"for (({step} = 0; {step} < 3; {step}++))"
            return f"{head}; do\n{block}\ndone"
        test = f"(({step}++ < 2))" if kind == "while" else f"(({step}++ >= 2))"
        return f"{step}=0\n{kind} {test}; do\n{block}\ndone"


def test_drawn_programs_start_what_bash_starts(programs: Path, tmp_path: Path) -> None:
    found = {}
    for seed in range(40):
        script = Drawn(seed).program()
        found[seed] = compared(script, programs, tmp_path)
    silent = {seed: how for seed, how in found.items() if how not in ("alike", "told")}
    assert not silent, "\n".join(f"{seed}: {how}" for seed, how in silent.items())
    assert list(found.values()).count("alike") >= 35
