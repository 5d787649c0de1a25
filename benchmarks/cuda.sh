#!/usr/bin/env bash
# Everything that needs a GPU, in one go: the tests on the device, then the speed tables.
#
#   benchmarks/cuda.sh [FOLDER]     (default benchmarks/results/h200)
#
# Wheels in a folder .whl beside the project are installed first, for machines without a network.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-benchmarks/results/h200}
mkdir -p "$out"

if [ -d .whl ]; then
  python3 -m pip install -q --no-index --no-deps --target /tmp/minigraph-site .whl/*.whl || exit 1
  export PYTHONPATH=/tmp/minigraph-site${PYTHONPATH:+:$PYTHONPATH}
fi
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
export MINIGRAPH_CACHE_DIR=${MINIGRAPH_CACHE_DIR:-/tmp/minigraph-cache}

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit --format=csv |
  tee "$out/device.csv"
python3 -m minigraph info --json >"$out/info.json"
python3 -m pytest -m cuda -q --tb=short tests/test_cuda_device.py 2>&1 | tee "$out/tests.txt"
tested=$?
python3 -m minigraph bench --device cuda --models abc,abplusc,chain,softmax,alexnet,resnet50 \
  --peers torch,torch.compile --out "$out"
benched=$?
exit $((tested || benched))
