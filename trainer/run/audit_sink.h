#pragma once
#include "trainer/audit/run_audit.h"
#include "trainer/run/event.h"

namespace trireme {

/// Passes evaluations, rounds of a federation and the data ranks that a step suspects to the audit log.
class AuditSink : public EventSink {
 public:
  /// `audit` must outlive the sink.
  explicit AuditSink(audit::RunAudit& audit) : audit_(audit) {}

  void write(const Event& event) override {
    if (!event.step || !event.fields.is_object()) return;
    const auto member = [&](const char* key) { return event.fields.value(key, nlohmann::ordered_json()); };
    if (event.kind == "evaluation") audit_.evaluated(*event.step, event.fields);
    if (event.kind == "round") audit_.took_round(*event.step, event.fields);
    if (event.kind == "step") audit_.stepped(*event.step, member("loss"), member("suspects"));
  }
  std::string write_error() const override { return audit_.write_error(); }

 private:
  audit::RunAudit& audit_;
};

}  // namespace trireme
