// What all ranks of one group know before the first socket opens, and the hellos that follow from it.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "base/env.h"
#include "comm/roll_call.h"
#include "transport/hello.h"
#include "transport/tcp/tls.h"

namespace ringdp::comm {

struct Session {
  RollCall& roll_call;
  const Settings& settings;
  uint64_t group = 0;        // random, from rank 0
  transport::Token token{};  // random, from rank 0
  std::shared_ptr<const transport::TlsContext> tls{};  // of connections over TCP; null: in plain

  // Rank 0 makes group and token, the others read them. Error(kInternal) names rank and key of a malformed value.
  static Session begin(RollCall& roll_call, const Settings& settings);

  int rank() const { return roll_call.rank(); }
  int world() const { return roll_call.world(); }
  transport::Hello hello(int from, int to, transport::Channel channel, uint32_t stream = 0) const;
};

// Error(kInternal): "rank 2 published a malformed card (store key 1/card/2)".
[[noreturn]] void throw_malformed(const RollCall& roll_call, const std::string& what, int rank);

}  // namespace ringdp::comm
