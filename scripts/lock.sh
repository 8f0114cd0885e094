#!/usr/bin/env bash
# Remakes requirements/cpu.txt and gpu.txt from the .in files: every package pinned, with hashes, for
# Python 3.10 to 3.12 on Linux. Pins that still fit are kept; pass --upgrade for the newest.
# shellcheck source=scripts/env.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/env.sh"

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools"
"$tools/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$UV_VERSION"

cd "$ROOT"
lock() { # NAME OPTION...
  say "locking requirements/$1.txt"
  UV_PYTHON_DOWNLOADS=never "$tools/bin/uv" pip compile "requirements/$1.in" \
    --universal --python-version 3.10 --generate-hashes --quiet \
    --no-emit-index-url --no-emit-find-links --custom-compile-command "bash scripts/lock.sh" \
    --output-file "requirements/$1.txt" "${@:2}"
}
lock cpu --override requirements/cpu-overrides.txt "$@"
lock gpu "$@"
