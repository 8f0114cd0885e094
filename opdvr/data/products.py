"""The files that `opdvr data prepare` makes, by name; imports nothing, so that any part may ask."""

COMMAND = "python -m opdvr data"
FOLDER = "datasets"
VALID_FILE = "valid_final_unique.parquet"
DEEPMATH_FILE = "deepmath-level6-train.parquet"
DAPO_FILE = "dapo-math-17k-train.parquet"

# File name: what makes it.
PRODUCTS = {VALID_FILE: "valid", DEEPMATH_FILE: "deepmath", DAPO_FILE: "dapo"}


def how_to_make(file_name: str) -> str | None:
    """The command that makes a file of this name; None where it is none of ours."""
    product = PRODUCTS.get(file_name)
    return f"{COMMAND} prepare {product}" if product else None
