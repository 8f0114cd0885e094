"""What the gate did to which tokens: anatomy.jsonl summed over steps and runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from opdvr.report.html.load import Group, LoadedRun
from opdvr.report.html.text import shortened

VERDICTS = ("correct", "incorrect")
_RATIO_ROWS = ("tokens", "sum", "kept_tokens", "kept")
_POSITION_ROWS = ("tokens", "log_ratio", "log_ratio_abs", "kept_tokens")
# Below this many steps a first and a last quarter say no more than the whole.
_QUARTERED_STEPS = 8
MOST_PUSHED = 25
_TOKEN_CHARS = 60


@dataclass(frozen=True)
class Anatomy:
    """Sums over the steps of a window.

    Attributes:
        edges: [E+1] rising; the first and the last are infinite.
        log_ratio: by verdict, then by row (tokens, sum, kept_tokens, kept), [E] float64.
        position: by verdict, then by row (tokens, log_ratio, log_ratio_abs, kept_tokens), [P].
        pushed: "up" and "down": (token id, text, count, sum of rewards in nats), most often first.
    """

    window: str
    edges: np.ndarray
    position_starts: Sequence[int]
    log_ratio: Mapping[str, Mapping[str, np.ndarray]]
    position: Mapping[str, Mapping[str, np.ndarray]]
    pushed: Mapping[str, Sequence[tuple[int, str, int, float]]]


def anatomies(group: Group) -> list[Anatomy]:
    """Sums over all steps and, of longer runs, over the first and the last quarter; [] for none.

    Raises:
        ValueError: runs of the group, or starts of a run, have different bins.
    """
    header, records = None, []
    for run in group.runs:
        for record in run.anatomy:
            if "log_ratio_edges" not in record:
                records.append(record)
            elif header is None:
                header = record
            elif _bins(record) != _bins(header):
                raise ValueError(
                    f"{run.folder / 'anatomy.jsonl'} has other bins than the runs or starts it is "
                    "summed with: give the runs apart, or remove the older lines"
                )
    if header is None or not records:
        return []
    steps = sorted({record["step"] for record in records})
    windows = [("all steps", steps[0], steps[-1])]
    if len(steps) >= _QUARTERED_STEPS:
        quarter = len(steps) // 4
        windows.append((f"steps {steps[0]} to {steps[quarter - 1]}", steps[0], steps[quarter - 1]))
        windows.append((f"steps {steps[-quarter]} to {steps[-1]}", steps[-quarter], steps[-1]))
    return [
        _summed(name, header, [r for r in records if first <= r["step"] <= last])
        for name, first, last in windows
    ]


def _bins(header: Mapping[str, Any]) -> tuple[Any, Any]:
    return header["log_ratio_edges"], header["position_starts"]


def _summed(window: str, header: Mapping[str, Any], records: Sequence[Mapping]) -> Anatomy:
    inner = header["log_ratio_edges"][1:-1]
    return Anatomy(
        window,
        np.array([-math.inf, *inner, math.inf]),
        header["position_starts"],
        {v: _rows([r["log_ratio"].get(v, {}) for r in records], _RATIO_ROWS) for v in VERDICTS},
        {v: _rows([r["position"].get(v, {}) for r in records], _POSITION_ROWS) for v in VERDICTS},
        {way: _most_pushed(records, way) for way in ("up", "down")},
    )


def _rows(parts: Sequence[Mapping[str, Sequence[float]]], rows: Sequence[str]) -> dict:
    there = [part for part in parts if part]
    if not there:
        return {}
    return {row: np.sum([np.asarray(part[row], float) for part in there], axis=0) for row in rows}


def _most_pushed(records: Sequence[Mapping], way: str) -> list[tuple[int, str, int, float]]:
    found: dict[int, tuple[str, int, float]] = {}
    for record in records:
        for token, text, count, total in record.get("pushed", {}).get(way, ()):
            _, earlier, earlier_total = found.get(token, (text, 0, 0.0))
            found[token] = (text, earlier + count, earlier_total + total)
    often = sorted(found.items(), key=lambda item: (-item[1][1], item[0]))[:MOST_PUSHED]
    return [
        (token, shortened(text, _TOKEN_CHARS), count, total)
        for token, (text, count, total) in often
    ]


@dataclass(frozen=True)
class GateRow:
    """What a gate lets through: of |log-ratio| in correct, incorrect and all responses (shares,
    None where there is none), and the mean gated log-ratio of a token, nats.
    """

    name: str
    correct: float | None
    incorrect: float | None
    all: float | None
    mean: float


def measured_row(anatomy: Anatomy) -> GateRow:
    """What this run's gate kept, from the sums themselves; its mean is not known (NaN)."""
    kept = {v: _total(anatomy, v, "kept") for v in VERDICTS}
    return _gate_row("this run, measured", kept, _mass(anatomy), math.nan)


def gate_rows(anatomy: Anatomy, run: LoadedRun) -> list[GateRow]:
    """What every registered gate that looks at one response alone would keep of these log-ratios.

    A bin's tokens all count with the bin's mean, which is exact for gates that go by the sign (0 is
    an edge), and near it for `soft` and `margin`. Imports torch.
    """
    import torch

    from opdvr.core.gates import GATES, GateSettings, apply_gate

    options = {
        name: run.option(f"opdvr.gate_{name}") for name in ("temperature", "margin", "floor")
    }
    settings = GateSettings(**{k: float(v) for k, v in options.items() if v is not None})
    tokens = sum(_total(anatomy, v, "tokens") for v in VERDICTS)
    rows = []
    for name, gate in GATES.items():
        if gate.needs_groups:
            continue
        kept, net = {}, 0.0
        for verdict in VERDICTS:
            bins = anatomy.log_ratio[verdict]
            if not bins:
                kept[verdict] = 0.0
                continue
            counts = bins["tokens"]
            means = torch.from_numpy(bins["sum"] / np.maximum(counts, 1))
            right = torch.tensor([verdict == "correct"])
            gated = apply_gate(means[None], right, name, settings=settings)[0].numpy()
            kept[verdict] = float((np.abs(gated) * counts).sum())
            net += float((gated * counts).sum())
        rows.append(_gate_row(name, kept, _mass(anatomy), net / max(tokens, 1)))
    return rows


def _gate_row(name: str, kept: Mapping, mass: Mapping, mean: float) -> GateRow:
    shares = [kept[v] / mass[v] if mass[v] else None for v in VERDICTS]
    whole = sum(mass.values())
    return GateRow(name, *shares, sum(kept.values()) / whole if whole else None, mean)


def _mass(anatomy: Anatomy) -> dict[str, float]:
    return {
        v: float(np.abs(anatomy.log_ratio[v]["sum"]).sum()) if anatomy.log_ratio[v] else 0.0
        for v in VERDICTS
    }


def _total(anatomy: Anatomy, verdict: str, row: str) -> float:
    bins = anatomy.log_ratio[verdict]
    return float(bins[row].sum()) if bins else 0.0
