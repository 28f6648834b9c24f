#include "parallel/comm/mpi.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <numeric>
#include <set>
#include <utility>

#include "parallel/comm/arguments.h"
#include "parallel/comm/mpi_messages.h"
#include "parallel/comm/mpi_operation.h"
#include "parallel/comm/mpi_types.h"
#include "parallel/comm/self.h"
#include "parallel/comm/shared_group.h"
#include "parallel/comm/time_slices.h"

namespace trireme {
namespace {

/// Memory shared by all ranks of `comm`, which must be on one host; null on all of them if any cannot map it. Collective.
std::unique_ptr<SharedMemory> share(MPI_Comm comm, int rank, int64_t bytes, const std::string& place) {
  std::unique_ptr<SharedMemory> memory;
  SharedMemory::Address address;
  if (rank == 0) memory = SharedMemory::make(bytes);
  if (memory) address = memory->address();
  check_mpi(MPI_Bcast(&address, sizeof address, MPI_BYTE, 0, comm), "MPI_Bcast", place);
  if (rank != 0) memory = SharedMemory::open(address, bytes);
  int all = memory ? 1 : 0;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_MIN, comm), "MPI_Allreduce", place);
  if (all == 0) return nullptr;
  memory->seal();
  return memory;
}

/// Lets MPI progress its operations in flight.
void poll() {
  int arrived = 0;
  MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &arrived, MPI_STATUS_IGNORE);
}

/// Location of a rank.
struct RankLocation {
  int host;  ///< lowest world rank on its host
  int rank;  ///< among the ranks of its host
};

constexpr int64_t kLargestSlot = 512 * 1024;

// Nonblocking throughout. Start + wait against the blocking call, microseconds, Open MPI 4.1.4, fp32, 2 and 4 ranks on two cores, 4 KB, 64 KB, 1 MB:
//   all_reduce      2 ranks: 6.3, 36, 349 against 4.5, 26, 233      4 ranks: 17, 63, 909 against 19, 70, 539
//   all_gather      2 ranks: 1.9, 4.3, 23 against 1.5, 5.3, 36      4 ranks: 7.9, 22, 174 against 7.0, 19, 172
//   reduce_scatter  2 ranks: 3.5, 16, 221 against 1.9, 15, 531      4 ranks: 14, 46, 682 against 7.0, 32, 1457
class MpiCommunicator final : public Communicator {
 public:
  /// Takes ownership of `comm`; collective. `driver` is null if the ranks of this host share no memory.
  MpiCommunicator(MPI_Comm comm, int rank, const std::string& name, const MpiOptions& options, std::vector<RankLocation> seats,
                  std::shared_ptr<SharedDriver> driver)
      : Communicator(rank, static_cast<int>(seats.size()), name),
        comm_(comm),
        options_(options),
        seats_(std::move(seats)),
        driver_(std::move(driver)) {
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    if (!driver_ || !on_one_host()) return;
    const int64_t slot = slot_bytes();
    std::unique_ptr<SharedMemory> memory = share(comm_, rank, SharedGroup::bytes(size(), slot), place());
    std::vector<int> of_host;
    for (const RankLocation& seat : seats_) of_host.push_back(seat.rank);
    if (memory) shared_ = std::make_shared<SharedGroup>(driver_, std::move(memory), rank, std::move(of_host), slot, place());
  }
  ~MpiCommunicator() override { MPI_Comm_free(&comm_); }

  Work all_reduce(Context& ctx, const Tensor& buffer, ReduceOp op) override {
    if (shares(ctx, buffer)) return shared({Verb::kAllReduce, buffer.dtype(), buffer.numel(), op}, buffer, buffer);
    auto operation = make(ctx, "all_reduce", {buffer});
    for_each_chunk(buffer.numel(), options_.max_count, [&](int64_t begin, int count) {
      operation->start("MPI_Iallreduce", [&](MPI_Request* request) {
        return MPI_Iallreduce(MPI_IN_PLACE, at(buffer, begin), count, type_of(buffer.dtype()), op_of(op, buffer.dtype()), comm_, request);
      });
    });
    return Work(std::move(operation));
  }

  Work all_gather(Context& ctx, const Tensor& in, const Tensor& out) override {
    const bool in_place = is_own_part(*this, "all_gather", in, out);
    if (shares(ctx, out)) return shared({Verb::kAllGather, in.dtype(), in.numel()}, in, out);
    auto operation = make(ctx, "all_gather", {in, out});
    const auto gather = [&](int count, MPI_Datatype type) {
      operation->start("MPI_Iallgather", [&](MPI_Request* request) {
        return MPI_Iallgather(in_place ? MPI_IN_PLACE : in.raw(), count, type, out.raw(), count, type, comm_, request);
      });
    };
    // The limit applies to the whole buffer, which implementations also count in an int.
    if (out.numel() <= options_.max_count)
      gather(static_cast<int>(in.numel()), type_of(in.dtype()));
    else
      gather(1, LargeType(in.numel(), in.dtype(), options_.max_count).get());
    return Work(std::move(operation));
  }

  Work reduce_scatter(Context& ctx, const Tensor& in, const Tensor& out, ReduceOp op) override {
    const bool in_place = is_own_part(*this, "reduce_scatter", out, in);
    if (shares(ctx, in)) return shared({Verb::kReduceScatter, out.dtype(), out.numel(), op}, in, out);
    auto operation = make(ctx, "reduce_scatter", {in, out});
    if (in.numel() > options_.max_count) {
      reduce_parts(*operation, in, out, in_place, op);
      return Work(std::move(operation));
    }
    // MPI's own in-place form puts the result at the start of `in`.
    const Tensor result = in_place ? Tensor::empty(ctx, out.shape(), out.dtype(), MemoryCategory::kCommunication) : out;
    if (in_place) operation->copy_when_done(result, out);
    operation->start("MPI_Ireduce_scatter_block", [&](MPI_Request* request) {
      return MPI_Ireduce_scatter_block(in.raw(), result.raw(), static_cast<int>(out.numel()), type_of(in.dtype()), op_of(op, in.dtype()), comm_,
                                       request);
    });
    return Work(std::move(operation));
  }

  Work all_to_all(Context& ctx, const Tensor& in, const Tensor& out) override {
    const int64_t count = check_all_to_all(*this, in, out);
    if (shares(ctx, in)) return shared({Verb::kAllToAll, in.dtype(), count}, in, out);
    const std::vector<int64_t> counts(static_cast<size_t>(size()), count);
    return post_parts(ctx, "all_to_all", in, counts, out, counts);
  }

  Work all_to_all_v(Context& ctx, const Tensor& in, std::span<const int64_t> send_counts, const Tensor& out,
                    std::span<const int64_t> receive_counts) override {
    check_all_to_all_v(*this, in, send_counts, out, receive_counts);
    // The number of bytes differs by rank, so the decision uses only what all ranks know.
    if (shared_ && ctx.device != Device::kMeta && options_.shared_from != MpiOptions::kNeverShared)
      return SharedGroup::start(shared_, {Verb::kAllToAllV, in.dtype()}, in, out, send_counts, receive_counts);
    return post_parts(ctx, "all_to_all_v", in, send_counts, out, receive_counts);
  }

  Work broadcast(Context& ctx, const Tensor& buffer, int root) override {
    check_root(*this, root);
    auto operation = make(ctx, "broadcast", {buffer});
    for_each_chunk(buffer.numel(), options_.max_count, [&](int64_t begin, int count) {
      operation->start("MPI_Ibcast",
                       [&](MPI_Request* request) { return MPI_Ibcast(at(buffer, begin), count, type_of(buffer.dtype()), root, comm_, request); });
    });
    return Work(std::move(operation));
  }

  Work exchange(Context& ctx, std::span<const PointToPoint> messages) override {
    check_peers(*this, messages);
    std::vector<Tensor> buffers;
    for (const PointToPoint& message : messages) buffers.push_back(message.buffer);
    auto operation = make(ctx, "exchange", std::move(buffers));
    // Receives first: a message that finds its receive posted needs no intermediate copy. Order matters only among messages of one direction.
    for (const auto kind : {PointToPoint::Kind::kRecv, PointToPoint::Kind::kSend})
      for (const PointToPoint& message : messages)
        if (message.kind == kind) MpiMessages(comm_, options_).post(*operation, message, host_of(message.peer) != host_of(rank()));
    return Work(std::move(operation));
  }

  void barrier() override {
    MpiOperation operation("barrier", place(), {}, driver_);
    operation.start("MPI_Ibarrier", [&](MPI_Request* request) { return MPI_Ibarrier(comm_, request); });
    operation.finish();
  }

  void advance() override {
    if (driver_) driver_->advance();
    poll();
  }

  std::unique_ptr<Communicator> group(const std::vector<int>& ranks, const std::string& name) override {
    const int position = position_in_group(*this, ranks, name);
    if (ranks.size() == 1) return std::make_unique<SelfCommunicator>(name);
    if (driver_) driver_->finish();
    MPI_Group all, part;
    MPI_Comm comm = MPI_COMM_NULL;
    check_mpi(MPI_Comm_group(comm_, &all), "MPI_Comm_group", place());
    check_mpi(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &part), "MPI_Group_incl", place());
    check_mpi(MPI_Comm_create_group(comm_, part, 0, &comm), "MPI_Comm_create_group", place());
    MPI_Group_free(&part);
    MPI_Group_free(&all);
    std::vector<RankLocation> seats;
    for (const int other : ranks) seats.push_back(seats_[static_cast<size_t>(other)]);
    return std::make_unique<MpiCommunicator>(comm, position, name, options_, std::move(seats), driver_);
  }

 private:
  int host_of(int rank) const { return seats_[static_cast<size_t>(rank)].host; }
  bool on_one_host() const {
    return std::all_of(seats_.begin(), seats_.end(), [&](const RankLocation& seat) { return seat.host == seats_[0].host; });
  }

  /// Bytes of each of a rank's two slots; less with many ranks, because all slots together should fit into a cache.
  int64_t slot_bytes() const {
    return std::max<int64_t>(std::min(options_.shared_bytes / (2 * size()) & ~int64_t{4095}, kLargestSlot), std::max(4096, 64 * size()));
  }

  bool shares(const Context& ctx, const Tensor& whole) const {
    return shared_ && ctx.device != Device::kMeta && whole.bytes() >= std::max<int64_t>(options_.shared_from, 1);
  }
  Work shared(const Call& call, const Tensor& in, const Tensor& out) const { return SharedGroup::start(shared_, call, in, out); }

  std::string place() const { return concat("group '", name(), "', rank ", rank(), " of ", size()); }

  std::unique_ptr<MpiOperation> make(const Context& ctx, const char* verb, std::vector<Tensor> buffers) const {
    TRIREME_CHECK(ctx.device != Device::kMeta, "MPI communicators do not support the meta device");
    return std::make_unique<MpiOperation>(verb, place(), std::move(buffers), driver_);
  }

  /// A reduce_scatter too large for one call: one reduction per rank's part and piece.
  void reduce_parts(MpiOperation& operation, const Tensor& in, const Tensor& out, bool in_place, ReduceOp op) const {
    for (int root = 0; root < size(); ++root) {
      for_each_chunk(out.numel(), options_.max_count, [&](int64_t begin, int count) {
        std::byte* part = at(in, root * out.numel() + begin);
        const void* from = in_place && root == rank() ? MPI_IN_PLACE : part;
        operation.start("MPI_Ireduce", [&](MPI_Request* request) {
          return MPI_Ireduce(from, at(out, begin), count, type_of(in.dtype()), op_of(op, in.dtype()), root, comm_, request);
        });
      });
    }
  }

  /// Posts the parts as messages; copies this rank's own part immediately.
  Work post_parts(const Context& ctx, const char* verb, const Tensor& in, std::span<const int64_t> send_counts, const Tensor& out,
                  std::span<const int64_t> receive_counts) const {
    auto operation = make(ctx, verb, {in, out});
    const std::vector<Tensor> send = split_parts(in, send_counts), receive = split_parts(out, receive_counts);
    const auto own = static_cast<size_t>(rank());
    copy_elements(send[own], receive[own]);
    for (const PointToPoint& part : messages_of(*this, send, receive, false)) MpiMessages(comm_, options_).post_part(*operation, part, rank());
    return Work(std::move(operation));
  }

  MPI_Comm comm_;
  MpiOptions options_;
  std::vector<RankLocation> seats_;  ///< by rank
  std::shared_ptr<SharedDriver> driver_;
  std::shared_ptr<SharedGroup> shared_;  ///< null: everything goes through MPI
};

/// A fragment of a message is never larger than the longest that is sent, so the three limits belong together.
void raise_eager_limit() {
  constexpr std::array kLimits{"OMPI_MCA_btl_tcp_eager_limit", "OMPI_MCA_btl_tcp_rndv_eager_limit", "OMPI_MCA_btl_tcp_max_send_size"};
  constexpr int64_t kHeader = 256;  // room for headers, which the limits include
  if (std::ranges::any_of(kLimits, [](const char* name) { return std::getenv(name) != nullptr; })) return;
  for (const char* name : kLimits) ::setenv(name, std::to_string(MpiOptions::kPieceBytes + kHeader).c_str(), 0);
}

}  // namespace

MpiEnvironment::MpiEnvironment() {
  raise_eager_limit();
  take_short_time_slices();
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  TRIREME_CHECK(provided >= MPI_THREAD_FUNNELED, "this MPI library does not support MPI_THREAD_FUNNELED");
  make_mpi_ops();
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  MPI_Comm host;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host);
  MPI_Comm_rank(host, &local_rank_);
  MPI_Comm_size(host, &local_size_);
  host_ = rank_;
  MPI_Bcast(&host_, 1, MPI_INT, 0, host);
  MPI_Group all, of_host;
  std::vector<int> places(static_cast<size_t>(local_size_));
  std::iota(places.begin(), places.end(), 0);
  host_ranks_.resize(places.size());
  MPI_Comm_group(MPI_COMM_WORLD, &all);
  MPI_Comm_group(host, &of_host);
  MPI_Group_translate_ranks(of_host, local_size_, places.data(), all, host_ranks_.data());
  MPI_Group_free(&of_host);
  MPI_Group_free(&all);
  MPI_Comm_free(&host);
}

MpiEnvironment::~MpiEnvironment() {
  if (std::uncaught_exceptions() > 0) abort(static_cast<int>(ExitCode::kInternal));
  free_mpi_ops();
  MPI_Finalize();
}

void MpiEnvironment::abort(int code) const {
  MPI_Abort(MPI_COMM_WORLD, code);
  std::abort();  // not reached: the compiler does not know that MPI_Abort never returns
}

std::unique_ptr<Communicator> MpiEnvironment::world(const MpiOptions& options) const {
  MPI_Comm comm, host;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup", "world");
  std::vector<RankLocation> seats(static_cast<size_t>(size_));
  seats[static_cast<size_t>(rank_)] = {host_, local_rank_};
  check_mpi(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, seats.data(), sizeof(RankLocation), MPI_BYTE, comm), "MPI_Allgather", "world");
  std::shared_ptr<SharedDriver> driver;
  check_mpi(MPI_Comm_split(comm, host_, rank_, &host), "MPI_Comm_split", "world");  // collective: a rank alone on its host calls it, too
  if (local_size_ > 1) {
    std::unique_ptr<SharedMemory> bells = share(host, local_rank_, SharedDriver::bytes(local_size_), "world");
    if (bells)
      driver = std::make_shared<SharedDriver>(std::move(bells), local_rank_, local_size_, poll);
    else if (local_rank_ == 0)
      std::fputs("warning: the ranks of this host cannot share memory: large collectives go through MPI, which is slower\n", stderr);
  }
  MPI_Comm_free(&host);
  return std::make_unique<MpiCommunicator>(comm, rank_, "world", options, std::move(seats), std::move(driver));
}

std::vector<std::string> mpi_transports() {
  int provided = 0, variables = 0;
  if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS) return {};
  std::set<std::string> found;
  MPI_T_cvar_get_num(&variables);
  for (int index = 0; index < variables; ++index) {
    std::array<char, 256> name{}, description{};
    int name_length = static_cast<int>(name.size()), description_length = static_cast<int>(description.size());
    int verbosity = 0, bind = 0, scope = 0;
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_T_enum values = MPI_T_ENUM_NULL;
    if (MPI_T_cvar_get_info(index, name.data(), &name_length, &verbosity, &type, &values, description.data(), &description_length, &bind, &scope) !=
        MPI_SUCCESS)
      continue;
    const std::string variable = name.data();  // "btl_tcp_if_include"
    for (const char* framework : {"btl_", "mtl_", "pml_"}) {
      const size_t begin = std::strlen(framework), end = variable.find('_', begin);
      if (!variable.starts_with(framework) || end == variable.npos) continue;
      const std::string component = variable.substr(begin, end - begin);
      if (component != "base") found.insert(std::string(framework, begin - 1) + " " + component);
    }
  }
  MPI_T_finalize();
  // The message layer ob1 moves bytes by btl components, cm by one mtl component, others by themselves; the rest is loaded without being used.
  std::erase_if(found, [&](const std::string& component) {
    return (component.starts_with("btl ") && !found.contains("pml ob1")) || (component.starts_with("mtl ") && !found.contains("pml cm"));
  });
  return {found.begin(), found.end()};
}

std::string mpi_library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string version(text, static_cast<size_t>(length));
  version.resize(std::min(version.find_first_of(",\n"), version.size()));
  std::ranges::replace(version, '\t', ' ');
  version.erase(std::unique(version.begin(), version.end(), [](char a, char b) { return a == ' ' && b == ' '; }), version.end());  // MPICH aligns it
  return version;
}

void require_mpi() {}

}  // namespace trireme
