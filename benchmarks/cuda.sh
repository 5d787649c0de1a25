#!/usr/bin/env bash
# What needs a GPU: the tests on the device, then the speed tables, part by part.
#
#   benchmarks/cuda.sh [-o FOLDER] [-t SECONDS] [PART...] [-- OPTION...]
#
# FOLDER   where results go; without it benchmarks/results/h200
# SECONDS  that a part, or a file of tests, may take, in the place of what it has here
# PART     tests, expressions, and networks in float32, tf32 or bfloat16; without one the first two
# OPTION   of `minigraph bench`, in the place of what it gets here: -- --models resnet50
#
# Each of these fits into eight minutes:
#
#   benchmarks/cuda.sh
#   benchmarks/cuda.sh float32       and so tf32, bfloat16
#
# PyTorch's max-autotune takes one to three minutes of them for each network, which is why every side
# starts only once.  What takes too long is interrupted, and what it has measured is kept.
#
# Wheels in a folder .whl beside the project are installed first, for machines without a network.
set -uo pipefail
cd "$(dirname "$0")/.."

out=benchmarks/results/h200
seconds=
while getopts o:t: option; do
  case $option in
    o) out=$OPTARG ;;
    t) seconds=$OPTARG ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
parts=()
while [[ ${1:--} != -* ]]; do
  parts+=("$1")
  shift
done
[ "${1:-}" = -- ] && shift
[ ${#parts[@]} -gt 0 ] || parts=(tests expressions)
for part in "${parts[@]}"; do
  case $part in
    tests | expressions | float32 | tf32 | bfloat16) ;;
    *)
      echo "there is no part $part; use tests, expressions, float32, tf32 or bfloat16" >&2
      exit 2
      ;;
  esac
done
mkdir -p "$out"

if [ -d .whl ]; then
  python3 -m pip install -q --no-index --no-deps --target /tmp/minigraph-site .whl/*.whl || exit 1
  export PYTHONPATH=/tmp/minigraph-site${PYTHONPATH:+:$PYTHONPATH}
fi
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
export MINIGRAPH_CACHE_DIR=${MINIGRAPH_CACHE_DIR:-/tmp/minigraph-cache}

failed=0
ends=()

# Run a command for a number of seconds at most: run NAME SECONDS COMMAND...
run() {
  local name=$1 limit=${seconds:-$2} begun=$SECONDS
  shift 2
  # The interrupt is for this process alone, not for those that it has started: it is what pytest
  # and the bench end in good order for.  No pipe: what is left behind would keep it open.
  timeout --foreground --signal=INT --kill-after=20 "$limit" "$@" >"$out/$name.txt" 2>&1
  local status=$? said=done
  tail -n 60 "$out/$name.txt"
  case $status in
    0) ;;
    124 | 137) said="stopped after $limit s" ;;
    *) said="failed with status $status" ;;
  esac
  [ "$status" = 0 ] || failed=1
  ends+=("$(printf '%-28s %4d s  %s' "$name" $((SECONDS - begun)) "$said")")
}

# A process for each file: a kernel that goes astray spoils the device for the rest of its process.
tests() {
  run "test_cuda_device$1" "$2" \
    python3 -m pytest -m cuda -q --tb=short --maxfail=50 "tests/test_cuda_device$1.py"
}

# Measure networks or expressions: bench PART PRECISION SECONDS MODELS [OPTION...]
bench() {
  local part=$1 precision=$2 limit=$3 models=$4
  shift 4
  run "$part" "$limit" python3 -m minigraph bench --device cuda --precision "$precision" \
    --models "$models" --levels 0,3 --peers torch,torch.compile --repeats 7 --once --budget 30 \
    --out "$out/$part" "$@"
}

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit --format=csv |
  tee "$out/device.csv"
timeout 60 python3 -m minigraph info --json >"$out/info.json"
for part in "${parts[@]}"; do
  case $part in
    tests)
      tests "" 170
      tests _tuning 110
      tests _training 90
      ;;
    expressions) bench expressions float32 100 abc,abplusc,chain,softmax "$@" ;;
    *) bench "$part" "$part" 450 alexnet,resnet50 "$@" ;;
  esac
done
printf '\n'
printf '%s\n' "${ends[@]}" | tee "$out/ends.txt"
exit $failed
