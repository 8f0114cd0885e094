#!/usr/bin/env bash
# Makes a teacher's rollouts, keeps the good ones, writes data for SFT. All options: --help.
#   bash rollout.sh --model TEACHER --data datasets/train.parquet --output rollouts/mine
# Without arguments and without a GPU: the embedded teacher on its training problems, in a minute.
# DRY_RUN, OPDVR_DEVICE and OPDVR_VENV as for the launchers (scripts/lib.sh).
# shellcheck source=scripts/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/scripts/lib.sh"

device=$(pick_device)
if (($# == 0)) && [[ $device == cpu ]]; then
  say "no arguments: rolling out the embedded teacher on its training problems"
  say "your own: bash ${0##*/} --model FOLDER --data FILE.parquet --output DIR"
  set -- --model "$ROOT/opdvr/demo/models/teacher-good" --data "$ROOT/datasets/demo-train.parquet" \
    --output "$ROOT/rollouts/demo" --limit 512 --temperature 1 --max-tokens 36
fi
export OPDVR_DEVICE=$device
run_opdvr "$device" sft rollout "$@"
