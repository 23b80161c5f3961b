// Names and other text: enumerators by name, and what another process wrote.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

#include "base/error.h"

namespace ringdp {

// The enumerator, among the first `count`, that has this name, else InvalidArgument that lists the known names. `kind`:
// with its article, "a collective".
template <class Enum>
Enum enumerator_named(const std::string& name, int count, const std::string& kind) {
  std::string known;
  for (int i = 0; i < count; ++i) {
    const auto one = static_cast<Enum>(i);
    if (name == name_of(one)) return one;
    known += (i ? ", " : "") + std::string(name_of(one));
  }
  throw Error(ErrorKind::kInvalidArgument, "'" + name + "' is not " + kind + " (expected one of: " + known + ")");
}

// Valid UTF-8 of at most `most` bytes: control characters but the newline, and bytes that are no UTF-8, become \xNN.
std::string printable(std::string_view text, size_t most);

}  // namespace ringdp
