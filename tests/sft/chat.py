"""Small tokenizers with chat templates of the kinds in use, one token a word."""

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

MARKERS = ("<|im_start|>", "<|im_end|>", "<|end|>", "<pad>")
WORDS = (
    *("user", "assistant", "system", "You", "are", "kind", "Hi", "How", "much", "is", "it"),
    *("Four", "Five", "because", "so", "\n", "\n\n", " ", ".", "?", "<think>", "</think>"),
)
TOKENS = (*MARKERS, "<unk>", *WORDS)

_TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
_PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
PLAIN = "{% for m in messages %}" + _TURN + "{% endfor %}" + _PROMPT
# A default system message, as some templates put one before a conversation without.
WITH_SYSTEM = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are kind<|im_end|>\n{% endif %}"
    + PLAIN
)
# Shows an empty thought in the last turn and, with thinking off, in the generation prompt.
EMPTY_THOUGHT = (
    "{% for m in messages %}{% if m.role == 'assistant' and loop.last and loop.index0 > 0 "
    "and '<think>' not in m.content %}<|im_start|>assistant\n<think>\n\n</think>\n\n"
    "{{ m.content }}<|im_end|>\n{% else %}"
    + _TURN
    + "{% endif %}{% endfor %}"
    + "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
# Opens the thought in the generation prompt, and forgets the thoughts of every turn.
FORGETS_THOUGHTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
WITHOUT_END = "{% for m in messages %}{{ m.role }}\n{{ m.content }}\n{% endfor %}"


def tokenizer(template: str | None, eos: str | None = "<|end|>") -> PreTrainedTokenizerFast:
    """A tokenizer of TOKENS; "<|im_end|>" is special too, as in chat models."""
    core = Tokenizer(models.WordLevel({t: i for i, t in enumerate(TOKENS)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(
        Regex(r"<\|\w+\|>|</?think>|<pad>|\n\n|\w+|[\s\S]"), "isolated"
    )
    core.decoder = decoders.Fuse()
    made = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token=eos,
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = template
    return made
