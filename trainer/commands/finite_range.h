#pragma once
#include <CLI/CLI.hpp>
#include <cmath>
#include <string>

#include "kernels/core/check.h"

namespace trireme {

/// Validator for options of type double: a finite number from `least` to `most`. CLI::Range accepts NaN, because every comparison with NaN is false.
inline CLI::Validator finite_range(double least, double most) {
  const auto problem = [=](const std::string& text) -> std::string {
    double value = 0;
    const bool finite = CLI::detail::lexical_cast(text, value) && std::isfinite(value);
    if (finite && value >= least && value <= most) return "";
    const std::string nearest = finite ? concat("; nearest valid ", value < least ? least : most) : "";
    return concat(text, finite ? ": out of range" : ": not a finite number", "; allowed a number from ", least, " to ", most, nearest);
  };
  return CLI::Validator(concat("NUMBER in [", least, " - ", most, "]")).operation([problem](std::string& text) { return problem(text); });
}

}  // namespace trireme
