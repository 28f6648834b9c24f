#pragma once
// Point-to-point messages through MPI. Includes <mpi.h>: only for mpi.cpp.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>

#include "parallel/comm/mpi.h"
#include "parallel/comm/mpi_operation.h"

namespace trireme {

/// Calls piece(begin, count) over [0, total) with counts of at most max_count; once for an empty range, so that every rank still makes its call.
inline void for_each_chunk(int64_t total, int64_t max_count, const std::function<void(int64_t, int)>& piece) {
  int64_t begin = 0;
  do {
    const int64_t count = std::min(max_count, total - begin);
    piece(begin, static_cast<int>(count));
    begin += count;
  } while (begin < total);
}

inline std::byte* at(const Tensor& tensor, int64_t element) { return static_cast<std::byte*>(tensor.raw()) + element * size_of(tensor.dtype()); }

/// Sends and receives between the ranks of one MPI communicator.
class MpiMessages {
 public:
  MpiMessages(MPI_Comm comm, const MpiOptions& options) : comm_(comm), options_(options) {}

  /// Posts a message of an exchange, in several pieces if necessary.
  void post(MpiOperation& operation, const PointToPoint& message, bool to_other_host) const {
    const MPI_Datatype type = type_of(message.buffer.dtype());
    const int64_t most = to_other_host ? std::min(options_.max_count, MpiOptions::kPieceBytes / size_of(message.buffer.dtype())) : options_.max_count;
    for_each_chunk(message.buffer.numel(), most, [&](int64_t begin, int count) {
      start(operation, message, at(message.buffer, begin), count, type, tag_of(message));
      if (message.kind == PointToPoint::Kind::kRecv) operation.expect(count, type, message.peer);
    });
  }

  /// Posts a part of an all_to_all between this rank, `rank`, and another one: always one message, even if it is empty, so that the receiver sees how
  /// many elements the sender has.
  void post_part(MpiOperation& operation, const PointToPoint& part, int rank) const {
    const int64_t count = part.buffer.numel();
    const MPI_Datatype type = type_of(part.buffer.dtype());
    if (count <= options_.max_count)
      start(operation, part, part.buffer.raw(), static_cast<int>(count), type, kPartTag);
    else
      start(operation, part, part.buffer.raw(), 1, LargeType(count, part.buffer.dtype(), options_.max_count).get(), kPartTag);
    if (part.kind == PointToPoint::Kind::kRecv) operation.expect_part(count, type, part.peer, rank);
  }

 private:
  static constexpr int kPartTag = kChannels;  ///< the tags below it are the channels; MPI guarantees tags up to 32,767
  static int tag_of(const PointToPoint& message) { return message.channel; }

  void start(MpiOperation& operation, const PointToPoint& message, void* buffer, int count, MPI_Datatype type, int tag) const {
    if (message.kind == PointToPoint::Kind::kRecv) {
      operation.start("MPI_Irecv", [&](MPI_Request* request) { return MPI_Irecv(buffer, count, type, message.peer, tag, comm_, request); });
      return;
    }
    const auto send = options_.synchronous_sends ? MPI_Issend : MPI_Isend;
    operation.start(options_.synchronous_sends ? "MPI_Issend" : "MPI_Isend",
                    [&](MPI_Request* request) { return send(buffer, count, type, message.peer, tag, comm_, request); });
  }

  MPI_Comm comm_;
  const MpiOptions& options_;
};

}  // namespace trireme
