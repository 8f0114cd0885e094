"""`python -m opdvr`: commands by name."""

import importlib
import sys

import pytest

from opdvr.__main__ import COMMANDS, main


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["opdvr", *arguments])
    return main(), capsys.readouterr()


@pytest.mark.parametrize("arguments", [(), ("-h",), ("datta",)])
def test_usage_names_every_command(monkeypatch, capsys, arguments):
    code, said = run(monkeypatch, capsys, *arguments)
    asked = arguments == ("-h",)
    assert code == (0 if asked else 2)
    usage = said.out if asked else said.err
    assert all(f"\n  {name} " in usage for name in COMMANDS)
    assert ("unknown command 'datta'" in said.err) is (arguments == ("datta",))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_main(name):
    assert callable(importlib.import_module(COMMANDS[name][0]).main)


def test_arguments_and_exit_code_pass_through(monkeypatch, capsys):
    code, said = run(monkeypatch, capsys, "data", "check", "/no/such.parquet")
    assert code == 2 and "file not found" in said.err
