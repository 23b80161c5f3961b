// Rendezvous: a key-value store that all ranks of a group reach. The backend adapts c10d's; tests use a map.
#pragma once
#include <string>

#include "base/deadline.h"

namespace ringdp::transport {

class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits for the key. Error(kTimeout) naming the key once the deadline has passed.
  virtual std::string get(const std::string& key, Deadline deadline) = 0;
  // Adds to a counter and returns the new value.
  virtual int64_t add(const std::string& key, int64_t amount) = 0;
  // True when all keys exist; does not wait.
  virtual bool has(const std::string& key) = 0;
};

}  // namespace ringdp::transport
