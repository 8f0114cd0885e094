"""Write a product: the parquet file, what it was made from, what was left out."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from opdvr.data import manifest, products
from opdvr.data.files import sha256_of, write_parquet, write_text
from opdvr.data.rows import (
    LeftOut,
    Row,
    content_sha256,
    count_removed,
    removed_lines,
    to_table,
)
from opdvr.data.wording import how_many


@dataclass
class Product:
    """Rows for one output file, and how they came about.

    Attributes:
        sources: what was read: name, rows, and sha256 or the hub's commit.
        given: the user's own file or folder, which is never written to.
    """

    output: Path
    rows: list[Row]
    removed: list[LeftOut]
    sources: list[dict]
    given: Path | None = None
    entry: dict = field(default_factory=dict)


def sources_file(output: Path) -> Path:
    """The sidecar that says what a file was made from."""
    return output.with_name(output.name + ".sources.json")


def removed_file(output: Path) -> Path:
    """The sidecar with the rows that were left out."""
    return output.with_name(output.name + ".removed.jsonl")


def check_output(output: Path, inputs: list[Path], force: bool) -> None:
    """Refuse to write over a source, or over a file that `prepare` did not make.

    Raises:
        ValueError: with the remedy.
    """
    if output.suffix != ".parquet":
        raise ValueError(f"--output {output}: its name must end in .parquet")
    if output.is_dir():
        raise ValueError(f"--output {output} is a folder; name a file in it")
    ours = output.name in products.PRODUCTS or sources_file(output).is_file()
    for path in inputs:
        inside = path.is_dir() and output.resolve().parent == path.resolve()
        if output.resolve() == path.resolve() or (inside and output.exists() and not ours):
            raise ValueError(f"--output {output} is a source of this command; name another file")
    if output.exists() and not ours and not force:
        raise ValueError(
            f"--output {output} exists and does not say that this command made it; name another "
            "file, or replace it with --force"
        )


def pinned_commits(output: Path) -> dict[str, str]:
    """The hub commits by source name that `output` was made from last time."""
    path = sources_file(output)
    if not path.is_file():
        return {}
    recorded = json.loads(path.read_text(encoding="utf-8"))
    return {s["name"]: s["commit"] for s in recorded["sources"] if "commit" in s}


def write_product(product: Product, command: str) -> None:
    """Write the file and its sidecars, each whole or not at all; fills in the manifest entry.

    Raises:
        ValueError: no row is left.
    """
    removed = count_removed(product.removed)
    if not product.rows:
        reasons = "; ".join(f"{how_many(n, 'row')}: {reason}" for reason, n in removed.items())
        raise ValueError(f"{product.output} is not written, since no row is left: {reasons}")
    write_parquet(to_table(product.rows), product.output)
    product.entry = manifest.make_entry(
        command,
        len(product.rows),
        sha256_of(product.output),
        content_sha256(product.rows),
        product.sources,
        removed,
    )
    record = {"file": product.output.name, **product.entry}
    write_text(manifest.to_json(record), sources_file(product.output))
    lines = list(removed_lines(product.removed))
    if lines:
        write_text("".join(f"{line}\n" for line in lines), removed_file(product.output))
    else:
        # One from an earlier run would speak of rows that are in the file now.
        removed_file(product.output).unlink(missing_ok=True)
