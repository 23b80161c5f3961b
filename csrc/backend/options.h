// ringdp.Options: a group's settings as torch passes them (pg_options). Fields are those of base/env.h's table.
#pragma once
#include <map>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/env.h"

namespace ringdp::backend {

// Only fields that were set are held, so that the environment shows through the others.
class GroupOptions : public c10d::Backend::Options {
 public:
  explicit GroupOptions(std::chrono::milliseconds timeout = kBackendDefaultTimeout);

  void set(const std::string& field, const std::string& value);  // refuses unknown fields and bad values
  std::string get(const std::string& field) const;               // the value in force

  // Options over environment over defaults.
  Settings settings() const;
  c10::intrusive_ptr<GroupOptions> copy() const;
  const std::map<std::string, std::string>& fields() const { return fields_; }

 private:
  std::map<std::string, std::string> fields_;
};

}  // namespace ringdp::backend
