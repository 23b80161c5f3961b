#include "comm/session.h"

#include <array>
#include <cstring>

namespace ringdp::comm {
namespace {

constexpr size_t kSecretBytes = sizeof(uint64_t) + transport::kTokenBytes;

}  // namespace

Session Session::begin(RollCall& roll_call, const Settings& settings) {
  std::array<std::byte, kSecretBytes> secret;
  if (roll_call.rank() == 0) {
    transport::fill_random(secret.data(), secret.size());
    roll_call.publish("secret", transport::to_hex(secret.data(), secret.size()));
  } else if (!transport::from_hex(roll_call.gather("secret", {0}).front(), secret.data(), secret.size())) {
    throw_malformed(roll_call, "secret", 0);
  }
  Session session{roll_call, settings};
  std::memcpy(&session.group, secret.data(), sizeof session.group);
  std::memcpy(session.token.data(), secret.data() + sizeof session.group, transport::kTokenBytes);
  return session;
}

transport::Hello Session::hello(int from, int to, transport::Channel channel, uint32_t stream) const {
  return {group, roll_call.generation(), from, to, world(), channel, token, stream};
}

void throw_malformed(const RollCall& roll_call, const std::string& what, int rank) {
  throw Error(ErrorKind::kInternal,
              "rank " + std::to_string(rank) + " published a malformed " + what + " (store key " +
                  roll_call.key(what, rank) + "); do all ranks run the same version of ringdp?",
              rank);
}

}  // namespace ringdp::comm
