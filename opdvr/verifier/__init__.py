"""Verifiable reward: the one place that decides whether a response is right.

Everything else uses `compute_score` (the signature of a verl custom reward function) or its batch
form; how an answer is found and compared is this package's own business. See docs/verifier.md.
"""

from opdvr.verifier.extract import extract_answer
from opdvr.verifier.gold import validate_gold
from opdvr.verifier.pool import configure
from opdvr.verifier.score import answer_key, check_golds, compute_score, compute_scores, counters

__all__ = [
    "answer_key",
    "check_golds",
    "compute_score",
    "compute_scores",
    "configure",
    "counters",
    "extract_answer",
    "validate_gold",
]
