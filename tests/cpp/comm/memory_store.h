// Test support: a Store in memory, shared by ranks that run as threads of one process.
//
// Thread-safe. get() waits on a condition variable; values live as long as the store.
#pragma once
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "base/error.h"
#include "transport/store.h"

namespace ringdp::comm {

class MemoryStore : public transport::Store {
 public:
  void set(const std::string& key, const std::string& value) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }

  std::string get(const std::string& key, Deadline deadline) override {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto present = [&] { return values_.count(key) != 0; };
    // wait_until(time_point::max()) overflows in some standard libraries, so never() waits without a bound.
    if (deadline.at() == Deadline::never().at()) {
      changed_.wait(lock, present);
    } else if (!changed_.wait_until(lock, deadline.at(), present)) {
      throw Error(ErrorKind::kTimeout, "the store has no key '" + key + "' at the deadline");
    }
    return values_.at(key);
  }

  int64_t add(const std::string& key, int64_t amount) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::string& value = values_[key];
    value = std::to_string((value.empty() ? 0 : std::stoll(value)) + amount);
    changed_.notify_all();
    return std::stoll(value);
  }

  bool has(const std::string& key) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return values_.count(key) != 0;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

}  // namespace ringdp::comm
