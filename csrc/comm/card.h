// What a rank tells all others in the first round: who it is, where it listens, and the settings that must agree.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "base/env.h"
#include "transport/identity.h"

namespace ringdp::comm {

struct Card {
  transport::HostIdentity identity;
  std::string socket_name;  // abstract unix socket; empty without one
  std::string settings;     // "transport=auto algorithm=auto ..."
  Thresholds thresholds;    // of this rank; rank 0's are in force
  int64_t heap_bytes = 0;   // for which this process has address space; the least of a host's ranks counts
  int world = 0;            // how many ranks it was told that there are
};

// The settings with which ranks could not work together if they differed, as text to compare and to print.
std::string shared_settings(const Settings& settings);

std::string to_text(const Card& card);

// nullopt unless `text` is what to_text() writes.
std::optional<Card> card_from_text(const std::string& text);

// The protocol (hello.h) of the build that wrote a card, of whatever build; nullopt when it is no card.
std::optional<uint32_t> protocol_of_card(const std::string& text);

}  // namespace ringdp::comm
