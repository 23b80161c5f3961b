#include "backend/store_adapter.h"

#include <c10/util/Exception.h>

#include "backend/errors.h"
#include "base/error.h"

namespace ringdp::backend {
namespace {

// Translates failures of the store into ringdp errors.
template <class F>
auto translated(const std::string& key, F&& f) -> decltype(f()) {
  try {
    return f();
  } catch (const c10::DistNetworkError& error) {
    throw Error(ErrorKind::kPeerLost, "the rendezvous store is gone (key '" + key + "'): " + first_line(error) +
                                          ". Is rank 0, or the process that hosts the store, still running?");
  } catch (const std::exception& error) {
    throw Error(ErrorKind::kInternal, "the rendezvous store has failed (key '" + key + "'): " + first_line(error));
  }
}

}  // namespace

void StoreAdapter::set(const std::string& key, const std::string& value) {
  translated(key, [&] { store_->set(key, std::vector<uint8_t>(value.begin(), value.end())); });
}

int64_t StoreAdapter::add(const std::string& key, int64_t amount) {
  return translated(key, [&] { return store_->add(key, amount); });
}

bool StoreAdapter::has(const std::vector<std::string>& keys) {
  return translated(keys.front(), [&] { return store_->check(keys); });
}

// One round trip where the store can.
std::vector<std::string> StoreAdapter::get(const std::vector<std::string>& keys) {
  return translated(keys.front(), [&] {
    std::vector<std::vector<uint8_t>> all;
    if (keys.size() > 1 && store_->hasExtendedApi()) {
      all = store_->multiGet(keys);
    } else {
      for (const std::string& key : keys) all.push_back(store_->get(key));
    }
    std::vector<std::string> values;
    for (const auto& bytes : all) values.emplace_back(bytes.begin(), bytes.end());
    return values;
  });
}

}  // namespace ringdp::backend
