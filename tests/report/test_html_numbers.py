"""What the page is made from: groups, sums, choices and escapes, without a browser."""

import json
import math
import re

import pytest
from fake_runs import HOSTILE, sample, write_fake_run, write_lines

from opdvr.report.command import main
from opdvr.report.html import write_report
from opdvr.report.html.anatomy import anatomies, gate_rows, measured_row
from opdvr.report.html.curves import MOST_POINTS, accuracy_charts, averaging_note, charts
from opdvr.report.html.load import MOST_GROUPS, different_options, grouped, load_runs
from opdvr.report.html.outcome import accuracy_interval, change_interval, outcome_table
from opdvr.report.html.samples import MOST_BYTES, MOST_RESPONSES, outside_in, token_samples
from opdvr.report.html.text import markup, script_json


def groups_of(*folders):
    return grouped(load_runs(folders))


def chart_of(groups, title):
    return next(chart for chart in charts(groups)[0] if chart.title == title)


@pytest.mark.parametrize("text", HOSTILE)
def test_text_in_script_elements_is_ascii_without_markup_and_reads_back(text):
    written = script_json({"text": text})
    assert written.isascii()
    assert not set("<>&") & set(written)
    assert json.loads(written) == {"text": text}


def test_markup_has_no_tag_no_control_and_no_direction_mark():
    shown = markup("".join(HOSTILE))
    assert not set("<>\"'\x00\x1b\u202e\ud800") & set(shown)
    shown.encode()


def test_numbers_that_are_not_finite_become_null():
    assert script_json([math.nan, math.inf, 1 / 3]) == "[null,null,0.333333]"


def test_runs_that_differ_in_seed_and_name_are_one_group(tmp_path):
    folders = [write_fake_run(tmp_path / f"mine-seed{seed}", seed=seed) for seed in (1, 2)]
    other = write_fake_run(tmp_path / "mine-inverse", gate="inverse")
    groups = groups_of(*folders, other)
    assert [group.title for group in groups] == ["mine (2 runs)", "mine-inverse"]
    found = different_options(groups)
    assert found == {"opdvr.correctness_gated_mode": ["default", "inverse"]}


def test_a_run_named_after_its_method_is_no_seed_of_another(tmp_path):
    folders = [write_fake_run(tmp_path / gate, gate=gate) for gate in ("soft", "margin")]
    assert [group.title for group in groups_of(*folders)] == ["soft", "margin"]


def test_only_a_page_is_overwritten(tmp_path):
    run = write_fake_run(tmp_path / "run")
    metrics = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(ValueError, match="metrics.jsonl is there and is no HTML file"):
        write_report([run], run / "metrics.jsonl")
    assert (run / "metrics.jsonl").read_bytes() == metrics
    with pytest.raises(ValueError, match="no HTML file"):
        write_report([run], "/dev/null")
    assert write_report([run], write_report([run])).is_file()


def test_runs_without_a_configuration_stay_apart(tmp_path):
    folders = [write_fake_run(tmp_path / name) for name in "ab"]
    for folder in folders:
        (folder / "config.yaml").unlink()
    assert len(groups_of(*folders)) == 2


def test_a_group_is_its_mean_with_its_range(tmp_path):
    a = write_fake_run(tmp_path / "s1", seed=1, offset=0.0)
    b = write_fake_run(tmp_path / "s2", seed=2, offset=0.2)
    curve = chart_of(groups_of(a, b), "Training batch").curves[0]
    # 0.5 and 0.7: mean 0.6
    assert curve.values[0] == pytest.approx(0.6)
    assert (curve.band[0][0], curve.band[1][0]) == pytest.approx((0.5, 0.7))
    assert len(curve.thin) == 2


def test_the_mean_of_a_group_stops_where_its_shortest_run_does(tmp_path):
    a = write_fake_run(tmp_path / "s1", seed=1, steps=4)
    b = write_fake_run(tmp_path / "s2", seed=2, steps=9)
    assert list(chart_of(groups_of(a, b), "Entropy").curves[0].steps) == [1, 2, 3, 4]


def test_the_kl_estimate_is_minus_the_log_ratio(tmp_path):
    curve = chart_of(groups_of(write_fake_run(tmp_path / "run")), "KL estimate").curves[0]
    # log_ratio_mean is -1 / step
    assert curve.values[:2] == pytest.approx([1.0, 0.5])


def test_long_runs_are_drawn_from_means_of_steps(tmp_path):
    run = write_fake_run(tmp_path / "run", steps=3 * MOST_POINTS, records=False)
    groups = groups_of(run)
    curve = chart_of(groups, "Log-ratio, absolute").curves[0]
    assert len(curve.steps) <= MOST_POINTS + 1
    # The first bucket holds steps 1 and 2: (1 + 1/2) / 2.
    assert curve.thin[0][1][0] == pytest.approx(0.75)
    assert "mean of 3 steps" in averaging_note(groups)


def test_intervals_come_from_the_problems(tmp_path):
    run = load_runs([write_fake_run(tmp_path / "run")])[0]
    low, high = accuracy_interval(run, "demo", 10)
    assert low < 0.75 < high <= 1.0
    # One problem of four changed, by +1: never negative, and 0 is among the resamples.
    assert change_interval(run, "demo", 0, 10)[0] == 0.0
    assert accuracy_interval(run, "demo", 5) is None
    assert accuracy_charts(grouped([run]))[0].curves[0].band is not None
    assert re.search(r"\+0\.250 <span class=.interval.>\[\+0\.000, ", outcome_table(grouped([run])))


def test_a_problem_without_a_number_has_no_part_in_the_interval(tmp_path):
    folder = write_fake_run(tmp_path / "run")
    sources = {"demo": {"problems": ["a", "b"], "accuracy": [1.0, None]}}
    write_lines(
        folder / "validation.jsonl", [{"step": 10, "n": 1, "sources": sources, "samples": []}]
    )
    assert accuracy_interval(load_runs([folder])[0], "demo", 10) == (1.0, 1.0)


def test_anatomy_sums_and_what_each_gate_keeps(tmp_path):
    groups = groups_of(write_fake_run(tmp_path / "run", steps=10))
    whole, *quarters = anatomies(groups[0])
    assert [window.window for window in quarters] == ["steps 1 to 2", "steps 9 to 10"]
    assert whole.log_ratio["correct"]["tokens"].sum() == 40
    assert quarters[0].log_ratio["correct"]["tokens"].sum() == 8
    # Mass a step: correct 6 + 0.5, incorrect 8 + 1.
    measured = measured_row(whole)
    assert measured.correct == pytest.approx(6 / 6.5)
    assert measured.incorrect == pytest.approx(8 / 9)
    rows = {row.name: row for row in gate_rows(whole, groups[0].runs[0])}
    assert not {"mixed", "rescue"} & rows.keys()
    assert (rows["default"].correct, rows["default"].incorrect) == pytest.approx((6 / 6.5, 8 / 9))
    assert rows["inverse"].all == pytest.approx(1.5 / 15.5)
    assert rows["none"].all == 1.0
    # floor 0.1: (6 + 0.05 + 8 + 0.1) / 15.5
    assert rows["leaky"].all == pytest.approx(14.15 / 15.5)
    # soft, by hand: 2 |r| sigmoid(y r), tokens 3 x 2, 1 x -0.5 | 2 x -4, 2 x 0.5
    sigmoid = lambda x: 1 / (1 + math.exp(-x))  # noqa: E731
    correct = 2 * (6 * sigmoid(2) + 0.5 * sigmoid(-0.5))
    assert rows["soft"].correct == pytest.approx(correct / 6.5)
    # Eight tokens a step: (6 - 0.5 - 8 + 1) / 8 and (6 - 8) / 8
    assert rows["none"].mean == pytest.approx(-1.5 / 8)
    assert rows["default"].mean == pytest.approx(-0.25)
    assert whole.pushed["up"][0] == (7, " the", 30, 60.0)


def test_a_header_may_come_again_but_not_with_other_bins(tmp_path):
    folder = write_fake_run(tmp_path / "run", steps=2)
    file = folder / "anatomy.jsonl"
    header, *lines = [json.loads(line) for line in file.read_text().splitlines()]
    write_lines(file, [header, lines[0], header, lines[1]])
    assert anatomies(groups_of(folder)[0])[0].log_ratio["correct"]["tokens"].sum() == 8
    write_lines(file, [header, lines[0], {**header, "position_starts": [0, 2]}, lines[1]])
    with pytest.raises(ValueError, match="anatomy.jsonl has other bins"):
        anatomies(groups_of(folder)[0])


def test_outside_in_is_spread_from_the_first():
    assert outside_in([0, 1, 2, 3, 4]) == [0, 4, 2, 1, 3]
    assert outside_in([7]) == [7]
    assert sorted(outside_in(list(range(50)))) == list(range(50))


def test_responses_are_bounded_and_spread_over_steps_and_verdicts(tmp_path):
    many = [sample(step, step % 5 == 0) for step in range(1, 201) for _ in range(3)]
    run = load_runs([write_fake_run(tmp_path / "run", samples=many)])
    kept, left_out = token_samples(run)
    assert (len(kept), left_out) == (MOST_RESPONSES, 600 - MOST_RESPONSES)
    steps = [entry["step"] for entry in kept]
    assert (min(steps), max(steps)) == (1, 200)
    assert max(b - a for a, b in zip(sorted(set(steps)), sorted(set(steps))[1:], strict=False)) < 25
    assert any(entry["correct"] for entry in kept)


def test_what_is_too_large_is_left_out_and_long_tokens_are_cut(tmp_path):
    long = sample(1, True, tokens=["x" * 100_000, "y"])
    huge = sample(2, True, tokens=["数"] * (MOST_BYTES // 6))
    run = load_runs([write_fake_run(tmp_path / "run", samples=[long, huge])])
    kept, left_out = token_samples(run)
    assert [entry["step"] for entry in kept] == [1]
    assert left_out == 1
    assert kept[0]["tokens"][0].endswith("… (99,700 more characters)")


def test_every_file_but_the_metrics_may_be_missing(tmp_path):
    folder = write_fake_run(tmp_path / "run", records=False)
    for name in ("config.yaml", "versions.json", "git.json"):
        (folder / name).unlink()
    text = write_report([folder]).read_text()
    for sentence in (
        "No anatomy.jsonl here",
        "No token_samples.jsonl here",
        "No validation samples here",
        "No config.yaml here",
        "No versions.json, git.json or summary.txt here",
    ):
        assert sentence in text


def test_supervised_runs_and_runs_without_a_teacher(tmp_path):
    folder = tmp_path / "sft"
    folder.mkdir()
    lines = [{"step": step, "time": 0, "train/loss": 2.0 / step} for step in (1, 2)]
    write_lines(folder / "metrics.jsonl", [*lines[:1], {**lines[1], "val/loss": 0.9}])
    (folder / "config.yaml").write_text("model: {path: models/student}\n")
    text = write_report([folder]).read_text()
    assert "supervised fine-tuning" in text
    assert "training: 2 at step 1, 1 at step 2; held out: 0.9 at step 2" in text
    nothing = {"log_ratio": None, "reward": None, "zeroed": None}
    bare = write_fake_run(tmp_path / "grpo", samples=[sample(1, True, **nothing)])
    assert token_samples(load_runs([bare]))[0][0]["log_ratio"] is None


def test_a_torn_last_line_is_left_out(tmp_path):
    folder = write_fake_run(tmp_path / "run")
    for name in ("anatomy.jsonl", "token_samples.jsonl", "validation.jsonl"):
        with open(folder / name, "a") as file:
            file.write('{"step": 11, "log')
    assert write_report([folder]).is_file()


def test_ids_of_all_drawings_differ_and_every_reference_is_there(tmp_path):
    text = write_report([write_fake_run(tmp_path / "run")]).read_text()
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    references = set(re.findall(r"url\(#([^)]+)\)", text)) | set(
        re.findall(r'href="#([^"]+)"', text)
    )
    assert len(references) > 10
    assert references <= set(ids)
    assert "#fe0" not in text
    assert not re.search(r"""(src|href|url\()=?["']?https?:""", text)


def test_default_outputs_and_nothing_beside_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    a, b = (write_fake_run(tmp_path / name, gate=gate) for name, gate in ("an", "bi"))
    before = set(a.iterdir())
    assert main([str(a)]) == 0
    assert set(a.iterdir()) - before == {a / "report.html"}
    assert main([str(a), str(b)]) == 0
    assert (tmp_path / "report.html").is_file()
    assert "report.html (" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no run folder given"),
        (["missing"], "is no folder"),
        (["empty"], "does not exist: give the folder of a run"),
        (["run", "run/../run"], "is given twice"),
        (["run", "--output", "run"], "is a folder: name a file"),
        (["run", "--output", "run/config.yaml/x.html"], "cannot be written"),
        (["damaged"], "is damaged: restore it"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    write_fake_run(tmp_path / "run", records=False)
    (tmp_path / "empty").mkdir()
    write_fake_run(tmp_path / "damaged", records=False)
    (tmp_path / "damaged" / "git.json").write_text("{")
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_more_groups_than_colours_are_refused_but_seeds_are_not_counted(tmp_path, capsys):
    folders = [
        str(write_fake_run(tmp_path / f"g{n}", gate=f"gate{n}", records=False))
        for n in range(MOST_GROUPS + 1)
    ]
    assert main(folders) == 2
    assert f"at most {MOST_GROUPS}" in capsys.readouterr().err
    same = [
        write_fake_run(tmp_path / f"s{n}", seed=n, records=False) for n in range(MOST_GROUPS + 1)
    ]
    assert len(groups_of(*same)) == 1
