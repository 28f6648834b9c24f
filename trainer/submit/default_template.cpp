#include "trainer/submit/batch_script.h"

namespace trireme::submit {

const std::string& default_template() {
  static const std::string text = R"script(#!/usr/bin/env bash
# Written by `trireme submit`: trains {{job_name}} under Slurm until it is done. `sbatch THIS_FILE` submits it again.
{{directives}}
# When the run ends, its exit code decides:
#   0                done
#   64 65 66 74      the job ends: another try would not change the answer; the same for a run that has diverged (70)
#   75               stopped on request (time limit, preemption, scancel --signal=TERM), checkpoint saved: back into the queue, to continue from it
#   anything else    a rank died or hung, or a node was lost: back into the queue; a node that has failed {{strikes}} times is excluded
# {{requeues}} such ends in a row without a new checkpoint end the job. `scancel JOB` saves a checkpoint and ends the job.
set -uo pipefail
trap : TERM INT USR1 USR2 # srun has them too; this script waits until the run has saved
cd -- {{working_directory}} || exit 66

run={{run_directory}}
command=({{command}})
again=({{command_again}}) # the same without --resume, to continue from a checkpoint of this job
srun_options=({{srun_options}})
most_requeues={{requeues}}
most_strikes={{strikes}}
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}"

job=$SLURM_JOB_ID
id=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID} # of this element alone: the last one has the number of the whole array
id=${id:-$job}
restart=${SLURM_RESTART_COUNT:-0}
notes=$run/slurm
begun=$notes/$job.begun       # the newest checkpoint before this job
messages=$notes/$job.messages # standard error of this try: an exit code alone does not tell a diverged run from a lost rank
tries=$notes/$job.tries       # a line for each end that needed another try: exit code, newest checkpoint, nodes, time
failed=$notes/$job.failed     # a line for each time that a node has failed

# A run directory that somebody else has made may have anything under these names. Nothing is written through a link, into a pipe, or into a file with
# a second name.
refuse() { echo "cannot write $1: $2" >&2 && exit 74; }
[ ! -L "$notes" ] || refuse "$notes" "is a symbolic link; expected the directory itself"
mkdir -p -- "$notes" || exit 74
for file in "$begun" "$messages" "$tries" "$failed" "$notes/jobs.jsonl"; do
  [ ! -L "$file" ] || refuse "$file" "is a symbolic link; expected the file itself"
  [ -e "$file" ] || continue
  [ -f "$file" ] || refuse "$file" "is not a regular file"
  [ "$(stat -c %h -- "$file")" = 1 ] || refuse "$file" "has a second name (a hard link), whose file would change with it"
done
new_file() { rm -f -- "$1" && (set -C && cat > "$1"); } # FILE: standard input

# Appends a line to the list of jobs that `trireme report` shows. Arguments: names and values in turn; numbers have no quotes.
record() {
  local line
  line="{\"time\": \"$(date -u +%FT%TZ)\", \"job\": \"$job\", \"restart\": $restart"
  [ -z "${SLURM_ARRAY_JOB_ID:-}" ] || line+=", \"array\": \"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID\""
  while [ $# -gt 0 ]; do
    if [[ $2 =~ ^[0-9]+$ ]]; then line+=", \"$1\": $2"; else line+=", \"$1\": \"${2//[\"\\]/}\""; fi
    shift 2
  done
  echo "$line}" >> "$notes/jobs.jsonl"
}

newest_checkpoint() { readlink -- "$run/checkpoints/latest" || echo none; }

# State, reason and restarts of this job, such as "RUNNING None 0". After scancel it is COMPLETING.
job_state() { scontrol show job -o "$id" | sed -n -E 's/.* JobState=([A-Z_]+) Reason=([A-Za-z]+).* Restarts=([0-9]+) .*/\1 \2 \3/p'; }

# The node that has failed, if the messages name one of this job: by the verdict of the run about a rank or host, or by srun about a task that it could not
# start, or that a signal has ended.
failed_node() {
  local task
  {
    task=$(sed -n -E 's/^srun: error: task ([0-9]+) launch failed: .*/\1/p' -- "$messages" | head -n 1)
    [ -z "$task" ] || scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n "$((task / ${SLURM_NTASKS_PER_NODE:-1} + 1))p"
    grep -oE '^(host |ranks? [^()]*\(host )[A-Za-z0-9._-]+' -- "$messages"
    grep -E '^srun: error: [A-Za-z0-9._-]+: tasks? [0-9,-]+: ' -- "$messages" | grep -v 'Exited with exit code' | sed -E 's/^srun: error: ([^:]*):.*/\1/'
    grep -oE 'Node failure on [A-Za-z0-9._-]+' -- "$messages"
  } | sed 's/.* //; s/\..*//' | grep -m 1 -xF -f <(scontrol show hostnames "$SLURM_JOB_NODELIST")
}

# The nodes that this job may not have, as Slurm abbreviates them; empty if there are none.
excluded_before() { scontrol show job -o "$id" | sed -n -E 's/.* ExcNodeList=([^ ]+).*/\1/p' | grep -v '^(null)$'; }

# Nodes with too many failures, separated by commas; none if the partition would have too few nodes of the kind in service without them.
nodes_to_exclude() {
  local bad left
  bad=$(sort -- "$failed" 2> /dev/null | uniq -c | awk -v most="$most_strikes" '$1 >= most {print $2}')
  [ -n "$bad" ] || return 0
  left=$(sinfo --noheader --Node --partition="$SLURM_JOB_PARTITION" --states=idle,alloc,mix,comp --format='%N %G' |
    { if [ -n "${SLURM_GPUS_ON_NODE:-}" ]; then grep -F gpu; else cat; fi; } |
    sed 's/ .*//' | sort -u | grep -vxF "$bad" | grep -cvxF -e '' -f <(excluded_before | xargs -r scontrol show hostnames))
  if [ "$left" -ge "$SLURM_JOB_NUM_NODES" ]; then
    paste -sd , <<< "$bad"
  else
    echo "not excluded, as too few nodes would be left: ${bad//$'\n'/ }" >&2
  fi
}

# A pending job can be changed; the job is pending from the moment that Slurm requeues it.
exclude_nodes() { # NODES
  local before
  [ -n "$1" ] || return 0
  before=$(excluded_before)
  [ -z "$before" ] || set -- "$before,$1"
  echo "excluded from now on: $1" >&2
  scontrol update JobId="$id" ExcNodeList="$1"
}

# Slurm ends a job that is requeued by signals, of which this script must survive the first.
requeue() {
  local excluded
  excluded=$(nodes_to_exclude)
  trap '' TERM INT HUP
  scontrol requeue "$id" && exclude_nodes "$excluded"
}

# Notes an end that needs another try.
note_try() { echo "$1 $(newest_checkpoint) $SLURM_JOB_NODELIST $(date -u +%FT%TZ)" >> "$tries"; }
too_many_tries() {
  local count
  count=$(grep -cE "^[0-9]+ $(newest_checkpoint) " -- "$tries" 2> /dev/null) || : # nothing is printed where no try has failed yet
  [ "${count:-0}" -gt "$most_requeues" ]
}

# A try that has no end in the list was killed with its node, or by Slurm. A node that is now out of service has failed.
lost=$(tail -n 1 -- "$notes/jobs.jsonl" 2> /dev/null | grep -F "\"job\": \"$job\"" | grep -F '"event": "start"' | sed -n -E 's/.*"nodes": "([^"]+)".*/\1/p')
if [ -n "$lost" ]; then
  sinfo --noheader --Node --nodes="$lost" --states=down,fail,drain,no_respond --format=%N | sort -u >> "$failed"
  note_try 137
fi

[ -e "$begun" ] || newest_checkpoint | new_file "$begun"
[ "$(newest_checkpoint)" = "$(cat -- "$begun")" ] || command=("${again[@]}")

if too_many_tries; then
  echo "job $job, restart $restart: giving up: $((most_requeues + 1)) ends without a new checkpoint, listed in $tries" >&2
  exit 70
fi

record event start nodes "$SLURM_JOB_NODELIST" partition "$SLURM_JOB_PARTITION" tasks "${SLURM_NTASKS:-1}"
# After the death of a step daemon its node cannot start a step of the same number, which the first step of the next try has: another step can.
for attempt in 1 2 3; do
  code=0
  new_file "$messages" < /dev/null || exit 74
  {
    srun "${srun_options[@]}" "${command[@]}" 2>&1 >&3 | (trap '' TERM INT HUP USR1 USR2 && exec tee -- "$messages" >&2)
  } 3>&1 || code=$?
  grep -qE '^srun: .*(launch failed|aborted before step completely launched)' -- "$messages" || break
  echo "srun has not started all tasks, attempt $attempt of 3" >&2
done
# srun may then exit with 0, too, though no rank has ended.
if [ $code -eq 0 ] && grep -qE '^srun: (error|launch/slurm|Job step aborted)' -- "$messages"; then code=70; fi

next=ends why="exit code $code"
another_holds_the_lock() { [[ $code = 64 ]] && grep -qF 'another job is training there' -- "$messages"; } # on a node that was cut off
if [[ $code = 0 ]]; then
  why="done"
elif [[ $code =~ ^(64|65|66|74)$ ]] && ! another_holds_the_lock; then
  :
elif [[ $code = 70 ]] && grep -q -e "training has diverged: " -e "training has stopped at an anomaly: " -- "$messages"; then
  why="the run has diverged or met an anomaly, and would again"
else
  state=$(job_state)
  if [[ $state = *\ $((restart + 1)) ]]; then
    next=requeued-by-slurm
    note_try "$code"
    exclude_nodes "$(nodes_to_exclude)"
  elif [[ $state != RUNNING* && $state != *\ TimeLimit\ * ]]; then
    why="the job was ended from outside: ${state:-unknown state}"
  else
    note_try "$code"
    [[ $code = 75 || $code = 64 || $state = *\ TimeLimit\ * ]] || failed_node >> "$failed"
    if too_many_tries; then
      why="giving up: $((most_requeues + 1)) ends without a new checkpoint, listed in $tries"
    else
      next=requeued
    fi
  fi
fi
record event end code "$code" seconds "$SECONDS" next "$next"
echo "job $job, restart $restart: exit code $code after $SECONDS s; $([ $next = ends ] && echo "the job ends: $why" || echo "back into the queue")" >&2
[ $next != requeued ] || requeue
exit "$code"
)script";
  return text;
}

}  // namespace trireme::submit
