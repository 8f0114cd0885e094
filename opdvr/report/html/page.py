"""The page put together, and written."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from opdvr.report.html import sections
from opdvr.report.html.load import Group, grouped, load_runs
from opdvr.report.html.outcome import outcome_table
from opdvr.report.html.samples import token_samples, validation_samples
from opdvr.report.html.text import markup, script_json
from opdvr.report.step_records import write_atomically

REPORT_NAME = "report.html"
_PARTS = {
    "outcome": "Outcome",
    "curves": "Curves",
    "gate": "Gate anatomy",
    "tokens": "Responses, token by token",
    "validation": "Validation samples",
    "configuration": "Configuration",
}


def write_report(folders: Sequence[Path | str], output: Path | str | None = None) -> Path:
    """Write one or more runs as one HTML file that needs nothing beside it.

    Args:
        folders: run folders. Runs that differ only in seed and name are drawn as one group.
        output: the file; None for report.html in the run's folder, or here for several runs.

    Returns:
        The file written.

    Raises:
        ValueError: no run, no run folder, more groups than can be told apart, a damaged file, or
            the output cannot be written.
    """
    runs = load_runs(folders)
    groups = grouped(runs)
    if output is None:
        output = runs[0].folder / REPORT_NAME if len(runs) == 1 else Path(REPORT_NAME)
    output = Path(output)
    if output.is_dir():
        raise ValueError(f"{output} is a folder: name a file in it with --output")
    if output.exists() and not (output.is_file() and output.suffix.lower() in (".html", ".htm")):
        raise ValueError(f"{output} is there and is no HTML file: choose another --output")
    content = page(groups).encode()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(output, content)
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(
            f"{output} cannot be written ({reason}): choose another --output"
        ) from None
    return output


def page(groups: Sequence[Group]) -> str:
    """The whole document."""
    data: dict[str, Any] = {"charts": {}, "pushed": {}, "config": None}
    runs = [run for group in groups for run in group.runs]
    data["samples"], omitted = token_samples(runs)
    data["validation"], unseen = validation_samples(runs)
    body = {
        "outcome": sections.header(groups)
        + outcome_table(groups)
        + sections.alarms(groups)
        + sections.differences(groups),
        "curves": sections.curves(groups, data),
        "gate": sections.anatomy(groups, data),
        "tokens": _viewer("samples", sections.left_out(data["samples"], omitted))
        if data["samples"]
        else "<p>No token_samples.jsonl here: opdvr.token_samples above 0 writes it.</p>",
        "validation": _viewer("validation", sections.left_out(data["validation"], unseen))
        if data["validation"]
        else "<p>No validation samples here: a run writes validation.jsonl as it validates.</p>",
        "configuration": sections.configuration(groups, data),
    }
    title = markup(groups[0].title if len(groups) == 1 else f"{len(groups)} runs compared")
    return _document(title, body, data)


def _viewer(name: str, note: str) -> str:
    return f'<p class="note">{note}</p><div class="viewer" data-of="{name}"></div>'


def _document(title: str, body: dict[str, str], data: dict[str, Any]) -> str:
    style, script = _asset("page.css"), _asset("page.js") + _asset("responses.js")
    # The one script that may run is the page's own, even if markup slipped in somewhere.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    links = "".join(f'<a href="#{name}">{heading}</a>' for name, heading in _PARTS.items())
    parts = "".join(
        f'<section id="{name}" aria-labelledby="{name}-heading">'
        f'<h2 id="{name}-heading">{heading}</h2>{body[name]}</section>'
        for name, heading in _PARTS.items()
    )
    embedded = "".join(
        f'<script type="application/json" id="data-{name}">{script_json(value)}</script>\n'
        for name, value in data.items()
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title} – OPDVR report</title>
<style>{style}</style>
</head>
<body>
<header><h1><bdi>{title}</bdi></h1><button type="button" id="theme" hidden></button></header>
<nav aria-label="Parts of the report">{links}</nav>
<noscript><p>Without JavaScript the responses, the tokens most often pushed and the options are not
shown.</p></noscript>
<main>{parts}</main>
{embedded}<script>{script}</script>
</body>
</html>
"""


def _asset(name: str) -> str:
    return resources.files("opdvr.report.html").joinpath(name).read_text(encoding="utf-8")
