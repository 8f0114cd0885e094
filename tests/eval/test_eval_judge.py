"""A judge behind a local address: who is asked what, what is kept, what its failures do."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from evaluating import problem, sample

from opdvr.eval import judge as jd
from opdvr.eval.grading import as_benchmarks, grade
from opdvr.eval.options import JudgeOptions
from opdvr.eval.results import MEAN, render_table, summarise
from opdvr.eval.verdicts import Rules, load_verifier

KEY = "sk-very-secret"
NOTE = r"\* too low, perhaps: the judge gave no verdict on {}"


class Judge(ThreadingHTTPServer):
    """Accepts answers in `right`, fails on those in `broken`, mumbles on those in `mumbled`."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.prompts, self.keys = [], []
        self.right, self.broken, self.mumbled = set(), set(), set()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body["messages"][0]["content"]
        self.server.prompts.append(prompt)
        self.server.keys.append(self.headers["Authorization"])
        answer = prompt.split("Candidate answer: ")[1].split("\n")[0]
        if answer in self.server.broken:
            self.reply(400, {"error": {"message": f"no, {KEY} is wrong"}})
            return
        verdict = "correct" if answer in self.server.right else "incorrect"
        text = "Hm." if answer in self.server.mumbled else f"Same value?\n**Verdict: {verdict}**"
        self.reply(
            200, {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}
        )

    def reply(self, code, content):
        data = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("OPDVR_JUDGE_API_KEY", KEY)
    with Judge() as judge:
        thread = threading.Thread(target=judge.serve_forever)
        thread.start()
        yield judge
        judge.shutdown()
        thread.join()


def scored():
    """gold blue: rejected azure (twice), cyan, red; accepted blue; no answer."""
    one = problem(0, "blue", question="colour?")
    texts = ["azure", "azure", "cyan", "red", "blue", None]
    samples = [
        sample(one, i, "none" if text is None else f"\\boxed{{{text}}}")
        for i, text in enumerate(texts)
    ]
    rows = [row for rows in grade([one], samples, load_verifier(Rules())) for row in rows]
    assert [row.correct for row in rows] == [False] * 4 + [True, False]
    return [one], rows


def ask(server, folder):
    from opdvr.eval.judge_models import asker

    problems, rows = scored()
    asked = jd.questions(problems, rows)
    options = JudgeOptions("judge-1", server.url, 64)
    return rows, jd.judge(asked, folder, options.model, asker(options, folder, print))


def test_only_rejected_answers_are_asked_and_each_once(server, tmp_path):
    pytest.importorskip("openai")
    server.right = {"azure"}
    rows, (verdicts, tally) = ask(server, tmp_path)
    assert len(server.prompts) == 3
    assert all("colour?" in p and "Reference answer: blue" in p for p in server.prompts)
    assert set(server.keys) == {f"Bearer {KEY}"}
    assert verdicts == {
        ("a:d:0", "azure"): True,
        ("a:d:0", "cyan"): False,
        ("a:d:0", "red"): False,
    }
    benchmarks = as_benchmarks(rows, 6)
    judged = jd.with_judge(benchmarks, rows, verdicts, tally)
    assert (tally.asked, tally.accepted, tally.failed, tally.accepted_samples) == (3, 1, 0, 2)
    # the rules' figures are what they were: 1 of 6; with the judge 3 of 6
    found = summarise(benchmarks, judged)
    assert found["a"]["avg"] == pytest.approx(1 / 6)
    assert found["a"]["avg_judge"] == found[MEAN]["avg_judge"] == 0.5
    assert "avg@6 with judge" in render_table(found)
    assert "judge" not in render_table(summarise(benchmarks))
    # what the judge failed on is noted below the table, and the column bears a mark
    table = render_table(found, judge_failures=2)
    assert "avg@6 with judge*" in table
    assert table.splitlines()[-2:] == ["", NOTE.format("2 answers")]
    assert render_table(found, judge_failures=1).endswith(NOTE.format("1 answer"))
    assert "*" not in render_table(found)


def test_failures_are_counted_apart_and_asked_again(server, tmp_path):
    pytest.importorskip("openai")
    server.right, server.broken, server.mumbled = {"azure"}, {"red"}, {"cyan"}
    _, (verdicts, tally) = ask(server, tmp_path)
    assert verdicts == {("a:d:0", "azure"): True}
    assert (tally.asked, tally.accepted, tally.failed) == (3, 1, 2)
    assert KEY not in tally.first_failure
    assert KEY not in (tmp_path / jd.JUDGED).read_text()
    # a torn line and the failures are asked again, what is known is not
    with open(tmp_path / jd.JUDGED, "ab") as file:
        file.write(b'{"key": "a:d:0", "pred": "red", "jud')
    server.broken, server.mumbled = set(), set()
    server.prompts.clear()
    _, (verdicts, tally) = ask(server, tmp_path)
    assert len(server.prompts) == 2 and len(verdicts) == 3
    assert (tally.accepted, tally.failed) == (1, 0)
    server.prompts.clear()
    ask(server, tmp_path)
    assert server.prompts == []


def test_an_address_without_anybody_is_tried_once(tmp_path, monkeypatch):
    pytest.importorskip("openai")
    from opdvr.eval import judge_models

    monkeypatch.setattr(judge_models, "_TRIES", 1)
    problems, rows = scored()
    asked = jd.questions(problems, rows)
    options = JudgeOptions("judge-1", "http://127.0.0.1:9/v1", 64)
    verdicts, tally = jd.judge(
        asked, tmp_path, "judge-1", judge_models.asker(options, tmp_path, print)
    )
    assert verdicts == {} and (tally.asked, tally.failed) == (3, 3)
    assert "APIConnectionError" in tally.first_failure


def test_another_judge_is_asked_anew(tmp_path):
    problems, rows = scored()
    asked = jd.questions(problems, rows)

    def accepts(prompts):
        return ((place, "Verdict: correct") for place in range(len(prompts)))

    def rejects(prompts):
        return ((place, "verdict: INCORRECT") for place in range(len(prompts)))

    assert all(jd.judge(asked, tmp_path, "one", accepts)[0].values())
    assert not any(jd.judge(asked, tmp_path, "two", rejects)[0].values())
    assert all(jd.judge(asked, tmp_path, "one", rejects)[0].values())


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("Verdict: correct", True),
        ("**Verdict:** incorrect.", False),
        ("Verdict: incorrect at first sight ...\nVerdict: Correct", True),
    ],
)
def test_the_last_verdict_counts(reply, verdict):
    assert jd.read_verdict(reply) is verdict


@pytest.mark.parametrize("reply", ["", "correct", "the verdict is open", "Verdict: corrected"])
def test_replies_without_a_verdict(reply):
    with pytest.raises(ValueError, match="no verdict"):
        jd.read_verdict(reply)
