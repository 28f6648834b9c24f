#pragma once
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "parallel/comm/forwarding.h"

namespace trireme {

/// The communication of one rank.
struct CommunicationRecord {
  struct Entry {
    int64_t calls = 0;
    double wire_bytes = 0;  ///< sent by this rank, by the formulas in communicator.h; 0 in groups of one rank
  };
  std::map<std::pair<std::string, std::string>, Entry> entries;  ///< by (group name, verb)
  /// Hash over (verb, group, count, dtype, peers) of every call in order: equal on ranks that must make the same calls.
  uint64_t sequence_hash = 14695981039346656037U;

  Entry entry(const std::string& group, const std::string& verb) const;
  double wire_bytes(const std::string& group) const;
};

/// Wraps a communicator, and the groups made from it, and records every call.
class RecordingCommunicator final : public ForwardingCommunicator {
 public:
  /// `record` outlives the communicator and its groups.
  RecordingCommunicator(std::unique_ptr<Communicator> inner, CommunicationRecord& record);
  Work all_reduce(Context& ctx, const Tensor& buffer, ReduceOp op) override;
  Work all_gather(Context& ctx, const Tensor& in, const Tensor& out) override;
  Work reduce_scatter(Context& ctx, const Tensor& in, const Tensor& out, ReduceOp op) override;
  Work all_to_all(Context& ctx, const Tensor& in, const Tensor& out) override;
  Work all_to_all_v(Context& ctx, const Tensor& in, std::span<const int64_t> send_counts, const Tensor& out,
                    std::span<const int64_t> receive_counts) override;
  Work broadcast(Context& ctx, const Tensor& buffer, int root) override;
  Work exchange(Context& ctx, std::span<const PointToPoint> messages) override;
  void barrier() override;

 protected:
  std::unique_ptr<Communicator> wrap_group(std::unique_ptr<Communicator> made, const std::vector<int>& ranks) override;

 private:
  void add(const char* verb, double wire_bytes);
  void hash(const std::string& text);
  void hash(const Tensor& buffer);

  CommunicationRecord& record_;
};

}  // namespace trireme
