"""Keeps secrets out of what a run writes down about itself."""

import re
from collections.abc import Mapping, Sequence, Set
from enum import Enum
from typing import Any

from opdvr.report.metrics import python_number

REDACTED = "<redacted>"

# A key with one of these words names a secret, whatever its value.
_SECRET_WORDS = frozenset(
    "password passwd passphrase secret secrets credential credentials apikey apikeys".split()
)
# A key with one of these words directly before "key" or "keys" does too.
_SECRET_KEY_KINDS = frozenset("api access private auth encryption signing ssh".split())
# A key that ends in one of these names a secret only when its value is text: token *counts*
# (max_tokens, ppo_max_token_len_per_gpu) are everywhere in a training config ...
_SECRET_TEXT_ENDINGS = frozenset("token tokens auth authorization bearer pat".split())
# ... and so are the special tokens of a tokenizer.
_TOKENIZER_TOKENS = frozenset(
    "bos eos pad unk sep cls mask special added stop image video audio vision".split()
)

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_URL_USER = re.compile(r"(?<=://)[^/@\s:]*:[^/@\s]*@")
# The separator of a URL's scheme is followed by slashes, an assignment's is not.
_ASSIGNED_KEY = re.compile(r"""(?P<key>[A-Za-z][\w\-]*)['"]?\s*[=:]\s*(?!//)""")
_VALUE_IN_BRACES = re.compile(r"""\"[^\"]*\"|'[^']*'|[^,}\]]+""")
_FLAG = re.compile(r"--?[A-Za-z][\w\-]*")


def _always_secret(words: list[str]) -> bool:
    pairs = zip(words, words[1:], strict=False)
    # PWD alone is the shell's working directory; DB_PWD is a password.
    return (
        not _SECRET_WORDS.isdisjoint(words)
        or ("pwd" in words and len(words) > 1)
        or any(first in _SECRET_KEY_KINDS and second in ("key", "keys") for first, second in pairs)
    )


def names_secret(key: str, value: Any) -> bool:
    """Whether `key: value` looks like a password, an API key or an access token.

    An empty value, None and a boolean never count: they say that no secret is set, and that is
    worth keeping.
    """
    if value is None or value == "" or isinstance(value, bool):
        return False
    words = [word.lower() for word in _WORD.findall(key)]
    if _always_secret(words):
        return True
    if not words or words[-1] not in _SECRET_TEXT_ENDINGS or not isinstance(value, str):
        return False
    if value.isdigit():
        return False
    return _TOKENIZER_TOKENS.isdisjoint(words)


def plain_config(value: Any) -> Any:
    """A config as YAML-ready plain values, secrets replaced by `<redacted>`.

    Mappings become dicts and sequences lists; NumPy scalars become numbers, enums their value,
    and whatever YAML has no form for becomes its text. User names and passwords inside URLs go
    too (proxy settings carry them).
    """
    if isinstance(value, Mapping):
        return {
            _plain_key(key): REDACTED if names_secret(str(key), item) else plain_config(item)
            for key, item in value.items()
        }
    if isinstance(value, Enum):
        return plain_config(value.value)
    if isinstance(value, str):
        return _URL_USER.sub(f"{REDACTED}@", str(value))
    if isinstance(value, (Sequence, Set)) and not isinstance(value, (bytes, bytearray)):
        return [plain_config(item) for item in value]
    if value is None:
        return None
    number = python_number(value)
    return str(value) if number is None else number


def _plain_key(key: Any) -> Any:
    return key if isinstance(key, (bool, int, float)) else str(key)


def redact_command(command: Sequence[str]) -> list[str]:
    """A command line, argument by argument, without its secrets.

    Finds `KEY=secret` and `KEY: secret` anywhere in an argument (a Hydra override's last dotted
    name is its key), a secret in the argument after a flag (`--api-key SECRET`), and user names
    and passwords in URLs.
    """
    redacted = []
    flag = ""
    for argument in command:
        if flag and not argument.startswith("-") and names_secret(flag, argument):
            redacted.append(REDACTED)
        else:
            text = _redact_assignments(argument)
            redacted.append(_URL_USER.sub(f"{REDACTED}@", text))
        flag = argument if _FLAG.fullmatch(argument) else ""
    return redacted


def _redact_assignments(argument: str) -> str:
    kept = []
    end = 0
    for match in _ASSIGNED_KEY.finditer(argument):
        if match.start() < end:
            continue
        if "{" in argument[: match.start()]:
            value = _VALUE_IN_BRACES.match(argument, match.end())
            value_end = value.end() if value else match.end()
        else:
            # Outside braces a secret may hold commas and spaces, so nothing after it is kept.
            value_end = len(argument)
        if names_secret(match["key"], argument[match.end() : value_end].strip("'\"")):
            kept += [argument[end : match.end()], REDACTED]
            end = value_end
    return "".join([*kept, argument[end:]])
