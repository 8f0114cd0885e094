"""The embedded task: arithmetic, split, careless solvers and data files."""

import random
import re

import pyarrow.parquet as pq
import pytest

from opdvr.demo import task
from opdvr.demo.task import Habits, Problem, problems, solve


def boxed(solution):
    return re.fullmatch(r".*\\boxed\{(\d+)\}", solution).group(1)


def test_solution_by_hand():
    # 7*8+9=65: write 5 carry 6; 4*8+6=38: write 8 carry 3; 3*8+3=27: write 27. 347*8+9 = 2785.
    assert solve(Problem(347, 8, 9)) == r"7*8+9=65;4*8+6=38;3*8+3=27;\boxed{2785}"
    swapped = solve(Problem(347, 8, 9), Habits(style="factor-first"))
    assert swapped == r"8*7+9=65;8*4+6=38;8*3+3=27;\boxed{2785}"


def test_dropped_carries_by_hand():
    # Every carry dropped: 7*8+9=65: 5; 4*8+0=32: 2; 3*8+0=24: 24. The addend 9 is no carry.
    forgetful = Habits(drop_carry=1.0, forgetful_factors=(8,))
    written = solve(Problem(347, 8, 9), forgetful, random.Random(0))
    assert written == r"7*8+9=65;4*8+0=32;3*8+0=24;\boxed{2425}"
    # 347*2+9 = 703 with a factor the solver is careful with.
    assert boxed(solve(Problem(347, 2, 9), forgetful, random.Random(0))) == "703"


def test_careful_solutions_agree_with_python_on_every_problem():
    seen = [p for split in ("train", "test") for p in problems(split)]
    assert len(seen) == 900 * 8 * 10
    for style in task.STYLES:
        habits = Habits(style=style)
        for p in seen:
            assert boxed(solve(p, habits)) == str(p.number * p.factor + p.addend) == p.answer


def test_slips_go_on_into_the_answer():
    rng, habits = random.Random(3), Habits(slip=1.0)
    for p in problems("test")[:200]:
        steps = re.findall(r"(\d)\*(\d)\+(\d+)=(\d+);", solve(p, habits, rng))
        assert len(steps) == 3
        for digit, factor, carry, result in steps:
            off = int(result) - int(digit) * int(factor) - int(carry)
            # A result below zero is written as 0.
            assert abs(off) in (1, 2, 10) or result == "0"
        for before, after in zip(steps, steps[1:], strict=False):
            assert int(after[2]) == int(before[3]) // 10


def test_careless_solver_errs_as_often_as_its_habits_say():
    rng, p = random.Random(0), Problem(347, 8, 9)
    right = sum(boxed(solve(p, Habits(drop_carry=0.5), rng)) == p.answer for _ in range(2000))
    # Two non-zero carries, both kept with 0.5 * 0.5; one deviation is sqrt(.1875/2000) = .01.
    assert abs(right / 2000 - 0.25) < 0.04


def test_split_is_disjoint_and_one_in_eight():
    train, test = set(problems("train")), set(problems("test"))
    assert not train & test
    # 72,000 / 8 = 9,000 expected, standard deviation sqrt(72000 * 1/8 * 7/8) = 89.
    assert abs(len(test) - 9000) < 400
    assert all(p.held_out for p in test) and not any(p.held_out for p in train)


def test_split_is_the_shipped_one():
    # Models were trained on one side of this split; another split would leak held-out problems.
    assert [p.prompt for p in problems("test")[:3]] == ["730*7+3=?", "409*5+5=?", "906*4+3=?"]
    assert [p.prompt for p in problems("train")[:3]] == ["287*5+1=?", "498*3+8=?", "296*3+6=?"]


def test_parquet_is_the_same_bytes_and_leaves_nothing_else(tmp_path):
    first = task.write_parquet(tmp_path / "a b")
    second = task.write_parquet(tmp_path / "c")
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    before = [p.stat().st_ino for p in first]
    task.write_parquet(tmp_path / "a b")
    assert [p.stat().st_ino for p in first] != before, "files must be replaced, not rewritten"
    assert sorted(p.name for p in (tmp_path / "a b").iterdir()) == [task.TEST_FILE, task.TRAIN_FILE]


def test_parquet_holds_verls_schema(tmp_path):
    train, test = (pq.read_table(p).to_pylist() for p in task.write_parquet(tmp_path))
    assert (len(train), len(test)) == (task.TRAIN_ROWS, task.TEST_ROWS)
    for split, rows in (("train", train), ("test", test)):
        for index, row in enumerate(rows):
            (message,) = row["prompt"]
            number, factor, addend = map(int, re.findall(r"\d+", message["content"]))
            problem = Problem(number, factor, addend)
            assert row == {
                "data_source": "opdvr-demo",
                "prompt": [{"role": "user", "content": f"{number}*{factor}+{addend}=?"}],
                "ability": "math",
                "reward_model": {
                    "style": "rule",
                    "ground_truth": str(number * factor + addend),
                },
                "extra_info": {"index": index, "split": split},
            }
            assert problem.held_out == (split == "test")
    prompts = [row["prompt"][0]["content"] for row in train + test]
    assert len(set(prompts)) == len(prompts)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    train, test = task.write_parquet(tmp_path)
    before = train.read_bytes(), test.read_bytes()

    def full_disk(table, path):
        with open(path, "wb") as file:
            file.write(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(task.pq, "write_table", full_disk)
    with pytest.raises(OSError, match="no space"):
        task.write_parquet(tmp_path)
    assert (train.read_bytes(), test.read_bytes()) == before
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Habits(drop_carry=1.5), "drop_carry=1.5"),
        (lambda: Habits(style="backwards"), "digit-first"),
        (lambda: problems("valid"), "train or test"),
        (lambda: solve(Problem(347, 8, 9), Habits(slip=0.1)), "rng"),
    ],
)
def test_user_mistakes_name_the_remedy(make, message):
    with pytest.raises(ValueError, match=message):
        make()
