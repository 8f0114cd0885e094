"""`datasets/manifest.json`: rows and checksums of each product as it was made for this version."""

import json
from pathlib import Path

import pyarrow as pa

from opdvr.data.files import write_text

PATH = Path(__file__).parents[2] / "datasets" / "manifest.json"


def read_manifest(path: Path = PATH) -> dict[str, dict]:
    """Entries by file name; none where the manifest is not there (an installed package)."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def make_entry(
    command: str, rows: int, sha256: str, content: str, sources: list[dict], removed: dict[str, int]
) -> dict:
    """What is recorded of a product: equal entries mean equal files from equal sources."""
    return {
        "command": command,
        "rows": rows,
        "sha256": sha256,
        "content_sha256": content,
        "pyarrow": pa.__version__,
        "removed": removed,
        "sources": sources,
    }


def update_manifest(file_name: str, entry: dict, path: Path = PATH) -> None:
    """Put an entry in, in place of an earlier one of that name."""
    entries = {**read_manifest(path), file_name: entry}
    write_text(to_json(dict(sorted(entries.items()))), path)


def to_json(value: dict) -> str:
    """Indented JSON with a final line break."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def compare(entry: dict, name: str, recorded: dict | None) -> str:
    """One line: equal to the manifest's file `name`, not in there, or in what the entry differs."""
    if recorded is None:
        return f"the manifest has no {name}"
    if entry["sha256"] == recorded["sha256"]:
        return f"equal to the manifest's {name}"
    if entry["content_sha256"] == recorded["content_sha256"]:
        return (
            f"the rows of the manifest's {name}, in other bytes (written by pyarrow "
            f"{entry['pyarrow']}, there {recorded['pyarrow']})"
        )
    differences = [
        f"{key} {entry[key]}, there {recorded[key]}"
        for key in ("rows", "sha256")
        if entry[key] != recorded[key]
    ]
    return f"differs from the manifest's {name}: {'; '.join(differences)}"
