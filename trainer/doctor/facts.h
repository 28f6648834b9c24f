#pragma once
// What the ranks of a job find on their hosts, as values: probes fill these structs in, judge.h reads them. A figure that is unknown or has no limit is
// kNone.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/config/config.h"

namespace trireme::doctor {

inline constexpr double kNone = -1;

struct CpuFacts {
  std::string model = {};
  std::string isa = {};         ///< highest level of kernels/core/isa.h
  double online = 1;            ///< cores of the host
  std::vector<int> cores = {};  ///< numbers of those that this rank may use
  double quota = kNone;         ///< cores' worth of CPU time of its cgroup
  int threads = 1;              ///< threads that a run gives this rank
  double foreign = 0;           ///< share of its cores that other processes use; measured by the first rank of a host
};

struct MemoryFacts {
  double total = 0;       ///< bytes of the host, or of its cgroup
  double available = 0;   ///< bytes that are free, or that the kernel can free
  double needed = kNone;  ///< bytes of this rank, by the forecast of the configuration
};

struct GpuFacts {
  std::string name = {};
  double memory = 0;            ///< bytes
  int capability = 0;           ///< times ten: 90 = 9.0
  int driver = 0, runtime = 0;  ///< CUDA versions, 13000 = 13.0
};

struct DeviceFacts {
  std::vector<GpuFacts> gpus = {};  ///< visible to this rank
  std::string missing = {};         ///< why no GPU can be used; empty if one can
  bool files = false;               ///< the driver has made the file of a GPU on this host
  std::string libraries = {};       ///< versions of the GPU's libraries
  std::string opening = {};         ///< why the GPU of this rank cannot be opened, or its libraries not loaded
  double free = kNone;              ///< bytes of the GPU of this rank, once it was opened
  std::string nccl_missing = {};    ///< why NCCL cannot be used; empty if it can
};

struct NetworkInterface {
  std::string name = {};
  double megabits = kNone;  ///< link speed, Mbit/s
};

struct MpiFacts {
  std::string library = {};                       ///< name and version, or why there is none
  std::string mpirun = {};                        ///< path; empty if there is none
  std::string missing = {};                       ///< why mpirun cannot start ranks
  std::string starter = {};                       ///< mpirun | srun; empty: not started as a rank
  std::vector<std::string> transports = {};       ///< components in use, such as "btl tcp"; empty if unknown
  std::vector<std::string> infiniband = {};       ///< devices of RDMA networks
  std::vector<NetworkInterface> interfaces = {};  ///< that are up, without loopback
};

struct DirectoryFacts {
  std::string path = {};               ///< as configured
  std::string probed = {};             ///< absolute path of it, or of its nearest existing parent
  std::string kind = {};               ///< file system: ext4, nfs, ...
  bool network = false;                ///< of a kind that several hosts can share
  std::string error = {};              ///< why no file can be written there
  bool same_as_rank_0 = true;          ///< a file that rank 0 made there is visible
  int mode = 0;                        ///< permission bits
  bool own = true;                     ///< owned by this user
  double free = kNone, files = kNone;  ///< free bytes and inodes
  double write_rate = kNone;           ///< bytes/s of a large file, with fsync; measured by the first rank of a host
  double sync_seconds = kNone;         ///< median of a small write with fsync
  bool stalled = false;                ///< a write or fsync did not return in time
};

struct DataFacts {
  std::string error = {};     ///< why the data sets cannot be opened
  std::string identity = {};  ///< TokenDataset::identity() of the training data
  double bytes = 0;           ///< of all files
  double sequences = 0;       ///< of the training data
};

/// A key file that a run opens on this rank.
struct KeyFileFacts {
  std::string key = {};    ///< of the configuration: security.key_file
  std::string error = {};  ///< why a run refuses it
};

struct LimitFacts {
  double open_files = kNone;           ///< hard limit
  double locked = kNone;               ///< bytes of locked memory
  double tasks = kNone;                ///< processes and threads of this user, or of its cgroup
  double shared = 0, shared_free = 0;  ///< bytes of /dev/shm
};

struct RankFacts {
  int rank = 0, local_rank = 0;
  int local_size = 1;  ///< ranks of this host; before the ranks are started, those that it will have
  std::string host = {};
  CpuFacts cpu;
  MemoryFacts memory;
  DeviceFacts devices;
  MpiFacts mpi;
  DirectoryFacts run;
  DataFacts data;
  std::vector<KeyFileFacts> keys = {};
  LimitFacts limits;
  double ahead = 0, ahead_error = 0;  ///< seconds that this host's clock is ahead of rank 0's, and the error of that
};

/// A probed pair of ranks.
struct Link {
  int from = 0, to = 0;
  double latency = 0;    ///< seconds of a small message
  double bandwidth = 0;  ///< bytes/s of a large message
  bool one_host = false;
};

struct SlurmFacts {
  std::string job = {};           ///< empty: not in an allocation
  int nodes = 0, step_tasks = 0;  ///< 0: unknown
};

/// What a configuration needs.
struct Needs {
  int ranks = 1;
  bool gpu = false;         ///< run.device is cuda
  bool may_use_gpu = true;  ///< run.device is not cpu
  int ranks_per_gpu = 1;
  std::string isa = "auto";  ///< kernels.cpu_isa
  Arithmetic precision = Arithmetic::kFp32;
  double checkpoint = 0;   ///< bytes of a checkpoint
  double storage = 0;      ///< most bytes of checkpoints on disk
  bool encrypted = false;  ///< security.encryption is required
};

struct JobFacts {
  std::vector<RankFacts> ranks = {};  ///< of the job, in order; at least one
  std::optional<Needs> needs;         ///< of CONFIG, if one is given
  SlurmFacts slurm;
  std::vector<Link> links = {};
  std::vector<std::pair<int, int>> unreachable = {};  ///< first rank of a host that cannot open a TCP connection to that of another one
  int64_t pairs = 0;                                  ///< pairs of ranks that could have been probed
  std::string not_started = {};                       ///< why the ranks of CONFIG were not started; then `ranks` is this process alone
  std::string no_answer = {};                         ///< what the ranks were doing when the time was up; empty: all answered
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CpuFacts, model, isa, online, cores, quota, threads, foreign)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MemoryFacts, total, available, needed)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GpuFacts, name, memory, capability, driver, runtime)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DeviceFacts, gpus, missing, files, libraries, opening, free, nccl_missing)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NetworkInterface, name, megabits)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MpiFacts, library, mpirun, missing, starter, transports, infiniband, interfaces)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DirectoryFacts, path, probed, kind, network, error, same_as_rank_0, mode, own, free, files, write_rate,
                                   sync_seconds, stalled)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DataFacts, error, identity, bytes, sequences)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(KeyFileFacts, key, error)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LimitFacts, open_files, locked, tasks, shared, shared_free)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankFacts, rank, local_rank, local_size, host, cpu, memory, devices, mpi, run, data, keys, limits, ahead,
                                   ahead_error)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Link, from, to, latency, bandwidth, one_host)

}  // namespace trireme::doctor
