"""A user's own verifier, named `module:function` or `file.py:function`."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

OWN = "opdvr.verifier:compute_score"


def split_name(name: str) -> tuple[str, str]:
    """(module or file, function) of a verifier's name.

    Raises:
        ValueError: when it is not of that form.
    """
    source, colon, function = name.rpartition(":")
    if not colon or not source or not function.isidentifier():
        raise ValueError(
            f"verifier {name!r} is not of the form module:function or file.py:function, "
            f"such as {OWN}"
        )
    return source, function


def load_verifier(name: str) -> Callable:
    """The function of that name: verl's contract of a custom reward function.

    Called with keywords data_source, solution_str, ground_truth and extra_info; returns a number,
    or a dictionary with at least `score`. A file's module is registered under its own name's stem
    with a prefix, so that its objects can be pickled.

    Raises:
        ValueError: no such module, file or function.
    """
    source, function = split_name(name)
    if source.endswith(".py"):
        module = _load_file(Path(source).expanduser())
    else:
        if importlib.util.find_spec(source.partition(".")[0]) is None:
            raise ValueError(f"verifier {name}: no module named {source}")
        module = importlib.import_module(source)
    found = getattr(module, function, None)
    if not callable(found):
        raise ValueError(f"verifier {name}: {source} has no function {function}")
    return found


def _load_file(path: Path) -> object:
    if not path.is_file():
        raise ValueError(f"verifier: file not found: {path}")
    module_name = f"opdvr_verifier_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module
