#pragma once
// Where a kernel is not ideal in the cases of operations.cpp, how far, and why it is left so. The tests fail beyond `most`, and if an entry is not needed.
#include <cstdint>

namespace cuda_trace {

/// Figures of a launch of which 1 is ideal.
enum class Figure : uint8_t {
  kLoadSectors,   ///< sectors of global memory per request, over the fewest that its bytes fill
  kStoreSectors,  ///< the same of stores
  kLoadBanks,     ///< passes over the banks per request of shared memory, over the fewest
  kStoreBanks,    ///< the same of stores
  kReloads,       ///< bytes of global memory that warps load, over the distinct bytes
  kRestores,      ///< bytes of global memory that warps store, over the distinct bytes
};
constexpr const char* kFigures[] = {"load sectors", "store sectors", "load banks", "store banks", "reloads", "restores"};

/// Part of the loads that may be scalars of a row or of the step, which each warp loads.
constexpr double kScalars = 0.02;

struct Exception {
  const char* kernel;
  Figure figure;
  double most;
  const char* reason;
};
constexpr Exception kExceptions[] = {
    {"rescale_kernel", Figure::kLoadSectors, 2.67, "the logits of the targets are scattered"},
    {"rotate_kernel", Figure::kLoadSectors, 1.2, "16-bit rows: a lane loads 32 bytes of the fp32 table in two accesses, each of half sectors"},
    {"norm_forward", Figure::kReloads, 2.91, "the warps of each row load weight and bias, which stay in the cache"},
    {"norm_backward", Figure::kReloads, 1.67, "the warps of each row or block load the weight, in fp32 in both passes over a row"},
    {"bias_kernel", Figure::kReloads, 1.24, "the bias is loaded for every eighth row"},
    {"embedding_backward_kernel", Figure::kReloads, 1.17, "each block loads all tokens"},
    {"rotate_kernel", Figure::kReloads, 1.12, "rows at one position load the same angles"},
    {"first_partial_kernel", Figure::kReloads, 22, "32 warps load one scalar"},
    {"flash_forward_kernel", Figure::kReloads, 2.71, "blocks of one head load the same keys and values, which stay in the L2 cache"},
    {"flash_backward_kernel", Figure::kReloads, 1.48, "the same with queries, their gradients and the sums to which one block after another adds"},
    {"flash_backward_kernel", Figure::kRestores, 1.13, "the sums; blocks also take tickets"},
    {"hopper_forward_kernel", Figure::kReloads, 2.71, "as flash_forward_kernel"},
    {"hopper_forward_kernel", Figure::kRestores, 1.0004, "tickets of all blocks from one counter"},
    {"hopper_backward_kernel", Figure::kReloads, 1.48, "as flash_backward_kernel"},
    {"hopper_backward_kernel", Figure::kRestores, 1.13, "as flash_backward_kernel"},
    {"plain_forward_kernel", Figure::kReloads, 3.5, "as the flash kernels"},
    {"plain_key_gradients_kernel", Figure::kReloads, 2.1, "as the flash kernels"},
    {"plain_query_gradients_kernel", Figure::kReloads, 2.67, "as the flash kernels"},
    {"product_kernel", Figure::kStoreSectors, 2, "16-bit results: eight lanes store 16 bytes of a row"},
    {"product_kernel", Figure::kReloads, 2.67, "the blocks of one row or column of tiles load the same operand"},
    {"count_digit_kernel", Figure::kLoadSectors, 1.03, "bins to which blocks add by atomics: those that are not empty are scattered"},
    {"count_digit_kernel", Figure::kStoreSectors, 2.3, "as the loads"},
    {"count_digit_kernel", Figure::kLoadBanks, 1.4, "magnitudes of one warp are in bins of the same bank"},
    {"count_digit_kernel", Figure::kStoreBanks, 1.4, "as the loads"},
    {"count_digit_kernel", Figure::kReloads, 2.8, "each block loads the histogram of the digit before, which stays in the cache"},
    {"count_digit_kernel", Figure::kRestores, 12.8, "blocks add to the same bins"},
    {"count_found_kernel", Figure::kReloads, 2, "each block loads the histogram of the last digit"},
    {"write_found_kernel", Figure::kLoadSectors, 1.03, "counts of the blocks before, fewer than fill a sector"},
    {"write_found_kernel", Figure::kStoreSectors, 2.3, "errors of the chosen elements, which are scattered"},
    {"write_found_kernel", Figure::kReloads, 1.04, "each block loads the counts of those before it"},
    {"decode_largest_kernel", Figure::kLoadSectors, 3, "the elements are scattered"},
    {"decode_largest_kernel", Figure::kStoreSectors, 7, "as the loads"},
    {"encode_drawn_kernel", Figure::kLoadSectors, 7.8, "one element of each stretch is drawn"},
    {"encode_drawn_kernel", Figure::kStoreSectors, 4.5, "as the loads"},
    {"decode_drawn_kernel", Figure::kLoadSectors, 4.5, "as encode_drawn_kernel"},
    {"decode_drawn_kernel", Figure::kStoreSectors, 7.9, "as the loads"},
    {"orthonormalise_kernel", Figure::kLoadSectors, 4, "a column of a factor of four columns, which is small"},
    {"orthonormalise_kernel", Figure::kStoreSectors, 4, "as the loads"},
    {"orthonormalise_kernel", Figure::kReloads, 22, "each column is projected on those before it, twice"},
    {"orthonormalise_kernel", Figure::kRestores, 5, "as the loads"},
    {"add_product_kernel", Figure::kReloads, 4.9, "each row loads the second factor, which stays in the cache"},
    {"copy_rows_kernel", Figure::kReloads, 2.04, "a row is read to find an element that is not zero, and then copied"},
};

/// Distinct bytes that the launches of an operation read and write, over the bytes of its record (kernels/core/operation_log.h).
struct BytesException {
  const char* operation;
  double least, most;
  const char* reason;
};
constexpr BytesException kBytesExceptions[] = {
    {"attention_forward", 1, 1.0001, "on sm_90a also a counter of four bytes"},
    {"rmsnorm_backward_weight", 1.13, 1.27, "sums of slices of only eight rows; the record counts the gradient once, but it is read and written"},
    {"layernorm_backward_weight", 1.26, 1.52, "the same, with two gradients"},
    {"rmsnorm_backward", 1.06, 1.14, "as rmsnorm_backward_weight"},
    {"layernorm_backward", 1.13, 1.27, "as layernorm_backward_weight"},
    {"bias_backward", 1.01, 1.04, "the record counts the gradient once, but it is read and written"},
    {"cross_entropy_rescale", 1.08, 1.17, "the record leaves out the logits, of which those of the targets are read"},
    {"cross_entropy_loss", 1.01, 1.02, "the record counts the sum once, but it is read and written"},
    {"cross_entropy_backward", 0.998, 1, "only the first half of the sums is read"},
    {"adamw_step", 0.9999, 1, "not all scalars of the step are read"},
    {"update_step", 0.9998, 1, "not all scalars of the step are read"},
    {"average_step", 0.9996, 1, "not all scalars of the step are read"},
    {"sum_of_squares", 1, 1.001, "partial sums"},
    {"max_absolute", 1.002, 1.0021, "partial maxima"},
    {"mark_outlier", 0.2, 0.21, "one of the scalars of the step and one of the sums are read, and one sum is written"},
    {"finalize_step_scalars", 0.93, 0.94, "some scalars of the step are read and written, and some are neither"},
    {"scale_loss", 0.23, 0.24, "one of the scalars of the step is read"},
    {"first_non_finite", 0.999, 1, "not all scalars of the step are read"},
    {"encode top_k", 2.38, 2.4, "the elements are read again for each digit, to count and to write, and there are histograms"},
    {"decode top_k", 1.7, 1.75, "the same of the encoder; a part of the elements is decoded"},
    {"encode random_k", 1.03, 1.04, "drawn elements are read and written again; each block tells whether its own are finite"},
    {"decode random_k", 0.4, 0.41, "only the drawn elements are read and written"},
    {"copy_accepted", 1, 1.0001, "one of the scalars of the step"},
    {"copy_nonzero_rows", 1, 1.001, "one of the scalars of the step"},
    {"attention_backward", 1.4, 1.69, "two or three kernels read operands; statistics and sums of the queries are written and read"},
};

}  // namespace cuda_trace
