"""The verifier: is the answer that a response commits to the gold answer?"""

import logging
import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

from opdvr.verifier.compare import TextJudge, Undecided, equal_answers
from opdvr.verifier.extract import BOXED, extract_answer
from opdvr.verifier.gold import gold_answers, validate_gold
from opdvr.verifier.leaves import read_leaf
from opdvr.verifier.literals import literals_equal, parse_literal
from opdvr.verifier.pool import VerifierError, VerifierTimeout, get_pool
from opdvr.verifier.spelling import tidy

logger = logging.getLogger(__name__)
logger.setLevel(logging.WARNING)  # verl raises the root's level to ERROR

# A final answer is short. A longer box is a failure on which a parser would only spend its limit.
MAX_ANSWER_CHARS = 2000
_CACHE_SIZE = 8192
_LOGGED_CHARS = 200
# Most golds and answers: nothing to level in them.
_PLAIN_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")

_counts = {"calls": 0, "timeout": 0, "error": 0}
_counts_lock = threading.Lock()


def compute_score(
    data_source: str | None,
    solution_str: str,
    ground_truth: object,
    extra_info: dict | None = None,
    answer_forms: str = BOXED,
) -> dict[str, float | str]:
    """Score one response against its gold answer, for any data source.

    The last complete ``\\boxed{...}`` decides; a response without one is wrong. Right from any
    thread or process, bounded in time (see `opdvr.verifier.configure`): what cannot be decided in
    time, or fails, counts as wrong, is counted in `counters` and logged as a warning.

    Args:
        data_source: accepted and ignored: every data set is scored alike.
        solution_str: the response's text.
        ground_truth: text, a number, or a list of them of which any counts.
        extra_info: accepted and ignored.
        answer_forms: "boxed", or "any" to read "Answer: ..." where there is no box
            (`opdvr.verifier.extract_answer`).

    Returns:
        Exactly ``{"score": 0.0 or 1.0, "acc": the same, "pred": the boxed text, "" if none}``.

    Raises:
        ValueError: for a ground truth that is missing, empty, nan or malformed (`validate_gold`
            finds these before training), and for unknown `answer_forms`.
    """
    _count("calls")
    try:
        golds = gold_answers(ground_truth)
    except ValueError as reason:
        raise ValueError(
            f"reward_model.ground_truth of a {data_source!r} row cannot be used: {reason}"
        ) from None
    answer = extract_answer(solution_str, answer_forms)
    right = bool(answer) and any(_is_right(gold, answer) for gold in golds)
    return {"score": float(right), "acc": float(right), "pred": answer}


def compute_scores(
    data_sources: Sequence[str | None],
    solution_strs: Sequence[str],
    ground_truths: Sequence[object],
    extra_infos: Sequence[dict | None] | None = None,
    answer_forms: str = BOXED,
) -> list[dict[str, float | str]]:
    """`compute_score` for a batch, in order; uses all worker processes when there are several.

    Raises:
        ValueError: as `compute_score`, and for sequences of unequal length.
    """
    rows = list(zip(data_sources, solution_strs, ground_truths, strict=True))
    if extra_infos is not None and len(extra_infos) != len(rows):
        raise ValueError(f"extra_infos has {len(extra_infos)} entries for {len(rows)} responses")

    def score_row(row: tuple[str | None, str, object]) -> dict[str, float | str]:
        return compute_score(*row, answer_forms=answer_forms)

    workers = get_pool().workers
    if workers == 1 or len(rows) < 2:
        return list(map(score_row, rows))
    with ThreadPoolExecutor(workers, thread_name_prefix="opdvr-verifier") as threads:
        return list(threads.map(score_row, rows))


def check_golds(ground_truths: Sequence[object]) -> list[str | None]:
    """What is wrong with each gold answer, None where nothing is; the slow form of `validate_gold`.

    Beyond that function's reasons: a gold that does not equal itself when a response boxes it.
    Each distinct gold is looked at once.
    """
    reasons: dict[str, str | None] = {}
    for gold in ground_truths:
        key = repr(gold)
        if key not in reasons:
            reasons[key] = validate_gold(gold) or _differs_from_itself(gold)
    return [reasons[repr(gold)] for gold in ground_truths]


def _differs_from_itself(gold: object) -> str | None:
    for answer in gold_answers(gold):
        verdict = compute_score(None, rf"\boxed{{{answer}}}", gold)
        if not verdict["acc"]:
            return f"not equal to itself: {answer[:60]!r}, read as {verdict['pred'][:60]!r}"
    return None


def answer_key(answer: str) -> str:
    """Text that is equal for spellings of one answer, for grouping answers: 1/2, 0.5 and
    ``\\dfrac{1}{2}`` have one key. No symbolic mathematics: 2 sqrt 2 and sqrt 8 have two.
    """
    if len(answer) > MAX_ANSWER_CHARS:
        return answer
    leaf = read_leaf(tidy(answer))
    if leaf.literal is not None:
        value = leaf.literal.value
        return leaf.literal.plain if value is None else f"{value}{'%' if leaf.percent else ''}"
    return leaf.key.casefold() if leaf.is_words else leaf.key


def counters(reset: bool = False) -> dict[str, int]:
    """Responses scored by this process ("calls"), and comparisons that ran out of time ("timeout")
    or failed ("error"), since the start or the last reset.
    """
    with _counts_lock:
        snapshot = dict(_counts)
        if reset:
            _counts.update(dict.fromkeys(_counts, 0))
    return snapshot


def _count(name: str) -> None:
    with _counts_lock:
        _counts[name] += 1


def _is_right(gold: str, answer: str) -> bool:
    if len(answer) > MAX_ANSWER_CHARS:
        return answer == gold
    try:
        return _compare(gold, answer)
    except VerifierTimeout as error:
        kind, reason = "timeout", str(error)
    except VerifierError as error:
        kind, reason = "error", str(error)
    _count(kind)
    logger.warning(
        "verifier: %s; counted as wrong: answer %r, gold %r",
        reason,
        answer[:_LOGGED_CHARS],
        gold[:_LOGGED_CHARS],
    )
    return False


@lru_cache(maxsize=_CACHE_SIZE)
def _tidy_gold(gold: str) -> str:
    return tidy(gold)


# Only verdicts are kept: a comparison that failed raises, and is tried again next time.
@lru_cache(maxsize=_CACHE_SIZE)
def _compare(gold_text: str, answer_text: str) -> bool:
    if _PLAIN_NUMBER.fullmatch(gold_text) and _PLAIN_NUMBER.fullmatch(answer_text):
        return literals_equal(parse_literal(gold_text), parse_literal(answer_text))
    gold, answer = _tidy_gold(gold_text), tidy(answer_text)
    try:
        return equal_answers(gold, answer, TextJudge())
    except Undecided:
        return get_pool().compare(gold, answer)
