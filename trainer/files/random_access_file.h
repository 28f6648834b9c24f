#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

namespace trireme {

/// A regular file with random-access reads that copy. If the file is truncated while in use, the next read throws; a mapped file would kill the
/// process with SIGBUS. read() is thread-safe. Errors of the constructor: those of MappedFile.
class RandomAccessFile {
 public:
  explicit RandomAccessFile(const std::string& path);
  ~RandomAccessFile();
  RandomAccessFile(RandomAccessFile&& other) noexcept;
  RandomAccessFile(const RandomAccessFile&) = delete;
  RandomAccessFile& operator=(const RandomAccessFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }  ///< size when opened
  /// Copies bytes [begin, begin + count) to `out`. Errors: DataError if the file has been truncated since it was opened; IoError.
  void read(int64_t begin, int64_t count, void* out) const;

 private:
  std::string path_;
  int64_t bytes_ = 0;
  int descriptor_ = -1;
};

/// Reads one T at byte `offset`, which need not be aligned.
template <class T>
T read_value(const RandomAccessFile& file, int64_t offset) {
  T value;
  file.read(offset, sizeof value, &value);
  return value;
}

/// An array of `count` values of type T at byte `first_byte` of a file. Reads a block ahead, so sequential access costs few system calls. The file
/// must outlive the reader.
template <class T>
class ValueReader {
 public:
  ValueReader(const RandomAccessFile& file, int64_t first_byte, int64_t count) : file_(&file), first_byte_(first_byte), count_(count) {}

  T operator[](int64_t i) {
    if (i < begin_ || i >= end_) fill(i);
    return block_[static_cast<size_t>(i - begin_)];
  }

 private:
  static constexpr int64_t kBlock = 512;

  void fill(int64_t i) {
    const int64_t end = std::min(count_, i + kBlock), item = sizeof(T);
    begin_ = end_ = 0;  // empty if the read throws
    file_->read(first_byte_ + i * item, (end - i) * item, block_.data());
    begin_ = i;
    end_ = end;
  }

  const RandomAccessFile* file_;
  int64_t first_byte_, count_;
  int64_t begin_ = 0, end_ = 0;  ///< range of the values in block_
  std::array<T, kBlock> block_;
};

}  // namespace trireme
