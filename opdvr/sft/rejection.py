"""Which completions are kept: the reasons for rejecting one, in the order in which they count."""

from __future__ import annotations

from dataclasses import dataclass

from opdvr.sft.repetition import repeated_block, repeated_chunk, repeated_line
from opdvr.verifier import extract_answer

TRUNCATED = "truncated"
NO_BOX = "no_box"
INCORRECT = "incorrect"
REPEATED_LINE = "repeated_line"
REPEATED_CHUNK = "repeated_chunk"
REPEATED_BLOCK = "repeated_block"
REASONS = (TRUNCATED, NO_BOX, INCORRECT, REPEATED_LINE, REPEATED_CHUNK, REPEATED_BLOCK)


@dataclass(frozen=True)
class Rejection:
    """What is asked of a completion. A rule of repetition with `times` 0 is off.

    Attributes:
        truncated: reject what did not end by itself.
        box: reject what commits to no answer.
        correct: reject what the verifier finds wrong, where there is a gold answer.
        line_chars: shortest line that counts, in characters.
        line_times: so often it must not be there.
        chunk_chars: characters of a chunk, anywhere in the text.
        chunk_times: so often it must not be there, without overlap.
        block_chars: characters of the shortest block.
        block_times: so often in a row it must not be there.
        block_over: texts of at most so many characters are not searched for blocks.
    """

    truncated: bool = True
    box: bool = True
    correct: bool = True
    line_chars: int = 20
    line_times: int = 5
    chunk_chars: int = 100
    chunk_times: int = 3
    block_chars: int = 50
    block_times: int = 3
    block_over: int = 5000

    def before_verdict(self, text: str, finish: str, answer_forms: str) -> str | None:
        """The reason that needs no verifier's verdict, or None."""
        if self.truncated and finish != "stop":
            return TRUNCATED
        if self.box and not extract_answer(text, answer_forms):
            return NO_BOX
        return None

    def after_verdict(self, text: str) -> str | None:
        """The reason that counts only where the verdict is good, or None."""
        if self.line_times and repeated_line(text, self.line_chars, self.line_times):
            return REPEATED_LINE
        if self.chunk_times and repeated_chunk(text, self.chunk_chars, self.chunk_times):
            return REPEATED_CHUNK
        if self.block_times and repeated_block(
            text, self.block_chars, self.block_times, self.block_over
        ):
            return REPEATED_BLOCK
        return None


# Everything is kept (`--keep-all`).
KEEP_ALL = Rejection(
    truncated=False, box=False, correct=False, line_times=0, chunk_times=0, block_times=0
)
