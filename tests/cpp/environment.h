// Test support: a variable of the environment, as it was before once the test is over.
#pragma once
#include <cstdlib>
#include <optional>
#include <string>

namespace ringdp {

class Variable {
 public:
  // `value` null: not set.
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    put(value);
  }
  ~Variable() { put(before_ ? before_->c_str() : nullptr); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void put(const char* value) const { value ? ::setenv(name_.c_str(), value, 1) : ::unsetenv(name_.c_str()); }

  const std::string name_;
  std::optional<std::string> before_;
};

}  // namespace ringdp
