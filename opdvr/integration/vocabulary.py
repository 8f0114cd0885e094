"""A tokenizer's id -> token map from its files, without importing a tokenizer library."""

from __future__ import annotations

import json
from pathlib import Path


def read_json(path: Path) -> dict:
    """A JSON object from a file.

    Raises:
        ValueError: the file holds no JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}); the folder is damaged") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object; the folder is damaged")
    return value


def read_vocabulary(folder: Path) -> dict[int, str] | None:
    """Every token by id, added ones included, as the tokenizer of a model folder would have it.

    Reads tokenizer.json, else vocab.json, and on top the added tokens of added_tokens.json and
    tokenizer_config.json.

    Returns:
        id -> token, or None if the folder has neither of the two files.

    Raises:
        ValueError: a file is damaged.
    """
    if (folder / "tokenizer.json").is_file():
        path = folder / "tokenizer.json"
        try:
            tokens = _from_tokenizer_json(read_json(path))
        except (KeyError, TypeError, AttributeError, ValueError) as reason:
            raise ValueError(f"{path} is no tokenizer ({reason}); save it anew") from None
    elif (folder / "vocab.json").is_file():
        tokens = _by_id(read_json(folder / "vocab.json"))
    else:
        return None
    if (folder / "added_tokens.json").is_file():
        tokens |= _by_id(read_json(folder / "added_tokens.json"))
    if (folder / "tokenizer_config.json").is_file():
        added = read_json(folder / "tokenizer_config.json").get("added_tokens_decoder", {})
        tokens |= {int(token_id): entry["content"] for token_id, entry in added.items()}
    return tokens


def _from_tokenizer_json(tokenizer: dict) -> dict[int, str]:
    vocabulary = tokenizer["model"]["vocab"]
    if isinstance(vocabulary, dict):
        tokens = _by_id(vocabulary)
    else:  # unigram models: a list of [token, score], the id is the place
        tokens = {token_id: token for token_id, (token, _) in enumerate(vocabulary)}
    added = tokenizer.get("added_tokens") or []
    return tokens | {entry["id"]: entry["content"] for entry in added}


def _by_id(vocabulary: dict[str, int]) -> dict[int, str]:
    return {token_id: token for token, token_id in vocabulary.items()}
