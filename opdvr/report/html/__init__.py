"""One or more runs as one self-contained HTML file: curves, gate anatomy, token heat map, samples.

Python draws the curves as SVG and embeds what models wrote as JSON, which page.js shows as text.
"""

from opdvr.report.html.page import write_report

__all__ = ["write_report"]
