// Test support: a Store in memory, shared by ranks that run as threads of one process.
//
// Thread-safe. Values live as long as the store.
#pragma once
#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "transport/store.h"

namespace ringdp::comm {

class MemoryStore : public transport::Store {
 public:
  void set(const std::string& key, const std::string& value) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    values_[key] = value;
  }

  int64_t add(const std::string& key, int64_t amount) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::string& value = values_[key];
    value = std::to_string((value.empty() ? 0 : std::stoll(value)) + amount);
    return std::stoll(value);
  }

  bool has(const std::vector<std::string>& keys) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::all_of(keys.begin(), keys.end(), [&](const std::string& key) { return values_.count(key) != 0; });
  }

  std::vector<std::string> get(const std::vector<std::string>& keys) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::string> values;
    for (const std::string& key : keys) values.push_back(values_.at(key));
    return values;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
};

}  // namespace ringdp::comm
