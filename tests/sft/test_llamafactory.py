"""An export, read by LlamaFactory's own loader: rows, token ids, and which tokens carry loss."""

import json
import sys

import pytest
from rolling import ROOT, TEACHER

sys.path.insert(0, str(ROOT))

from benchmarks.llamafactory_check import REQUIREMENTS, Export, check  # noqa: E402
from benchmarks.peers_environment import python_of  # noqa: E402
from opdvr.eval.problems import Problem  # noqa: E402
from opdvr.sft import exports  # noqa: E402
from opdvr.sft.exports_llamafactory import choose_template, write_llamafactory  # noqa: E402
from opdvr.sft.rollout_attempts import Attempt  # noqa: E402
from opdvr.sft.rollout_options import read_rollout_options  # noqa: E402

pytestmark = pytest.mark.slow
NO_LOSS = -100
# A template as Qwen3's is: turns, and an empty block of thought where thinking is off.
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% endif %}{% endif %}"
)


@pytest.fixture(scope="module")
def python():
    found = python_of(REQUIREMENTS)
    if found is None:
        pytest.skip(
            "LlamaFactory's environment is not there; make it with: python -m "
            "benchmarks.llamafactory_check DIR --tokenizer MODEL"
        )
    return found


@pytest.fixture
def chatml(tmp_path):
    """A tokenizer of single bytes with Qwen's special tokens, and a model's config beside it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    whole = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    whole.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=whole,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    folder = tmp_path / "model"
    tokenizer.save_pretrained(folder)
    config = json.loads((TEACHER / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": len(tokenizer)}))
    return folder


def export(folder, model, texts, thinking=False, system=None):
    """Rows of an export for the model, and LlamaFactory's name of its template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    first = [] if system is None else [{"role": "system", "content": system}]
    problems = [
        Problem(f"a:d:{n}", n, "a", [*first, {"role": "user", "content": f"{n}*2=?"}], "1", None)
        for n in range(len(texts))
    ]
    attempts = [
        Attempt(problem.key, 0, 0, 1, len(text) + 1, "stop", None, text)
        for problem, text in zip(problems, texts, strict=True)
    ]
    rows = exports.rows_of(problems, attempts)
    given = ["--model", str(model), "--data", "x", "--output", "o"]
    options = read_rollout_options([*given, *(["--thinking"] if thinking else [])])
    template = choose_template(options, model, tokenizer, lambda _line: None)
    prompts = {
        problem.key: tokenizer.apply_chat_template(
            problem.messages, add_generation_prompt=True, enable_thinking=thinking
        )
        for problem in problems
    }
    lengths = {key: len(ids) for key, ids in prompts.items()}
    write_llamafactory(folder, rows[:-1], rows[-1:], options, template, lengths, print)
    return rows, template, prompts, tokenizer


def test_rows_tokens_and_loss_are_as_they_were_sampled(tmp_path, python, chatml):
    plain, thought = "it is \\boxed{2}", "<think>\nhm\n</think>\n\n\\boxed{2}"
    # the embedded model's template is derived; Qwen's goes by its name, thinking off and on
    cases = [
        (TEACHER, ["1+1=2;\\boxed{2}", "\\boxed{22}", "\\boxed{3}"], False, None, None),
        (chatml, [plain, "\\boxed{3}"], False, "Be brief.", "qwen3"),
        (chatml, [thought, thought], True, "Be brief.", "qwen3"),
    ]
    written, jobs = [], []
    for number, (model, texts, thinking, system, name) in enumerate(cases):
        folder = tmp_path / f"export {number}"
        folder.mkdir()
        written.append(export(folder, model, texts, thinking, system))
        assert written[-1][1] == name
        jobs.append(Export(folder, model, range(len(texts) - 1)))
    for found, case, (_, _, prompts, tokenizer) in zip(
        check(jobs, python), cases, written, strict=True
    ):
        texts = case[1]
        assert found["rows"] == {"train_dataset": len(texts) - 1, "eval_dataset": 1}
        assert len(found["samples"]) == len(texts) - 1
        # what ends a turn; behind Qwen's end token is a line break, which LlamaFactory trains too
        end = "<eos>" if case[0] is TEACHER else "<|im_end|>\n"
        for sample, text in zip(found["samples"], texts, strict=False):
            prompt = list(prompts[f"a:d:{sample['row']}"])
            response = tokenizer(text + end, add_special_tokens=False).input_ids
            assert sample["input_ids"] == prompt + response
            assert sample["labels"] == [NO_LOSS] * len(prompt) + response
            assert sample["loss_mask"] == [0] * len(prompt) + [1] * len(response)
