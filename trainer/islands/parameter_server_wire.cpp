// What parameter servers and workers send each other.
#include <algorithm>
#include <utility>

#include "kernels/ops/elementwise.h"
#include "trainer/files/printable.h"
#include "trainer/islands/parameter_server.h"

namespace trireme {

/// Before a gradient, a request for a ticket, and weights.
struct ParameterServer::Header {
  enum Kind : int64_t { kTicket, kGradient, kWeights, kLastWeights } kind;
  int64_t ticket;
  int64_t batch, version;  ///< of a gradient its own; with weights those of the next gradient
  GradientFigures figures;
};
/// Before the elements of each unit.
struct ParameterServer::UnitFrame {
  int64_t part, version, bytes;
};

namespace {

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <class T>
std::span<std::byte> room_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}
std::span<std::byte> bytes_of_tensor(const Tensor& tensor) { return {static_cast<std::byte*>(tensor.raw()), static_cast<size_t>(tensor.bytes())}; }

}  // namespace

int64_t ParameterServer::take_ticket() {
  if (own_ == 0) return grant(0);
  int64_t ticket = 0;
  try {
    const Link& link = links_->to_server(0);
    link.send(bytes_of(Header{Header::kTicket, 0, 0, 0, {}}));
    if (link.receive(room_of(ticket))) return ticket;
  } catch (const IoError&) {  // lose() knows more
  }
  lose(0);
}

void ParameterServer::push(int64_t ticket, const Assignment& of, const GradientFigures& figures) {
  for (int server = 0; server < workers_; ++server) {
    if (server == own_) {
      const std::lock_guard lock(mutex_);
      arrived_[ticket] = {own_, of, figures};
      changed_.notify_all();
      continue;
    }
    try {
      const Link& link = links_->to_server(server);
      link.send(bytes_of(Header{Header::kGradient, ticket, of.batch, of.version, figures}));
      const std::vector<Part>& parts = parts_[static_cast<size_t>(server)];
      for (size_t i = 0; i < parts.size(); ++i) {
        const Tensor values = sent(parts[i]);
        link.send(bytes_of(UnitFrame{static_cast<int64_t>(i), of.version, values.bytes()}));
        link.send(bytes_of_tensor(values));
      }
    } catch (const IoError&) {
      lose(server);
    }
  }
}

/// Throws why there is no connection to an island: what this server knows, or that the island has ended.
void ParameterServer::lose(int island) {
  const std::lock_guard lock(mutex_);
  check_running();
  throw IoError(concat("asynchronous training: island ", island, " has ended"));
}

/// The weights that a server sends, and the next gradient of this rank's worker.
std::optional<Assignment> ParameterServer::pull_from(int server) {
  Header header{};
  try {
    const Link& link = links_->to_server(server);
    if (!link.receive(room_of(header))) lose(server);
    const std::vector<Part>& parts = parts_[static_cast<size_t>(server)];
    for (size_t i = 0; i < parts.size(); ++i) {
      const Tensor weights = master(parts[i]);
      UnitFrame frame{};
      const bool received = link.receive(room_of(frame)) && frame.bytes == weights.bytes() && link.receive(bytes_of_tensor(weights));
      TRIREME_CHECK(received && frame.part == static_cast<int64_t>(i) && frame.version == header.version, "island ", server, " has sent ",
                    frame.bytes, " bytes of version ", frame.version, " for unit ", i, " of version ", header.version);
    }
  } catch (const IoError&) {
    lose(server);
  }
  if (header.kind == Header::kLastWeights) return {};
  return Assignment{own_, header.batch, header.version};
}

std::optional<Assignment> ParameterServer::pull() {
  std::optional<std::optional<Assignment>> next;
  for (int server = 0; server < workers_; ++server) {
    std::optional<Assignment> of_server;
    if (server == own_) {
      std::unique_lock lock(mutex_);
      wait(lock, [&] { return delivered_.has_value(); });
      of_server = *std::exchange(delivered_, std::nullopt);
    } else {
      of_server = pull_from(server);
    }
    TRIREME_CHECK(!next || *next == of_server, "the servers of islands 0 and ", server, " disagree on the next gradient");
    next = of_server;
  }
  for (const auto& stage : stages_) stage->params().mark_all_stale();
  return *next;
}

/// The thread that receives from one worker.
void ParameterServer::receive_from(int worker) {
  try {
    const Link& link = links_->from_client(worker);
    const std::vector<Tensor>& pushed = pushed_by(worker);
    for (Header header{}; link.receive(room_of(header));) {
      if (header.kind == Header::kTicket) {
        link.send(bytes_of(grant(worker)));
        continue;
      }
      for (size_t i = 0; i < pushed.size(); ++i) {
        UnitFrame frame{};
        const bool received = link.receive(room_of(frame)) && frame.bytes == pushed[i].bytes() && link.receive(bytes_of_tensor(pushed[i]));
        TRIREME_CHECK(received && frame.part == static_cast<int64_t>(i) && frame.version == header.version, "island ", worker, " has sent ",
                      frame.bytes, " bytes of version ", frame.version, " for unit ", i);
      }
      const std::lock_guard lock(mutex_);
      arrived_[header.ticket] = {worker, {worker, header.batch, header.version}, header.figures};
      changed_.notify_all();
    }
    const std::lock_guard lock(mutex_);
    was_left_ = true;
    if (!is_over_ && !delivers_last_ && failure_.empty() && !stops_) failure_ = concat("island ", worker, " has ended");
    changed_.notify_all();
  } catch (const std::exception& error) {
    fail(printable(error));
  }
}

/// Sends a worker, which waits for them, the newest weights or, with elastic averaging, its own after an exchange. nullopt: it sends no more in this
/// round.
void ParameterServer::deliver(int worker, const std::optional<Assignment>& next) {
  const std::vector<Part>& own = parts_[static_cast<size_t>(own_)];
  const std::vector<Tensor>& then = then_[static_cast<size_t>(worker)];
  for (size_t i = 0; i < then.size(); ++i) copy(server_, theta_[i], then[i]);
  if (worker == own_) {
    for (size_t i = 0; i < own.size() && !averages_elastically(); ++i) copy(server_, theta_[i], master(own[i]));
    const std::lock_guard lock(mutex_);
    delivered_ = next;
    changed_.notify_all();
    return;
  }
  const Link& link = links_->from_client(worker);
  const int64_t version = next ? next->version : order_->version();
  link.send(bytes_of(Header{next ? Header::kWeights : Header::kLastWeights, 0, next ? next->batch : 0, version, {}}));
  for (size_t i = 0; i < own.size(); ++i) {
    const Tensor& weights = averages_elastically() ? pushed_by(worker)[i] : theta_[i];
    link.send(bytes_of(UnitFrame{static_cast<int64_t>(i), version, weights.bytes()}));
    link.send(bytes_of_tensor(weights));
  }
}

double ParameterServer::bytes_per_push() const {
  double bytes = 0;
  for (int server = 0; server < workers_; ++server)
    if (server != own_)
      for (const Part& part : parts_[static_cast<size_t>(server)])
        bytes += static_cast<double>(part.numel() * (size_of(options_.precision.master) + size_of(sent_dtype())));
  return bytes;
}

}  // namespace trireme
