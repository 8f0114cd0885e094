"""A writer that is killed outright leaves every line it had finished."""

import os
import signal
import subprocess
import sys

from opdvr.report.run_folder import RunFolder, read_metrics

WRITER = """
import sys
from opdvr.report.run_folder import RunFolder
run = RunFolder(sys.argv[1]).open({}, [], None)
for step in range(1, 1_000_000):
    run.append_metrics(step, {"a": float(step), "b" * 200: 1.0})
    print(step, flush=True)
"""


def test_kill_loses_no_finished_line(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        for line in writer.stdout:
            if int(line) == 50:
                break
        os.kill(writer.pid, signal.SIGKILL)
        finished = max([50, *(int(line) for line in writer.stdout if line.endswith("\n"))])
    RunFolder(tmp_path).open({}, [], resumed_step=10**9)
    steps = [record["step"] for record in read_metrics(tmp_path)]
    # The step in work may have reached the disk before it could be reported.
    assert steps in (list(range(1, finished + 1)), list(range(1, finished + 2)))
