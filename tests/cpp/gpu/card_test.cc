// What a rank says of its device, and what is believed of it.
#include "gpu/card.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "gpu/host_functions.h"

namespace ringdp::gpu {
namespace {

using testing::host_functions;

TEST(GpuCard, ADeviceIsDescribed) {
  testing::reset_devices();
  const Functions functions = host_functions();
  const Card card = card_of(functions, 3);
  EXPECT_EQ(card.usable, 1);
  EXPECT_EQ(card.uuid[0], 3);
  EXPECT_EQ(card.multiprocessors, 16);
  EXPECT_EQ(card.pid, static_cast<uint64_t>(getpid()));
}

TEST(GpuCard, WhatTheLibrarySaysIsTheReason) {
  testing::reset_devices();
  testing::devices.fails = "describe";
  const Functions functions = host_functions();
  try {
    card_of(functions, 0);
    FAIL() << "a device that cannot be described has no card";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "CUDA: describe fails here");
  }
}

TEST(GpuCard, ItArrivesAsItWasSent) {
  testing::reset_devices();
  Card card = card_of(host_functions(), 1);
  card.page = 8192;
  card.memory.bytes = 77;
  const std::vector<Card> cards = cards_from({to_bytes(card), to_bytes(card_without("no device"))});
  EXPECT_EQ(to_bytes(cards[0]), to_bytes(card));
  EXPECT_EQ(why_not(cards), "rank 1: no device");
  EXPECT_EQ(why_not({cards[0]}), "");
}

TEST(GpuCard, AReasonOfAnyLengthEnds) {
  const std::vector<Card> cards = cards_from({to_bytes(card_without(std::string(5000, 'x')))});
  EXPECT_EQ(why_not(cards), "rank 0: " + std::string(sizeof(Card::why_not) - 1, 'x'));
}

TEST(GpuCard, AnotherBuildIsNamed) {
  std::string other = to_bytes(card_without(""));
  other[0] ^= 1;
  for (const std::string& bytes : {other, other.substr(1), std::string()}) {
    try {
      cards_from({to_bytes(card_without("")), bytes});
      FAIL() << "it cannot be understood";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
      EXPECT_EQ(error.culprit(), 1);
      EXPECT_NE(std::string(error.what()).find("rank 1 runs another build"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace ringdp::gpu
