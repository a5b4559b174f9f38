#!/bin/bash
# Fifteen minutes of a GPU, in two calls of less than ten; docs/gpu-machine.md says what for.
#
#     bash tools/gpu/lease.sh 1    smoke decide
#     bash tools/gpu/lease.sh 2    papers; beyond, or pages where GPU memory is larger; peers energy
#
# or parts by their names. What it finds is in gpu-out. Each part that ends packs all of it into $OUT
# (here, if not given). A part for which too little time is left is left out: LEASE_S=900 begins
# START_S=100 before the first call, of which a call takes CALL_S=570; LEFT_S= says what is left.
# PYTHON=python3; SMALL=0.0005 in a rehearsal: the share of each graph that is made.
set -u
cd "$(dirname "$0")/../.." || exit 2
keep=$(realpath "${OUT:-.}") python=${PYTHON:-python3}
unset OUT
# A virtual machine with virtio-mem gets memory as it uses it, and reports only its present memory.
gib=$(awk '/MemAvailable/ { print $2 / 2^20 }' /proc/meminfo)
grep -qs 0x0018 /sys/bus/virtio/devices/*/device && gib=120
export GATHERBENCH_MEMORY_GIB=${GATHERBENCH_MEMORY_GIB:-$gib}
commit=$(git rev-parse --short=12 HEAD 2> /dev/null || cat .carry/commit 2> /dev/null)
export GATHERBENCH_COMMIT=${GATHERBENCH_COMMIT:-$commit}
export GATHERBENCH_DATA=${GATHERBENCH_DATA:-/tmp/gb} GATHERBENCH_KERNEL_CACHE=${GATHERBENCH_KERNEL_CACHE:-/tmp/gbk}
export PYTHONPATH=$PWD/src:$PWD/.carry${PYTHONPATH:+:$PYTHONPATH} PATH=$PATH:/usr/local/nvidia/bin
export PYTHONUNBUFFERED=1 # keeps the log of a part that is cut off
mkdir -p gpu-out "$GATHERBENCH_DATA"
now=$(date +%s)
# The first call of a lease records its start.
began=$(cat gpu-out/began 2> /dev/null || echo 0)
[ $((now - began)) -lt "${LEASE_S:-900}" ] || echo "$((began = now))" > gpu-out/began
ends=$((now + ${LEFT_S:-$((began + ${LEASE_S:-900} - ${START_S:-100} - now))} - 15))
[ $ends -lt $((now + ${CALL_S:-570})) ] || ends=$((now + ${CALL_S:-570}))
plans=bench/plan/plans

left() { # seconds
    echo $((ends - $(date +%s)))
}

enough() { # NAME SECONDS: whether most of them are left
    echo "== $1, at $SECONDS s"
    [ "$(left)" -ge $(($2 * 3 / 4)) ] || { echo "== $1 is left out: of $2 s $(left) are left"; return 1; }
}

part() { # NAME SECONDS COMMAND …: not longer than that
    local name=$1 limit=$2 since=$SECONDS
    shift 2
    timeout -s INT -k 25 "$limit" "$@" > >(tee "gpu-out/$name.log") 2>&1
    local status=$?
    tar -czf "$keep/$name.tgz" gpu-out
    echo "== $name: status $status after $((SECONDS - since)) s, of $limit; $(left) s are left"
    return $status
}

epochs() { # NAME SECONDS PLAN DATASET=SCALE …
    local name=$1 until=$((SECONDS + $2)) budget checked one
    enough "$1" "$2" || return
    for one in "${@:4}"; do # side by side
        timeout 150 "$python" -m gatherbench datasets prepare "${one%=*}" --scale "${SMALL:-${one#*=}}" &
    done
    wait
    plan "$3" > "gpu-out/$name.toml"
    budget=$((until - SECONDS - 10)) # only pictures come later; they can be made elsewhere, too
    [ "$(left)" -ge $((budget + 45)) ] || budget=$(($(left) - 45))
    checked=$(ls -t gpu-out/*/*/sensors.json 2> /dev/null | head -n 1)
    part "$name" $((budget + 10)) "$python" -m gatherbench run "gpu-out/$name.toml" --results gpu-out \
        --budget "$budget" ${checked:+--sensors "$(dirname "$checked")"}
}

plan() { # FILE, smaller if SMALL is set; with six repeats, to leave time for other parts
    local small=()
    [ -z "${SMALL:-}" ] || small=(-e '/^scale/d' -e "s/^dataset = .*/&\nscale = $SMALL/"
        -e '/^max_batches/d' -e 's/^batch_size = .*/batch_size = 40\nmax_batches = 2/')
    sed -e 's/^repeats = \[6, 10\]/repeats = 6/' "${small[@]}" "$1"
}

lacking=$("$python" -c '
from importlib.util import find_spec
names = "torch torch_geometric numba pandas pyarrow scipy matplotlib psutil pynvml pydantic platformdirs"
print(*[n for n in names.split() + ["typer", "rich", "filelock", "cuda"] if not find_spec(n)])') || exit 2
if [ -n "$lacking" ]; then
    echo "error: $python has no $lacking: at home, make carry PEERS=1; send .carry along" >&2
    exit 2
fi
[ -e .carry/libwholegraph ] || echo 'WholeGraph is not in .carry (make carry PEERS=1): no peer of that name'
echo "commit $GATHERBENCH_COMMIT, $GATHERBENCH_MEMORY_GIB GiB of memory, $(left) s"
case ${1:-} in
1) set -- smoke decide ;;
2)
    gpu_mib=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -n 1)
    set -- papers "$([ "${gpu_mib:-0}" -lt 100000 ] && echo beyond || echo pages)" peers energy
    ;;
esac
for name in "$@"; do
    case $name in
    smoke)
        part smoke 60 "$python" tests/gpu/suite.py --out gpu-out/smoke --budget 55 \
            tests/gpu/test_captured_cuda.py tests/gpu/test_ordering_cuda.py
        # A lack of time is no failure.
        journal=gpu-out/smoke/gpu-test.jsonl
        if ! grep -q '"passed"' $journal || grep '"failed"' $journal | grep -qv 'cut off: the time of the whole'; then
            echo 'The smoke test failed: nothing is measured. gpu-out/smoke/gpu-test.log says why.'
            exit 1
        fi
        ;;
    decide)
        epochs decide $((${DECIDE_S:-490} - SECONDS)) $plans/gpu-decide.toml \
            hashed-papers100M=0.5 hashed-products=1 hashed-reddit=1 hashed-wiki=1
        ;;
    papers) epochs papers 150 $plans/gpu-papers.toml hashed-papers100M=1 ;;
    beyond) epochs beyond 115 $plans/gpu-beyond.toml hashed-papers100M=1.7 ;;
    pages)
        enough pages 90 && part pages 60 "$python" -m gatherbench probe --out gpu-out/pages \
            --budget 45 --cases gpu_gather,managed_gather,foreign_registered,foreign_managed
        enough splits 45 && part splits 45 "$python" -m gatherbench probe --out gpu-out/splits \
            --budget 30 --cases split_64k,split_4k
        ;;
    peers) epochs peers 95 examples/peers/gpu-peers.toml hashed-products=1 hashed-wiki=1 ;;
    energy) # the first workload of gpu-decide once, 10 s a path
        alone=$(mktemp -d)/energy.toml
        awk '/^\[\[workload/ { drop = n++ } /^\[\[strategy/ { drop = 0 } !drop' $plans/gpu-decide.toml |
            sed -e 's/^energy = .*/energy = true/' -e 's/^repeats = .*/repeats = 1/' \
                -e 's/^timeout_s = .*/timeout_s = 150/' > "$alone"
        epochs energy 150 "$alone" hashed-papers100M=0.5
        ;;
    *)
        echo "error: there is no part $name" >&2
        exit 2
        ;;
    esac
done
[ $# -gt 0 ] || { sed -n 's/^# \{0,1\}//p' "$0" | head -n 11; exit 2; }
