"""A user's own verifier, named `module:function` or `file.py:function`."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Collection
from pathlib import Path

OWN = "opdvr.verifier:compute_score"


ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")


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


def load_verifier(name: str, further: Collection[str] = ()) -> Callable:
    """The function of that name: verl's contract of a custom reward function.

    Called with keywords data_source, solution_str, ground_truth and extra_info; returns a number,
    or a dictionary with at least `score`. A file's module is registered under its own name's stem
    with a prefix, so that its objects can be pickled. `further`: see `check_verifier`.

    Raises:
        ValueError: no such module, file or function, or one that cannot be imported or called so.
    """
    source, function = split_name(name)
    if source.endswith(".py"):
        module = _load_file(Path(source).expanduser())
    else:
        if importlib.util.find_spec(source.partition(".")[0]) is None:
            raise ValueError(f"verifier {name}: no module named {source}")
        module = _imported(lambda: importlib.import_module(source), source)
    found = getattr(module, function, None)
    if not callable(found):
        raise ValueError(f"verifier {name}: {source} has no function {function}")
    check_verifier(found, name, further)
    return found


def check_verifier(function: Callable, name: str, further: Collection[str] = ()) -> None:
    """Refuse a function that cannot be called as a verifier is, before anything is sampled.

    Args:
        function: the user's.
        name: what to call it in messages.
        further: keywords it is given besides, such as verl's reward_kwargs.

    Raises:
        ValueError: it is asynchronous, or does not take the keywords of the contract.
    """
    wanted = (*ARGUMENTS, *further)
    if inspect.iscoroutinefunction(function):
        raise ValueError(f"verifier {name} is asynchronous; give a plain function")
    try:
        inspect.signature(function).bind(**dict.fromkeys(wanted))
    except TypeError as reason:
        raise ValueError(
            f"verifier {name} cannot be called with {', '.join(wanted)} ({reason}); "
            "it gets them as keywords"
        ) from None


def _load_file(path: Path) -> object:
    if not path.is_file():
        raise ValueError(f"verifier: file not found: {path}")
    module_name = f"opdvr_verifier_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    _imported(lambda: spec.loader.exec_module(module), str(path))
    return module


def _imported(load: Callable, source: str) -> object:
    try:
        return load()
    except (SyntaxError, ImportError) as reason:
        raise ValueError(f"verifier: {source} cannot be imported: {reason}") from reason
