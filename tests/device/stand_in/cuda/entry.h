// Functions that are found by name, as the driver interface is.
#pragma once
#include <cstring>

namespace stand_in {

struct Entry {
  const char* name;
  void* function;
};

template <class Function>
Entry entry(const char* name, Function* function) {
  return {name, reinterpret_cast<void*>(function)};
}

// The function with this name; null if there is none.
template <class Entries>
void* found_in(const Entries& entries, const char* name) {
  for (const Entry& one : entries) {
    if (std::strcmp(one.name, name) == 0) return one.function;
  }
  return nullptr;
}

}  // namespace stand_in
