#include "trainer/run/member_rounds.h"

#include <cmath>
#include <cstring>

#include "parallel/crypto/fixed_point.h"
#include "parallel/crypto/private_random.h"
#include "trainer/config/check_federation.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/strict_json.h"
#include "trainer/machine/collectively.h"

namespace trireme {
namespace {

constexpr const char* kMemberFile = "federation.json";
constexpr int64_t kChunk = 4 << 20;  ///< bytes of weights that ranks pass on at once

/// What rank 0 has, on all ranks. Collective.
std::string from_rank_0(Communicator& world, std::string text) { return world.size() == 1 ? text : all_gather_strings(world, text)[0]; }

std::string text_of_order(const federation::Order& order) {
  return nlohmann::json{static_cast<int>(order.task), order.step, order.bytes, order.round, order.weight}.dump();
}
federation::Order order_of_text(const std::string& text) {
  const nlohmann::json parts = parse_value(text, "update of a round");
  return {static_cast<federation::Task>(parts[0].get<int>()), parts[1].get<int64_t>(), parts[2].get<int64_t>(), parts[3].get<int64_t>(),
          parts[4].get<double>()};
}

/// Sends runs of elements: Range and values, one behind the other.
void send_ranges(federation::Member& member, const std::string& ranges) {
  for (size_t at = 0; at < ranges.size();) {
    federation::Range range;
    std::memcpy(&range, ranges.data() + at, sizeof range);
    std::vector<uint64_t> values(range.count);
    std::memcpy(values.data(), ranges.data() + at + sizeof range, values.size() * sizeof(uint64_t));
    member.send_update(static_cast<int64_t>(range.first), values);
    at += sizeof range + values.size() * sizeof(uint64_t);
  }
}

}  // namespace

void MemberRounds::join() {
  const federation::Role& role = *run_.options.federation;
  model_ = std::make_unique<federation::FlatModel>(*run_.trainer);
  collectively(run_.world, [&] {
    if (!run_.reports()) return;
    const FederationConfig& f = role.config;
    std::pair<std::string, int64_t> kept{"", 0};  // what earlier jobs of this member have promised
    if (const std::filesystem::path path = run_.directory() / kMemberFile; std::filesystem::exists(path)) {
      const nlohmann::json file = parse_object(read_text(path, 1 << 16), path.string());
      kept = {string_member(file, "run", path.string()), integer_member(file, "revealed_round", path.string())};
    }
    identity_ = std::make_unique<federation::Identity>(federation::read_identity(f.roster.value(), f.members, f.identity_key_file.value(), false));
    federation::MemberOptions options{role.address,
                                      f,
                                      role.terms,
                                      run_.data->train.sequences(),
                                      [this] { return run_.stop.requested(); },
                                      [this](const std::string& line) { run_.reporter.message(line); },
                                      kept.second,
                                      kept.first};
    options.keep = [this](const std::string& run, int64_t round) {
      write_durably(run_.directory() / kMemberFile, nlohmann::ordered_json{{"run", run}, {"revealed_round", round}}.dump(2) + "\n");
    };
    member_ = std::make_unique<federation::Member>(*identity_, std::move(options));
  });
}

federation::Order MemberRounds::next_order() {
  std::string text;
  collectively(run_.world, [&] {
    if (run_.reports()) text = text_of_order(member_->next());
  });
  return order_of_text(from_rank_0(run_.world, text));
}

std::optional<int64_t> MemberRounds::next_round() {
  run_.progress.set_timeout(kNoTimeLimit);
  const int64_t steps = run_.options.federation->round_steps;
  if (std::exchange(round_, 0) > 0 && run_.reports()) member_->answer_trained(steps);
  for (;;) {
    run_.progress.act("waiting for the coordinator");
    const federation::Order order = next_order();
    switch (order.task) {
      case federation::Task::kStop: return std::nullopt;
      case federation::Task::kLost: break;
      case federation::Task::kWeights:
        if (!take_weights(order)) return std::nullopt;
        break;
      case federation::Task::kTrain:
        if (order.round > run_.total / steps)
          throw AgreedError(ExitCode::kInternal, concat("the coordinator asks for round ", order.round, " of ", run_.total / steps), run_.reports());
        run_.trainer->scalars().set_accepted_steps(
            std::min(run_.trainer->scalars().accepted_steps(), (order.round - 1) * steps));  // of a repeated round they count once
        round_ = order.round;
        round_weight_ = order.weight;
        run_.set_timeout();
        run_.clock.interrupt();
        return (order.round - 1) * steps + 1;
      case federation::Task::kSend: send_update(); break;
      case federation::Task::kEnd: has_ended_ = true; return std::nullopt;
    }
  }
}

/// False if a stop was requested.
bool MemberRounds::take_weights(const federation::Order& order) {
  run_.progress.act("receiving weights");
  const auto size = static_cast<int64_t>(size_of(model_->dtype()));
  if (order.bytes != model_->numel() * size)
    throw AgreedError(ExitCode::kInternal,
                      concat("the coordinator sends ", order.bytes, " bytes of weights, and the model has ", model_->numel() * size), run_.reports());
  const bool complete = model_->receive(kChunk, [&](int64_t bytes) {
    std::string chunk;
    if (run_.reports()) {
      chunk.resize(static_cast<size_t>(bytes));
      if (!member_->receive_weights(std::as_writable_bytes(std::span(chunk)))) chunk.clear();
    }
    return from_rank_0(run_.world, std::move(chunk));
  });
  if (!complete) return true;  // the connection is lost; what has come is replaced by the next weights
  model_->apply();
  if (!run_.data->validation.empty() && !evaluation_.evaluate(order.step)) return false;
  if (run_.reports()) member_->answer_weights(evaluation_.last().loss, evaluation_.last().tokens);  // 0 tokens: there is no held-out data
  return true;
}

/// Sends weight * (weights at the beginning of the round - weights now), shortened to `clip` and with this member's part of the noise, as fixed-point numbers.
void MemberRounds::send_update() {
  run_.progress.act("sending the update");
  const FederationConfig& f = run_.options.federation->config;
  const crypto::FixedPoint numbers(federation::kFractionBits, static_cast<size_t>(f.members));
  const double norm = std::sqrt(model_->update_squares());
  const double factor = round_weight_ * (f.clip && norm > *f.clip ? *f.clip / norm : 1);
  const double largest_noise = f.noise ? 10 * *f.noise * *f.clip : 0;
  const bool is_sendable = std::isfinite(norm) && norm * factor + largest_noise <= numbers.limit();
  run_.reporter.event("update", run_.done, {{"update_norm", norm}, {"clipped", f.clip && norm > *f.clip}});
  if (!is_sendable) {
    if (run_.reports()) member_->refuse_update(concat("its update is not finite or too large: norm ", norm));
    run_.reporter.message(concat("warning: the update of this round is not sent: its norm is ", norm));
    return;
  }
  crypto::Key key;
  crypto::draw({key.data(), crypto::kKeyBytes});
  const crypto::PrivateRandom random(key);
  const double deviation = noise_of_member(f);
  std::string frames;
  std::vector<std::string> pieces;  // of this rank, each of some MiB
  std::vector<double> noise;
  std::vector<uint64_t> encoded;
  model_->visit_update(federation::kLongestRange, [&](int64_t first, std::span<const double> values) {
    noise.assign(values.size(), 0);
    if (deviation > 0) random.normal("update", 0, first, noise);
    encoded.resize(values.size());
    for (size_t i = 0; i < values.size(); ++i) encoded[i] = numbers.encode(factor * values[i] + deviation * noise[i]);
    const federation::Range range{static_cast<uint64_t>(first), encoded.size()};
    frames.append(reinterpret_cast<const char*>(&range), sizeof range);
    frames.append(reinterpret_cast<const char*>(encoded.data()), encoded.size() * sizeof(uint64_t));
    if (std::ssize(frames) >= kChunk) pieces.push_back(std::exchange(frames, {}));
  });
  pieces.push_back(std::move(frames));
  if (run_.reports()) member_->begin_update();
  const auto most = static_cast<size_t>(all_reduce_scalar(run_.world, static_cast<double>(pieces.size()), ReduceOp::kMax));
  pieces.resize(most);
  for (std::string& piece : pieces) {
    const std::string own = std::exchange(piece, {});
    for (const std::string& of_rank : run_.world.size() == 1 ? std::vector{own} : all_gather_strings(run_.world, own))
      if (run_.reports()) send_ranges(*member_, of_rank);
  }
  if (run_.reports()) member_->end_update();
}

}  // namespace trireme
