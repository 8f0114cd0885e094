# shellcheck shell=bash
# Paths, messages, the device and the Python environment: sourced by every other script.
set -euo pipefail

ROOT=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# Installs and locks the requirements; pinned so that a lock reads the same everywhere.
# shellcheck disable=SC2034  # used by setup.sh and lock.sh
UV_VERSION=0.13.9
# Written last by setup.sh: an environment without the current stamp is unfinished or outdated.
STAMP=.opdvr-stamp
# Written first by setup.sh: only folders that carry it are ever changed.
MARKER=.opdvr-environment

say() { printf 'opdvr: %s\n' "$*" >&2; }

die() {
  say "$*"
  exit 2
}

# cpu or cuda: OPDVR_DEVICE if set, else cuda where a GPU is listed and not hidden.
pick_device() {
  local gpus
  case ${OPDVR_DEVICE:-} in
    cpu | cuda) echo "$OPDVR_DEVICE" && return ;;
    "") ;;
    *) die "OPDVR_DEVICE='$OPDVR_DEVICE' is not a device: use cpu or cuda, or leave it unset" ;;
  esac
  case ${CUDA_VISIBLE_DEVICES-all} in
    "" | -1 | NoDevFiles) echo cpu && return ;;
  esac
  gpus=$(nvidia-smi -L 2>/dev/null) || gpus=""
  if [[ $gpus == *"GPU "* ]]; then echo cuda; else echo cpu; fi
}

lock_file() { # DEVICE
  if [[ $1 == cuda ]]; then echo "$ROOT/requirements/gpu.txt"; else echo "$ROOT/requirements/cpu.txt"; fi
}

stamp_of() { # DEVICE: what a finished environment's stamp says
  local lock
  lock=$(lock_file "$1")
  printf '%s %s\n' "$(basename -- "$lock")" "$(sha256sum <"$lock" | cut -d' ' -f1)"
}

venv_dir() {
  local dir=${OPDVR_VENV:-$ROOT/.venv}
  if [[ $dir != /* ]]; then dir=$PWD/$dir; fi
  echo "$dir"
}

is_current() { # VENV DEVICE: made by setup.sh from today's lock
  [[ -x $1/bin/python && -f $1/$STAMP && $(<"$1/$STAMP") == "$(stamp_of "$2")" ]]
}

# Whether a Python has what training needs, and the MODULEs named besides. Looks, imports nothing.
serves() { # PYTHON MODULE...
  "$1" -I -c '
import importlib.metadata, importlib.util, sys
needed = ["verl", "vllm", "torch", "ray", "math_verify", *sys.argv[1:]]
if any(importlib.util.find_spec(name) is None for name in needed):
    sys.exit(1)
sys.exit(importlib.metadata.version("verl") != "0.7.0")
' "${@:2}" 2>/dev/null
}

# Prints the active environment's Python if it serves. An environment named in OPDVR_VENV goes
# before the active one: an explicit word beats what happens to be active.
active_python() { # MODULE...
  local dir
  if [[ -n ${OPDVR_VENV:-} ]]; then return 1; fi
  for dir in "${VIRTUAL_ENV:-}" "${CONDA_PREFIX:-}"; do
    if [[ -n $dir && -x $dir/bin/python ]] && serves "$dir/bin/python" "$@"; then
      echo "$dir/bin/python"
      return
    fi
  done
  return 1
}

# Sets PYTHON: the active environment's, else that of OPDVR_VENV (.venv), set up first if need be.
# An environment that setup.sh did not make is used if it serves, and never changed.
find_python() { # DEVICE MODULE...
  local device=$1 venv
  shift
  if PYTHON=$(active_python "$@"); then return; fi
  venv=$(venv_dir)
  PYTHON=$venv/bin/python
  if is_current "$venv" "$device"; then return; fi
  if [[ -x $PYTHON && ! -e $venv/$MARKER ]] && serves "$PYTHON" "$@"; then return; fi
  OPDVR_DEVICE=$device bash "$ROOT/scripts/setup.sh"
}
