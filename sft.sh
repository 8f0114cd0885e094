#!/usr/bin/env bash
# Supervised fine-tuning on a teacher's answers, by verl's own SFT trainer: the cold start of a
# student that cannot be distilled on its own rollouts yet. Settings: environment variables
# (SFT_KNOBS in scripts/knobs.sh), or Hydra overrides after the name:
#   ACTOR_MODEL_PATH=student TRAIN_DATASET=rollouts/…/sft.parquet bash sft.sh
# shellcheck source=scripts/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/scripts/lib.sh"

launch_sft "$@"
