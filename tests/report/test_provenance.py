"""git.json and git.diff, in checkouts made for the test and where there is none."""

import json
import shutil
import subprocess

import pytest

from opdvr.report import provenance
from opdvr.report.provenance import collect_git, collect_versions
from opdvr.report.run_folder import RunFolder

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(directory, *arguments):
    identity = ["-c", "user.name=T", "-c", "user.email=t@example.org"]
    done = subprocess.run(
        ["git", "-C", str(directory), *identity, *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    directory = tmp_path / "check out"
    (directory / "package").mkdir(parents=True)
    git(directory, "init", "-q", "-b", "trunk")
    (directory / "package" / "code.py").write_text("a = 1\n")
    git(directory, "add", ".")
    git(directory, "commit", "-q", "-m", "first")
    return directory


@needs_git
def test_clean_checkout(checkout):
    record, diff = collect_git(checkout / "package")
    assert record["commit"] == git(checkout, "rev-parse", "HEAD")
    assert (record["branch"], record["dirty"], record["untracked_count"]) == ("trunk", False, 0)
    assert diff == b""


@needs_git
def test_changes_are_in_the_diff_and_untracked_files_are_named(checkout, tmp_path):
    (checkout / "package" / "code.py").write_text("a = 2\n")
    (checkout / "näw file").write_text("x")
    run = tmp_path / "run"
    RunFolder(run, source_dir=checkout / "package").open({}, [], None)
    record = json.loads((run / "git.json").read_text())
    assert record["dirty"] and not record["diff_truncated"]
    assert record["untracked"] == ["näw file"]
    assert "-a = 1\n+a = 2\n" in (run / "git.diff").read_text()


@needs_git
def test_a_large_diff_is_cut(checkout, monkeypatch):
    (checkout / "package" / "code.py").write_text("b = 1\n" * 100)
    whole = collect_git(checkout / "package")[1]
    monkeypatch.setattr(provenance, "MAX_DIFF_BYTES", len(whole))
    assert collect_git(checkout / "package")[0]["diff_truncated"] is False
    monkeypatch.setattr(provenance, "MAX_DIFF_BYTES", len(whole) - 1)
    record, diff = collect_git(checkout / "package")
    assert record["diff_truncated"] is True
    assert diff == whole[:-1]


@needs_git
def test_detached_head_has_no_branch(checkout):
    git(checkout, "checkout", "-q", "--detach")
    record, _ = collect_git(checkout / "package")
    assert record["branch"] is None
    assert record["commit"]


@needs_git
def test_checkout_without_a_commit(tmp_path):
    git(tmp_path, "init", "-q", "-b", "trunk")
    (tmp_path / "code.py").write_text("a = 1\n")
    git(tmp_path, "add", ".")
    record, diff = collect_git(tmp_path)
    assert (record["available"], record["commit"], record["branch"]) == (True, None, "trunk")
    assert "no commit yet" in record["reason"]
    assert diff is None


@needs_git
def test_outside_a_checkout_the_reason_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    RunFolder(tmp_path / "run", source_dir=tmp_path).open({}, [], None)
    record = json.loads((tmp_path / "run" / "git.json").read_text())
    assert record["available"] is False
    assert "not a git repository" in record["reason"]
    assert not (tmp_path / "run" / "git.diff").exists()


@needs_git
def test_an_installed_copy_inside_someones_checkout_is_not_described_by_it(checkout):
    installed = checkout / "venv" / "package"
    installed.mkdir(parents=True)
    (installed / "code.py").write_text("a = 1\n")
    record, diff = collect_git(installed)
    assert record["available"] is False
    assert "tracks no file in" in record["reason"]
    assert diff is None


def test_without_git_the_reason_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    record, diff = collect_git(tmp_path)
    assert record["available"] is False
    assert "git cannot be run" in record["reason"]
    assert diff is None


def test_versions_name_missing_packages_as_none(monkeypatch):
    monkeypatch.setattr(provenance, "_PACKAGES", ["numpy", "surely-not-installed"])
    versions = collect_versions(["x"])
    assert versions["surely-not-installed"] is None
    assert versions["numpy"]
    assert versions["started"][10] == "T"
