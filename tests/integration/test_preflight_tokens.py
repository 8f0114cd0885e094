"""Each finding about tokens from a copy of the embedded pair with one thing changed."""

import pytest

pytest.importorskip("verl")
torch = pytest.importorskip("torch")

from preflight_pair import (  # noqa: E402
    by_level,
    change_json,
    make_config,
)
from safetensors.torch import save_file  # noqa: E402

from opdvr.integration.preflight.tokens import check_tokens  # noqa: E402

UNK = 2  # <unk> of the embedded tokenizer, whose <eos> is 1
TEMPLATE = (
    "{% for message in messages %}<|user|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>THOUGHT{% endif %}"
)
NO_THINKING = "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"


@pytest.fixture
def pair(tmp_path):
    """Both folders; `look` composes with overrides and checks."""
    make_config(tmp_path)
    return tmp_path


def look(pair, *overrides, **more):
    return check_tokens(make_config(pair, *overrides, **more))


def set_end(folder, token, token_id):
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        change_json(folder / name, eos_token=token)
    change_json(folder / "generation_config.json", eos_token_id=token_id)


def set_template(folder, text):
    (folder / "chat_template.jinja").write_text(text)


def test_the_embedded_pair_gives_nothing(pair):
    assert look(pair) == []


# End tokens


def test_a_teacher_that_ends_where_the_student_goes_on(pair):
    set_end(pair / "teacher", "<unk>", UNK)
    (found,) = look(pair)
    line = str(found)
    assert found.level == "error"
    assert line.startswith("REWARD_MODEL_PATH (reward_model.model.path): the teacher ends")
    assert "2 (<unk>)" in line and "it stops at 1 (<eos>)" in line
    file = pair / "student" / "generation_config.json"
    assert f'set "eos_token_id": [1, 2] in {file}' in line
    # The remedy, done, is one.
    change_json(file, eos_token_id=[1, UNK])
    assert by_level(look(pair), "error") == []


def test_the_remedy_writes_a_missing_file(pair):
    set_end(pair / "teacher", "<unk>", UNK)
    (pair / "student" / "generation_config.json").unlink()
    (line,) = by_level(look(pair), "error")
    assert 'write {"eos_token_id": [1, 2]} into' in line and "which is missing" in line


def test_a_student_that_knows_more_ends_is_fine(pair):
    change_json(pair / "student" / "generation_config.json", eos_token_id=[1, UNK])
    assert look(pair) == []


def test_a_further_end_of_the_teachers_is_a_note(pair):
    change_json(pair / "teacher" / "generation_config.json", eos_token_id=[1, UNK])
    (found,) = look(pair)
    assert found.level == "note" and "also ends at 2 (<unk>)" in str(found)


def test_a_student_without_any_end(pair):
    set_end(pair / "student", None, None)
    (found,) = look(pair)
    assert found.level == "error" and "the student has no end token" in str(found)


def test_padding_that_is_the_end_is_fine(pair):
    for role in ("student", "teacher"):
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            change_json(pair / role / name, pad_token="<eos>")
    assert look(pair) == []


def test_other_special_tokens_are_a_note(pair):
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        change_json(pair / "teacher" / name, pad_token="<unk>", bos_token="<|user|>")
    (found,) = look(pair)
    assert found.level == "note"
    assert "pad_token '<pad>' in the student and '<unk>' in the teacher" in str(found)
    assert "bos_token None in the student and '<|user|>'" in str(found)
    assert "eos_token" not in str(found)


# Templates


def test_missing_templates(pair):
    (pair / "teacher" / "chat_template.jinja").unlink()
    (found,) = look(pair)
    assert found.level == "warning" and "the teacher's tokenizer has no chat template" in str(found)
    (pair / "student" / "chat_template.jinja").unlink()
    (line,) = by_level(look(pair), "error")
    assert line.startswith("ACTOR_MODEL_PATH") and "the student's tokenizer has no chat" in line
    given = f"actor_rollout_ref.model.custom_chat_template='{'{{ messages[0].content }}'}'"
    assert by_level(look(pair, given), "error") == []


def test_templates_that_differ(pair):
    set_template(pair / "teacher", TEMPLATE.replace("<|user|>", "User: ").replace("THOUGHT", ""))
    (found,) = look(pair)
    assert found.level == "warning"
    assert "render training row 0 otherwise: from character 0" in str(found)
    assert "student '<|user|>347*8+9=?" in str(found) and "teacher 'User: 347*8" in str(found)
    assert "own token ids" in str(found)


def test_thoughts_have_their_own_words(pair):
    for role, thought in (("student", NO_THINKING), ("teacher", "")):
        set_template(pair / role, TEMPLATE.replace("THOUGHT", thought))
    (found,) = look(pair)
    assert found.level == "warning"
    assert "student's prompt closes an empty thought and the teacher's says nothing" in str(found)
    thinking = "data.apply_chat_template_kwargs.enable_thinking=true"
    assert look(pair, thinking) == []  # what the run gives to the template counts
    set_template(pair / "student", TEMPLATE.replace("THOUGHT", "<think>"))
    (found,) = look(pair)
    assert "student's prompt opens a thought" in str(found)


def test_thoughts_in_a_question_do_not_count(pair):
    for role, thought in (("student", NO_THINKING), ("teacher", "")):
        set_template(pair / role, TEMPLATE.replace("THOUGHT", thought))
    (found,) = look(pair, prompts=["Use <think>"])
    assert "closes an empty thought and the teacher's says nothing of a thought" in str(found)


def test_a_template_that_fails(pair):
    set_template(pair / "student", "{{ raise_exception('no such role') }}")
    (found,) = look(pair)
    assert found.level == "error"
    assert "the student's chat template fails on training row 0: no such role" in str(found)


# Prompts. `347*8+9=?` and the two role tokens are 11.


@pytest.mark.parametrize(
    ("options", "prompts", "level", "words"),
    [
        (["data.max_prompt_length=11"], ["347*8+9=?"], None, ""),
        (["data.max_prompt_length=10"], ["347*8+9=?", "1*1"], "warning", "1 of the first 2"),
        (["data.max_prompt_length=10"], ["347*8+9=?"], "error", "(row 0: 11)"),
        (
            ["data.max_prompt_length=10", "data.filter_overlong_prompts=false"],
            ["1*1", "347*8+9=?"],
            "error",
            "filter_overlong_prompts=False",
        ),
    ],
)
def test_prompt_lengths(pair, options, prompts, level, words):
    found = look(pair, *options, prompts=prompts)
    assert [one.level for one in found] == ([level] if level else [])
    for one in found:
        assert words in str(one) and "set MAX_PROMPT_LENGTH to 11" in str(one)


# Dtypes


@pytest.mark.parametrize(
    ("role", "stored", "computed", "device", "level"),
    [
        ("teacher", "float16", "float32", "cpu", None),  # no digit is lost
        ("teacher", "float16", "bfloat16", "cuda", "warning"),
        ("student", "float16", "bfloat16", "cuda", "warning"),
        ("teacher", "float32", "bfloat16", "cuda", "note"),
        ("student", "float32", "bfloat16", "cuda", None),  # kept in float32 by the run
        ("teacher", "bfloat16", "float32", "cuda", "note"),
        ("teacher", "bfloat16", "bfloat16", "cuda", None),
    ],
)
def test_dtypes(pair, role, stored, computed, device, level):
    for other in ("student", "teacher"):
        kept = stored if other == role else "float32" if computed == "float32" else "bfloat16"
        tensors = {"w": torch.zeros(2, dtype=getattr(torch, kept))}
        save_file(tensors, pair / other / "model.safetensors")
    found = look(pair, f"opdvr.model_dtype={computed}", f"trainer.device={device}")
    assert [one.level for one in found] == ([level] if level else [])
    for one in found:
        assert f"is {computed}, the {role}'s weights" in str(one) and stored in str(one)


def test_bfloat16_on_a_cpu_is_said_once(pair):
    tensors = {"w": torch.zeros(2, dtype=torch.bfloat16)}
    for role in ("student", "teacher"):
        save_file(tensors, pair / role / "model.safetensors")
    (found,) = look(pair, "opdvr.model_dtype=bfloat16")
    assert found.level == "warning" and "set MODEL_DTYPE=float32" in str(found)


# Code of the folder's own

OWN_CODE = {"AutoModelForCausalLM": "modeling.Own"}
TRUST = "actor_rollout_ref.model.trust_remote_code"


@pytest.mark.parametrize(
    ("changes", "trusts", "level", "words"),
    [
        ({"model_type": "unheard"}, False, "error", "does not know model_type 'unheard'"),
        ({"model_type": "unheard", "auto_map": OWN_CODE}, False, "error", f"set {TRUST}=True"),
        ({"auto_map": OWN_CODE}, False, "note", "transformers' own qwen3 is used"),
        ({"auto_map": OWN_CODE}, True, "warning", "runs in this account"),
        ({}, True, None, ""),
    ],
)
def test_own_code(pair, changes, trusts, level, words):
    change_json(pair / "student" / "config.json", **changes)
    found = look(pair, f"{TRUST}={trusts}")
    assert [one.level for one in found] == ([level] if level else [])
    assert all(words in str(one) for one in found)


def test_own_code_of_a_tokenizer(pair):
    own = {"AutoTokenizer": ["tokenization.Own", None]}
    file = pair / "student" / "tokenizer_config.json"
    change_json(file, tokenizer_class="OwnTokenizer", auto_map=own)
    lines = by_level(look(pair), "error")
    assert [line.split(":")[0] for line in lines] == ["data.trust_remote_code", TRUST]
    assert all("the student's OwnTokenizer is code" in line for line in lines)


# Temperatures, and what is not here


def test_temperatures(pair):
    (found,) = look(pair, "actor_rollout_ref.rollout.temperature=0.7")
    assert found.level == "warning" and str(found).startswith("TEACHER_TEMPERATURE")
    assert "set TEACHER_TEMPERATURE=0.7" in str(found)
    both = ["actor_rollout_ref.rollout.temperature=0.7", "opdvr.teacher_temperature=0.7"]
    assert look(pair, *both) == []
    server = ["opdvr.teacher_engine=server", "opdvr.teacher_urls=http://localhost:1"]
    (line,) = by_level(look(pair, both[0], *server), "warning")
    assert "set TEMPERATURE=1" in line  # a server scores at 1 alone


def test_models_that_are_not_here_give_one_note(pair, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(pair / "hub"))
    (found,) = look(pair, "reward_model.model.path=owner/name")
    assert found.level == "note" and "owner/name is not in the local hub cache" in str(found)
    (found,) = look(pair, "opdvr.teacher_engine=server", "opdvr.teacher_urls=http://localhost:1")
    assert found.level == "note" and "behind a server" in str(found)
    no_teacher = ["reward_model.enable=false", "algorithm.adv_estimator=grpo"]
    assert look(pair, *no_teacher) == []
    (found,) = look(pair, f"actor_rollout_ref.model.path={pair / 'gone'}")
    assert found.level == "note" and "not found" in str(found)


def test_a_tokenizer_that_does_not_load(pair):
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (pair / "student" / name).unlink()
    (line,) = by_level(look(pair), "error")
    assert "has no usable tokenizer" in line
