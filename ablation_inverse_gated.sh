#!/usr/bin/env bash
# The ablation: OPDVR's gate turned round. What OPDVR lets through is held back here, and what it
# holds back is let through.
# shellcheck source=scripts/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/scripts/lib.sh"

default CORRECTNESS_GATED True
default CORRECTNESS_GATED_MODE inverse

launch "$@"
