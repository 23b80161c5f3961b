// Every row of the settings table: defaults, round trips, refusals, and the environment. The expected values are
// read from the table itself ("a|b|c" or "low..high"), so a new row is tested when it is added.
#include "base/settings.h"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "environment.h"

namespace ringdp {
namespace {

std::vector<SettingRow> field_rows() {
  std::vector<SettingRow> rows;
  for (const SettingRow& row : setting_table()) {
    if (*row.field) rows.push_back(row);
  }
  return rows;
}

bool is_choice(const SettingRow& row) { return std::string(row.accepts).find('|') != std::string::npos; }
bool is_range(const SettingRow& row) { return std::string(row.accepts).find("..") != std::string::npos; }

std::vector<std::string> choices_of(const SettingRow& row) {
  std::vector<std::string> choices;
  std::stringstream all(row.accepts);
  for (std::string one; std::getline(all, one, '|');) choices.push_back(one);
  return choices;
}

struct Range {
  int64_t low, high;
};
Range range_of(const SettingRow& row) {
  const std::string text = row.accepts;
  return {std::stoll(text), std::stoll(text.substr(text.find("..") + 2))};
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << error.what();
    return error.what();
  }
  return "";
}

void expect_names(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
  }
}

// Starts with none of the table's variables set, whatever the caller's environment holds, and ends with what it held.
class Environment : public ::testing::Test {
 protected:
  Environment() {
    for (const SettingRow& row : setting_table()) unset_.emplace_back(row.variable, nullptr);
  }

 private:
  std::deque<Variable> unset_;
};

TEST(SettingTable, FieldsAndVariablesAreUnique) {
  std::set<std::string> fields, variables;
  for (const SettingRow& row : setting_table()) variables.insert(row.variable);
  for (const SettingRow& row : field_rows()) fields.insert(row.field);
  EXPECT_EQ(variables.size(), setting_table().size());
  EXPECT_EQ(fields.size(), field_rows().size());
}

TEST(SettingTable, DefaultsAreThoseOfTheStruct) {
  for (const SettingRow& row : field_rows()) EXPECT_EQ(get_field(Settings{}, row.field), row.fallback) << row.field;
}

TEST(SettingTable, EveryRowSaysWhatItIsFor) {
  for (const SettingRow& row : setting_table()) EXPECT_STRNE(row.help, "") << row.variable;
}

TEST(SetField, EveryAcceptedValueRoundTrips) {
  for (const SettingRow& row : field_rows()) {
    std::vector<std::string> values = {"eth7"};
    if (is_choice(row)) values = choices_of(row);
    if (is_range(row)) values = {std::to_string(range_of(row).low), std::to_string(range_of(row).high)};
    for (const std::string& value : values) {
      Settings settings;
      set_field(settings, row.field, value);
      EXPECT_EQ(get_field(settings, row.field), value) << row.field;
      for (const SettingRow& other : field_rows()) {
        EXPECT_EQ(get_field(settings, other.field), other.field == row.field ? value : other.fallback) << other.field;
      }
    }
  }
}

TEST(SetField, RefusesOtherWordsNamingFieldValueAndChoices) {
  for (const SettingRow& row : field_rows()) {
    if (!is_choice(row)) continue;
    for (const std::string value : {"", "nonsense", "AUTO", "auto|shm"}) {
      Settings settings;
      const std::string message = message_of([&] { set_field(settings, row.field, value); });
      expect_names(message, {row.field, "'" + value + "'"});
      expect_names(message, choices_of(row));
      EXPECT_EQ(get_field(settings, row.field), row.fallback);
    }
  }
}

TEST(SetField, RefusesOtherNumbersNamingFieldValueAndBounds) {
  for (const SettingRow& row : field_rows()) {
    if (!is_range(row)) continue;
    const Range range = range_of(row);
    const std::string low = std::to_string(range.low), high = std::to_string(range.high);
    for (const std::string& value : {std::to_string(range.low - 1), std::to_string(range.high + 1), std::string(),
                                     low + "k", low + " ", std::string("99999999999999999999"), std::string("many")}) {
      Settings settings;
      expect_names(message_of([&] { set_field(settings, row.field, value); }),
                   {row.field, "'" + value + "'", low, high});
      EXPECT_EQ(get_field(settings, row.field), row.fallback);
    }
  }
}

TEST(SetField, ATextEndsAtNoZeroByte) {
  Settings settings;
  const std::string message = message_of([&] { set_field(settings, "tls_key", std::string("key\0.pem", 8)); });
  expect_names(message, {"tls_key", "text without a zero byte"});
  EXPECT_EQ(get_field(settings, "tls_key"), "");
}

TEST(SetField, ASlotIsLeftOpenOrLargeEnough) {
  Settings settings;
  for (const std::string value : {"0", "4096"}) {
    set_field(settings, "slot_bytes", value);
    EXPECT_EQ(get_field(settings, "slot_bytes"), value);
  }
  for (const std::string value : {"1", "4095"}) {
    expect_names(message_of([&] { set_field(settings, "slot_bytes", value); }),
                 {"slot_bytes", "'" + value + "'", "0 or a whole number from 4096"});
  }
}

TEST(SetField, AnUnknownFieldIsRefusedWithTheKnownOnes) {
  Settings settings;
  const std::string message = message_of([&] { set_field(settings, "bandwidth", "1"); });
  expect_names(message, {"'bandwidth'"});
  for (const SettingRow& row : field_rows()) expect_names(message, {row.field});
  expect_names(message_of([&] { get_field(settings, "bandwidth"); }), {"'bandwidth'"});
}

TEST_F(Environment, UnsetMeansDefaults) {
  const Settings settings = settings_from_environment();
  for (const SettingRow& row : field_rows()) EXPECT_EQ(get_field(settings, row.field), row.fallback);
}

TEST_F(Environment, EachVariableSetsItsFieldOnly) {
  for (const SettingRow& row : field_rows()) {
    std::string value = "eth7";
    if (is_choice(row)) value = choices_of(row).back();
    if (is_range(row)) value = std::to_string(range_of(row).low);
    const Variable set(row.variable, value.c_str());
    const Settings settings = settings_from_environment();
    for (const SettingRow& other : field_rows()) {
      EXPECT_EQ(get_field(settings, other.field), other.field == row.field ? value : other.fallback) << other.field;
    }
  }
}

TEST_F(Environment, OutranksWhatWasGiven) {
  Settings tuned;
  tuned.thresholds.tree_bytes = 1;
  tuned.spin_us = 7;
  const Variable set("RINGDP_TREE_BYTES", "2");
  const Settings settings = settings_from_environment(tuned);
  EXPECT_EQ(settings.thresholds.tree_bytes, 2);
  EXPECT_EQ(settings.spin_us, 7);
}

TEST_F(Environment, ABadValueIsRefusedNamingTheVariable) {
  for (const SettingRow& row : field_rows()) {
    if (!is_choice(row) && !is_range(row)) continue;
    const Variable set(row.variable, "-nonsense");
    expect_names(message_of([] { settings_from_environment(); }), {row.variable, "'-nonsense'"});
  }
}

TEST_F(Environment, DescribesValueAndSource) {
  for (const SettingRow& row : setting_table()) {
    EXPECT_EQ(describe_setting(row).value, row.fallback);
    EXPECT_EQ(describe_setting(row).source, "default");
    const Variable set(row.variable, "something");
    EXPECT_EQ(describe_setting(row).value, "something");
    EXPECT_EQ(describe_setting(row).source, "environment");
  }
}

TEST_F(Environment, WhatIsNoFieldIsReadWithTheSameRules) {
  EXPECT_EQ(log_level_from_environment(), LogLevel::kWarning);
  const int64_t usual = trace_events_from_environment();
  EXPECT_GT(usual, 0);
  {
    const Variable level("RINGDP_LOG", "debug"), events("RINGDP_TRACE_EVENTS", "64");
    EXPECT_EQ(log_level_from_environment(), LogLevel::kDebug);
    EXPECT_EQ(trace_events_from_environment(), 64);
  }
  const Variable level("RINGDP_LOG", "loud"), events("RINGDP_TRACE_EVENTS", "63");
  expect_names(message_of([] { log_level_from_environment(); }), {"RINGDP_LOG", "'loud'", "error", "debug"});
  expect_names(message_of([] { trace_events_from_environment(); }), {"RINGDP_TRACE_EVENTS", "'63'", "0 or", "64"});
}

TEST_F(Environment, AnEmptyVariableCountsAsUnset) {
  EXPECT_EQ(read_env("MASTER_ADDR"), std::nullopt);
  const Variable empty("MASTER_ADDR", "");
  EXPECT_EQ(read_env("MASTER_ADDR"), std::nullopt);
  const Variable set("MASTER_ADDR", "localhost");
  EXPECT_EQ(read_env("MASTER_ADDR"), "localhost");
}

// Every field its own value.
Thresholds distinct() {
  Thresholds thresholds;
  int64_t value = 5000;
  for (const auto& f : kThresholdFields) thresholds.*f.member = ++value;
  return thresholds;
}

TEST(Thresholds, DefaultsAreWithinTheirBounds) {
  for (const auto& f : kThresholdFields) {
    EXPECT_GE(Thresholds{}.*f.member, f.low) << f.field;
    EXPECT_LE(Thresholds{}.*f.member, f.high) << f.field;
  }
}

TEST(Thresholds, OneRankCountsAsTwo) {
  const Thresholds limits = distinct();
  for (const int ranks : {1, 2, 3, 64}) {
    EXPECT_EQ(limits.one_shot_bytes(ranks), ranks <= 2 ? limits.one_shot_bytes_of_two : limits.one_shot_bytes_of_more);
    EXPECT_EQ(limits.one_pass_bytes(ranks), ranks <= 2 ? limits.one_pass_bytes_of_two : limits.one_pass_bytes_of_more);
    EXPECT_EQ(limits.slot_bytes(ranks, true), ranks <= 2 ? limits.slot_bytes_of_two : limits.slot_bytes_of_more);
    EXPECT_EQ(limits.slot_bytes(ranks, false), limits.slot_bytes_across_hosts);
  }
}

TEST(Thresholds, SurviveAsText) {
  for (const Thresholds& given : {Thresholds{}, distinct()}) {
    const auto copy = thresholds_from_text(to_text(given));
    ASSERT_TRUE(copy);
    for (const auto& f : kThresholdFields) EXPECT_EQ(*copy.*f.member, given.*f.member) << f.field;
  }
}

TEST(Thresholds, OtherTextIsRefused) {
  const std::string good = to_text(Thresholds{});
  const size_t number = good.find('=') + 1;
  for (const std::string& bad :
       {std::string(), good + " ", " " + good, good + "0x", good.substr(0, good.size() - 7),
        good.substr(good.find(' ') + 1), good + " " + good, std::string(good).insert(number, "-"),
        std::string(good).insert(number, "99999999999999999999"), "x" + good}) {
    EXPECT_FALSE(thresholds_from_text(bad)) << bad;
  }
  for (const auto& f : kThresholdFields) {
    for (const int64_t outside : {f.low - 1, f.high + 1}) {
      Thresholds thresholds;
      thresholds.*f.member = outside;
      EXPECT_FALSE(thresholds_from_text(to_text(thresholds))) << f.field << " " << outside;
    }
  }
}

}  // namespace

}  // namespace ringdp
