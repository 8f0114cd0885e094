"""What is found together, and what opdvr.preflight makes of it."""

import pytest

pytest.importorskip("verl")

from opdvr.integration.config import compose  # noqa: E402
from opdvr.integration.demo_data import make_demo_data  # noqa: E402
from opdvr.integration.options import preflight_mode  # noqa: E402
from opdvr.integration.preflight import Finding, Refusal, look, refuse, summary  # noqa: E402
from opdvr.integration.preflight.checks import Report  # noqa: E402
from opdvr.integration.preflight.data import check_data  # noqa: E402
from opdvr.integration.preflight.finding import error, from_message, note, warning  # noqa: E402
from opdvr.integration.preflight.method import check_method  # noqa: E402

MODULE = "opdvr.integration.preflight.checks"
PARTS = ("check_values", "check_files", "check_machine", "_method", "_tokens", "_numbers")


def demo_config(*overrides):
    return compose(["platform=cpu", "task=demo", *overrides])


@pytest.fixture
def parts(monkeypatch):
    """parts(check_files=[finding], ...): what each part finds; returns those that were asked."""
    asked = []

    def fake(**found):
        for name in PARTS:

            def check(*arguments, name=name):
                asked.append(name)
                return found.get(name, [])

            monkeypatch.setattr(f"{MODULE}.{name}", check)
        return asked

    return fake


BAD, DOUBTFUL, MEASURED = error("A (a)", "bad"), warning("B (b)", "odd"), note("C (c)", "seen")


def test_a_finding_is_one_line():
    found = Finding("error", "VAL_N (n)", "is 4\nbut greedy", "copies", "set VAL_N=1")
    assert str(found) == "VAL_N (n): is 4 but greedy; copies; set VAL_N=1"
    assert str(error("X", "bad", remedy="mend it")) == "X: bad; mend it"
    assert str(from_message("note", "X", "X: seen")) == "X: seen"
    assert str(from_message("note", "X", "seen")) == "X: seen"


def test_every_part_is_asked_where_nothing_is_wrong(parts):
    asked = parts(check_files=[DOUBTFUL], _numbers=[MEASURED])
    heard = []
    report = look(demo_config(), hear=heard.append)
    assert asked == list(PARTS)
    assert report.findings == heard == [DOUBTFUL, MEASURED]
    assert list(report.seconds) == ["options", "files", "machine", "method", "tokens", "numbers"]


@pytest.mark.parametrize(
    ("broken", "asked"),
    [
        ("check_values", PARTS[:2]),  # with values out of range nothing is computed
        ("check_files", PARTS[:3]),
        ("check_machine", PARTS[:3]),
        ("_method", PARTS[:4]),
        ("_tokens", PARTS[:5]),
    ],
)
def test_slow_parts_wait_for_the_others(parts, broken, asked):
    called = parts(**{broken: [BAD]})
    assert look(demo_config()).findings == [BAD]
    assert called == list(asked)


@pytest.mark.parametrize(
    ("mode", "stopping"),
    [
        ("stop", [BAD]),
        ("True", [BAD]),
        ("strict", [BAD, DOUBTFUL]),
        ("warn", []),
    ],
)
def test_what_stops_a_run(parts, mode, stopping):
    parts(check_files=[BAD, DOUBTFUL, MEASURED])
    config, heard = demo_config(f"opdvr.preflight={mode}"), []
    if stopping:
        with pytest.raises(Refusal) as refused:
            refuse(config, hear=heard.append)
        assert refused.value.findings == stopping
    else:
        refuse(config, hear=heard.append)
    assert heard == [found for found in (BAD, DOUBTFUL, MEASURED) if found not in stopping]


@pytest.mark.parametrize("mode", ["off", "False", "false"])
def test_off_looks_at_names_alone(parts, mode):
    asked = parts(check_files=[BAD])
    refuse(demo_config(f"opdvr.preflight={mode}"), hear=pytest.fail)
    assert asked == ["_method"]


def test_a_strict_run_with_notes_alone_starts(parts):
    parts(check_machine=[MEASURED])
    heard = []
    refuse(demo_config("opdvr.preflight=strict"), hear=heard.append)
    assert heard == [MEASURED]


def test_other_modes_are_refused():
    assert [preflight_mode(text) for text in ("True", "false", "warn")] == ["stop", "off", "warn"]
    with pytest.raises(ValueError, match="PREFLIGHT .opdvr.preflight. is 'maybe'; .*stop, warn"):
        demo_config("opdvr.preflight=maybe")


def test_all_mistakes_of_a_command_are_told_at_once():
    config = demo_config(
        "actor_rollout_ref.rollout.val_kwargs.temperature=0",
        "actor_rollout_ref.model.path=/no/student",
        "reward_model.model.path=/no/teacher",
        "data.val_files=/no/test.parquet",
        "opdvr.gate_floor=0.5",
    )
    report = look(config)
    where = [str(found).split()[0] for found in report.findings if found.level == "error"]
    assert where == ["VAL_N", "ACTOR_MODEL_PATH", "REWARD_MODEL_PATH", "TEST_DATASET"]
    (unread,) = (found for found in report.findings if found.level == "warning")
    assert unread.where == "GATE_FLOOR=0.5 (opdvr.gate_floor)" and "leaky" in unread.what


def test_an_unnamed_teacher_and_no_cluster(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    config = compose(["platform=cpu", "trainer.nnodes=2", "opdvr.preflight=off"])
    with pytest.raises(Refusal) as refused:
        refuse(config, hear=pytest.fail)
    teacher, cluster = refused.value.findings
    assert "REWARD_MODEL_PATH (reward_model.model.path): is not set" in str(teacher)
    assert "NNODES (trainer.nnodes): 2 nodes" in str(cluster) and "RAY_ADDRESS" in str(cluster)


@pytest.mark.parametrize(
    ("overrides", "where", "what"),
    [
        (["opdvr.tail_bucket=True"], "TAIL_BUCKET (opdvr.tail_bucket)=True", "there are none"),
        (
            ["opdvr.correctness_gated_mode=rescue", "actor_rollout_ref.rollout.n=1"],
            "N_RESPONSES (actor_rollout_ref.rollout.n)",
            "CORRECTNESS_GATED_MODE=rescue",
        ),
        (
            ["opdvr.correctness_gated_mode=bogus"],
            "CORRECTNESS_GATED_MODE (opdvr.correctness_gated_mode)='bogus'",
            "is unknown",
        ),
    ],
)
def test_the_cores_refusals_are_findings(overrides, where, what):
    (found,) = check_method(demo_config(*overrides))
    assert found.level == "error" and found.where == where
    assert what in found.what and found.remedy


def test_the_last_line_counts():
    report = Report([BAD, DOUBTFUL, DOUBTFUL], {"files": 0.26, "machine": 1.0})
    assert summary(report) == "1 error, 2 warnings, 0 notes in 1.3 s (files 0.3, machine 1.0)"


def test_what_servers_say_is_found_with_their_variable(monkeypatch):
    from opdvr.teacher import server_check

    urls = ["opdvr.teacher_engine=server", "opdvr.teacher_urls=http://host:1"]
    asked = []

    def check_servers(settings, wanted, sources, folder):
        asked.append((settings.urls, sources, folder.name))
        return ["TEACHER_URLS (opdvr.teacher_urls): slow"]

    monkeypatch.setattr(server_check, "check_servers", check_servers)
    config = demo_config(*urls)
    make_demo_data(config)
    (found,) = check_data(config)
    assert str(found) == "TEACHER_URLS (opdvr.teacher_urls): slow" and found.level == "warning"
    assert asked == [("http://host:1", {"opdvr-demo"}, "student")]

    def refuse_servers(*arguments):
        raise ValueError("TEACHER_URLS (opdvr.teacher_urls): no server answers")

    monkeypatch.setattr(server_check, "check_servers", refuse_servers)
    (found,) = check_data(config)
    assert found.level == "error" and str(found).count("TEACHER_URLS") == 1
