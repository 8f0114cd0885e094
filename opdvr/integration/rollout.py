"""Generation through verl's agent-loop seam, a batch at a time instead of one RPC a sample.

Same servers and samples as verl's single-turn agent loop; anything else (tools, several turns,
images, LoRA requests) goes through verl's own code.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import ray
import torch
from tensordict import TensorDict
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopManager, AgentLoopWorkerBase
from verl.workers.rollout.replica import get_rollout_replica_class

from opdvr.integration.feed import TEACHER_KEYS, TEACHER_PLACES
from opdvr.integration.platform import import_verl_without_the_harmony_vocabulary
from opdvr.integration.signal import sample_names
from opdvr.integration.teacher_settings import has_own_engine
from opdvr.integration.terminal import stage

SINGLE_TURN = "single_turn_agent"
FINISH_LENGTH = 1  # finish reason of a response cut at its limit


class BatchAgentLoopWorker(AgentLoopWorkerBase):
    """verl's agent-loop worker; single-turn text batches take the short way."""

    async def generate_sequences(self, batch: DataProto) -> DataProto:
        """verl's output contract: prompts [B,P] left-padded, responses [B,T] right-padded, masks,
        position_ids, rollout_log_probs [B,T] (nats, 0 at padding), and `truncated` [B] bool.
        """
        rollout = self.config.actor_rollout_ref.rollout
        if (
            self.processor is not None
            or rollout.agent.default_agent_loop != SINGLE_TURN
            or "agent_name" in batch.non_tensor_batch
            or self.config.actor_rollout_ref.model.lora_rank > 0
            or rollout.name != "vllm"
        ):
            return await super().generate_sequences(batch)
        validate = bool(batch.meta_info.get("validate", False))
        response_width = self._response_width(validate)
        prompts = self._prompt_ids(batch)
        servers = self.server_manager.server_handles
        chunks = np.array_split(np.arange(len(prompts)), len(servers))
        parameters = self._sampling_parameters(validate, response_width)
        rows = None
        if not validate and has_own_engine(self.config):
            rows = _names(batch, self.config.data.reward_fn_key)
        parts = await asyncio.gather(
            *(
                server.generate_batch.remote(
                    [prompts[i] for i in chunk], parameters, rows and [rows[i] for i in chunk]
                )
                for server, chunk in zip(servers, chunks, strict=True)
                if len(chunk)
            )
        )
        return _assemble(
            prompts, parts, rollout.prompt_length, response_width, self.tokenizer.pad_token_id or 0
        )

    def _response_width(self, validate: bool) -> int:
        width = self.config.actor_rollout_ref.rollout.response_length
        limit = self.config.opdvr.max_val_response_length
        return int(limit) if validate and limit else int(width)

    def _sampling_parameters(self, validate: bool, max_tokens: int) -> dict[str, Any]:
        rollout = self.config.actor_rollout_ref.rollout
        source = rollout.val_kwargs if validate else rollout
        return {
            "temperature": source.temperature,
            "top_p": source.top_p,
            "top_k": source.top_k,
            "max_tokens": max_tokens,
        }

    def _prompt_ids(self, batch: DataProto) -> list[list[int]]:
        """Token ids of each row's prompt, each distinct prompt tokenised once."""
        limit = self.config.actor_rollout_ref.rollout.prompt_length
        template = self.config.data.get("apply_chat_template_kwargs", {})
        keys = batch.non_tensor_batch.get("uid", np.arange(len(batch)))
        known: dict[Any, list[int]] = {}
        for key, messages in zip(keys, batch.non_tensor_batch["raw_prompt"], strict=True):
            if key in known:
                continue
            ids = self.tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, tokenize=True, **template
            )
            if len(ids) > limit:
                raise ValueError(
                    f"a prompt has {len(ids)} tokens, over data.max_prompt_length={limit} "
                    f"(MAX_PROMPT_LENGTH): {str(messages)[:200]}"
                )
            known[key] = ids
        return [known[key] for key in keys]


def _names(batch: DataProto, source_key: str) -> list[tuple[str, str]]:
    """(data source, what messages call it) of each row."""
    sources = batch.non_tensor_batch[source_key]
    names = sample_names(batch)
    return [(str(source), name) for source, name in zip(sources, names, strict=True)]


def _assemble(
    prompts: list[list[int]],
    parts: list[dict[str, np.ndarray]],
    prompt_width: int,
    response_width: int,
    pad_id: int,
) -> DataProto:
    """Pad packed server results into verl's batch."""
    rows = len(prompts)
    lengths = np.concatenate([part["lengths"] for part in parts])
    ids = np.concatenate([part["token_ids"] for part in parts])
    logprobs = np.concatenate([part["logprobs"] for part in parts])
    if len(ids) != lengths.sum() or len(logprobs) != lengths.sum() or len(lengths) != rows:
        raise RuntimeError(
            f"the inference engine returned {len(ids)} tokens and {len(logprobs)} log-probs for "
            f"{len(lengths)} of {rows} responses of {lengths.sum()} tokens in all"
        )
    response_mask = np.arange(response_width) < lengths[:, None]
    responses = np.full((rows, response_width), pad_id, dtype=np.int64)
    responses[response_mask] = ids
    rollout_logprobs = np.zeros((rows, response_width), dtype=np.float32)
    rollout_logprobs[response_mask] = logprobs

    prompt_lengths = np.array([len(prompt) for prompt in prompts])
    prompt_mask = np.arange(prompt_width) >= prompt_width - prompt_lengths[:, None]
    prompt_ids = np.full((rows, prompt_width), pad_id, dtype=np.int64)
    prompt_ids[prompt_mask] = np.concatenate([np.asarray(prompt) for prompt in prompts])

    attention_mask = np.concatenate((prompt_mask, response_mask), axis=1).astype(np.int64)
    position_ids = np.clip(attention_mask.cumsum(axis=1) - 1, 0, None)
    durations = np.concatenate([part["seconds"] for part in parts])
    tensors = {
        "prompts": prompt_ids,
        "responses": responses,
        "response_mask": response_mask.astype(np.int64),
        "input_ids": np.concatenate((prompt_ids, responses), axis=1),
        "attention_mask": attention_mask,
        "position_ids": position_ids,
        "rollout_log_probs": rollout_logprobs,
        "truncated": np.concatenate([part["finish"] for part in parts]) == FINISH_LENGTH,
    }
    # only where responses went to a teacher
    handed_over = [key for key in (TEACHER_KEYS, TEACHER_PLACES) if key in parts[0]]
    tensors |= {key: np.concatenate([part[key] for part in parts]) for key in handed_over}
    return DataProto(
        batch=TensorDict({k: torch.from_numpy(v) for k, v in tensors.items()}, batch_size=rows),
        non_tensor_batch={"__num_turns__": np.full(rows, 2, dtype=np.int32)},
        meta_info={
            "metrics": [{"generate_sequences": float(s), "tool_calls": 0.0} for s in durations],
            "reward_extra_keys": [],
        },
    )


class _LocalWorker:
    """An agent-loop worker in this process, behind the part of Ray's actor interface in use."""

    def __init__(self, worker: BatchAgentLoopWorker):
        self._worker = worker
        self.generate_sequences = self

    def remote(self, batch: DataProto) -> ray.ObjectRef:
        return ray.put(asyncio.run(self._worker.generate_sequences(batch)))


class OpdvrAgentLoopManager(AgentLoopManager):
    """verl's manager with batch servers and workers; the teacher is not its reward model."""

    def __init__(self, config: Any, worker_group: Any = None, rm_resource_pool: Any = None):  # noqa: ANN401
        stage("starting the inference engine")
        import_verl_without_the_harmony_vocabulary()
        if config.actor_rollout_ref.rollout.name == "vllm":
            from opdvr.integration.vllm_server import BatchReplica

            self.rollout_replica_class = BatchReplica
        else:
            self.rollout_replica_class = get_rollout_replica_class(
                config.actor_rollout_ref.rollout.name
            )
        self.agent_loop_workers_class = ray.remote(BatchAgentLoopWorker)
        config = config.copy()
        # verl would start a reward model's server there; the teacher's workers have the pool
        config.reward_model.enable_resource_pool = False
        # the servers get merged weights, and need no adapter of their own
        config.actor_rollout_ref.model.lora_rank = 0
        config.actor_rollout_ref.model.lora_adapter_path = None
        super().__init__(config, worker_group)

    def _init_agent_loop_workers(self) -> None:
        if not self.config.opdvr.in_process_rollout:
            super()._init_agent_loop_workers()
            return
        worker = BatchAgentLoopWorker(self.config, self.server_handles, self.reward_router_address)
        self.agent_loop_workers = [_LocalWorker(worker)]
