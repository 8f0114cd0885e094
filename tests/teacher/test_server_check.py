"""The check before a run: each mistake one line with variable and remedy, and no heavy import."""

import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from aiohttp import web
from fake_server import VOCABULARY, FakeServer
from server_setup import settings

from opdvr.teacher import server_check
from opdvr.teacher.engines import Wanted
from opdvr.teacher.server_check import check_servers

ROOT = Path(__file__).parents[2]
STUDENT = ROOT / "opdvr/demo/models/student"


def check(urls, sources=(), k=2, tokenizer=None, model=None, **options):
    wanted = Wanted(top_k=k, vocabulary=VOCABULARY)
    settled = settings(urls, model=model or "", **options)
    return check_servers(settled, wanted, set(sources), tokenizer)


def refused(fault, *arguments, **options):
    with pytest.raises(ValueError, match=fault) as mistake:
        check(*arguments, **options)
    assert "\n" not in str(mistake.value)
    assert "TEACHER_URLS" in str(mistake.value) or "TEACHER_API_KEY" in str(mistake.value)


@pytest.fixture
def student_tokens():
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(STUDENT / "tokenizer.json"))
    return {i: tokenizer.decode([i], skip_special_tokens=False) for i in range(29)}


def test_a_good_server_passes(student_tokens):
    with FakeServer(tokens=student_tokens) as server:
        assert check(server.url, {"any"}, tokenizer=STUDENT) == []


def test_what_cannot_be_compared_is_a_warning():
    with FakeServer() as server:
        (warning,) = check(server.url, tokenizer=STUDENT)
        assert "has no /detokenize" in warning
        (warning,) = check(server.url, tokenizer=None)
        assert "no tokenizer.json" in warning


def test_another_tokenizer_is_refused_with_its_first_id(student_tokens):
    tokens = student_tokens | {17: "?", 23: "!"}
    ours = re.escape(repr(student_tokens[17]))
    with FakeServer(tokens=tokens) as server:
        refused(rf"id 17 is {ours} in the student and '\?' there", server.url, tokenizer=STUDENT)


def test_spaces_before_marks_are_no_difference(student_tokens):
    tokens = student_tokens | {17: student_tokens[17] + " "}
    with FakeServer(tokens=tokens) as server:
        assert check(server.url, tokenizer=STUDENT) == []


def test_a_large_vocabulary_takes_seconds(tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    vocabulary = {f"w{i}": i for i in range(150_000)}
    Tokenizer(WordLevel(vocabulary, unk_token="w0")).save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    # Decoding joins words with spaces, which the comparison leaves out where need be.
    tokens = {i: f"w{i}" for i in range(150_000)}
    assert tokenizer.decode([1, 2]) == "w1 w2"
    with FakeServer(tokens=tokens) as server:
        before = time.monotonic()
        assert check(server.url, tokenizer=tmp_path) == []
        assert time.monotonic() - before < 10
        server.tokens[149_998] = "other"
        refused("id 149998 is 'w149998'", server.url, tokenizer=tmp_path)


def test_a_server_that_is_not_there(monkeypatch):
    monkeypatch.setattr(server_check, "WAIT_S", 0.3)
    gone = FakeServer()
    gone.stop()
    refused(rf"not reachable: {gone.url} \(connection refused\)", gone.url)


def test_it_waits_for_a_server_that_starts(monkeypatch, capfd):
    monkeypatch.setattr(server_check, "WAIT_S", 8.0)
    monkeypatch.setattr(server_check, "_QUIET_S", 0.0)
    late = FakeServer(delay_s=0)
    late.stop()
    started = []
    timer = threading.Timer(0.5, lambda: started.append(FakeServer(port=late.port)))
    timer.start()
    assert len(check(late.url)) == 1
    started[0].stop()
    assert f"waiting up to 8 s for the teacher server {late.url}" in capfd.readouterr().out


def test_a_refused_key():
    with FakeServer(key="right") as server:
        refused("refuses the key .401.: set TEACHER_API_KEY", server.url, key="wrong")


def test_no_model_or_too_many():
    with FakeServer(cards=[]) as server:
        refused("/v1/models lists no model", server.url)
    with FakeServer(cards=[{"id": "a"}, {"id": "b"}]) as server:
        refused("serves 2 models, a, b: set REWARD_MODEL_PATH", server.url)
        refused("serves 2 models", server.url, model="org/c")


def test_one_of_several_models_is_chosen_by_name():
    cards = [{"id": "org/a"}, {"id": "fake/teacher"}]
    with FakeServer(cards=cards) as server:
        assert len(check(server.url, model="/models/teacher/")) == 1


def test_another_model_than_the_variable_names():
    with FakeServer(root="/models/teacher") as server:
        refused(
            r"serves fake/teacher \(/models/teacher\), REWARD_MODEL_PATH .* names org/other",
            server.url,
            model="org/other",
        )
        check(server.url, model="/elsewhere/teacher")
        check(f"a={server.url}", model="org/other")  # several teachers are not all that one


def test_too_short():
    with FakeServer(max_model_len=64) as server:  # max_tokens is 64
        refused("takes 64 tokens, .* is 65; start it with --max-model-len 65", server.url)
    with FakeServer(max_model_len=65) as server:
        check(server.url)


def test_too_many_log_probs():
    with FakeServer(max_logprobs=3) as server:
        refused("--max-logprobs K, or lower LOG_PROB_TOP_K", server.url, k=4)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (lambda *_: web.Response(text="<html>"), "the probe: the answer is not that of a vLLM"),
        (lambda *_: web.Response(status=404, text="no such page"), "no vLLM server"),
        (lambda *_: web.Response(status=500, text="no memory"), "500: no memory; see its own log"),
        (lambda *_: lambda a: a["choices"][0].update(prompt_logprobs=None), "no prompt_logprobs"),
        (lambda *_: web.Response(status=301), "answered 301"),
    ],
)
def test_a_malformed_probe(fault, text):
    with FakeServer(fault=fault) as server:
        refused(text, server.url)


def test_servers_of_one_teacher_that_disagree():
    with FakeServer(seed=1) as one, FakeServer(seed=2) as other:
        refused("a server of the same teacher", f"{one.url},{other.url}")
        assert len(check(f"a={one.url},b={other.url}")) == 1


def test_sources_without_a_server_and_servers_without_a_source():
    with FakeServer() as server:
        refused("no server for data_source 'code'", f"math={server.url}", {"math", "code"})
        warnings = check(f"math={server.url},{server.url}", {"math"})
        assert "the servers of all other data sources have no row to score" in warnings[1]


def test_nothing_heavy_is_imported():
    code = (
        "import sys, opdvr.teacher.server_check, opdvr.teacher.command\n"
        "heavy = {'torch', 'vllm', 'transformers', 'ray', 'verl'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
