"""Files that appear whole or not at all, and are the same to the byte every time."""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_READ_AT_ONCE = 1 << 20  # bytes


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path in the same folder, which becomes `path` when the block ends well.

    Raises:
        ValueError: the operating system refuses to write; names `path` and the remedy.
    """
    try:
        with _renamed_to(path) as temporary:
            yield temporary
    except OSError as error:
        raise cannot_write(path, error) from None


def cannot_write(path: Path, error: OSError) -> ValueError:
    """What the operating system refused, about the file or folder that the user knows of."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    return ValueError(
        f"{path} cannot be written ({reason}); give a folder that is writable and has free space "
        "with --output"
    )


@contextlib.contextmanager
def _renamed_to(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes the file private; data files are as readable as the folder allows.
        temporary.chmod(0o644)
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_parquet(table: pa.Table, path: Path) -> None:
    """Write a table with every option fixed: one version of pyarrow gives the same bytes."""
    with whole_file(path) as temporary:
        pq.write_table(
            table,
            temporary,
            row_group_size=8192,
            version="2.6",
            data_page_version="1.0",
            compression="zstd",
            compression_level=3,
            use_dictionary=True,
            write_statistics=False,
        )


def write_text(text: str, path: Path) -> None:
    """Write a text as UTF-8."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_READ_AT_ONCE):
            digest.update(block)
    return digest.hexdigest()
