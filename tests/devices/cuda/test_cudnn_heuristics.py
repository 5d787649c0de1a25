"""The real cuDNN has plans for our graphs: it is asked on this machine, as on one with an H200."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WHEEL = "nvidia-cudnn-cu13"
for package in ("cupy", "cudnn", "cuda.bindings.driver"):
    pytest.importorskip(package)
try:
    metadata.version(WHEEL)
except metadata.PackageNotFoundError:
    pytest.skip(f"{WHEEL}, a wheel of 1 GB, is not installed", allow_module_level=True)


def found(tmp_path, *arguments):
    """Return the rows of a process of its own: the driver that it loads is for no other test."""
    file = tmp_path / "plans.json"
    ended = subprocess.run(
        [sys.executable, ROOT / "tools" / "cudnn_plans.py", "--json", file, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), *sys.path]))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert file.exists(), ended.stderr
    rows = json.loads(file.read_text())["rows"]
    for row in rows:
        assert not row["without a plan"] and not row["not built"], row
    assert ended.returncode == 0, ended.stderr
    return rows


def test_alexnet_has_plans_in_every_layout_and_cudnns_relu_where_nan_may_be_lost(tmp_path):
    rows = found(tmp_path, "alexnet", "--precisions", "float32")
    assert [row["layout"] for row in rows] == ["nchw", "nhwc", "both"]
    for row in rows:
        assert row["plans"] > row["problems"]
        assert row["relus fused"] == row["relus"] > 0


@pytest.mark.long
def test_all_networks_have_plans_in_every_precision(tmp_path):
    rows = found(tmp_path)
    assert len(rows) == 3 * 4 * 3
    nhwc = [row for row in rows if row["layout"] == "nhwc"]
    assert all(row["relus fused"] == row["relus"] for row in nhwc)
