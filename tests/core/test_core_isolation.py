"""The core depends on torch and the standard library alone, and reads nothing from outside."""

import ast
import sys
from pathlib import Path

import pytest

import opdvr.core

SOURCES = sorted(Path(opdvr.core.__file__).parent.glob("*.py"))
OUTSIDE = ("os", "argparse", "configparser", "subprocess", "socket")


def imported_modules(source):
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            yield node.module


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_imports(source):
    for module in imported_modules(source):
        top = module.split(".")[0]
        known = top == "torch" or module.startswith("opdvr.core") or top in sys.stdlib_module_names
        assert known, f"{source.name} imports {module}"
        assert top not in OUTSIDE and module != "torch.distributed"


def test_the_whole_package_was_looked_at():
    assert {path.stem for path in SOURCES} >= {
        "spec",
        "gates",
        "groups",
        "rewards",
        "advantages",
        "head",
        "metrics",
    }
    assert all(hasattr(opdvr.core, name) for name in opdvr.core.__all__)
