// From a name back to the enumerator that name_of() gives it.
#pragma once
#include <string>

#include "base/error.h"

namespace ringdp {

// The one of the first `count` enumerators with this name, else InvalidArgument naming the known ones. `kind`: with its
// article, "a collective".
template <class Enum>
Enum enumerator_named(const std::string& name, int count, const std::string& kind) {
  std::string known;
  for (int i = 0; i < count; ++i) {
    const auto one = static_cast<Enum>(i);
    if (name == name_of(one)) return one;
    known += (i ? ", " : "") + std::string(name_of(one));
  }
  throw Error(ErrorKind::kInvalidArgument, "'" + name + "' is not " + kind + ": known are " + known);
}

}  // namespace ringdp
