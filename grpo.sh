#!/usr/bin/env bash
# GRPO: reinforcement learning from the verifier alone, without a teacher. The baseline that says
# what the teacher is worth.
# shellcheck source=scripts/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/scripts/lib.sh"

default ADV_ESTIMATOR grpo
default CORRECTNESS_GATED False
default N_RESPONSES 8

launch reward_model.enable=False "$@"
