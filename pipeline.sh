#!/usr/bin/env bash
# A student that cannot be distilled yet, recovered: rollouts of the teacher, cold start (SFT),
# OPDVR, evaluations, summary; each stage is skipped when its output is there. Settings: the
# variables of opdvr.sh; SFT_ACTOR_LR and so on for the cold start; ROLLOUT_ARGS, EVAL_ARGS.
#   ACTOR_MODEL_PATH=… REWARD_MODEL_PATH=… TRAIN_DATASET=… TEST_DATASET=… bash pipeline.sh
# Without a GPU and a model: the embedded task, a student of another pre-training, every comparison.
# shellcheck source=scripts/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/scripts/lib.sh"

OPDVR_DEVICE=$(pick_device)
export OPDVR_DEVICE
run_opdvr "$OPDVR_DEVICE" pipeline "$@"
