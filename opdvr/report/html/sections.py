"""The page's parts as markup, each with the data that page.js needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from opdvr.report.html.anatomy import anatomies
from opdvr.report.html.anatomy_charts import anatomy_block
from opdvr.report.html.chart import drawn
from opdvr.report.html.curves import averaging_note, charts
from opdvr.report.html.load import Group, LoadedRun, different_options
from opdvr.report.html.text import markup, shortened, table
from opdvr.report.panels import PHASE_LABELS
from opdvr.report.progress import format_duration
from opdvr.report.series import phase_seconds
from opdvr.report.step_records import ALARMS_NAME

_MOST_DIFFERENCES = 40
_VALUE_CHARS = 400
_MOST_ALARMS = 20


def method_of(run: LoadedRun) -> str:
    """The method in words, from the configuration; a dash where it is not known."""
    if run.config is None:
        return "–"
    estimator = run.option("algorithm.adv_estimator")
    if estimator is None:
        return "supervised fine-tuning"
    if not run.option("reward_model.enable"):
        return f"{estimator}, no teacher"
    gate = (
        run.option("opdvr.correctness_gated_mode")
        if run.option("opdvr.correctness_gated")
        else "none"
    )
    if run.option("opdvr.full_vocabulary", "none") != "none":
        signal = f"{run.option('opdvr.full_vocabulary')} over the vocabulary"
    elif run.option("opdvr.log_prob_top_k"):
        signal = f"top {run.option('opdvr.log_prob_top_k')}, {run.option('opdvr.top_k_strategy')}"
    else:
        signal = "sampled tokens"
    scaled = ", GRPD scale" if run.option("opdvr.grpo_scaled") else ""
    return f"{estimator}, gate {gate}{scaled}, {signal}"


def header(groups: Sequence[Group]) -> str:
    """A row a run: what was trained, from what, for how long."""
    rows = []
    for group in groups:
        for run in group.runs:
            student = run.option("actor_rollout_ref.model.path", run.option("model.path"))
            has_teacher = run.option("reward_model.enable")
            teacher = run.option("reward_model.model.path") if has_teacher else None
            seconds = sum(sum(phase_seconds(record).values()) for record in run.metrics)
            rows.append(
                [
                    f'<span class="swatch s{group.number + 1}"></span>'
                    f"<bdi>{markup(run.label)}</bdi>",
                    markup(method_of(run)),
                    _model(student),
                    _model(teacher),
                    str(run.metrics[-1]["step"]),
                    format_duration(seconds) if seconds else "–",
                ]
            )
    return table(["run", "method", "student", "teacher", "steps", "time"], rows)


def _model(path: object) -> str:
    if not path:
        return "–"
    return f'<span title="{markup(path)}">{markup(PurePath(str(path)).name)}</span>'


def alarms(groups: Sequence[Group]) -> str:
    """What the watchdog said, where it said anything."""
    lines = [
        f"<li><bdi>{markup(run.label)}</bdi>: {markup(record.get('line', record))}</li>"
        for group in groups
        for run in group.runs
        for record in run.alarms
    ]
    if not lines:
        return ""
    more = len(lines) - _MOST_ALARMS
    rest = f"<p>{more} more in {ALARMS_NAME}.</p>" if more > 0 else ""
    return f'<h3>Alarms</h3><ul class="alarms">{"".join(lines[:_MOST_ALARMS])}</ul>{rest}'


def differences(groups: Sequence[Group]) -> str:
    """The options in which the groups differ; nothing for one group."""
    if len(groups) < 2:
        return ""
    found = different_options(groups)
    rows = [
        [markup(name), *(markup(shortened(value, 80)) for value in values)]
        for name, values in list(found.items())[:_MOST_DIFFERENCES]
    ]
    if not rows:
        return "<p>No option is known to differ.</p>"
    more = len(found) - len(rows)
    caption = f"Options that differ{f' ({more} more are left out)' if more else ''}"
    return table(["option", *(markup(group.title) for group in groups)], rows, caption)


def curves(groups: Sequence[Group], data: dict[str, Any]) -> str:
    """All charts over steps, and seconds by phase."""
    found, missing = charts(groups)
    figures = []
    for number, chart in enumerate(found):
        figure, data["charts"][f"c{number}"] = drawn(chart, f"c{number}")
        figures.append(figure)
    notes = [averaging_note(groups)]
    if any(len(group.runs) > 1 for group in groups):
        notes.append(
            "Runs that differ only in seed and name are one line: their mean at the steps that all "
            "of them have, their range as a band, each of them thin."
        )
    if missing:
        notes.append(f"Not logged by any run here: {', '.join(missing)}.")
    note = "".join(f"<p class='note'>{markup(text)}</p>" for text in notes if text)
    return f'<div class="panels">{"".join(figures)}</div>{note}{_phases(groups)}'


def _phases(groups: Sequence[Group]) -> str:
    bars = {}
    for group in groups:
        for run in group.runs:
            timed = [seconds for record in run.metrics if (seconds := phase_seconds(record))]
            if timed:
                bars[run.label] = {
                    phase: sum(seconds.get(phase, 0.0) for seconds in timed) / len(timed)
                    for phase in PHASE_LABELS
                }
    if not bars:
        return "<p>No times were logged.</p>"
    longest = max(sum(means.values()) for means in bars.values())
    rows = []
    for label, means in bars.items():
        parts = "".join(
            f'<span class="phase{number}" style="width:{100 * seconds / longest:.2f}%" '
            f'title="{PHASE_LABELS[phase]}: {seconds:.2f} s"></span>'
            for number, (phase, seconds) in enumerate(means.items())
            if seconds
        )
        words = ", ".join(f"{PHASE_LABELS[p]} {s:.2f} s" for p, s in means.items() if s)
        rows.append(
            f'<div class="phases"><p><bdi>{markup(label)}</bdi>: {sum(means.values()):.2f} s</p>'
            f'<div class="bar" aria-hidden="true">{parts}</div><p class="readout">{words}</p></div>'
        )
    key = "".join(
        f'<li><span class="swatch phase{number}"></span>{label}</li>'
        for number, (phase, label) in enumerate(PHASE_LABELS.items())
        if any(means[phase] for means in bars.values())
    )
    return f'<h3>Mean seconds a step, by phase</h3><ul class="legend">{key}</ul>{"".join(rows)}'


def anatomy(groups: Sequence[Group], data: dict[str, Any]) -> str:
    """For each group and window of steps a block, of which the page shows one at a time."""
    blocks, choices = [], []
    for group in groups:
        for window in anatomies(group):
            name = f"a{len(blocks)}"
            block, readable = anatomy_block(group, window, name)
            data["charts"] |= readable
            data["pushed"][name] = window.pushed
            title = markup(f"{group.title}, {window.window}" if len(groups) > 1 else window.window)
            choices.append(f'<option value="{name}">{title}</option>')
            hidden = " hidden" if blocks else ""
            blocks.append(
                f'<div class="anatomy" id="{name}"{hidden}>{block}<h3>Tokens most often pushed up '
                f'and down</h3><div class="pushed" data-of="{name}"></div></div>'
            )
    if not blocks:
        return "<p>No anatomy.jsonl here: a run writes it with opdvr.gate_anatomy=True.</p>"
    return (
        '<p class="note">The log-ratio is what the teacher gives a sampled token minus what the '
        "student gives it, before the gate. Pale: all tokens; full: those the gate left anything "
        "of. The axis is logarithmic to both sides of 0.</p>"
        '<p><label>Show <select id="anatomy-choice">'
        f"{''.join(choices)}</select></label></p>{''.join(blocks)}"
    )


def configuration(groups: Sequence[Group], data: dict[str, Any]) -> str:
    """Every run's command lines, versions and git state, and each group's options, searchable."""
    parts = []
    for group in groups:
        for run in group.runs:
            parts.append(_provenance(run))
    names = dict.fromkeys(name for group in groups for name in group.runs[0].config or {})
    if not names:
        return "".join(parts) + "<p>No config.yaml here.</p>"
    data["config"] = {
        "head": [group.title for group in groups],
        "given": sorted(_given(groups)),
        "rows": [[name, *(_value(group.runs[0], name) for group in groups)] for name in names],
    }
    return "".join(parts) + (
        "<details open><summary>Options</summary><p><label>Search "
        '<input id="config-search" type="search" placeholder="name or value"></label> '
        '<label><input id="config-given" type="checkbox"> only those on the command line</label> '
        '<span id="config-count" role="status"></span></p><div class="scroll tall">'
        '<table id="config"></table></div></details>'
    )


def _value(run: LoadedRun, name: str) -> str:
    if run.config is None or name not in run.config:
        return ""
    return shortened(run.config[name], _VALUE_CHARS)


def _given(groups: Sequence[Group]) -> set[str]:
    given = set()
    for group in groups:
        for start in group.runs[0].versions[:1]:
            for argument in start.get("command", ()):
                name, separator, _ = str(argument).lstrip("+~").partition("=")
                if separator:
                    given.add(name)
    return given


def _provenance(run: LoadedRun) -> str:
    label = f"<bdi>{markup(run.label)}</bdi>"
    text = []
    if run.summary:
        text.append(f'<h3 class="minor">Summary</h3><pre tabindex="0">{markup(run.summary)}</pre>')
    for start in run.versions:
        command = markup(shortened(start.get("command_line", "–"), 4000))
        started = markup(start.get("started", "–"))
        text.append(f'<h3 class="minor">Started {started}</h3><pre>{command}</pre>')
    if run.versions:
        last = {k: v for k, v in run.versions[0].items() if not k.startswith("command")}
        text.append(_facts(last.items(), "Versions and machine"))
    if run.git:
        text.append(_facts(run.git.items(), "Code"))
    if not text:
        text.append("<p>No versions.json, git.json or summary.txt here.</p>")
    return (
        f"<details><summary>{label}: command line, versions, git</summary>{''.join(text)}</details>"
    )


def _facts(items: Iterable[tuple[str, Any]], caption: str) -> str:
    rows = [[markup(key), markup(shortened(value, _VALUE_CHARS))] for key, value in items]
    return table(["what", "value"], rows, caption)


def left_out(samples: Sequence[Mapping[str, Any]], count: int) -> str:
    """How many of the recorded responses the page holds."""
    if not count:
        return f"All {len(samples)} recorded responses."
    return (
        f"{len(samples)} of {len(samples) + count} recorded responses, spread over steps and "
        "verdicts; the rest stays in the run folder."
    )
