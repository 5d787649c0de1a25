#!/usr/bin/env bash
# What needs a GPU: the tests on the device, then the speed tables, part by part.
#
#   benchmarks/cuda.sh [-o FOLDER] [-t SECONDS] [PART...] [-- OPTION...]
#
# FOLDER   where results go, all of them; without it benchmarks/results/h200.  However it ends,
#          FOLDER.tar.gz holds the folder.
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
# Wheels in a folder .whl beside the project are installed first, for machines without a network:
# those of packages that Python does not have.  They go where Python has its own, because a wheel's
# data, such as oneDNN's library, would not be found elsewhere.
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
out=$(cd "$out" && pwd)

# Keep what was measured and compiled, and put everything into one file.
archive() {
  timeout 30 python3 -m minigraph cache export "$out/all.cache" >/dev/null 2>&1
  tar -czf "$out.tar.gz" -C "$(dirname "$out")" "$(basename "$out")"
}
trap archive EXIT

# Print the wheels of packages that Python does not have.
missing() {
  local wheel name
  for wheel in .whl/*.whl; do
    name=$(basename "$wheel" | cut -d- -f1)
    python3 -m pip show -q "$name" >/dev/null 2>&1 || echo "$wheel"
  done
}

if [ -d .whl ]; then
  mapfile -t wheels < <(missing)
  if [ ${#wheels[@]} -gt 0 ]; then
    python3 -m pip install -q --no-index --no-deps "${wheels[@]}" || exit 1
  fi
fi
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
if [ -z "${MINIGRAPH_CACHE_DIR:-}" ]; then
  MINIGRAPH_CACHE_DIR=$(mktemp -d) || exit 1
fi
export MINIGRAPH_CACHE_DIR

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
    python3 -m pytest -m cuda -q --tb=short --maxfail=50 "tests/devices/cuda/test_cuda_device$1.py"
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
