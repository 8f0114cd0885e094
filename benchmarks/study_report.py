"""The study's tables, written into the marked places of docs/results.md, and its figures."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.study_plan import METHODS, SETTINGS, Choice, learning_rates
from benchmarks.study_statistics import Interval, paired_difference, t_interval
from benchmarks.study_store import MODEL, RUN, TUNE, Store
from benchmarks.study_trace import CELLS

PAGE = "results.md"
FIGURES = "figures"
_REFERENCES = ("opd", "opdvr")
# Beside the plan, what of `style` was also run: at the highest rate, and for longer.
_FAST = {"learning_rates": (1e-3,)}
_LONG = {"learning_rates": (3e-4,), "steps": 240}
_GATES_SHOWN = ("opd", "opdvr", "mixed")  # soft adds, rescue drops as opdvr
_NOTHING = "no finished run yet"

# Runs of a setting by method, then by seed.
Runs = dict[str, dict[int, dict]]


def runs_of(choice: Choice, store: Store, setting: str) -> Runs:
    """The finished main runs of `setting` that the plan asks for."""
    found: Runs = {}
    for key in choice.runs(learning_rates(choice, store)):
        row = store.find(key) if key.setting == setting else None
        if row is not None:
            found.setdefault(key.method, {})[key.seed] = row
    return {method: found[method] for method in METHODS if method in found}


def by_seed(rows: dict[int, dict], name: str) -> dict[int, float]:
    """One measure of a method's runs."""
    return {seed: row[name] for seed, row in rows.items()}


def accuracy_table(runs: Runs) -> str:
    """Markdown: accuracies in percent, paired differences in points, both with intervals."""
    if not runs:
        return _NOTHING
    head = ["method", "lr", "seeds", "sampled, %", "greedy, %"]
    lines = []
    for method, rows in runs.items():
        sampled = by_seed(rows, "sampled")
        rate = next(iter(rows.values()))["lr"]
        line = [f"`{method}`", f"{rate:.0e}".replace("e-0", "e-"), str(len(rows))]
        line += [_percent(t_interval(list(by_seed(rows, name).values()))) for name in _MEASURES]
        for reference in _REFERENCES:
            difference = None
            if method != reference and reference in runs:
                difference = paired_difference(sampled, by_seed(runs[reference], "sampled"))
            line.append("" if difference is None else _percent(difference, sign="+"))
        lines.append(line)
    return markdown(head + [f"minus `{name}`" for name in _REFERENCES], lines)


_MEASURES = ("sampled", "greedy")


def _percent(interval: Interval, sign: str = "") -> str:
    mean = f"{100 * interval.mean:{sign}.1f}"
    return mean if math.isnan(interval.half_width) else f"{mean} ± {100 * interval.half_width:.1f}"


def seeds_table(runs: Runs) -> str:
    """Markdown: sampled accuracy in percent of every run, for runs too unlike for a mean."""
    if not runs:
        return _NOTHING
    seeds = sorted({seed for rows in runs.values() for seed in rows})
    lines = [
        [f"`{method}`"]
        + [f"{100 * rows[seed]['sampled']:.1f}" if seed in rows else "" for seed in seeds]
        for method, rows in runs.items()
    ]
    return markdown(["method", *(f"seed {seed}" for seed in seeds)], lines)


def models_table(store: Store) -> str:
    """Markdown: accuracies of the models before any training here, in percent."""
    rows = store.of_kind(MODEL)
    if not rows:
        return _NOTHING
    cells = [
        [f"`{row['model']}`", f"{100 * row['sampled']:.1f}", f"{100 * row['greedy']:.1f}"]
        for row in rows
    ]
    return markdown(["model", "sampled, %", "greedy, %"], cells)


def tuning_table(store: Store, setting: str) -> str:
    """Markdown: sampled accuracy in percent of every tuning run, a column for each rate."""
    rows = [row for row in store.of_kind(TUNE) if row["setting"] == setting]
    if not rows:
        return _NOTHING
    rates = sorted({row["lr"] for row in rows})
    found = {(row["method"], row["lr"]): f"{100 * row['sampled']:.1f}" for row in rows}
    methods = [method for method in METHODS if any((method, rate) in found for rate in rates)]
    cells = [[f"`{m}`", *(found.get((m, rate), "") for rate in rates)] for m in methods]
    return markdown(["method", *(f"lr {rate:g}" for rate in rates)], cells)


def gate_table(runs: Runs) -> str:
    """Markdown: where the signal of a run lay and what its gate took, mean over trace and seeds.

    In percent of the sum of |log-ratio|; first half and second half of the run.
    """
    lines = []
    for method, rows in runs.items():
        if method not in _GATES_SHOWN:
            continue
        for half, name in enumerate(("first half", "second half")):
            points = [point for row in rows.values() for point in _half(row["trace"], half)]
            if not points:
                continue
            dropped = [point.get("dropped", [0.0] * len(CELLS)) for point in points]
            cells = [
                _share_and_dropped([p["mass"][i] for p in points], [d[i] for d in dropped])
                for i in range(len(CELLS))
            ]
            lines.append(
                [f"`{method}`", name, *cells, f"{100 * statistics.fmean(map(sum, dropped)):.0f}"]
            )
    if not lines:
        return _NOTHING
    return markdown(["method", "", *(f"`{cell}`" for cell in CELLS), "all dropped"], lines)


def _half(trace: Sequence[dict], half: int) -> Sequence[dict]:
    middle = len(trace) // 2
    return trace[middle:] if half else trace[:middle]


def _share_and_dropped(shares: Sequence[float], dropped: Sequence[float]) -> str:
    share, gone = (f"{100 * statistics.fmean(values):.0f}" for values in (shares, dropped))
    if share == "0":
        return ""
    return share if gone == "0" else f"{share} ({gone})"


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def fill(page: str, name: str, text: str) -> str:
    """`page` with what stands between the markers of `name` replaced by `text`.

    Raises:
        ValueError: the page has no such markers.
    """
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"{PAGE} has no place for {name}: put {begin} and {end} into it")
    return pattern.sub(lambda _: f"{begin}\n{text}\n{end}", page)


def blocks(choice: Choice, store: Store) -> dict[str, Callable[[], str]]:
    """What can be filled in, by the name of its place."""
    tables: dict[str, Callable[[], str]] = {
        "models": lambda: models_table(store),
        "tuning": lambda: tuning_table(store, "faulty"),
    }
    fast, long = replace(choice, **_FAST), replace(choice, **_LONG)
    tables["style fast"] = lambda: accuracy_table(runs_of(fast, store, "style"))
    tables["style long"] = lambda: seeds_table(runs_of(long, store, "style"))
    for setting in SETTINGS:
        tables[setting] = lambda setting=setting: accuracy_table(runs_of(choice, store, setting))
        tables[f"gate {setting}"] = lambda setting=setting: gate_table(
            runs_of(choice, store, setting)
        )
    return tables


def write_report(choice: Choice, store: Store, folder: Path) -> None:
    """Fill the tables of folder/results.md and draw folder/figures.

    A page that is not there is begun with the tables alone.

    Raises:
        ValueError: there are no main runs, or the page has no place for a table.
    """
    from benchmarks.study_figures import draw_all  # matplotlib is needed for reports alone

    if not store.of_kind(RUN):
        raise ValueError(f"{store.path} has no main runs: python -m benchmarks.study run")
    tables = blocks(choice, store)
    path = folder / PAGE
    if path.exists():
        page = path.read_text()
    else:
        page = "\n\n".join(f"## {n}\n\n<!-- begin {n} -->\n<!-- end {n} -->" for n in tables) + "\n"
    for name, make in tables.items():
        page = fill(page, name, make())
    (folder / FIGURES).mkdir(parents=True, exist_ok=True)
    path.write_text(page)
    runs = {name: runs_of(choice, store, name) for name in SETTINGS}
    fast = replace(choice, **_FAST)
    draw_all(runs, runs_of(fast, store, "style"), folder / FIGURES)
