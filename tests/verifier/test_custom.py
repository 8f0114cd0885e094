"""A user's verifier by its name: found, importable, and callable as it will be called."""

import pytest

from opdvr.verifier import compute_score
from opdvr.verifier.custom import OWN, load_verifier

GOOD = "def grade(data_source, solution_str, ground_truth, extra_info=None): return 1.0\n"


def write(folder, text):
    path = folder / "mine here.py"
    path.write_text(text)
    return f"{path}:grade"


def test_found_in_module_and_file(tmp_path):
    assert load_verifier(OWN) is compute_score
    assert load_verifier(write(tmp_path, GOOD))("a", "b", "c") == 1.0
    assert load_verifier(write(tmp_path, "def grade(**given): return 0.5\n"))(a=1) == 0.5


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def grade(solution_str, ground_truth): return 1\n", "cannot be called with data_source"),
        ("def grade(a, b, c, d): return 1\n", "cannot be called with data_source"),
        ("async def grade(**given): return 1\n", "is asynchronous"),
        ("def grade(:\n", "cannot be imported"),
        ("import no_such_module\n", "cannot be imported: No module named 'no_such_module'"),
        ("def other(): return 1\n", "has no function grade"),
    ],
)
def test_refused_in_one_line(tmp_path, text, reason):
    with pytest.raises(ValueError, match=reason) as refusal:
        load_verifier(write(tmp_path, text))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["grade", "module:", ":grade", "module:not a name", "no_such:f"])
def test_names_that_are_none(name):
    with pytest.raises(ValueError, match="verifier"):
        load_verifier(name)


def test_further_keywords_have_to_be_taken(tmp_path):
    name = write(tmp_path, GOOD.replace("extra_info=None", "extra_info=None, bonus=0"))
    load_verifier(name, further=("bonus",))
    with pytest.raises(ValueError, match="malus"):
        load_verifier(name, further=("malus",))
