"""Each refusal from the smallest configuration that triggers it, by variable and option."""

import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf

from opdvr.integration.preflight.checks import check_files, check_values
from opdvr.integration.vocabulary import read_vocabulary

TOKENS = ["<pad>", "<eos>", "0", "1", "2"]


def make_model(folder, tokens=TOKENS, vocab_size=None, positions=64, added=()):
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "vocab_size": vocab_size or len(tokens) + len(added),
        "max_position_embeddings": positions,
    }
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = {
        "model": {"type": "WordLevel", "vocab": {token: i for i, token in enumerate(tokens)}},
        "added_tokens": [
            {"id": len(tokens) + i, "content": content} for i, content in enumerate(added)
        ],
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return str(folder)


@pytest.fixture
def config(tmp_path):
    """The options that the checks read, with values that pass: 8 prompts x 2 on 2 devices."""
    rows = {
        "prompt": [[{"role": "user", "content": f"{i}?"}] for i in range(8)],
        "data_source": ["demo"] * 8,
        "reward_model": [{"ground_truth": "5"}] * 8,
    }
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    held_out = [[{"role": "user", "content": f"test {i}?"}] for i in range(8)]
    pq.write_table(pa.table({**rows, "prompt": held_out}), tmp_path / "test.parquet")
    return OmegaConf.create(
        {
            "actor_rollout_ref": {
                "model": {
                    "path": make_model(tmp_path / "student"),
                    "tokenizer_path": None,
                    "use_remove_padding": True,
                    "override_config": {"attn_implementation": "flash_attention_2"},
                    "lora_rank": 0,
                    "lora_adapter_path": None,
                },
                "actor": {
                    "strategy": "fsdp2",
                    "ppo_mini_batch_size": 4,
                    "use_dynamic_bsz": True,
                    "ppo_max_token_len_per_gpu": 48,
                    "ulysses_sequence_parallel_size": 1,
                },
                "rollout": {
                    "n": 2,
                    "temperature": 1.0,
                    "top_p": 1.0,
                    "top_k": -1,
                    "tensor_model_parallel_size": 1,
                    "log_prob_use_dynamic_bsz": True,
                    "log_prob_max_token_len_per_gpu": 48,
                    "agent": {"num_workers": 2},
                    "val_kwargs": {"n": 4, "do_sample": True, "temperature": 0.7, "top_k": -1},
                },
            },
            "reward_model": {
                "enable": True,
                "use_dynamic_bsz": True,
                "forward_max_token_len_per_gpu": 48,
                "ulysses_sequence_parallel_size": 1,
                "model": {"path": make_model(tmp_path / "teacher"), "use_remove_padding": True},
            },
            "custom_reward_function": {"path": "pkg://opdvr.verifier", "name": "compute_score"},
            "data": {
                "train_files": str(tmp_path / "rows.parquet"),
                "val_files": [str(tmp_path / "test.parquet")],
                "prompt_key": "prompt",
                "reward_fn_key": "data_source",
                "train_batch_size": 8,
                "max_prompt_length": 16,
                "max_response_length": 32,
            },
            "trainer": {"n_gpus_per_node": 2, "nnodes": 1, "use_legacy_worker_impl": "disable"},
            "algorithm": {"adv_estimator": "token_reward_direct"},
            "opdvr": {
                "grpo_scaled": False,
                "max_val_response_length": None,
                "parallel_size": 1,
                "answer_forms": "boxed",
                "teacher_engine": "fsdp",
                "correctness_threshold": 0.0,
            },
        }
    )


def findings(config):
    """What the options and the files alone give: neither machine nor model is looked at."""
    values = list(check_values(config))
    in_range = not any(found.level == "error" for found in values)
    return values + list(check_files(config, in_range))


def warnings(config):
    found = findings(config)
    assert all(finding.level in ("warning", "note") for finding in found), found
    return [str(finding) for finding in found]


def refusal(config, **changes):
    for key, value in changes.items():
        OmegaConf.update(config, key.replace("__", "."), value)
    (error,) = (found for found in findings(config) if found.level == "error")
    assert "\n" not in str(error)
    return str(error)


def names(text, *parts):
    for part in parts:
        assert part in text, text
    return True


def test_good_configuration_passes_silently(config):
    assert warnings(config) == []


def test_golds_are_the_users_business_with_a_verifier_of_their_own(config, tmp_path):
    rows = pq.read_table(config.data.train_files).to_pylist()
    for row in rows:
        row["reward_model"]["ground_truth"] = ""
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "free.parquet")
    config.data.train_files = str(tmp_path / "free.parquet")
    assert "ground_truth" in refusal(config)
    (tmp_path / "mine.py").write_text("def compute_score(**given):\n    return 1.0\n")
    config.custom_reward_function.path = str(tmp_path / "mine.py")
    assert warnings(config) == []
    (tmp_path / "mine.py").write_text("def compute_score(text, gold):\n    return 1.0\n")
    assert "cannot be called with data_source" in refusal(config)


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("actor_rollout_ref.rollout.temperature", float("nan"), "TEMPERATURE"),
        ("actor_rollout_ref.rollout.n", 0, "N_RESPONSES"),
        ("actor_rollout_ref.rollout.val_kwargs.top_p", 5, "VAL_TOP_P"),
        ("actor_rollout_ref.rollout.val_kwargs.n", 0, "VAL_N"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size", 0, "MINI_BATCH_SIZE"),
        ("actor_rollout_ref.actor.optim.lr", -1.0, "ACTOR_LR"),
        ("actor_rollout_ref.actor.loss_agg_mode", "bogus", "loss_agg_mode"),
        ("opdvr.teacher_temperature", float("inf"), "TEACHER_TEMPERATURE"),
        ("opdvr.max_val_response_length", 0, "MAX_VAL_RESP_LENGTH"),
        ("data.max_response_length", -1, "MAX_RESP_LENGTH"),
        ("trainer.total_training_steps", -3, "TOTAL_STEPS"),
        ("trainer.device", "tpu", "trainer.device"),
        ("custom_reward_function.path", "/nope.py", "file not found: /nope.py"),
    ],
)
def test_a_value_outside_its_range_is_refused(config, option, value, named):
    OmegaConf.update(config, option, value, force_add=True)
    assert named in refusal(config)


def test_sequence_parallelism_needs_flash_attn(config):
    text = refusal(
        config,
        actor_rollout_ref__actor__ulysses_sequence_parallel_size=2,
        actor_rollout_ref__model__override_config={"attn_implementation": "sdpa"},
    )
    assert names(text, "PARALLEL_SIZE", "flash-attn")


# Groups


def test_grpd_needs_groups(config):
    text = refusal(config, actor_rollout_ref__rollout__n=1, opdvr__grpo_scaled=True)
    assert names(text, "N_RESPONSES (actor_rollout_ref.rollout.n): is 1")
    assert names(text, "GRPO_SCALED (opdvr.grpo_scaled)", "set N_RESPONSES to 2 or more")


@pytest.mark.parametrize("estimator", ["grpo", "token_grpo", "token_reward_direct_plus_grpo"])
def test_group_estimators_need_groups(config, estimator):
    text = refusal(config, actor_rollout_ref__rollout__n=1, algorithm__adv_estimator=estimator)
    assert names(text, "N_RESPONSES", f"ADV_ESTIMATOR={estimator} (algorithm.adv_estimator)")


def test_one_response_is_enough_for_token_rewards(config):
    config.actor_rollout_ref.rollout.n = 1
    assert warnings(config) == []


# Arithmetic


@pytest.mark.parametrize(
    "option",
    ["rollout.tensor_model_parallel_size", "actor.ulysses_sequence_parallel_size"],
)
def test_parallel_size_divides_the_devices(config, option):
    text = refusal(config, **{f"actor_rollout_ref.{option}": 3})
    assert names(text, "PARALLEL_SIZE", f"{option}=3", "2 devices")
    assert names(text, "NGPUS_PER_NODE (trainer.n_gpus_per_node)")


def test_whole_mini_batches(config):
    text = refusal(config, actor_rollout_ref__actor__ppo_mini_batch_size=3)
    assert names(text, "data.train_batch_size=8", "MINI_BATCH_SIZE", "ppo_mini_batch_size)=3")


def test_step_splits_over_ranks(config):
    # 6 x 1 responses over 4 ranks: 1.5 each.
    text = refusal(
        config,
        trainer__n_gpus_per_node=4,
        data__train_batch_size=6,
        actor_rollout_ref__actor__ppo_mini_batch_size=6,
        actor_rollout_ref__rollout__n=1,
    )
    assert names(text, "data.train_batch_size=6", "N_RESPONSES", "6 responses", "4 data-parallel")


def test_mini_batch_splits_over_ranks(config):
    # The step has 8 x 1 responses for 4 ranks, but a mini-batch of 2 does not.
    text = refusal(
        config,
        trainer__n_gpus_per_node=4,
        actor_rollout_ref__actor__ppo_mini_batch_size=2,
        actor_rollout_ref__rollout__n=1,
    )
    assert names(text, "MINI_BATCH_SIZE", "=2: times", "2 responses", "4 data-parallel ranks")


def test_sequence_parallel_ranks_share_their_rows(config):
    # 4 devices, sequence parallel 2: 2 data-parallel ranks, so a mini-batch of 2 is enough.
    config.trainer.n_gpus_per_node = 4
    config.actor_rollout_ref.actor.ppo_mini_batch_size = 2
    config.actor_rollout_ref.actor.ulysses_sequence_parallel_size = 2
    config.actor_rollout_ref.rollout.n = 1
    assert warnings(config) == []


def test_step_splits_over_agent_workers(config):
    text = refusal(config, actor_rollout_ref__rollout__agent__num_workers=3)
    assert names(text, "agent.num_workers=3", "MINI_BATCH_SIZE", "N_RESPONSES")


@pytest.mark.parametrize(
    ("option", "variable"),
    [
        ("actor_rollout_ref.actor.ppo_max_token_len_per_gpu", "PPO_MAX_TOKEN_LEN_PER_GPU"),
        (
            "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
            "LOG_PROB_MAX_TOKEN_LEN_PER_GPU",
        ),
        ("reward_model.forward_max_token_len_per_gpu", "LOG_PROB_MAX_TOKEN_LEN_PER_GPU"),
    ],
)
def test_token_budget_holds_a_row(config, option, variable):
    # 16 + 32 = 48 tokens.
    text = refusal(config, **{option: 47})
    assert names(text, f"{variable} ({option}): is 47 tokens", "a row may have 48")
    assert names(text, "MAX_PROMPT_LENGTH", "MAX_RESP_LENGTH", "set it to 48 or more")


def test_token_budget_is_shared_by_sequence_parallel_ranks(config):
    # 24 tokens on each of 2 ranks hold a row of 48; 23 do not.
    config.actor_rollout_ref.actor.ulysses_sequence_parallel_size = 2
    config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu = 24
    assert warnings(config) == []
    text = refusal(config, actor_rollout_ref__actor__ppo_max_token_len_per_gpu=23)
    assert names(text, "23 tokens on each of 2 ranks", "set it to 24 or more")


def test_token_budget_is_free_without_dynamic_batches(config):
    config.actor_rollout_ref.actor.use_dynamic_bsz = False
    config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu = 1
    assert warnings(config) == []


# Sampling


@pytest.mark.parametrize(("key", "value"), [("temperature", 0), ("do_sample", False)])
def test_greedy_validation_of_several_samples(config, key, value):
    text = refusal(config, **{f"actor_rollout_ref.rollout.val_kwargs.{key}": value})
    assert names(text, "VAL_TEMPERATURE (actor_rollout_ref.rollout.val_kwargs.temperature)")
    assert names(text, f"{key}", str(value), "VAL_N", "4 samples")
    config.actor_rollout_ref.rollout.val_kwargs.n = 1
    assert warnings(config) == []


def test_training_at_temperature_zero(config):
    text = refusal(config, actor_rollout_ref__rollout__temperature=0)
    assert names(text, "TEMPERATURE (actor_rollout_ref.rollout.temperature): is 0")


@pytest.mark.parametrize(("key", "value"), [("top_p", 0.9), ("top_k", 50)])
def test_cut_off_training_samples_are_warned_about(config, key, value):
    config.actor_rollout_ref.rollout[key] = value
    (warning,) = warnings(config)
    assert names(warning, f"actor_rollout_ref.rollout.{key}={value}", "log-probs differ")


def test_an_adapter_needs_fsdp2_and_its_rank(config):
    text = refusal(
        config,
        **{"actor_rollout_ref.model.lora_rank": 8, "actor_rollout_ref.actor.strategy": "fsdp"},
    )
    assert names(text, "LORA_RANK (actor_rollout_ref.model.lora_rank)", "use fsdp2")
    changed = {"actor_rollout_ref.model.lora_rank": -1}
    assert names(refusal(config, **changed), "LORA_RANK", "-1")
    config.actor_rollout_ref.model.lora_rank = 0
    config.actor_rollout_ref.actor.strategy = "fsdp2"
    text = refusal(config, **{"actor_rollout_ref.model.lora_adapter_path": "/adapter"})
    assert names(text, "lora_adapter_path: has no effect without LORA_RANK")


@pytest.mark.parametrize("model", ["actor_rollout_ref.model", "reward_model.model"])
def test_padded_rows_on_the_model_engine(config, model):
    text = refusal(config, **{f"{model}.use_remove_padding": False})
    assert names(text, f"{model}.use_remove_padding=False", "trainer.use_legacy_worker_impl")


def test_verls_other_workers_are_refused(config):
    text = refusal(config, **{"trainer.use_legacy_worker_impl": "enable"})
    assert names(text, "trainer.use_legacy_worker_impl: is 'enable'", "disable")


# Models

MODELS = [
    ("actor_rollout_ref.model.path", "ACTOR_MODEL_PATH", "student"),
    ("reward_model.model.path", "REWARD_MODEL_PATH", "teacher"),
]


@pytest.mark.parametrize(("option", "variable", "role"), MODELS)
@pytest.mark.parametrize("path", ["/no/such/dir", "./no-such", "../no-such", "~/no-such", "a/b/c"])
def test_missing_folder(config, option, variable, role, path):
    text = refusal(config, **{option: path})
    assert text == f"{variable} ({option}): {role} model folder not found: {path}"


@pytest.mark.parametrize(("option", "variable", "role"), MODELS)
def test_folder_without_model(config, tmp_path, option, variable, role):
    (tmp_path / "empty").mkdir()
    text = refusal(config, **{option: str(tmp_path / "empty")})
    assert names(text, f"{variable} ({option}): {role} model folder has no config.json")


def test_teacher_is_not_looked_at_without_distillation(config):
    config.reward_model.enable = False
    config.reward_model.model.path = "/no/such/dir"
    assert warnings(config) == []


@pytest.fixture
def hub_cache(monkeypatch, tmp_path):
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_hub_name_is_left_alone(config, hub_cache):
    config.actor_rollout_ref.model.path = "Qwen/Qwen3-4B"
    (warning,) = warnings(config)
    assert names(warning, "ACTOR_MODEL_PATH", "Qwen/Qwen3-4B is not in the local hub cache")


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_hub_name_without_network(config, hub_cache, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    text = refusal(config, reward_model__model__path="owner/name")
    assert names(text, "REWARD_MODEL_PATH (reward_model.model.path)", "not in the local hub cache")


def test_cached_hub_model_is_checked(config, hub_cache, monkeypatch):
    repository = hub_cache / "models--owner--name"
    make_model(repository / "snapshots" / "abc", tokens=["x"] + TOKENS[1:])
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    text = refusal(config, reward_model__model__path="owner/name")
    assert names(text, "id 0 is '<pad>' in the student and 'x' in the teacher")


# Vocabularies


def test_permuted_vocabulary_is_refused_by_the_first_difference(config, tmp_path):
    teacher = make_model(tmp_path / "other", tokens=["<pad>", "<eos>", "1", "0", "2"])
    text = refusal(config, reward_model__model__path=teacher)
    assert names(text, "REWARD_MODEL_PATH (reward_model.model.path): refused")
    assert names(text, "sampled ids mean other text in the teacher")
    assert names(text, "id 2 is '0' in the student and '1' in the teacher")


def test_token_that_the_teacher_lacks(config, tmp_path):
    config.actor_rollout_ref.model.path = make_model(tmp_path / "thinks", added=["<think>"])
    teacher = make_model(tmp_path / "wide", vocab_size=8)
    text = refusal(config, reward_model__model__path=teacher)
    assert names(text, "id 5 is '<think>' in the student and missing in the teacher")


def test_larger_teacher_vocabulary_is_fine(config, tmp_path):
    config.reward_model.model.path = make_model(tmp_path / "more", added=["<think>"], vocab_size=5)
    assert warnings(config) == []


def test_other_padding_is_a_note(config, tmp_path):
    config.reward_model.model.path = make_model(tmp_path / "padded", vocab_size=8)
    (warning,) = warnings(config)
    assert names(warning, "vocab_size is 8, the student's 5", "the 5 tokens agree")


@pytest.mark.parametrize(("option", "variable", "role"), MODELS)
def test_fewer_logits_than_tokens(config, tmp_path, option, variable, role):
    model = make_model(tmp_path / "narrow", vocab_size=4)
    text = refusal(config, **{option: model})
    assert names(text, f"{variable} ({option})", f"the {role} has vocab_size=4", "5 tokens")


def test_separate_tokenizer_of_the_student(config, tmp_path):
    other = make_model(tmp_path / "tokenizer", tokens=["<pad>", "<eos>", "7", "1", "2"])
    text = refusal(config, actor_rollout_ref__model__tokenizer_path=other)
    assert names(text, "id 2 is '7' in the student and '0' in the teacher")


def test_model_without_a_readable_tokenizer_is_a_warning(config, tmp_path):
    folder = make_model(tmp_path / "sentencepiece")
    (tmp_path / "sentencepiece" / "tokenizer.json").unlink()
    config.reward_model.model.path = folder
    (warning,) = warnings(config)
    assert names(warning, "REWARD_MODEL_PATH", "vocabularies were not compared")


def test_damaged_files_are_named(config, tmp_path):
    (tmp_path / "teacher" / "config.json").write_text("{")
    assert names(refusal(config), "config.json is not valid JSON")


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.json", "[]", "holds no JSON object"),
        ("config.json", '{"vocab_size": "3"}', "vocab_size is '3', no whole number"),
        ("tokenizer.json", "{}", "is no tokenizer"),
    ],
)
def test_files_of_another_shape_are_named(config, tmp_path, file, content, said):
    (tmp_path / "student" / file).write_text(content)
    errors = [str(found) for found in findings(config) if found.level == "error"]
    assert errors and all(names(error, file, said) for error in errors)


def test_no_file_at_all(config):
    assert names(refusal(config, data__train_files=[]), "TRAIN_DATASET", "names no file")


def test_validation_samples_of_the_likeliest_token_are_copies(config):
    found = refusal(config, actor_rollout_ref__rollout__val_kwargs__top_k=1)
    assert names(found, "VAL_N", "top_k is 1", "copies")


def test_every_kind_of_vocabulary_file(tmp_path):
    unigram = {"model": {"type": "Unigram", "vocab": [["a", -1.0], ["b", -2.0]]}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(unigram))
    assert read_vocabulary(tmp_path) == {0: "a", 1: "b"}
    decoder = {"added_tokens_decoder": {"3": {"content": "<think>"}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(decoder))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"c": 2}))
    assert read_vocabulary(tmp_path) == {0: "a", 1: "b", 2: "c", 3: "<think>"}
    (tmp_path / "tokenizer.json").unlink()
    assert read_vocabulary(tmp_path) is None
    (tmp_path / "vocab.json").write_text(json.dumps({"z": 0}))
    assert read_vocabulary(tmp_path) == {0: "z", 2: "c", 3: "<think>"}


def test_same_map_as_the_tokenizer_library(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({t: i for i, t in enumerate(TOKENS)}, unk_token="<pad>")
    )
    tokenizer.add_special_tokens(["<think>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    expected = {i: token for token, i in tokenizer.get_vocab(with_added_tokens=True).items()}
    assert len(expected) == 6 and read_vocabulary(tmp_path) == expected


# Context


@pytest.mark.parametrize(("option", "variable", "role"), MODELS)
def test_short_context_is_warned_about(config, tmp_path, option, variable, role):
    OmegaConf.update(config, option, make_model(tmp_path / "short", positions=47))
    (warning,) = warnings(config)
    assert names(warning, variable, "max_position_embeddings is 47", "MAX_RESP_LENGTH", "is 48")
    OmegaConf.update(config, option, make_model(tmp_path / "just enough", positions=48))
    assert warnings(config) == []


def test_long_validation_is_warned_about_for_the_student_only(config):
    config.opdvr.max_val_response_length = 49  # 16 + 49 = 65, one over the 64 of both models
    (warning,) = warnings(config)
    assert names(warning, "ACTOR_MODEL_PATH", "MAX_VAL_RESP_LENGTH", "is 65")


# Data


@pytest.mark.parametrize(
    ("option", "variable"),
    [("data.train_files", "TRAIN_DATASET"), ("data.val_files", "TEST_DATASET")],
)
@pytest.mark.parametrize("wrap", [str, lambda path: [path]])
def test_data_sets(config, tmp_path, option, variable, wrap):
    pq.write_table(pa.table({"problem": ["q"]}), tmp_path / "raw.parquet")
    text = refusal(config, **{option: wrap(str(tmp_path / "raw.parquet"))})
    assert names(text, f"{variable} ({option})", "raw.parquet: lacks the columns")


def test_fewer_rows_than_a_step(config):
    text = refusal(config, data__train_batch_size=16)
    assert names(text, "TRAIN_DATASET", "8 rows", "data.train_batch_size=16", "MINI_BATCH_SIZE")


def test_training_on_test_problems_is_warned_about(config):
    config.data.val_files = config.data.train_files
    (warning,) = warnings(config)
    assert names(warning, "TRAIN_DATASET (data.train_files): 8 of 8 distinct prompts")
    assert names(warning, f"opdvr data check {config.data.train_files}")


def test_prompts_for_another_form_are_fine_where_it_counts(config, tmp_path):
    rows = pq.read_table(config.data.train_files).to_pylist()
    config.data.train_files = str(tmp_path / "form.parquet")
    for row in rows:
        row["prompt"][0]["content"] += " Answer: $Answer"
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "form.parquet")
        if row is not rows[-1]:  # one row at least can be right
            (warning,) = warnings(config)
            assert names(warning, "TRAIN_DATASET", "of 8 prompts ask for 'Answer:'")
    text = refusal(config)
    assert names(text, "TRAIN_DATASET", "8 of 8 prompts ask for 'Answer:'", "ANSWER_FORMS=any")
    assert names(text, "every response counts as wrong")
    config.opdvr.answer_forms = "any"
    assert warnings(config) == []


def test_missing_default_files_name_what_makes_them(config):
    text = refusal(config, data__train_files="datasets/no/deepmath-level6-train.parquet")
    assert names(text, "data file not found", "python -m opdvr data prepare deepmath")


def test_nothing_heavy_is_imported():
    heavy = ("torch", "transformers", "verl", "vllm", "ray", "sympy", "huggingface_hub")
    code = (
        f"import sys, opdvr.integration.preflight; print([m for m in {heavy} if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_the_composed_configuration_has_every_option_that_is_read(config, tmp_path):
    pytest.importorskip("verl")
    from opdvr.integration.config import compose

    composed = compose(
        [
            "platform=cpu",
            "task=demo",
            f"actor_rollout_ref.model.path={tmp_path / 'student'}",
            f"reward_model.model.path={tmp_path / 'teacher'}",
            f"data.train_files={tmp_path / 'rows.parquet'}",
            f"data.val_files={tmp_path / 'test.parquet'}",
            "actor_rollout_ref.actor.ppo_mini_batch_size=8",
        ]
    )
    assert warnings(composed) == []
