// c10d's store as the rendezvous store of transport/.
#pragma once
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "transport/store.h"

namespace ringdp::backend {

class StoreAdapter : public transport::Store {
 public:
  explicit StoreAdapter(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
  void set(const std::string& key, const std::string& value) override;
  int64_t add(const std::string& key, int64_t amount) override;
  bool has(const std::vector<std::string>& keys) override;
  std::vector<std::string> get(const std::vector<std::string>& keys) override;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace ringdp::backend
