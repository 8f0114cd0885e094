"""Both models' tokens before a run: end tokens, special tokens, prompts, dtypes, own code.

Reads configurations and tokenizers, no weights. transformers is imported here and not above.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig

from opdvr.diagnose.tokenizers import end_ids, special_tokens
from opdvr.eval.models import Model
from opdvr.integration.preflight.finding import Finding, error, note, warning
from opdvr.integration.preflight.sides import (
    STUDENT,
    TEACHER,
    Side,
    find_sides,
    first_prompts,
    load_tokenizer,
    stored_dtype,
)
from opdvr.integration.preflight.templates import (
    check_prompt_lengths,
    check_templates,
    template_options,
    tokenised,
)
from opdvr.integration.teacher_settings import engine_kind
from opdvr.integration.vocabulary import read_json

# Training rows whose prompts are tokenised.
MEASURED_ROWS = 64
MODEL_DTYPE = "MODEL_DTYPE (opdvr.model_dtype)"
TEACHER_TEMPERATURE = "TEACHER_TEMPERATURE (opdvr.teacher_temperature)"
_UNLOOKED = "its end tokens, chat template and dtype were not looked at, and nothing was measured"


def check_tokens(config: DictConfig) -> list[Finding]:
    """What tokenizers and configurations of the two folders say about the run; about 3 s.

    A model with no local folder gives one note. That ids mean the same to both is checked elsewhere
    (`models.check_vocabularies`).
    """
    sides, findings = find_sides(config, _UNLOOKED)
    findings += check_temperatures(config)
    tokenizers = {}
    for role, side in sides.items():
        findings += check_dtype(config, side)
        code = list(check_code(config, side))
        findings += code
        if any(found.level == "error" for found in code):
            continue
        tokenizer, problem = load_tokenizer(side)
        if problem is None:
            tokenizers[role] = tokenizer
        else:
            findings.append(problem)
    if STUDENT not in tokenizers:
        return findings
    findings += check_ends(sides, tokenizers)
    prompts = first_prompts(config, MEASURED_ROWS)
    findings += check_templates(config, sides, tokenizers, prompts)
    if tokenizers[STUDENT].chat_template is not None:
        ids = tokenised(tokenizers[STUDENT], prompts, template_options(config))
        lengths = [(row, len(tokens)) for row, tokens in ids]
        findings += check_prompt_lengths(config, lengths)
    return findings


def check_temperatures(config: DictConfig) -> Iterator[Finding]:
    """One temperature for the student's samples and another for the teacher's logits."""
    sampling, teacher = (
        config.actor_rollout_ref.rollout.temperature,
        config.opdvr.teacher_temperature,
    )
    if config.reward_model.enable and sampling != teacher:
        remedy = f"set TEACHER_TEMPERATURE={sampling:g}"
        if not engine_kind(config).any_temperature:  # such an engine knows 1 alone
            remedy = f"set TEMPERATURE={teacher:g}"
        yield warning(
            TEACHER_TEMPERATURE,
            f"is {teacher:g}, but TEMPERATURE (actor_rollout_ref.rollout.temperature) is "
            f"{sampling:g}",
            "the log-ratio compares two distributions of different sharpness, and is no 0 even "
            "where the models are equal",
            f"{remedy}, unless a sharper or softer teacher is meant",
        )


def check_dtype(config: DictConfig, side: Side) -> Iterator[Finding]:
    """Weights in another dtype than the run computes in, where that costs digits or memory."""
    stored, computed = stored_dtype(side.folder), config.opdvr.model_dtype
    what = f"is {computed}, the {side.role}'s weights ({side.option}) are {stored}"
    if computed == "bfloat16" and config.trainer.device == "cpu" and side.role == STUDENT:
        why = "a CPU computes bfloat16 slowly, and vLLM's and the trainer's log-probs drift apart"
        yield warning(MODEL_DTYPE, "is bfloat16 on a CPU", why, "set MODEL_DTYPE=float32")
    if computed == "bfloat16" and stored == "float16":
        why = (
            "of float16's 11 significant bits bfloat16 keeps 8: log-probs are not the saved model's"
        )
        yield warning(MODEL_DTYPE, what, why, "use MODEL_DTYPE=float32 if the memory is there")
    elif computed == "bfloat16" and stored == "float32" and side.role == TEACHER:
        yield note(MODEL_DTYPE, what, "the teacher is rounded to bfloat16 when it is loaded")
    elif computed == "float32" and stored in ("float16", "bfloat16"):
        if config.trainer.device != "cpu":
            why = "it takes twice the memory and more than twice the time, for no digit more"
            yield note(MODEL_DTYPE, what, why, "MODEL_DTYPE=bfloat16 is the default on GPUs")


def check_code(config: DictConfig, side: Side) -> Iterator[Finding]:
    """Architectures that transformers does not know, and code that a folder brings."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    settings = read_json(side.folder / "config.json")
    kind, has_code = settings.get("model_type"), "auto_map" in settings
    where = side.trust_option
    brings = f"the {side.role}'s folder ({side.option}) brings its own code (auto_map)"
    if kind not in CONFIG_MAPPING_NAMES:
        name = f"transformers {transformers.__version__} does not know model_type {kind!r}"
        if not has_code:
            remedy = "take a model of a known kind, or an environment whose transformers knows it"
            yield error(str(side.option), name, "the model does not load", remedy)
        elif not side.trust:
            yield error(
                where,
                f"is False, but {name}, and {brings}",
                "the model does not load",
                f"read that code, then set {side.trust_option}=True",
            )
    elif has_code and not side.trust:
        yield note(where, f"is False: {brings}, which is not run; transformers' own {kind} is used")
    if side.trust and has_code:
        why = "whatever it says runs in this account, on every worker"
        yield warning(where, f"is True, and {brings}", why, "read that code before the first run")
    yield from _check_tokenizer_code(config, side)


def _check_tokenizer_code(config: DictConfig, side: Side) -> Iterator[Finding]:
    """The driver loads the student's tokenizer by another option than the workers its model."""
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

    path = side.tokenizer_folder / "tokenizer_config.json"
    settings = read_json(path) if path.is_file() else {}
    name = settings.get("tokenizer_class")
    if side.role != STUDENT or "auto_map" not in settings or not name:
        return
    if tokenizer_class_from_name(name) is not None:
        return
    for option, trusted in (
        ("data.trust_remote_code", bool(config.data.get("trust_remote_code"))),
        (side.trust_option, side.trust),
    ):
        if not trusted:
            what = f"is False, but the student's {name} is code in {side.tokenizer_folder}"
            remedy = f"read that code, then set {option}=True"
            yield error(option, what, "the tokenizer does not load", remedy)


def check_ends(sides: dict[str, Side], tokenizers: dict[str, Any]) -> Iterator[Finding]:
    """Where a response ends for the student, and whether the teacher ends it there."""
    student = sides[STUDENT]
    ours = end_ids(Model(STUDENT, student.folder), tokenizers[STUDENT])
    if not ours:
        yield error(
            str(student.option),
            "the student has no end token (no eos_token in the tokenizer, no eos_token_id in "
            "generation_config.json)",
            "every response runs to MAX_RESP_LENGTH",
            f"write eos_token_id into {student.folder / 'generation_config.json'}",
        )
        return
    if TEACHER not in tokenizers:
        return
    teacher, tokenizer = sides[TEACHER], tokenizers[TEACHER]
    eos = tokenizer.eos_token_id
    theirs = end_ids(Model(TEACHER, teacher.folder), tokenizer)
    others = [end for end in theirs if end not in ours]
    if eos is not None and eos in others:
        yield _other_end(sides, tokenizers, ours, eos)
    elif others:
        yield note(
            str(teacher.option),
            f"the teacher's generation_config.json also ends at "
            f"{_named(tokenizers[STUDENT], others)}, where the student goes on",
            "harmless as long as the teacher does not use them where the student ends",
        )
    names = ["bos_token", "pad_token"]
    if eos not in others:  # else it has been said
        names.append("eos_token")
    yield from _special_tokens(sides, tokenizers, names)


def _other_end(
    sides: dict[str, Side], tokenizers: dict[str, Any], ours: list[int], eos: int
) -> Finding:
    """An instruct teacher over a base student, most often."""
    tokenizer = tokenizers[STUDENT]
    file = sides[STUDENT].folder / "generation_config.json"
    wanted = json.dumps([*ours, eos])
    change = f'set "eos_token_id": {wanted} in {file}'
    if not file.is_file():
        change = f'write {{"eos_token_id": {wanted}}} into {file}, which is missing'
    return error(
        str(sides[TEACHER].option),
        f"the teacher ends a response with {_named(tokenizers[TEACHER], [eos])}, at which the "
        f"student does not stop (it stops at {_named(tokenizer, ours)})",
        "training teaches the student to write that token and go on: responses run to the length "
        "limit within dozens of steps",
        f"{change}, or take a teacher that ends as the student does",
    )


def _special_tokens(
    sides: dict[str, Side], tokenizers: dict[str, Any], names: list[str]
) -> Iterator[Finding]:
    ours, theirs = (
        special_tokens(Model(role, sides[role].folder), tokenizers[role])
        for role in (STUDENT, TEACHER)
    )
    different = [
        f"{name} {ours[name]!r} in the student and {theirs[name]!r} in the teacher"
        for name in names
        if ours[name] != theirs[name]
    ]
    if different:
        yield note(
            str(sides[TEACHER].option),
            f"special tokens differ: {'; '.join(different)}",
            "no loss by itself: the teacher scores the student's ids, and masks come from lengths",
        )


def _named(tokenizer: Any, ids: list[int]) -> str:  # noqa: ANN401
    return ", ".join(f"{token} ({tokenizer.convert_ids_to_tokens(token)})" for token in ids)
