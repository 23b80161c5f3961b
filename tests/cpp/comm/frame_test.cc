#include "comm/frame.h"

#include <gtest/gtest.h>

#include <random>

namespace ringdp::comm {
namespace {

constexpr Frame kOffer{FrameKind::kOffer, 0x0102030405060708, -5, DType::kBF16, int64_t{1} << 40};

void expect_survives(const Frame& frame) {
  const auto copy = decode(encode(frame));
  ASSERT_TRUE(copy);
  EXPECT_EQ(copy->kind, frame.kind);
  EXPECT_EQ(copy->id, frame.id);
  EXPECT_EQ(copy->tag, frame.tag);
  EXPECT_EQ(copy->dtype, frame.dtype);
  EXPECT_EQ(copy->count, frame.count);
}

TEST(Frame, SurvivesTheWire) {
  expect_survives(kOffer);
  expect_survives({FrameKind::kAccept, 1});
  expect_survives({FrameKind::kData, ~uint64_t{0}});
}

TEST(Frame, WhatCannotBeMeantIsRefused) {
  const auto changed = [](const auto& change) {
    Frame frame = kOffer;
    change(frame);
    return decode(encode(frame)).has_value();
  };
  EXPECT_TRUE(changed([](Frame&) {}));
  EXPECT_FALSE(changed([](Frame& f) { f.kind = static_cast<FrameKind>(0); }));
  EXPECT_FALSE(changed([](Frame& f) { f.kind = static_cast<FrameKind>(4); }));
  EXPECT_FALSE(changed([](Frame& f) { f.id = 0; }));
  EXPECT_FALSE(changed([](Frame& f) { f.count = -1; }));
  EXPECT_FALSE(changed([](Frame& f) { f.dtype = static_cast<DType>(kDTypeCount); }));
  EXPECT_FALSE(changed([](Frame& f) { f.kind = FrameKind::kAccept; })) << "an answer carries no description";
  EXPECT_FALSE(changed([](Frame& f) { f.kind = FrameKind::kData; }));
}

TEST(Frame, RandomBytesAreRefused) {
  std::mt19937_64 random(17);
  for (int round = 0; round < 20000; ++round) {
    FrameBytes bytes;
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    ASSERT_FALSE(decode(bytes)) << "round " << round;
  }
}

TEST(Frame, EveryBitCounts) {
  const FrameBytes good = encode(kOffer);
  for (size_t bit = 0; bit < 8 * kFrameBytes; ++bit) {
    FrameBytes bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_FALSE(decode(bad)) << "bit " << bit;
  }
}

}  // namespace
}  // namespace ringdp::comm
