#!/usr/bin/env bash
# What needs a GPU, part by part; if the first fails, the others are left out.
#
#   benchmarks/cuda.sh [-o FOLDER] [-t SECONDS] [PART...] [-- OPTION...]
#
# FOLDER   where results go, all of them; without it benchmarks/results/h200.  However it ends,
#          FOLDER.tar.gz holds the folder.
# SECONDS  that a program may take, in the place of what it has here
# OPTION   of `minigraph bench`, in the place of what it gets here: -- --models mlp
# PART     without one, all in this order:
#
#   contact     whether anything works: versions, tests of kernels, products and memory, again under
#               compute-sanitizer, and two tests of training (4 minutes)
#   tests       all tests on the device, those of collectives in two processes where there are two
#               devices (9 minutes)
#   measure     the speed of expressions; what an exchange by NCCL costs; ResNet-50 in bfloat16,
#               tuned: report, profile, caches, and four kernels under ncu (10 minutes)
#   networks    ResNet-50 in bfloat16 and tf32, and AlexNet, beside torch.compile (10 minutes)
#
# compute-sanitizer and ncu are used where they are.  PyTorch's max-autotune takes one to three
# minutes for each network, so every side starts only once.  What takes too long is interrupted, and
# what it has measured is kept.
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
[ ${#parts[@]} -gt 0 ] || parts=(contact tests measure networks)
for part in "${parts[@]}"; do
  case $part in
    contact | tests | measure | networks) ;;
    *)
      echo "there is no part $part; use contact, tests, measure or networks" >&2
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

# The same with a program of the toolkit, where it is: with PROGRAM NAME SECONDS ARGUMENT...
with() {
  local program=$1 name=$2
  if command -v "$program" >/dev/null; then
    run "$name" "$3" "$program" "${@:4}"
  else
    ends+=("$(printf '%-28s         %s' "$name" "left out: there is no $program")")
  fi
}

# A process for each file: a kernel that goes astray spoils the device for the rest of its process.
tests() {
  run "test_cuda_device$1" "$2" \
    python3 -m pytest -m cuda -q --tb=short --maxfail=50 "tests/devices/cuda/test_cuda_device$1.py"
}

# Measure networks or expressions: bench NAME PRECISION SECONDS MODELS [OPTION...]
bench() {
  local name=$1 precision=$2 limit=$3 models=$4
  shift 4
  run "$name" "$limit" python3 -m minigraph bench --device cuda --precision "$precision" \
    --models "$models" --levels 0,3 --peers torch,torch.compile --repeats 7 --once --budget 30 \
    --out "$out/$name" "$@"
}

contact() {
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit --format=csv |
    tee "$out/device.csv"
  run info 30 python3 -m minigraph info --json
  local first=(python3 -m pytest -m cuda -q --tb=short -n 0 tests/devices/cuda/test_cuda_device.py)
  first+=(-k "begins_anywhere or is_dropped or large_arrays")
  run contact 70 "${first[@]}"
  for tool in memcheck racecheck; do
    with compute-sanitizer "$tool" 50 --tool "$tool" --error-exitcode 1 \
      "${first[@]}"
  done
  run training 40 python3 -m pytest -m cuda -q --tb=short -k "small_types or without_a_graph" \
    tests/devices/cuda/test_cuda_device_training.py
}

measure() {
  bench expressions float32 100 abc,abplusc,chain,softmax "$@"
  run nccl 60 python3 benchmarks/compare.py nccl
  devices=$(nvidia-smi -L 2>/dev/null | wc -l)
  for count in 2 4 8; do
    [ "$count" -gt "$devices" ] || run "nccl_$count" 60 mpiexec -n "$count" python3 benchmarks/compare.py nccl
  done
  local profile=(python3 benchmarks/compare.py profile resnet50 --precision bfloat16)
  run resnet50 240 "${profile[@]}" --out "$out"
  with ncu four_kernels 180 --kernel-name regex:^mg_ --launch-skip 100 --launch-count 4 --set full \
    --export "$out/four_kernels" "${profile[@]}" --batch-size 32 --out "$out/under_ncu"
}

networks() {
  bench resnet50_bfloat16 bfloat16 210 resnet50 "$@"
  bench resnet50_tf32 tf32 210 resnet50 "$@"
  bench alexnet_float32 float32 140 alexnet "$@"
}

for part in "${parts[@]}"; do
  case $part in
    tests)
      tests "" 180
      tests _tuning 120
      tests _training 100
      tests _collectives 120
      ;;
    *) "$part" "$@" ;;
  esac
  if [ "$part" = contact ] && [ "$failed" = 1 ]; then
    ends+=("the device does not work yet, so other parts are left out")
    break
  fi
done
printf '\n'
printf '%s\n' "${ends[@]}" | tee "$out/ends.txt"
exit $failed
