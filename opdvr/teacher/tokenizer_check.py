"""Do sampled ids mean the same text to a server? Asked through its /detokenize."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from opdvr.teacher.client import Client, Missing

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_CHUNK = 2000
_AT_ONCE = 4


@dataclass(frozen=True)
class Vocabulary:
    """The student's tokenizer and all its ids, rising."""

    tokenizer: Tokenizer
    ids: list[int]

    def text(self, ids: list[int]) -> str:
        """Special tokens included."""
        return self.tokenizer.decode(ids, skip_special_tokens=False)


def read_tokens(folder: Path | None) -> tuple[Vocabulary | None, list[str]]:
    """The tokenizer of a folder, or None and a warning where it has no tokenizer.json."""
    if folder is None or not (folder / "tokenizer.json").is_file():
        return None, [f"no tokenizer.json of the student ({folder}); the servers' was not compared"]
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return Vocabulary(tokenizer, sorted(tokenizer.get_vocab(with_added_tokens=True).values())), []


async def compare_tokenizer(client: Client, model: str, ours: Vocabulary) -> list[str]:
    """Compare all ids, in chunks.

    Returns:
        A warning where the server has no /detokenize.

    Raises:
        ValueError: naming the first id that differs.
    """
    chunks = [ours.ids[i : i + _CHUNK] for i in range(0, len(ours.ids), _CHUNK)]
    gate = asyncio.Semaphore(_AT_ONCE)

    async def differs(chunk: list[int]) -> bool:
        async with gate:
            return not _same(ours.text(chunk), await client.detokenize(model, chunk))

    try:
        different = await asyncio.gather(*map(differs, chunks))
    except Missing:
        return [f"teacher server {client.address} has no /detokenize; tokenizers were not compared"]
    for chunk, wrong in zip(chunks, different, strict=True):
        if wrong:
            await _refuse(client, model, ours, chunk, differs)
    return []


async def _refuse(client: Client, model: str, ours: Vocabulary, chunk: list[int], differs) -> None:  # noqa: ANN001
    """Raise, with the id at which a chunk begins to differ."""
    while len(chunk) > 1:
        half = chunk[: len(chunk) // 2]
        chunk = half if await differs(half) else chunk[len(half) :]
        if not await differs(chunk):
            break  # only together: bytes of one character in two tokens
    theirs = await client.detokenize(model, chunk[:1])
    raise ValueError(
        f"TEACHER_URLS (opdvr.teacher_urls): {client.address} has another tokenizer than the "
        f"student: id {chunk[0]} is {ours.text(chunk[:1])!r} in the student and {theirs!r} there; "
        "use a teacher with the student's tokenizer"
    )


def _same(ours: str, theirs: str) -> bool:
    """Equal, or but for spaces, which transformers takes out before marks where it is told to."""
    return ours == theirs or ours.replace(" ", "") == theirs.replace(" ", "")
