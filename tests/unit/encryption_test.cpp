// security.encryption as a user meets it: keys, refusals, the channel of the job monitor, and the world of a run.
#include "trainer/machine/encryption.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "parallel/crypto/key_file.h"
#include "tests/support/catch.h"
#include "tests/support/check_throws.h"
#include "tests/support/scratch.h"
#include "tests/support/thread_ranks.h"
#include "trainer/machine/collectively.h"
#include "trainer/resilience/hub.h"
#include "trainer/resilience/monitor.h"
#include "trainer/resilience/wire.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

const std::string kGoodKey = "8uXk1Zp0m5Qw3nV7rT9yB2cD4eF6gH8jKlMnPqRsTuV\n";

fs::path write_key(const fs::path& path, const std::string& text, mode_t mode = 0600) {
  std::ofstream(path) << text;
  REQUIRE(::chmod(path.c_str(), mode) == 0);
  return path;
}

std::shared_ptr<const crypto::Key> key_from(const std::string& text) { return std::make_shared<const crypto::Key>(crypto::derive({}, text)); }

/// Two ends of a connection.
struct Ends {
  Ends() { REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, files) == 0); }
  int files[2] = {-1, -1};
};

}  // namespace

TEST_CASE("encryption: a key file that others can use, or that is no key, is refused by name") {
  const Scratch directory;
  const auto refused = [&](const fs::path& path, const std::string& part) {
    check_throws<ConfigError>([&] { crypto::read_shared_key(path, "security.key_file"); }, {"security.key_file: " + path.string(), part});
  };
  const fs::path good = write_key(directory / "key", kGoodKey);
  CHECK_NOTHROW(crypto::read_shared_key(good, "security.key_file"));
  const crypto::Key one = crypto::read_shared_key(good, "k"), same = crypto::read_shared_key(write_key(directory / "b", kGoodKey + "\n"), "k"),
                    other = crypto::read_shared_key(write_key(directory / "c", "1" + kGoodKey.substr(1)), "k");
  CHECK(std::equal(one.data(), one.data() + crypto::kKeyBytes, same.data()));  // white space at the end does not count
  CHECK_FALSE(std::equal(one.data(), one.data() + crypto::kKeyBytes, other.data()));

  for (const mode_t mode : {0640, 0604, 0620, 0700}) refused(write_key(directory / "open", kGoodKey, mode), "allowed 0600");
  fs::create_symlink(good, directory / "link");
  refused(directory / "link", "is a symbolic link");
  refused(write_key(directory / "short", kGoodKey.substr(0, 31) + "\n"), "contains 31 bytes; allowed 32 to 4096 bytes drawn at random");
  refused(write_key(directory / "empty", ""), "contains 0 bytes");
  refused(write_key(directory / "long", std::string(4097, 'a')), "contains more; allowed 32 to 4096");
  std::string counting(32, '\0'), pairs;
  for (size_t i = 0; i < counting.size(); ++i) counting[i] = static_cast<char>(i);
  for (int i = 0; i < 20; ++i) pairs += "\x80\xff";
  for (const std::string& weak :
       {std::string(32, '\0'), std::string(40, 'a'), std::string(40, '0'), counting, pairs, std::string("0123456789abcdef0123456789abcdef"),
        std::string("12345678901234567890123456789012"), std::string("correct horse battery staple and more words"),
        std::string("correct-horse-battery-staple-and-more-words"), std::string("thisisaverylongpasswordwithoutanything"),
        std::string("8uXk1Zp0m5Qw3nV7rT9y8uXk1Zp0m5Qw3nV7rT9y"), std::string("deadbeefdeadbeefcafebabecafebabe")})
    refused(write_key(directory / "weak", weak), "contains a key that can be guessed");
  for (int i = 0; i < 2000; ++i) {  // what is drawn at random is taken, as bytes, hexadecimal digits or base64
    std::array<uint8_t, 32> bytes;
    crypto::draw(bytes);
    if (i % 2 == 0) {
      CHECK_NOTHROW(crypto::read_shared_key(write_key(directory / "random", crypto::hex(bytes)), "k"));
    } else {
      for (uint8_t& byte : bytes) byte = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz+/"[byte % 64];
      CHECK_NOTHROW(crypto::read_shared_key(write_key(directory / "random", std::string(bytes.begin(), bytes.end()) + "xY3+7pQa9Z0="), "k"));
    }
  }
  fs::create_directory(directory / "folder");
  refused(directory / "folder", "is not a regular file");
  if (::geteuid() == 0) {
    const fs::path foreign = write_key(directory / "foreign", kGoodKey);
    REQUIRE(::chown(foreign.c_str(), 1, 1) == 0);
    refused(foreign, "belongs to user 1");
  }
  CHECK_THROWS_AS(crypto::read_shared_key(directory / "none", "k"), MissingFileError);
}

TEST_CASE("encryption: a world of several hosts is sealed, with the results of all ranks") {
  const Scratch directory;
  Config config;
  config.security.encryption = Encryption::kRequired;
  config.security.key_file = write_key(directory / "key", kGoodKey).string();
  for (const Collectives collectives : {Collectives::kLibrary, Collectives::kRing, Collectives::kAuto}) {
    config.parallel.collectives = collectives;
    run_ranks(4, [&](Communicator& world) {
      const int first = world.rank() / 2 * 2;
      const auto sealed_world = with_encryption(whole_world(world), {.host_ranks = {first, first + 1}}, config);
      TRIREME_CHECK(all_reduce_count(*sealed_world, world.rank() + 1) == 10, "sum");
      TRIREME_CHECK(all_gather_strings(*sealed_world, std::to_string(world.rank()))[3] == "3", "strings");
      const auto group = sealed_world->group({first, first + 1}, "host");
      TRIREME_CHECK(all_reduce_count(*group, world.rank()) == 2 * first + 1, "sum on a host");
    });
  }
}

TEST_CASE("encryption: one host needs no seal, and ranks that differ in key or choice are refused by name") {
  const Scratch directory;
  const std::string good = write_key(directory / "key", kGoodKey).string(), other = write_key(directory / "other", "1" + kGoodKey.substr(1)).string();
  const auto message_with = [&](const std::function<void(int rank, SecurityConfig& security)>& change) {
    std::string message;
    run_ranks(3, [&](Communicator& world) {
      Config config;
      config.security.encryption = Encryption::kRequired;
      config.security.key_file = good;
      change(world.rank(), config.security);
      const std::vector<int> here = world.rank() < 2 ? std::vector<int>{0, 1} : std::vector<int>{2};
      try {
        with_encryption(whole_world(world), {.host_ranks = here}, config);
      } catch (const AgreedError& error) {
        TRIREME_CHECK(error.code() == ExitCode::kUsage || error.code() == ExitCode::kMissingFile, "exit code");
        if (world.rank() == 0) message = error.what();
      }
    });
    return message;
  };
  using Catch::Matchers::Contains;
  CHECK(message_with([](int, SecurityConfig&) {}) == "");
  CHECK_THAT(message_with([&](int rank, SecurityConfig& security) { security.key_file = rank == 2 ? other : good; }),
             Contains("rank 0 on host ") && Contains("and rank 2 on host ") && Contains("do not have the same key"));
  CHECK_THAT(message_with([&](int rank, SecurityConfig& security) {
               if (rank == 2) security.key_file = "/no/such/key";
             }),
             Contains("security.key_file: /no/such/key does not exist (on rank 2)"));
  CHECK_THAT(message_with([&](int rank, SecurityConfig& security) {
               if (rank == 2) security.encryption = Encryption::kNone;
             }),
             Contains("security.encryption: rank 0 has required on host ") && Contains("and rank 2 has none on host "));
  run_ranks(2, [&](Communicator& world) {
    Config config;
    config.security.encryption = Encryption::kRequired;
    config.security.key_file = "/no/such/key";
    const auto alone = with_encryption(whole_world(world), {.host_ranks = {0, 1}}, config);
    TRIREME_CHECK(all_reduce_count(*alone, 1) == 2, "sum");
  });
}

TEST_CASE("encryption: lines of the job monitor are sealed, and a changed or repeated one ends the connection") {
  const crypto::Key key = crypto::derive({}, "k");
  const auto connect = [&](LineSocket& first, LineSocket& second) {
    const crypto::Handshake a, b;
    first.encrypt(std::move(*seal_keys(a, key, b.hello(), crypto::Side::kFirst)));
    second.encrypt(std::move(*seal_keys(b, key, a.hello(), crypto::Side::kSecond)));
  };
  const nlohmann::json line = {{"token", "planted marker"}};
  for (const std::string attack : {"none", "flip", "replay", "drop"}) {
    INFO(attack);
    Ends near, far;
    LineSocket sender(near.files[0]), receiver(far.files[0]);
    connect(sender, receiver);
    for (int i = 0; i < 3; ++i) sender.send(line);
    std::string bytes(4096, '\0');
    const ssize_t count = ::read(near.files[1], bytes.data(), bytes.size());
    REQUIRE(count > 0);
    bytes.resize(static_cast<size_t>(count));
    CHECK(bytes.find("planted") == bytes.npos);
    const size_t length = bytes.size() / 3;
    CHECK(bytes.substr(0, length) != bytes.substr(length, length));
    if (attack == "flip") bytes[length + 7] = bytes[length + 7] == '0' ? '1' : '0';
    if (attack == "replay") bytes = bytes.substr(0, length) + bytes;
    if (attack == "drop") bytes = bytes.substr(length);
    REQUIRE(::write(far.files[1], bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
    std::vector<std::string> lines;
    CHECK(receiver.receive(lines, 4096) == (attack == "none"));
    CHECK(lines.size() == (attack == "none" ? 3U : attack == "drop" ? 0U : 1U));
    CHECK((receiver.error() == EBADMSG) == (attack != "none"));
    for (const std::string& text : lines) CHECK(parse_line(text) == line);
    ::close(near.files[1]);
    ::close(far.files[1]);
  }
}

TEST_CASE("encryption: the job monitor takes ranks with its key, and no others") {
  std::atomic<int> verdicts = 0;
  const Hub hub({.ranks = 2, .key = key_from("k")}, [&](const Verdict&) { ++verdicts; });
  RankRecord record;
  check_throws<IoError>([&] { Monitor(hub.address(), 0, record, key_from("another")); }, {"rank 0 on host ", "another key (security.key_file)"});
  check_throws<IoError>([&] { Monitor(hub.address(), 0, record); }, {"rank 0 on host "});
  {
    const Monitor zero(hub.address(), 0, record, key_from("k"));
    RankRecord other;
    const Monitor one(hub.address(), 1, other, key_from("k"));
    record.progress().begin_step(7);
    for (int turn = 0; turn < 100 && hub.furthest_step() < 7; ++turn) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    CHECK(hub.furthest_step() == 7);
  }
  CHECK(verdicts == 0);
  const Hub plain({.ranks = 1}, [&](const Verdict&) { ++verdicts; });
  check_throws<IoError>([&] { Monitor(plain.address(), 0, record, key_from("k")); }, {"rank 0 on host ", "does not encrypt"});
}

}  // namespace trireme::test
