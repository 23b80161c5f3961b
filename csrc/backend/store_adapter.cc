#include "backend/store_adapter.h"

#include <c10/util/Exception.h>

#include "base/error.h"

namespace ringdp::backend {
namespace {

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

// The store's own failures (its server is gone, it timed out) in our words.
template <class F>
auto translated(const std::string& key, F&& f) -> decltype(f()) {
  try {
    return f();
  } catch (const c10::DistNetworkError& error) {
    throw Error(ErrorKind::kPeerLost, "the rendezvous store is gone (key '" + key + "'): " + first_line(error) +
                                          ". Is rank 0, or whoever hosts the store, still running?");
  } catch (const std::exception& error) {
    throw Error(ErrorKind::kTimeout, "the rendezvous store has no key '" + key + "' yet: " + first_line(error));
  }
}

}  // namespace

void StoreAdapter::set(const std::string& key, const std::string& value) {
  translated(key, [&] { store_->set(key, std::vector<uint8_t>(value.begin(), value.end())); });
}

std::string StoreAdapter::get(const std::string& key, Deadline deadline) {
  return translated(key, [&] {
    constexpr int kForeverMs = 1000 * 3600 * 24;
    store_->wait({key}, std::chrono::milliseconds(std::max(1, deadline.poll_ms(kForeverMs))));
    const auto bytes = store_->get(key);
    return std::string(bytes.begin(), bytes.end());
  });
}

int64_t StoreAdapter::add(const std::string& key, int64_t amount) {
  return translated(key, [&] { return store_->add(key, amount); });
}

bool StoreAdapter::has(const std::string& key) {
  return translated(key, [&] { return store_->check({key}); });
}

}  // namespace ringdp::backend
