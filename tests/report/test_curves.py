"""The picture: its size, that every panel draws what was logged, and the series behind it."""

import math
import subprocess
import sys

import numpy as np
import pytest
from matplotlib import image

from opdvr.report.curves import plot_curves
from opdvr.report.run_folder import RunFolder
from opdvr.report.series import Run, mean_over, phase_seconds, smoothed, window_of

# Left column, middle column, right column of the upper row, then of the lower row.
PANELS = {
    "accuracy": {"cg/correct_frac": 0.5},
    "gap": {"opd/log_ratio_mean": -0.5},
    "gate": {"opd/gate_pass_frac_correct": 0.5},
    "entropy": {"actor/entropy": 0.5},
    "length": {"response_length/mean": 30.0},
    "seconds": {"timing_s/gen": 1.0},
}


def write_run(path, metrics, steps=5):
    run = RunFolder(path).open({}, [], None)
    for step in range(1, steps + 1):
        run.append_metrics(step, {name: value * step / steps for name, value in metrics.items()})
    return path


def full_run(path, steps=5):
    metrics = {name: value for panel in PANELS.values() for name, value in panel.items()}
    return write_run(path, {**metrics, "val-core/demo/acc/mean@4": 0.6}, steps)


def pixels(path):
    return image.imread(path)[:, :, :3]


def coloured(picture):
    """Pixels with a colour, rather than a grey, in each of the 2 x 3 panels."""
    is_coloured = np.ptp(picture, axis=2) > 0.2
    return [int(part.sum()) for row in np.split(is_coloured, 2) for part in np.split(row, 3, 1)]


def test_size_and_all_panels_drawn(tmp_path):
    output = tmp_path / "new folder" / "curves.png"
    assert plot_curves(full_run(tmp_path / "run"), output, {"teacher": 0.9}) == output
    picture = pixels(output)
    assert picture.shape == (900, 1500, 3)
    assert min(coloured(picture)) > 100
    assert [file.name for file in output.parent.iterdir()] == ["curves.png"]


@pytest.mark.parametrize("panel", [name for name in PANELS if name != "accuracy"])
def test_each_metric_reaches_its_own_panel_alone(tmp_path, panel):
    run = write_run(tmp_path / "run", PANELS[panel])
    drawn = coloured(pixels(plot_curves(run, tmp_path / "curves.png")))
    assert [count > 100 for count in drawn] == [name == panel for name in PANELS]


def test_a_run_without_any_known_metric_is_drawn_as_not_logged(tmp_path):
    run = write_run(tmp_path / "run", {"other": 1.0})
    picture = pixels(plot_curves(run, tmp_path / "curves.png"))
    assert coloured(picture) == [0] * 6
    assert picture.min() < 0.5  # Titles and frames are there.


def test_the_reference_line_is_drawn(tmp_path):
    run = full_run(tmp_path / "run")
    without = pixels(plot_curves(run, tmp_path / "without.png"))
    with_line = pixels(plot_curves(run, tmp_path / "with.png", {"$teacher_": 0.9}))
    upper_left = (slice(0, 450), slice(0, 500))
    assert np.abs(with_line[upper_left] - without[upper_left]).max() > 0.5


def test_several_runs_long_and_short_with_awkward_names(tmp_path):
    runs = [full_run(tmp_path / "_a$b", 150), full_run(tmp_path / ("x" * 100)), tmp_path / "empty"]
    runs[2].mkdir()
    (runs[2] / "metrics.jsonl").touch()
    same_name = full_run(tmp_path / "deeper" / "empty")
    picture = pixels(plot_curves([*runs, same_name], tmp_path / "curves.png"))
    assert picture.shape == (900, 1500, 3)
    assert min(coloured(picture)) > 100


def test_non_finite_values_leave_gaps(tmp_path):
    run = RunFolder(tmp_path / "run").open({}, [], None)
    for step in range(4):
        run.append_metrics(step, {"actor/entropy": math.nan, "timing_s/gen": math.inf})
    assert pixels(plot_curves(run.path, tmp_path / "curves.png")).shape == (900, 1500, 3)


def test_wrong_numbers_of_runs_and_missing_runs_are_refused(tmp_path):
    with pytest.raises(ValueError, match="0 run folders given: plot 1 to 7"):
        plot_curves([], tmp_path / "curves.png")
    with pytest.raises(ValueError, match="8 run folders given"):
        plot_curves([tmp_path] * 8, tmp_path / "curves.png")
    with pytest.raises(ValueError, match="does not exist"):
        plot_curves(tmp_path / "missing", tmp_path / "curves.png")
    assert not (tmp_path / "curves.png").exists()


def test_importing_the_report_loads_none_of_the_heavy_packages():
    code = (
        "import sys, opdvr.report.curves, opdvr.report.summary, opdvr.report.progress\n"
        "heavy = {'torch', 'verl', 'ray', 'matplotlib', 'numpy', 'vllm'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_phases_add_up_to_the_whole_step():
    record = {
        "timing_s/step": 5.0,
        "timing_s/gen": 2.0,
        "timing_s/reward": 0.5,
        "timing_s/update_actor": 1.5,
        "timing_s/testing": 3.0,
        "timing_s/old_log_prob": None,
    }
    # Inside the step 5 - (2 + 0.5 + 1.5) = 1 s is left; the validation comes on top.
    assert phase_seconds(record) == {
        "gen": 2.0,
        "reward": 0.5,
        "update_actor": 1.5,
        "testing": 3.0,
        "rest": 1.0,
    }
    assert phase_seconds({"actor/entropy": 1.0}) == {}


def test_smoothing():
    # Means of 1 2; 1 2 6; 2 6 (the NaN left out); 6 8; 8.
    values = [1.0, 2.0, 6.0, math.nan, 8.0]
    assert smoothed(values, 3) == [1.5, 3.0, 4.0, 7.0, 8.0]
    assert math.isnan(smoothed([math.nan], 3)[0])
    assert smoothed([1.0, 5.0], 1) == [1.0, 5.0]
    assert window_of(99) == 1
    assert window_of(100) == 5  # A 25th of 100 is 4, and windows are odd.


def test_the_mean_over_sources_takes_the_steps_they_share():
    records = [
        {"step": 0, "val-core/a/acc/mean@4": 0.2, "val-core/b/acc/mean@4": 0.6},
        {"step": 1, "val-core/a/acc/mean@4": 0.9},
        {"step": 2, "val-core/a/acc/mean@4": 0.5, "val-core/b/acc/mean@4": 0.7},
    ]
    found = Run("run", "black", records).validations()
    means = mean_over(found, list(found))
    # (0.2 + 0.6) / 2 and (0.5 + 0.7) / 2; step 1 has one source only.
    assert means == pytest.approx({0: 0.4, 2: 0.6})
