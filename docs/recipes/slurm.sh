#!/usr/bin/env bash
#SBATCH --job-name=jaxagent
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@300
# Ray on all nodes of the allocation, the driver on the first one.
# Usage: sbatch docs/recipes/slurm.sh CONFIG [overrides], or sbatch docs/recipes/slurm.sh --resume RUN_DIR
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"
source .venv/bin/activate

# From version 2.60 on Ray asks for a token wherever ~/.ray/auth_token exists.
export RAY_AUTH_MODE=token
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
port=6379
export RAY_ADDRESS="$head:$port"

srun --nodes=1 --ntasks=1 --nodelist="$head" ray start --head --port="$port" --block &
until ray status >/dev/null 2>&1; do sleep 2; done
if [ "${#nodes[@]}" -gt 1 ]; then
  others=$(IFS=,; echo "${nodes[*]:1}")
  srun --nodes="$((${#nodes[@]} - 1))" --ntasks-per-node=1 --nodelist="$others" ray start --address="$RAY_ADDRESS" --block &
fi

python -m jaxagent train "$@" &
driver=$!
trap 'kill -TERM "$driver"' TERM   # Slurm's signal before the time limit: the run closes in order
wait "$driver" || { status=$?; wait "$driver" 2>/dev/null; ray stop; exit "$status"; }
ray stop
