#pragma once
// The records of TensorBoard's event files: TFRecord framing (tensorflow/core/lib/io/record_writer.h) of Event messages
// (tensorflow/core/util/event.proto) in the wire format of Protocol Buffers. Each function returns the bytes of one whole record.
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace trireme {

/// CRC-32C (Castagnoli, RFC 3720 appendix B.4) of `bytes`.
uint32_t crc32c(std::string_view bytes);
/// Length, masked CRC-32C of the length, `data`, masked CRC-32C of `data`; all little-endian.
std::string tf_record(std::string_view data);

/// `seconds` in all of them: since 1970, in UTC.

/// The first record of a file.
std::string file_version_record(double seconds);
/// Makes readers drop what earlier files of the directory say about `step` and later steps.
std::string session_start_record(double seconds, int64_t step);

/// The value of a tag. TensorBoard keeps scalars as 32-bit numbers.
using ScalarValue = std::pair<std::string, float>;
std::string scalars_record(double seconds, int64_t step, const std::vector<ScalarValue>& values);

/// `markdown`, as shown by the text dashboard.
std::string text_record(double seconds, int64_t step, std::string_view tag, std::string_view markdown);

/// A bin of a histogram: `count` values in [left, right).
struct HistogramBin {
  double left, right;
  int64_t count;
};
/// The histogram of a tag, as shown by the dashboards of histograms and distributions: a tensor [bins,3] of fp64.
std::string histogram_record(double seconds, int64_t step, std::string_view tag, const std::vector<HistogramBin>& bins);

using HyperParameter = std::pair<std::string, std::variant<bool, double, std::string>>;
/// For the dashboard of hyper-parameters. `name`: the group of runs that it averages, here the run itself.
std::string hyper_parameters_record(double seconds, const std::vector<HyperParameter>& values, std::string_view name);

}  // namespace trireme
