# shellcheck shell=bash
# Sourced by the batch scripts beside it: trains as a Slurm step and requeues the job where another try can help. Arguments: those of `trireme train`.
set -euo pipefail
if [ $# -lt 1 ]; then
  echo "usage: sbatch [--nodes=N ...] scripts/slurm/NAME.sbatch CONFIG [more options of trireme train]" >&2
  exit 64
fi

# srun does not take --cpus-per-task over from sbatch. Open MPI needs pmix: with another plugin every task would be a world of its own, which trireme refuses.
# The messages of this try are kept, because an exit code alone does not tell a diverged run from a lost rank.
code=0
messages=trireme-$SLURM_JOB_ID.messages
{
  srun --mpi=pmix --kill-on-bad-exit=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" build/trireme train "$@" 2>&1 >&3 | tee "$messages" >&2
} 3>&1 || code=$?
if [ "$code" -eq 70 ] && grep -q -e "training has diverged: " -e "training has stopped at an anomaly: " "$messages"; then
  echo "not requeued: the run has diverged or met an anomaly, and would again" >&2
  exit "$code"
fi

case $code in
  0 | 64 | 65 | 66 | 74) ;; # done, or an answer that another try would not change
  75) # stopped on request, checkpoint saved: `--resume auto`, the default, continues from it
    scontrol requeue "$SLURM_JOB_ID"
    ;;
  *)
    failures=trireme-$SLURM_JOB_ID.failures
    echo "exit code $code on $SLURM_JOB_NODELIST at $(date --iso-8601=seconds)" >> "$failures"
    if [ "$(wc -l < "$failures")" -le "${TRIREME_REQUEUES:-3}" ]; then
      scontrol requeue "$SLURM_JOB_ID"
    else
      echo "giving up: $(wc -l < "$failures") failures, listed in $failures" >&2
    fi
    ;;
esac
exit "$code"
