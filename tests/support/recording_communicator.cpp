#include "tests/support/recording_communicator.h"

#include "parallel/comm/arguments.h"

namespace trireme {

CommunicationRecord::Entry CommunicationRecord::entry(const std::string& group, const std::string& verb) const {
  const auto found = entries.find({group, verb});
  return found == entries.end() ? Entry() : found->second;
}

double CommunicationRecord::wire_bytes(const std::string& group) const {
  double bytes = 0;
  for (const auto& [key, entry] : entries)
    if (key.first == group) bytes += entry.wire_bytes;
  return bytes;
}

RecordingCommunicator::RecordingCommunicator(std::unique_ptr<Communicator> inner, CommunicationRecord& record)
    : ForwardingCommunicator(std::move(inner)), record_(record) {}

void RecordingCommunicator::add(const char* verb, double wire_bytes) {
  CommunicationRecord::Entry& entry = record_.entries[{name(), verb}];
  ++entry.calls;
  if (size() > 1) entry.wire_bytes += wire_bytes;
  hash(concat(verb, ' ', name()));
}

void RecordingCommunicator::hash(const std::string& text) {
  for (const char c : text + '\n') record_.sequence_hash = (record_.sequence_hash ^ static_cast<uint8_t>(c)) * 1099511628211U;  // FNV-1a
}

void RecordingCommunicator::hash(const Tensor& buffer) { hash(concat(buffer.numel(), ' ', name_of(buffer.dtype()))); }

Work RecordingCommunicator::all_reduce(Context& ctx, const Tensor& buffer, ReduceOp op) {
  add("all_reduce", 2.0 * (size() - 1) * static_cast<double>(buffer.bytes()) / size());
  hash(buffer);
  return inner().all_reduce(ctx, buffer, op);
}

Work RecordingCommunicator::all_gather(Context& ctx, const Tensor& in, const Tensor& out) {
  add("all_gather", (size() - 1.0) * static_cast<double>(out.bytes()) / size());
  hash(out);
  return inner().all_gather(ctx, in, out);
}

Work RecordingCommunicator::reduce_scatter(Context& ctx, const Tensor& in, const Tensor& out, ReduceOp op) {
  add("reduce_scatter", (size() - 1.0) * static_cast<double>(in.bytes()) / size());
  hash(in);
  return inner().reduce_scatter(ctx, in, out, op);
}

Work RecordingCommunicator::all_to_all(Context& ctx, const Tensor& in, const Tensor& out) {
  add("all_to_all", (size() - 1.0) * static_cast<double>(in.bytes()) / size());
  hash(in);
  return inner().all_to_all(ctx, in, out);
}

Work RecordingCommunicator::all_to_all_v(Context& ctx, const Tensor& in, std::span<const int64_t> send_counts, const Tensor& out,
                                         std::span<const int64_t> receive_counts) {
  check_all_to_all_v(*this, in, send_counts, out, receive_counts);
  const int64_t own = send_counts[static_cast<size_t>(rank())] * size_of(in.dtype());
  add("all_to_all_v", static_cast<double>(in.bytes() - own));
  hash(name_of(in.dtype()));  // the counts differ by rank
  return inner().all_to_all_v(ctx, in, send_counts, out, receive_counts);
}

Work RecordingCommunicator::broadcast(Context& ctx, const Tensor& buffer, int root) {
  add("broadcast", static_cast<double>(buffer.bytes()));
  hash(buffer);
  return inner().broadcast(ctx, buffer, root);
}

Work RecordingCommunicator::exchange(Context& ctx, std::span<const PointToPoint> messages) {
  int64_t sent = 0;
  for (const PointToPoint& message : messages)
    if (message.kind == PointToPoint::Kind::kSend) sent += message.buffer.bytes();
  add("exchange", static_cast<double>(sent));
  for (const PointToPoint& message : messages) {
    hash(concat(message.kind == PointToPoint::Kind::kSend ? "to " : "from ", message.peer));
    hash(message.buffer);
  }
  return inner().exchange(ctx, messages);
}

void RecordingCommunicator::barrier() {
  add("barrier", 0);
  inner().barrier();
}

std::unique_ptr<Communicator> RecordingCommunicator::wrap_group(std::unique_ptr<Communicator> made, const std::vector<int>& /*ranks*/) {
  return std::make_unique<RecordingCommunicator>(std::move(made), record_);
}

}  // namespace trireme
