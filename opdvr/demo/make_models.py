"""Train the embedded task's small models from nothing and measure them.

    python -m opdvr.demo.make_models --output DIR [--only NAME]

Takes a few minutes on one CPU core. The same machine and library versions give the same weights.
"""

import argparse
import json
import random
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from opdvr.demo.evaluate import evaluate
from opdvr.demo.task import CAREFUL, Habits, Problem, problems, solve, write_parquet
from opdvr.demo.tokenizer import (
    CONTEXT_TOKENS,
    EOS_ID,
    PAD_ID,
    TOKENS,
    build_tokenizer,
    save_tokenizer,
)

CARD_FILE = "models.json"
_MEASURED_SAMPLES = 8
_IGNORED_LABEL = -100
# Half precision on disk halves what a clone has to fetch; accuracies are measured after reloading.
_STORED_DTYPE = torch.float16


@dataclass(frozen=True)
class Recipe:
    """How one model is made: what it stands for, its width, and the habits it learns to imitate.

    The first `careful_steps` of `steps` imitate careful solutions in the same style: who has learnt
    to calculate before becoming careless still knows better, which is what training can bring back.
    """

    role: str
    hidden: int
    habits: Habits
    steps: int
    seed: int
    careful_steps: int = 0
    batch: int = 48
    lr: float = 4e-3


_CARELESS = {"drop_carry": 0.33, "slip": 0.07}
RECIPES = {
    "student": Recipe(
        role="student: knows the arithmetic but is careless, drops carries and slips",
        hidden=96,
        habits=Habits(**_CARELESS),
        steps=1400,
        careful_steps=1000,
        seed=1,
    ),
    "teacher-faulty": Recipe(
        role="teacher: careful, but always forgets the carry when the factor is 7 or 9",
        hidden=128,
        habits=Habits(drop_carry=1.0, forgetful_factors=(7, 9)),
        steps=1000,
        seed=2,
    ),
    "teacher-good": Recipe(role="teacher: careful", hidden=128, habits=CAREFUL, steps=1200, seed=3),
    "student-other-style": Recipe(
        role="student: as careless, and writes each step factor first, as neither teacher does",
        hidden=96,
        habits=Habits(**_CARELESS, style="factor-first"),
        steps=1400,
        careful_steps=1000,
        seed=4,
    ),
    "student-other-pretraining": Recipe(
        role="student of another pre-training: as careless, in a notation of its own, of which it "
        "has seen much and of the teachers' nothing",
        hidden=96,
        habits=Habits(**_CARELESS, style="tuples"),
        steps=3000,
        careful_steps=2200,
        seed=5,
    ),
}


def _new_model(recipe: Recipe) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=len(TOKENS),
        hidden_size=recipe.hidden,
        intermediate_size=2 * recipe.hidden,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config).float()


def encode_batch(
    tokenizer: PreTrainedTokenizerFast, chosen: Sequence[Problem], solutions: Sequence[str]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [B,T] int64, padded on the right, and labels [B,T]: -100 on prompt and padding.

    Labels are not shifted: labels[b,t] is the token at t where it belongs to the response.
    """
    rows, labels = [], []
    for problem, solution in zip(chosen, solutions, strict=True):
        question = [{"role": "user", "content": problem.prompt}]
        prompt_ids = tokenizer.apply_chat_template(question, add_generation_prompt=True)
        response_ids = tokenizer(solution, add_special_tokens=False).input_ids + [EOS_ID]
        rows.append(torch.tensor(prompt_ids + response_ids))
        labels.append(torch.tensor([_IGNORED_LABEL] * len(prompt_ids) + response_ids))
    return (
        torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD_ID),
        torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=_IGNORED_LABEL),
    )


def train(recipe: Recipe) -> Qwen3ForCausalLM:
    """Supervised training on fresh solutions to training problems; returns the float32 model.

    AdamW, linear warm-up over 100 steps, then linear decay to a twentieth of the peak rate.
    """
    torch.manual_seed(recipe.seed)
    rng = random.Random(recipe.seed)
    tokenizer, model = build_tokenizer(), _new_model(recipe)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.lr, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / 100) * max(0.05, 1 - step / recipe.steps)
    )
    model.train()
    careful = Habits(style=recipe.habits.style)
    for step in range(recipe.steps):
        habits = careful if step < recipe.careful_steps else recipe.habits
        chosen = rng.choices(problems("train"), k=recipe.batch)
        solutions = [solve(problem, habits, rng) for problem in chosen]
        ids, labels = encode_batch(tokenizer, chosen, solutions)
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(
            logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=_IGNORED_LABEL
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


def save(model: Qwen3ForCausalLM, folder: Path) -> None:
    """Write weights (float16), configuration and tokenizer; the folder loads as float32."""
    model.generation_config = GenerationConfig(eos_token_id=EOS_ID, pad_token_id=PAD_ID)
    model.to(_STORED_DTYPE).save_pretrained(folder)
    # safetensors makes the file private; a checkout may belong to another user than the runner.
    (folder / "model.safetensors").chmod(0o644)
    save_tokenizer(folder)
    # The dtype to compute in, for loaders that follow the configuration rather than the file.
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {"dtype": "float32", "torch_dtype": "float32"}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def card(name: str, folder: Path, held_out: Path) -> dict[str, object]:
    """What `folder`'s model is, how it was made, and its accuracy on `held_out` once reloaded."""
    recipe = asdict(RECIPES[name])
    measured = evaluate(folder, held_out, n_samples=_MEASURED_SAMPLES, temperature=1.0, seed=0)
    accuracy = ("sampled_accuracy", "sampled_stderr", "greedy_accuracy")
    setting = ("problems", "n_samples", "temperature", "seed")
    return {
        "role": recipe.pop("role"),
        "parameters": AutoModelForCausalLM.from_pretrained(folder).num_parameters(),
        "held_out": {key: round(measured[key], 4) for key in accuracy}
        | {key: measured[key] for key in setting},
        "recipe": recipe,
        "command": f"python -m opdvr.demo.make_models --output DIR --only {name}",
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: make all models, or `--only` one, and record them in models.json."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--output", required=True, type=Path, help="folder for the model folders")
    parser.add_argument("--only", choices=sorted(RECIPES), help="make this model alone")
    options = parser.parse_args(arguments)
    # One thread: the order of floating-point sums, so the weights, would vary with more.
    torch.set_num_threads(1)
    options.output.mkdir(parents=True, exist_ok=True)
    card_path = options.output / CARD_FILE
    with tempfile.TemporaryDirectory() as data_folder:
        _, held_out = write_parquet(data_folder)
        for name in [options.only] if options.only else RECIPES:
            folder = options.output / name
            save(train(RECIPES[name]), folder)
            entry = card(name, folder, held_out)
            print(name, json.dumps(entry["held_out"]), flush=True)
            # Read again each time, since another run may have added its own model meanwhile.
            cards = json.loads(card_path.read_text()) if card_path.exists() else {}
            card_path.write_text(json.dumps(cards | {name: entry}, indent=2) + "\n")


if __name__ == "__main__":
    main()
