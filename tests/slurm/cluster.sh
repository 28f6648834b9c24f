#!/usr/bin/env bash
# A throw-away Slurm cluster on one machine, as root, for tests: slurmctld, munged and N nodes, each with its own slurmd, host name, network address, process
# ids, /tmp and /dev/shm. Everything runs in namespaces below one process: when that ends, nothing is left but the directory.
#   tests/slurm/cluster.sh install                    installs the packages (Debian, Ubuntu)
#   tests/slurm/cluster.sh start DIR [NODES] [CPUS] [accounting]
#                                                     DIR must not exist, and not be in /tmp; 3 nodes of 4 CPUs by default. accounting: with slurmdbd and a
#                                                     database of its own, from the packages slurmdbd and mariadb-server
#   tests/slurm/cluster.sh run DIR COMMAND...         runs a command where sbatch, squeue and so on reach the cluster
#   tests/slurm/cluster.sh lose DIR NODE              kills all processes of a node at once, as a power failure does
#   tests/slurm/cluster.sh boot DIR NODE              starts the node again
#   tests/slurm/cluster.sh stop DIR                   ends the cluster and removes DIR
# Partitions: "low" (default; jobs are preempted and requeued, 20 s of grace), "high" (preempts "low"), "short" (at most one minute and two nodes).
set -euo pipefail

SELF=$(readlink -f "${BASH_SOURCE[0]}")
NETWORK=10.99.0

die() {
  echo "cluster.sh: $1" >&2
  exit 1
}

write_configuration() { # DIR NODES CPUS
  local dir=$1 nodes=$2 cpus=$3 k
  {
    echo "127.0.0.1 localhost"
    echo "$NETWORK.1 control"
    for ((k = 1; k <= nodes; ++k)); do echo "$NETWORK.$((k + 10)) node$k"; done
  } > "$dir/hosts"
  cat > "$dir/slurm.conf" << CONF
ClusterName=throwaway
SlurmctldHost=control($NETWORK.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket
CryptoType=crypto/munge
StateSaveLocation=$dir/state
SlurmctldPidFile=$dir/slurmctld.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdSpoolDir=$dir/spool-%n
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmdLogFile=$dir/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
MpiParams=ports=20000-29999
ReturnToService=2
SlurmdTimeout=5
SlurmctldTimeout=5
InactiveLimit=0
KillWait=10
MinJobAge=3600
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0,requeue_delay=0
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName=node[1-$nodes] CPUs=$cpus CoresPerSocket=$cpus Sockets=1 ThreadsPerCore=1 RealMemory=4000 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES MaxTime=1-00:00:00 PriorityTier=1 GraceTime=20 PreemptMode=REQUEUE OverSubscribe=NO State=UP
PartitionName=high Nodes=ALL MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF State=UP
PartitionName=short Nodes=ALL MaxTime=1 MaxNodes=2 PriorityTier=1 State=UP
CONF
}

# Lets slurmctld record jobs in a database, and slurmd measure them.
write_accounting_configuration() { # DIR
  local dir=$1
  sed -i -e '/^JobAcctGatherType=/d' -e '/^AccountingStorageType=/d' "$dir/slurm.conf"
  cat >> "$dir/slurm.conf" << CONF
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=control
AccountingStoragePass=$dir/munge.socket
CONF
  (umask 077 && cat > "$dir/slurmdbd.conf") << CONF
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket
DbdHost=control
SlurmUser=root
LogFile=$dir/slurmdbd.log
PidFile=$dir/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm
CONF
}

start_accounting() { # DIR, within the cluster's namespaces
  local dir=$1 sql="CREATE DATABASE slurm; CREATE USER slurm@127.0.0.1 IDENTIFIED BY 'slurm'; GRANT ALL ON slurm.* TO slurm@127.0.0.1;"
  mariadb-install-db --no-defaults --user=root --auth-root-authentication-method=socket --datadir="$dir/database" > "$dir/database.out" 2>&1
  mariadbd --no-defaults --user=root --datadir="$dir/database" --socket="$dir/database.socket" --bind-address=127.0.0.1 --skip-name-resolve >> "$dir/database.out" 2>&1 &
  until mariadb --no-defaults --socket="$dir/database.socket" --execute="$sql" 2> /dev/null; do sleep 0.2; done
  SLURM_CONF=$dir/slurm.conf slurmdbd -D > "$dir/slurmdbd.out" 2>&1 &
  until SLURM_CONF=$dir/slurm.conf sacctmgr --immediate add cluster throwaway >> "$dir/sacctmgr.out" 2>&1; do sleep 0.3; done
}

# The first process of a node. Its end is the end of all processes of the node.
node_main() { # DIR NODE
  local dir=$1 node=$2
  mount --make-rprivate /
  mount -t proc proc /proc
  mount -t tmpfs tmpfs /tmp
  mount -t tmpfs tmpfs /dev/shm
  hostname "$node"
  ip link set lo up
  until ip link show eth0 > /dev/null 2>&1; do sleep 0.02; done
  ip addr add "$(awk -v name="$node" '$2 == name {print $1}' "$dir/hosts")/24" dev eth0
  ip link set eth0 up
  trap 'exit 0' TERM
  SLURM_CONF=$dir/slurm.conf slurmd -D -N "$node" > "$dir/slurmd-$node.out" 2>&1 &
  wait
}

boot_node() { # DIR NODE, within the cluster's namespaces
  local dir=$1 node=$2 outer inner
  mkdir -p "$dir/spool-$node"
  setsid unshare --net --uts --mount --pid --fork --kill-child "$SELF" node-main "$dir" "$node" > "$dir/node-$node.out" 2>&1 &
  outer=$!
  until inner=$(pgrep -P "$outer"); do sleep 0.02; done
  echo "$inner" > "$dir/node-$node.pid"
  ip link del "to-$node" 2> /dev/null || true
  ip link add "to-$node" type veth peer name eth0 netns "$inner"
  ip link set "to-$node" master nodes up
}

# The first process of the cluster.
cluster_main() { # DIR NODES
  local dir=$1 nodes=$2 k
  mount --make-rprivate /
  mount -t proc proc /proc
  mount --bind "$dir/hosts" /etc/hosts
  hostname control
  ip link set lo up
  ip link add nodes type bridge
  ip addr add "$NETWORK.1/24" dev nodes
  ip link set nodes up
  trap 'exit 0' TERM
  munged --force --socket="$dir/munge.socket" --key-file="$dir/munge.key" --pid-file="$dir/munged.pid" --log-file="$dir/munged.log" --seed-file="$dir/munged.seed"
  [ ! -e "$dir/slurmdbd.conf" ] || start_accounting "$dir"
  SLURM_CONF=$dir/slurm.conf slurmctld -D > "$dir/slurmctld.out" 2>&1 &
  for ((k = 1; k <= nodes; ++k)); do boot_node "$dir" "node$k"; done
  touch "$dir/booted"
  wait
}

inside() { # DIR COMMAND...
  local dir=$1
  shift
  if ! { [ -r "$dir/pid" ] && kill -0 "$(cat "$dir/pid")" 2> /dev/null; }; then die "no cluster in $dir"; fi
  SLURM_CONF=$dir/slurm.conf nsenter --target "$(cat "$dir/pid")" --net --uts --mount --pid --wd="$PWD" "$@"
}

start() { # DIR NODES CPUS
  local dir nodes=${2:-3} cpus=${3:-4} outer k tries=0
  for k in slurmctld slurmd munged unshare nsenter ip; do command -v "$k" > /dev/null || die "$k is missing: tests/slurm/cluster.sh install"; done
  [ "$(id -u)" = 0 ] || die "needs root, for namespaces"
  [ ! -e "$1" ] || die "$1 exists"
  case $(readlink -m "$1") in /tmp/* | /dev/shm/*) die "$1: nodes have their own /tmp and /dev/shm; take another directory" ;; esac
  mkdir -p "$1" && dir=$(readlink -f "$1")
  mkdir "$dir/state"
  write_configuration "$dir" "$nodes" "$cpus"
  [ "${4:-}" != accounting ] || write_accounting_configuration "$dir"
  (umask 077 && head -c 128 /dev/urandom > "$dir/munge.key")
  setsid unshare --net --uts --mount --pid --fork --kill-child "$SELF" cluster-main "$dir" "$nodes" > "$dir/cluster.out" 2>&1 < /dev/null &
  outer=$!
  until pgrep -P "$outer" > "$dir/pid"; do sleep 0.02; done
  until [ -e "$dir/booted" ] && [ "$(inside "$dir" sinfo -h -N -p low -t idle -o %N 2> /dev/null | wc -l)" = "$nodes" ]; do
    sleep 0.3
    [ $((++tries)) -lt 200 ] || { kill -KILL "$(cat "$dir/pid")" && die "the cluster does not come up: see $dir/*.log"; }
  done
}

stop() { # DIR
  local dir=$1 pid tries=0
  [ -e "$dir/pid" ] || die "no cluster in $dir"
  pid=$(cat "$dir/pid")
  kill -KILL "$pid" 2> /dev/null || true
  while kill -0 "$pid" 2> /dev/null && [ $((++tries)) -lt 100 ]; do sleep 0.1; done
  rm -rf "$dir"
}

case ${1:-} in
  install) apt-get install -y --no-install-recommends slurmctld slurmd slurm-client slurmdbd mariadb-server munge iproute2 util-linux ;;
  start) start "${@:2}" ;;
  run) inside "${@:2}" ;;
  lose) inside "$2" sh -c 'kill -KILL "$(cat "$1")"' sh "$(readlink -f "$2")/node-$3.pid" ;;
  boot) inside "$2" "$SELF" boot-node "$(readlink -f "$2")" "$3" ;;
  stop) stop "$2" ;;
  cluster-main) cluster_main "${@:2}" ;;
  node-main) node_main "${@:2}" ;;
  boot-node) boot_node "${@:2}" ;;
  *) sed -n '2,12s/^# \{0,1\}//p' "$SELF" >&2 && exit 64 ;;
esac
