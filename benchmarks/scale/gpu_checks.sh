#!/usr/bin/env bash
# What only a GPU can show of this project, for the first machine that has one: see gpu_checks.py.
#   benchmarks/scale/gpu_checks.sh [--out gpu_checks.json]     on a machine with a GPU
#   benchmarks/scale/gpu_checks.sh --cpu                       the same checks, tiny, on the CPU
set -euo pipefail
cd "$(dirname "$0")/../.."
exec "${PYTHON:-python}" -m benchmarks.scale.gpu_checks "$@"
