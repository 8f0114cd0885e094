#!/usr/bin/env bash
# OPDVR: on-policy distillation whose token rewards pass a gate set by the verifier. On a correct
# response only rewards that raise a token's probability pass, on an incorrect one only those that
# lower it. Settings: environment variables (scripts/knobs.sh), or Hydra overrides after the name:
#   ACTOR_MODEL_PATH=student REWARD_MODEL_PATH=teacher bash opdvr.sh trainer.total_epochs=1
# shellcheck source=scripts/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/scripts/lib.sh"

default CORRECTNESS_GATED True
default CORRECTNESS_GATED_MODE default

launch "$@"
