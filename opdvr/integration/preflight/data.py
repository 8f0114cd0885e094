"""Both data sets, the verifier on some of their rows, and the servers that score them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from omegaconf import DictConfig

from opdvr.data.schema import DataReport, check_files, overlap_warning
from opdvr.data.table import gold_values, prompt_texts, read_table
from opdvr.data.text import OTHER_FORM, asks_for_other_form
from opdvr.data.wording import how_many
from opdvr.integration.preflight import verifier
from opdvr.integration.preflight.configuration import MINI_BATCH_SIZE
from opdvr.integration.preflight.finding import (
    ERROR,
    WARNING,
    Finding,
    Refusal,
    error,
    from_message,
    note,
)
from opdvr.integration.preflight.models import find_model, student_option
from opdvr.integration.teacher_settings import teacher_settings
from opdvr.integration.vocabulary import read_vocabulary
from opdvr.teacher.engines import Wanted
from opdvr.verifier.extract import BOXED

TRAIN_DATASET = "TRAIN_DATASET (data.train_files)"
TEST_DATASET = "TEST_DATASET (data.val_files)"


def check_data(config: DictConfig) -> Iterator[Finding]:
    """Columns, prompts and gold answers of both data sets; enough rows; what stands in both; then
    the verifier on some of the rows, and the teacher's servers, which may be chosen by source.
    """
    train, train_findings = look_at_files(config, config.data.train_files, TRAIN_DATASET)
    test, test_findings = look_at_files(config, config.data.val_files, TEST_DATASET)
    yield from train_findings + test_findings
    if train is not None and 0 < train.rows < config.data.train_batch_size:
        yield error(
            TRAIN_DATASET,
            f"has {how_many(train.rows, 'row')}, fewer than one step takes: "
            f"data.train_batch_size={config.data.train_batch_size}",
            remedy=f"lower {MINI_BATCH_SIZE}",
        )
    overlap = train and test and overlap_warning(train, TRAIN_DATASET, test)
    if overlap:
        yield from_message(WARNING, TRAIN_DATASET, overlap)
    yield from check_verifier(config, train)
    if config.reward_model.enable and config.opdvr.teacher_engine == "server":
        yield from check_teacher_servers(config, train.sources if train else set())


def look_at_files(
    config: DictConfig, files: str | list[str], option: str
) -> tuple[DataReport | None, list[Finding]]:
    """What one option's files hold, and what is wrong with them (then without a report)."""
    files = [files] if isinstance(files, str) else list(files or [])
    if not files:
        return None, [error(option, "names no file", remedy="name one, or a list of them")]
    local = [file for file in files if "://" not in file]
    findings = [
        note(f"{option}: {file}", "is remote and was not checked")
        for file in files
        if file not in local
    ]
    own = verifier.is_own(config)
    try:
        report = check_files(
            local,
            option,
            prompt_key=config.data.prompt_key,
            reward_fn_key=config.data.reward_fn_key,
            own_verifier=own,
            boxes_only=config.opdvr.answer_forms == BOXED,
        )
    except ValueError as refusal:
        return None, [*findings, _about(ERROR, option, local, str(refusal))]
    for line in report.warnings:
        found = _about(WARNING, option, local, line)
        if repr(OTHER_FORM) in line and _all_ask_for_other_form(found.where, local, config):
            found = Finding(ERROR, found.where, found.what, "every response counts as wrong")
        findings.append(found)
    return report, findings


def _about(level: str, option: str, files: list[str], message: str) -> Finding:
    """A message of `check_files` begins with the option, then the file where it is about one."""
    for file in files:
        if message.startswith(f"{option}: {file}"):
            return from_message(level, f"{option}: {file}", message)
    return from_message(level, option, message)


def _all_ask_for_other_form(where: str, files: list[str], config: DictConfig) -> bool:
    """Whether no prompt of the file that `where` ends with can be answered as it asks to be."""
    (file,) = [file for file in files if where.endswith(f": {file}")]
    key = config.data.prompt_key
    prompts = prompt_texts(read_table(file, where, [key])[0][key])
    return all(asks_for_other_form(text) for text in prompts.to_pylist())


def check_verifier(config: DictConfig, train: DataReport | None) -> Iterator[Finding]:
    """A verifier of the user's own: it loads, and accepts the gold answers of the first rows.

    The package's is not tried: `check_files` has asked it about every gold answer.
    """
    if verifier.is_own(config):
        return
    function = verifier.load(config)
    if isinstance(function, list):
        yield from function
    elif train is not None and train.files:
        rows = first_rows(config, train.files[0])
        yield from verifier.check_answers(function, rows, config.opdvr.correctness_threshold)


def first_rows(config: DictConfig, file: str) -> list[verifier.Row]:
    """The first few rows of a file that `check_files` has accepted."""
    prompt, source = config.data.prompt_key, config.data.reward_fn_key
    columns = [prompt, source, "reward_model", "extra_info"]
    table = read_table(file, file, columns)[0].slice(0, verifier.ROWS)
    extras = table["extra_info"] if "extra_info" in table.column_names else pa.nulls(len(table))
    values = zip(
        prompt_texts(table[prompt]).to_pylist(),
        table[source].to_pylist(),
        gold_values(table["reward_model"]),
        extras.to_pylist(),
        strict=True,
    )
    return [verifier.Row(number, *row) for number, row in enumerate(values)]


def check_teacher_servers(config: DictConfig, sources: set[str]) -> Iterator[Finding]:
    """Every server of TEACHER_URLS answers, with the right model, length and tokenizer."""
    from opdvr.teacher.addresses import OPTION
    from opdvr.teacher.server_check import check_servers

    folder = _student_tokenizer(config)
    top_k = config.opdvr.log_prob_top_k
    try:
        tokens = read_vocabulary(folder) if folder and top_k else None
        wanted = Wanted(top_k, vocabulary=max(tokens) + 1 if tokens else None)
        warnings = check_servers(teacher_settings(config), wanted, sources, folder)
    except ValueError as refusal:
        yield from_message(ERROR, OPTION, str(refusal))
        return
    for line in warnings:
        yield from_message(WARNING, OPTION, line)


def _student_tokenizer(config: DictConfig) -> Path | None:
    student = student_option(config)
    source = config.actor_rollout_ref.model.tokenizer_path or student.path
    try:
        return find_model(replace(student, path=str(source)))
    except Refusal:  # said by check_models already
        return None
