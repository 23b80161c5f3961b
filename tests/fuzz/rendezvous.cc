// A roll call (csrc/comm/roll_call.h) over a store in which others have written what they like.
#include "comm/roll_call.h"

#include <chrono>

#include "comm/memory_store.h"
#include "comm/session.h"
#include "target.h"

namespace ringdp::fuzz {
namespace {

// Timeouts, what another rank has said, or a malformed secret.
constexpr std::initializer_list<ErrorKind> kGivenUp = {ErrorKind::kTimeout, ErrorKind::kAborted, ErrorKind::kPeerLost,
                                                       ErrorKind::kInternal};

const comm::Card kCard{transport::local_identity(), "", comm::shared_settings(Settings{}), {}, 0, 3};

// Under the keys that ranks read, of two generations: a card, or anything.
void fill(transport::Store& store, Input& input) {
  static const char* const kKeys[] = {"1/card/0", "1/card/1", "2/card/0", "2/card/1", "generation/0", "generation/2", "1/failed",
                                      "2/failed", "1/twin", "2/twin", "2/secret/0", "1/secret/0"};
  while (input.left() > 0) {
    const char* const key = kKeys[input.up_to(std::size(kKeys) - 1)];
    const std::string value = input.bytes(input.number<uint16_t>());
    store.set(key, value.empty() ? comm::to_text(kCard) : value);
  }
}

}  // namespace

FUZZ_TARGET(rendezvous) {
  comm::MemoryStore store;
  if (input.up_to(1)) store.set("generation/1", "1");  // an earlier life
  fill(store, input);
  comm::RollCall roll_call(store, 1, 3, Deadline::after(std::chrono::nanoseconds(0)));
  roll_call.heed([] { return std::vector<comm::Loss>{{0, {}, comm::kDied}}; });
  refuses(kGivenUp, [&] { comm::Session::begin(roll_call, Settings{}); });
  require(refuses(kGivenUp, [&] { roll_call.gather("address", {0, 2}); }), "nobody waits longer than his deadline");
}

}  // namespace ringdp::fuzz
