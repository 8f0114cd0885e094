"""Users' verifiers: what is refused before sampling, and how a failure is said."""

import pytest
from evaluating import problem, sample

from opdvr.eval.verdicts import Rules, VerifierFailure, load_verifier, rules_of


@pytest.fixture
def written(tmp_path):
    """written(source): the name of its function f, as --verifier takes it."""

    def write(source):
        (tmp_path / "mine.py").write_text(source)
        return f"{tmp_path}/mine.py:f"

    return write


def verdicts(name):
    one = problem(3)
    return load_verifier(Rules(name))([one], [sample(one, 7, "x")])


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("None", "returned None, not a number or a dict with 'score'"),
        ("'1.0'", "returned '1.0', not a number"),
        ("[1.0]", "returned [1.0], not a number"),
        ("{'acc': 1.0}", "returned a dict without 'score': {'acc': 1.0}"),
        ("{'score': None}", "returned None, not a number as score"),
        ("{'score': 1.0, 'acc': 'yes'}", "returned 'yes', not a number as acc"),
        ("float('nan')", "returned nan, not a number or a dict with 'score': scores must be fin"),
        ("{'score': float('inf')}", "returned inf, not a number as score: scores must be finite"),
        ("{'score': 1, 'acc': float('nan')}", "returned nan, not a number as acc: scores must"),
        ("1 / 0", "ZeroDivisionError: division by zero (mine.py, line 2)"),
        ("data_source + 1", "TypeError: "),
        ("exit(3)", "SystemExit: 3"),
    ],
)
def test_a_wrong_verdict_names_verifier_and_sample(written, returned, message):
    name = written(f"def f(data_source, **row):\n    return {returned}\n")
    with pytest.raises(VerifierFailure) as raised:
        verdicts(name)
    line = str(raised.value)
    assert line.startswith(f"--verifier {name}, sample 7 of a:d:3 (a): {message}")
    assert "\n" not in line
    raises = "returned" not in message
    assert raised.value.trace.startswith("Traceback") is raises
    assert ('mine.py", line 2, in f' in raised.value.trace) is raises


@pytest.mark.parametrize(
    ("returned", "score", "acc"),
    [
        ("True", 1.0, 1.0),
        ("__import__('numpy').float32(0.5)", 0.5, 0.5),
        ("{'score': -1, 'acc': False}", -1.0, 0.0),
    ],
)
def test_what_is_a_number_counts(written, returned, score, acc):
    (found,) = verdicts(written(f"def f(**row):\n    return {returned}\n"))
    assert (found["score"], found["acc"]) == (score, acc)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(:\n", "mine.py, line 1"),
        ("import no_such_module_at_all\n", "no_such_module_at_all"),
        ("x = 1\nx.y\n", "AttributeError: .* .mine.py, line 2"),
        ("raise SystemExit('no')\n", "SystemExit: no"),
        ("async def f(**row):\n    return 1\n", "asynchronous"),
        ("def f(answer):\n    return 1\n", "cannot be called with data_source, solution_str"),
        ("f = 3\n", "has no function f"),
    ],
)
def test_what_cannot_be_a_verifier_is_refused_when_it_is_loaded(written, source, message):
    name = written(source)
    with pytest.raises(ValueError, match=f"--verifier .*mine.py:f: .*{message}"):
        load_verifier(Rules(name))


def test_rules_say_who_they_are():
    assert str(rules_of(None, None)) == "opdvr.verifier:compute_score"
    assert str(rules_of(None, "any")).endswith("compute_score with answer forms 'any'")
    assert str(rules_of("m:f", "boxed")) == "m:f"
