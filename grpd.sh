#!/usr/bin/env bash
# GRPD: OPDVR's gated rewards, scaled by how far a response's verifier score lies from its group's
# mean. The paper's form does not divide by the group's standard deviation, and neither does this
# launcher, although the published script does: GRPO_NORM_BY_STD=True gives that.
# shellcheck source=scripts/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/scripts/lib.sh"

default CORRECTNESS_GATED True
default CORRECTNESS_GATED_MODE default
default GRPO_SCALED True
default GRPO_NORM_BY_STD False
default N_RESPONSES 8

launch "$@"
