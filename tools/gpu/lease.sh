#!/bin/bash
# Fifteen minutes of a GPU, in two calls of less than ten; docs/gpu-machine.md says what for.
#
#     bash tools/gpu/lease.sh 1    smoke; gpu-decide
#     bash tools/gpu/lease.sh 2    gpu-papers; beyond GPU memory, or kernels of others; peers; energy
#
# What it finds is in gpu-out. Each part that ends packs all of it into $OUT (here, if not given).
# PYTHON=python3; SMALL=0.0005 in a rehearsal: the share of each graph that is made.
set -u
cd "$(dirname "$0")/../.." || exit 2
keep=$(realpath "${OUT:-.}") python=${PYTHON:-python3}
unset OUT
# A virtual machine that is given memory as it is used (virtio-mem) speaks of what there is by now.
gib=$(awk '/MemAvailable/ { print $2 / 2^20 }' /proc/meminfo)
grep -qs 0x0018 /sys/bus/virtio/devices/*/device && gib=120
export GATHERBENCH_MEMORY_GIB=${GATHERBENCH_MEMORY_GIB:-$gib}
commit=$(git rev-parse --short=12 HEAD 2> /dev/null || cat .carry/commit)
export GATHERBENCH_COMMIT=${GATHERBENCH_COMMIT:-$commit}
export GATHERBENCH_DATA=${GATHERBENCH_DATA:-/tmp/gb} GATHERBENCH_KERNEL_CACHE=${GATHERBENCH_KERNEL_CACHE:-/tmp/gbk}
export PYTHONPATH=$PWD/src:$PWD/.carry${PYTHONPATH:+:$PYTHONPATH} PATH=$PATH:/usr/local/nvidia/bin
export PYTHONUNBUFFERED=1 # what is cut off keeps its log
mkdir -p gpu-out "$GATHERBENCH_DATA"
echo "commit $GATHERBENCH_COMMIT, $GATHERBENCH_MEMORY_GIB GiB of memory"

part() { # NAME SECONDS COMMAND …: not longer than that
    local name=$1 limit=$2 began=$SECONDS
    shift 2
    echo "== $name, at $SECONDS s"
    timeout -s INT -k 10 "$limit" "$@" > >(tee "gpu-out/$name.log") 2>&1
    local status=$?
    tar -czf "$keep/$name.tgz" gpu-out
    echo "== $name: status $status after $((SECONDS - began)) s, of $limit"
    return $status
}

epochs() { # PLAN SECONDS: what is cut off behind its cases are pictures, which home makes, too
    local name checked
    name=$(basename "$1" .toml)
    checked=$(ls -t gpu-out/*/*/sensors.json 2> /dev/null | head -n 1)
    plan "$1" > "gpu-out/$name.toml"
    part "$name" $(($2 + 10)) "$python" -m gatherbench run "gpu-out/$name.toml" --results gpu-out \
        --budget "$2" ${checked:+--sensors "$(dirname "$checked")"}
}

plan() { # FILE, in small where that is asked for
    [ -z "${SMALL:-}" ] && { cat "$1"; return; }
    sed -e '/^scale/d' -e "s/^dataset = .*/&\nscale = $SMALL/" -e 's/^max_batches.*//' \
        -e 's/^batch_size = .*/batch_size = 40\nmax_batches = 2/' "$1"
}

prepare() { # DATASET=SCALE …, side by side
    local one
    for one in "$@"; do
        timeout 150 "$python" -m gatherbench datasets prepare "${one%=*}" --scale "${SMALL:-${one#*=}}" &
    done
    wait
    echo "== datasets, at $SECONDS s"
}

plans=bench/plan/plans
case ${1:-} in
1)
    part smoke 60 "$python" tests/gpu/suite.py --out gpu-out/smoke --budget 55 \
        tests/gpu/test_captured_cuda.py tests/gpu/test_ordering_cuda.py
    # What there was no time for is not wrong.
    journal=gpu-out/smoke/gpu-test.jsonl
    if ! grep -q '"passed"' $journal || grep '"failed"' $journal | grep -qv 'cut off: the time of the whole'; then
        echo 'The smoke test failed: nothing is measured. gpu-out/smoke/gpu-test.log says why.'
        exit 1
    fi
    prepare hashed-papers100M=0.5 hashed-products=1 hashed-reddit=1 hashed-wiki=1
    epochs $plans/gpu-decide.toml $((${DECIDE_S:-405} - SECONDS))
    ;;
2)
    prepare hashed-papers100M=1 hashed-papers100M=1.7 hashed-products=1 hashed-wiki=1
    epochs $plans/gpu-papers.toml 70
    if [ "$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -n 1)" -lt 100000 ]; then
        epochs $plans/gpu-beyond.toml 70
    else
        part pages 80 "$python" -m tools.gpu.micro --out gpu-out/gpu-micro --budget 60 --sections pages
    fi
    epochs examples/peers/gpu-peers.toml 50
    energy=$(mktemp -d)/gpu-energy.toml # the first workload of gpu-decide once, 10 s a path
    awk '/^\[\[workload/ { drop = n++ } /^\[\[strategy/ { drop = 0 } !drop' $plans/gpu-decide.toml |
        sed -e 's/^energy = .*/energy = true/' -e 's/^min_repeats = .*/repeats = 1/' \
            -e '/^max_repeats/d' -e 's/^timeout_s = .*/timeout_s = 150/' > "$energy"
    epochs "$energy" $((${TOGETHER_S:-570} - SECONDS))
    ;;
*)
    sed -n 's/^# \{0,1\}//p' "$0" | head -n 9
    exit 2
    ;;
esac
