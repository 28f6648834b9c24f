#pragma once
// Trains a small, deliberately awkward model under any layout and records everything that must not depend on it.
#include <map>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "trainer/config/config.h"
#include "trainer/data/dataset.h"

namespace trireme::test {

struct Layout {
  int tensor = 1, pipeline = 1, data = 1, zero = 0, replicate = 1;
  bool sequence_parallel = false;
  std::string schedule = "1f1b";
  std::string accumulation = "auto";
  std::string reshard = "after_use";
  int prefetch = 1;
  int micro_batch = 1;
  std::vector<int64_t> layers_per_stage = {};  ///< empty: as even as 5 layers go

  int world() const { return tensor * pipeline * data; }
  std::string str() const;  ///< "tp2pp2dp2z3 sp gpipe mb2"
};

/// Five layers, prime vocabulary 61, hidden size 24 or 23, sequences of 12, global batch 12, ragged target masks.
enum class ParityModel {
  kLlamaGrouped,  ///< 12 heads, 2 kv heads, tied, dropout 0, qk_norm, scaled RoPE
  kLlama,         ///< 6 heads, 6 kv heads, untied, qkv_bias
  kGpt2,          ///< 6 heads, tied, non-zero biases
  kGpt2Dropout,   ///< the same with dropout 0.1
};
const char* name_of(ParityModel model);
bool is_legal(ParityModel model, const Layout& layout);
Config parity_config(ParityModel model, const Layout& layout, const std::string& precision);

/// Reproducible tokens; target (s + 3b + 5t) % 7 == 0 is masked, and sample 3 is masked whole.
class RaggedDataset final : public Dataset {
 public:
  RaggedDataset(int64_t sequences, int64_t sequence_length, int64_t vocab_size)
      : sequences_(sequences), length_(sequence_length), vocab_(vocab_size) {}
  int64_t sequences() const override { return sequences_; }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override;

 private:
  int64_t sequences_, length_, vocab_;
};

struct GlobalTensor {
  std::vector<double> values;  ///< of the whole, unpadded parameter
};

struct RunRecord {
  std::vector<double> loss, grad_norm;
  double validation_loss = 0;
  std::map<std::string, GlobalTensor> first_gradient;  ///< of step 1
  std::map<std::string, GlobalTensor> weight;          ///< after the last step
  bool operator==(const RunRecord& other) const;       ///< bit for bit
};

/// This rank's part of a run; collective. The record is whole on every rank. Throws if a replicated or tied copy differs by a bit from the counted one.
RunRecord train(Communicator& world, const Config& config, int steps, Device device, int threads = 1);

RunRecord train(Context& ctx, Communicator& world, const Config& config, int steps);

/// The same on rank threads. `poison`: in-flight buffers hold NaN until waited for.
RunRecord train_on_threads(const Config& config, int steps, Device device, bool poison = false);

/// Empty if `actual` is `expected` up to `tolerance`: losses and norms relatively, tensors by max|a-b| <= tolerance * max(max|tensor|, 1e-3 of the
/// largest tensor); else the first difference, in words.
std::string difference(const RunRecord& expected, const RunRecord& actual, double tolerance);

/// The largest ||a - b|| / ||b|| over the parameters' gradients of step 1; norms below a hundredth of the largest count as that (a key's bias has none).
double gradient_error(const RunRecord& expected, const RunRecord& actual);

}  // namespace trireme::test
