#include "trainer/report/comparison_words.h"

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/plan/text.h"

namespace trireme::report {

using nlohmann::ordered_json;

std::string shown(const std::string& value) { return value.empty() ? "not set" : value; }

std::string arrow(const std::array<double, 2>& values) {
  for (int precision = 6; precision < 17; ++precision) {
    const std::string a = print("%.*g", precision, values[0]), b = print("%.*g", precision, values[1]);
    if (a != b) return a + " -> " + b;
  }
  return print("%.17g -> %.17g", values[0], values[1]);
}

std::string key_text(const KeyValues& one) {
  return concat(one.key, " ", shown(one.values[0]), " -> ", shown(one.values[1]), one.remark.empty() ? "" : " " + one.remark);
}

std::string tensor_text(const TensorDifference& found) {
  std::string text = concat("step ", found.step, ": ", found.tensor);
  if (!found.what.empty()) text += ", " + found.what;
  if (found.elements) {
    const ElementDifference& e = *found.elements;
    text += concat(", element [", e.first[0], ", ", e.first[1], "]: ", arrow(e.values), "; ", counted(e.bits, "bit"), " of ",
                   counted(e.elements, "element"), e.bits == 1 ? " differs" : " differ");
  }
  for (size_t run = 0; run < 2; ++run)
    if (!found.damage[run].empty()) text += concat("; ", kRunNames[run], " does not match its manifest");
  return text;
}

std::string comparison_text(const Comparison& all) {
  std::string text = concat("A  ", all.runs[0], "\nB  ", all.runs[1], "\n\n");
  constexpr size_t kName = 19, kResult = 14;
  for (const Part& one : all.parts) {
    const std::string result = name_of(one.result);
    text += one.name + std::string(kName - one.name.size(), ' ') + result +
            (one.detail.empty() ? "" : std::string(kResult - result.size(), ' ') + one.detail) + "\n";
  }
  if (all.equal()) return text + "\nequal: restarts, times, hosts, names and directories do not count\n";
  text += "\n";
  if (all.step) text += concat("first step that differs    ", all.step->step, ": ", all.step->figure, " ", arrow(all.step->values), "\n");
  if (all.tensor) text += concat("first tensor that differs  ", tensor_text(*all.tensor), "\n");
  if (!all.checkpoints.damaged.empty())
    for (const std::string& damage : all.checkpoints.damaged.front().damage)
      if (!damage.empty()) text += concat("damaged file               ", damage, "\n");
  return text + "likely cause               " + all.cause + "\n";
}

ordered_json comparison_json(const Comparison& all) {
  const auto number = [](double value) { return std::isfinite(value) ? ordered_json(value) : ordered_json(); };
  ordered_json parts = ordered_json::array(), keys = ordered_json::array();
  for (const Part& one : all.parts) parts.push_back({{"part", one.name}, {"result", name_of(one.result)}, {"detail", one.detail}});
  for (const KeyValues& one : all.keys) {
    const auto value = [](const std::string& text) { return text.empty() ? ordered_json() : ordered_json(text); };
    keys.push_back({{"key", one.key}, {"values", {value(one.values[0]), value(one.values[1])}}, {"counts", one.counts}, {"remark", one.remark}});
  }
  ordered_json step, tensor;
  if (all.step)
    step = {{"step", all.step->step}, {"figure", all.step->figure}, {"values", {number(all.step->values[0]), number(all.step->values[1])}}};
  if (all.tensor) {
    const TensorDifference& found = *all.tensor;
    tensor = {{"step", found.step}, {"checkpoint", checkpoint_name(found.step)}, {"tensor", found.tensor}};
    if (!found.what.empty()) tensor["what"] = found.what;
    if (found.elements) {
      const ElementDifference& e = *found.elements;
      tensor.update(
          ordered_json{{"element", e.first}, {"values", {number(e.values[0]), number(e.values[1])}}, {"elements", e.elements}, {"bits", e.bits}});
    }
    tensor["damage"] = found.damage;
  }
  ordered_json jobs = ordered_json::array();
  for (const JobDifference& one : all.jobs) jobs.push_back({{"step", one.step}, {"layout", one.layout}, {"hosts", one.hosts}});
  return {
      {"equal", all.equal()}, {"runs", all.runs},       {"cause", all.cause},
      {"first_step", step},   {"first_tensor", tensor}, {"parts", parts},
      {"keys", keys},         {"jobs", jobs},           {"checkpoints", {{"compared", all.checkpoints.steps}, {"only_in", all.checkpoints.only}}}};
}

}  // namespace trireme::report
