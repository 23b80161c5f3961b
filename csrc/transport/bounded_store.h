// A store whose calls end by a deadline, with an error that names the store, although those of the store behind it may
// block for good: its server may be stopped, or its host away.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/helper_thread.h"
#include "transport/store.h"

namespace ringdp::transport {

// One caller at a time. A call that does not come back keeps the store behind this one, and its thread, for itself.
class BoundedStore : public Store {
 public:
  BoundedStore(std::shared_ptr<Store> store, Deadline deadline);

  void set(const std::string& key, const std::string& value) override;
  int64_t add(const std::string& key, int64_t amount) override;
  bool has(const std::vector<std::string>& keys) override;
  std::vector<std::string> get(const std::vector<std::string>& keys) override;

 private:
  template <class Result>
  Result ask(const std::string& key, std::function<Result(Store&)> call);

  std::shared_ptr<Store> store_;
  Deadline deadline_;
  HelperThread helper_;
};

}  // namespace ringdp::transport
