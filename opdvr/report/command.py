"""`opdvr report RUN... [--output FILE.html]`: runs as one self-contained HTML file."""

from __future__ import annotations

import argparse
import sys

USER_MISTAKE = 2


def main(arguments: list[str]) -> int:
    """Entry of `opdvr report`; a user's mistake is one line and exit code 2."""
    parser = argparse.ArgumentParser(
        prog="opdvr report",
        description="One or more runs as one HTML file: curves, what the gate did, responses token "
        "by token, configuration. It needs no network and can be sent as it is.",
    )
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help="run folder, such as checkpoints/<EXPERIMENT_NAME>"
    )
    parser.add_argument(
        "--output",
        metavar="FILE.html",
        help="default: report.html in the run's folder; here, for several runs",
    )
    try:
        options = parser.parse_args(arguments)
    except SystemExit as exit_:
        return int(exit_.code or 0)
    # Drawing takes a second to import; --help should not.
    from opdvr.report.html import write_report

    try:
        output = write_report(options.runs, options.output)
    except ValueError as mistake:
        print(f"opdvr report: {mistake}", file=sys.stderr)
        return USER_MISTAKE
    print(f"opdvr report: {output} ({output.stat().st_size / 1e6:.1f} MB)")
    return 0
