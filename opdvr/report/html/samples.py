"""Which responses the page shows token by token, and which of validation, within a budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opdvr.report.html.load import LoadedRun
from opdvr.report.html.text import script_json, shortened

MOST_RESPONSES = 40
MOST_BYTES = 2_000_000
MOST_VALIDATION = 40
MOST_VALIDATION_BYTES = 500_000
_TOKEN_CHARS, _TEXT_CHARS, _SHORT_CHARS = 300, 6000, 500
_PER_TOKEN = ("tokens", "ids", "log_ratio", "reward", "zeroed")


def token_samples(runs: Sequence[LoadedRun]) -> tuple[list[dict[str, Any]], int]:
    """Responses spread over runs, steps and verdicts, by run and step; how many were left out.

    At most `MOST_RESPONSES`, in at most `MOST_BYTES` of the page. Single tokens and texts are
    shortened.
    """
    entries = [(run.label, record) for run in runs for record in run.token_samples]
    return _within(
        (_response(label, record) for label, record in _spread(entries, _is_correct)),
        len(entries),
        MOST_RESPONSES,
        MOST_BYTES,
    )


def validation_samples(runs: Sequence[LoadedRun]) -> tuple[list[dict[str, Any]], int]:
    """The same of the responses that validations recorded."""
    entries = [
        (run.label, {**sample, "step": record["step"]})
        for run in runs
        for record in run.validation
        for sample in record.get("samples", ())
    ]
    return _within(
        (_validated(label, sample) for label, sample in _spread(entries, _scored)),
        len(entries),
        MOST_VALIDATION,
        MOST_VALIDATION_BYTES,
    )


def _is_correct(record: Mapping[str, Any]) -> bool:
    return bool(record.get("correct"))


def _scored(record: Mapping[str, Any]) -> bool:
    return (record.get("score") or 0) > 0


def _spread(
    entries: Sequence[tuple[str, Mapping]],
    verdict_of: Any,  # noqa: ANN401
) -> Iterator[tuple[str, Mapping]]:
    """All entries, in an order whose every beginning is spread over runs, steps and verdicts."""
    cells: dict[tuple[str, int], dict[bool, list[Mapping]]] = {}
    for label, record in entries:
        cell = cells.setdefault((label, record["step"]), {True: [], False: []})
        cell[verdict_of(record)].append(record)
    labels = dict.fromkeys(label for label, _ in cells)
    by_label = {
        label: outside_in([step for name, step in cells if name == label]) for label in labels
    }
    turn = 0
    while any(records for cell in cells.values() for records in cell.values()):
        for place in range(max(map(len, by_label.values()))):
            for label, steps in by_label.items():
                if place >= len(steps):
                    continue
                cell = cells[label, steps[place]]
                # Verdicts in turns, the other one where a step has none left.
                wanted = (turn + place) % 2 == 0
                records = cell[wanted] or cell[not wanted]
                if records:
                    yield label, records.pop(0)
        turn += 1


def outside_in(steps: Sequence[int]) -> list[int]:
    """The steps in an order whose every beginning is spread: first, last, then middles of gaps.

    0 to 4 become 0, 4, 2, 1, 3.
    """
    steps = list(dict.fromkeys(steps))
    order, gaps = [0, len(steps) - 1], [(0, len(steps) - 1)]
    while gaps:
        low, high = gaps.pop(0)
        if high - low > 1:
            middle = (low + high) // 2
            order.append(middle)
            gaps += [(low, middle), (middle, high)]
    return [steps[place] for place in dict.fromkeys(order)]


def _within(
    found: Iterator[dict[str, Any]], count: int, most: int, most_bytes: int
) -> tuple[list[dict[str, Any]], int]:
    kept, size = [], 0
    for entry in found:
        length = len(script_json(entry))
        if size + length > most_bytes:
            continue
        kept.append(entry)
        size += length
        if len(kept) == most:
            break
    kept.sort(key=lambda entry: (entry["run"], entry["step"], not entry["correct"]))
    return kept, count - len(kept)


def _response(label: str, record: Mapping[str, Any]) -> dict[str, Any]:
    entry = {
        "run": label,
        "step": record["step"],
        "correct": _is_correct(record),
        "truncated": bool(record.get("truncated")),
        "score": record.get("score"),
        "scale": record.get("scale"),
        "response_tokens": record.get("response_tokens"),
        "omitted": record.get("omitted"),
        "data_source": shortened(record.get("data_source", ""), _SHORT_CHARS),
        "name": shortened(record.get("name", ""), _SHORT_CHARS),
        "prompt": shortened(record.get("prompt", ""), _TEXT_CHARS),
        "gold": shortened(record.get("gold", ""), _SHORT_CHARS),
    }
    for name in _PER_TOKEN:
        entry[name] = record.get(name)
    entry["tokens"] = [shortened(token, _TOKEN_CHARS) for token in entry["tokens"] or ()]
    for name in ("log_ratio", "reward"):
        if entry[name]:
            # Four digits are more than the colours and the readout show.
            entry[name] = [v if v is None else float(f"{v:.4g}") for v in entry[name]]
    return entry


def _validated(label: str, sample: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "run": label,
        "step": sample["step"],
        "correct": _scored(sample),
        "score": sample.get("score"),
        "data_source": shortened(sample.get("data_source", ""), _SHORT_CHARS),
        "prompt": shortened(sample.get("prompt", ""), _TEXT_CHARS),
        "response": shortened(sample.get("response", ""), _TEXT_CHARS),
        "gold": shortened(sample.get("gold", ""), _SHORT_CHARS),
    }
