"""A tiny model and batch for the engine's tests, and verl workers in this process (gloo)."""

from __future__ import annotations

import os
import socket

import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

VOCABULARY, PROMPT_WIDTH, RESPONSE_WIDTH = 61, 5, 7
PROMPT_LENGTHS = [5, 2, 3, 1, 5, 4, 2, 3]
RESPONSE_LENGTHS = [7, 1, 4, 7, 2, 5, 3, 6]


def write_model(folder, tied=True, seed=0, vocabulary=VOCABULARY):
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
    )
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config).float()
    with torch.no_grad():  # spread the logits, so that errors show
        for parameter in model.parameters():
            parameter.mul_(3.0)
    model.save_pretrained(folder)
    return str(folder)


def make_batch(seed=0, vocabulary=VOCABULARY):
    """verl's layout: left-padded prompts of unequal length, right-padded responses."""
    generator = torch.Generator().manual_seed(seed)
    rows = len(PROMPT_LENGTHS)
    ids = torch.randint(2, vocabulary, (rows, PROMPT_WIDTH + RESPONSE_WIDTH), generator=generator)
    prompt_mask = torch.arange(PROMPT_WIDTH) >= PROMPT_WIDTH - torch.tensor(PROMPT_LENGTHS)[:, None]
    response_mask = torch.arange(RESPONSE_WIDTH) < torch.tensor(RESPONSE_LENGTHS)[:, None]
    attention = torch.cat((prompt_mask, response_mask), 1).long()
    ids = ids * attention
    return {
        "input_ids": ids,
        "attention_mask": attention,
        "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
        "response_mask": response_mask.long(),
        "prompts": ids[:, :PROMPT_WIDTH],
        "responses": ids[:, PROMPT_WIDTH:],
    }


def reference_scores(folder, batch, temperature=1.0):
    """Log-probs and entropy [B,T] by transformers, one unpadded row at a time, float64 softmax."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    logprobs = torch.zeros(batch["responses"].shape)
    entropy = torch.zeros(batch["responses"].shape)
    for row, mask in enumerate(batch["attention_mask"].bool()):
        ids = batch["input_ids"][row][mask]
        length = int(batch["response_mask"][row].sum())
        with torch.no_grad():
            logits = model(input_ids=ids[None]).logits[0, -length - 1 : -1].double() / temperature
        table = logits.log_softmax(-1)
        logprobs[row, :length] = table.gather(-1, ids[-length:, None])[:, 0].float()
        entropy[row, :length] = -(table.exp() * table).sum(-1).float()
    return logprobs, entropy


def set_rank_environment(rank, world_size, port):
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK="0",
        LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        DIST_INIT_METHOD=f"tcp://127.0.0.1:{port}",
    )


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def training_worker(folder, chunk_tokens=3, forward_only=False, micro_batch=8, learning_rate=1e-2):
    """A verl TrainingWorker on our engine, initialised."""
    import verl.workers.engine_workers as verl_workers
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import (
        FSDPEngineConfig,
        FSDPOptimizerConfig,
        HFModelConfig,
        TrainingWorkerConfig,
    )

    from opdvr.integration.workers import prepare_process

    prepare_process(chunk_tokens)
    precision = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    worker = verl_workers.TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=HFModelConfig(
                path=folder,
                load_tokenizer=False,
                enable_gradient_checkpointing=False,
                use_remove_padding=True,
                override_config={"attn_implementation": "sdpa"},
            ),
            engine_config=FSDPEngineConfig(
                strategy="fsdp2",
                forward_only=forward_only,
                model_dtype="fp32",
                mixed_precision=precision,
                use_torch_compile=False,
                use_dynamic_bsz=False,
                micro_batch_size_per_gpu=micro_batch,
                infer_micro_batch_size_per_gpu=micro_batch,
            ),
            optimizer_config=FSDPOptimizerConfig(lr=learning_rate, total_training_steps=10),
            checkpoint_config=CheckpointConfig(),
        )
    )
    worker.reset()
    return worker


def actor_config(**changes):
    from verl.workers.config import FSDPActorConfig

    values = dict(strategy="fsdp2", rollout_n=2, ppo_mini_batch_size=4, use_dynamic_bsz=True)
    return FSDPActorConfig(**(values | changes))


def tensordict_of(batch, **non_tensor):
    from verl import DataProto
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import left_right_2_no_padding

    data = DataProto.from_dict(tensors={key: value.clone() for key, value in batch.items()})
    result = left_right_2_no_padding(data.to_tensordict())
    tu.assign_non_tensor(result, **non_tensor)
    return result


def score(worker, batch, temperature=1.0):
    """Log-probs and entropy [B,T] by the worker."""
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import no_padding_2_padding

    data = tensordict_of(batch, calculate_entropy=True, compute_loss=False, temperature=temperature)
    output = worker.infer_batch(data)
    return tuple(
        no_padding_2_padding(tu.get(output, key), data).float() for key in ("log_probs", "entropy")
    )


def update(worker, batch, rows_per_mini_batch=8, **non_tensor):
    """One verl mini-batch update; returns its metrics."""
    from verl.utils import tensordict_utils as tu

    data = tensordict_of(
        batch,
        temperature=1.0,
        calculate_entropy=False,
        global_batch_size=rows_per_mini_batch,
        mini_batch_size=rows_per_mini_batch,
        epochs=1,
        seed=42,
        dataloader_kwargs={"shuffle": False},
        **non_tensor,
    )
    return tu.get(worker.train_mini_batch(data), "metrics")


def full_parameters(worker):
    return {
        name: getattr(value, "full_tensor", lambda value=value: value)().detach().clone()
        for name, value in worker.engine.module.named_parameters()
    }
