#!/usr/bin/env bash
# Evaluates a model: samples, scores with the verifier, writes a table. All options: --help.
#   bash eval.sh --model checkpoints/<run> --data datasets/valid_final_unique.parquet
#   bash eval.sh compare evaluations/a evaluations/b
# Without arguments and without a GPU: the embedded student on its held-out problems, in a minute.
# DRY_RUN, OPDVR_DEVICE and OPDVR_VENV as for the launchers (scripts/lib.sh).
# shellcheck source=scripts/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/scripts/lib.sh"

device=$(pick_device)
if (($# == 0)) && [[ $device == cpu ]]; then
  say "no arguments: evaluating the embedded student on its held-out problems"
  say "your own: bash ${0##*/} --model FOLDER --data FILE.parquet --output DIR"
  # as the embedded task's own validation samples
  set -- --model "$ROOT/opdvr/demo/models/student" --data "$ROOT/datasets/demo-test.parquet" \
    --output "$ROOT/evaluations/demo" --n 4 --temperature 1 --top-p 1 --max-tokens 36
fi
export OPDVR_DEVICE=$device
run_opdvr "$device" eval "$@"
