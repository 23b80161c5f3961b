#include "comm/tcp_offer.h"

#include <gtest/gtest.h>

namespace ringdp::comm {
namespace {

TEST(TcpOffer, SurvivesTheStore) {
  for (const char* text : {"10.0.0.1 4711 4", "fd00::1 65535 64", "127.0.0.1 1 1"}) {
    const auto offer = tcp_offer_from_text(text);
    ASSERT_TRUE(offer) << text;
    EXPECT_EQ(to_text(*offer), text);
  }
}

TEST(TcpOffer, WhatNoRankWritesIsRefused) {
  for (const char* text : {"", "10.0.0.1", "10.0.0.1 4711", "10.0.0.1 4711 0", "10.0.0.1 4711 65", "10.0.0.1 0 4", "10.0.0.1 65536 4",
                           "a.host 4711 4", "10.0.0.1 4711 4 ", "10.0.0.1 04711 4", "10.0.0.1 4711 04", "fd00:0::1 1 1"}) {
    EXPECT_FALSE(tcp_offer_from_text(text)) << text;
  }
}

}  // namespace
}  // namespace ringdp::comm
