// Products of warpgroups and bulk operations: implements device_thread.h on the block runner.
#include "tests/cuda_sim/warpgroup.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda_sim/fiber_switch.h"
#include "tests/cuda_sim/tensor_core.h"

namespace cuda_sim {

SharedOperand::SharedOperand(uint64_t descriptor, bool transposed, int extent) : descriptor_(descriptor), transposed_(transposed), extent_(extent) {
  const auto bytes = [descriptor](int bit) { return static_cast<uint32_t>(descriptor >> bit & 0x3FFF) << 4; };
  start_ = bytes(0);
  leading_ = bytes(16);
  stride_ = bytes(32);
}

const char* SharedOperand::problem() const {
  constexpr uint64_t kUnused = uint64_t{3} << 14 | uint64_t{3} << 30 | uint64_t{7} << 46 | uint64_t{0x3FF} << 52;
  constexpr uint32_t kPattern = 1024, kStep = kProductDepth * 2, kSteps = 4;  // the swizzle pattern, and steps along k in its rows
  if (descriptor_ >> 62 != 1) return "without the 128-byte swizzle, the only one of this machine";
  if ((descriptor_ >> 49 & 7) != 0) return "with a base offset, which this machine does not know";
  if ((descriptor_ & kUnused) != 0) return "whose descriptor has a bit without meaning";
  if (transposed_ && start_ % kPattern != 0) return "that does not begin at a multiple of 1,024 bytes";
  if (start_ % kPattern >= kSteps * kStep || start_ % kStep != 0)
    return "that does not begin at a multiple of 1,024 bytes, or up to three steps of 32 bytes behind";
  if (stride_ % kPattern != 0) return "with a stride that is not a multiple of 1,024 bytes";
  if (transposed_ && extent_ > 64 && leading_ % kPattern != 0) return "with panels whose distance is not a multiple of 1,024 bytes";
  return nullptr;
}

namespace {

SharedOperand operand_a(const ProductPart& part) { return {part.a_descriptor, part.transposed_a, kProductRows}; }
SharedOperand operand_b(const ProductPart& part) { return {part.b_descriptor, part.transposed_b, part.columns}; }

/// Does not return, and leaves no memory to the stack: see BlockRunner::fail.
void fail_product(BlockRunner& runner, std::string what, Site site) {
  std::string text = text_of(what, Meeting::kWgmma, ~0u, site);
  std::string().swap(what);
  runner.fail(cudaErrorLaunchFailure, std::move(text));
}
void fail_bulk(BlockRunner& runner, cudaError_t error, const char* what, Site site) {
  runner.fail(error, std::string("starts a bulk operation on ") + what + " in line " + std::to_string(site.line) + " of " + site.file);
}

void check_operand(BlockRunner& runner, const SharedOperand& operand, const char* name, Site site) {
  if (const char* const problem = operand.problem()) fail_product(runner, std::string("has an operand ") + name + " " + problem, site);
  bool inside = true;
  operand.each_chunk([&](uint32_t address) { inside = inside && runner.shared_at(address, 16) != nullptr; });
  if (!inside) fail_product(runner, std::string("has an operand ") + name + " that is not in the dynamic shared memory", site);
}

ProductPart& part_of(const Warpgroup& group, size_t thread) { return *static_cast<ProductPart*>(group.threads[thread]->slot); }

void check_parts(BlockRunner& runner, const Warpgroup& group, Site site) {
  const ProductPart& first = part_of(group, 0);
  for (size_t thread = 1; thread < kWarpgroup; ++thread) {
    const ProductPart& other = part_of(group, thread);
    const bool same = other.a_descriptor == first.a_descriptor && other.b_descriptor == first.b_descriptor && other.columns == first.columns &&
                      (other.a == nullptr) == (first.a == nullptr) && other.transposed_a == first.transposed_a &&
                      other.transposed_b == first.transposed_b && other.widen == first.widen;
    if (!same) fail_product(runner, "has another operand than other threads of its warpgroup", site);
    if (other.add != first.add) fail_product(runner, "adds, and other threads of its warpgroup do not, or the reverse,", site);
  }
}

/// Where the value of a thread's register lies in the results.
size_t place_of(size_t thread, size_t value, size_t columns) {
  const size_t lane = thread % 32, tile = value / 4, element = value % 4;
  return (thread / 32 * 16 + lane / 4 + element / 2 * 8) * columns + tile * 8 + lane % 4 * 2 + element % 2;
}

/// The accumulator of pending products that has these registers; null if none has any of them.
std::shared_ptr<Accumulator> pending_accumulator(BlockRunner& runner, const Warpgroup& group, Site site) {
  const int columns = part_of(group, 0).columns, values = columns / 2;
  for (const Product& product : group.products) {
    const Accumulator& other = *product.accumulator;
    size_t equal = 0, overlapping = 0;
    for (size_t thread = 0; thread < kWarpgroup; ++thread) {
      const float *const own = part_of(group, thread).d, *const its = other.registers[thread];
      equal += own == its && columns == other.columns;
      overlapping += own < its + other.columns / 2 && its < own + values;
    }
    if (equal == kWarpgroup) return product.accumulator;
    if (overlapping > 0) fail_product(runner, "has some of the registers of a pending product of another shape", site);
  }
  return nullptr;
}

std::shared_ptr<Accumulator> new_accumulator(const Warpgroup& group) {
  auto accumulator = std::make_shared<Accumulator>();
  accumulator->columns = part_of(group, 0).columns;
  for (size_t thread = 0; thread < kWarpgroup; ++thread) accumulator->registers[thread] = part_of(group, thread).d;
  return accumulator;
}

/// In registers of pending products: a signalling NaN, whose bits change in any arithmetic, so that registers that are scaled are found too.
constexpr uint32_t kPending = 0xFFBFFFFF;

/// Before a product that may run later: its accumulator takes the values of the registers, which become NaN.
void take_registers(Accumulator& accumulator, bool add) {
  if (accumulator.late++ > 0) return;
  const auto columns = static_cast<size_t>(accumulator.columns);
  accumulator.sums.assign(kProductRows * columns, 0.0F);
  for (size_t thread = 0; thread < kWarpgroup; ++thread) {
    float* const registers = accumulator.registers[thread];
    for (size_t value = 0; add && value < columns / 2; ++value) accumulator.sums[place_of(thread, value, columns)] = registers[value];
    for (size_t value = 0; value < columns / 2; ++value) std::memcpy(&registers[value], &kPending, sizeof kPending);
  }
}

/// Behind the last product that was late. Returns false if a register was written meanwhile.
bool give_registers(Accumulator& accumulator) {
  const auto columns = static_cast<size_t>(accumulator.columns);
  bool untouched = true;
  for (size_t thread = 0; thread < kWarpgroup; ++thread) {
    float* const registers = accumulator.registers[thread];
    for (size_t value = 0; value < columns / 2; ++value) {
      untouched = untouched && __builtin_bit_cast(uint32_t, registers[value]) == kPending;
      registers[value] = accumulator.sums[place_of(thread, value, columns)];
    }
  }
  return untouched;
}

float element(const BlockRunner& runner, const ProductPart& part, const SharedOperand& operand, unsigned mn, unsigned k) {
  uint16_t bits = 0;
  std::memcpy(&bits, runner.shared_at(operand.address(static_cast<int>(mn), static_cast<int>(k)), sizeof bits), sizeof bits);
  return part.widen(bits);
}

}  // namespace

void BlockRunner::multiply(Product& product) {
  const ProductPart& part = product.part;
  float a[kProductRows][kProductDepth];
  if (product.a.empty()) {
    const SharedOperand operand = operand_a(part);
    for (unsigned row = 0; row < kProductRows; ++row)
      for (unsigned k = 0; k < kProductDepth; ++k) a[row][k] = element(*this, part, operand, row, k);
  } else {
    for (unsigned thread = 0; thread < kWarpgroup; ++thread)
      for (unsigned i = 0; i < 4; ++i) {
        const uint32_t pair = product.a[thread * 4 + i];
        float* const at = &a[thread / 32 * 16 + thread % 32 / 4 + i % 2 * 8][thread % 4 * 2 + i / 2 * 8];
        at[0] = part.widen(static_cast<uint16_t>(pair));
        at[1] = part.widen(static_cast<uint16_t>(pair >> 16));
      }
  }
  Accumulator& accumulator = *product.accumulator;
  const SharedOperand operand = operand_b(part);
  const auto columns = static_cast<unsigned>(part.columns);
  for (unsigned tile = 0; tile < columns; tile += 8) {
    Row b[kProductDepth];
    for (unsigned k = 0; k < kProductDepth; ++k)
      for (unsigned column = 0; column < 8; ++column) b[k][column] = element(*this, part, operand, tile + column, k);
    for (unsigned row = 0; row < kProductRows; ++row) {
      float* const at = &accumulator.sums[row * columns + tile];
      Row sum{};
      if (part.add) std::memcpy(&sum, at, sizeof sum);
      add_product(sum, a[row], b);
      std::memcpy(at, &sum, sizeof sum);
    }
  }
  product.done = true;
  if (--accumulator.late == 0 && !give_registers(accumulator))
    fail_product(*this, "is in a warpgroup that has written registers of a pending product, issued", product.site);
}

void BlockRunner::run(BulkOperation& operation) {
  const int count = operation.bytes / static_cast<int>(sizeof(float));
  for (int i = 0; i < count; ++i) operation.global[i] = operation.add ? operation.global[i] + operation.shared[i] : operation.shared[i];
  operation.done = true;
}

int BlockRunner::late_mode() {
  if (late_mode_ < 0) late_mode_ = static_cast<int>(random_.below(3));
  return late_mode_;
}

void BlockRunner::run_some(Fiber& self, size_t one_in) {
  if (late_mode_ != 2) return;
  for (BulkOperation& operation : self.bulk)
    if (!operation.done && random_.below(4) == 0) run(operation);
  for (Product& product : warpgroup_of(self).products) {
    if (product.done) continue;
    if (random_.below(one_in) != 0) return;
    multiply(product);
  }
}

bool wgmma(const ProductPart& part, Site site) {
  Fiber& self = current();
  BlockRunner& runner = *self.runner;
  ProductPart own = part;
  Warpgroup* const group = runner.meet_warpgroup(self, Meeting::kWgmma, site, &own);
  if (group == nullptr) return false;
  check_parts(runner, *group, site);
  if (runner.capability() != 90) fail_product(runner, "needs a GPU of compute capability 9.0", site);
  if (!group->fenced) fail_product(runner, "has called no wgmma_fence since its last wgmma_wait, or at all,", site);
  if (own.a == nullptr) check_operand(runner, operand_a(own), "A", site);
  check_operand(runner, operand_b(own), "B", site);
  std::shared_ptr<Accumulator> accumulator = pending_accumulator(runner, *group, site);
  if (accumulator == nullptr) accumulator = new_accumulator(*group);
  take_registers(*accumulator, own.add);
  Product& product = group->products.emplace_back(Product{own, {}, std::move(accumulator), group->groups, site, false});
  if (own.a != nullptr)
    for (size_t thread = 0; thread < kWarpgroup; ++thread) {
      const uint32_t* const a = part_of(*group, thread).a;
      product.a.insert(product.a.end(), a, a + 4);
    }
  if (runner.late_mode() == 0) runner.multiply(product);
  runner.run_some(self, 4);
  runner.release(*group, self);
  return true;
}

bool wgmma_fence(Site site) {
  Fiber& self = current();
  Warpgroup* const group = self.runner->meet_warpgroup(self, Meeting::kWgmmaFence, site, nullptr);
  if (group == nullptr) return false;
  group->fenced = true;
  self.runner->release(*group, self);
  return true;
}

bool wgmma_commit(Site site) {
  Fiber& self = current();
  Warpgroup* const group = self.runner->meet_warpgroup(self, Meeting::kWgmmaCommit, site, nullptr);
  if (group == nullptr) return false;
  ++group->groups;
  self.runner->run_some(self, 4);
  self.runner->release(*group, self);
  return true;
}

bool wgmma_wait(int groups_left, Site site) {
  Fiber& self = current();
  Warpgroup* const group = self.runner->meet_warpgroup(self, Meeting::kWgmmaWait, site, nullptr);
  if (group == nullptr) return false;
  size_t complete = 0;
  for (Product& product : group->products) {
    if (product.group >= group->groups - groups_left) break;
    if (!product.done) self.runner->multiply(product);
    ++complete;
  }
  group->products.erase(group->products.begin(), group->products.begin() + static_cast<std::ptrdiff_t>(complete));
  group->fenced = false;
  self.runner->run_some(self, 4);
  self.runner->release(*group, self);
  return true;
}

void bulk_operation(float* global, const float* shared, int bytes, bool add, Site site) {
  Fiber& self = current();
  BlockRunner& runner = *self.runner;
  const auto aligned = [](const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; };
  if (runner.capability() < 90) fail_bulk(runner, cudaErrorInvalidDeviceFunction, "a GPU of compute capability below 9.0", site);
  if (bytes <= 0 || bytes % 16 != 0) fail_bulk(runner, cudaErrorMisalignedAddress, "a number of bytes that is no multiple of 16", site);
  if (!aligned(global) || !aligned(shared)) fail_bulk(runner, cudaErrorMisalignedAddress, "memory that is not 16-byte aligned", site);
  if (!runner.holds_shared(shared, static_cast<size_t>(bytes)))
    fail_bulk(runner, cudaErrorIllegalAddress, "bytes that are not in the shared memory of the block", site);
  BulkOperation& operation = self.bulk.emplace_back(BulkOperation{global, shared, bytes, add, self.bulk_groups, site, false});
  if (runner.late_mode() == 0) runner.run(operation);
}

void bulk_commit() {
  Fiber& self = current();
  ++self.bulk_groups;
  self.runner->run_some(self, 4);
}

/// Those that are left run in reverse: their order is not defined.
void bulk_wait(int groups_left) {
  Fiber& self = current();
  const auto pending = [&](const BulkOperation& operation) { return operation.group >= self.bulk_groups - groups_left; };
  for (auto operation = self.bulk.rbegin(); operation != self.bulk.rend(); ++operation)
    if (!operation->done && !pending(*operation)) self.runner->run(*operation);
  std::erase_if(self.bulk, [&](const BulkOperation& operation) { return !pending(operation); });
}

uint32_t shared_address(const void* shared, Site site) {
  Fiber& self = current();
  return self.runner->shared_address(shared, site);
}

}  // namespace cuda_sim
