"""Batches in verl's layout and our trainer, without Ray, workers or models."""

import asyncio
from types import SimpleNamespace

import numpy as np
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.ray_trainer import RayPPOTrainer, compute_advantage

from opdvr.integration import signal
from opdvr.integration.options import OpdvrOptions
from opdvr.integration.rollout import BatchAgentLoopWorker, _assemble
from opdvr.integration.trainer import OpdvrTrainer

STOP, LENGTH = 0, 1  # finish codes of the server
END = 0  # both the end and the padding of `Letters`


class Letters:
    """A tokenizer of 128 tokens: an id is a character, 0 the end and the padding."""

    pad_token_id = eos_token_id = END

    def __init__(self):
        self.template_options = []

    def __len__(self):
        return 128

    def get_vocab(self):
        return {chr(i): i for i in range(128)}

    def decode(self, ids, skip_special_tokens=True):
        return "".join(chr(i) for i in ids if i != END)

    def batch_decode(self, rows, skip_special_tokens=True):
        return [self.decode(row) for row in rows]

    def apply_chat_template(self, messages, **options):
        self.template_options.append(options)
        return [ord(char) for message in messages for char in message["content"]]


def text_ids(text, end=True):
    return [ord(char) for char in text] + [END] * end


def part(responses, logprobs=None, finish=None):
    """What one inference server returns for its share of a batch."""
    logprobs = logprobs or [[-0.5] * len(response) for response in responses]
    return {
        "token_ids": np.array([i for response in responses for i in response], dtype=np.int64),
        "logprobs": np.array([x for row in logprobs for x in row], dtype=np.float32),
        "lengths": np.array([len(response) for response in responses], dtype=np.int64),
        "finish": np.array(finish or [STOP] * len(responses), dtype=np.int8),
        "seconds": np.zeros(len(responses), dtype=np.float32),
    }


def rollout(responses, prompts=None, prompt_width=4, response_width=8, pad=END, **rest):
    """One server's responses as the batch that verl's loop gets."""
    prompts = prompts or [[65, 66]] * len(responses)
    return _assemble(prompts, [part(responses, **rest)], prompt_width, response_width, pad)


def with_questions(batch, groups=None, golds=None):
    """Adds the data file's columns and verl's group ids."""
    rows = len(batch.batch)
    columns = {
        "uid": groups or ["q"] * rows,
        "data_source": ["AIME24"] * rows,
        "reward_model": [{"ground_truth": gold, "style": "rule"} for gold in golds or ["7"] * rows],
        "extra_info": [{"index": 100 + row} for row in range(rows)],
    }
    for name, values in columns.items():
        batch.non_tensor_batch[name] = np.array(values, dtype=object)
    return batch


def make_trainer(estimator="token_reward_direct", distill=True, **options):
    """OpdvrTrainer with the little of its state that a step needs."""
    signal.register_estimators()
    trainer = object.__new__(OpdvrTrainer)
    trainer.options = OpdvrOptions(**{"student_logprobs": "rollout", **options})
    trainer.spec = trainer.options.method(estimator, distill)
    trainer.config = OmegaConf.create(
        {
            "algorithm": {"norm_adv_by_std_in_grpo": False, "adv_estimator": estimator},
            "reward_model": {"enable": distill},
            "data": {"reward_fn_key": "data_source"},
        }
    )
    trainer.tokenizer = Letters()
    trainer._end_tokens = lambda: {END}
    trainer.global_steps, trainer.total_training_steps, trainer.pending_records = 1, 1, []
    trainer.corrections, trainer.scorer, trainer.verifier_seconds = {}, None, 0.0
    return trainer


def scores_as_given(scores):
    """A reward manager that knows the answers: row b scores scores[b] at its last token."""

    def reward_fn(batch, return_dict):
        rewards = torch.zeros(batch.batch["responses"].shape)
        last = (batch.batch["response_mask"].sum(-1) - 1).clamp(min=0)
        rewards[torch.arange(len(scores)), last] = torch.tensor(scores, dtype=torch.float32)
        extra = {"score": list(scores), "acc": list(scores), "pred": [""] * len(scores)}
        return {"reward_tensor": rewards, "reward_extra_info": extra}

    return reward_fn


def before_update(trainer, batch, scores, teacher=-0.25):
    """fit's own order up to the update: teacher, verifier, old log-probs, verl's advantages."""
    batch.batch["teacher_log_probs"] = teacher * batch.batch["response_mask"].float()
    rewards, _ = trainer._compute_or_extract_reward(batch, reward_fn=scores_as_given(scores))
    old, _ = trainer._compute_old_log_prob(batch)
    old.batch.pop("entropys")
    batch = batch.union(old)
    batch.batch["token_level_scores"] = batch.batch["token_level_rewards"] = rewards
    return compute_advantage(
        batch,
        trainer.config.algorithm.adv_estimator,
        norm_adv_by_std_in_grpo=trainer.config.algorithm.norm_adv_by_std_in_grpo,
        config=OmegaConf.create({}),
    )


def update(trainer, batch, monkeypatch):
    """`_update_actor` without workers: (the batch that they would get, the trainer's metrics)."""
    sent = {}

    def workers(_, slim):
        sent["batch"] = slim
        return DataProto.from_single_dict(data={}, meta_info={"metrics": {}})

    monkeypatch.setattr(RayPPOTrainer, "_update_actor", workers)
    output = trainer._update_actor(batch)
    metrics = {name: value for name, (value,) in output.meta_info["metrics"].items()}
    return sent["batch"].batch, metrics


def one_step(trainer, batch, scores, monkeypatch, **teacher):
    return update(trainer, before_update(trainer, batch, scores, **teacher), monkeypatch)


class Server:
    """An inference server that answers a prompt by `answer(prompt)` and keeps what it was asked."""

    def __init__(self, answer):
        self._answer = answer
        self.asked = []
        self.generate_batch = SimpleNamespace(remote=self._generate)

    async def _generate(self, prompts, parameters, rows):
        self.asked.append((prompts, parameters))
        return part([self._answer(prompt) for prompt in prompts])


def make_worker(servers, response_length=6, max_val_response_length=None):
    """Our agent-loop worker in front of these servers; prompts of up to 4 tokens."""
    worker = object.__new__(BatchAgentLoopWorker)
    sampling = {"temperature": 0.5, "top_p": 1.0, "top_k": -1}
    worker.config = OmegaConf.create(
        {
            "actor_rollout_ref": {
                "rollout": {
                    "name": "vllm",
                    "prompt_length": 4,
                    "response_length": response_length,
                    "agent": {"default_agent_loop": "single_turn_agent"},
                    **sampling,
                    "val_kwargs": {"temperature": 0.7, "top_p": 0.95, "top_k": -1},
                },
                "model": {"lora_rank": 0},
            },
            "data": {"apply_chat_template_kwargs": {"enable_thinking": False}},
            "opdvr": {"max_val_response_length": max_val_response_length},
            "reward_model": {"enable": False},
        }
    )
    worker.processor, worker.tokenizer = None, Letters()
    worker.server_manager = type("Manager", (), {"server_handles": servers})
    return worker


def questions(texts, groups=None, validate=False):
    """What verl hands to generation: one user message a row."""
    prompts = np.empty(len(texts), dtype=object)
    prompts[:] = [[{"role": "user", "content": text}] for text in texts]
    columns = {"raw_prompt": prompts}
    if groups:
        columns["uid"] = np.array(groups, dtype=object)
    return DataProto(non_tensor_batch=columns, meta_info={"validate": validate})


def generate(worker, batch):
    return asyncio.run(worker.generate_sequences(batch))


def verls_grpo_advantages(scores):
    """verl's own estimator on one group, for comparison."""
    column = torch.tensor(scores)[:, None]
    groups = np.array(["q"] * len(scores), dtype=object)
    return core_algos.compute_grpo_outcome_advantage(column, torch.ones_like(column), groups)[0]
