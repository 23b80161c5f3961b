// A key-value store that all ranks of a group can reach, for the bootstrap. The backend adapts c10d's; tests use a map.
// One caller at a time; calls may block and throw what the implementation throws.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/threads.h"

namespace ringdp::transport {

class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Adds to a counter and returns the new value.
  virtual int64_t add(const std::string& key, int64_t amount) = 0;
  // True when all keys exist; does not wait for them.
  virtual bool has(const std::vector<std::string>& keys) = 0;
  // The values of these keys, in their order. Call it once has() is true: cancelling and repeating a wait on a distant
  // store would discard answers on their way.
  virtual std::vector<std::string> get(const std::vector<std::string>& keys) = 0;
};

// A store whose calls end by a deadline, with an error that names the store. The underlying store's calls may block for
// ever, when its server is stopped or its host is unreachable. One caller at a time; a call that never returns keeps
// the underlying store and its thread alive.
class BoundedStore : public Store {
 public:
  // `interrupt`: called by the caller's thread before a call and every 200 ms of one; what it throws ends the call, and
  // it is not called again. Empty: nothing interrupts a call.
  BoundedStore(std::shared_ptr<Store> store, Deadline deadline, std::function<void()> interrupt = {});

  void set(const std::string& key, const std::string& value) override;
  int64_t add(const std::string& key, int64_t amount) override;
  bool has(const std::vector<std::string>& keys) override;
  std::vector<std::string> get(const std::vector<std::string>& keys) override;

 private:
  template <class Result>
  Result ask(const std::string& key, std::function<Result(Store&)> call);
  void look_for_interrupts();

  std::shared_ptr<Store> store_;
  Deadline deadline_;
  std::function<void()> interrupt_;
  HelperThread helper_;
};

}  // namespace ringdp::transport
