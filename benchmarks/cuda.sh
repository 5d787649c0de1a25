#!/usr/bin/env bash
# What needs a GPU: tests, measurements, sanitizers.
#
#   benchmarks/cuda.sh [-o FOLDER] [-t SECONDS] [PART...]
#
# FOLDER   where results go; without it benchmarks/results/cuda.  FOLDER.tar.gz holds all of them,
#          and is written again after each part: whatever ends the script leaves what is done.
# SECONDS  in which all parts have to end; without it 540.  A program that has not ended by then, or
#          after its own limit, is interrupted, and what it has measured is kept.
# PART     without one, the first three in this order; if the device cannot add, no part runs:
#
#   tests        all tests on a device, in four processes
#   networks     ResNet-50 in bfloat16 and AlexNet in float32, level 3 beside torch.compile, whose
#                max-autotune takes three minutes and more, so it starts last; a PyTorch model
#                trained by minigraph.torch; expressions beside PyTorch
#   profiles     reports, profiles and caches of tuned steps; what an exchange by NCCL costs; four
#                kernels under ncu, where it is; 2 minutes
#   sanitizers   tests of generated and written kernels under compute-sanitizer's four tools at once,
#                which watch our kernels only; 2 minutes
#
# Wheels in a folder .whl beside the project are installed first, for machines without a network:
# those of packages that Python does not have.  They go where Python has its own, because a wheel's
# data, such as oneDNN's library, would not be found elsewhere.  With minigraph's own wheel, made by
# pip wheel --no-deps -w .whl .  torch.compile finds the backend "minigraph".
set -uo pipefail
cd "$(dirname "$0")/.."

out=benchmarks/results/cuda
seconds=540
while getopts o:t: option; do
  case $option in
    o) out=$OPTARG ;;
    t) seconds=$OPTARG ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || set -- tests networks profiles
for part in "$@"; do
  case $part in
    tests | networks | profiles | sanitizers) ;;
    *)
      echo "there is no part $part; use tests, networks, profiles or sanitizers" >&2
      exit 2
      ;;
  esac
done
mkdir -p "$out"
out=$(cd "$out" && pwd)

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
archive() {
  tar -czf "$out.tar.gz" -C "$(dirname "$out")" "$(basename "$out")"
}
trap archive EXIT

# Run a command for a number of seconds, or until all parts have to end: run NAME SECONDS COMMAND...
run() {
  local name=$1 limit=$2 begun=$SECONDS status=0 ended=done
  shift 2
  [ "$limit" -le $((seconds - SECONDS)) ] || limit=$((seconds - SECONDS))
  if [ "$limit" -le 0 ]; then
    ended="left out: no time is left"
    status=124
  else
    # The interrupt is for this process alone, not for those that it has started: it is what pytest
    # and the bench end in good order for.  No pipe: what is left behind would keep it open.
    timeout --foreground --signal=INT --kill-after=20 "$limit" "$@" >"$out/$name.txt" 2>&1
    status=$?
    case $status in
      0) ;;
      124 | 137) ended="stopped after $limit s" ;;
      *) ended="failed with status $status" ;;
    esac
    tail -n 40 "$out/$name.txt"
  fi
  [ "$status" = 0 ] || failed=1
  printf '%-28s %4d s  %s\n' "$name" $((SECONDS - begun)) "$ended" | tee -a "$out/ends.txt"
  return "$status"
}

# The same with a program of the toolkit, where it is: with PROGRAM NAME SECONDS ARGUMENT...
with() {
  if command -v "$1" >/dev/null; then
    run "$2" "$3" "$1" "${@:4}"
  else
    printf '%-28s         left out: there is no %s\n' "$2" "$1" | tee -a "$out/ends.txt"
  fi
}

on_device=(python3 -m pytest -m cuda --tb=short --maxfail=50 --durations=10)

tests() {
  run tests 180 "${on_device[@]}" -n 4 tests/devices/cuda tests/pytorch
}

# Measure cases at level 3 and beside PyTorch: bench NAME SECONDS PRECISION MODELS PEERS
bench() {
  run "$1" "$2" python3 -m minigraph bench --device cuda --precision "$3" --models "$4" --levels 3 \
    --peers "$5" --repeats 7 --once --budget 30 --out "$out/$1"
}

networks() {
  bench resnet50_bfloat16 420 bfloat16 resnet50 torch,minigraph.torch,torch.compile
  bench alexnet_float32 420 float32 alexnet torch,torch.compile
  bench expressions 100 float32 expressions torch
}

profiles() {
  local profile=(python3 benchmarks/compare.py profile --precision bfloat16 --budget 30)
  run profile 120 "${profile[@]}" resnet50 alexnet gpt --out "$out/profile"
  run nccl 60 python3 benchmarks/compare.py nccl
  for count in 2 4 8; do
    [ "$count" -gt "$devices" ] ||
      run "nccl_$count" 60 mpiexec -n "$count" python3 benchmarks/compare.py nccl
  done
  with ncu four_kernels 120 --clock-control none --kill yes -f --kernel-name regex:^mg_ \
    --launch-skip 100 --launch-count 4 --set full --export "$out/four_kernels" \
    "${profile[@]}" resnet50 --batch-size 32 --budget 1 --out "$out/under_ncu"
}

sanitizers() {
  local tool
  for tool in memcheck racecheck synccheck initcheck; do
    with compute-sanitizer "$tool" 120 --tool "$tool" --kernel-name kns=mg_ --error-exitcode 1 \
      "${on_device[@]}" -n 0 tests/devices/cuda/test_cuda_device.py \
      -k "generated_kernel or written_kernel" &
  done
  wait
}

: >"$out/ends.txt"
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit --format=csv |
  tee "$out/device.csv"
devices=$(nvidia-smi -L 2>/dev/null | wc -l)
run info 60 python3 -m minigraph info --json
run contact 60 python3 -c '
import numpy, minigraph
x = minigraph.input("x", (3,))
print(minigraph.comp_graph("cuda").compile([x], x + x)(numpy.ones(3, numpy.float32)))' || exit 1
for part in "$@"; do
  "$part"
  archive
done
printf '\n'
cat "$out/ends.txt"
exit $failed
