"""`align`: words around prompts, which of them stay and why, and measures that are kept."""

import dataclasses
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from opdvr.data import align
from opdvr.data.align_filters import KEPT, LIMITS, reason_to_drop
from opdvr.data.align_templates import check_template, rewritten
from opdvr.data.text import SUFFIX
from opdvr.diagnose import measure as measurement
from opdvr.diagnose.prompt_measure import PARTS, PromptMeasure

MODELS = Path(__file__).parents[2] / "opdvr" / "demo" / "models"
OFF = dict.fromkeys(LIMITS)
STUDENT, TEACHER = str(MODELS / "student"), str(MODELS / "teacher-good")
PROBLEMS = ["1 + 1?", "2 + 2?", "3 + 3?", "4 + 4?", "5 + 5?"]
# By row: kept, teacher fails, no agreement, both (the teacher's pass rate comes first), kept.
MEASURES = [
    {"teacher": (True, False)},
    {"teacher": (False, False)},
    {"agreement": 0.5},
    {"teacher": (False, False), "agreement": 0.5},
    {"student": (True, True), "log_ratio": -2.0},
]


def measure(row=0, student=(True, False), teacher=(True, True), agreement=0.97, log_ratio=-0.3):
    """A prompt's measure with these means over ten tokens, and an overlap of 0.8."""
    sums = {"agreement": agreement * 10, "log_ratio": log_ratio * 10, "log_ratio_abs": 4.0}
    sums |= {"overlap_ratio": 8.0, "overlap_tokens": 10.0, "valid_tokens": 10.0}
    sums |= {"entropy": 1.0, "teacher_entropy": 1.0}
    return PromptMeasure(
        key=f"demo:{row}",
        row=row,
        student_correct=list(student),
        teacher_correct=list(teacher),
        student_tokens=[5, 5],
        teacher_tokens=[5, 5],
        student_finished=[True, True],
        teacher_finished=[True, True],
        sums={part: sums for part in PARTS},
        ends={"finished": 2.0},
    )


@pytest.fixture
def measured(monkeypatch):
    """Stands in for rollouts and scores: `asked` holds the rows and prompts of each round."""

    class Measured:
        asked: list = []
        stop_at = None

        def measure(self, pair, problems, measuring, say):
            self.asked.append([(problem.row, problem.question) for problem in problems])
            self.measuring = measuring
            if len(self.asked) == self.stop_at:
                raise KeyboardInterrupt
            found = [measure(p.row, **MEASURES[p.row]) for p in problems]
            return [dataclasses.replace(m, key=p.key) for m, p in zip(found, problems, strict=True)]

    stand_in = Measured()
    stand_in.asked = []
    monkeypatch.setattr(measurement, "measure", stand_in.measure)
    return stand_in


@pytest.fixture
def aligned(data, write, measured):
    """aligned(...): run on five problems."""
    write("a.parquet", PROBLEMS, noted=[f"row {i}" for i in range(5)])

    def run(*options, output="c.parquet"):
        pair = () if "--measured" in options else ("--student", STUDENT, "--teacher", TEACHER)
        return data("align", "a.parquet", *pair, "--output", output, *options)

    return run


def test_what_stays_and_why(aligned, read, tmp_path):
    ran = aligned("--json", "found.json")
    assert ran.code == 0, ran.err
    assert [row["noted"] for row in read("c.parquet")] == ["row 0", "row 4"]
    dropped = read("c.dropped.parquet")
    assert [(row["align_row"], row["align_reason"]) for row in dropped] == [
        (1, "min-teacher-pass"),
        (2, "min-agreement"),
        (3, "min-teacher-pass"),
    ]
    assert [row["align_agreement"] for row in dropped] == [0.97, 0.5, 0.5]
    assert "dropped 2 rows: --min-teacher-pass 0.5" in ran.out
    assert "dropped 1 row: --min-agreement 0.9" in ran.out
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["kept"] == 2
    assert found["dropped_by"] == {"min-teacher-pass": 2, "min-agreement": 1}
    picture = (tmp_path / "c.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 10_000
    own, kept = pq.read_schema("a.parquet"), pq.read_schema("c.parquet")
    assert kept.equals(own, check_metadata=True)


def test_other_limits_on_the_same_measures(aligned, measured, read):
    aligned()
    assert len(measured.asked) == 1
    ran = aligned(
        *("--measured", "c.measured.jsonl", "--min-teacher-pass", "off", "--min-agreement", "0.4"),
        *("--max-student-pass", "0.9", "--min-log-ratio", "-3"),
        output="d.parquet",
    )
    assert ran.code == 0, ran.err
    assert [row["noted"] for row in read("d.parquet")] == ["row 0", "row 1", "row 2", "row 3"]
    assert read("d.dropped.parquet")[0]["align_reason"] == "max-student-pass"
    assert len(measured.asked) == 1  # nothing was measured anew


def test_an_interrupted_run_goes_on(aligned, measured):
    measured.stop_at = 2
    ran = aligned("--at-once", "2")
    assert ran.code == 130 and "the same command goes on" in ran.err
    measured.stop_at = None
    with open("c.measured.jsonl", "a") as file:
        file.write('{"key": "torn')
    ran = aligned("--at-once", "2")
    assert ran.code == 0, ran.err
    rows = [[row for row, _ in asked] for asked in measured.asked]
    assert rows == [[0, 1], [2, 3], [2, 3], [4]]
    lines = open("c.measured.jsonl").read().splitlines()
    assert [json.loads(line)["row"] for line in lines[1:]] == [0, 1, 2, 3, 4]


def test_measures_of_something_else_are_refused(aligned, refused):
    aligned()
    pair = ("--student", STUDENT, "--teacher", TEACHER)
    there = ("--output", "c.parquet", "--force")
    said = refused("align", "a.parquet", *pair, *there, "--n", "8")
    assert "c.measured.jsonl was measured with n 4, not 8; take it away" in said
    said = refused("align", "a.parquet", "--student", TEACHER, "--teacher", TEACHER, *there)
    assert "was measured with student" in said
    kept = ("--measured", "c.measured.jsonl", "--output", "d.parquet")
    said = refused("align", "a.parquet", *kept, "--template", "none")
    assert "was measured with template 'keep', not 'none'" in said
    lines = open("c.measured.jsonl").read().splitlines(keepends=True)
    open("c.measured.jsonl", "w").write("".join(lines[:-1]))
    assert "lacks 1 row" in refused("align", "a.parquet", *kept)


def test_the_template_is_measured_and_written(aligned, measured, read):
    ran = aligned("--template", "Q: {problem} {A}")
    assert ran.code == 0, ran.err
    assert measured.asked[0][0] == (0, "Q: 1 + 1? {A}")
    rows = read("c.parquet")
    assert [row["prompt"] for row in rows] == [
        [{"role": "user", "content": f"Q: {problem} {{A}}"}] for problem in ("1 + 1?", "5 + 5?")
    ]
    # Those that go are as they were.
    assert read("c.dropped.parquet")[0]["prompt"][0]["content"] == f"2 + 2? {SUFFIX}"


def test_a_template_that_asks_for_answer_is_judged_by_it(aligned, measured):
    ran = aligned("--template", "dapo")
    assert "train with ANSWER_FORMS=any" in ran.err
    assert measured.measuring.answer_forms == "any"
    aligned("--template", "dapo", "--answer-forms", "boxed", output="d.parquet")
    assert measured.measuring.answer_forms == "boxed"
    aligned(output="e.parquet")
    assert measured.measuring.answer_forms is None


def test_templates():
    prompt = f"What is \\frac{{1}}{{2}}? {SUFFIX}"
    assert rewritten(prompt, "keep") == prompt
    assert rewritten(prompt, "none") == "What is \\frac{1}{2}?"
    assert rewritten("What is \\frac{1}{2}?", "boxed") == prompt
    dapo = rewritten(prompt, "dapo")
    assert dapo.startswith("Solve the following math problem step by step.")
    assert dapo.endswith('on its own line after "Answer:".')
    # Any of them can be made of any other.
    assert rewritten(dapo, "boxed") == prompt and rewritten(dapo, "none") == "What is \\frac{1}{2}?"
    for wrong in ("dap", "no place", "{problem} {problem}"):
        with pytest.raises(ValueError, match="give one of keep, none, boxed, dapo, or a text"):
            check_template(wrong)


FOUND = {
    "teacher_pass": 0.75,
    "student_pass": 0.5,
    "overlap_ratio": 0.6,
    "agreement": 0.8,
    "log_ratio_mean": -0.4,
}


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({}, KEPT),
        ({"min_teacher_pass": 0.75, "max_teacher_pass": 0.75}, KEPT),  # on the bound
        ({"min_teacher_pass": 0.8}, "min-teacher-pass"),
        ({"max_teacher_pass": 0.7}, "max-teacher-pass"),
        ({"min_student_pass": 0.6}, "min-student-pass"),
        ({"max_student_pass": 0.4}, "max-student-pass"),
        ({"min_overlap": 0.7}, "min-overlap"),
        ({"min_agreement": 0.9}, "min-agreement"),
        ({"min_log_ratio": -0.3}, "min-log-ratio"),
        ({"max_log_ratio": -0.5}, "max-log-ratio"),
        ({"max_log_ratio": -0.5, "min_overlap": 0.7}, "min-overlap"),  # in the order of LIMITS
    ],
)
def test_limits(bounds, expected):
    assert reason_to_drop(FOUND, OFF | bounds) == expected


def test_mistakes(aligned, refused, write, tmp_path):
    out = ("--output", "c.parquet")
    pair = ("--student", STUDENT, "--teacher", TEACHER)
    assert "--student and --teacher are needed" in refused("align", "a.parquet", *out)
    assert "--measured no: file not found" in refused(
        "align", "a.parquet", "--measured", "no", *out
    )
    assert "is no number, nor 'off'" in refused("align", "a.parquet", *out, "--min-overlap", "x")
    assert "STUDENT: model folder" in refused(
        "align", "a.parquet", "--student", "/no", "--teacher", TEACHER, *out
    )
    assert "--n 0" in refused("align", "a.parquet", *pair, *out, "--n", "0")
    ran = aligned("--min-teacher-pass", "1.5")
    assert ran.code == 2
    assert "no prompt stays (5 by --min-teacher-pass); see c.png" in ran.err
    assert not (tmp_path / "c.parquet").exists()
    write("b.parquet", PROBLEMS, align_row=[1] * 5)
    assert "a column align_row already" in refused("align", "b.parquet", *pair, *out, "--force")


def test_the_measures_of_every_prompt_are_said(aligned):
    found = align.figures(measure(student=(True, False, False, False), agreement=0.5))
    assert found == {
        "teacher_pass": 1.0,
        "student_pass": 0.25,
        "overlap_ratio": 0.8,
        "agreement": 0.5,
        "log_ratio_mean": pytest.approx(-0.3),
    }
