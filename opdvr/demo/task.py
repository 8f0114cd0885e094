"""An arithmetic task worked in steps, its careless solvers and its two data files.

A prompt such as `347*8+9=?` asks for a three-digit number times a one-digit factor plus a one-digit
addend. A solution takes the digits from the right and carries, as on paper:

    7*8+9=65;4*8+6=38;3*8+3=27;\\boxed{2785}

The errors people make show up as single tokens (a dropped carry is a `0` where the carry belongs),
so a token-level reward can point at them. The 72,000 problems are split by a hash of their prompt.
"""

import functools
import hashlib
import io
import itertools
import json
import os
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

DATA_SOURCE = "opdvr-demo"
TRAIN_FILE = "demo-train.parquet"
TEST_FILE = "demo-test.parquet"
TRAIN_ROWS = 4096
TEST_ROWS = 256
HELD_OUT_ONE_IN = 8

# The longest prompt in tokens, with the two role tokens: <|user|>347*8+9=?<|assistant|>
MAX_PROMPT_TOKENS = 11
# The longest careful solution: three steps of nine, \boxed{, four digits, } and the end token.
# A slip to a three-digit result can make a wrong solution longer; it may be cut.
MAX_RESPONSE_TOKENS = 34

STYLES = ("digit-first", "factor-first", "tuples")
# Off by one, two or ten: what a slip of the pen does to a step's result.
_SLIPS = (-10, -2, -1, 1, 2, 10)

# What verl's dataset and reward manager read from a row.
_SCHEMA = pa.schema(
    {
        "data_source": pa.string(),
        "prompt": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
        "ability": pa.string(),
        "reward_model": pa.struct({"style": pa.string(), "ground_truth": pa.string()}),
        "extra_info": pa.struct({"index": pa.int64(), "split": pa.string()}),
    }
)


class Problem(NamedTuple):
    """`number*factor+addend=?` with number in 100..999, factor in 2..9 and addend in 0..9."""

    number: int
    factor: int
    addend: int

    @property
    def prompt(self) -> str:
        """The question as the user writes it."""
        return f"{self.number}*{self.factor}+{self.addend}=?"

    @property
    def answer(self) -> str:
        """The right answer in decimal, the verifier's ground truth."""
        return str(self.number * self.factor + self.addend)

    @property
    def held_out(self) -> bool:
        """True for the one problem in eight that no training data holds."""
        return _is_held_out(_digest(self))


@dataclass(frozen=True)
class Habits:
    """How a solver writes and errs; the default is careful.

    `drop_carry`: probability that a non-zero carry is written as 0, for the factors in
    `forgetful_factors` only. `slip`: probability that a step's result is off by 1, 2 or 10.
    `style`: `digit-first` writes a step as `7*8+9=65;`, `factor-first` as `8*7+9=65;`, and `tuples`
    in another notation, `7,8,9:65 `.
    Raises ValueError for a probability outside 0..1 or an unknown style.
    """

    drop_carry: float = 0.0
    slip: float = 0.0
    forgetful_factors: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8, 9)
    style: str = "digit-first"

    def __post_init__(self) -> None:
        for name in ("drop_carry", "slip"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name}={getattr(self, name)} is not a probability: give 0 to 1")
        if self.style not in STYLES:
            raise ValueError(f"style={self.style!r} is unknown: choose one of {', '.join(STYLES)}")


CAREFUL = Habits()


def _digest(problem: Problem) -> bytes:
    return hashlib.sha256(problem.prompt.encode()).digest()


def _is_held_out(digest: bytes) -> bool:
    return digest[0] % HELD_OUT_ONE_IN == 0


@functools.cache
def _shuffled() -> dict[str, tuple[Problem, ...]]:
    split: dict[str, list[tuple[bytes, Problem]]] = {"train": [], "test": []}
    for numbers in itertools.product(range(100, 1000), range(2, 10), range(10)):
        problem = Problem(*numbers)
        digest = _digest(problem)
        # The first byte decides the split and those after it the order.
        split["test" if _is_held_out(digest) else "train"].append((digest[1:], problem))
    return {name: tuple(problem for _, problem in sorted(rows)) for name, rows in split.items()}


def problems(split: str) -> tuple[Problem, ...]:
    """All problems of `split` ("train" or "test"), in a fixed order that looks random.

    The order comes from a hash, so it is the same under every Python version.
    """
    if split not in ("train", "test"):
        raise ValueError(f"split={split!r} is unknown: choose train or test")
    return _shuffled()[split]


def solve(problem: Problem, habits: Habits = CAREFUL, rng: random.Random | None = None) -> str:
    """A worked solution ending in `\\boxed{answer}`; right for certain only with careful habits.

    Errors carry over into the steps that follow and the answer, as they do for people.
    `rng` is needed for habits that err; raises ValueError without it.
    """
    errs = habits.drop_carry > 0 or habits.slip > 0
    if errs and rng is None:
        raise ValueError("habits that err need rng: pass a seeded random.Random")
    forgetful = habits.drop_carry > 0 and problem.factor in habits.forgetful_factors
    steps: list[str] = []
    answer, carry = "", problem.addend
    for position, digit in enumerate(map(int, reversed(str(problem.number)))):
        # The addend stands in the prompt; only carries have to be remembered.
        if forgetful and position > 0 and carry and rng.random() < habits.drop_carry:
            carry = 0
        result = digit * problem.factor + carry
        if habits.slip and rng.random() < habits.slip:
            result = max(0, result + rng.choice(_SLIPS))
        steps.append(_step(habits.style, digit, problem.factor, carry, result))
        carry, answer = result // 10, f"{result % 10}{answer}"
    return "".join(steps) + f"\\boxed{{{carry or ''}{answer}}}"


def _step(style: str, digit: int, factor: int, carry: int, result: int) -> str:
    if style == "tuples":
        return f"{digit},{factor},{carry}:{result} "
    left, right = (factor, digit) if style == "factor-first" else (digit, factor)
    return f"{left}*{right}+{carry}={result};"


def _table(chosen: Sequence[Problem], split: str) -> pa.Table:
    rows = [
        {
            "data_source": DATA_SOURCE,
            "prompt": [{"role": "user", "content": problem.prompt}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": problem.answer},
            "extra_info": {"index": index, "split": split},
        }
        for index, problem in enumerate(chosen)
    ]
    # Through JSON, since Table.from_pylist imports pandas, which takes longer than all the rest.
    lines = "\n".join(map(json.dumps, rows)).encode()
    options = pyarrow.json.ParseOptions(explicit_schema=_SCHEMA)
    return pyarrow.json.read_json(io.BytesIO(lines), parse_options=options)


def _write_atomically(table: pa.Table, path: Path) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(descriptor)
    try:
        pq.write_table(table, temporary)
        # mkstemp makes the file private; data files are as readable as the folder allows.
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def write_parquet(folder: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Write the training and the held-out file in verl's schema; returns their two paths.

    4,096 training rows in a fixed shuffled order and 256 held-out rows. The same bytes every time
    with one version of pyarrow. Each file appears whole or not at all. Creates `folder`.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    paths = []
    for split, name, rows in (("train", TRAIN_FILE, TRAIN_ROWS), ("test", TEST_FILE, TEST_ROWS)):
        _write_atomically(_table(problems(split)[:rows], split), target / name)
        paths.append(target / name)
    return paths[0], paths[1]
