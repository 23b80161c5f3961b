#include "backend/options.h"

#include "backend/errors.h"

namespace ringdp::backend {

GroupOptions::GroupOptions(std::chrono::milliseconds timeout) : c10d::Backend::Options("ringdp", timeout) {}

void GroupOptions::set(const std::string& field, const std::string& value) {
  guarded([&] {
    Settings scratch;
    set_field(scratch, field, value);
  });
  fields_[field] = value;
}

std::string GroupOptions::get(const std::string& field) const {
  return guarded([&] { return get_field(settings(), field); });
}

Settings GroupOptions::settings() const {
  return guarded([&] {
    Settings settings = settings_from_environment();
    for (const auto& [field, value] : fields_) set_field(settings, field, value);
    return settings;
  });
}

c10::intrusive_ptr<GroupOptions> GroupOptions::copy() const {
  auto other = c10::make_intrusive<GroupOptions>(timeout);
  other->fields_ = fields_;
  other->group_name = group_name;
  other->group_desc = group_desc;
  other->global_ranks_in_group = global_ranks_in_group;
  return other;
}

}  // namespace ringdp::backend
