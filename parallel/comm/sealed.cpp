#include "parallel/comm/sealed.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "parallel/comm/arguments.h"
#include "parallel/comm/forwarding.h"
#include "parallel/crypto/handshake.h"

namespace trireme {

class SealKeys {
 public:
  SealKeys(int rank, SealOptions options)
      : rank_(rank), options_(std::move(options)), secrets_(options_.hosts.size()), groups_(options_.hosts.size()) {}

  int rank() const { return rank_; }
  bool is_remote(int other) const { return options_.hosts[static_cast<size_t>(other)] != options_.hosts[static_cast<size_t>(rank_)]; }
  /// "rank 3 on host b"
  std::string text_of(int other) const { return concat("rank ", other, " on host ", options_.names[static_cast<size_t>(other)]); }
  void put(int other, crypto::Agreement secret) { secrets_[static_cast<size_t>(other)] = std::move(secret); }

  /// The keys for one more group with `other`. `ranks`: world ranks of the group.
  crypto::Channel next_channel(int other, const std::string& name, const std::vector<int>& ranks) {
    const auto index = static_cast<size_t>(other);
    std::string purpose = concat("group ", groups_[index]++, " of the pair, ranks");
    for (const int rank : ranks) purpose += concat(" ", rank);
    return secrets_[index]->channel(concat(purpose, ", ", name));
  }

  /// Memory for frames.
  Context& host() { return host_; }
  Tensor frame(int64_t bytes) { return Tensor::empty(host_, {bytes}, DType::kU8, MemoryCategory::kCommunication); }

 private:
  int rank_;
  SealOptions options_;
  std::vector<std::optional<crypto::Agreement>> secrets_;  ///< by world rank
  std::vector<uint64_t> groups_;                           ///< that this rank and each other one have both been made members of
  Arena arena_{Device::kReference};
  Context host_{Device::kReference, &arena_, 1};
};

namespace {

constexpr auto kTag = static_cast<int64_t>(crypto::kTagBytes);
constexpr int kPartChannel = kChannels;

std::span<const std::byte> bytes_in(const Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.raw()), static_cast<size_t>(tensor.bytes())};
}
std::span<std::byte> bytes_of(const Tensor& tensor) { return {static_cast<std::byte*>(tensor.raw()), static_cast<size_t>(tensor.bytes())}; }

/// The keys between this rank and a member of a group on another host, and the numbers of the next messages by channel.
struct SealedPeer {
  crypto::Channel keys;
  std::map<int, uint64_t> sent = {}, received = {};

  void seal(int channel, const Tensor& text, const Tensor& frame) {
    keys.sends.seal(crypto::nonce_of(static_cast<uint32_t>(channel), sent[channel]++), crypto::length_of(bytes_in(text).size()), bytes_in(text),
                    bytes_of(frame));
  }
  bool opens(int channel, uint64_t number, const Tensor& frame, const Tensor& text) const {
    return keys.receives.open(crypto::nonce_of(static_cast<uint32_t>(channel), number), crypto::length_of(bytes_in(text).size()), bytes_in(frame),
                              bytes_of(text));
  }
};

/// What a group's operations in flight share.
struct SealedGroup {
  std::string name;
  std::vector<int> ranks;  ///< world ranks
  std::shared_ptr<SealKeys> keys;
  std::vector<std::optional<SealedPeer>> peers = {};  ///< by rank of the group; none on this host

  SealedPeer* peer(int rank) {
    auto& found = peers[static_cast<size_t>(rank)];
    return found ? &*found : nullptr;
  }
};

/// A message to open: the `number`-th of its channel.
struct SealedReceive {
  int peer;
  int channel;
  uint64_t number;
  Tensor frame, text;
};

/// What can be said of a frame that does not open. The messages that could have come in its place are tried.
std::string why_not(const SealedPeer& peer, const SealedReceive& message) {
  constexpr uint64_t kTried = 8;  // each takes as long as opening the message
  const uint64_t first = message.number - std::min(message.number, kTried);
  for (uint64_t number = first; number <= message.number + kTried; ++number) {
    if (number == message.number || !peer.opens(message.channel, number, message.frame, message.text)) continue;
    return concat("it is message ", number, " of its channel where ", message.number,
                  " is due: ", number < message.number ? "replayed, or out of order" : "earlier ones were lost, or are out of order");
  }
  return "it was changed on its way, or comes from another run, another group or another key";
}

void open_message(SealedGroup& group, const SealedReceive& message) {
  const SealedPeer& peer = *group.peer(message.peer);
  if (peer.opens(message.channel, message.number, message.frame, message.text)) return;
  const SealKeys& keys = *group.keys;
  throw InternalError(concat(keys.text_of(keys.rank()), ": a message from ", keys.text_of(group.ranks[static_cast<size_t>(message.peer)]),
                             " in group '", group.name, "' is not authentic (security.encryption): ", why_not(peer, message)));
}

class SealedOperation final : public Work::Operation {
 public:
  explicit SealedOperation(std::shared_ptr<SealedGroup> group) : group_(std::move(group)) {}

  /// The frame of a message, which is kept until the end of the operation.
  Tensor sent(SealedPeer& peer, int channel, const Tensor& text, Tensor frame) {
    peer.seal(channel, text, frame);
    return kept_.emplace_back(std::move(frame));
  }
  void receive(int rank, SealedPeer& peer, int channel, const Tensor& frame, const Tensor& text) {
    received_.push_back({rank, channel, peer.received[channel]++, frame, text});
  }
  void keep(const Tensor& buffer) { kept_.push_back(buffer); }
  /// At the end, `from` is copied to `to`.
  void copy_when_done(const Tensor& from, const Tensor& to) { copies_.push_back({from, to}); }
  void launch(Work work) { work_ = std::move(work); }
  /// What `inner` carries for this operation.
  Work& carried() { return work_; }

  bool ready() override { return work_.ready(); }
  void wait(Context& ctx) override {
    work_.wait(ctx);
    for (const SealedReceive& message : received_) open_message(*group_, message);
    for (const auto& [from, to] : copies_) copy_elements(from, to);
  }

 private:
  std::shared_ptr<SealedGroup> group_;
  std::vector<Tensor> kept_;
  std::vector<SealedReceive> received_;
  std::vector<std::pair<Tensor, Tensor>> copies_;
  Work work_;
};

class SealedCommunicator final : public ForwardingCommunicator {
 public:
  /// `ranks`: world ranks of `made`.
  SealedCommunicator(std::unique_ptr<Communicator> made, std::vector<int> ranks, std::shared_ptr<SealKeys> keys)
      : ForwardingCommunicator(std::move(made)), group_(std::make_shared<SealedGroup>(SealedGroup{name(), std::move(ranks), std::move(keys)})) {
    for (const int other : group_->ranks) {
      const bool remote = group_->keys->is_remote(other);
      group_->peers.push_back(remote ? std::optional(SealedPeer{group_->keys->next_channel(other, name(), group_->ranks)}) : std::nullopt);
      seals_ = seals_ || remote;
    }
  }

  Work exchange(Context& ctx, std::span<const PointToPoint> messages) override {
    if (!seals(ctx)) return inner().exchange(ctx, messages);
    check_peers(*this, messages);
    auto operation = std::make_unique<SealedOperation>(group_);
    std::vector<PointToPoint> frames;
    frames.reserve(messages.size());
    for (const PointToPoint& message : messages) {
      SealedPeer* const peer = group_->peer(message.peer);
      if (peer == nullptr) {
        frames.push_back(message);
        continue;
      }
      const Tensor frame = group_->keys->frame(message.buffer.bytes() + kTag);
      if (message.kind == PointToPoint::Kind::kSend)
        operation->sent(*peer, message.channel, message.buffer, frame);
      else
        operation->receive(message.peer, *peer, message.channel, frame, message.buffer);
      frames.push_back({message.kind, frame, message.peer, message.channel});
    }
    operation->launch(inner().exchange(ctx, frames));
    return Work(std::move(operation));
  }

  Work all_to_all(Context& ctx, const Tensor& in, const Tensor& out) override {
    if (!seals(ctx)) return inner().all_to_all(ctx, in, out);
    const std::vector<int64_t> counts(static_cast<size_t>(size()), check_all_to_all(*this, in, out));
    return exchange_parts(ctx, split_parts(in, counts), split_parts(out, counts));
  }

  Work all_to_all_v(Context& ctx, const Tensor& in, std::span<const int64_t> send_counts, const Tensor& out,
                    std::span<const int64_t> receive_counts) override {
    if (!seals(ctx)) return inner().all_to_all_v(ctx, in, send_counts, out, receive_counts);
    check_all_to_all_v(*this, in, send_counts, out, receive_counts);
    return exchange_parts(ctx, split_parts(in, send_counts), split_parts(out, receive_counts));
  }

  /// The root sends a frame to each rank: n-1 times the bytes.
  Work broadcast(Context& ctx, const Tensor& buffer, int root) override {
    if (!seals(ctx)) return inner().broadcast(ctx, buffer, root);
    check_root(*this, root);
    const auto ranks = static_cast<size_t>(size());
    const Tensor nothing = buffer.flat(0, 0);
    std::vector<Tensor> send(ranks, nothing), receive(ranks, nothing);
    if (root == rank())
      for (int other = 0; other < size(); ++other) send[static_cast<size_t>(other)] = other == root ? nothing : buffer.flat(0, buffer.numel());
    else
      receive[static_cast<size_t>(root)] = buffer.flat(0, buffer.numel());
    return exchange_parts(ctx, send, receive);
  }

  void barrier() override {
    if (!seals_) return inner().barrier();
    Context& host = group_->keys->host();
    const std::vector<Tensor> nothing(static_cast<size_t>(size()), group_->keys->frame(0));
    exchange_parts(host, nothing, nothing).wait(host);
  }

  /// Only `inner` knows how to wait for what it carries without asking again and again.
  void wait_any(std::span<Work* const> works) override {
    std::vector<Work*> carried;
    for (Work* const work : works) {
      auto* const operation = dynamic_cast<SealedOperation*>(work->operation());
      carried.push_back(operation != nullptr ? &operation->carried() : work);
    }
    inner().wait_any(carried);
  }

 protected:
  /// Every all_reduce, all_gather and reduce_scatter passes here.
  Work perform(Context& ctx, const char* verb, int64_t /*bytes*/, const Call& call) override {
    TRIREME_CHECK(!seals(ctx), verb, " of group '", name(), "' on several hosts would be sent in clear text: stepwise() must wrap sealed()");
    return call();
  }
  std::unique_ptr<Communicator> wrap_group(std::unique_ptr<Communicator> made, const std::vector<int>& ranks) override {
    if (made->size() == 1) return made;
    std::vector<int> of_world;
    for (const int rank : ranks) of_world.push_back(group_->ranks[static_cast<size_t>(rank)]);
    return std::make_unique<SealedCommunicator>(std::move(made), std::move(of_world), group_->keys);
  }

 private:
  bool seals(const Context& ctx) const {
    TRIREME_CHECK(!seals_ || ctx.device != Device::kCuda, "group '", name(), "' carries tensors in host memory only");
    return seals_ && ctx.device != Device::kMeta;
  }

  /// An all_to_all of frames, in bytes; parts for ranks of this host are copied as they are. Each part is sent, even if it is empty.
  Work exchange_parts(Context& ctx, const std::vector<Tensor>& send, const std::vector<Tensor>& receive) {
    auto operation = std::make_unique<SealedOperation>(group_);
    std::vector<int64_t> sent, received;
    for (int rank = 0; rank < size(); ++rank) {
      const int64_t more = group_->peer(rank) != nullptr ? kTag : 0;
      sent.push_back(send[static_cast<size_t>(rank)].bytes() + more);
      received.push_back(receive[static_cast<size_t>(rank)].bytes() + more);
    }
    const Tensor out = group_->keys->frame(std::accumulate(sent.begin(), sent.end(), int64_t{0}));
    const Tensor in = group_->keys->frame(std::accumulate(received.begin(), received.end(), int64_t{0}));
    const std::vector<Tensor> out_parts = split_parts(out, sent), in_parts = split_parts(in, received);
    for (int rank = 0; rank < size(); ++rank) {
      const auto r = static_cast<size_t>(rank);
      if (SealedPeer* const peer = group_->peer(rank)) {
        operation->sent(*peer, kPartChannel, send[r], out_parts[r]);
        operation->receive(rank, *peer, kPartChannel, in_parts[r], receive[r]);
      } else {
        if (send[r].bytes() > 0) std::copy_n(bytes_in(send[r]).data(), sent[r], bytes_of(out_parts[r]).data());
        operation->copy_when_done(in_parts[r], receive[r]);
      }
    }
    operation->keep(out);
    operation->keep(in);
    operation->launch(inner().all_to_all_v(ctx, out, sent, in, received));
    return Work(std::move(operation));
  }

  std::shared_ptr<SealedGroup> group_;
  bool seals_ = false;  ///< the group has ranks on several hosts
};

/// Messages of the same length with all ranks on other hosts: sends of(rank) and returns what each of them sent.
template <class Message, class Of>
std::vector<Message> exchange_with(Communicator& world, SealKeys& keys, const std::vector<int>& others, const Of& of) {
  constexpr auto kBytes = static_cast<int64_t>(std::tuple_size_v<Message>);
  std::vector<Tensor> sent, received;
  std::vector<PointToPoint> messages;
  for (const int other : others) {
    received.push_back(keys.frame(kBytes));
    messages.push_back({PointToPoint::Kind::kRecv, received.back(), other});
  }
  for (const int other : others) {
    const Message message = of(other);
    sent.push_back(keys.frame(kBytes));
    std::copy_n(message.data(), message.size(), sent.back().template data<uint8_t>());
    messages.push_back({PointToPoint::Kind::kSend, sent.back(), other});
  }
  world.exchange(keys.host(), messages).wait(keys.host());
  std::vector<Message> all(others.size());
  for (size_t i = 0; i < others.size(); ++i) std::copy_n(received[i].template data<uint8_t>(), kBytes, all[i].begin());
  return all;
}

}  // namespace

std::shared_ptr<SealKeys> agree_on_keys(Communicator& world, const crypto::Key& shared, SealOptions options) {
  TRIREME_CHECK(std::ssize(options.hosts) == world.size() && std::ssize(options.names) == world.size(), "hosts of ", options.hosts.size(), " of ",
                world.size(), " ranks");
  std::string agreed = concat("; ", options.agreed);
  for (const std::string& name : options.names) agreed += concat("; ", name);
  std::string division;
  for (const int host : options.hosts) division += concat(" ", std::ranges::find(options.hosts, host) - options.hosts.begin());
  auto keys = std::make_shared<SealKeys>(world.rank(), std::move(options));
  std::vector<int> others;
  for (int rank = 0; rank < world.size(); ++rank)
    if (keys->is_remote(rank)) others.push_back(rank);

  const std::vector<crypto::Handshake> handshakes(others.size());
  const auto place_of_rank = [&](int rank) { return static_cast<size_t>(std::ranges::find(others, rank) - others.begin()); };
  const auto hellos = exchange_with<crypto::Hello>(world, *keys, others, [&](int rank) { return handshakes[place_of_rank(rank)].hello(); });
  std::vector<std::optional<crypto::Agreement>> agreements;
  for (size_t i = 0; i < others.size(); ++i) {
    const int low = std::min(world.rank(), others[i]), high = std::max(world.rank(), others[i]);
    const crypto::Side side = world.rank() == low ? crypto::Side::kFirst : crypto::Side::kSecond;
    const std::string context = concat("ranks ", low, " and ", high, " of ", world.size(), " on hosts", division, agreed);
    agreements.push_back(handshakes[i].agree(shared, hellos[i], side, context));
  }
  const auto proofs = exchange_with<crypto::Proof>(world, *keys, others, [&](int rank) {
    const auto& agreement = agreements[place_of_rank(rank)];
    return agreement ? agreement->proof() : crypto::Proof{};
  });
  std::string refused;
  for (size_t i = 0; i < others.size(); ++i) {
    if (!agreements[i] || !agreements[i]->accepts(proofs[i]))
      refused += concat(refused.empty() ? "" : ", ", keys->text_of(others[i]));
    else
      keys->put(others[i], std::move(*agreements[i]));
  }
  if (!refused.empty())
    throw ConfigError(concat("security.key_file: ", keys->text_of(world.rank()), " and ", refused,
                             " do not have the same key, or their handshake was changed on its way; allowed files with the same key on all hosts"));
  return keys;
}

std::unique_ptr<Communicator> sealed(std::unique_ptr<Communicator> world, std::shared_ptr<SealKeys> keys) {
  std::vector<int> all(static_cast<size_t>(world->size()));
  std::iota(all.begin(), all.end(), 0);
  return std::make_unique<SealedCommunicator>(std::move(world), std::move(all), std::move(keys));
}

}  // namespace trireme
