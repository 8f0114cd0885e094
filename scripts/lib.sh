# shellcheck shell=bash
# Starts a training run. Each launcher sources this file, names its method's settings and calls
# `launch`. What is said later wins: the launcher, the variables, the command line.
#   DRY_RUN=1                print the command on one line and stop
#   CHECK=1                  look at what the run would start with (`opdvr check`) and stop
#   OPDVR_DEVICE=cpu|cuda    instead of looking for a GPU
#   OPDVR_TASK=demo|none     the embedded task; demo by itself without a GPU and a model
#   OPDVR_VENV=folder        the Python environment (default: the active one, else .venv)
# shellcheck source=scripts/env.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/env.sh"
# shellcheck source=scripts/knobs.sh
source "$ROOT/scripts/knobs.sh"

# A launcher's own value for a variable that the caller left unset.
default() { # VARIABLE VALUE
  if [[ -z ${!1:-} ]]; then printf -v "$1" '%s' "$2"; fi
}

# The platform named on the command line, else what pick_device finds.
device_for() { # OVERRIDE...
  local override device=""
  for override in "$@"; do
    case $override in
      platform=cpu | platform=cuda) device=${override#platform=} ;;
    esac
  done
  if [[ -n $device ]]; then echo "$device"; else pick_device; fi
}

named_in() { # OPTION OVERRIDE...: whether one of the overrides sets the option
  local option=$1 override
  for override in "${@:2}"; do
    if [[ $override == "$option="* ]]; then return; fi
  done
  return 1
}

# Appends task=demo where it was asked for, or where there is nothing else that could run.
add_task() { # DEVICE MODEL_OPTION OVERRIDE...
  local device=$1 model_option=$2
  shift 2
  if named_in task "$@"; then return; fi
  case ${OPDVR_TASK:-} in
    demo) OVERRIDES+=(task=demo) && return ;;
    none) return ;;
    "") ;;
    *) die "OPDVR_TASK='$OPDVR_TASK' is unknown: use demo or none" ;;
  esac
  if [[ $device == cuda || -n ${ACTOR_MODEL_PATH:-} ]]; then return; fi
  if named_in "$model_option" "$@"; then return; fi
  OVERRIDES+=(task=demo)
  say "no GPU and no ACTOR_MODEL_PATH: running the embedded task, with its own small models and data"
  say "to train your own: ACTOR_MODEL_PATH=… ${TEACHER_HINT-REWARD_MODEL_PATH=… }TRAIN_DATASET=… TEST_DATASET=… bash ${0##*/}"
}

check_together() {
  if [[ -z ${GRPO_SCALED:-} || -z ${N_RESPONSES:-} ]]; then return; fi
  if [[ $(as_bool GRPO_SCALED "$GRPO_SCALED") == True && $(as_int N_RESPONSES "$N_RESPONSES" 1) == 1 ]]; then
    die "GRPO_SCALED=True compares a prompt's responses: set N_RESPONSES to 2 or more, not 1"
  fi
}

# Runs `python -m opdvr ARGUMENT...` in this process's place, in an environment that serves DEVICE;
# DRY_RUN=1 prints the command on one line instead, and sets nothing up.
run_opdvr() { # DEVICE ARGUMENT...
  local device=$1 dry_run line
  shift
  dry_run=$(as_bool DRY_RUN "${DRY_RUN:-False}")
  if [[ $dry_run == True ]]; then
    PYTHON=$(active_python) || PYTHON=$(venv_dir)/bin/python
  else
    find_python "$device"
  fi
  local command=(env "PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH}" "$PYTHON" -m opdvr "$@")
  if [[ $dry_run == True ]]; then
    printf -v line '%q ' "${command[@]}"
    echo "${line% }"
    return
  fi
  exec "${command[@]}"
}

# Says which set variables of the other table this launcher does not read.
say_unread() { # TABLE OTHER_TABLE
  local variable rest unread=()
  while read -r variable rest; do
    if [[ -n $variable && -n ${!variable:-} && $'\n'$1 != *$'\n'"$variable "* ]]; then
      unread+=("$variable")
    fi
  done <<<"$2"
  if ((${#unread[@]})); then say "not read by ${0##*/}: ${unread[*]} (scripts/knobs.sh has what is)"; fi
}

# Appends what device, task and variables say to OVERRIDES, and sets DEVICE.
gather_overrides() { # MODEL_OPTION TABLE OVERRIDE...
  local model_option=$1 table=$2
  shift 2
  DEVICE=$(device_for "$@")
  as_bool DRY_RUN "${DRY_RUN:-False}" >/dev/null
  OVERRIDES=("platform=$DEVICE")
  add_task "$DEVICE" "$model_option" "$@"
  add_knobs "$table"
}

launch() { # OVERRIDE...
  local check
  check=$(as_bool CHECK "${CHECK:-False}")
  say_unread "$KNOBS" "$SFT_KNOBS"
  gather_overrides actor_rollout_ref.model.path "$KNOBS" "$@"
  check_together
  if [[ $check == True ]]; then
    run_opdvr "$DEVICE" check --composed "${OVERRIDES[@]}" "$@"
  else
    run_opdvr "$DEVICE" train "${OVERRIDES[@]}" "$@"
  fi
}

launch_sft() { # OVERRIDE...
  local TEACHER_HINT=""
  if [[ -n ${CHECK:-} ]]; then die "CHECK is read by the launchers of a training with a teacher or rewards, not by ${0##*/}: leave it out"; fi
  say_unread "$SFT_KNOBS" "$KNOBS"
  gather_overrides model.path "$SFT_KNOBS" "$@"
  run_opdvr "$DEVICE" sft train "${OVERRIDES[@]}" "$@"
}
