// Settings as text.
#include <cstdlib>

#include "base/settings.h"
#include "target.h"

namespace ringdp::fuzz {

// Settings as text: fields of Options, and variables of the environment (csrc/base/env.h).
namespace {

// A variable of this process, for as long as this lives; setenv() would keep every value for good.
class Variable {
 public:
  Variable(const std::string& name, const std::string& value) : name_(name), text_(name + "=" + value.c_str()) {
    ::putenv(text_.data());
  }
  ~Variable() { ::unsetenv(name_.c_str()); }

 private:
  std::string name_, text_;
};

const SettingRow& any_row(Input& input) {
  const auto& table = setting_table();
  return table[input.number<uint8_t>() % table.size()];
}

// What is refused leaves all as it was; what is accepted is written and read again.
void check_field(const std::string& field, const std::string& value) {
  Settings settings;
  if (refuses({ErrorKind::kInvalidArgument}, [&] { set_field(settings, field, value); })) return;
  const std::string text = get_field(settings, field);
  require(text.find('\0') == std::string::npos, "a value is read to its end");
  require(value.find('\0') == std::string::npos, "a value with a zero in it is no value");
  Settings again;
  set_field(again, field, text);
  require(get_field(again, field) == text, "a value is what get_field() writes");
}

}  // namespace

FUZZ_TARGET(settings) {
  const SettingRow& row = any_row(input);
  const std::string value = input.rest();
  check_field(row.field, value);
  check_field(value.substr(0, value.find('=')), value.substr(std::min(value.size(), value.find('=') + 1)));

  const Variable variable(row.variable, value);
  describe_setting(row);
  refuses({ErrorKind::kInvalidArgument}, [] { log_level_from_environment(); });
  refuses({ErrorKind::kInvalidArgument}, [] { require(trace_events_from_environment() >= 0, "events have a number"); });
  Settings settings;
  if (refuses({ErrorKind::kInvalidArgument}, [&] { settings = settings_from_environment(); })) return;
  for (const SettingRow& each : setting_table()) {
    if (*each.field) check_field(each.field, get_field(settings, each.field));
  }
}

}  // namespace ringdp::fuzz
