#include "trainer/run/tensorboard_records.h"

#include <array>
#include <bit>

namespace trireme {
namespace {

constexpr std::array<uint32_t, 256> kCrcTable = [] {
  constexpr uint32_t kPolynomial = 0x82F63B78;  // 0x1EDC6F41, bits reversed
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc % 2 == 1 ? crc >> 1 ^ kPolynomial : crc >> 1;
    table[byte] = crc;
  }
  return table;
}();

template <class T>
std::string little_endian(T value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof value; ++i, value = static_cast<T>(value >> 8)) bytes += static_cast<char>(value & 0xFF);
  return bytes;
}

/// A CRC of bytes that contain CRCs is weak, so the format stores them rotated and shifted.
std::string masked_crc(std::string_view bytes) { return little_endian(std::rotr(crc32c(bytes), 15) + 0xA282EAD8U); }

/// One message of Protocol Buffers. Fields that have the default of their type are left out by the caller, as the format has it.
class Message {
 public:
  Message& integer(int field, uint64_t value) {
    key(field, 0);
    varint(value);
    return *this;
  }
  Message& number(int field, double value) {
    key(field, 1);
    bytes_ += little_endian(std::bit_cast<uint64_t>(value));
    return *this;
  }
  Message& number(int field, float value) {
    key(field, 5);
    bytes_ += little_endian(std::bit_cast<uint32_t>(value));
    return *this;
  }
  Message& text(int field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(int field, const Message& value) { return text(field, value.bytes_); }
  const std::string& bytes() const { return bytes_; }

 private:
  void key(int field, int wire_type) { varint(static_cast<uint64_t>(field * 8 + wire_type)); }
  void varint(uint64_t value) {
    for (; value >= 128; value /= 128) bytes_ += static_cast<char>(value % 128 + 128);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

Message event(double seconds, int64_t step) {
  Message event;
  event.number(1, seconds);
  if (step != 0) event.integer(2, static_cast<uint64_t>(step));
  return event;
}

/// An Event with a Summary.
std::string summary_record(double seconds, int64_t step, const Message& summary) {
  return tf_record(event(seconds, step).message(5, summary).bytes());
}

/// A Summary with one value, which the plugin of this name shows. `content`: for the plugin. `tensor`: a TensorProto.
Message plugin_summary(std::string_view tag, std::string_view plugin, std::string_view content, const Message& tensor) {
  constexpr int kDataClassTensor = 2;
  Message data;
  data.text(1, plugin);
  if (!content.empty()) data.text(2, content);
  const Message metadata = Message().message(1, data).integer(4, kDataClassTensor);
  return Message().message(1, Message().text(1, tag).message(8, tensor).message(9, metadata));
}

/// A TensorProto of one dimension without its values.
Message vector(int dtype, uint64_t size) {
  Message dimension;
  if (size != 0) dimension.integer(1, size);
  return Message().integer(1, static_cast<uint64_t>(dtype)).message(2, Message().message(2, dimension));
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = 0xFFFFFFFF;
  for (const char byte : bytes) crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<unsigned char>(byte)) & 0xFF];
  return ~crc;
}

std::string tf_record(std::string_view data) {
  const std::string length = little_endian(static_cast<uint64_t>(data.size()));
  return length + masked_crc(length) + std::string(data) + masked_crc(data);
}

std::string file_version_record(double seconds) { return tf_record(event(seconds, 0).text(3, "brain.Event:2").bytes()); }

std::string session_start_record(double seconds, int64_t step) {
  constexpr int kStart = 1;
  return tf_record(event(seconds, step).message(7, Message().integer(1, kStart)).bytes());
}

std::string scalars_record(double seconds, int64_t step, const std::vector<ScalarValue>& values) {
  Message summary;
  for (const auto& [tag, value] : values) summary.message(1, Message().text(1, tag).number(2, value));
  return summary_record(seconds, step, summary);
}

std::string text_record(double seconds, int64_t step, std::string_view tag, std::string_view markdown) {
  constexpr int kString = 7;
  return summary_record(seconds, step, plugin_summary(tag, "text", "", vector(kString, 1).text(8, markdown)));
}

std::string histogram_record(double seconds, int64_t step, std::string_view tag, const std::vector<HistogramBin>& bins) {
  constexpr int kDouble = 2;
  std::string content;
  for (const HistogramBin& bin : bins)
    for (const double value : {bin.left, bin.right, static_cast<double>(bin.count)}) content += little_endian(std::bit_cast<uint64_t>(value));
  Message rows, columns;
  if (!bins.empty()) rows.integer(1, bins.size());
  columns.integer(1, 3);
  const Message shape = Message().message(2, rows).message(2, columns);
  const Message tensor = Message().integer(1, kDouble).message(2, shape).text(4, content);
  return summary_record(seconds, step, plugin_summary(tag, "histograms", "", tensor));
}

std::string hyper_parameters_record(double seconds, const std::vector<HyperParameter>& values, std::string_view name) {
  Message session;
  for (const auto& [key, value] : values) {
    Message any;  // google.protobuf.Value
    if (const auto* number = std::get_if<double>(&value)) any.number(2, *number);
    if (const auto* text = std::get_if<std::string>(&value)) any.text(3, *text);
    if (const auto* flag = std::get_if<bool>(&value)) any.integer(4, *flag ? 1 : 0);
    session.message(1, Message().text(1, key).message(2, any));
  }
  session.text(4, name).number(5, seconds);
  constexpr int kFloat = 1;
  const std::string content = Message().message(3, session).bytes();
  return summary_record(seconds, 0, plugin_summary("_hparams_/session_start_info", "hparams", content, vector(kFloat, 0)));
}

}  // namespace trireme
