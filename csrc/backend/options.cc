#include "backend/options.h"

#include <utility>

#include "backend/errors.h"

namespace ringdp::backend {

GroupOptions::GroupOptions(std::chrono::milliseconds timeout) : c10d::Backend::Options("ringdp", timeout) {}

void GroupOptions::check(const std::string& field, const std::string& value) {
  guarded([&] {
    Settings scratch;
    set_field(scratch, field, value);
  });
}

void GroupOptions::set(const std::string& field, const std::string& value) {
  check(field, value);
  fields_[field] = value;
}

void GroupOptions::set_tuned(const std::string& field, const std::string& value) {
  check(field, value);
  tuned_[field] = value;
}

std::string GroupOptions::get(const std::string& field) const {
  return guarded([&] { return get_field(settings(), field); });
}

Settings GroupOptions::settings() const {
  return guarded([&] {
    Settings tuned;
    for (const auto& [field, value] : tuned_) set_field(tuned, field, value);
    Settings settings = settings_from_environment(std::move(tuned));
    for (const auto& [field, value] : fields_) set_field(settings, field, value);
    return settings;
  });
}

c10::intrusive_ptr<GroupOptions> GroupOptions::copy() const {
  auto other = c10::make_intrusive<GroupOptions>(timeout);
  other->fields_ = fields_;
  other->tuned_ = tuned_;
  other->group_name = group_name;
  other->group_desc = group_desc;
  other->global_ranks_in_group = global_ranks_in_group;
  return other;
}

}  // namespace ringdp::backend
