// Rendezvous: a key-value store that all ranks of a group reach. The backend adapts c10d's; tests use a map.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace ringdp::transport {

class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Adds to a counter and returns the new value.
  virtual int64_t add(const std::string& key, int64_t amount) = 0;
  // True when all keys exist; does not wait for them.
  virtual bool has(const std::vector<std::string>& keys) = 0;
  // Their values, in their order. Asked for once has() is true: a store may be far away, and a wait that is given up and
  // begun again would throw away answers that are under way.
  virtual std::vector<std::string> get(const std::vector<std::string>& keys) = 0;
};

}  // namespace ringdp::transport
