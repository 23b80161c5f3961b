// Test support: what the ranks of a group know of it, without having read it in a store.
#pragma once
#include <memory>
#include <utility>

#include "comm/bootstrap_steps.h"

namespace ringdp::comm {

// The same secret for all ranks of this process.
inline Session session_of(StoreExchange& store_exchange, const Settings& settings,
                          std::shared_ptr<const transport::TlsContext> tls = {}) {
  static const Secret secret = Secret::random();
  return {store_exchange, settings, secret, std::move(tls)};
}

}  // namespace ringdp::comm
