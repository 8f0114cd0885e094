"""One fixed batch of the embedded task: prompts, the student's own samples and their verdicts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from opdvr.demo.task import DATA_SOURCE, MAX_PROMPT_TOKENS, MAX_RESPONSE_TOKENS, problems
from opdvr.verifier import compute_score


@dataclass(frozen=True)
class TaskBatch:
    """B rows in groups of one prompt.

    tensors: verl's padded layout (prompts [B,P] left-padded, responses [B,T] right-padded) with
    rollout_log_probs [B,T] nats, 0 outside the response; scores [B] from the verifier; groups [B].
    """

    tensors: dict[str, torch.Tensor]
    scores: torch.Tensor
    groups: list[int]

    @property
    def tokens(self) -> int:
        """Prompt and response tokens that are not padding."""
        return int(self.tensors["attention_mask"].sum())


@torch.no_grad()
def sample(student: str, rows: int, group_size: int, seed: int = 0) -> TaskBatch:
    """`rows` responses to the first training problems, `group_size` to each, at temperature 1."""
    chosen = problems("train")[: rows // group_size]
    tokenizer = AutoTokenizer.from_pretrained(student)
    model = AutoModelForCausalLM.from_pretrained(student, dtype=torch.float32).eval()
    prompts = tokenizer(
        [_as_chat(tokenizer, problem.prompt) for problem in chosen],
        add_special_tokens=False,
        padding="max_length",
        max_length=MAX_PROMPT_TOKENS,
        padding_side="left",
        return_tensors="pt",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        output = model.generate(
            input_ids=prompts.input_ids,
            attention_mask=prompts.attention_mask,
            num_return_sequences=group_size,
            max_new_tokens=MAX_RESPONSE_TOKENS,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            output_logits=True,
            return_dict_in_generate=True,
        )
    responses = output.sequences[:, MAX_PROMPT_TOKENS:]
    ended = (responses == tokenizer.eos_token_id).long().cumsum(1)
    mask = ((ended - (responses == tokenizer.eos_token_id).long()) == 0).long()
    logprobs = torch.stack(output.logits, 1).float().log_softmax(-1)
    rollout = logprobs.gather(-1, responses[..., None]).squeeze(-1) * mask
    texts = tokenizer.batch_decode(responses, skip_special_tokens=True)
    scores = [
        compute_score(DATA_SOURCE, text, chosen[row // group_size].answer)["score"]
        for row, text in enumerate(texts)
    ]
    prompt_mask = prompts.attention_mask.repeat_interleave(group_size, 0)
    return TaskBatch(
        _verl_layout(output.sequences, torch.cat((prompt_mask, mask), 1), mask)
        | {"rollout_log_probs": rollout, "sample_index": torch.arange(rows) // group_size},
        torch.tensor(scores),
        [row // group_size for row in range(rows)],
    )


def _as_chat(tokenizer: PreTrainedTokenizerBase, question: str) -> str:
    messages = [{"role": "user", "content": question}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)


def _verl_layout(
    sequences: torch.Tensor, attention: torch.Tensor, response_mask: torch.Tensor
) -> dict[str, torch.Tensor]:
    return {
        "input_ids": sequences,
        "attention_mask": attention,
        "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
        "response_mask": response_mask,
        "prompts": sequences[:, :MAX_PROMPT_TOKENS],
        "responses": sequences[:, MAX_PROMPT_TOKENS:],
    }
