// ringdp.Options: a group's settings as torch passes them (pg_options). Fields are those of base/settings.h's table.
#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <map>
#include <string>

#include "base/settings.h"

namespace ringdp::backend {

// Holds only fields that were set or tuned; all others follow the environment.
class GroupOptions : public c10d::Backend::Options {
 public:
  explicit GroupOptions(std::chrono::milliseconds timeout = kBackendDefaultTimeout);

  void set(const std::string& field, const std::string& value);        // refuses unknown fields and bad values
  void set_tuned(const std::string& field, const std::string& value);  // the same, but the environment outranks it
  std::string get(const std::string& field) const;                     // the effective value

  // Options over environment over tuned values over defaults.
  Settings settings() const;
  c10::intrusive_ptr<GroupOptions> copy() const;
  const std::map<std::string, std::string>& fields() const { return fields_; }

 private:
  static void check(const std::string& field, const std::string& value);

  std::map<std::string, std::string> fields_, tuned_;
};

}  // namespace ringdp::backend
