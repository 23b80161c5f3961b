// Writes values as Python's pickle, protocol 2: what torch's flight-recorder tools read.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace ringdp::trace {

// Calls nest as the values do: begin_list(), any values, end_list(). In a dict keys and values alternate.
class Pickle {
 public:
  Pickle();

  void add(int64_t number);
  void add(std::string_view text);  // UTF-8
  void add_bool(bool value);
  void add_none();
  void begin_list();
  void end_list();
  void begin_dict();
  void end_dict();
  void begin_tuple();
  void end_tuple();

  template <class Value>
  void entry(std::string_view key, const Value& value) {
    add(key);
    add(value);
  }

  std::string finish();  // the bytes; once

 private:
  std::string bytes_;
};

}  // namespace ringdp::trace
