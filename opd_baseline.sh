#!/usr/bin/env bash
# Plain on-policy distillation: OPDVR without the gate.
# shellcheck source=scripts/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/scripts/lib.sh"

default CORRECTNESS_GATED False

launch "$@"
