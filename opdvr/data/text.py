"""The text of a problem: without instructions, with ours, and levelled for comparison."""

import functools
import re
import unicodedata

# Asks for the one form of answer that the verifier reads.
SUFFIX = "Please reason step by step, and put your final answer within \\boxed{}."
# Prompts that ask for this, and for no box, are answered in a form that the verifier does not read.
OTHER_FORM = "Answer:"

# What DAPO-Math-17k puts around every problem.
_DAPO_BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem."
)
_DAPO_AFTER = 'Remember to put your answer on its own line after "Answer:".'
# What stands around a problem to the letter; the quick check before training takes it off.
INSTRUCTIONS = (SUFFIX, _DAPO_BEFORE, _DAPO_AFTER)
# Part of its Chinese problems have a second request for 'Answer:' at the end.
_DAPO_CHINESE = re.compile(
    r"\s*让我们一步一步地思考。请以[“\"]Answer: \\boxed\{<final_answer>\}[”\"]的格式输出[^\n]*$"
)
# A request for a box; a worked solution inside a problem has something in its boxes.
_EMPTY_BOX = re.compile(r"\\boxed\s*\{\s*\}")

# Spellings of one thing, by what they are spelled as here.
_SPELLINGS = {
    r"\\[dt]frac(?![a-z])": r"\\frac",
    r"\\leqslant(?![a-z])": r"\\leq",
    r"\\geqslant(?![a-z])": r"\\geq",
}
# Layout: spaces, math delimiters, braces, and commands that change only the look.
_LAYOUT = re.compile(r"\\(?:left|right|displaystyle)(?![a-z])|\\[,;:! ()\[\]]|[\s${}]")
# A word is a run of letters and digits; in Chinese and Japanese, where nothing parts words, one
# character.
_CJK = "\u3040-\u30ff\u3400-\u9fff"
_WORD = re.compile(rf"[^\W_{_CJK}]+|[{_CJK}]")


def problem_of(prompt: str) -> str:
    """The problem in a prompt: our suffix and DAPO's instructions are taken off its two ends.

    Where it was written as `prompt_of` does, that gives the same prompt again, spaces included.
    """
    if prompt.endswith(f" {SUFFIX}"):
        return prompt[: -len(SUFFIX) - 1]
    text = prompt.strip()
    text = text.removeprefix(_DAPO_BEFORE).removesuffix(_DAPO_AFTER).strip()
    text = _DAPO_CHINESE.sub("", text)
    return text.removesuffix(SUFFIX).strip()


def prompt_of(problem: str) -> str:
    """The problem with our suffix; as it is where it asks for a box already (an empty one)."""
    return problem if _EMPTY_BOX.search(problem) else f"{problem} {SUFFIX}"


def asks_for_other_form(prompt: str) -> bool:
    """Whether a prompt asks for 'Answer:' and mentions no box."""
    return OTHER_FORM in prompt and "boxed" not in prompt


def asks_for_nothing(prompt: str) -> bool:
    """Whether a prompt says nothing about the form of the answer."""
    return OTHER_FORM not in prompt and "boxed" not in prompt


# Levelling is slow, and published files repeat each of some ten thousand problems 100 times.
@functools.lru_cache(maxsize=1 << 16)
def levelled(problem: str) -> str:
    """The problem for comparison: equal for two spellings of one problem.

    Case, spaces, math delimiters, braces, the final stop, unicode variants and commands that only
    change the look make no difference; signs, digits and words do.
    """
    text = unicodedata.normalize("NFKC", problem).lower()
    for spelling, plain in _SPELLINGS.items():
        text = re.sub(spelling, plain, text)
    return _LAYOUT.sub("", text).rstrip(".?")


def words_of(problem: str) -> list[str]:
    """Its words and numbers in order, in lower case, LaTeX commands by their names."""
    return _WORD.findall(unicodedata.normalize("NFKC", problem).lower())
