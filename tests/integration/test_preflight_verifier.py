"""A verifier of the user's own on gold answers, in the form that the prompts ask for."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("verl")

from opdvr.data.text import prompt_of  # noqa: E402
from opdvr.integration.config import compose  # noqa: E402
from opdvr.integration.preflight import verifier  # noqa: E402
from opdvr.integration.preflight.data import check_verifier, look_at_files  # noqa: E402

BOXES = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    return float("\\\\boxed{%s}" % ground_truth in solution_str)
"""
STATED = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    right = solution_str.endswith(f"Answer: {ground_truth}")
    return {"score": float(right), "acc": right}
"""
EXITS = """
import sys

def compute_score(data_source, solution_str, ground_truth, extra_info):
    sys.exit(0)
"""
RAISES = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    return 1.0 if extra_info["index"] == 0 else extra_info["missing"]
"""
THRESHOLD = """
def compute_score(data_source, solution_str, ground_truth, extra_info, bonus):
    return 0.25 + bonus
"""


@pytest.fixture
def found(tmp_path):
    """found(code, prompts, *overrides): what is said about the verifier of that code."""

    def check(code, prompts, *overrides, golds=None, with_extra=True):
        rows = {
            "prompt": [[{"role": "user", "content": prompt}] for prompt in prompts],
            "data_source": ["mine"] * len(prompts),
            "reward_model": [{"ground_truth": gold} for gold in golds or ["7"] * len(prompts)],
        }
        if with_extra:
            rows["extra_info"] = [{"index": row} for row in range(len(prompts))]
        pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
        (tmp_path / "mine.py").write_text(code)
        file = f"data.train_files={tmp_path}/rows.parquet"
        config = compose(
            ["platform=cpu", file, f"opdvr.verifier={tmp_path}/mine.py:compute_score", *overrides]
        )
        train, findings = look_at_files(config, config.data.train_files, "TRAIN_DATASET")
        assert not findings
        return list(check_verifier(config, train))

    return check


BOXED_PROMPTS = [prompt_of(f"{i}?") for i in range(9)]
STATED_PROMPTS = [f"{i}? End with 'Answer: X'." for i in range(9)]
PLAIN_PROMPTS = [f"{i}?" for i in range(9)]


@pytest.mark.parametrize(
    ("code", "prompts", "fits"),
    [
        (BOXES, BOXED_PROMPTS, True),
        (BOXES, STATED_PROMPTS, False),
        (BOXES, PLAIN_PROMPTS, True),
        (STATED, BOXED_PROMPTS, False),
        (STATED, STATED_PROMPTS, True),
        (STATED, PLAIN_PROMPTS, True),
    ],
)
def test_verifier_and_prompts_of_one_form(found, code, prompts, fits):
    findings = found(code, prompts)
    if fits:
        assert findings == []
        return
    (error,) = findings
    assert error.level == "error"
    assert "VERIFIER (opdvr.verifier" in error.where and "every response counts" in error.why
    assert "scores no gold answer above 0" in error.what and "4 rows" in error.what


def test_a_form_that_is_not_known_here_may_be_right(found):
    tags = BOXES.replace("\\\\boxed{%s}", "<answer>%s</answer>")
    assert "<answer>" in tags
    (warning,) = found(tags, PLAIN_PROMPTS)
    assert warning.level == "warning" and "scores no gold answer" in str(warning)
    (error,) = found(tags, BOXED_PROMPTS)
    assert error.level == "error" and "PREFLIGHT=warn" in error.remedy


def test_one_form_for_some_rows_only(found):
    (warning,) = found(BOXES, [*BOXED_PROMPTS[:3], *STATED_PROMPTS])
    assert warning.level == "warning" and "in 3 of 4 rows" in str(warning)


def test_what_it_raises_is_told_with_the_row(found):
    (error,) = found(RAISES, BOXED_PROMPTS)
    assert error.level == "error"
    assert "raises KeyError ('missing') on row 1 of the training data" in str(error)
    (error,) = found(RAISES, BOXED_PROMPTS, with_extra=False)
    assert "raises TypeError" in str(error) and "on row 0" in str(error)


@pytest.mark.parametrize(("bonus", "levels"), [("0.0", ["error"]), ("0.5", [])])
def test_reward_kwargs_and_threshold_are_those_of_the_run(found, bonus, levels):
    findings = found(
        THRESHOLD,
        BOXED_PROMPTS,
        f"+custom_reward_function.reward_kwargs.bonus={bonus}",
        "opdvr.correctness_threshold=0.5",
    )
    assert [each.level for each in findings] == levels


def test_a_list_of_golds_gives_its_first(found):
    assert found(BOXES.replace("% ground_truth", "% ground_truth[0]"), PLAIN_PROMPTS[:1]) == []
    row = verifier.Row(0, BOXED_PROMPTS[0], "mine", ["7", "8"], None)
    assert verifier.right_answers(row) == ["So the answer is \\boxed{7}"]


def test_a_slow_one_is_not_asked_about_every_row(found, monkeypatch):
    monkeypatch.setattr(verifier, "SECONDS", 0.0)
    (note,) = found(BOXES, BOXED_PROMPTS)
    assert note.level == "note" and "1 row took over" in str(note)


def test_the_packages_own_is_not_tried(tmp_path):
    assert list(check_verifier(compose(["platform=cpu"]), None)) == []


@pytest.mark.parametrize(
    ("named", "said"),
    [("opdvr.verifier=/no/mine.py:f", "file not found"), ("opdvr.verifier=nowhere:f", "no module")],
)
def test_one_that_is_not_there(named, said):
    (error,) = check_verifier(compose(["platform=cpu", named]), None)
    assert error.level == "error" and said in str(error)


def test_one_that_ends_the_process_is_an_error(found, tmp_path):
    (line,) = found(EXITS, BOXED_PROMPTS)
    assert line.level == "error" and "raises SystemExit" in str(line)
    (line,) = found("raise SystemExit(0)", BOXED_PROMPTS)
    assert line.level == "error" and "cannot be imported" in str(line)
