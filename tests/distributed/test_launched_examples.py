"""The examples, each started, stopped and resumed in several processes."""

import re
import signal
import time

import pytest
from example_networks import EXAMPLES
from launched import start
from new_process import wait

SYNTHETIC = ["--data", "synthetic", "--best", "", "--workers", 0]
SMALL = {
    "mlp": ["--best", "", "--workers", 0, "--batch-size", 128],
    "resnet": [*SYNTHETIC, "--image-size", 8, "--batch-size", 128],
    "alexnet": [*SYNTHETIC, "--batch-size", 256],
    "gpt": ["--sample", 9, "--batch-size", 4],
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("example", "number"),
    [
        ("mlp", signal.SIGTERM),
        ("resnet", signal.SIGTERM),
        ("alexnet", signal.SIGINT),
        ("gpt", signal.SIGINT),
    ],
)
def test_an_example_stops_with_its_launcher_and_goes_on_in_more_processes(
    tmp_path, example, number
):
    arguments = [EXAMPLES / example / "train.py", *SMALL[example], "--threads", 1]
    if example == "gpt":
        text = tmp_path / "text"
        text.write_text("abcdefgh" * 500)
        arguments += ["--data", text, "--best", tmp_path / "best"]
    file = tmp_path / "checkpoint"
    environment = {"MINIGRAPH_OPTIONS": "autotune=off"}
    process = start(2, *arguments, "--epochs", 1000, "--checkpoint", file, **environment)
    while not file.exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(number)
    printed, errors = wait(process, status=130)
    assert "Traceback" not in errors
    epoch = int(re.search(r"stopped in epoch (\d+) after batch \d+; --resume", printed)[1])

    # That dropout, say, is another in more processes is a warning.
    again = ["-W", "default", *arguments, "--resume", file, "--epochs", epoch + 1]
    printed, errors = wait(start(4, *again, **environment))
    assert re.search(rf"^epoch {epoch + 1}/{epoch + 1}: loss", printed, re.M), printed + errors
    assert "Traceback" not in errors and printed.count(f"epoch {epoch + 1}/") == 1
