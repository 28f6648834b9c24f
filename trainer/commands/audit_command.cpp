#include "trainer/commands/audit_command.h"

#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "parallel/crypto/key_file.h"
#include "trainer/audit/verify.h"
#include "trainer/commands/finish_output.h"
#include "trainer/files/printable.h"

namespace trireme {
namespace {

struct AuditArguments {
  std::string run, output;
  std::optional<std::string> public_key, head;
  bool json = false;
};

ExitCode verify(const AuditArguments& arguments) {
  crypto::require_sodium("audit verify");
  if (crypto::Hash hash; arguments.head && !crypto::from_hex(*arguments.head, hash))
    throw ConfigError(concat("--head ", *arguments.head, ": is no head; allowed 64 lower-case hexadecimal digits, as audit verify prints them"));
  std::optional<crypto::PublicKey> key;
  if (arguments.public_key) key = crypto::read_public_key(*arguments.public_key, "--public-key");
  try {
    const audit::Verification verification = audit::verify_run(arguments.run, key, arguments.head);
    std::cout << (arguments.json ? audit::to_json(verification).dump(2) + "\n" : printable(audit::text_of(verification)));
  } catch (const Error& error) {  // changed or missing files
    if (arguments.json)
      std::cout << nlohmann::ordered_json({{"valid", false}, {"problem", error.what()}}).dump(2, ' ', true, nlohmann::json::error_handler_t::replace)
                << "\n";
    throw;
  }
  finish_output();
  return ExitCode::kOk;
}

ExitCode keygen(const AuditArguments& arguments) {
  crypto::require_sodium("audit keygen");
  const crypto::PublicKey key = crypto::write_new_key_pair(arguments.output);
  std::cout << "secret key in " << printable(arguments.output) << ", public key in " << printable(arguments.output) << ".pub: " << crypto::hex(key)
            << "\n";
  finish_output();
  return ExitCode::kOk;
}

}  // namespace

void add_audit_command(CLI::App& app, int& exit_code) {
  CLI::App* audit = app.add_subcommand("audit", "Verify the audit log of a run, or make a key that signs one");
  audit->require_subcommand(1);
  const auto arguments = std::make_shared<AuditArguments>();
  CLI::App* verify_command = audit->add_subcommand("verify",
                                                   "Compare a run with its audit log: the records, all files of the checkpoints, config.yaml, the "
                                                   "receipt and their signatures; exit code 65 if anything was changed");
  verify_command->add_option("RUN", arguments->run, "Run directory")->required();
  verify_command->add_option("--public-key", arguments->public_key, "File of the public key: no other signatures count");
  verify_command
      ->add_option("--head", arguments->head, "Head that was noted after an earlier verification: an older copy of the run does not contain it")
      ->type_name("HEX");
  verify_command->add_flag("--json", arguments->json, "Print one JSON object");
  verify_command->callback([arguments, &exit_code] { exit_code = static_cast<int>(verify(*arguments)); });
  CLI::App* keygen_command = audit->add_subcommand("keygen", "Make a key for security.audit.signing_key_file");
  keygen_command
      ->add_option("--output", arguments->output,
                   "File of the secret key, which must not exist; the public key is written to the same name with .pub")
      ->required();
  keygen_command->callback([arguments, &exit_code] { exit_code = static_cast<int>(keygen(*arguments)); });
}

}  // namespace trireme
