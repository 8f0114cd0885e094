"""Batches as generation leaves them: masks by length, tokens in pairs, one width, ids untouched."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("verl")

from case_setup import (  # noqa: E402
    LENGTH,
    STOP,
    Server,
    generate,
    make_trainer,
    make_worker,
    part,
    questions,
    rollout,
    text_ids,
    with_questions,
)
from verl import DataProto  # noqa: E402
from verl.protocol import pad_dataproto_to_divisor, unpad_dataproto  # noqa: E402

from opdvr.core import MethodSpec, OutputLayer, metrics_from_sums, score_tokens, token_sums  # noqa: E402
from opdvr.integration.rollout import _assemble  # noqa: E402
from opdvr.integration.scoring import SCORE_KEYS, Scorer, plan  # noqa: E402


def test_the_end_trains_also_where_the_padding_is_the_same_token():
    # 5 6 and the end (2), then two of padding (2).
    batch = rollout([[5, 6, 2]], logprobs=[[-1.0, -2.0, -3.0]], response_width=5, pad=2).batch
    assert batch["responses"].tolist() == [[5, 6, 2, 2, 2]]
    assert batch["response_mask"].tolist() == [[1, 1, 1, 0, 0]]
    assert batch["attention_mask"][0, -5:].tolist() == [1, 1, 1, 0, 0]
    assert batch["rollout_log_probs"].tolist() == [[-1.0, -2.0, -3.0, 0.0, 0.0]]


def test_log_probs_pair_with_their_tokens_under_prompts_of_other_lengths():
    # Token 10 + i of the packed order has log-prob -(10 + i).
    responses = [[10, 11, 12], [13, 14], [15, 16, 17]]
    logprobs = [[-float(token) for token in row] for row in responses]
    prompts = [[1, 2], [3, 4, 5, 6, 7], [8]]
    batch = rollout(responses, prompts, prompt_width=5, logprobs=logprobs).batch
    valid = batch["response_mask"].bool()
    assert torch.equal(batch["rollout_log_probs"][valid], -batch["responses"][valid].float())
    assert not batch["rollout_log_probs"][~valid].any()
    # A trainer that gives the same tokens the same values sees no difference.
    student = -batch["responses"].float()
    sums = token_sums(None, valid, torch.ones(3).bool(), student, batch["rollout_log_probs"])
    assert metrics_from_sums(sums)["opd/rollout_logprob_diff_max"] == 0.0


def test_positions_count_from_the_first_real_token():
    # Left padding of 0, 1 and 8: absolute positions would shift without the mask.
    prompts = [list(range(20, 29)), list(range(20, 28)), [20]]
    batch = rollout([[1, 2, 3]] * 3, prompts, prompt_width=9, response_width=3).batch
    assert batch["position_ids"][0].tolist() == list(range(12))
    assert batch["position_ids"][1].tolist() == [0, 0, *range(1, 11)]
    assert batch["position_ids"][2].tolist() == [0] * 9 + [1, 2, 3]
    for row, pads in enumerate((0, 1, 8)):
        assert batch["attention_mask"][row].tolist() == [0] * pads + [1] * (12 - pads)


@pytest.mark.parametrize("tokens, logprobs", [(5, 4), (4, 5)])
def test_a_missing_log_prob_is_never_filled_in(tokens, logprobs):
    server = part([[7] * tokens])
    server["logprobs"] = np.full(logprobs, -0.5, dtype=np.float32)
    server["lengths"] = np.array([5])
    with pytest.raises(RuntimeError, match=f"returned {tokens} tokens and {logprobs} log-probs"):
        _assemble([[1]], [server], 4, 8, 0)


def test_a_missing_response_is_no_empty_one():
    with pytest.raises(RuntimeError, match="for 1 of 2 responses"):
        _assemble([[1], [2]], [part([[7]])], 4, 8, 0)


def test_parts_of_one_batch_have_one_width_whatever_their_longest_row():
    # Two workers whose longest responses are 3 and 1, joined as verl joins them.
    joined = DataProto.concat([rollout([[1, 2, 3]]), rollout([[4], [5]])])
    assert joined.batch["responses"].shape == (3, 8)
    assert joined.batch["response_mask"].sum(-1).tolist() == [3, 1, 1]


def test_rows_keep_their_order_over_servers_and_uneven_shares():
    # 5 rows on 3 servers: shares of 2, 2 and 1; one row on three servers: two stay idle.
    servers = [Server(lambda prompt: [*prompt, 0]) for _ in range(3)]
    worker = make_worker(servers)
    out = generate(worker, questions(["a", "bb", "c", "dd", "e"]))
    assert [len(server.asked[0][0]) for server in servers] == [2, 2, 1]
    texts = worker.tokenizer.batch_decode(out.batch["responses"].tolist())
    assert texts == ["a", "bb", "c", "dd", "e"]
    assert worker.tokenizer.batch_decode(out.batch["prompts"].tolist()) == texts
    generate(worker, questions(["z"]))
    assert [len(server.asked) for server in servers] == [2, 1, 1]


def test_a_validation_batch_that_no_count_divides():
    # 124 rows over 15 workers: verl pads to 135 = 9 * 15, joins the parts and drops the 11 again.
    texts = [f"{row:03d}" for row in range(124)]
    padded, pads = pad_dataproto_to_divisor(questions(texts, validate=True), 15)
    assert (len(padded), pads) == (135, 11)
    worker = make_worker([Server(lambda prompt: prompt)])
    out = DataProto.concat([generate(worker, share) for share in padded.chunk(15)])
    out = unpad_dataproto(out, pads)
    assert worker.tokenizer.batch_decode(out.batch["responses"].tolist()) == texts


def test_validation_has_its_own_sampling_and_width():
    server = Server(lambda prompt: prompt)
    worker = make_worker([server], max_val_response_length=9)
    trained = generate(worker, questions(["a"]))
    validated = generate(worker, questions(["a"], validate=True))
    assert trained.batch["responses"].shape == (1, 6)
    assert validated.batch["responses"].shape == (1, 9)
    (_, in_training), (_, in_validation) = server.asked
    assert in_training == {"temperature": 0.5, "top_p": 1.0, "top_k": -1, "max_tokens": 6}
    assert in_validation == {"temperature": 0.7, "top_p": 0.95, "top_k": -1, "max_tokens": 9}
    worker.config.opdvr.max_val_response_length = None
    width = generate(worker, questions(["a"], validate=True)).batch["responses"].shape[1]
    assert width == 6, "without a limit of its own, that of training"


def test_a_temperature_divides_logits_and_not_log_probs():
    # Logits (2, 0), token 1: ln(1 / (1 + e^2)) = -2.1269; at 0.5, ln(1 / (1 + e^4)) = -4.0181.
    logits, token = torch.tensor([[2.0, 0.0]]), torch.tensor([[1]])
    for temperature, expected in ((1.0, -2.1269), (0.5, -4.0181)):
        layer = OutputLayer(torch.eye(2))
        scores = score_tokens(layer, logits, token, temperature=temperature)
        assert scores.logprobs.item() == pytest.approx(expected, abs=5e-5)


def test_a_prompt_over_the_limit_names_the_option_and_the_prompt():
    worker = make_worker([Server(lambda prompt: prompt)])
    with pytest.raises(ValueError, match="5 tokens, over data.max_prompt_length=4 .*abcde"):
        generate(worker, questions(["abcd", "abcde"]))


def test_each_prompt_of_a_group_is_tokenised_once_with_the_data_sets_template_options():
    worker = make_worker([Server(lambda prompt: prompt)])
    generate(worker, questions(["a", "a", "b"], groups=["p", "p", "q"]))
    expected = {"add_generation_prompt": True, "tokenize": True, "enable_thinking": False}
    assert worker.tokenizer.template_options == [expected] * 2


class FakeTeacherGroup:
    """Answers -1 everywhere, or what it is told to plant, and keeps what it was sent."""

    def __init__(self, plant=None):
        self.plant = plant

    def compute_rm_score(self, batch):
        self.batch = batch
        logprobs = torch.full(batch.batch["response_mask"].shape, -1.0)
        if self.plant:
            row, column, value = self.plant
            logprobs[row, column] = value
        return DataProto.from_dict(tensors={"teacher_log_probs": logprobs})


def scorer(teacher):
    return Scorer(plan(MethodSpec(), "update", overlap=True), None, teacher, 128, 1.0)


def test_the_teacher_gets_the_sampled_ids_and_no_text():
    # "ab" as two tokens, which a tokenizer that merges them would give back as one.
    batch = with_questions(rollout([text_ids("ab"), text_ids("c")], [[65], [66, 67]]))
    workers = FakeTeacherGroup()
    scorer(workers).compute_rm_score(batch)
    assert set(workers.batch.batch.keys()) == set(SCORE_KEYS)
    assert not workers.batch.non_tensor_batch
    for key in SCORE_KEYS:
        assert torch.equal(workers.batch.batch[key], batch.batch[key])
    assert workers.batch.batch["input_ids"][0].tolist() == [0, 0, 0, 65, 97, 98, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_teacher_without_a_value_stops_with_the_sample_named(value):
    batch = with_questions(rollout([text_ids("ab"), text_ids("c")]))
    with pytest.raises(FloatingPointError, match="teacher log-prob is .* extra_info.index 101, po"):
        scorer(FakeTeacherGroup((1, 0, value))).compute_rm_score(batch)
    # row 1 has two tokens; what stands behind them is padding
    scorer(FakeTeacherGroup((1, 2, value))).compute_rm_score(batch)


def test_an_id_without_text_is_refused():
    # The tokenizer has 5 tokens, the student 6 logits, the teacher 8.
    trainer = make_trainer()
    trainer.tokenizer = SimpleNamespace(get_vocab=lambda: {str(i): i for i in range(5)})
    trainer._refuse_unknown_tokens(rollout([[0, 4]], pad=5))  # as padding it says nothing
    with pytest.raises(ValueError, match="token id 5, but the student's tokenizer ends at 4"):
        trainer._refuse_unknown_tokens(rollout([[0, 4, 5]]))


def test_cut_off_is_what_the_engine_says_and_not_how_long_it_is():
    full, short = text_ids("abcdefg"), text_ids("abc", end=False)
    batch = rollout([full, short, short], finish=[STOP, LENGTH, STOP])
    assert batch.batch["response_mask"].sum(-1).tolist() == [8, 3, 3]
    assert make_trainer()._truncated(batch).tolist() == [False, True, False]


def test_cut_off_without_a_finish_reason_is_a_missing_end():
    # Ends at the width with its end token; cut before it, by the model's context; cut; empty.
    rows = [text_ids("abcdefg"), text_ids("abcdef", end=False), text_ids("abcdefgh", False), []]
    batch = rollout(rows)
    batch.batch.pop("truncated")
    assert make_trainer()._truncated(batch).tolist() == [False, True, True, True]
